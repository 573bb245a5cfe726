package access

import (
	"context"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Entrance admits requests with the token of a sandbox. The caller fills in the
// fields.
type Entrance struct {
	Core    *core.Core
	Records *records.Records
	Tenants Tenants
	// Removing reports whether a sandbox is being removed now.
	Removing func(sandbox.ID) bool
}

// Tenants knows who may still use a token. Package tenants implements it.
type Tenants interface {
	// Valid refuses keys that have ended, and disabled tenants. Empty: no key.
	Valid(ctx context.Context, tx *store.Tx, tenant, keyID string) error
	Find(ctx context.Context, tx *store.Tx, tenant, keyID string) (key.Principal, error)
	Accepted(ctx context.Context, tx *store.Tx, tenant string) ([]string, error)
	KeepAlive(ctx context.Context, who key.Principal, tenant, keyID string) context.Context
}

// Enter returns the record of a sandbox of any tenant, and the context for
// requests with a token of that sandbox, which can only access this sandbox. The
// caller verifies the token. The token has the rights of the key that it was
// given to, and ends with that key. If keyID is empty, the request is the
// daemon's own. For a sandbox that is being removed, Enter returns CodeGone.
func (s *Entrance) Enter(ctx context.Context, id sandbox.ID, keyID string) (context.Context, sandbox.Sandbox, error) {
	removing := s.Removing(id) // before the record is read, which says so once this no longer does
	var who key.Principal
	b, err := s.inside(ctx, id, func(tx *store.Tx, tenant string) (err error) {
		who, err = s.enters(ctx, tx, tenant, id, keyID)
		return err
	})
	switch {
	case err != nil:
		return ctx, b.Info(), err
	case removing:
		return ctx, b.Info(), &sandbox.Error{Code: sandbox.CodeGone, Op: "sandbox.enter", Subject: string(id), Message: "the sandbox is being removed"}
	}
	return s.Tenants.KeepAlive(ctx, who, b.Tenant, keyID), b.Info(), nil
}

// enters returns the principal of a request inside a sandbox.
func (s *Entrance) enters(ctx context.Context, tx *store.Tx, tenant string, id sandbox.ID, keyID string) (key.Principal, error) {
	if keyID == "" {
		return key.Bearer(tenant, id), s.Tenants.Valid(ctx, tx, tenant, "")
	}
	who, err := s.Tenants.Find(ctx, tx, tenant, keyID)
	return who.Within(id), err
}

// Keys returns the public parts of the keys with which tokens of a sandbox of
// any tenant are valid.
func (s *Entrance) Keys(ctx context.Context, id sandbox.ID) ([]string, error) {
	var ids []string
	_, err := s.inside(ctx, id, func(tx *store.Tx, tenant string) (err error) {
		ids, err = s.Tenants.Accepted(ctx, tx, tenant)
		return err
	})
	return ids, err
}

// inside reads the sandbox of any tenant, for requests from inside it, and calls do in
// the same transaction. Its errors name the operation.
func (s *Entrance) inside(ctx context.Context, id sandbox.ID, do func(tx *store.Tx, tenant string) error) (store.Sandbox, error) {
	b, err := store.Read(ctx, s.Core.Store, func(tx *store.Tx) (store.Sandbox, error) {
		b, err := tx.Operator().Sandbox(ctx, id)
		if err == nil {
			err = do(tx, b.Tenant)
		}
		return b, err
	})
	return b, core.Named(ops.SandboxEnter, err)
}

// Mounted returns the workspaces of a sandbox of any tenant, and their mount
// points. It is for requests with that sandbox's own token.
func (s *Entrance) Mounted(ctx context.Context, id sandbox.ID) ([]sandbox.WorkspaceMount, error) {
	b, err := s.inside(ctx, id, func(*store.Tx, string) error { return nil })
	return b.Spec.Workspaces, err
}

// Live returns the running sandboxes of all tenants on this node. It is for
// finding the sandbox of a token; the result must not be shown to callers.
func (s *Entrance) Live(ctx context.Context) ([]sandbox.ID, error) {
	all, err := s.Records.Recorded(ctx)
	ids := make([]sandbox.ID, 0, len(all))
	for _, b := range all {
		if b.State == sandbox.Running {
			ids = append(ids, b.ID)
		}
	}
	return ids, err
}
