// Package reconcile compares the records of sandboxes with the sandboxes that exist
// at the providers.
package reconcile

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/ports"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/control/sandboxes/supervise"
	"github.com/atoll-run/atoll/internal/control/snapshots"
	"github.com/atoll-run/atoll/internal/control/workspaces"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Reconciler compares the records with the sandboxes that exist. The caller fills
// in the fields, and calls Reconcile before the first request.
type Reconciler struct {
	Core       *core.Core
	Records    *records.Records
	Ends       *supervise.Ends
	Providers  *providers.Service
	Workspaces *workspaces.Service
	Snapshots  *snapshots.Service
	Ports      *ports.Service
}

// Reconcile compares the records with the sandboxes that exist, separately for
// each provider. Records are updated to the observed state. A sandbox without a
// record is recorded for its tenant. A removed sandbox that still exists is
// removed again. No other sandbox is ended, and a sandbox is considered gone
// only with proof about exactly that sandbox. Records with another provider,
// account or address are left alone.
func (s *Reconciler) Reconcile(ctx context.Context) error {
	ctx = store.WithReserve(ctx)          // recording observed facts may use the reserved space
	known, err := s.Records.Recorded(ctx) // before listing, so that sandboxes created meanwhile appear as extra and not as missing
	if err != nil {
		return err
	}
	s.Records.Recheck.Begin()
	var failed []error
	mine := map[string][]store.Sandbox{}
	for _, be := range s.Providers.Opened() {
		mine[be.Name] = nil // it may have sandboxes without records
	}
	for _, b := range known {
		be, err := s.Providers.Of(ctx, &b)
		if err != nil {
			failed = append(failed, s.unreachable(ctx, b, err))
			continue
		}
		mine[be.Name] = append(mine[be.Name], b)
	}
	for _, name := range slices.Sorted(maps.Keys(mine)) {
		be, err := s.Providers.Backend(ctx, name)
		if err == nil {
			err = s.reconcileWith(ctx, be, mine[name])
		}
		failed = append(failed, err)
	}
	failed = append(failed, s.Snapshots.Sweep(ctx), s.Snapshots.SweepEnvironments(ctx), s.Workspaces.DetachEnded(ctx))
	return errors.Join(failed...)
}

// reconcileWith compares the records of a provider's sandboxes with the
// sandboxes that exist there.
func (s *Reconciler) reconcileWith(ctx context.Context, be *providers.Backend, known []store.Sandbox) error {
	seen := map[sandbox.ID]driver.Found{}
	for f, err := range be.Driver.List(ctx) {
		if err != nil {
			return err // an incomplete list proves nothing
		}
		seen[f.ID] = f
	}
	var g errgroup.Group
	g.SetLimit(reconcileAtOnce)
	failed := make([]error, len(known))
	for i, b := range known {
		f, there := seen[b.ID]
		delete(seen, b.ID)
		g.Go(func() error {
			failed[i] = s.reconcile(ctx, be, b, f, there)
			return nil
		})
	}
	_ = g.Wait() // all are tried; the errors are in failed
	for _, f := range seen {
		failed = append(failed, s.extra(ctx, be, f))
	}
	return errors.Join(failed...)
}

// reconcileAtOnce is the number of sandboxes reconciled concurrently. They
// mostly wait for their guests.
const reconcileAtOnce = 16

// unreachable marks a sandbox as lost because this daemon does not use its
// provider, account or address. A sandbox that was paused to disk or stopped,
// or that is between two states, is left as it is.
func (s *Reconciler) unreachable(ctx context.Context, b store.Sandbox, why error) error {
	if b.Rest.Kept != "" || b.Rest.Step != "" || b.State == sandbox.Lost || b.State == sandbox.Failed {
		return nil
	}
	release, err := s.Records.Locks.Take(ctx, b.ID)
	if err != nil {
		return err
	}
	defer release()
	if b, err = s.Records.Record(ctx, b.Tenant, b.ID); err != nil || b.State == sandbox.Gone {
		return err
	}
	s.Core.Report(ctx, why)
	return s.Records.Observe(ctx, &b, records.Found{State: sandbox.Lost, Reason: "its provider, account or address is not the one that the daemon works on"})
}

