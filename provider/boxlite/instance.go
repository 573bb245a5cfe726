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

// Instance is a box of the server. A guest inside runs commands and accesses
// files. Its methods may be called concurrently.
type Instance struct {
	*hosted.Instance
	p      *Provider
	inside *inside
}

func (p *Provider) instance(id sandbox.ID, boxID string, ends time.Time) *Instance {
	in := &inside{p: p, id: boxID, name: id}
	return &Instance{Instance: p.Instance(id, boxID, in, ends), p: p, inside: in}
}

// Resume implements driver.Resumer: it starts the same box, with its files but
// without its processes. Atoll never stops a box to pause it, because that
// would end its processes.
func (in *Instance) Resume(ctx context.Context) error {
	if sleeps, err := in.Sleeps(ctx); err != nil || !sleeps {
		return err
	}
	in.Disconnect() // a stop ends all connections
	if err := in.p.start(ctx, in.ID(), in.Box); err != nil {
		return in.Explain(ctx, err)
	}
	_, err := in.Reach(ctx)
	return err
}

// digest is a short form of the network settings for places with limited room.
func (n network) digest() string {
	text, _ := json.Marshal(n) // only strings and lists of strings
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
