package plane

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/workspace"
	"github.com/atoll-run/atoll/sandbox"
)

// EnterWorkspace returns what is recorded of a workspace of any tenant, and the
// context in which whoever bears its own token touches its files, and nothing
// else. The caller checks the token.
func (p *Plane) EnterWorkspace(ctx context.Context, id string) (context.Context, store.Workspace, error) {
	const op = ops.WorkspaceEnter
	var tenant store.Tenant
	w, err := store.Read(ctx, p.Store, func(tx *store.Tx) (store.Workspace, error) {
		w, err := tx.Operator().WorkspaceByID(ctx, id)
		if err == nil {
			tenant, err = tx.Tenant(ctx, w.Tenant)
		}
		return w, err
	})
	switch {
	case err != nil:
		return ctx, w, core.Named(op, err)
	case !tenant.Disabled.IsZero():
		return ctx, w, &sandbox.Error{Code: sandbox.CodeUnauthorized, Op: string(op), Subject: id, Message: "the tenant is disabled"}
	}
	return p.actAs(ctx, key.Holder(w.Tenant, w.ID), standing{tenant: w.Tenant}), w, nil
}

// ReadWorkspace calls do with the directory of a workspace, as its sandboxes
// see it now.
func (p *Plane) ReadWorkspace(ctx context.Context, name string, do func(*os.Root) error) error {
	return p.inWorkspace(ctx, ops.WorkspaceRead, name, do)
}

// WriteWorkspace is ReadWorkspace for whoever changes files. They become a
// version soon after.
func (p *Plane) WriteWorkspace(ctx context.Context, name string, do func(*os.Root) error) error {
	return p.inWorkspace(ctx, ops.WorkspaceWrite, name, do)
}

func (p *Plane) inWorkspace(ctx context.Context, op ops.Op, name string, do func(*os.Root) error) error {
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	return p.onWorkspace(ctx, op, name, func(ctx context.Context, row store.Workspace, w *workspace.Workspace) error {
		if who.Workspace != "" && who.Workspace != row.ID {
			return &sandbox.Error{Code: sandbox.CodeDenied, Subject: name, Message: "the token is of another workspace"}
		}
		attached, err := p.attachments(ctx, row)
		if err != nil {
			return err
		}
		for _, a := range attached {
			if a.Mode != sandbox.WorkspaceRead && a.Node != p.Node {
				return &sandbox.Error{
					Code: sandbox.CodeUnavailable, Subject: name, Message: "the workspace is in use on the node " + a.Node, Hint: "ask the daemon of that node",
				}
			}
		}
		dir, err := p.cfg.Workspaces.Checkout(ctx, w)
		if err != nil {
			return err
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			return err
		}
		err = errors.Join(do(root), root.Close())
		if op == ops.WorkspaceWrite {
			p.persistSoon(row)
		}
		return err
	})
}

// persistPause is how long changes are collected before they become a version.
const persistPause = time.Second

// soon are the workspaces that are persisted in a moment.
type soon struct {
	mu      sync.Mutex
	waiting map[string]bool // by id
}

func (s *soon) begin(id string) (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == nil {
		s.waiting = map[string]bool{}
	}
	first = !s.waiting[id]
	s.waiting[id] = true
	return first
}

func (s *soon) end(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, id)
}

// persistSoon makes a version of what was written outside of sandboxes. If the
// daemon ends before, the files are where they are and the next version has
// them.
func (p *Plane) persistSoon(row store.Workspace) {
	if !p.soon.begin(row.ID) {
		return
	}
	p.Go(func() {
		pause := time.NewTimer(persistPause)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-p.Life.Done():
		}
		p.soon.end(row.ID) // what is written from now on is another version's
		ctx, cancel := context.WithTimeout(p.Life, persistTimeout)
		defer cancel()
		if ctx.Err() != nil {
			return
		}
		p.Report(ctx, p.persistNow(ctx, row.ID))
	})
}

// persistNow makes a version of a workspace that no sandbox changes. It may have
// been removed meanwhile.
func (p *Plane) persistNow(ctx context.Context, id string) error {
	release, err := p.workspaces.Take(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	row, err := store.Read(ctx, p.Store, func(tx *store.Tx) (store.Workspace, error) { return tx.Operator().WorkspaceByID(ctx, id) })
	if sandbox.CodeOf(err) == sandbox.CodeNotFound || row.Removing {
		return nil
	}
	if err != nil {
		return err
	}
	attached, err := p.attachments(ctx, row)
	if err != nil {
		return err
	}
	for _, a := range attached {
		if a.Mode != sandbox.WorkspaceRead {
			return nil // it is persisted when the sandbox ends
		}
	}
	w, err := p.cfg.Workspaces.Open(ctx, row.ID, row.Encrypted)
	if err == nil {
		_, err = p.persist(ctx, row, w, "files were written from outside", true)
	}
	return err
}
