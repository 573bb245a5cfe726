package workspaces

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
	"github.com/atoll-run/atoll/sandbox/durable"
)

// EnterWorkspace returns a workspace of any tenant, and the context for requests
// that carry the token of the workspace, which may only use its files. The caller
// checks the token. The token has the rights of the key that it was given to,
// and ends with that key.
func (s *Service) EnterWorkspace(ctx context.Context, id, keyID string) (context.Context, durable.Workspace, error) {
	var who key.Principal
	w, err := store.Read(ctx, s.Store, func(tx *store.Tx) (store.Workspace, error) {
		w, err := tx.Operator().WorkspaceByID(ctx, id)
		if err == nil {
			who, err = s.access.Find(ctx, tx, w.Tenant, keyID)
		}
		return w, err
	})
	if err != nil {
		return ctx, w.Workspace, core.Named(ops.WorkspaceEnter, err)
	}
	return s.access.KeepAlive(ctx, who.Files(w.ID), w.Tenant, keyID), w.Workspace, nil
}

// ReadWorkspace calls do with the working directory of a workspace: what its
// sandboxes see now.
func (s *Service) ReadWorkspace(ctx context.Context, name string, do func(*os.Root) error) error {
	return s.inWorkspace(ctx, ops.WorkspaceRead, name, do)
}

// WriteWorkspace is ReadWorkspace for a function that changes files. A version
// with the changes is created soon after.
func (s *Service) WriteWorkspace(ctx context.Context, name string, do func(*os.Root) error) error {
	return s.inWorkspace(ctx, ops.WorkspaceWrite, name, do)
}

func (s *Service) inWorkspace(ctx context.Context, op ops.Op, name string, do func(*os.Root) error) error {
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	return s.onWorkspace(ctx, op, name, func(ctx context.Context, row store.Workspace, w *workspace.Workspace) error {
		if who.Workspace != "" && who.Workspace != row.ID {
			return &sandbox.Error{Code: sandbox.CodeDenied, Subject: name, Message: "the token belongs to another workspace"}
		}
		attached, err := s.attachments(ctx, row)
		if err != nil {
			return err
		}
		for _, a := range attached {
			switch {
			case a.Mode == sandbox.WorkspaceRead:
			case a.Node != s.Node:
				return &sandbox.Error{
					Code: sandbox.CodeUnavailable, Subject: name, Message: "the workspace is in use on the node " + a.Node, Hint: "send the request to the daemon of that node",
				}
			case a.Bridge != store.Mounted && op == ops.WorkspaceWrite:
				return &sandbox.Error{
					Code: sandbox.CodeConflict, Subject: name, Message: "the sandbox " + string(a.Sandbox) + " uses a copy of the workspace",
					Hint: "write to the sandbox, or remove it first",
				}
			}
		}
		dir, err := s.trees.Checkout(ctx, w)
		if err != nil {
			return err
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			return err
		}
		err = errors.Join(do(root), root.Close())
		if op == ops.WorkspaceWrite {
			s.persistSoon(row)
		}
		return err
	})
}

// persistPause is the delay during which changes are collected for one version.
const persistPause = time.Second

// pending are the workspaces waiting for persistPause.
type pending struct {
	mu      sync.Mutex
	waiting map[string]bool // by id
}

func (w *pending) begin(id string) (first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting == nil {
		w.waiting = map[string]bool{}
	}
	first = !w.waiting[id]
	w.waiting[id] = true
	return first
}

func (w *pending) end(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, id)
}

// persistSoon creates a version of files that were written through the API. If
// the daemon ends before that, the next version contains them.
func (s *Service) persistSoon(row store.Workspace) {
	if !s.pending.begin(row.ID) {
		return
	}
	s.Go(func() {
		pause := time.NewTimer(persistPause)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-s.Life.Done():
		}
		s.pending.end(row.ID) // later changes belong to the next version
		ctx, cancel := context.WithTimeout(s.Life, persistTimeout)
		defer cancel()
		if ctx.Err() != nil {
			return
		}
		s.Report(ctx, s.persistNow(ctx, row.ID))
	})
}

// persistNow creates a version of a workspace, unless a sandbox is writing to
// it. It ignores a removed workspace.
func (s *Service) persistNow(ctx context.Context, id string) error {
	release, err := s.locks.Take(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	row, err := store.Read(ctx, s.Store, func(tx *store.Tx) (store.Workspace, error) { return tx.Operator().WorkspaceByID(ctx, id) })
	if sandbox.CodeOf(err) == sandbox.CodeNotFound || row.Removing {
		return nil
	}
	if err != nil {
		return err
	}
	attached, err := s.attachments(ctx, row)
	if err != nil {
		return err
	}
	for _, a := range attached {
		if a.Mode != sandbox.WorkspaceRead {
			return nil // it is persisted when the sandbox ends
		}
	}
	w, err := s.trees.Open(ctx, row.ID, row.Encrypted)
	if err == nil {
		_, err = s.persist(ctx, row, w, "files were written from outside", true)
	}
	return err
}
