package plane

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/policy"
	bundle "github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Policies is where the policies of the machine come from.
type Policies struct {
	Source string // a file or a directory, for people
	// Load reads them. Nil: there are none.
	Load func() (*bundle.Set, error)
}

// PolicyState is what is known of the policies of the machine.
type PolicyState struct {
	Source   string // empty: there are none
	Digest   string
	Loaded   time.Time
	Policies []bundle.Policy
	// Problem says why what is in the files now does not hold; empty if it does.
	Problem string
}

// rulebook holds the policies that are in force.
type rulebook struct {
	loading sync.Mutex // by one at a time

	mu      sync.Mutex
	bundle  *bundle.Set
	loaded  time.Time
	problem string
}

func (r *rulebook) now() *bundle.Set {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bundle
}

// policies are those in force.
func (p *Plane) policies() *bundle.Set { return p.rules.now() }

const opReload = ops.PolicyReload

// LoadPolicies reads the policies of the machine anew. All of them hold from
// then on, or, if anything is wrong with any of them, all that held before. It is
// for the daemon, which acts for no tenant; a change, and what is wrong, is on
// record with the owner's tenant.
func (p *Plane) LoadPolicies(ctx context.Context) error {
	if p.cfg.Policies.Load == nil {
		return nil
	}
	p.rules.loading.Lock()
	defer p.rules.loading.Unlock()
	b, err := p.cfg.Policies.Load()
	if err != nil {
		return p.keepPolicies(ctx, err)
	}
	r := &p.rules
	r.mu.Lock()
	same := r.bundle.Digest() == b.Digest() && r.problem == ""
	if !same {
		r.bundle, r.loaded, r.problem = b, p.Store.Now(), ""
	}
	r.mu.Unlock()
	if same {
		return nil
	}
	fact := audit.Action{Tenant: core.DefaultTenant, Op: opReload, Subject: p.cfg.Policies.Source, Policy: b.Digest()[:12]}
	return errors.Join(p.Audit.Fact(ctx, fact, eventlog.PoliciesLoaded, nil), p.EnforceAll(ctx))
}

// keepPolicies goes on with those that hold, and says why, once for each reason.
func (p *Plane) keepPolicies(ctx context.Context, why error) error {
	p.rules.mu.Lock()
	known := p.rules.problem == why.Error()
	p.rules.problem = why.Error()
	p.rules.mu.Unlock()
	if known {
		return why
	}
	fact := audit.Action{Tenant: core.DefaultTenant, Op: opReload, Subject: why.Error()}
	p.Report(ctx, p.Audit.Fact(ctx, fact, eventlog.PoliciesKept, func(e *eventlog.Event) { e.Code = sandbox.CodeOf(why) }))
	return why
}

// ReloadPolicies is LoadPolicies for the owner of the machine.
func (p *Plane) ReloadPolicies(ctx context.Context) (PolicyState, error) {
	err := p.AsOwner(ctx, opReload, p.cfg.Policies.Source, func(ctx context.Context) error {
		if p.cfg.Policies.Load == nil {
			return &sandbox.Error{Code: sandbox.CodeUnsupported, Subject: "policies", Message: "this daemon has none", Hint: "start it with: atoll up --policy DIR"}
		}
		return p.LoadPolicies(ctx)
	})
	return p.policyState(""), err
}

// GetPolicies returns the policies about the caller's tenant. The owner of the
// machine sees all.
func (p *Plane) GetPolicies(ctx context.Context) (PolicyState, error) {
	who, err := p.Look(ctx, ops.PolicyGet, "")
	if err != nil {
		return PolicyState{}, err
	}
	if who.UID != nil {
		return p.policyState(""), nil
	}
	return p.policyState(who.Tenant), nil
}

func (p *Plane) policyState(tenant string) PolicyState {
	r := &p.rules
	r.mu.Lock()
	defer r.mu.Unlock()
	s := PolicyState{Source: p.cfg.Policies.Source, Digest: r.bundle.Digest(), Loaded: r.loaded, Problem: r.problem, Policies: r.bundle.Policies()}
	if tenant != "" {
		s.Source, s.Problem = "", "" // they name files of the machine
		s.Policies = slices.DeleteFunc(s.Policies, func(p bundle.Policy) bool { return !p.Concerns(tenant) })
	}
	return s
}

// ExplainPolicies tells what the policies would say about a sandbox, which is
// not made.
func (p *Plane) ExplainPolicies(ctx context.Context, spec sandbox.Spec) (sandbox.PolicyAnswer, error) {
	const op = ops.PolicyExplain
	who, err := p.Look(ctx, op, "")
	if err != nil {
		return sandbox.PolicyAnswer{}, err
	}
	if err := spec.Validate(); err != nil {
		return sandbox.PolicyAnswer{}, core.Named(op, err)
	}
	asked, err := p.askedImage(ctx, who.Tenant, &spec)
	if err != nil {
		return sandbox.PolicyAnswer{}, core.Named(op, err)
	}
	p.fill(who.Tenant, &spec, 0)
	w, err := p.wish(ctx, who.Tenant, &spec, asked)
	if err != nil {
		return sandbox.PolicyAnswer{}, core.Named(op, err)
	}
	b := p.policies()
	if b.AsksWho(w.About) {
		w.Signatures, w.Unfetched = p.signaturesHere(ctx, &spec, asked)
	}
	return b.Answer(w), nil
}

