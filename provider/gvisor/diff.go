package gvisor

import (
	"context"
	"io"

	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/gvisor/layer"
)

var _ driver.Differ = (*Instance)(nil)

// Diff writes the changes of the sandbox relative to its image. See
// driver.Differ. It leaves out files that the network link added.
func (in *Instance) Diff(ctx context.Context, w io.Writer) error {
	return in.explain(withCause(ctx, in.locked(ctx, func(ctx context.Context, rest string) error {
		if rest != awake && rest != paused {
			if err := in.settleRest(ctx); err != nil {
				return err
			}
			rest = awake
		}
		return in.hold(ctx, rest, false, func(conn *urpc.Client) error {
			return withChanges(conn, in.stateDir, func(s layer.Source) error { return s.Export(giveUp{ctx, w}) })
		})
	})))
}

// giveUp is a writer that fails when its context has ended.
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
