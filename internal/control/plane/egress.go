package plane

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/policy"
	bundle "github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Gateway enforces what sandboxes may reach. It asks [Plane.Egress] when it
// connects a sandbox, and is told of every change after that.
type Gateway interface {
	// SetEgress says what a running sandbox may reach from now on: what is not
	// allowed any more is cut. A sandbox that it does not serve is
	// CodeNotFound.
	SetEgress(ctx context.Context, box sandbox.ID, e Egress) error
}

// Egress is all that a gateway needs to know of a sandbox. It holds values of
// secrets, which are the gateway's to use and nobody's to store.
type Egress struct {
	Profile sandbox.Profile
	// Ceilings are what the policies of the machine set over it.
	Ceilings []policy.Ceiling
	Secrets  []EgressSecret // by name and placeholder
}

// EgressSecret is a secret that a gateway adds to requests, or puts in the
// place of a placeholder. A secret is there once for each placeholder, and once
// without one if a rule adds it.
type EgressSecret struct {
	Name        string
	Version     int64
	Value       secret.Value
	Hosts       []string // to whom it may be sent at all; none: to whoever a rule names
	Placeholder string
	SwapHosts   []string // to whom the value is sent in place of the placeholder
	In          []string // as SecretRef.In
}

// Egress returns what a sandbox may reach now. It is for the gateway of this
// daemon, which acts for no tenant.
func (p *Plane) Egress(ctx context.Context, id sandbox.ID) (Egress, error) {
	var e Egress
	var wanted []wantedSecret
	err := p.Store.View(ctx, func(tx *store.Tx) error {
		b, err := tx.Operator().Sandbox(ctx, id)
		if err != nil {
			return err
		}
		e, wanted, err = p.egress(ctx, tx, &b)
		return err
	})
	if err != nil {
		return Egress{}, core.Named(ops.EgressGet, err)
	}
	for _, w := range wanted {
		// A secret that cannot be read is left out: what needs it is then
		// refused by the gateway, and the rest goes on.
		if w.Value, err = p.open(ctx, &w.stored); err != nil {
			p.Report(ctx, err)
			continue
		}
		e.Secrets = append(e.Secrets, w.EgressSecret)
	}
	return e, ctx.Err()
}

// WithEgress calls apply with what a sandbox may reach now. While apply tells
// the gateway, nobody else tells it about that sandbox, so that what was read
// last is told last.
func (p *Plane) WithEgress(ctx context.Context, id sandbox.ID, apply func(Egress) error) error {
	release, err := p.telling.Take(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	e, err := p.Egress(ctx, id)
	if err != nil {
		return err
	}
	return apply(e)
}

// wantedSecret is a secret whose value is still to be read, which may take
// longer than a transaction should.
type wantedSecret struct {
	EgressSecret
	stored store.Secret
}

// egress resolves what a recorded sandbox asked for. A secret that is gone, or
// that the policies do not allow any more, is left out.
func (p *Plane) egress(ctx context.Context, tx *store.Tx, b *store.Sandbox) (e Egress, wanted []wantedSecret, err error) {
	if e.Profile, err = p.profileOf(ctx, tx, b.Tenant, b.Spec.Network); err != nil {
		return e, nil, err
	}
	rules, about := p.policies(), bundle.About{Tenant: b.Tenant, Labels: b.Labels}
	e.Ceilings = rules.Ceilings(about)
	uses, err := tx.SecretUses(ctx, b.Tenant, b.ID)
	if err != nil {
		return e, nil, err
	}
	add := func(name string, mode sandbox.SecretMode, complete func(*wantedSecret)) error {
		if !rules.MaySecret(about, name, mode) {
			return nil
		}
		s, err := tx.Secret(ctx, b.Tenant, name)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			return nil
		}
		w := wantedSecret{EgressSecret{Name: name, Version: s.Version, Hosts: s.Hosts}, s}
		complete(&w)
		wanted = append(wanted, w)
		return err
	}
	for _, name := range injected(e.Profile) {
		if err := add(name, "", func(*wantedSecret) {}); err != nil {
			return e, nil, err
		}
	}
	for _, ref := range b.Spec.Secrets {
		i := slices.IndexFunc(uses, func(u store.SecretUse) bool { return u.Variable == ref.Variable() && u.Placeholder != "" })
		if i < 0 {
			continue
		}
		if err := add(ref.Name, modeOf(ref), func(w *wantedSecret) {
			w.Placeholder, w.SwapHosts, w.In = uses[i].Placeholder, swapHosts(ref, &w.stored), ref.In
		}); err != nil {
			return e, nil, err
		}
	}
	return e, wanted, nil
}

// swapHosts are the hosts to which a placeholder's value is sent.
func swapHosts(ref sandbox.SecretRef, s *store.Secret) []string {
	if len(ref.Hosts) > 0 {
		return ref.Hosts
	}
	return s.Hosts
}

// profileOf returns the profile that a network stands for.
func (p *Plane) profileOf(ctx context.Context, tx *store.Tx, tenant string, n sandbox.Network) (sandbox.Profile, error) {
	if n.Profile == "" {
		local, _ := n.Local()
		return local, nil
	}
	stored, err := tx.Profile(ctx, tenant, n.Profile)
	return stored.Profile, err
}

