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
)

// Field is a part of a request about which policies decide.
type Field string

// The fields, by the names that they have in files.
const (
	CPUs        Field = "cpus"
	Memory      Field = "memory"
	Disk        Field = "disk"
	PIDs        Field = "pids"
	Lifetime    Field = "lifetime"
	Images      Field = "images"
	Mounts      Field = "mounts"
	Network     Field = "network"
	Secrets     Field = "secrets"
	SecretModes Field = "secretModes"
)

// Request describes a requested sandbox, with defaults filled in. Of a limit,
// zero and less mean that there is none.
type Request struct {
	About
	Resources sandbox.Resources
	Lifetime  time.Duration // from when it was made to its end
	// Images are the names of the one image that it is made of: as it was asked
	// for, and its digest where that is known. One that is allowed suffices.
	Images []string
	// Signatures are those that were found for it. Unfetched says that it is not
	// here yet, so that they are asked about when it is.
	Signatures []policy.Signature
	Unfetched  bool
	Mounts     []sandbox.Mount
	Network    bool
	Secrets    []Grant

	assumed []string // keys that signed it, by their names, in a test
}

// Grant is a secret that a sandbox is to have.
type Grant struct {
	Name string
	Mode sandbox.SecretMode // empty: a rule adds it to requests
}

// Finding is the result of one field of one policy for a request.
type Finding struct {
	Policy string `json:"policy"`
	Rule   string `json:"rule"` // POLICY.FIELD
	Field  Field  `json:"field"`
	File   string `json:"file"`
	Line   int    `json:"line"`
	OK     bool   `json:"ok"`
	Asked  string `json:"asked"`
	Limit  string `json:"limit"`
	hint   string
}

// Check returns nil, or CodeDenied by the first rule that does not allow the
// request. With fields, only those are looked at: a change is not refused for
// what it leaves alone.
func (b *Set) Check(r Request, fields ...Field) error {
	for _, f := range b.Explain(r) {
		if !f.OK && (len(fields) == 0 || slices.Contains(fields, f.Field)) {
			return f.refusal()
		}
	}
	return nil
}

func (f *Finding) refusal() error {
	return &sandbox.Error{
		Code: sandbox.CodeDenied, Subject: string(f.Field), Rule: f.Rule, Hint: f.hint,
		Message: fmt.Sprintf("%s is not allowed: the policy %s allows %s (%s:%d)", f.Asked, f.Policy, f.Limit, f.File, f.Line),
	}
}

// Explain lists what every rule that is about a request says about it.
func (b *Set) Explain(r Request) []Finding {
	out := []Finding{}
	for _, p := range b.For(r.About) {
		for _, f := range p.judge(&r) {
			f.Policy, f.Rule, f.File, f.Line = p.Name, p.Name+"."+string(f.Field), p.File, p.Lines[string(f.Field)]
			out = append(out, f)
		}
	}
	return out
}

// Answer is what the policies say about a request.
func (b *Set) Answer(r Request) sandbox.PolicyAnswer {
	caps := b.Caps(r.About)
	a := sandbox.PolicyAnswer{
		Allow: true, Limits: caps.Resources, Lifetime: caps.Lifetime,
		Findings: []sandbox.PolicyFinding{}, Ceilings: []sandbox.PolicyCeiling{},
	}
	if err := b.Check(r); err != nil {
		a.Allow, a.Message = false, err.Error()
		if denied := new(sandbox.Error); errors.As(err, &denied) {
			a.Rule = denied.Rule
		}
	}
	for _, f := range b.Explain(r) {
		a.Findings = append(a.Findings, sandbox.PolicyFinding{Rule: f.Rule, File: f.File, Line: f.Line, OK: f.OK, Asked: f.Asked, Limit: f.Limit})
	}
	for _, c := range b.Ceilings(r.About) {
		a.Ceilings = append(a.Ceilings, sandbox.PolicyCeiling{Policy: c.Name, Profile: c.Profile})
	}
	return a
}

