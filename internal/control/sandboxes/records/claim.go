package records

import (
	"context"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Claim makes a sandbox on a node one of this daemon, if the daemon that had it
// has ended: every daemon with the database reaches its nodes. A sandbox with
// workspaces is not claimed, because their files are with its daemon.
func (s *Records) Claim(ctx context.Context, b *store.Sandbox) (bool, error) {
	if !s.Providers.OnNode(b.Provider) || len(b.Spec.Workspaces) > 0 || b.State == sandbox.Gone {
		return false, nil
	}
	now, err := store.Write(ctx, s.Core.Store, func(tx *store.Tx) (store.Sandbox, error) {
		if err := tx.Operator().Claim(ctx, b.ID, b.Node, s.Core.Node, core.StaleAfter); err != nil {
			return store.Sandbox{}, err
		}
		return tx.Sandboxes().Get(ctx, b.Tenant, b.ID)
	})
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeConflict: // its daemon lives, or another one was faster
		return false, nil
	case err != nil:
		return false, err
	}
	s.Core.Logger.InfoContext(ctx, "the daemon of a sandbox has ended; this one has it now", "sandbox", b.ID, "daemon", b.Node)
	*b = now
	s.Recheck.Soon() // its daemon may have ended in the middle of an operation
	return true, nil
}
