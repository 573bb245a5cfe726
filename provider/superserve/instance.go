package superserve

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// Instance is a sandbox of the service. A guest inside runs commands and
// accesses files. Its methods may be called concurrently.
type Instance struct {
	*hosted.Instance
	p      *Provider
	inside *inside
}

func (p *Provider) instance(id sandbox.ID, boxID string, ends time.Time) *Instance {
	in := &inside{p: p, id: boxID, name: id, single: make(chan struct{}, 1)}
	return &Instance{Instance: p.Instance(id, boxID, in, ends), p: p, inside: in}
}

// Resume implements driver.Resumer. Only the service pauses: it drops the
// connections of a paused sandbox, which driver.Pauser does not allow.
func (in *Instance) Resume(ctx context.Context) error {
	if sleeps, err := in.Sleeps(ctx); err != nil || !sleeps {
		return err
	}
	b, err := in.p.awake(ctx, in.ID(), in.Box, true)
	if err != nil {
		return in.Explain(ctx, err)
	}
	in.inside.set(b)
	in.Disconnect() // a pause ends all connections
	return nil
}
