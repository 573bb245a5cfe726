// Package workspaces manages durable directories and attaches them to
// sandboxes. A workspace has versions in the blob store, or is a bucket of an
// S3 service.
package workspaces

import (
	"cmp"
	"context"
	"crypto/rand"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/keyed"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/workspace"
	"github.com/atoll-run/atoll/internal/workspace/worktree"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Config configures a Service. Its owner closes the fields.
type Config struct {
	// Trees stores versions and working directories. Nil: there are no workspaces.
	Trees *worktree.Store
	// Buckets mounts buckets. Nil: there are none.
	Buckets Buckets
	// Sandboxes and Access must be set.
	Sandboxes Sandboxes
	Access    Access
	// Every is the interval at which copies that sandboxes write to are saved.
	// Zero: 5 minutes.
	Every time.Duration
}

// Sandboxes provides access to sandboxes.
type Sandboxes interface {
	// Creating reports whether this process is creating a sandbox.
	Creating(id sandbox.ID) bool
	// RecheckSoon requests a reconciliation soon.
	RecheckSoon()
	// Running returns an unguarded handle on a sandbox of any tenant. It is nil if
	// the sandbox is known not to run.
	Running(ctx context.Context, id sandbox.ID) (*engine.Sandbox, error)
}

// Access keeps requests alive while their credentials are valid.
type Access interface {
	// KeepAlive returns a context for requests of who. It ends when the key with that
	// ID is revoked, or the tenant is disabled. Without a key, keyID is empty.
	KeepAlive(ctx context.Context, who key.Principal, tenant, keyID string) context.Context
	// Find returns the principal of a key, or CodeUnauthorized if it has ended.
	Find(ctx context.Context, tx *store.Tx, tenant, keyID string) (key.Principal, error)
}

// Service manages the workspaces of all tenants. It is safe for concurrent use.
type Service struct {
	*core.Core
	trees     *worktree.Store
	buckets   Buckets
	sandboxes Sandboxes
	access    Access
	every     time.Duration
	locks     keyed.Locks[string] // by workspace id
	pending   pending
}

// New returns a Service. It ends with the Core.
func New(c *core.Core, cfg Config) *Service {
	return &Service{Core: c, trees: cfg.Trees, buckets: cfg.Buckets, sandboxes: cfg.Sandboxes, access: cfg.Access, every: cmp.Or(cfg.Every, 5*time.Minute)}
}

// finalizeTimeout limits a write to the store after the caller has gone.
const finalizeTimeout = 10 * time.Second

// enabled returns the error of a daemon without a store for workspaces.
func (s *Service) enabled() error {
	if s.trees != nil {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeUnsupported, Subject: "workspace", Message: "this daemon has no workspaces"}
}

// onWorkspace calls do with a workspace of the caller's tenant, and holds its
// lock.
func (s *Service) onWorkspace(ctx context.Context, op ops.Op, name string, do func(context.Context, store.Workspace, *workspace.Workspace) error) (err error) {
	defer core.Name(op, &err)
	if err := sandbox.ValidateName(name); err != nil {
		return err
	}
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	return s.Do(ctx, op, guard.Subject{Subject: name}, func(ctx context.Context) error {
		if err := s.enabled(); err != nil {
			return err
		}
		row, err := store.Read(ctx, s.Store, func(tx *store.Tx) (store.Workspace, error) { return tx.Workspaces().Get(ctx, who.Tenant, name) })
		if err != nil {
			return err
		}
		if row.Removing {
			return &sandbox.Error{Code: sandbox.CodeConflict, Subject: name, Message: "the workspace is being removed", Hint: "remove it again to complete the removal"}
		}
		if row.Bucket != "" {
			return s.onBucket(ctx, op, row, do)
		}
		return s.withWorkspace(ctx, row, func(w *workspace.Workspace) error { return do(ctx, row, w) })
	})
}

// withWorkspace opens and locks a workspace. For a bucket, do gets nil.
func (s *Service) withWorkspace(ctx context.Context, row store.Workspace, do func(*workspace.Workspace) error) error {
	release, err := s.locks.Take(ctx, row.ID)
	if err != nil {
		return err
	}
	defer release()
	if row.Bucket != "" {
		return do(nil)
	}
	w, err := s.trees.Open(ctx, row.ID, row.Encrypted)
	if err != nil {
		return err
	}
	return do(w)
}

// CreateWorkspace creates an empty workspace.
func (s *Service) CreateWorkspace(ctx context.Context, n durable.NewWorkspace) (_ durable.Workspace, err error) {
	const op = ops.WorkspaceCreate
	defer core.Name(op, &err)
	who, err := guard.Principal(ctx)
	if err != nil {
		return durable.Workspace{}, err
	}
	if err := sandbox.ValidateName(n.Name); err != nil {
		return durable.Workspace{}, err
	}
	if n.MaxBytes < 0 {
		return durable.Workspace{}, &sandbox.Error{Code: sandbox.CodeInvalid, Op: string(op), Subject: "maxBytes", Message: "negative"}
	}
	row := store.Workspace{
		Tenant: who.Tenant,
		Workspace: durable.Workspace{
			ID: "ws-" + strings.ToLower(rand.Text()[:16]), Name: n.Name, Encrypted: n.Encrypted, MaxBytes: n.MaxBytes, Bucket: n.Bucket,
		},
	}
	err = s.Do(ctx, op, guard.Subject{Subject: n.Name}, func(ctx context.Context) error {
		if err := s.enabled(); err != nil {
			return err
		}
		if err := s.checkBucket(row); err != nil {
			return err
		}
		if err := s.Store.Update(ctx, func(tx *store.Tx) error { return tx.Workspaces().Add(ctx, row) }); err != nil {
			return err
		}
		if err := s.createTree(ctx, row); err != nil {
			return err
		}
		row, err = store.Read(ctx, s.Store, func(tx *store.Tx) (store.Workspace, error) { return tx.Workspaces().Get(ctx, who.Tenant, n.Name) })
		return err
	})
	return withAttached(row, nil), err
}

// Ensure creates missing workspaces of a new sandbox, if the request asks for
// that.
func (s *Service) Ensure(ctx context.Context, mounts []sandbox.WorkspaceMount) error {
	for _, m := range mounts {
		if !m.Create {
			continue
		}
		_, err := s.CreateWorkspace(ctx, durable.NewWorkspace{Name: m.Name})
		if err != nil && sandbox.CodeOf(err) != sandbox.CodeAlreadyExists {
			return err
		}
	}
	return nil
}

// createTree creates the version store of a recorded workspace. If that fails,
// it removes the record.
func (s *Service) createTree(ctx context.Context, row store.Workspace) error {
	if row.Bucket != "" {
		return nil
	}
	err := s.trees.Create(ctx, row.ID, row.Encrypted)
	if err != nil {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalizeTimeout)
		defer cancel()
		s.Report(ctx, s.Store.Update(late, func(tx *store.Tx) error { return tx.Workspaces().Remove(late, row.ID) }))
	}
	return err
}

