package create

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/control/sandboxes/records"
	"github.com/atoll-run/atoll/internal/control/snapshots"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	opFork   = ops.SandboxFork
	maxForks = 100 // per request
)

// Fork creates copies of a sandbox: its files and, if the provider supports it,
// memory and processes. Each copy has its own name and id. The parent is paused
// only while its state is written. Either all copies are created or none. A
// repeated request with the same idempotency key returns the same copies.
func (s *Creator) Fork(ctx context.Context, ref string, req sandbox.ForkRequest) (_ []store.Sandbox, err error) {
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
	wanted, err := s.copies(ctx, be, t, req)
	if err != nil {
		return nil, err
	}
	leave, err := s.Prepare.Admit(ctx, be, t.Sandbox.Tenant)
	if err != nil {
		return nil, err
	}
	defer leave()
	for i := range wanted {
		defer s.Records.Inflight.Begin(wanted[i].Spec.ID)()
	}
	earlier, intent, err := s.announceForks(ctx, t, wanted, req)
	if err != nil || earlier != nil {
		return earlier, err
	}
	if err := s.Core.Fault("fork.recorded"); err != nil {
		return nil, err
	}
	made, err := s.makeForks(ctx, be, t, keeper, wanted)
	if fault := s.Core.Fault("fork.made"); fault != nil {
		return nil, fault
	}
	return s.finalizeForks(ctx, t, wanted, made, intent, err)
}

// copies returns the plans for the copies of a sandbox.
func (s *Creator) copies(ctx context.Context, be *providers.Backend, t *records.Operation, req sandbox.ForkRequest) ([]plan.Plan, error) {
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

// announceForks records all copies in one transaction, so that all of them fit
// into the quota. If an earlier request with the same idempotency key created
// them, it returns those.
func (s *Creator) announceForks(ctx context.Context, t *records.Operation, wanted []plan.Plan, req sandbox.ForkRequest) (earlier []store.Sandbox, intent *audit.Intent, err error) {
	be, err := s.Providers.Of(ctx, &t.Sandbox)
	if err != nil {
		return nil, nil, err
	}
	gives := be.Isolation(ctx)
	values, err := s.Secrets.Reveal(ctx, t.Sandbox.Tenant, be.Bound(t.Sandbox.Spec).Secrets)
	if err != nil {
		return nil, nil, err
	}
	defer values.Clear()
	err = s.Core.Store.Update(ctx, func(tx *store.Tx) error {
		earlier = nil
		for i := range wanted {
			b, replayed, err := tx.Sandboxes().Create(ctx, t.Sandbox.Tenant, s.copyOf(t, gives, &wanted[i], tx.Now()), forkKey(t, req, i))
			switch {
			case err != nil:
				return err
			case replayed:
				earlier = append(earlier, b)
				continue
			}
			if err := s.Workspaces.Claim(ctx, tx, t.Sandbox.Tenant, &wanted[i].Spec, ""); err != nil {
				return err
			}
			bound := be.Bound(wanted[i].Spec)
			if wanted[i].Hidden, err = s.bind(ctx, tx, t.Sandbox.Tenant, &bound, values); err != nil {
				return err
			}
		}
		if earlier != nil {
			return allThere(earlier, len(wanted))
		}
		var err error
		intent, err = s.Core.Audit.BeginTx(ctx, tx, t.Action)
		return err
	})
	return earlier, intent, err
}

// copyOf returns the record of a new copy. Its step makes a daemon that finds
// it after a crash remove it, because the other copies may be missing.
func (s *Creator) copyOf(t *records.Operation, gives sandbox.Isolation, p *plan.Plan, now time.Time) store.Sandbox {
	b := s.recordOf(p, t.Sandbox.Binding, gives, now)
	b.Rest.Step = records.StepFork
	return b
}

// forkKey returns the idempotency key of one copy. It includes the parent.
func forkKey(t *records.Operation, req sandbox.ForkRequest, i int) store.Create {
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
	box    *control.Sandbox // nil: creation failed
	reason string
}

// makeForks writes a snapshot of the parent, unless it is on disk already, and
// creates the copies, several at a time.
func (s *Creator) makeForks(ctx context.Context, be *providers.Backend, t *records.Operation, keeper driver.SnapshotKeeper, wanted []plan.Plan) ([]copied, error) {
	ref, done, err := s.source(ctx, be, t, keeper)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := s.Core.Fault("fork.written"); err != nil {
		return nil, err
	}
	made := make([]copied, len(wanted))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(2, runtime.GOMAXPROCS(0)))
	for i, w := range wanted {
		g.Go(func() error {
			if err := s.Snapshots.PutEnvironment(w.Spec.ID, w.Spec.Env); err != nil {
				return err
			}
			w, err := s.Workspaces.Mount(ctx, w, be.Facts)
			if err != nil {
				return err
			}
			box, how, err := be.Control.Restore(ctx, w, ref)
			made[i] = copied{box, records.ColdReason(how)}
			if err != nil {
				return err
			}
			return s.Workspaces.Load(ctx, box)
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
	box, err := s.Records.Attach(ctx, &t.Sandbox)
	if err != nil {
		return ref, nil, err
	}
	if !control.Can[driver.Snapshotter](box) {
		return ref, nil, records.Unsupported(&t.Sandbox, "this provider makes no snapshots", "")
	}
	id := snapshots.NewID()
	landed := s.Snapshots.Begin(id)
	snap, err := box.Snapshot(ctx, driver.SnapshotOptions{ID: id, Memory: be.HasMemory(ctx), Transient: true})
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
func (s *Creator) finalizeForks(ctx context.Context, t *records.Operation, wanted []plan.Plan, made []copied, intent *audit.Intent, failed error) ([]store.Sandbox, error) {
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), records.FinalizeTimeout)
	defer cancel()
	if failed != nil {
		for _, m := range made {
			if m.box != nil {
				s.Core.Report(ctx, m.box.Destroy(late))
			}
		}
	}
	boxes := make([]store.Sandbox, len(wanted))
	err := s.Core.Store.Update(late, func(tx *store.Tx) error {
		for i, w := range wanted {
			b, err := tx.Sandboxes().Update(late, t.Sandbox.Tenant, w.Spec.ID, store.Expect{Observed: true}, func(b *store.Sandbox) {
				if b.State, b.Reason = sandbox.Gone, records.ReasonUnmade; failed == nil {
					b.State, b.Reason, b.Rest.Step = sandbox.Running, made[i].reason, ""
				}
			})
			if err != nil {
				return err
			}
			boxes[i] = b
		}
		return intent.EndTx(late, tx, audit.Outcome{Err: failed})
	})
	if err != nil {
		s.Records.Recheck.Again()
		s.Core.Report(ctx, intent.End(audit.Outcome{Err: failed}))
	}
	if failed != nil {
		s.Core.Report(ctx, err)
		for _, w := range wanted {
			s.Records.Discard(late, &store.Sandbox{Summary: store.Summary{Sandbox: sandbox.Sandbox{ID: w.Spec.ID}}})
			s.Workspaces.DetachLater(w.Spec.ID, w.Spec.Name)
		}
		return nil, failed
	}
	for _, m := range made {
		s.Ends.Refind(t.Sandbox.Tenant, m.box)
	}
	return boxes, err
}