// signaturesHere are the signatures of an image that somebody asks about, if it
// is on this machine: nothing is fetched for a question.
func (p *Plane) signaturesHere(ctx context.Context, spec *sandbox.Spec, asked []string) (all []policy.Signature, unfetched bool) {
	switch {
	case spec.Snapshot != "" || p.cfg.Control.Images == nil:
		return p.signatures(ctx, asked), false
	case strings.HasPrefix(spec.Image, "oci:"):
		return nil, true // asking for it would import it
	case spec.Image == "" || bundle.IsLocal(spec.Image):
		return nil, false
	}
	img, err := p.cfg.Control.Images.Ensure(ctx, control.ImageRequest{Ref: spec.Image, Pull: control.PullNever})
	return img.Signatures, sandbox.CodeOf(err) == sandbox.CodeNotFound
}

// askedImage are the names of the image that a Spec asks for, and settles which
// snapshot is meant.
func (p *Plane) askedImage(ctx context.Context, tenant string, spec *sandbox.Spec) ([]string, error) {
	if spec.Snapshot == "" {
		if spec.Image == "" {
			return []string{"host"}, nil
		}
		return []string{spec.Image}, nil
	}
	s, err := p.Snapshots.Find(ctx, tenant, spec.Snapshot)
	if err == nil {
		spec.Snapshot = s.ID // its name may lead to another one in a moment
	}
	return []string{s.Image, s.Spec.Image}, err
}

// fill gives a request what the policies say where it leaves limits open. The
// time of a sandbox that the daemon ends itself is bounded by that.
func (p *Plane) fill(tenant string, spec *sandbox.Spec, timeout time.Duration) {
	caps := p.policies().Caps(bundle.About{Tenant: tenant, Labels: spec.Labels})
	caps.Fill(&spec.Resources, p.cfg.Defaults)
	if spec.Lifetime.Timeout == 0 && timeout == 0 {
		spec.Lifetime.Timeout = caps.Lifetime
	}
}

// wish is a request for a sandbox as the policies see it.
func (p *Plane) wish(ctx context.Context, tenant string, spec *sandbox.Spec, images []string) (bundle.Request, error) {
	profile, err := store.Read(ctx, p.Store, func(tx *store.Tx) (sandbox.Profile, error) { return p.profileOf(ctx, tx, tenant, spec.Network) })
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound { // that is found out where it counts
		return bundle.Request{}, err
	}
	w := bundle.Of(tenant, spec, images, profile.Rules)
	w.Complete(bundle.Caps{}, p.cfg.Defaults)
	for _, m := range spec.Mounts {
		// What links lead to must be allowed as well.
		m.Source = realPath(m.Source)
		w.Mounts = append(slices.Clone(w.Mounts), m)
	}
	return w, nil
}

// realPath is where a path leads, as far as it is there. Of one that climbs, of
// which "link/.." may be anywhere, it is the top.
func realPath(name string) string {
	if slices.Contains(strings.Split(name, "/"), "..") {
		return "/"
	}
	dir, rest := filepath.Clean(name), ""
	for {
		if found, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(found, rest)
		}
		if dir == "/" {
			return filepath.Clean(name)
		}
		dir, rest = filepath.Dir(dir), filepath.Join(filepath.Base(dir), rest)
	}
}

func modeOf(ref sandbox.SecretRef) sandbox.SecretMode {
	if ref.Mode == "" {
		return sandbox.SecretGateway
	}
	return ref.Mode
}

// rulesFor completes a request for a provider without a gateway.
func (p *Plane) rulesFor(ctx context.Context, be *providers.Backend, tenant string, spec *sandbox.Spec) (control.Egress, error) {
	about := bundle.About{Tenant: tenant, Labels: spec.Labels}
	e := control.Egress{Ceilings: p.policies().Ceilings(about), Unenforceable: p.policies().Unenforceable(about)}
	if spec.Network.Profile == "" || be.HasNetwork(ctx) {
		return e, nil
	}
	stored, err := store.Read(ctx, p.Store, func(tx *store.Tx) (store.Profile, error) { return tx.Profile(ctx, tenant, spec.Network.Profile) })
	e.Profile = stored.Profile
	return e, err
}

// permit refuses a sandbox that the policies do not allow, and puts that on
// record. With fields, only those are looked at.
func (p *Plane) permit(ctx context.Context, a audit.Action, spec *sandbox.Spec, images []string, fields ...bundle.Field) error {
	b := p.policies()
	if b == nil {
		return nil
	}
	w, err := p.wish(ctx, a.Tenant, spec, images)
	if err != nil {
		return err
	}
	if b.AsksWho(w.About) {
		w.Signatures = p.signatures(ctx, images)
	}
	return p.refused(ctx, a, b.Check(w, fields...))
}

