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

// State implements driver.StateTeller: the service pauses a sandbox when its
// time is over and it was told to, or when another client asks for it.
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

// Resume implements driver.Resumer. Pausing is left to the service: it cuts the
// connections of a sandbox that it pauses, which driver.Pauser does not allow.
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
	in.Disconnect() // no connection outlives the pause
	if r.Box != in.inside.id {
		return nil
	}
	r.Ends = ends
	return l.Write(r)
}
