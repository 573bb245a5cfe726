// Package update changes the limits, labels, lifetime, network and published ports
// of sandboxes.
package update

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/policies"
	"github.com/atoll-run/atoll/internal/control/ports"
	"github.com/atoll-run/atoll/internal/control/profiles"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/sandboxes/prepare"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/control/secrets"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Updater changes sandboxes. The caller fills in the fields.
type Updater struct {
	Core      *core.Core
	Records   *records.Records
	Prepare   *prepare.Preparer
	Providers *providers.Service
	Policies  *policies.Service
	Profiles  *profiles.Service
	Secrets   *secrets.Service
	Ports     *ports.Service
}

const opUpdate = ops.SandboxUpdate

func validate(c *sandbox.Change) error {
	if err := c.Lifetime.Apply(sandbox.Lifetime{}).Validate(); err != nil {
		return err
	}
	for k := range c.Labels {
		if strings.HasPrefix(k, engine.ReservedPrefix) {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "labels", Message: fmt.Sprintf("%q begins with %q, which Atoll keeps for itself", k, engine.ReservedPrefix)}
		}
	}
	return c.Resources.Validate()
}

// Update changes the limits, labels, lifetime or idle policy of a sandbox. If
// the sandbox is not running, new limits apply when it runs again. Either all
// changes are made or none.
func (s *Updater) Update(ctx context.Context, ref string, c sandbox.Change) (_ store.Sandbox, err error) {
	defer core.Name(opUpdate, &err)
	if c.Network != nil {
		n := *c.Network
		if c.Network = nil; !reflect.ValueOf(c).IsZero() {
			return store.Sandbox{}, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "network", Message: "cannot be changed together with other settings", Hint: "make two requests"}
		}
		return s.SetNetwork(ctx, ref, n)
	}
	if err := validate(&c); err != nil {
		return store.Sandbox{}, err
	}
	t, err := s.Records.Lock(ctx, ref, opUpdate, lifecycle.Update)
	if err != nil {
		return store.Sandbox{}, err
	}
	defer t.Release()
	if err := s.Policies.PermitChange(ctx, t.Action, &t.Sandbox, &c, s.Core.Store.Now()); err != nil {
		return t.Sandbox, err
	}
	b, err := s.update(ctx, t, &c)
	if err == nil && len(c.Labels) > 0 {
		err = s.Profiles.Enforce(ctx, []store.Sandbox{b}) // its labels may match other policies
	}
	return b, err
}

func (s *Updater) update(ctx context.Context, t *records.Operation, c *sandbox.Change) (store.Sandbox, error) {
	live := t.Sandbox.State == sandbox.Running || t.Sandbox.Rest.Pause == sandbox.PauseMemory
	loose, err := s.loose(ctx, t, c)
	if err != nil {
		return t.Sandbox, err
	}
	changed, told := c.Resources, *c
	told.Resources = held(changed, loose)
	c = &told
	var sb *engine.Sandbox
	if live && (c.Resources != sandbox.Resources{} || c.Lifetime.Timeout != nil || c.Lifetime.TimeoutAction != nil) {
		var err error
		if sb, err = s.Records.Attach(ctx, &t.Sandbox); err != nil {
			return t.Sandbox, err
		}
		if err := s.canChange(t, sb, c); err != nil {
			return t.Sandbox, err
		}
	}
	before, now := t.Sandbox, s.Core.Store.Now()
	intent, err := s.Records.Enter(ctx, t, func(b *store.Sandbox) {
		s.apply(b, c, now)
		setLoose(b, changed, loose)
		if sb != nil {
			b.Rest.Step = records.StepUpdate // the provider's limits are unknown until the update is complete
		}
	}, nil)
	if err != nil {
		return t.Sandbox, err
	}
	if err := s.Core.Fault("update.recorded"); err != nil {
		return t.Sandbox, err
	}
	if sb != nil {
		err = s.tell(ctx, t, sb, c, &before, now)
	}
	if err := s.Core.Fault("update.done"); err != nil {
		return t.Sandbox, err
	}
	return s.Records.Leave(ctx, t, intent, err, func(b *store.Sandbox) { b.Rest.Step = "" }, nil)
}

