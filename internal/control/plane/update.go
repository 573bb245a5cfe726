package plane

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

const opUpdate = "sandbox.update"

// Change says what of a sandbox is to be another. What is nil or zero stays.
type Change struct {
	Resources sandbox.Resources
	// Labels are set; those with a nil value are removed.
	Labels map[string]*string
	// Timeout is how long the sandbox may live from now on; zero: for ever.
	Timeout    *time.Duration
	Idle       *time.Duration // zero: never idle
	IdleAction *sandbox.IdleAction
}

func (c *Change) validate() error {
	l := sandbox.Lifetime{}
	if c.Timeout != nil {
		l.Timeout = *c.Timeout
	}
	if c.Idle != nil {
		l.Idle = *c.Idle
	}
	if c.IdleAction != nil {
		l.IdleAction = *c.IdleAction
	}
	if err := l.Validate(); err != nil {
		return err
	}
	for k := range c.Labels {
		if strings.HasPrefix(k, control.ReservedPrefix) {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "labels", Message: fmt.Sprintf("%q begins with %q, which Atoll keeps for itself", k, control.ReservedPrefix)}
		}
	}
	return c.Resources.Validate()
}

// Update changes the limits, labels, lifetime or idle policy of a sandbox. Of
// one that does not run the limits hold when it runs again. Nothing is changed
// if a part of it cannot be.
func (p *Plane) Update(ctx context.Context, ref string, c Change) (store.Sandbox, error) {
	if err := c.validate(); err != nil {
		return store.Sandbox{}, named(opUpdate, err)
	}
	t, err := p.turn(ctx, ref, opUpdate, lifecycle.Update)
	if err != nil {
		return store.Sandbox{}, named(opUpdate, err)
	}
	defer t.release()
	if err := p.permitChange(ctx, t, &c, p.cfg.Store.Now()); err != nil {
		return t.box, named(opUpdate, err)
	}
	b, err := p.update(ctx, t, &c)
	if err == nil && len(c.Labels) > 0 {
		err = p.enforce(ctx, []store.Sandbox{b}) // other policies may hold for it
	}
	return b, named(opUpdate, err)
}

func (p *Plane) update(ctx context.Context, t *turn, c *Change) (store.Sandbox, error) {
	live := t.box.State == sandbox.Running || t.box.Rest.Pause == sandbox.PauseMemory
	var box *control.Sandbox
	if live && (c.Resources != sandbox.Resources{} || c.Timeout != nil) {
		var err error
		if box, err = p.attach(ctx, &t.box); err != nil {
			return t.box, err
		}
		if err := p.canChange(t, box, c); err != nil {
			return t.box, err
		}
	}
	before, now := t.box.Resources, p.cfg.Store.Now()
	intent, err := p.enter(ctx, t, func(b *store.Sandbox) {
		p.apply(b, c, now)
		if box != nil {
			b.Rest.Step = stepUpdate // what the provider was told is not known until it is done
		}
	}, nil)
	if err != nil {
		return t.box, err
	}
	if err := p.cfg.Fault("update.recorded"); err != nil {
		return t.box, err
	}
	if box != nil {
		err = p.tell(ctx, t, box, c, before, now)
	}
	if err := p.cfg.Fault("update.done"); err != nil {
		return t.box, err
	}
	return p.leave(ctx, t, intent, err, func(b *store.Sandbox) { b.Rest.Step = "" }, nil)
}

// canChange refuses what the provider of a living sandbox cannot do.
func (p *Plane) canChange(t *turn, box *control.Sandbox, c *Change) error {
	if c.Resources != (sandbox.Resources{}) && !control.Can[driver.Resizer](box) {
		return unsupported(&t.box, "this provider cannot change the limits of a sandbox that runs", "stop it, change it, and start it again")
	}
	// A shorter life can be ended by us; a longer one is in the provider's hands.
	longer := c.Timeout != nil && !t.box.Expires.IsZero() && (*c.Timeout == 0 || p.cfg.Store.Now().Add(*c.Timeout).After(t.box.Expires))
	if longer && !control.Can[driver.DeadlineSetter](box) {
		return unsupported(&t.box, "this provider cannot let a sandbox that runs live longer", "")
	}
	return nil
}

// apply makes a change to a record.
func (p *Plane) apply(b *store.Sandbox, c *Change, now time.Time) {
	set(&b.Resources.CPUs, c.Resources.CPUs)
	set(&b.Resources.Memory, c.Resources.Memory)
	set(&b.Resources.Disk, c.Resources.Disk)
	set(&b.Resources.PIDs, c.Resources.PIDs)
	b.Labels = relabelled(b.Labels, c.Labels)
	l := b.Spec.Lifetime
	if c.Idle != nil {
		l.Idle = *c.Idle
	}
	if c.IdleAction != nil {
		l.IdleAction = *c.IdleAction
	}
	expires := b.Expires
	if c.Timeout != nil {
		l.Timeout = *c.Timeout
	}
	setLifetime(b, l, now)
	switch {
	case c.Timeout == nil:
		b.Expires = expires
	case b.Rest.Pause != "" || b.State == sandbox.Stopped: // its time begins when it runs again
		b.Rest.Left, b.Expires = *c.Timeout, time.Time{}
	}
	b.Active = now
}

// relabelled returns labels with changes; those with a nil value go.
func relabelled(labels map[string]string, changes map[string]*string) map[string]string {
	if len(changes) == 0 {
		return labels
	}
	out := maps.Clone(labels)
	for k, v := range changes {
		if v == nil {
			delete(out, k)
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[k] = *v
	}
	return out
}

func set[T int64 | float64](v *T, to T) {
	if to != 0 {
		*v = to
	}
}

// tell makes a change to a living sandbox. If the second half fails, the first
// is undone.
func (p *Plane) tell(ctx context.Context, t *turn, box *control.Sandbox, c *Change, before sandbox.Resources, now time.Time) error {
	ctx = recorded(ctx)
	if c.Resources != (sandbox.Resources{}) {
		if err := box.Resize(ctx, c.Resources); err != nil {
			return err
		}
	}
	if c.Timeout == nil || !control.Can[driver.DeadlineSetter](box) || t.box.Rest.Pause != "" {
		return nil
	}
	at := time.Time{}
	if *c.Timeout > 0 {
		at = now.Add(*c.Timeout)
	}
	err := box.SetDeadline(ctx, at)
	if err != nil && c.Resources != (sandbox.Resources{}) {
		p.note(ctx, box.Resize(context.WithoutCancel(ctx), before))
	}
	return err
}
