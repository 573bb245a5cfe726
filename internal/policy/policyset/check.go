package policyset

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-units"

	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Field is a part of a request that policies can restrict.
type Field string

// The fields, with their names in policy files.
const (
	CPUs        Field = "cpus"
	Memory      Field = "memory"
	Disk        Field = "disk"
	PIDs        Field = "pids"
	Lifetime    Field = "lifetime"
	Isolation   Field = "isolation"
	Images      Field = "images"
	Mounts      Field = "mounts"
	Network     Field = "network"
	Secrets     Field = "secrets"
	SecretModes Field = "secretModes"
)

// Request describes a requested sandbox, with defaults filled in. Limits of
// zero or less mean unlimited.
type Request struct {
	About
	Resources sandbox.Resources
	Lifetime  time.Duration // from creation to the end
	// Isolation is what the sandbox demands, or has.
	Isolation sandbox.Isolation
	// Images are the names of the sandbox's image: the requested name, and the
	// digest if it is known. The image is allowed if one of them is.
	Images []string
	// Signatures are those found for the image. Unfetched means that the image has
	// not been pulled yet, so its signatures are checked later.
	Signatures []policy.Signature
	Unfetched  bool
	Mounts     []sandbox.Mount
	Network    bool
	Secrets    []Grant

	assumed []string // names of the keys that a test assumes to have signed it
}

// Grant is a secret that the sandbox gets.
type Grant struct {
	Name string
	Mode sandbox.SecretMode // empty: a rule adds it to requests
}

// finding is the result of one field of one policy.
type finding struct {
	operator.PolicyFinding
	policy string
	field  Field
	hint   string
}

func found(field Field, ok bool, asked, limit string) *finding {
	return &finding{field: field, PolicyFinding: operator.PolicyFinding{OK: ok, Asked: asked, Limit: limit}}
}

// Check returns nil, or CodeDenied for the first rule that does not allow the
// request. If fields are given, only those are checked, so that an update is
// not refused for fields it does not change.
func (set *Set) Check(r Request, fields ...Field) error {
	for _, f := range set.judge(&r) {
		if !f.OK && (len(fields) == 0 || slices.Contains(fields, f.field)) {
			return f.refusal()
		}
	}
	return nil
}

func (f *finding) refusal() error {
	return &sandbox.Error{
		Code: sandbox.CodeDenied, Subject: string(f.field), Rule: f.Rule, Hint: f.hint,
		Message: fmt.Sprintf("%s is not allowed: the policy %s allows %s (%s:%d)", f.Asked, f.policy, f.Limit, f.File, f.Line),
	}
}

// judge returns the findings of all rules that apply to a request.
func (set *Set) judge(r *Request) (out []*finding) {
	for _, p := range set.about(r.About) {
		for _, f := range p.judge(r) {
			f.policy, f.Rule, f.File, f.Line = p.Name, p.Name+"."+string(f.field), p.File, p.Lines[string(f.field)]
			out = append(out, f)
		}
	}
	return out
}

// Explain lists the findings of all rules that apply to a request.
func (set *Set) Explain(r Request) []operator.PolicyFinding {
	out := []operator.PolicyFinding{}
	for _, f := range set.judge(&r) {
		out = append(out, f.PolicyFinding)
	}
	return out
}

// Answer returns the decision about a request, with its findings.
func (set *Set) Answer(r Request) operator.PolicyAnswer {
	caps := set.Caps(r.About)
	a := operator.PolicyAnswer{
		Allow: true, Limits: caps.Resources, Lifetime: caps.Lifetime, Isolation: caps.Isolation,
		Findings: set.Explain(r), Ceilings: []operator.PolicyCeiling{},
	}
	if err := set.Check(r); err != nil {
		a.Allow, a.Message = false, err.Error()
		if denied := new(sandbox.Error); errors.As(err, &denied) {
			a.Rule = denied.Rule
		}
	}
	for _, c := range set.EgressLimits(r.About) {
		a.Ceilings = append(a.Ceilings, operator.PolicyCeiling{Policy: c.Name, Profile: c.Profile})
	}
	return a
}

