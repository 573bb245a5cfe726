// Package plan decides how a sandbox is made. It is pure: the caller passes what
// it has found, and carries the plan out.
//
// [Draft] completes the Spec of a request and asks the policies. [Plan.Fit] adapts
// the plan to the provider.
package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// ReservedPrefix is the prefix of labels that Atoll sets. Callers cannot use it.
const ReservedPrefix = "atoll."

// HostImage is the default image: a read-only view of the machine's own
// programs.
const HostImage = "host"

// Request is a request for a sandbox: what callers of the API send, and what only
// parts of this daemon may ask for.
type Request struct {
	sandbox.CreateRequest
	// Timeout, if set, is when the daemon removes the sandbox, which then gets no
	// lifetime from the policies. Unlike Spec.Lifetime.Timeout, it can be changed.
	Timeout time.Duration
	// OfSession means that a session asks, and Replaces is a sandbox whose workspaces
	// the new one gets, although the old one still has them: the caller removes one
	// of the two.
	OfSession bool
	Replaces  sandbox.ID
	// Base are the names of the image that a build step began with. Policies are
	// checked against these names, because the image of the step has no name.
	Base []string
	// Bound means that the sandbox must not outlive this process.
	Bound bool
}

// Ask is a request for a sandbox, with what was found about it.
type Ask struct {
	Request
	// Tenant is the owner. Empty: there is no daemon.
	Tenant string
	// Images are the names of the image, for the policies.
	Images []string
	// Template is the one that the image names, and Snapshot the one that the Spec
	// names. Nil: none.
	Template *Template
	Snapshot *Snapshot
	Policies Policies
	// Again means that the sandbox exists: its Spec is complete, and its lifetime
	// was judged when it was made. Has is the isolation that it would get now.
	Again bool
	Has   sandbox.Isolation
}

// Template is a template from which a sandbox is made.
type Template struct {
	durable.Template
	Ready string // a script that succeeds when Start is ready
	// Saved is its snapshot, which gives Gives. Nil: there is none that can be used
	// here.
	Saved *Snapshot
	Gives sandbox.Isolation
}

// Snapshot is a snapshot from which a sandbox is made.
type Snapshot struct {
	ID, Name string
	Provider string       // that made it; empty: not recorded
	Spec     sandbox.Spec // of its sandbox; the environment has only names
	Env      map[string]string
	// Moves reports whether another provider can use it, too. Nil: none can. Away
	// means that one of these is to be chosen, because Provider takes no sandboxes.
	Moves func(provider string) bool
	Away  bool
}

// Policies are the policies in force, and what was found for them.
type Policies struct {
	Set      *policyset.Set    // nil: there are none
	Defaults sandbox.Resources // the limits of sandboxes that request none
	// Profile has the network rules, of a stored profile if the Spec names one.
	// Missing is why there is none.
	Profile sandbox.Profile
	Missing error
	// Mounts are those of the Spec, with symbolic links followed.
	Mounts []sandbox.Mount
	// Signatures are those of the image, as far as it is on this machine. Fetches
	// means that the image can be fetched for them.
	Signatures []policy.Signature
	Fetches    bool
}

// Plan is how a sandbox is made. Fit completes it.
type Plan struct {
	Spec     sandbox.Spec
	Pull     string // when to fetch the image; empty: when it is missing
	Platform string // of the image; empty: this machine's
	Tenant   string // the owner; empty without a daemon
	Timeout  time.Duration
	// Images are the names of the image, first the one that was asked for.
	Images []string
	// Origin is the id of the snapshot from which the sandbox is made, and Template
	// the template. Empty: none.
	Origin   string
	Template *Template
	// Unfetched means that the policies need the signatures of the image, which has
	// to be fetched for that. They have allowed everything else.
	Unfetched bool
	// Caps are what the policies allow at most.
	Caps policyset.Caps
	// Egress are details of the network rules that the Spec does not contain.
	Egress Egress
	Bound  bool // see Request
	// Hidden are environment variables that must not be recorded, because they are
	// secrets or placeholders. The provider gets them with Spec.Env, instead of
	// those of Spec.Secrets that it does not hold itself.
	Hidden map[string]string
	// AsksName means that the name was chosen, and only the provider knows whether
	// it is free.
	AsksName bool
	// Limits are the limits that the provider does not enforce, and why.
	Limits map[string]sandbox.Enforcement
	// FilesOnly leaves out the memory of a snapshot.
	FilesOnly bool

	asked policyset.Request // what the policies have judged
	set   *policyset.Set
}

