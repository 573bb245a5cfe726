package sessions

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/internal/session"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// quietTime is how long a move waits for requests in progress.
const quietTime = 15 * time.Second

// mover implements session.Mover for a session.
type mover struct {
	tenantSandboxes
	move    *movement
	present *presences
	trees   trees
}

// Quiet implements session.Mover.
func (m mover) Quiet(ctx context.Context, l lease.Lease) error {
	at := place{m.tenant, l.Group}
	limit := time.NewTimer(quietTime)
	defer limit.Stop()
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	for {
		busy, err := m.present.busy(ctx, at)
		if err != nil || !busy {
			return err
		}
		select {
		case <-m.move.quiet:
		case <-look.C: // for requests of other daemons
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-limit.C:
			return &sandbox.Error{
				Code: sandbox.CodeConflict, Op: "session.swap", Subject: m.row.Name, Message: "commands or transfers are under way in the session",
				Hint: "end them, or start commands in the background; they do not go along",
			}
		}
	}
}

// SaveWorkspaces implements session.Mover.
func (m mover) SaveWorkspaces(ctx context.Context, sb session.Sandbox) (kept []durable.WorkspaceRef, err error) {
	m.sandboxes.Flush(ctx, sb.ID)
	for _, name := range m.saves() {
		version, err := m.workspaces.PersistWorkspace(ctx, name, "session "+m.row.Name+" moves")
		if sandbox.CodeOf(err) == sandbox.CodeUnsupported {
			continue // a bucket has what was written already
		}
		if err != nil {
			return nil, err
		}
		kept = append(kept, versionOf(name, version.Number))
	}
	return kept, nil
}

// Carry implements session.Mover.
func (m mover) Carry(ctx context.Context, from, to session.Sandbox) ([]string, error) {
	if carriesTree(m.row) {
		if err := m.trees.copyTree(ctx, from.ID, to.ID); err != nil {
			return nil, err
		}
	}
	return []string{durable.LostProcesses, durable.LostMemory, durable.LostFiles}, m.sandboxes.Reach(ctx, string(to.ID))
}
