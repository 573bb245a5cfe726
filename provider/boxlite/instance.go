package boxlite

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// Instance is a box of the server, with a guest in it that does what is done
// inside. Its methods may be called concurrently.
type Instance struct {
	*guestkit.Instance
	p      *Provider
	id     sandbox.ID
	inside *inside
}

func (p *Provider) instance(id sandbox.ID, boxID string, ends time.Time) *Instance {
	in := &inside{p: p, id: boxID, name: id}
	return &Instance{Instance: p.kit.Instance(id, machine{in}, ends), p: p, id: id, inside: in}
}

// machine is a box as the server knows it.
type machine struct{ *inside }

// Status implements guestkit.Machine. Evidence is the server's own word that it
// knows neither the id nor the name, and that it does not list the box.
func (m machine) Status(ctx context.Context) (guestkit.Status, error) {
	b, err := m.p.api.get(ctx, m.id)
	if missing(err) {
		if b, err = m.p.find(ctx, m.name); err == nil && b.ID != m.id {
			err = guestkit.Gone(m.name)
		}
	}
	if err == nil {
		err = m.p.api.usable(m.name, b)
	}
	if err != nil {
		return guestkit.Status{}, err
	}
	return guestkit.Status{State: stateOf(b.Status), Ends: m.p.boxes.Of(m.name, m.id).Ends}, nil
}

// Cause implements guestkit.Machine. The server does not say how a box ended.
func (m machine) Cause(ends time.Time) sandbox.Exit { return m.p.boxes.Cause(m.name, m.id, ends) }

// Destroy implements driver.Instance.
func (in *Instance) Destroy(ctx context.Context) error {
	return in.p.boxes.Destroy(ctx, in.Instance, in.inside.id, func() error { return in.p.erase(ctx, in.id, in.inside.id) })
}

// Resume implements driver.Resumer: it starts the very box, and makes none. The
// files are there, and the processes are not. Atoll itself stops no box: it
// would end what runs.
func (in *Instance) Resume(ctx context.Context) error {
	if sleeps, err := in.Sleeps(ctx); err != nil || !sleeps {
		return err
	}
	in.Disconnect() // no connection outlives the stop
	if err := in.p.api.start(ctx, in.id, in.inside.id); err != nil {
		return in.Explain(ctx, err)
	}
	_, err := in.Reach(ctx)
	return err
}

// Usage implements driver.Meter.
func (in *Instance) Usage(ctx context.Context) (sandbox.Usage, error) {
	return hosted.Usage(ctx, in.Instance, func(ctx context.Context, script string) (string, error) { return in.inside.run(ctx, script, nil) })
}

// digest stands for what may pass, where there is not room for all of it.
func (f flow) digest() string {
	text, _ := json.Marshal(f) // it is text and lists of text
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
