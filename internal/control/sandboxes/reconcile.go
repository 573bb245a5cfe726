package sandboxes

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
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Why a sandbox is gone that was ended on purpose.
const (
	reasonRemoved  = "it was removed"
	reasonStopped  = "it was stopped"
	reasonLifetime = "its lifetime ended"
	reasonUnmade   = "it could not be created"
	reasonIdle     = "it was idle"
	reasonLost     = "its node was given up"

	// reasonUnfinished: the provider never confirmed the creation.
	reasonUnfinished = "the daemon ended while creating it"
)

var unwanted = map[string]bool{reasonRemoved: true, reasonStopped: true, reasonLifetime: true, reasonUnmade: true, reasonIdle: true, reasonLost: true}

// found is the observed state of a sandbox.
type found struct {
	state  sandbox.State
	reason string
	exit   *sandbox.Exit
}

// eventFor returns the event for an observed change of state.
func eventFor(from, to sandbox.State, exit *sandbox.Exit) eventlog.Type {
	switch {
	case to == sandbox.Lost:
		return eventlog.Lost
	case to == sandbox.Running && from == sandbox.Lost:
		return eventlog.Found
	case to == sandbox.Paused:
		return eventlog.Paused
	case to == sandbox.Running && from == sandbox.Paused:
		return eventlog.Resumed
	case to == sandbox.Running:
		return eventlog.Created
	case exit != nil && exit.Reason == sandbox.ReasonLifetime:
		return eventlog.Expired
	}
	return eventlog.Ended
}

// observe records an observed state if it differs from the record.
func (s *records) observe(ctx context.Context, b *store.Sandbox, now found) error {
	if s.permanent(ctx, b) && (now.state == sandbox.Gone || now.state == sandbox.Failed || now.state == sandbox.Stopped) {
		now = found{state: sandbox.Lost, reason: "the machine does not answer"}
	}
	if b.State == now.state {
		return nil
	}
	fact := audit.Action{Tenant: b.Tenant, Op: ops.SandboxObserve, Sandbox: b.ID, Name: b.Name, Subject: b.Name}
	seen, err := store.Write(ctx, s.Store, func(tx *store.Tx) (store.Sandbox, error) {
		return tx.Sandboxes().Update(ctx, b.Tenant, b.ID, store.Expect{Version: b.Version, Observed: true}, func(b *store.Sandbox) {
			b.State, b.Reason = now.state, now.reason
			if now.state == sandbox.Paused {
				b.Rest.Pause = sandbox.PauseMemory
			} else if b.Rest.Kept == "" {
				b.Rest.Pause = ""
			}
			if now.exit != nil {
				b.Exit = now.exit
			}
		})
	})
	if err != nil {
		return ignoreChanged(err)
	}
	s.Ports.Sync(&seen)
	if now.state == sandbox.Gone {
		s.discard(ctx, b)
		s.Workspaces.DetachLater(b.ID, b.Name)
	}
	return s.Audit.Fact(ctx, fact, eventFor(b.State, now.state, now.exit), func(e *eventlog.Event) {
		if now.exit != nil {
			e.Reason, e.Exit = now.exit.Reason, &now.exit.Code
		}
	})
}

// permanent reports whether a sandbox is a machine that belongs to its user.
// Such a sandbox is never considered gone.
func (s *records) permanent(ctx context.Context, b *store.Sandbox) bool {
	be, err := s.Providers.Backend(ctx, b.Provider)
	return err == nil && driver.IsPermanent(be.Driver)
}

// mirror records whether the provider has paused or resumed a sandbox. If the
// provider cannot be reached, nothing changes.
func (s *records) mirror(ctx context.Context, b *store.Sandbox) error {
	if b.Node != s.Node || !resident(b) {
		return nil
	}
	be, err := s.Providers.Of(ctx, b)
	if err != nil {
		return nil //nolint:nilerr // the operation itself will return the error
	}
	teller, ok := driver.As[driver.StateTeller](be.Driver)
	if !ok {
		return nil
	}
	state, err := teller.State(ctx, b.ID)
	if err != nil {
		return nil //nolint:nilerr // the operation itself will return the error
	}
	return s.observePause(ctx, b, state)
}

// Intact asks the provider of a running sandbox of any tenant for its state,
// records it, and returns CodeConflict if the sandbox has failed.
func (s *records) Intact(ctx context.Context, tenant string, id sandbox.ID) error {
	b, err := s.record(ctx, tenant, id)
	if err == nil {
		err = s.mirror(ctx, &b)
	}
	if err == nil && b.State == sandbox.Failed {
		err = &sandbox.Error{Code: sandbox.CodeConflict, Op: string(ops.SandboxFind), Subject: b.Name, Message: b.Reason}
	}
	return err
}

