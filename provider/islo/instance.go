package islo

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
	in := &inside{api: p.api, p: p, id: id, box: b.ID, name: b.Name}
	return &Instance{Instance: p.kit.Instance(id, in, ends), p: p, id: id, inside: in}
}

// Status implements guestkit.Machine. Evidence is the service's own word that it
// does not know the sandbox, and that it does not list it for this account; or
// that another has its name now.
func (in *inside) Status(ctx context.Context) (guestkit.Status, error) {
	b, err := in.p.find(ctx, in.id)
	if err == nil && b.ID != in.box {
		err = guestkit.Gone(in.id)
	}
	if err == nil {
		err = in.api.usable(in.id, b)
	}
	if err != nil {
		return guestkit.Status{}, err
	}
	return guestkit.Status{State: stateOf(b.Status), Ends: in.p.boxes.Of(in.id, in.box).Ends}, nil
}

// Cause implements guestkit.Machine. The service does not say how a sandbox
// ended.
func (in *inside) Cause(ends time.Time) sandbox.Exit { return in.p.boxes.Cause(in.id, in.box, ends) }

// Destroy implements driver.Instance.
func (in *Instance) Destroy(ctx context.Context) error {
	return in.p.boxes.Destroy(ctx, in.Instance, in.inside.box, func() error {
		// Names are used again: one that another sandbox has now is not ours.
		b, err := in.p.look(ctx, in.inside.name)
		switch {
		case err == nil && b.ID != in.inside.box:
			return nil
		case err != nil && !missing(err):
			return err
		}
		return in.p.erase(ctx, in.id)
	})
}

// Resume implements driver.Resumer. Pausing is left to the service: it cuts the
// connections of a sandbox that it pauses, which driver.Pauser does not allow.
// One that was stopped has its files, and no processes.
func (in *Instance) Resume(ctx context.Context) error {
	if sleeps, err := in.Sleeps(ctx); err != nil || !sleeps {
		return err
	}
	if err := in.p.api.awake(ctx, in.id, in.inside.name); err != nil {
		return in.Explain(ctx, err)
	}
	in.Disconnect() // no connection outlives the pause
	return nil
}

// Usage implements driver.Meter. What processors did is not known.
func (in *Instance) Usage(ctx context.Context) (sandbox.Usage, error) {
	return hosted.Usage(ctx, in.Instance, in.inside.run)
}
