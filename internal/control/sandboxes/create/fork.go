package create

import (
	"context"
	"fmt"
	"maps"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/control/snapshots"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

const (
	opFork   = ops.SandboxFork
	maxForks = 100 // per request
)

// Fork creates copies of a sandbox: its files and, if the provider supports it,
// memory and processes. Each copy has its own name and id. The parent is paused
// only while its state is written. Either all copies are created or none. A
// repeated request with the same idempotency key returns the same copies.
func (s *Creator) Fork(ctx context.Context, ref string, req durable.ForkRequest) (_ []store.Sandbox, err error) {
	defer core.Name(opFork, &err)
	if req.Count < 1 || req.Count > maxForks {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "count", Message: fmt.Sprintf("%d is not between 1 and %d", req.Count, maxForks)}
	}
	t, err := s.Records.Lock(ctx, ref, opFork, lifecycle.Fork)
	if err != nil {
		return nil, err
	}
	defer t.Release()
	if t.Sandbox.Spec.ID == "" {
		return nil, snapshots.CannotKeep(&t.Sandbox)
	}
	be, keeper, err := s.Snapshots.KeeperOf(ctx, &t.Sandbox)
	if err != nil {
		return nil, err
	}
	copies, err := s.copies(ctx, be, t, req)
	if err != nil {
		return nil, err
	}
	leave, err := s.Prepare.Admit(ctx, be, t.Sandbox.Tenant)
	if err != nil {
		return nil, err
	}
	defer leave()
	for i := range copies {
		defer s.Records.Inflight.Begin(copies[i].Spec.ID)()
	}
	entries := make([]wanted, len(copies))
	for i := range copies {
		// A daemon that finds the step after a crash removes the copy, because others
		// may be missing.
		entries[i] = wanted{Plan: &copies[i], once: forkKey(t, req, i), step: records.StepFork}
	}
	earlier, intent, err := s.record(ctx, be, t.Action, entries)
	if err != nil || earlier != nil {
		return earlier, err
	}
	if err := s.Core.Fault("fork.recorded"); err != nil {
		return nil, err
	}
	made, err := s.makeForks(ctx, be, t, keeper, copies)
	if fault := s.Core.Fault("fork.made"); fault != nil {
		return nil, fault
	}
	return s.finalizeForks(ctx, t, copies, made, intent, err)
}

