package islo

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

func (p *Provider) instance(id sandbox.ID, boxID, name string, ends time.Time) *Instance {
	in := &inside{api: p.api, p: p, id: id, name: name}
	return &Instance{Instance: p.Instance(id, boxID, in, ends), p: p, inside: in}
}

// Resume implements driver.Resumer. Only the service pauses: it drops the
// connections of a paused sandbox, which driver.Pauser does not allow. A
// stopped sandbox has its files but no processes.
func (in *Instance) Resume(ctx context.Context) error {
	if sleeps, err := in.Sleeps(ctx); err != nil || !sleeps {
		return err
	}
	if err := in.p.awake(ctx, in.ID(), in.inside.name); err != nil {
		return in.Explain(ctx, err)
	}
	in.Disconnect() // a pause ends all connections
	return nil
}
