package plan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Terms are what a provider offers, and the settings of the daemon for it.
type Terms struct {
	// Facts are called at most if a plan depends on them.
	Facts func() (driver.Facts, error)
	// Holds reports whether the provider has a secret itself.
	Holds func(sandbox.SecretRef) bool
	// Ability is which network rules the provider enforces without Atoll's gateway.
	// Nil: none.
	Ability *enforce.Ability
	// Gateway says that the provider can use Atoll's gateway for the other rules.
	Gateway    bool
	Workspaces bool              // the caller attaches workspaces
	Defaults   sandbox.Resources // of limits, if the provider enforces them
	NewID      func() sandbox.ID
}

// Fit refuses what the provider cannot do, and fills in defaults: the id, the
// name, the image, the limits and others.
func (p Plan) Fit(t Terms) (Plan, error) {
	spec := &p.Spec
	if spec.Isolation != "" {
		facts, err := t.Facts()
		if err == nil {
			err = Isolated(facts.Provider, facts.Isolation, spec.Isolation)
		}
		if err != nil {
			return p, err
		}
	}
	if err := p.network(&t); err != nil {
		return p, err
	}
	if len(spec.Workspaces) > 0 && !t.Workspaces {
		return p, &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: "workspace", Message: "workspaces need the daemon", Hint: "start it with: atoll up",
		}
	}
	if p.Tenant == "" && spec.Lifetime.HardTimeout() != spec.Lifetime.Timeout {
		return p, &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: "lifetime", Message: "stopping or pausing a sandbox at its timeout needs the daemon", Hint: "start it with: atoll up",
		}
	}
	if err := p.limits(&t); err != nil {
		return p, err
	}
	p.AsksName = p.Tenant == "" && spec.Name != ""
	if spec.ID == "" {
		spec.ID = t.NewID()
	}
	spec.Name = cmp.Or(spec.Name, string(spec.ID))
	spec.Image = cmp.Or(spec.Image, HostImage)
	spec.Hostname = cmp.Or(spec.Hostname, spec.Name)
	if spec.Workdir != "" {
		spec.Workdir = path.Clean(spec.Workdir)
	} else if hasWorkspaceDir(spec) {
		spec.Workdir = sandbox.WorkspaceDir
	}
	return p, nil
}

// Isolated refuses a provider that isolates less than is demanded.
func Isolated(provider string, gives, demand sandbox.Isolation) error {
	if demand == "" || gives.Meets(demand) {
		return nil
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnsupported, Subject: "isolation",
		Message: fmt.Sprintf("the provider %s gives %s, and %s is demanded", provider, gives.Known(), demand),
		Hint:    "see which ones give it with: atoll provider choose --isolation " + string(demand),
	}
}

// hasWorkspaceDir reports whether a workspace is mounted at its default path,
// in which case commands start there.
func hasWorkspaceDir(spec *sandbox.Spec) bool {
	return slices.ContainsFunc(spec.Workspaces, func(w sandbox.WorkspaceMount) bool {
		return w.Path == "" || path.Clean(w.Path) == sandbox.WorkspaceDir
	})
}

// network refuses network rules that would not be enforced, and secrets that
// would not be available.
func (p *Plan) network(t *Terms) error {
	spec := &p.Spec
	if spec.Network.Plain = nil; p.Tenant == "" && (spec.Network.Profile != "" || len(spec.Secrets) > 0 || spec.Redact) {
		return &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: "network", Message: "stored profiles and secrets need a daemon, and none is running",
			Hint: "start one with: atoll up",
		}
	}
	if local, ok := spec.Network.Local(); ok {
		if err := policy.Check(local); err != nil {
			return err
		}
	}
	gateway := slices.ContainsFunc(spec.Secrets, func(s sandbox.SecretRef) bool { return s.Mode != sandbox.SecretEnv && !t.Holds(s) })
	if !spec.Network.Asked() && !gateway {
		return nil
	}
	facts, err := t.Facts()
	if err != nil || facts.Capabilities.Network {
		return err
	}
	if gateway && t.Gateway { // there is a daemon, because there are secrets
		return p.Egress.Missing
	}
	if gateway {
		return &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: "secrets",
			Message: "a secret in the mode gateway is inserted by Atoll's egress gateway, which sandboxes of the provider " + facts.Provider + " do not use",
			Hint:    "use the mode env, which shows the value to the sandbox, or choose a provider with a gateway; remote can use the other daemon's secrets that ATOLL_REMOTE_SECRETS names" + t.setting(),
		}
	}
	if p.Egress.Missing != nil {
		return p.Egress.Missing
	}
	if t.Ability != nil {
		return p.translate(t)
	}
	if egress := spec.Network.Egress; egress != nil && len(egress) == 0 && facts.Isolates {
		spec.Network = sandbox.Network{} // on which every host is denied, too
		return nil
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnsupported, Subject: "network", Message: "the provider " + facts.Provider + " cannot give sandboxes a network",
		Hint: "leave it out: the sandbox then has no network",
	}
}