// resident reports whether a sandbox is running or paused in memory.
func resident(b *store.Sandbox) bool {
	return b.Rest.Step == "" && (b.State == sandbox.Running || b.State == sandbox.Paused && b.Rest.Pause == sandbox.PauseMemory)
}

// observePause records that a sandbox was found running, paused or failed, if
// that differs from the record, and updates b.
func (s *records) observePause(ctx context.Context, b *store.Sandbox, state sandbox.State) error {
	reason := ""
	switch {
	case state == b.State:
		return nil
	case state == sandbox.Paused:
		reason = "its provider paused it"
	case state == sandbox.Failed:
		reason = "its provider says that it has failed"
	case state != sandbox.Running:
		return nil
	}
	if err := s.observe(ctx, b, found{state: state, reason: reason}); err != nil {
		return err
	}
	now, err := s.record(ctx, b.Tenant, b.ID)
	if err == nil {
		*b = now
	}
	return err
}

// Reconcile compares the records with the sandboxes that exist, separately for
// each provider. Records are updated to the observed state. A sandbox without a
// record is recorded for its tenant. A removed sandbox that still exists is
// removed again. No other sandbox is ended, and a sandbox is considered gone
// only with proof about exactly that sandbox. Records with another provider,
// account or address are left alone.
func (s *reconciler) Reconcile(ctx context.Context) error {
	ctx = store.WithReserve(ctx)  // recording observed facts may use the reserved space
	known, err := s.Recorded(ctx) // before listing, so that sandboxes created meanwhile appear as extra and not as missing
	if err != nil {
		return err
	}
	s.unsettled.Store(false)
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
func (s *reconciler) reconcileWith(ctx context.Context, be *providers.Backend, known []store.Sandbox) error {
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
func (s *reconciler) unreachable(ctx context.Context, b store.Sandbox, why error) error {
	if b.Rest.Kept != "" || b.Rest.Step != "" || b.State == sandbox.Lost || b.State == sandbox.Failed {
		return nil
	}
	release, err := s.locks.Take(ctx, b.ID)
	if err != nil {
		return err
	}
	defer release()
	if b, err = s.record(ctx, b.Tenant, b.ID); err != nil || b.State == sandbox.Gone {
		return err
	}
	s.Report(ctx, why)
	return s.observe(ctx, &b, found{state: sandbox.Lost, reason: "its provider, account or address is not the one that the daemon works on"})
}

// Recorded returns the records of this node's sandboxes that are not gone.
func (s *records) Recorded(ctx context.Context) ([]store.Sandbox, error) {
	return s.recorded(ctx, s.Node)
}

func (s *records) recorded(ctx context.Context, daemon string) (all []store.Sandbox, err error) {
	const batch = 500
	for after := sandbox.ID(""); ; {
		part, err := store.Read(ctx, s.Store, func(tx *store.Tx) ([]store.Sandbox, error) {
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

// reconcile updates the record of one sandbox.
func (s *reconciler) reconcile(ctx context.Context, be *providers.Backend, b store.Sandbox, f driver.Found, there bool) error {
	if s.inflight.Has(b.ID) {
		return nil
	}
	release, err := s.locks.Take(ctx, b.ID)
	if err != nil {
		return err
	}
	defer release()
	listed := b.Version
	if b, err = s.record(ctx, b.Tenant, b.ID); err != nil || b.State == sandbox.Gone {
		return err
	}
	stale := b.Version != listed // f can be older than the record
	s.Ports.Sync(&b)
	switch {
	case b.Rest.Step != "":
		return s.finishStep(ctx, &b)
	case b.Rest.Kept != "":
		if there {
			return s.end(ctx, &b) // it was paused to disk or stopped, but its removal was interrupted
		}
		return nil
	case there && be.Control.Orphaned(f):
		if err := s.end(ctx, &b); err != nil {
			return err
		}
		return s.observe(ctx, &b, found{state: sandbox.Gone, reason: "the daemon that built with it ended"})
	case there && f.State != sandbox.Running && f.State != sandbox.Paused && stale:
		s.unsettled.Store(true)
		return nil
	case there && f.State != sandbox.Running && f.State != sandbox.Paused:
		return s.reconcileEnded(ctx, &b, f)
	}
	box, err := be.Control.Attach(ctx, b.ID, b.Name)
	switch code := sandbox.CodeOf(err); {
	case err == nil:
		if len(b.Spec.Workspaces) > 0 {
			if err := s.Workspaces.Load(ctx, box); err != nil { // the daemon that created it ended before that
				s.unsettled.Store(true)
				return err
			}
		}
		s.refind(b.Tenant, box)
		if _, ok := driver.As[driver.StateTeller](be.Driver); ok && there && resident(&b) {
			if stale {
				return s.mirror(ctx, &b)
			}
			return s.observePause(ctx, &b, f.State)
		}
		if b.State == sandbox.Paused {
			return nil // paused, as recorded
		}
		return s.observe(ctx, &b, found{state: sandbox.Running})
	case code == sandbox.CodeGone:
		return s.observe(ctx, &b, found{state: sandbox.Gone, reason: gone(&b)})
	case ctx.Err() != nil || code == sandbox.CodeCanceled:
		return ctx.Err()
	case errors.Is(err, driver.ErrElsewhere):
		return s.observe(ctx, &b, found{state: sandbox.Lost, reason: "another installation has it"})
	case code == sandbox.CodeConflict && b.State == sandbox.Creating:
		s.unsettled.Store(true)
		return nil
	}
	s.Report(ctx, err)
	return s.observe(ctx, &b, found{state: sandbox.Lost, reason: "it could not be reached"})
}

func gone(b *store.Sandbox) string {
	if b.State == sandbox.Creating {
		return reasonUnfinished
	}
	return "it is not there any more"
}

// reconcileEnded records the provider's report about a sandbox that is not
// running.
func (s *reconciler) reconcileEnded(ctx context.Context, b *store.Sandbox, f driver.Found) error {
	switch {
	case f.State == sandbox.Creating:
		s.unsettled.Store(true) // the next reconciliation will see whether it exists
		return nil
	case f.Exit != nil && f.Exit.Reason == sandbox.ReasonLifetime:
		if err := s.end(ctx, b); err != nil {
			return err
		}
		return s.observe(ctx, b, found{state: sandbox.Gone, reason: reasonLifetime, exit: f.Exit})
	}
	reason := "it ended"
	if f.Exit != nil {
		reason += ": " + string(f.Exit.Reason)
	}
	return s.observe(ctx, b, found{state: f.State, reason: reason, exit: f.Exit})
}

// extra handles a sandbox without a record on this node.
func (s *reconciler) extra(ctx context.Context, be *providers.Backend, f driver.Found) error {
	if f.Labels[control.LabelOwner] != "" || s.inflight.Has(f.ID) || f.State == sandbox.Creating || f.State == sandbox.Gone {
		return nil // another process is responsible for it
	}
	release, err := s.locks.Take(ctx, f.ID)
	if err != nil {
		return err
	}
	defer release()
	b, err := store.Read(ctx, s.Store, func(tx *store.Tx) (store.Sandbox, error) { return tx.Operator().Sandbox(ctx, f.ID) })
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound:
		return s.adopt(ctx, be, f)
	case err != nil || b.Node != s.Node || b.Provider != be.Name || !be.Has(b.Binding):
		return err
	case b.State == sandbox.Gone && unwanted[b.Reason]:
		return s.end(ctx, &b) // a crash interrupted its removal
	}
	return nil // created after the records were read
}

// adopt records a sandbox that exists without a record. One that was created
// without a daemon belongs to the owner of the machine.
func (s *reconciler) adopt(ctx context.Context, be *providers.Backend, f driver.Found) error {
	tenant, name := f.Labels[control.LabelTenant], f.Labels[control.LabelName]
	if tenant == "" {
		tenant = key.DefaultTenant
	}
	b := store.Sandbox{
		Summary: store.Summary{
			Sandbox: sandbox.Sandbox{
				ID: f.ID, Name: name, State: f.State, Reason: "found without a record", Provider: be.Name, Isolation: be.Isolation(ctx), Node: s.Node,
				Image: f.Labels[control.LabelImage], Labels: map[string]string{}, Exit: f.Exit,
			},
			Binding: be.Binding,
		},
	}
	if f.State == sandbox.Paused {
		b.Rest.Pause = sandbox.PauseMemory
	}
	for k, v := range f.Labels {
		if !strings.HasPrefix(k, control.ReservedPrefix) {
			b.Labels[k] = v
		}
	}
	make := func(name string) error {
		_, err := store.Write(ctx, s.Store, func(tx *store.Tx) (store.Sandbox, error) {
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
	if box, err := be.Control.Attach(ctx, f.ID, b.Name); err == nil && f.State == sandbox.Running {
		s.refind(tenant, box)
	}
	fact := audit.Action{Tenant: tenant, Op: ops.SandboxAdopt, Sandbox: f.ID, Name: b.Name, Subject: b.Name}
	return s.Audit.Fact(ctx, fact, eventlog.Found, nil)
}

// Intervals of reconciliation: normally, and when something was found
// incomplete.
const (
	reconcilePeriod = 30 * time.Second
	unsettledPeriod = time.Second
)

// Watch reconciles periodically until ctx ends.
func (s *reconciler) Watch(ctx context.Context) {
	for {
		period := reconcilePeriod
		if s.unsettled.Load() {
			period = unsettledPeriod
		}
		select {
		case <-ctx.Done():
			return
		case <-s.hurry:
		case <-time.After(period):
			if err := s.Reconcile(ctx); err != nil && ctx.Err() == nil {
				s.Report(ctx, err)
			}
		}
	}
}