// loose returns the new limits that the provider does not enforce.
func (s *Updater) loose(ctx context.Context, t *records.Operation, c *sandbox.Change) (map[string]sandbox.Enforcement, error) {
	if c.Resources == (sandbox.Resources{}) {
		return nil, nil
	}
	be, err := s.Providers.Of(ctx, &t.Sandbox)
	if err != nil {
		return nil, err
	}
	facts, err := be.Facts(ctx)
	if err != nil {
		return nil, err
	}
	loose, err := plan.Loose(&facts, c.Resources)
	if err != nil || len(loose) == 0 {
		return nil, err
	}
	if c.RequireLimits || t.Sandbox.Spec.RequireLimits {
		return nil, plan.Required(loose)
	}
	caps := s.Policies.Set().Caps(policyset.About{Tenant: t.Sandbox.Tenant, Labels: t.Sandbox.Labels})
	return loose, s.Prepare.Demanded(ctx, be, t.Sandbox.Tenant, caps.Resources, loose)
}

// held returns the limits that the provider enforces.
func held(r sandbox.Resources, loose map[string]sandbox.Enforcement) sandbox.Resources {
	for name := range loose {
		switch name {
		case "cpus":
			r.CPUs = 0
		case "memory":
			r.Memory = 0
		case "disk":
			r.Disk = 0
		case "pids":
			r.PIDs = 0
		}
	}
	return r
}

// setLoose records limits that were not passed to the provider.
func setLoose(b *store.Sandbox, changed sandbox.Resources, loose map[string]sandbox.Enforcement) {
	if len(loose) == 0 {
		return
	}
	b.Resources = sandbox.Change{Resources: changed}.ApplyResources(b.Resources)
	b.Limits = maps.Clone(b.Limits)
	if b.Limits == nil {
		b.Limits = map[string]sandbox.Enforcement{}
	}
	maps.Copy(b.Limits, loose)
}

// canChange returns an error if the provider does not support a change to a
// running sandbox.
func (s *Updater) canChange(t *records.Operation, sb *engine.Sandbox, c *sandbox.Change) error {
	if c.Resources != (sandbox.Resources{}) && !engine.Can[driver.Resizer](sb) {
		return records.Unsupported(&t.Sandbox, "this provider cannot change the limits of a running sandbox", "stop it, change it, and start it again")
	}
	// The daemon can enforce a shorter lifetime; only the provider can extend one.
	was := t.Sandbox.Spec.Lifetime
	longer := was.HardTimeout() > 0 && !t.Sandbox.Expires.IsZero() && (c.Lifetime.Apply(was).HardTimeout() == 0 ||
		c.Lifetime.Timeout != nil && s.Core.Store.Now().Add(*c.Lifetime.Timeout).After(t.Sandbox.Expires))
	if longer && !engine.Can[driver.DeadlineSetter](sb) {
		return records.Unsupported(&t.Sandbox, "this provider cannot extend the lifetime of a running sandbox", "")
	}
	return nil
}

// apply applies a change to a record.
func (s *Updater) apply(b *store.Sandbox, c *sandbox.Change, now time.Time) {
	b.Resources, b.Labels = c.ApplyResources(b.Resources), c.ApplyLabels(b.Labels)
	expires := b.Expires
	records.SetLifetime(b, c.Lifetime.Apply(b.Spec.Lifetime), now)
	switch {
	case c.Lifetime.Timeout == nil:
		b.Expires = expires
	case b.Rest.Pause != "" || b.State == sandbox.Stopped: // its lifetime starts when it runs again
		b.Rest.Left, b.Expires = *c.Lifetime.Timeout, time.Time{}
	}
	if c.Lifetime.Wakes != nil && b.Rest.Pause != "" {
		b.Rest.Wakes = *c.Lifetime.Wakes
	}
	b.Active = now
}

// tell applies a change to a running sandbox. If the second part fails, the
// first is undone.
func (s *Updater) tell(ctx context.Context, t *records.Operation, sb *engine.Sandbox, c *sandbox.Change, before *store.Sandbox, now time.Time) error {
	if c.Resources != (sandbox.Resources{}) {
		if err := sb.Resize(ctx, c.Resources); err != nil {
			return err
		}
	}
	if c.Lifetime.Timeout == nil && c.Lifetime.TimeoutAction == nil || !engine.Can[driver.DeadlineSetter](sb) || t.Sandbox.Rest.Pause != "" {
		return nil
	}
	at := time.Time{}
	switch hard := c.Lifetime.Apply(before.Spec.Lifetime).HardTimeout(); {
	case hard > 0 && c.Lifetime.Timeout != nil:
		at = now.Add(hard)
	case hard > 0:
		at = before.Expires
	}
	err := sb.SetDeadline(ctx, at)
	if err != nil && c.Resources != (sandbox.Resources{}) {
		s.Core.Report(ctx, sb.Resize(context.WithoutCancel(ctx), before.Resources))
	}
	return err
}
