package hosted

import (
	"context"
	"errors"
	"time"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/sandbox"
)

// Inside gives access to the inside of one sandbox. Its methods may be called
// concurrently.
type Inside interface {
	guestkit.Runner
	// Run runs a script as root and returns its output, which must be short
	// and text.
	Run(ctx context.Context, script string) (string, error)
	// Wake resumes or starts the sandbox, if it sleeps.
	Wake(ctx context.Context) error
}

// Instance is a sandbox of a service. A guest inside runs commands and accesses
// files. Its methods may be called concurrently.
type Instance struct {
	*guestkit.Instance
	Inside  Inside
	Sandbox string // the service's ID
	core    *Core
}

// instance returns an instance of a sandbox. It makes no network call.
func (c *Core) instance(id sandbox.ID, b Sandbox) Made {
	b.Sandbox = id
	ends := b.Ends
	if ends.IsZero() {
		ends = c.Of(id, b.ID).Ends
	}
	m := &machine{Inside: c.OpenInside(b), core: c, id: id, sandbox: b.ID}
	in := &Instance{Instance: c.Kit.Instance(id, m, ends), core: c, Inside: m.Inside, Sandbox: b.ID}
	if c.Extend != nil {
		return c.Extend(in)
	}
	return in
}

// machine is a sandbox as reported by the service.
type machine struct {
	Inside
	core    *Core
	id      sandbox.ID
	sandbox string
}

// Status implements guestkit.Machine. A sandbox is gone if the service does not
// know it and does not list it for this account, or if another sandbox now has
// its name.
func (m *machine) Status(ctx context.Context) (guestkit.Status, error) {
	b, err := m.core.Service.Get(ctx, m.id, m.sandbox)
	if errors.Is(err, ErrNone) {
		b, err = m.core.Find(ctx, m.id)
	}
	if err == nil && b.ID != m.sandbox {
		err = guestkit.Gone(m.id)
	}
	if err == nil {
		err = m.core.Usable(b)
	}
	if err != nil {
		return guestkit.Status{}, err
	}
	if b.Ends.IsZero() {
		b.Ends = m.core.Of(m.id, m.sandbox).Ends
	}
	return guestkit.Status{State: b.State, Ends: b.Ends}, nil
}

// Answers implements guestkit.Machine.
func (m *machine) Answers(ctx context.Context) bool {
	_, err := m.Run(ctx, ":")
	return err == nil
}

// Cause implements guestkit.Machine. Services do not say how a sandbox ended.
func (m *machine) Cause(ends time.Time) sandbox.Exit { return m.core.Cause(m.id, m.sandbox, ends) }

// Configure sends the guest the defaults of commands.
func (in *Instance) Configure(ctx context.Context, d guest.Defaults) error {
	return in.Use(ctx, false, func(ctx context.Context, g *guest.Client) error { return g.Configure(ctx, d) })
}

// Resume implements driver.Resumer. Only the service pauses: it drops the
// connections of a paused sandbox, which driver.Pauser does not allow.
func (in *Instance) Resume(ctx context.Context) error {
	if sleeps, err := in.Sleeps(ctx); err != nil || !sleeps {
		return err
	}
	in.Disconnect() // no connection outlives the sleep
	if err := in.Inside.Wake(ctx); err != nil {
		return in.Explain(ctx, err)
	}
	if !in.core.Reboots {
		return nil
	}
	_, err := in.Reach(ctx)
	return err
}

// Destroy implements driver.Instance.
func (in *Instance) Destroy(ctx context.Context) error {
	return in.core.Destroy(ctx, in.Instance, in.Sandbox, func() error {
		if err := in.core.mayEnd(ctx, in.ID(), in.Sandbox, in.Inside); err != nil {
			return err
		}
		return in.core.Erase(ctx, in.ID(), in.Sandbox)
	})
}

// mayEnd refuses to end a sandbox that another directory has adopted, if the
// service records that or the sandbox has its mark.
func (c *Core) mayEnd(ctx context.Context, id sandbox.ID, sb string, in Inside) error {
	_, records := c.Service.(Claimer)
	if !records && (!c.Marks || c.Service.Credential().Key == "") {
		return nil // it cannot be adopted
	}
	b, err := c.Service.Get(ctx, id, sb)
	if errors.Is(err, ErrNone) {
		return nil // Erase detects that, too
	}
	switch {
	case err != nil:
		return err
	case records:
		return c.owned(b)
	}
	return c.marked(ctx, id, b, in)
}

// Usage implements driver.Meter. What processors did is not known.
func (in *Instance) Usage(ctx context.Context) (sandbox.Usage, error) {
	return Usage(ctx, in.Instance, in.Inside.Run)
}
