package policies

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Isolation returns the weakest isolation that the policies allow for a sandbox.
// Empty: any.
func (s *Service) Isolation(tenant string, labels map[string]string) sandbox.Isolation {
	return s.Set().Caps(policyset.About{Tenant: tenant, Labels: labels}).Isolation
}

// Known returns the policies, and what they have to know about a sandbox besides
// its Spec. images are the names of its image.
func (s *Service) Known(ctx context.Context, tenant string, spec *sandbox.Spec, images []string) (plan.Policies, error) {
	k := plan.Policies{Set: s.Set(), Defaults: s.cfg.Defaults, Fetches: s.cfg.Images != nil}
	if spec.Network.Profile == "" {
		k.Profile, _ = spec.Network.Local()
	} else {
		profile, err := store.Read(ctx, s.Store, func(tx *store.Tx) (sandbox.Profile, error) {
			return tx.Profiles().ForNetwork(ctx, tenant, spec.Network)
		})
		if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
			return k, err
		}
		k.Profile, k.Missing = profile, err
	}
	for _, m := range spec.Mounts {
		m.Source = realPath(m.Source)
		k.Mounts = append(k.Mounts, m)
	}
	if k.Set.AsksWho(policyset.About{Tenant: tenant, Labels: spec.Labels}) {
		k.Signatures = s.signatures(ctx, images)
	}
	return k, nil
}

// Permit returns an error and records it if the policies do not allow a
// sandbox. If fields are given, only those are checked.
func (s *Service) Permit(ctx context.Context, a audit.Action, spec *sandbox.Spec, images []string, fields ...policyset.Field) error {
	if s.Set() == nil {
		return nil
	}
	k, err := s.Known(ctx, a.Tenant, spec, images)
	if err != nil {
		return err
	}
	return s.Refused(ctx, a, k.Set.Check(k.Request(a.Tenant, spec, images), fields...))
}

// Refused records the refusal of a policy with its rule, and returns it. Other errors
// are returned as they are.
func (s *Service) Refused(ctx context.Context, a audit.Action, err error) error {
	var e *sandbox.Error
	if errors.As(err, &e) && e.Code == sandbox.CodeDenied {
		a.Policy = e.Rule
		s.Report(ctx, s.Audit.Denied(ctx, a, err))
	}
	return err
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
		fields = slices.Concat(fields, plan.Lasting(), []policyset.Field{policyset.Lifetime})
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
	return s.Refused(ctx, a, s.Set().Check(r, policyset.Lifetime))
}