// Workspaces lists the workspaces of the caller's tenant by name.
func (s *Service) Workspaces(ctx context.Context) ([]durable.Workspace, error) {
	return core.Read(ctx, s.Core, ops.WorkspaceList, "", func(tx *store.Tx, tenant string) (all []durable.Workspace, err error) {
		rows, err := tx.Workspaces().List(ctx, tenant)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			attached, err := tx.Workspaces().Attachments(ctx, row.ID)
			if err != nil {
				return nil, err
			}
			all = append(all, withAttached(row, attached))
		}
		return all, nil
	})
}

// withAttached returns the public description of a workspace.
func withAttached(row store.Workspace, attached []store.Attachment) durable.Workspace {
	out := row.Workspace
	out.Attached = make([]durable.Attachment, len(attached))
	for i, a := range attached {
		out.Attached[i] = a.Attachment
	}
	return out
}

// Workspace describes a workspace of the caller's tenant.
func (s *Service) Workspace(ctx context.Context, name string) (out durable.Workspace, err error) {
	err = s.onWorkspace(ctx, ops.WorkspaceGet, name, func(ctx context.Context, row store.Workspace, w *workspace.Workspace) error {
		attached, err := s.attachments(ctx, row)
		if err != nil {
			return err
		}
		out = withAttached(row, attached)
		if w == nil {
			return nil
		}
		latest, err := w.Latest(ctx)
		if err == nil && latest.Number > 0 {
			out.Latest = &latest.WorkspaceVersion
		}
		return err
	})
	return out, err
}

func (s *Service) attachments(ctx context.Context, row store.Workspace) ([]store.Attachment, error) {
	return store.Read(ctx, s.Store, func(tx *store.Tx) ([]store.Attachment, error) { return tx.Workspaces().Attachments(ctx, row.ID) })
}

// RemoveWorkspace removes a workspace with all its versions. It must not be
// attached. The content of a bucket is kept.
func (s *Service) RemoveWorkspace(ctx context.Context, name string) error {
	const op = ops.WorkspaceRemove
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	return s.Do(ctx, op, guard.Subject{Subject: name}, func(ctx context.Context) error {
		if err := s.enabled(); err != nil {
			return err
		}
		row, err := store.Write(ctx, s.Store, func(tx *store.Tx) (store.Workspace, error) {
			row, err := tx.Workspaces().Lock(ctx, who.Tenant, name)
			if err != nil {
				return row, err
			}
			attached, err := tx.Workspaces().Attachments(ctx, row.ID)
			if err == nil && len(attached) > 0 {
				err = &sandbox.Error{
					Code: sandbox.CodeConflict, Subject: name, Message: "the workspace is attached to the sandbox " + string(attached[0].Sandbox),
					Hint: "remove that sandbox first",
				}
			}
			if err != nil {
				return row, err
			}
			row.Removing = true
			return row, tx.Workspaces().Set(ctx, row)
		})
		if err != nil {
			return err
		}
		release, err := s.locks.Take(ctx, row.ID)
		if err != nil {
			return err
		}
		defer release()
		if row.Bucket != "" {
			err = s.unmountBucket(row)
		} else {
			err = s.trees.Remove(ctx, row.ID)
		}
		if err != nil {
			return err
		}
		return s.Store.Update(ctx, func(tx *store.Tx) error { return tx.Workspaces().Remove(ctx, row.ID) })
	})
}