// copies returns the plans for the copies of a sandbox.
func (s *Creator) copies(ctx context.Context, be *providers.Backend, t *records.Operation, req durable.ForkRequest) ([]plan.Plan, error) {
	b := &t.Sandbox
	ask, err := s.Prepare.Again(ctx, b)
	if err != nil {
		return nil, err
	}
	spec := &ask.Spec
	ask.Again, spec.ID, spec.Name, spec.Lifetime = false, "", "", b.Spec.Lifetime
	spec.Ports = nil // the parent keeps them
	if spec.Hostname == b.Name {
		spec.Hostname = "" // the name of the copy is used
	}
	spec.Labels = map[string]string{}
	maps.Copy(spec.Labels, b.Labels)
	maps.Copy(spec.Labels, req.Labels)
	all := make([]plan.Plan, req.Count)
	for i := range all {
		if req.Prefix != "" {
			spec.Name = fmt.Sprintf("%s-%d", req.Prefix, i+1)
		}
		if all[i], err = s.Prepare.Fit(ctx, be, t.Action, ask); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// forkKey returns the idempotency key of one copy. It includes the parent.
func forkKey(t *records.Operation, req durable.ForkRequest, i int) store.Create {
	if req.IdempotencyKey == "" {
		return store.Create{}
	}
	return store.Create{
		IdempotencyKey: fmt.Sprintf("fork %d %s", i, req.IdempotencyKey),
		Request:        append([]byte(t.Sandbox.ID+"\x00"), req.Raw...), Retry: neverMade,
	}
}

// allThere returns an error if copies of an earlier request are missing.
func allThere(made []store.Sandbox, count int) error {
	for i := range made {
		if made[i].State == sandbox.Gone {
			return madeEarlier(&made[i])
		}
	}
	if len(made) != count {
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the copies of an earlier request with this key are being removed", Hint: "try again"}
	}
	return nil
}

// copied is a running copy, and why it lacks the saved processes, if it does.
type copied struct {
	sandbox *engine.Sandbox // nil: creation failed
	reason  string
}

// makeForks writes a snapshot of the parent, unless it is on disk already, and
// creates the copies, several at a time.
func (s *Creator) makeForks(ctx context.Context, be *providers.Backend, t *records.Operation, keeper driver.SnapshotKeeper, copies []plan.Plan) ([]copied, error) {
	ref, done, err := s.source(ctx, be, t, keeper)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := s.Core.Fault("fork.written"); err != nil {
		return nil, err
	}
	made := make([]copied, len(copies))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(2, runtime.GOMAXPROCS(0)))
	for i := range copies {
		g.Go(func() error {
			sb, how, err := s.bringUp(ctx, be, &copies[i], &ref)
			made[i] = copied{sb, records.ColdReason(how)}
			if err != nil {
				return err
			}
			return s.Workspaces.Load(ctx, sb)
		})
	}
	return made, g.Wait()
}

// source returns a snapshot of the parent; done removes it. It is restored
// immediately by this process, so it is neither verified nor synced.
func (s *Creator) source(ctx context.Context, be *providers.Backend, t *records.Operation, keeper driver.SnapshotKeeper) (ref driver.SnapshotRef, done func(), err error) {
	if t.Sandbox.Rest.Kept != "" {
		ref, err = s.Snapshots.Kept(ctx, be, &t.Sandbox)
		return ref, func() {}, err
	}
	sb, err := s.Records.Attach(ctx, &t.Sandbox)
	if err != nil {
		return ref, nil, err
	}
	if !engine.Can[driver.Snapshotter](sb) {
		return ref, nil, records.Unsupported(&t.Sandbox, "this provider makes no snapshots", "")
	}
	id := snapshots.NewID()
	landed := s.Snapshots.Begin(id)
	snap, err := sb.Snapshot(ctx, driver.SnapshotOptions{ID: id, Memory: be.HasMemory(ctx), Transient: true})
	if err != nil {
		landed()
		return ref, nil, err
	}
	return snap.Ref, func() {
		s.Core.Report(ctx, keeper.RemoveSnapshot(context.WithoutCancel(ctx), snap.Ref))
		landed()
	}, nil
}

// finalizeForks records the outcome. If one copy could not be created, it
// removes the others.
func (s *Creator) finalizeForks(ctx context.Context, t *records.Operation, copies []plan.Plan, made []copied, intent *audit.Intent, failed error) ([]store.Sandbox, error) {
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), records.FinalizeTimeout)
	defer cancel()
	if failed != nil {
		for _, m := range made {
			if m.sandbox != nil {
				s.Core.Report(ctx, m.sandbox.Destroy(late))
			}
		}
	}
	sandboxes := make([]store.Sandbox, len(copies))
	err := s.Core.Store.Update(late, func(tx *store.Tx) error {
		for i, w := range copies {
			b, err := tx.Sandboxes().Update(late, t.Sandbox.Tenant, w.Spec.ID, store.Expect{Observed: true}, func(b *store.Sandbox) {
				if b.State, b.Reason = sandbox.Gone, records.ReasonUnmade; failed == nil {
					b.State, b.Reason, b.Rest.Step = sandbox.Running, made[i].reason, ""
				}
			})
			if err != nil {
				return err
			}
			sandboxes[i] = b
		}
		return intent.EndTx(late, tx, audit.Outcome{Err: failed})
	})
	if err != nil {
		s.Records.Recheck.Again()
		s.Core.Report(ctx, intent.End(audit.Outcome{Err: failed}))
	}
	if failed != nil {
		s.Core.Report(ctx, err)
		for _, w := range copies {
			s.Records.Discard(late, &store.Sandbox{Summary: store.Summary{Sandbox: sandbox.Sandbox{ID: w.Spec.ID}}})
			s.Workspaces.DetachLater(w.Spec.ID, w.Spec.Name)
		}
		return nil, failed
	}
	for _, m := range made {
		s.Ends.Refind(t.Sandbox.Tenant, m.sandbox)
	}
	return sandboxes, err
}
