package islo

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// Instance is a sandbox of the service, with a guest in it that does what is
// done inside. Its methods may be called concurrently.
type Instance struct {
	*hosted.Instance
	p      *Provider
	inside *inside
}

func (p *Provider) instance(id sandbox.ID, boxID, name string, ends time.Time) *Instance {
	in := &inside{api: p.api, p: p, id: id, name: name}
	return &Instance{Instance: p.Instance(id, boxID, in, ends), p: p, inside: in}
}

// Resume implements driver.Resumer. Pausing is left to the service: it cuts the
// connections of a sandbox that it pauses, which driver.Pauser does not allow.
// One that was stopped has its files, and no processes.
func (in *Instance) Resume(ctx context.Context) error {
	if sleeps, err := in.Sleeps(ctx); err != nil || !sleeps {
		return err
	}
	if err := in.p.awake(ctx, in.ID(), in.inside.name); err != nil {
		return in.Explain(ctx, err)
	}
	in.Disconnect() // no connection outlives the pause
	return nil
}
