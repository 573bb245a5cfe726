package profiles

import (
	"context"
	"errors"
	"slices"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Gateway enforces network rules. It calls [Service.With] when it connects a
// sandbox, and SetEgress is called for every later change.
type Gateway interface {
	// SetEgress replaces the rules of a running sandbox, and cuts connections that
	// are no longer allowed. It returns CodeNotFound for a sandbox that it does
	// not serve.
	SetEgress(ctx context.Context, id sandbox.ID, e Egress) error
}

// Egress is the network configuration of a sandbox for a gateway. It contains
// secret values, which must not be stored.
type Egress struct {
	Profile      sandbox.Profile
	EgressLimits []policy.EgressLimit // of the policies of the machine
	Secrets      []EgressSecret       // by name and placeholder

	ProxyPassword secret.Value // for the profile's proxy
}

// EgressSecret is a secret that a gateway adds to requests or substitutes for a
// placeholder. A secret occurs once for each placeholder, and once without one
// if a rule adds it.
type EgressSecret struct {
	Name        string
	Version     int64
	Value       secret.Value
	Hosts       []string // that it may be sent to; none: those that a rule names
	Placeholder string
	SwapHosts   []string // for which the placeholder is replaced
	In          []string // as SecretRef.In
}

// Egress returns the current network configuration of a sandbox. It is for the
// gateway of this daemon and has no guard.
func (s *Service) Egress(ctx context.Context, id sandbox.ID) (Egress, error) {
	var e Egress
	var wanted []wantedSecret
	var tenant string
	err := s.Store.View(ctx, func(tx *store.Tx) error {
		b, err := tx.Operator().Sandbox(ctx, id)
		if err != nil {
			return err
		}
		tenant = b.Tenant
		e, wanted, err = s.egress(ctx, tx, &b)
		return err
	})
	if err != nil {
		return Egress{}, core.Named(ops.EgressGet, err)
	}
	for _, w := range wanted {
		// Without the value of a secret, the gateway refuses the requests that need
		// it. Other requests still work.
		if w.Value, err = s.cfg.Secrets.Open(ctx, &w.stored); err != nil {
			s.Report(ctx, err)
			continue
		}
		e.Secrets = append(e.Secrets, w.EgressSecret)
	}
	// The same holds for identity tokens.
	tokens, err := s.tokens(tenant, id, e.Profile)
	if err != nil {
		s.Report(ctx, err)
	}
	e.Secrets = append(e.Secrets, tokens...)
	// Without the password the proxy refuses connections, and the gateway makes no
	// direct ones.
	if e.ProxyPassword, err = s.cfg.Secrets.OpenProxy(tenant, e.Profile.Proxy); err != nil {
		s.Report(ctx, err)
	}
	return e, ctx.Err()
}

// With calls apply with the current network configuration of a sandbox. Changes
// to that sandbox wait until apply returns, so that the gateway gets the newest
// state last.
func (s *Service) With(ctx context.Context, id sandbox.ID, apply func(Egress) error) error {
	release, err := s.telling.Take(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	e, err := s.Egress(ctx, id)
	if err != nil {
		return err
	}
	return apply(e)
}

// wantedSecret is a secret whose value is read after the transaction, because
// reading may take long.
type wantedSecret struct {
	EgressSecret
	stored store.Secret
}

// egress returns the configuration of a recorded sandbox. Secrets that do not
// exist or that policies no longer allow are left out.
func (s *Service) egress(ctx context.Context, tx *store.Tx, b *store.Sandbox) (e Egress, wanted []wantedSecret, err error) {
	if e.Profile, err = tx.Profiles().ForNetwork(ctx, b.Tenant, b.Spec.Network); err != nil {
		return e, nil, err
	}
	set, about := s.cfg.Policies.Set(), policyset.About{Tenant: b.Tenant, Labels: b.Labels}
	e.EgressLimits = set.EgressLimits(about)
	uses, err := tx.Secrets().Uses(ctx, b.Tenant, b.ID)
	if err != nil {
		return e, nil, err
	}
	add := func(name string, mode sandbox.SecretMode, complete func(*wantedSecret)) error {
		if !set.MaySecret(about, name, mode) {
			return nil
		}
		found, err := tx.Secrets().Get(ctx, b.Tenant, name)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			return nil
		}
		w := wantedSecret{EgressSecret{Name: name, Version: found.Version, Hosts: found.Hosts}, found}
		complete(&w)
		wanted = append(wanted, w)
		return err
	}
	for _, name := range e.Profile.Secrets() {
		if err := add(name, "", func(*wantedSecret) {}); err != nil {
			return e, nil, err
		}
	}
	for _, ref := range b.Spec.Secrets {
		i := slices.IndexFunc(uses, func(u store.SecretUse) bool { return u.Variable == ref.Variable() && u.Placeholder != "" })
		if i < 0 {
			continue
		}
		if err := add(ref.Name, policyset.ModeOf(ref), func(w *wantedSecret) {
			w.Placeholder, w.SwapHosts, w.In = uses[i].Placeholder, w.stored.HostsFor(ref), ref.In
		}); err != nil {
			return e, nil, err
		}
	}
	return e, wanted, nil
}

var errFixedRules = errors.New("its provider cannot change the network of a running sandbox")

// Enforce updates the gateway for sandboxes. It tries all of them; the error
// names those that failed.
func (s *Service) Enforce(ctx context.Context, all []store.Sandbox) error {
	if s.cfg.Gateway == nil {
		return nil
	}
	var missed []store.Sandbox
	var cause error
	for _, b := range all {
		if !s.connected(&b) {
			continue
		}
		if err := s.enforce(ctx, &b); err != nil {
			missed, cause = append(missed, b), errors.Join(cause, err)
		}
	}
	if len(missed) == 0 {
		return nil
	}
	s.Report(ctx, cause)
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Subject: missed[0].Name, Cause: cause,
		Message: "it was saved, and could not be applied to " + core.NamesOf(missed), Hint: "apply it again, or remove the sandboxes",
	}
}

// connected reports whether the gateway may have a link to a sandbox. A sandbox
// paused in memory keeps its link. A sandbox being created requests its
// configuration itself.
func (s *Service) connected(b *store.Sandbox) bool {
	return b.Node == s.Node && b.State != sandbox.Gone && b.State != sandbox.Stopped && b.Rest.Pause != sandbox.PauseDisk && b.Spec.Network.Asked()
}

func (s *Service) enforce(ctx context.Context, b *store.Sandbox) error {
	gateway, err := s.cfg.Sandboxes.HasGateway(ctx, b)
	if err == nil && !gateway {
		err = errFixedRules
	}
	if err != nil {
		return err
	}
	err = s.With(ctx, b.ID, func(e Egress) error { return s.cfg.Gateway.SetEgress(ctx, b.ID, e) })
	if code := sandbox.CodeOf(err); code == sandbox.CodeNotFound || code == sandbox.CodeGone {
		return nil
	}
	return err
}

// EnforceAll updates the gateway for every sandbox of this node: when the
// daemon starts, because the previous one may have ended before it passed on a
// change, and when the machine's policies change.
func (s *Service) EnforceAll(ctx context.Context) error {
	all, err := s.cfg.Sandboxes.Recorded(ctx)
	return errors.Join(err, s.Enforce(ctx, all))
}