// judge looks at every field that a policy says something about.
func (p *Policy) judge(r *Request) []Finding {
	var out []Finding
	add := func(f *Finding) {
		if f != nil {
			out = append(out, *f)
		}
	}
	size := func(n int64) string { return units.BytesSize(float64(n)) }
	add(atMost(CPUs, p.CPUs, r.Resources.CPUs, func(n float64) string { return strconv.FormatFloat(n, 'g', -1, 64) }))
	add(atMost(Memory, p.Memory, r.Resources.Memory, size))
	add(atMost(Disk, p.Disk, r.Resources.Disk, size))
	add(atMost(PIDs, p.PIDs, r.Resources.PIDs, func(n int64) string { return strconv.FormatInt(n, 10) }))
	add(atMost(Lifetime, p.Lifetime, r.Lifetime, time.Duration.String))
	add(p.judgeImage(r))
	add(p.judgeMounts(r))
	if p.Network != nil && !*p.Network {
		add(&Finding{Field: Network, OK: !r.Network, Asked: asked(r.Network, "a network"), Limit: "none"})
	}
	return append(out, p.judgeSecrets(r)...)
}

func asked(really bool, what string) string {
	if really {
		return what
	}
	return "nothing"
}

func atMost[T ~int64 | ~float64](field Field, limit *T, want T, show func(T) string) *Finding {
	if limit == nil {
		return nil
	}
	f := &Finding{Field: field, OK: want > 0 && want <= *limit, Limit: "at most " + show(*limit), Asked: show(want)}
	if want <= 0 {
		f.Asked, f.hint = "no limit", "set one, with: atoll update"
	}
	return f
}

func (p *Policy) judgeImage(r *Request) *Finding {
	if p.Images == nil {
		return nil
	}
	f := &Finding{Field: Images, Limit: list(p.imagesAllowed()), Asked: strings.Join(r.Images, ", ")}
	if len(r.Images) == 0 {
		f.OK, f.Asked = true, "nothing"
		return f
	}
	if f.OK = slices.ContainsFunc(p.Images, func(pattern string) bool { return anyMayRun(pattern, r.Images) }); f.OK {
		return f
	}
	for i := range p.Signed {
		switch s := &p.Signed[i]; {
		case !anyMayRun(s.Image, r.Images):
		case r.Unfetched:
			f.OK, f.Asked = true, f.Asked+", whose signatures are looked at when it is there"
			return f
		case s.accepts(r):
			f.OK, f.hint = true, ""
			return f
		case len(r.Signatures) == 0:
			f.hint = "no signature was found beside the image; if it was signed since, pull it again with: atoll image pull " + r.Images[0]
		default:
			f.hint = fmt.Sprintf("of the %d signatures found beside the image none is of such a key and for this image", len(r.Signatures))
		}
	}
	return f
}

// imagesAllowed lists what images says, for people.
func (p *Policy) imagesAllowed() []string {
	all := slices.Clone(p.Images)
	for i := range p.Signed {
		all = append(all, p.Signed[i].String())
	}
	return all
}

func (p *Policy) judgeMounts(r *Request) *Finding {
	if p.Mounts == nil {
		return nil
	}
	f := &Finding{Field: Mounts, OK: true, Limit: list(p.Mounts), Asked: "nothing"}
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

func (p *Policy) judgeSecrets(r *Request) (out []Finding) {
	for _, g := range r.Secrets {
		if p.Secrets != nil {
			out = append(out, Finding{Field: Secrets, OK: like(p.Secrets, g.Name), Asked: "the secret " + g.Name, Limit: list(p.Secrets)})
		}
		// A secret that a rule adds never enters the sandbox.
		if p.SecretModes != nil && g.Mode != "" {
			modes := make([]string, len(p.SecretModes))
			for i, m := range p.SecretModes {
				modes[i] = string(m)
			}
			out = append(out, Finding{
				Field: SecretModes, OK: slices.Contains(p.SecretModes, g.Mode), Asked: fmt.Sprintf("the secret %s in the mode %s", g.Name, g.Mode), Limit: list(modes),
			})
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