// injected returns the names of the secrets that a profile adds to requests.
func injected(profile sandbox.Profile) []string {
	names := map[string]bool{}
	for _, r := range profile.Rules {
		for _, i := range r.Inject {
			for _, name := range i.Secrets() {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// trusted reports whether a network may send secrets where it likes: whoever
// may store a profile could do so with one.
func trusted(ctx context.Context, n sandbox.Network) bool {
	who, err := guard.Principal(ctx)
	return n.Profile != "" || err == nil && who.Allow(ops.ProfileCreate) == nil
}

// compiles reports whether a profile can be enforced with the secrets that the
// tenant has. A profile that is stored was written by somebody who may see to
// the secrets, and may send one that names no hosts where it likes; whoever
// makes a sandbox with rules of its own may not, unless they see to secrets, too.
func (p *Plane) compiles(ctx context.Context, tx *store.Tx, tenant string, profile sandbox.Profile, stored bool, swaps []policy.Swap) error {
	secrets := map[string][]string{}
	for _, name := range injected(profile) {
		s, err := tx.Secret(ctx, tenant, name)
		switch {
		case sandbox.CodeOf(err) == sandbox.CodeNotFound:
			continue
		case err != nil:
			return err
		case !stored && len(s.Hosts) == 0:
			return nowhere(name)
		}
		secrets[name] = append([]string{}, s.Hosts...)
	}
	for _, swap := range swaps {
		s, err := tx.Secret(ctx, tenant, swap.Secret)
		if err != nil {
			return err
		}
		secrets[swap.Secret] = append([]string{}, s.Hosts...)
	}
	_, err := policy.Compile(profile, policy.Options{Secrets: secrets, Swaps: swaps})
	return err
}

// nowhere refuses a secret that says of no host that it may be sent there.
func nowhere(name string) error {
	return &sandbox.Error{
		Code: sandbox.CodeDenied, Subject: name, Message: "the secret names no hosts, so that only a stored profile, or who may make one, may send it",
		Hint: "make it with --host, or use a profile that adds it",
	}
}

// bind ties a new sandbox to the profile and the secrets that it asks for, and
// returns what its environment gets of them. It is part of the transaction that
// records the sandbox, so that they come together or not at all.
func (p *Plane) bind(ctx context.Context, tx *store.Tx, tenant string, spec *sandbox.Spec, values revealed) (env map[string]string, err error) {
	if spec.Network.Profile != "" {
		if err := tx.UseProfile(ctx, tenant, spec.ID, spec.Network.Profile); err != nil {
			return nil, hinted(err, "see which there are with: atoll profile ls")
		}
	}
	env = map[string]string{}
	var swaps []policy.Swap
	for _, ref := range spec.Secrets {
		use, swap, text, err := p.bindSecret(ctx, tx, tenant, ref, values)
		if err != nil {
			return nil, err
		}
		if err := tx.UseSecret(ctx, tenant, spec.ID, use); err != nil {
			return nil, err
		}
		env[use.Variable] = text
		if swap != nil {
			swaps = append(swaps, *swap)
		}
	}
	profile, err := p.profileOf(ctx, tx, tenant, spec.Network)
	if err != nil {
		return nil, err
	}
	return env, p.compiles(ctx, tx, tenant, profile, trusted(ctx, spec.Network), swaps)
}

// bindSecret returns what a sandbox gets in place of a secret, and where that is
// replaced; or the value itself, if that is allowed and wanted.
func (p *Plane) bindSecret(ctx context.Context, tx *store.Tx, tenant string, ref sandbox.SecretRef, values revealed) (use store.SecretUse, swap *policy.Swap, text string, err error) {
	use = store.SecretUse{Variable: ref.Variable(), Secret: ref.Name}
	s, err := tx.Secret(ctx, tenant, ref.Name)
	if err != nil {
		return use, nil, "", hinted(err, "make it with: atoll secret create "+ref.Name)
	}
	v, err := values.of(&s)
	if err != nil {
		return use, nil, "", err
	}
	if ref.Mode == sandbox.SecretEnv {
		if !s.AllowEnv {
			return use, nil, "", &sandbox.Error{
				Code: sandbox.CodeDenied, Subject: ref.Name, Message: "the value of this secret must not be in a sandbox",
				Hint: "leave out mode=env, so that the gateway adds it; or make the secret with --allow-env",
			}
		}
		return use, nil, string(v.Reveal()), nil
	}
	if len(s.Hosts) == 0 {
		return use, nil, "", nowhere(ref.Name)
	}
	use.Placeholder = secret.NewPlaceholder(v)
	return use, &policy.Swap{Secret: ref.Name, Placeholder: use.Placeholder, Hosts: swapHosts(ref, &s), In: ref.In}, use.Placeholder, nil
}

// hidden returns what the environment of a recorded sandbox got of secrets: the
// same placeholders as before, since its memory may hold them.
func (p *Plane) hidden(ctx context.Context, b *store.Sandbox) (map[string]string, error) {
	if len(b.Spec.Secrets) == 0 {
		return nil, nil
	}
	env, plain := map[string]string{}, map[string]store.Secret{}
	err := p.Store.View(ctx, func(tx *store.Tx) error {
		uses, err := tx.SecretUses(ctx, b.Tenant, b.ID)
		if err != nil {
			return err
		}
		for _, u := range uses {
			if env[u.Variable] = u.Placeholder; u.Placeholder != "" {
				continue
			}
			if plain[u.Variable], err = tx.Secret(ctx, b.Tenant, u.Secret); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for variable, s := range plain {
		v, err := p.open(ctx, &s)
		if err != nil {
			return nil, err
		}
		env[variable] = string(v.Reveal())
		v.Clear()
	}
	return env, nil
}

// hinted adds what to do next to an error that does not say.
func hinted(err error, hint string) error {
	var known *sandbox.Error
	if !errors.As(err, &known) || known.Hint != "" {
		return err
	}
	own := *known
	own.Hint, own.Cause = hint, err
	return &own
}

var errFixedRules = errors.New("what its sandboxes reach is fixed when this provider makes them")

// enforce tells the gateway what sandboxes may reach now. All are tried; the
// error names those that could not be told.
func (p *Plane) enforce(ctx context.Context, boxes []store.Sandbox) error {
	if p.cfg.Gateway == nil {
		return nil
	}
	var missed []string
	var cause error
	for _, b := range boxes {
		// One that is paused in memory has its link, and goes on with what the
		// gateway knows; one that is just being made asks for what holds now.
		if b.Node != p.Node || b.State == sandbox.Gone || b.State == sandbox.Stopped || b.Rest.Pause == sandbox.PauseDisk || !b.Spec.Network.Asked() {
			continue
		}
		if be, err := p.Providers.Of(ctx, &b); err != nil {
			missed, cause = append(missed, b.Name), errors.Join(cause, err)
			continue
		} else if !be.HasNetwork(ctx) {
			missed, cause = append(missed, b.Name), errors.Join(cause, errFixedRules)
			continue
		}
		err := p.WithEgress(ctx, b.ID, func(e Egress) error { return p.cfg.Gateway.SetEgress(ctx, b.ID, e) })
		if code := sandbox.CodeOf(err); err != nil && code != sandbox.CodeNotFound && code != sandbox.CodeGone {
			missed, cause = append(missed, b.Name), errors.Join(cause, err)
		}
	}
	if len(missed) == 0 {
		return nil
	}
	p.Report(ctx, cause)
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Subject: missed[0], Cause: cause,
		Message: "it was saved, and could not be applied to " + clipList(missed), Hint: "apply it again, or remove the sandboxes",
	}
}

// EnforceAll tells the gateway what every sandbox of this node may reach now:
// when the daemon starts, since an earlier one may have ended between a change
// and its enforcement, and when the policies of the machine are others.
func (p *Plane) EnforceAll(ctx context.Context) error {
	all, err := p.recordedBoxes(ctx)
	return errors.Join(err, p.enforce(ctx, all))
}

// affected returns the tenant's sandboxes whose traffic depends on a secret.
func (p *Plane) affected(ctx context.Context, tx *store.Tx, tenant, name string) ([]store.Sandbox, error) {
	boxes, err := tx.SecretUsers(ctx, tenant, name)
	if err != nil {
		return nil, err
	}
	also := func(users ...store.Sandbox) {
		for _, u := range users {
			if !slices.ContainsFunc(boxes, func(b store.Sandbox) bool { return b.ID == u.ID }) {
				boxes = append(boxes, u)
			}
		}
	}
	own, err := tx.InlineUsers(ctx, tenant)
	if err != nil {
		return nil, err
	}
	for _, b := range own {
		if slices.Contains(injected(*b.Spec.Network.Inline), name) {
			also(b)
		}
	}
	profiles, err := tx.Profiles(ctx, tenant)
	if err != nil {
		return nil, err
	}
	for _, profile := range profiles {
		if !slices.Contains(injected(profile.Profile), name) {
			continue
		}
		users, err := tx.ProfileUsers(ctx, tenant, profile.Name)
		if err != nil {
			return nil, err
		}
		also(users...)
	}
	return boxes, nil
}

// SecretUse is one use of a secret by the gateway, or several of the same kind.
type SecretUse struct {
	Secret  string
	Version int64
	Rule    string // that allowed it; empty for a placeholder
	Host    string // to whom it was sent
}

// SecretUsed records that the gateway sent a secret for a sandbox: which, by
// which rule and to whom, and never the value.
func (p *Plane) SecretUsed(ctx context.Context, id sandbox.ID, u SecretUse) error {
	b, err := store.Read(ctx, p.Store, func(tx *store.Tx) (store.Sandbox, error) { return tx.Operator().Sandbox(ctx, id) })
	if err != nil {
		return err
	}
	fact := audit.Action{Tenant: b.Tenant, Op: ops.SecretUse, Sandbox: b.ID, Name: b.Name, Subject: useSubject(u), Policy: u.Rule}
	return p.Audit.Fact(ctx, fact, eventlog.SecretUsed, nil)
}