// judge checks every field that the policy restricts.
func (p *entry) judge(r *Request) []*finding {
	var out []*finding
	add := func(f *finding) {
		if f != nil {
			out = append(out, f)
		}
	}
	size := func(n int64) string { return units.BytesSize(float64(n)) }
	add(atMost(CPUs, p.CPUs, r.Resources.CPUs, func(n float64) string { return strconv.FormatFloat(n, 'g', -1, 64) }))
	add(atMost(Memory, p.Memory, r.Resources.Memory, size))
	add(atMost(Disk, p.Disk, r.Resources.Disk, size))
	add(atMost(PIDs, p.PIDs, r.Resources.PIDs, func(n int64) string { return strconv.FormatInt(n, 10) }))
	add(atMost(Lifetime, p.Lifetime, r.Lifetime, time.Duration.String))
	if p.Isolation != "" {
		add(found(Isolation, r.Isolation.Meets(p.Isolation), r.Isolation.Known(), "at least "+string(p.Isolation)))
	}
	add(p.judgeImage(r))
	add(p.judgeMounts(r))
	if p.Network != nil && !*p.Network {
		add(found(Network, !r.Network, asked(r.Network, "a network"), "none"))
	}
	return append(out, p.judgeSecrets(r)...)
}

func asked(really bool, what string) string {
	if really {
		return what
	}
	return "nothing"
}

func atMost[T ~int64 | ~float64](field Field, limit *T, want T, show func(T) string) *finding {
	if limit == nil {
		return nil
	}
	f := found(field, want > 0 && want <= *limit, show(want), "at most "+show(*limit))
	if want <= 0 {
		f.Asked, f.hint = "no limit", "set one, with: atoll update"
	}
	return f
}

func (p *entry) judgeImage(r *Request) *finding {
	if p.Images == nil {
		return nil
	}
	f := found(Images, false, strings.Join(r.Images, ", "), list(p.imagesAllowed()))
	if len(r.Images) == 0 {
		f.OK, f.Asked = true, "nothing"
		return f
	}
	if f.OK = slices.ContainsFunc(p.Images, func(pattern string) bool { return anyMayRun(pattern, r.Images) }); f.OK {
		return f
	}
	for i, s := range p.SignedImages {
		switch {
		case !anyMayRun(s.Image, r.Images):
		case r.Unfetched:
			f.OK, f.Asked = true, f.Asked+", whose signatures are checked after it is pulled"
			return f
		case p.accepts(r, i):
			f.OK, f.hint = true, ""
			return f
		case len(r.Signatures) == 0:
			f.hint = "no signature was found for the image; if it has been signed since, pull it again with: atoll image pull " + r.Images[0]
		default:
			f.hint = fmt.Sprintf("none of the %d signatures found for the image is valid and by such a key", len(r.Signatures))
		}
	}
	return f
}

// imagesAllowed describes the allowed images for people.
func (p *entry) imagesAllowed() []string {
	all := slices.Clone(p.Images)
	for _, s := range p.SignedImages {
		all = append(all, s.Image+" signed by "+strings.Join(s.SignedBy, " or "))
	}
	return all
}

func (p *entry) judgeMounts(r *Request) *finding {
	if p.Mounts == nil {
		return nil
	}
	f := found(Mounts, true, "nothing", list(p.Mounts))
	for _, m := range r.Mounts {
		if f.Asked = path.Clean(m.Source); !mayMount(p.Mounts, m) {
			f.OK = false
			if ro := m; !m.ReadOnly {
				if ro.ReadOnly = true; mayMount(p.Mounts, ro) {
					f.Asked, f.hint = f.Asked+" to write to", "mount it read-only, with :ro"
				}
			}
			return f
		}
	}
	return f
}

func (p *entry) judgeSecrets(r *Request) (out []*finding) {
	for _, g := range r.Secrets {
		if p.Secrets != nil {
			out = append(out, found(Secrets, like(p.Secrets, g.Name), "the secret "+g.Name, list(p.Secrets)))
		}
		// A secret that a rule adds is never visible inside the sandbox.
		if p.SecretModes != nil && g.Mode != "" {
			modes := make([]string, len(p.SecretModes))
			for i, m := range p.SecretModes {
				modes[i] = string(m)
			}
			asked := fmt.Sprintf("the secret %s in the mode %s", g.Name, g.Mode)
			out = append(out, found(SecretModes, slices.Contains(p.SecretModes, g.Mode), asked, list(modes)))
		}
	}
	return out
}

func list(all []string) string {
	if len(all) == 0 {
		return "none"
	}
	const shown = 8
	if len(all) > shown {
		return strings.Join(all[:shown], ", ") + " and others"
	}
	return strings.Join(all, ", ")
}