// signatures are those that were found for an image of this machine, of which
// the digest is among the names. One that is not here has none.
func (p *Plane) signatures(ctx context.Context, images []string) (out []policy.Signature) {
	for _, ref := range images {
		if strings.HasPrefix(ref, "sha256:") && p.cfg.Control.Images != nil {
			if img, err := p.cfg.Control.Images.Ensure(ctx, control.ImageRequest{Ref: ref, Pull: control.PullNever}); err == nil {
				out = append(out, img.Signatures...)
			}
		}
	}
	return out
}

// fetchSigned makes the image of a request available if it matters who signed
// it, and has the request mean the very image whose signatures are known then,
// whatever its name leads to in a moment. It returns the names of the image. One
// that may not run whoever signed it is not fetched.
func (p *Plane) fetchSigned(ctx context.Context, a audit.Action, spec *sandbox.Spec, images []string, req control.ImageRequest) ([]string, error) {
	b := p.policies()
	if spec.Image == control.HostImage || strings.HasPrefix(spec.Image, templatePrefix) || p.cfg.Control.Images == nil ||
		!b.AsksWho(bundle.About{Tenant: a.Tenant, Labels: spec.Labels}) {
		return images, nil
	}
	w, err := p.wish(ctx, a.Tenant, spec, images)
	if err != nil {
		return images, err
	}
	w.Unfetched = true
	if err := p.refused(ctx, a, b.Check(w, bundle.Images)); err != nil {
		return images, err
	}
	req.Ref = spec.Image
	img, err := p.cfg.Control.Images.Ensure(ctx, req)
	if err != nil || img.Ref == "" {
		return images, err
	}
	spec.Image = img.Ref
	return append(slices.Clone(images), img.Ref), nil
}

// refused records a refusal of the policies, with the rule, and returns it.
func (p *Plane) refused(ctx context.Context, a audit.Action, err error) error {
	var e *sandbox.Error
	if errors.As(err, &e) && e.Code == sandbox.CodeDenied {
		a.Policy = e.Rule
		p.Report(ctx, p.Audit.Denied(ctx, a, err))
	}
	return err
}

// restored are the fields that count when a sandbox comes back: how long it may
// live was decided before.
var restored = []bundle.Field{
	bundle.CPUs, bundle.Memory, bundle.Disk, bundle.PIDs, bundle.Images, bundle.Mounts, bundle.Network, bundle.Secrets, bundle.SecretModes,
}

// permitAgain is permit for a sandbox that is to run again.
func (p *Plane) permitAgain(ctx context.Context, t *turn) error {
	spec := t.box.Spec
	spec.Labels, spec.Resources = t.box.Labels, t.box.Resources
	return p.permit(ctx, t.action, &spec, []string{t.box.Image, spec.Image}, restored...)
}

// permitChange is permit for a change of a sandbox: of limits, what is changed
// is looked at, but other labels may mean other policies for all of it.
func (p *Plane) permitChange(ctx context.Context, t *turn, c *sandbox.Change, now time.Time) error {
	spec := t.box.Spec
	spec.Labels, spec.Resources = t.box.Labels, t.box.Resources
	var fields []bundle.Field
	for field, changed := range map[bundle.Field]bool{
		bundle.CPUs: c.Resources.CPUs != 0, bundle.Memory: c.Resources.Memory != 0, bundle.Disk: c.Resources.Disk != 0, bundle.PIDs: c.Resources.PIDs != 0,
		bundle.Lifetime: c.Lifetime.Timeout != nil,
	} {
		if changed {
			fields = append(fields, field)
		}
	}
	set(&spec.Resources.CPUs, c.Resources.CPUs)
	set(&spec.Resources.Memory, c.Resources.Memory)
	set(&spec.Resources.Disk, c.Resources.Disk)
	set(&spec.Resources.PIDs, c.Resources.PIDs)
	if len(c.Labels) > 0 {
		fields = slices.Concat(fields, restored, []bundle.Field{bundle.Lifetime})
		spec.Labels = relabelled(spec.Labels, c.Labels)
	}
	if c.Lifetime.Timeout != nil {
		spec.Lifetime.Timeout = 0
		if *c.Lifetime.Timeout > 0 { // it was made some time ago
			spec.Lifetime.Timeout = now.Add(*c.Lifetime.Timeout).Sub(t.box.Created)
		}
	}
	if len(fields) == 0 {
		return nil
	}
	return p.permit(ctx, t.action, &spec, []string{t.box.Image, spec.Image}, fields...)
}

// permitUntil refuses a time for the end of a sandbox that is too far away.
func (p *Plane) permitUntil(ctx context.Context, a audit.Action, b *store.Sandbox, at time.Time) error {
	w := bundle.Request{About: bundle.About{Tenant: b.Tenant, Labels: b.Labels}, Lifetime: at.Sub(b.Created)}
	a.Sandbox, a.Name = b.ID, b.Name
	return p.refused(ctx, a, p.policies().Check(w, bundle.Lifetime))
}
