// Package records finds, locks and changes the records of sandboxes. All changes
// of a sandbox go through it: one operation at a time, recorded before it begins
// and after it ended.
package records

import (
	"context"
	"errors"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/inuse"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/keyed"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Records are the records of the sandboxes of one daemon. They are safe for
// concurrent use. The caller fills in the fields before the first request.
type Records struct {
	Core       *core.Core
	Providers  Providers
	Workspaces Workspaces
	Snapshots  Snapshots
	Secrets    Secrets
	Ports      Ports

	// Locks are held during operations, and Inflight are the sandboxes that this
	// process is creating.
	Locks    keyed.Locks[sandbox.ID]
	Inflight keyed.Inflight[sandbox.ID]
	Uses     inuse.Sandboxes
	// Recheck asks for a reconciliation, and LifetimeChanged for another look at
	// the next lifetime to end.
	Recheck         Recheck
	LifetimeChanged Signal
}

// Providers are the providers of this daemon. Package providers implements it.
type Providers interface {
	// Of returns the provider of a sandbox, and Attach a handle on the sandbox.
	Of(ctx context.Context, b *store.Sandbox) (*providers.Backend, error)
	Attach(ctx context.Context, b *store.Sandbox) (*engine.Sandbox, error)
	// Backend returns a provider by its name.
	Backend(ctx context.Context, name string) (*providers.Backend, error)
	// OnNode reports whether a provider is a node.
	OnNode(provider string) bool
}

// Workspaces are detached from sandboxes that are gone.
type Workspaces interface {
	DetachLater(id sandbox.ID, name string)
}

// Snapshots keeps data of sandboxes.
type Snapshots interface {
	ForgetEnvironment(ctx context.Context, id sandbox.ID)
	// Drop removes a snapshot. Empty: none.
	Drop(ctx context.Context, provider, id string)
}

// Secrets remembers which secrets the output of a sandbox may contain.
type Secrets interface {
	Forget(id sandbox.ID)
}

// Ports listens on the published ports of sandboxes.
type Ports interface {
	// Sync listens on those ports that the record of a sandbox has now.
	Sync(b *store.Sandbox)
}

// New returns Records without the other services.
func New(c *core.Core) *Records {
	return &Records{Core: c, Recheck: Recheck{urgent: NewSignal()}, LifetimeChanged: NewSignal()}
}

// Record reads a sandbox of a tenant by its id.
func (s *Records) Record(ctx context.Context, tenant string, id sandbox.ID) (store.Sandbox, error) {
	return store.Read(ctx, s.Core.Store, func(tx *store.Tx) (store.Sandbox, error) { return tx.Sandboxes().Get(ctx, tenant, id) })
}

// Find reads the sandbox of a tenant with the name or id ref. A name takes
// precedence. A sandbox found by id may be gone.
func (s *Records) Find(ctx context.Context, tenant, ref string) (store.Sandbox, error) {
	return store.Read(ctx, s.Core.Store, func(tx *store.Tx) (store.Sandbox, error) { return find(ctx, tx, tenant, ref) })
}

func find(ctx context.Context, tx *store.Tx, tenant, ref string) (store.Sandbox, error) {
	if err := sandbox.ValidateName(ref); err != nil {
		return store.Sandbox{}, err
	}
	return tx.Sandboxes().Lookup(ctx, tenant, ref)
}

// Get returns the record of a sandbox, by name or id.
func (s *Records) Get(ctx context.Context, ref string) (store.Sandbox, error) {
	return core.Read(ctx, s.Core, ops.SandboxGet, ref, func(tx *store.Tx, tenant string) (store.Sandbox, error) { return find(ctx, tx, tenant, ref) })
}

// Recorded returns the records of this node's sandboxes that are not gone.
func (s *Records) Recorded(ctx context.Context) ([]store.Sandbox, error) {
	return s.RecordedBy(ctx, s.Core.Node)
}

// RecordedBy returns the records of a daemon's sandboxes that are not gone.
func (s *Records) RecordedBy(ctx context.Context, daemon string) (all []store.Sandbox, err error) {
	const batch = 500
	for after := sandbox.ID(""); ; {
		part, err := store.Read(ctx, s.Core.Store, func(tx *store.Tx) ([]store.Sandbox, error) {
			return tx.Operator().Sandboxes(ctx, daemon, after, batch)
		})
		if err != nil {
			return nil, err
		}
		all = append(all, part...)
		if len(part) < batch {
			return all, nil
		}
		after = part[len(part)-1].ID
	}
}

// Attach asks the provider for a recorded sandbox. If it is proved to be gone,
// attach records that.
func (s *Records) Attach(ctx context.Context, b *store.Sandbox) (*engine.Sandbox, error) {
	if err := s.Here(ctx, b); err != nil {
		return nil, err
	}
	sb, err := s.Providers.Attach(ctx, b)
	if sandbox.CodeOf(err) == sandbox.CodeGone {
		s.Core.Report(ctx, s.Observe(ctx, b, Found{State: sandbox.Gone, Reason: "it is not there any more"}))
	}
	return sb, err
}

// AttachSettled is Attach for callers that do not hold the lock of the sandbox. If
// the sandbox is not there because an operation has ended it, AttachSettled waits
// for that operation, updates the record and returns neither a handle nor an
// error: what that operation records about the end must not be replaced by its
// absence.
func (s *Records) AttachSettled(ctx context.Context, b *store.Sandbox) (*engine.Sandbox, error) {
	if err := s.Here(ctx, b); err != nil {
		return nil, err
	}
	sb, err := s.Providers.Attach(ctx, b)
	if sandbox.CodeOf(err) != sandbox.CodeGone {
		return sb, err
	}
	now, err := s.Quiet(ctx, b)
	if err != nil {
		return nil, err
	}
	if now.Version == b.Version {
		return s.Attach(ctx, b) // no operation has ended it: record that it is gone
	}
	*b = now
	return nil, nil
}

// Here refuses a sandbox of another daemon that shares the store: its absence
// on this machine proves nothing. If that daemon has ended, and the sandbox is on
// a node, it becomes one of this daemon.
func (s *Records) Here(ctx context.Context, b *store.Sandbox) error {
	if b.Node == s.Core.Node {
		return nil
	}
	if claimed, err := s.Claim(ctx, b); err != nil || claimed {
		return err
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "sandbox.find", Subject: b.Name, Message: "another daemon has the sandbox: " + b.Node,
		Hint: "send the request to that daemon",
	}
}

// Running returns an unguarded handle on a sandbox of any tenant. It is nil if
// the sandbox is known not to run.
func (s *Records) Running(ctx context.Context, id sandbox.ID) (*engine.Sandbox, error) {
	b, err := store.Read(ctx, s.Core.Store, func(tx *store.Tx) (store.Sandbox, error) { return tx.Operator().Sandbox(ctx, id) })
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound:
		return nil, nil
	case err != nil:
		return nil, err
	case b.State != sandbox.Running && b.State != sandbox.Lost:
		return nil, nil
	}
	sb, err := s.Providers.Attach(ctx, &b)
	if sandbox.CodeOf(err) == sandbox.CodeGone {
		return nil, nil
	}
	return sb, err
}

