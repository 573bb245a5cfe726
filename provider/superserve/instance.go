package superserve

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// Instance is a sandbox of the service, with a guest in it that does what is
// done inside. Its methods may be called concurrently.
type Instance struct {
	*guestkit.Instance
	p      *Provider
	id     sandbox.ID
	inside *inside
}

func (p *Provider) instance(id sandbox.ID, b box, ends time.Time) *Instance {
	in := p.api.inside(id, b)
	return &Instance{Instance: p.kit.Instance(id, &machine{in, p}, ends), p: p, id: id, inside: in}
}

// machine is a sandbox as the service knows it.
type machine struct {
	*inside
	p *Provider
}

// Status implements guestkit.Machine. Evidence is the service's own word that it
// does not know the sandbox, and that it does not list it for this account.
func (m *machine) Status(ctx context.Context) (guestkit.Status, error) {
	b, err := m.api.get(ctx, m.id)
	if missing(err) {
		if b, err = m.p.find(ctx, m.name); err == nil && b.ID != m.id {
			err = guestkit.Gone(m.name)
		}
	}
	if err == nil {
		err = m.api.usable(m.name, b)
	}
	if err != nil {
		return guestkit.Status{}, err
	}
	return guestkit.Status{State: stateOf(b.Status), Ends: m.p.boxes.Of(m.name, m.id).Ends}, nil
}

// Cause implements guestkit.Machine. The service does not say how a sandbox
// ended.
func (m *machine) Cause(ends time.Time) sandbox.Exit { return m.p.boxes.Cause(m.name, m.id, ends) }

// Destroy implements driver.Instance.
func (in *Instance) Destroy(ctx context.Context) error {
	return in.p.boxes.Destroy(ctx, in.Instance, in.inside.id, func() error { return in.p.erase(ctx, in.id, in.inside.id) })
}

// Resume implements driver.Resumer. Pausing is left to the service: it cuts the
// connections of a sandbox that it pauses, which driver.Pauser does not allow.
func (in *Instance) Resume(ctx context.Context) error {
	if sleeps, err := in.Sleeps(ctx); err != nil || !sleeps {
		return err
	}
	b, err := in.p.api.awake(ctx, in.id, in.inside.id, true)
	if err != nil {
		return in.Explain(ctx, err)
	}
	in.inside.set(b)
	in.Disconnect() // no connection outlives the pause
	return nil
}

// Usage implements driver.Meter.
func (in *Instance) Usage(ctx context.Context) (sandbox.Usage, error) {
	return hosted.Usage(ctx, in.Instance, in.inside.run)
}
