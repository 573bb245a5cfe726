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
	// Run runs a script as root and returns what it writes, which must be short
	// and text.
	Run(ctx context.Context, script string) (string, error)
}

// Instance is a sandbox of a service. A guest inside runs commands and accesses
// files. A driver embeds it. Its methods may be called concurrently.
type Instance struct {
	*guestkit.Instance
	core   *Core
	inside Inside
	Box    string // the service's ID
}

// Instance returns an instance of a sandbox. It makes no network call.
func (c *Core) Instance(id sandbox.ID, box string, inside Inside, ends time.Time) *Instance {
	m := &machine{Inside: inside, core: c, id: id, box: box}
	return &Instance{Instance: c.Kit.Instance(id, m, ends), core: c, inside: inside, Box: box}
}

// machine is a sandbox as reported by the service.
type machine struct {
	Inside
	core *Core
	id   sandbox.ID
	box  string
}

// Status implements guestkit.Machine. A sandbox is gone if the service does not
// know it and does not list it for this account, or if another sandbox now has
// its name.
func (m *machine) Status(ctx context.Context) (guestkit.Status, error) {
	b, err := m.core.Service.Get(ctx, m.id, m.box)
	if errors.Is(err, ErrNone) {
		b, err = m.core.Find(ctx, m.id)
	}
	if err == nil && b.ID != m.box {
		err = guestkit.Gone(m.id)
	}
	if err == nil {
		err = m.core.Usable(b)
	}
	if err != nil {
		return guestkit.Status{}, err
	}
	return guestkit.Status{State: b.State, Ends: m.core.Of(m.id, m.box).Ends}, nil
}

// Answers implements guestkit.Machine.
func (m *machine) Answers(ctx context.Context) bool {
	_, err := m.Run(ctx, ":")
	return err == nil
}

// Cause implements guestkit.Machine. Services do not say how a sandbox ended.
func (m *machine) Cause(ends time.Time) sandbox.Exit { return m.core.Cause(m.id, m.box, ends) }

// Configure sends the guest the defaults of commands.
func (in *Instance) Configure(ctx context.Context, d guest.Defaults) error {
	return in.Use(ctx, false, func(ctx context.Context, g *guest.Client) error { return g.Configure(ctx, d) })
}

// Destroy implements driver.Instance.
func (in *Instance) Destroy(ctx context.Context) error {
	return in.core.Destroy(ctx, in.Instance, in.Box, func() error {
		if err := in.core.mayEnd(ctx, in.ID(), in.Box, in.inside); err != nil {
			return err
		}
		return in.core.Erase(ctx, in.ID(), in.Box)
	})
}

// mayEnd refuses to end a sandbox that another directory has adopted, if the
// service records that or the sandbox has its mark.
func (c *Core) mayEnd(ctx context.Context, id sandbox.ID, box string, in Inside) error {
	_, records := c.Service.(Claimer)
	if !records && (c.Enter == nil || c.Service.Credential().Key == "") {
		return nil // it cannot be adopted
	}
	b, err := c.Service.Get(ctx, id, box)
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
	return Usage(ctx, in.Instance, in.inside.Run)
}
