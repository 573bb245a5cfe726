package boxlite

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// Instance is a box of the server, with a guest in it that does what is done
// inside. Its methods may be called concurrently.
type Instance struct {
	*hosted.Instance
	p      *Provider
	inside *inside
}

func (p *Provider) instance(id sandbox.ID, boxID string, ends time.Time) *Instance {
	in := &inside{p: p, id: boxID, name: id}
	return &Instance{Instance: p.Instance(id, boxID, in, ends), p: p, inside: in}
}

// Resume implements driver.Resumer: it starts the very box, and makes none. The
// files are there, and the processes are not. Atoll itself stops no box: it
// would end what runs.
func (in *Instance) Resume(ctx context.Context) error {
	if sleeps, err := in.Sleeps(ctx); err != nil || !sleeps {
		return err
	}
	in.Disconnect() // no connection outlives the stop
	if err := in.p.start(ctx, in.ID(), in.Box); err != nil {
		return in.Explain(ctx, err)
	}
	_, err := in.Reach(ctx)
	return err
}

// digest stands for what may pass, where there is not room for all of it.
func (n network) digest() string {
	text, _ := json.Marshal(n) // it is text and lists of text
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