// reconcile updates the record of one sandbox.
func (s *Reconciler) reconcile(ctx context.Context, be *providers.Backend, b store.Sandbox, f driver.Found, there bool) error {
	if s.Records.Inflight.Has(b.ID) {
		return nil
	}
	release, err := s.Records.Locks.Take(ctx, b.ID)
	if err != nil {
		return err
	}
	defer release()
	listed := b.Version
	if b, err = s.Records.Record(ctx, b.Tenant, b.ID); err != nil || b.State == sandbox.Gone {
		return err
	}
	stale := b.Version != listed // f can be older than the record
	s.Ports.Sync(&b)
	switch {
	case b.Rest.Step != "":
		return s.finishStep(ctx, &b)
	case b.Rest.Kept != "":
		if there {
			return s.Records.End(ctx, &b) // it was paused to disk or stopped, but its removal was interrupted
		}
		return nil
	case there && be.Engine.Orphaned(f):
		if err := s.Records.End(ctx, &b); err != nil {
			return err
		}
		return s.Records.Observe(ctx, &b, records.Found{State: sandbox.Gone, Reason: "the daemon that built with it ended"})
	case there && f.State != sandbox.Running && f.State != sandbox.Paused && stale:
		s.Records.Recheck.Again()
		return nil
	case there && f.State != sandbox.Running && f.State != sandbox.Paused:
		return s.reconcileEnded(ctx, &b, f)
	}
	sb, err := be.Engine.Attach(ctx, b.ID, b.Name)
	switch code := sandbox.CodeOf(err); {
	case err == nil:
		if len(b.Spec.Workspaces) > 0 {
			if err := s.Workspaces.Load(ctx, sb); err != nil { // the daemon that created it ended before that
				s.Records.Recheck.Again()
				return err
			}
		}
		s.Ends.Refind(b.Tenant, sb)
		if _, ok := driver.As[driver.StateTeller](be.Driver); ok && there && records.Resident(&b) {
			if stale {
				return s.Records.Mirror(ctx, &b)
			}
			return s.Records.ObservePause(ctx, &b, f.State)
		}
		if b.State == sandbox.Paused {
			return nil // paused, as recorded
		}
		return s.Records.Observe(ctx, &b, records.Found{State: sandbox.Running})
	case code == sandbox.CodeGone:
		return s.Records.Observe(ctx, &b, records.Found{State: sandbox.Gone, Reason: gone(&b)})
	case ctx.Err() != nil || code == sandbox.CodeCanceled:
		return ctx.Err()
	case errors.Is(err, driver.ErrElsewhere):
		return s.Records.Observe(ctx, &b, records.Found{State: sandbox.Lost, Reason: "another installation has it"})
	case code == sandbox.CodeConflict && b.State == sandbox.Creating:
		s.Records.Recheck.Again()
		return nil
	}
	s.Core.Report(ctx, err)
	return s.Records.Observe(ctx, &b, records.Found{State: sandbox.Lost, Reason: "it could not be reached"})
}

func gone(b *store.Sandbox) string {
	if b.State == sandbox.Creating {
		return records.ReasonUnfinished
	}
	return "it is not there any more"
}

// reconcileEnded records the provider's report about a sandbox that is not
// running.
func (s *Reconciler) reconcileEnded(ctx context.Context, b *store.Sandbox, f driver.Found) error {
	switch {
	case f.State == sandbox.Creating:
		s.Records.Recheck.Again() // the next reconciliation will see whether it exists
		return nil
	case f.Exit != nil && f.Exit.Reason == sandbox.ReasonLifetime:
		if err := s.Records.End(ctx, b); err != nil {
			return err
		}
		return s.Records.Observe(ctx, b, records.Found{State: sandbox.Gone, Reason: records.ReasonLifetime, Exit: f.Exit})
	}
	reason := "it ended"
	switch {
	case f.State == sandbox.Lost:
		reason = "its provider knows it, but cannot reach it"
	case f.Exit != nil:
		reason += ": " + string(f.Exit.Reason)
	}
	return s.Records.Observe(ctx, b, records.Found{State: f.State, Reason: reason, Exit: f.Exit})
}

