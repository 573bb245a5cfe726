package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/store"
)

// abandonedAfter is how long a daemon may be away before its sandboxes on nodes
// are claimed that nobody asks for.
const abandonedAfter = 5 * time.Minute

// ClaimAbandoned claims the sandboxes on nodes of daemons that have ended and do
// not come back, so that their lifetimes end and their sessions are saved. silent
// has since when each daemon was found ended; the caller keeps it.
func (s *Reconciler) ClaimAbandoned(ctx context.Context, silent map[string]time.Time) error {
	all, err := store.Read(ctx, s.Core.Store, func(tx *store.Tx) ([]store.Node, error) { return tx.Operator().Nodes(ctx) })
	if err != nil {
		return err
	}
	now := s.Core.Store.Now()
	var failed []error
	for _, d := range all {
		if d.ID == s.Core.Node || now.Sub(d.Heartbeat) < core.StaleAfter {
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

// claimAll claims the sandboxes of a daemon that has ended.
func (s *Reconciler) claimAll(ctx context.Context, daemon string) error {
	all, err := s.Records.RecordedBy(ctx, daemon)
	failed := []error{err}
	for i := range all {
		_, err := s.Records.Claim(ctx, &all[i])
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}