// Egress has details of a sandbox's network rules that its Spec does not
// contain.
type Egress struct {
	// Profile is the stored profile, for a Spec that names one. Missing is why there
	// is none.
	Profile sandbox.Profile
	Missing error
	// EgressLimits limit it. Unenforceable is how to treat rules that the provider
	// cannot enforce. Empty: Refuse.
	EgressLimits  []policy.EgressLimit
	Unenforceable policy.Unenforceable
}

// Draft completes the Spec of a request: from the template, from the snapshot and
// from the policies. What the policies do not allow is CodeDenied, with their Rule.
func Draft(a Ask) (Plan, error) {
	if err := validate(&a.CreateRequest); err != nil {
		return Plan{}, err
	}
	about := policyset.About{Tenant: a.Tenant, Labels: a.Spec.Labels}
	set := a.Policies.Set
	p := Plan{
		Spec: a.Spec, Pull: a.Pull, Platform: a.Platform, Tenant: a.Tenant, Timeout: a.Timeout, Images: a.Images, Template: a.Template, Bound: a.Bound, Caps: set.Caps(about), set: set,
		Egress: Egress{Profile: a.Policies.Profile, Missing: a.Policies.Missing, EgressLimits: set.EgressLimits(about), Unenforceable: set.Unenforceable(about)},
	}
	p.Spec.Env, p.Spec.Mounts = maps.Clone(a.Spec.Env), slices.Clone(a.Spec.Mounts)
	if !a.Again {
		if err := p.fill(&a); err != nil {
			return Plan{}, err
		}
	}
	return p, p.judge(&a)
}

// validate refuses a request that no provider could meet.
func validate(req *sandbox.CreateRequest) error {
	if err := req.Spec.Validate(); err != nil {
		return err
	}
	for k := range req.Labels {
		if strings.HasPrefix(k, ReservedPrefix) {
			return invalid("labels", fmt.Sprintf("%q begins with %q, which Atoll keeps for itself", k, ReservedPrefix), "")
		}
	}
	switch req.Pull {
	case "", "missing", "always", "never":
		return nil
	}
	return invalid("pull", fmt.Sprintf("%q is not one of missing, always and never", req.Pull), "")
}

// fill sets what the request leaves open.
func (p *Plan) fill(a *Ask) error {
	spec, from := &p.Spec, a.Snapshot
	if main := spec.Main; main != nil {
		fresh := *main
		fresh.Process, fresh.Restarts = "", 0
		spec.Main = &fresh
	}
	spec.Isolation = cmp.Or(spec.Isolation, p.Caps.Isolation)
	if t := a.Template; t != nil {
		spec.Image = t.Image
		spec.Resources.CPUs, spec.Resources.Memory = cmp.Or(spec.Resources.CPUs, t.CPUs), cmp.Or(spec.Resources.Memory, t.Memory)
		if from == nil && t.Saved.usable(spec.Provider) && (spec.Isolation == "" || t.Gives.Meets(spec.Isolation)) {
			from = t.Saved
		}
	}
	if from != nil {
		if err := p.restore(from); err != nil {
			return err
		}
	}
	p.Caps.Fill(&spec.Resources, a.Policies.Defaults)
	if spec.Lifetime.Timeout == 0 && a.Timeout == 0 {
		spec.Lifetime.Timeout = p.Caps.Lifetime
	}
	return nil
}

// restore fills the fields that the request leaves open from the snapshot.
func (p *Plan) restore(from *Snapshot) error {
	spec, had := &p.Spec, &from.Spec
	if spec.Provider != "" || !from.Away {
		spec.Provider = cmp.Or(spec.Provider, from.Provider)
		if from.Provider != "" && spec.Provider != from.Provider && (from.Moves == nil || !from.Moves(spec.Provider)) {
			return OtherProvider(cmp.Or(from.Name, from.ID), from.Provider, spec.Provider)
		}
	}
	env, err := from.handOn(spec.Env)
	if err != nil {
		return err
	}
	p.Origin, spec.Snapshot, spec.Image, spec.Env = from.ID, "", had.Image, env
	spec.Isolation = spec.Isolation.Stronger(had.Isolation)
	spec.User, spec.Workdir = cmp.Or(spec.User, had.User), cmp.Or(spec.Workdir, had.Workdir)
	r := &spec.Resources
	r.CPUs, r.Memory = cmp.Or(r.CPUs, had.Resources.CPUs), cmp.Or(r.Memory, had.Resources.Memory)
	r.Disk, r.PIDs = cmp.Or(r.Disk, had.Resources.Disk), cmp.Or(r.PIDs, had.Resources.PIDs)
	return nil
}