// extra handles a sandbox without a record on this node.
func (s *Reconciler) extra(ctx context.Context, be *providers.Backend, f driver.Found) error {
	if f.Labels[engine.LabelOwner] != "" || s.Records.Inflight.Has(f.ID) || f.State == sandbox.Creating || f.State == sandbox.Gone {
		return nil // another process is responsible for it
	}
	release, err := s.Records.Locks.Take(ctx, f.ID)
	if err != nil {
		return err
	}
	defer release()
	b, err := store.Read(ctx, s.Core.Store, func(tx *store.Tx) (store.Sandbox, error) { return tx.Operator().Sandbox(ctx, f.ID) })
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound:
		return s.adopt(ctx, be, f)
	case err != nil || b.Node != s.Core.Node || b.Provider != be.Name || !be.Has(b.Binding):
		return err
	case b.State == sandbox.Gone && records.EndedOnPurpose(b.Reason):
		return s.Records.End(ctx, &b) // a crash interrupted its removal
	}
	return nil // created after the records were read
}

// adopt records a sandbox that exists without a record. One that was created
// without a daemon belongs to the owner of the machine.
func (s *Reconciler) adopt(ctx context.Context, be *providers.Backend, f driver.Found) error {
	tenant, name := f.Labels[engine.LabelTenant], f.Labels[engine.LabelName]
	if tenant == "" {
		tenant = key.DefaultTenant
	}
	b := store.Sandbox{
		Summary: store.Summary{
			Sandbox: sandbox.Sandbox{
				ID: f.ID, Name: name, State: f.State, Reason: "found without a record", Provider: be.Name, Isolation: be.Isolation(ctx), Node: s.Core.Node,
				Image: f.Labels[engine.LabelImage], Labels: map[string]string{}, Exit: f.Exit,
			},
			Binding: be.Binding,
		},
	}
	if f.State == sandbox.Paused {
		b.Rest.Pause = sandbox.PauseMemory
	}
	for k, v := range f.Labels {
		if !strings.HasPrefix(k, engine.ReservedPrefix) {
			b.Labels[k] = v
		}
	}
	make := func(name string) error {
		_, err := store.Write(ctx, s.Core.Store, func(tx *store.Tx) (store.Sandbox, error) {
			if _, err := tx.Tenants().Ensure(ctx, tenant); err != nil {
				return b, err
			}
			b.Name = name
			out, _, err := tx.Sandboxes().Create(ctx, tenant, b, store.Create{})
			return out, err
		})
		return err
	}
	err := make(name)
	if code := sandbox.CodeOf(err); code == sandbox.CodeAlreadyExists || code == sandbox.CodeInvalid {
		err = make(string(f.ID))
	}
	if err != nil {
		return err
	}
	if sb, err := be.Engine.Attach(ctx, f.ID, b.Name); err == nil && f.State == sandbox.Running {
		s.Ends.Refind(tenant, sb)
	}
	fact := audit.Action{Tenant: tenant, Op: ops.SandboxAdopt, Sandbox: f.ID, Name: b.Name, Subject: b.Name}
	return s.Core.Audit.Fact(ctx, fact, eventlog.Found, nil)
}

// Intervals of reconciliation: normally, and when something was found
// incomplete.
const (
	reconcilePeriod = 30 * time.Second
	unsettledPeriod = time.Second
)

// Watch reconciles periodically until ctx ends.
func (s *Reconciler) Watch(ctx context.Context) {
	for {
		period := reconcilePeriod
		if s.Records.Recheck.Wanted() {
			period = unsettledPeriod
		}
		select {
		case <-ctx.Done():
			return
		case <-s.Records.Recheck.Urgent():
		case <-time.After(period):
			if err := s.Reconcile(ctx); err != nil && ctx.Err() == nil {
				s.Core.Report(ctx, err)
			}
		}
	}
}
