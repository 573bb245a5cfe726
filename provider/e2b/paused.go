package e2b

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// statePaused is what the service calls a paused sandbox.
const statePaused = "paused"

func stateOf(b box) sandbox.State {
	if b.State == statePaused {
		return sandbox.Paused
	}
	return sandbox.Running
}

// State implements driver.StateTeller: the service can pause a sandbox at its
// timeout, and other clients can pause it.
func (p *Provider) State(ctx context.Context, id sandbox.ID) (sandbox.State, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	b, err := p.find(ctx, id)
	if err != nil {
		return "", err
	}
	return stateOf(b), nil
}

// Resume implements driver.Resumer. Only the service pauses: it drops the
// connections of a paused sandbox, which driver.Pauser does not allow.
func (in *Instance) Resume(ctx context.Context) error {
	if sleeps, err := in.Sleeps(ctx); err != nil || !sleeps {
		return err
	}
	l, err := in.p.boxes.Lock(ctx, string(in.id))
	if err != nil {
		return err
	}
	defer l.Unlock()
	r := l.Read()
	life := r.Life
	if r.Box != in.inside.id || life <= 0 {
		life = in.p.opts.Lifetime
	}
	if err := in.p.api.resume(ctx, in.inside.id, seconds(life)); err != nil {
		return in.Explain(ctx, err)
	}
	ends := time.Now().Add(life)
	in.SetEnds(ends)
	in.Disconnect() // a pause ends all connections
	if r.Box != in.inside.id {
		return nil
	}
	r.Ends = ends
	return l.Write(r)
}
