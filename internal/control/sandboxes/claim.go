package sandboxes

import (
	"context"
	"errors"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// claim makes a sandbox on a node one of this daemon, if the daemon that had it
// has ended: every daemon with the database reaches its nodes. A sandbox with
// workspaces is not claimed, because their files are with its daemon.
func (s *records) claim(ctx context.Context, b *store.Sandbox) (bool, error) {
	if !s.Providers.OnNode(b.Provider) || len(b.Spec.Workspaces) > 0 || b.State == sandbox.Gone {
		return false, nil
	}
	now, err := store.Write(ctx, s.Store, func(tx *store.Tx) (store.Sandbox, error) {
		if err := tx.Operator().Claim(ctx, b.ID, b.Node, s.Node, core.StaleAfter); err != nil {
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
	s.Logger.InfoContext(ctx, "the daemon of a sandbox has ended; this one has it now", "sandbox", b.ID, "daemon", b.Node)
	*b = now
	s.doubt() // its daemon may have ended in the middle of an operation
	return true, nil
}

// abandonedAfter is how long a daemon may be away before its sandboxes on nodes
// are claimed that nobody asks for.
const abandonedAfter = 5 * time.Minute

// ClaimAbandoned claims the sandboxes on nodes of daemons that have ended and do
// not come back, so that their lifetimes end and their sessions are saved. silent
// has since when each daemon was found ended; the caller keeps it.
func (s *reconciler) ClaimAbandoned(ctx context.Context, silent map[string]time.Time) error {
	all, err := store.Read(ctx, s.Store, func(tx *store.Tx) ([]store.Node, error) { return tx.Operator().Nodes(ctx) })
	if err != nil {
		return err
	}
	now := s.Store.Now()
	var failed []error
	for _, d := range all {
		if d.ID == s.Node || now.Sub(d.Heartbeat) < core.StaleAfter {
			delete(silent, d.ID)
			continue
		}
		if _, known := silent[d.ID]; !known {
			silent[d.ID] = now
		}
		if now.Sub(silent[d.ID]) >= abandonedAfter {
			failed = append(failed, s.claimAll(ctx, d.ID))
			delete(silent, d.ID) // what could not be claimed is tried again later
		}
	}
	return errors.Join(failed...)
}

// claimAll claims what a daemon had.
func (s *reconciler) claimAll(ctx context.Context, daemon string) error {
	all, err := s.recorded(ctx, daemon)
	failed := []error{err}
	for i := range all {
		_, err := s.claim(ctx, &all[i])
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// takes refuses a new sandbox on a node that takes none. What this daemon
// remembers of the node may be out of date.
func (s *creator) takes(ctx context.Context, tx *store.Tx, provider string) error {
	if !s.Providers.OnNode(provider) {
		return nil
	}
	return tx.Operator().NodeTakes(ctx, provider)
}
