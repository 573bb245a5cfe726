package gvisor

import (
	"context"
	"io"

	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/atoll-run/atoll/driver"
)

var _ driver.Differ = (*Instance)(nil)

// Diff writes what the sandbox changed of its image. See driver.Differ. Files
// that its network link added are not included.
func (in *Instance) Diff(ctx context.Context, w io.Writer) error {
	return in.explain(withCause(ctx, in.locked(ctx, func(ctx context.Context, rest string) error {
		if rest != awake && rest != paused {
			if err := in.settleRest(ctx); err != nil {
				return err
			}
			rest = awake
		}
		return in.hold(ctx, rest, false, func(conn *urpc.Client) error {
			return layerOf(conn, in.box, giveUp{ctx, w}, whole, true)
		})
	})))
}

// giveUp is a writer that fails when nobody waits for what is written.
type giveUp struct {
	ctx context.Context
	w   io.Writer
}

func (g giveUp) Write(b []byte) (int, error) {
	if err := g.ctx.Err(); err != nil {
		return 0, err
	}
	return g.w.Write(b)
}