// HasGateway reports whether the gateway enforces the network rules of a
// sandbox.
func (s *Records) HasGateway(ctx context.Context, b *store.Sandbox) (bool, error) {
	be, err := s.Providers.Of(ctx, b)
	if err != nil {
		return false, err
	}
	if user, ok := driver.As[driver.GatewayUser](be.Driver); ok {
		return user.UsesGateway(ctx, b.ID)
	}
	return be.HasNetwork(ctx), nil
}

// Intact asks the provider of a running sandbox of any tenant for its state,
// records it, and returns CodeConflict if the sandbox has failed.
func (s *Records) Intact(ctx context.Context, tenant string, id sandbox.ID) error {
	b, err := s.Record(ctx, tenant, id)
	if err == nil {
		err = s.Mirror(ctx, &b)
	}
	if err == nil && b.State == sandbox.Failed {
		err = &sandbox.Error{Code: sandbox.CodeConflict, Op: string(ops.SandboxFind), Subject: b.Name, Message: b.Reason}
	}
	return err
}

// Creating reports whether this process is creating a sandbox.
func (s *Records) Creating(id sandbox.ID) bool { return s.Inflight.Has(id) }

// RecheckSoon makes the next reconciliation start soon.
func (s *Records) RecheckSoon() { s.Recheck.Again() }

// Quiet returns the record of a sandbox once no operation is in progress.
func (s *Records) Quiet(ctx context.Context, b *store.Sandbox) (store.Sandbox, error) {
	release, err := s.Locks.Take(ctx, b.ID)
	if err != nil {
		return *b, err
	}
	defer release()
	return s.Record(ctx, b.Tenant, b.ID)
}

// End destroys a sandbox with its provider, unless another installation has
// taken it over.
func (s *Records) End(ctx context.Context, b *store.Sandbox) error {
	sb, err := s.Providers.Attach(ctx, b)
	if err == nil {
		err = sb.Destroy(ctx)
	}
	if sandbox.CodeOf(err) == sandbox.CodeGone || errors.Is(err, driver.ErrElsewhere) {
		return nil
	}
	return err
}

// Discard removes data kept for a sandbox that is gone.
func (s *Records) Discard(ctx context.Context, b *store.Sandbox) {
	s.Snapshots.ForgetEnvironment(ctx, b.ID)
	s.Snapshots.Drop(ctx, b.Provider, b.Rest.Kept)
	s.Uses.Forget(b.ID)
	s.Secrets.Forget(b.ID)
}