// usable reports whether a provider can use the snapshot. No provider is the one
// that made it.
func (s *Snapshot) usable(provider string) bool {
	return s != nil && (provider == "" || s.Provider == "" || provider == s.Provider || s.Moves != nil && s.Moves(provider))
}

// OtherProvider is the refusal to restore a snapshot with another provider than
// the one that made it.
func OtherProvider(snapshot, made, asked string) error {
	return invalid(snapshot, fmt.Sprintf("the snapshot was created by provider %s, not by %s", made, asked), "leave the provider out")
}

// handOn adds the environment of the snapshot to env. Variables whose values are
// not on this machine must be in env.
func (s *Snapshot) handOn(env map[string]string) (map[string]string, error) {
	if len(s.Spec.Env) == 0 {
		return env, nil
	}
	all := map[string]string{}
	maps.Copy(all, s.Env)
	maps.Copy(all, env)
	missing := slices.DeleteFunc(slices.Sorted(maps.Keys(s.Spec.Env)), func(name string) bool { _, ok := all[name]; return ok })
	if len(missing) == 0 {
		return all, nil
	}
	return nil, &sandbox.Error{
		Code: sandbox.CodeUnavailable, Subject: s.Name, Message: "this machine does not have the values of the snapshot's environment variables " + strings.Join(missing, ", "),
		Hint: "give values for them; on the command line with --env",
	}
}

// judge asks the policies about the completed request.
func (p *Plan) judge(a *Ask) error {
	set := a.Policies.Set
	if set == nil {
		return nil
	}
	r := a.Policies.Request(a.Tenant, &p.Spec, p.Images)
	r.Lifetime = max(r.Lifetime, p.Timeout)
	var fields []policyset.Field
	if a.Again {
		fields, r.Isolation = Lasting(), a.Has
	}
	fetched := p.Origin != "" || p.Spec.Image == "" || p.Spec.Image == HostImage || a.Again
	if p.Unfetched = a.Policies.Fetches && a.Base == nil && !fetched && set.AsksWho(r.About); p.Unfetched {
		r.Signatures, r.Unfetched = nil, true
	}
	p.asked = r
	return set.Check(r, fields...)
}

// Signed completes a plan that is Unfetched, and judges its image. ref is the digest
// of the image (empty: it has none), and signatures are those of the image.
func (p Plan) Signed(ref string, signatures []policy.Signature) (Plan, error) {
	if ref != "" {
		p.Spec.Image, p.Images = ref, append(slices.Clone(p.Images), ref)
	}
	r := p.asked
	r.Images, r.Signatures, r.Unfetched = p.Images, signatures, false
	p.Unfetched = false
	return p, p.set.Check(r, policyset.Images)
}

// Request returns a sandbox in the form that policies evaluate.
func (k *Policies) Request(tenant string, spec *sandbox.Spec, images []string) policyset.Request {
	r := policyset.Of(tenant, spec, images, k.Profile.Rules)
	r.Complete(policyset.Caps{}, k.Defaults)
	r.Mounts = slices.Concat(r.Mounts, k.Mounts) // the target of a link must be allowed as well
	r.Signatures = k.Signatures
	return r
}

// Lasting are the fields that are judged when a sandbox is started again. Its
// lifetime was judged when it was created.
func Lasting() []policyset.Field {
	return []policyset.Field{
		policyset.CPUs, policyset.Memory, policyset.Disk, policyset.PIDs, policyset.Isolation, policyset.Images, policyset.Mounts, policyset.Network, policyset.Secrets, policyset.SecretModes,
	}
}

func invalid(subject, message, hint string) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: subject, Message: message, Hint: hint}
}