// setting names the setting with which the provider uses the gateway, if there is
// one.
func (t *Terms) setting() string {
	if t.Ability == nil || t.Ability.GatewaySetting == "" {
		return ""
	}
	return "; set " + t.Ability.GatewaySetting
}

// translate translates the rules for a provider without a gateway. If it can use
// the gateway of a daemon, that enforces the rules which cannot be translated.
func (p *Plan) translate(t *Terms) error {
	profile, local := p.Spec.Network.Local()
	if !local {
		profile = p.Egress.Profile
	}
	compiled, err := policy.Compile(profile, policy.Options{EgressLimits: p.Egress.EgressLimits})
	if err != nil {
		return err
	}
	mode, gateway := p.Egress.Unenforceable, t.Gateway && p.Tenant != ""
	if gateway {
		mode = policy.Refuse
	}
	rules, _, err := compiled.Translate(*t.Ability, mode)
	switch {
	case err == nil:
		p.Spec.Network.Plain = &rules
	case gateway && sandbox.CodeOf(err) == sandbox.CodeUnsupported:
		return nil
	}
	var refused *sandbox.Error
	if t.Gateway && errors.As(err, &refused) {
		refused.Hint = "start a daemon, whose gateway can enforce it: atoll up"
	}
	return err
}

// limits fills in default limits, and notes the requested limits that the
// provider does not enforce. A default that would not be enforced is left out. A
// limit that the provider fixes cannot be requested.
func (p *Plan) limits(t *Terms) error {
	r, d := &p.Spec.Resources, t.Defaults
	p.Limits = nil
	if *r == (sandbox.Resources{}) && d == (sandbox.Resources{}) {
		return nil
	}
	facts, err := t.Facts()
	if err != nil {
		return err
	}
	if p.Limits, err = Loose(&facts, *r); err != nil {
		return err
	}
	complete(&r.CPUs, d.CPUs, facts.Limits["cpus"])
	complete(&r.Memory, d.Memory, facts.Limits["memory"])
	complete(&r.Disk, d.Disk, facts.Limits["disk"])
	complete(&r.PIDs, d.PIDs, facts.Limits["pids"])
	if p.Spec.RequireLimits {
		return Required(p.Limits)
	}
	return nil
}

// complete sets a limit to its default, if it is not set and would be enforced.
func complete[T int64 | float64](v *T, def T, l driver.Limit) {
	if l.Holds && *v == 0 {
		*v = def
	}
}

// Loose returns the limits that a provider does not enforce, and why. A limit
// that the provider fixes is CodeUnsupported.
func Loose(facts *driver.Facts, r sandbox.Resources) (map[string]sandbox.Enforcement, error) {
	var loose map[string]sandbox.Enforcement
	for name, asked := range map[string]bool{"cpus": r.CPUs > 0, "memory": r.Memory > 0, "disk": r.Disk > 0, "pids": r.PIDs > 0} {
		l := facts.Limits[name]
		if !asked || l.Holds {
			continue
		}
		if l.Fixed {
			return nil, &sandbox.Error{
				Code: sandbox.CodeUnsupported, Subject: name,
				Message: "the provider " + facts.Provider + " cannot limit it: " + cmp.Or(l.Why, "its size is fixed"),
				Hint:    "leave the limit out, or choose another provider",
			}
		}
		if loose == nil {
			loose = map[string]sandbox.Enforcement{}
		}
		loose[name] = sandbox.Enforcement{Why: l.Why}
	}
	return loose, nil
}

// Required returns an error that names an unenforced limit, if there is one.
func Required(loose map[string]sandbox.Enforcement) error {
	for _, name := range slices.Sorted(maps.Keys(loose)) {
		return &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: name, Message: "the limit is not enforced here: " + loose[name].Why,
			Hint: "see what is missing with: atoll doctor",
		}
	}
	return nil
}

// Demanded returns an error for a limit that a policy or a quota requires and the
// provider does not enforce. loose are the limits that it does not enforce.
func Demanded(provider string, loose map[string]sandbox.Enforcement, caps sandbox.Resources, quota operator.Limits) error {
	for name, demanded := range map[string]bool{
		"cpus": caps.CPUs != 0 || quota.CPUs != 0, "memory": caps.Memory != 0 || quota.Memory != 0,
		"disk": caps.Disk != 0 || quota.Disk != 0, "pids": caps.PIDs != 0,
	} {
		if limit, ok := loose[name]; ok && demanded {
			return &sandbox.Error{
				Code: sandbox.CodeUnsupported, Subject: name, Message: "a policy or quota limits it, and the provider " + provider + " does not enforce that: " + limit.Why,
				Hint: "choose another provider",
			}
		}
	}
	return nil
}
