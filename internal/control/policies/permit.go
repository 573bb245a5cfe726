package policies

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Fill sets limits and the isolation from the policies where the request has none. timeout is the
// daemon's time limit for the sandbox; if it is set, the request gets no
// lifetime.
func (s *Service) Fill(tenant string, spec *sandbox.Spec, timeout time.Duration) {
	caps := s.Set().Caps(policyset.About{Tenant: tenant, Labels: spec.Labels})
	caps.Fill(&spec.Resources, s.cfg.Defaults)
	spec.Isolation = cmp.Or(spec.Isolation, caps.Isolation)
	if spec.Lifetime.Timeout == 0 && timeout == 0 {
		spec.Lifetime.Timeout = caps.Lifetime
	}
}

// Isolation returns the weakest isolation that the policies allow for a sandbox.
// Empty: any.
func (s *Service) Isolation(tenant string, labels map[string]string) sandbox.Isolation {
	return s.Set().Caps(policyset.About{Tenant: tenant, Labels: labels}).Isolation
}

// request returns a request for a sandbox in the form that policies evaluate.
func (s *Service) request(ctx context.Context, tenant string, spec *sandbox.Spec, images []string) (policyset.Request, error) {
	profile, err := store.Read(ctx, s.Store, func(tx *store.Tx) (sandbox.Profile, error) {
		return tx.Profiles().ForNetwork(ctx, tenant, spec.Network)
	})
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound { // a missing profile is refused later
		return policyset.Request{}, err
	}
	r := policyset.Of(tenant, spec, images, profile.Rules)
	r.Complete(policyset.Caps{}, s.cfg.Defaults)
	r.Mounts = slices.Clone(r.Mounts)
	for _, m := range spec.Mounts {
		// The target of a symbolic link must be allowed as well.
		m.Source = realPath(m.Source)
		r.Mounts = append(r.Mounts, m)
	}
	return r, nil
}

// Egress returns the network part of a request for a sandbox. If gateway is
// false, the provider has to enforce the rules.
func (s *Service) Egress(ctx context.Context, tenant string, spec *sandbox.Spec, gateway bool) (control.Egress, error) {
	about := policyset.About{Tenant: tenant, Labels: spec.Labels}
	set := s.Set()
	e := control.Egress{EgressLimits: set.EgressLimits(about), Unenforceable: set.Unenforceable(about)}
	if spec.Network.Profile == "" || gateway {
		return e, nil
	}
	stored, err := store.Read(ctx, s.Store, func(tx *store.Tx) (store.Profile, error) { return tx.Profiles().Get(ctx, tenant, spec.Network.Profile) })
	e.Profile = stored.Profile
	return e, err
}

// Permit returns an error and records it if the policies do not allow a
// sandbox. If fields are given, only those are checked.
func (s *Service) Permit(ctx context.Context, a audit.Action, spec *sandbox.Spec, images []string, fields ...policyset.Field) error {
	set := s.Set()
	if set == nil {
		return nil
	}
	r, err := s.request(ctx, a.Tenant, spec, images)
	if err != nil {
		return err
	}
	if set.AsksWho(r.About) {
		r.Signatures = s.signatures(ctx, images)
	}
	return s.refused(ctx, a, set.Check(r, fields...))
}

// refused records a refusal with the rule, and returns it.
func (s *Service) refused(ctx context.Context, a audit.Action, err error) error {
	var e *sandbox.Error
	if errors.As(err, &e) && e.Code == sandbox.CodeDenied {
		a.Policy = e.Rule
		s.Report(ctx, s.Audit.Denied(ctx, a, err))
	}
	return err
}

// restored are the fields that are checked when a sandbox is started again. Its
// lifetime was checked when it was created.
var restored = []policyset.Field{
	policyset.CPUs, policyset.Memory, policyset.Disk, policyset.PIDs, policyset.Isolation, policyset.Images, policyset.Mounts, policyset.Network, policyset.Secrets, policyset.SecretModes,
}

// PermitAgain is Permit for a sandbox that is started again.
func (s *Service) PermitAgain(ctx context.Context, a audit.Action, b *store.Sandbox) error {
	spec := specOf(b)
	return s.Permit(ctx, a, &spec, []string{b.Image, spec.Image}, restored...)
}

// specOf returns the Spec of a sandbox with its current limits, isolation and
// labels.
func specOf(b *store.Sandbox) sandbox.Spec {
	spec := b.Spec
	spec.Labels, spec.Resources, spec.Isolation = b.Labels, b.Resources, b.Isolation
	return spec
}

// PermitChange is Permit for a change to a sandbox at the time now. Only
// changed limits are checked. If labels change, everything is checked, because
// other policies may apply.
func (s *Service) PermitChange(ctx context.Context, a audit.Action, b *store.Sandbox, c *sandbox.Change, now time.Time) error {
	spec := specOf(b)
	var fields []policyset.Field
	for field, changed := range map[policyset.Field]bool{
		policyset.CPUs: c.Resources.CPUs != 0, policyset.Memory: c.Resources.Memory != 0,
		policyset.Disk: c.Resources.Disk != 0, policyset.PIDs: c.Resources.PIDs != 0,
		policyset.Lifetime: c.Lifetime.Timeout != nil,
	} {
		if changed {
			fields = append(fields, field)
		}
	}
	spec.Resources = c.ApplyResources(spec.Resources)
	if len(c.Labels) > 0 {
		fields = slices.Concat(fields, restored, []policyset.Field{policyset.Lifetime})
		spec.Labels = c.ApplyLabels(spec.Labels)
	}
	if c.Lifetime.Timeout != nil {
		spec.Lifetime.Timeout = 0
		if *c.Lifetime.Timeout > 0 { // policies count from the creation
			spec.Lifetime.Timeout = now.Add(*c.Lifetime.Timeout).Sub(b.Created)
		}
	}
	if len(fields) == 0 {
		return nil
	}
	return s.Permit(ctx, a, &spec, []string{b.Image, spec.Image}, fields...)
}

// PermitUntil refuses an end time of a sandbox that is too late.
func (s *Service) PermitUntil(ctx context.Context, a audit.Action, b *store.Sandbox, at time.Time) error {
	r := policyset.Request{About: policyset.About{Tenant: b.Tenant, Labels: b.Labels}, Lifetime: at.Sub(b.Created)}
	a.Sandbox, a.Name = b.ID, b.Name
	return s.refused(ctx, a, s.Set().Check(r, policyset.Lifetime))
}
