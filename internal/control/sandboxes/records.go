package sandboxes

import (
	"context"
	"errors"
	"time"

	"github.com/atoll-run/atoll/driver"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// record reads a sandbox of a tenant by its id.
func (s *records) record(ctx context.Context, tenant string, id sandbox.ID) (store.Sandbox, error) {
	return store.Read(ctx, s.Store, func(tx *store.Tx) (store.Sandbox, error) { return tx.Sandboxes().Get(ctx, tenant, id) })
}

// find reads the sandbox of a tenant with the name or id ref. A name takes
// precedence. A sandbox found by id may be gone.
func (s *records) find(ctx context.Context, tenant, ref string) (store.Sandbox, error) {
	if err := sandbox.ValidateName(ref); err != nil {
		return store.Sandbox{}, err
	}
	return store.Read(ctx, s.Store, func(tx *store.Tx) (store.Sandbox, error) { return tx.Sandboxes().Lookup(ctx, tenant, ref) })
}

// Get returns the record of a sandbox, by name or id.
func (s *records) Get(ctx context.Context, ref string) (store.Sandbox, error) {
	who, err := s.Look(ctx, ops.SandboxGet, ref)
	if err != nil {
		return store.Sandbox{}, err
	}
	b, err := s.find(ctx, who.Tenant, ref)
	return b, core.Named(ops.SandboxGet, err)
}

// List returns a page of the tenant's sandboxes, newest first.
func (s *records) List(ctx context.Context, f store.Filter, page store.Page) ([]store.Summary, string, error) {
	return list(ctx, s, f, page, store.Sandboxes.Summaries)
}

// Sandboxes is List with complete records.
func (s *records) Sandboxes(ctx context.Context, f store.Filter, page store.Page) ([]store.Sandbox, string, error) {
	return list(ctx, s, f, page, store.Sandboxes.List)
}

func list[T any](
	ctx context.Context, s *records, f store.Filter, page store.Page,
	read func(store.Sandboxes, context.Context, string, store.Filter, store.Page) ([]T, string, error),
) (boxes []T, next string, err error) {
	who, err := s.Look(ctx, ops.SandboxList, "")
	if err != nil {
		return nil, "", err
	}
	err = s.Store.View(ctx, func(tx *store.Tx) (err error) {
		boxes, next, err = read(tx.Sandboxes(), ctx, who.Tenant, f, page)
		return err
	})
	return boxes, next, core.Named(ops.SandboxList, err)
}

// attach asks the provider for a recorded sandbox. If it is proved to be gone,
// attach records that.
func (s *records) attach(ctx context.Context, b *store.Sandbox) (*control.Sandbox, error) {
	if err := s.here(ctx, b); err != nil {
		return nil, err
	}
	box, err := s.Providers.Attach(ctx, b)
	if sandbox.CodeOf(err) == sandbox.CodeGone {
		s.Report(ctx, s.observe(ctx, b, found{state: sandbox.Gone, reason: "it is not there any more"}))
	}
	return box, err
}

// here refuses a sandbox of another daemon that shares the store: its absence
// on this machine proves nothing. If that daemon has ended, and the sandbox is on
// a node, it becomes one of this daemon.
func (s *records) here(ctx context.Context, b *store.Sandbox) error {
	if b.Node == s.Node {
		return nil
	}
	if claimed, err := s.claim(ctx, b); err != nil || claimed {
		return err
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "sandbox.find", Subject: b.Name, Message: "another daemon has the sandbox: " + b.Node,
		Hint: "send the request to that daemon",
	}
}

const opDestroy = ops.SandboxDestroy

// Destroy removes a sandbox with its files. It succeeds if the sandbox is
// already gone.
func (s *records) Destroy(ctx context.Context, ref string) error {
	return core.Named(opDestroy, s.destroy(ctx, ref, opDestroy, reasonRemoved))
}

func (s *records) destroy(ctx context.Context, ref string, op ops.Op, reason string) (err error) {
	ctx, end := span.Start(ctx, "control", string(op), "")
	defer func() { end(err) }()
	ctx = store.WithReserve(ctx)
	who, action, err := s.Admit(ctx, op, guard.Subject{Subject: ref})
	if err != nil {
		return err
	}
	b, err := s.findToRemove(ctx, who.Tenant, ref)
	if err != nil || b.State == sandbox.Gone {
		return err
	}
	if err := core.FirstError(s.here(ctx, &b), s.inflight.Wait(ctx, b.ID)); err != nil {
		return err
	}
	release, err := s.locks.Take(ctx, b.ID)
	if err != nil {
		return err
	}
	defer release()
	if b, err = s.record(ctx, who.Tenant, b.ID); err != nil || b.State == sandbox.Gone {
		return err // another caller was faster
	}
	action.Sandbox, action.Name, action.Subject = b.ID, b.Name, b.Name
	return s.remove(ctx, &b, action, reason)
}

// findToRemove is find. If no sandbox has the name now, it returns the last one
// that had it.
func (s *records) findToRemove(ctx context.Context, tenant, ref string) (b store.Sandbox, err error) {
	if err := sandbox.ValidateName(ref); err != nil {
		return b, err
	}
	return store.Read(ctx, s.Store, func(tx *store.Tx) (store.Sandbox, error) {
		b, err := tx.Sandboxes().Lookup(ctx, tenant, ref)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			return tx.Sandboxes().Removed(ctx, tenant, ref)
		}
		return b, err
	})
}

// remove destroys a recorded sandbox. The caller holds its lock.
func (s *records) remove(ctx context.Context, b *store.Sandbox, action audit.Action, reason string) error {
	intent, err := s.Audit.Begin(ctx, action)
	if err != nil {
		return err
	}
	// Clients whose streams break ask immediately whether the sandbox is still
	// running.
	s.ending.Store(b.ID, nil)
	defer s.ending.Delete(b.ID)
	if err := s.Fault("destroy.recorded"); err != nil {
		return err
	}
	if err = s.Workspaces.Fetch(ctx, b.ID); err == nil {
		err = s.end(ctx, b)
	}
	if fault := s.Fault("destroy.done"); fault != nil {
		return fault
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalizeTimeout)
	defer cancel()
	if err != nil {
		s.Report(ctx, intent.End(audit.Outcome{Err: err}))
		return err
	}
	kept := b.Rest.Kept
	_, err = s.finalizeWith(late, b.Tenant, b.ID, intent, audit.Outcome{}, func(b *store.Sandbox) {
		b.State, b.Reason, b.Rest = sandbox.Gone, reason, store.Rest{}
		if reason == reasonLifetime && b.Exit == nil { // else who asks later learns only that it was removed
			exit := removed(b)
			b.Exit = &exit
		}
	}, func(tx *store.Tx) error {
		if kept == "" {
			return nil
		}
		return tx.Snapshots().Delete(late, b.Tenant, kept)
	})
	if err == nil {
		s.discard(late, b)
	}
	s.Report(ctx, s.Workspaces.DetachNow(ctx, b.ID, b.Name))
	return err
}

// end destroys a sandbox with its provider, unless another installation has
// taken it over.
func (s *records) end(ctx context.Context, b *store.Sandbox) error {
	box, err := s.Providers.Attach(ctx, b)
	if err == nil {
		err = box.Destroy(ctx)
	}
	if sandbox.CodeOf(err) == sandbox.CodeGone || errors.Is(err, driver.ErrElsewhere) {
		return nil
	}
	return err
}

// calmDown signals the commands of a sandbox and waits for them to end. It also
// succeeds if there are no commands or the sandbox does not respond. The main
// command is not restarted before done is called.
func (s *pauser) calmDown(ctx context.Context, ref string, grace time.Duration) (done func(), err error) {
	done = func() {}
	who, _, err := s.Admit(ctx, opStop, guard.Subject{Subject: ref})
	if err != nil {
		return done, err
	}
	b, err := s.find(ctx, who.Tenant, ref)
	if err != nil || b.State != sandbox.Running {
		return done, err
	}
	box, err := s.attach(ctx, &b)
	if err != nil {
		return done, ignoreGone(err)
	}
	if !s.keeps(&b, box) {
		return done, s.cannotStop(&b)
	}
	s.stopping.Store(b.ID, nil)
	box.Calm(ctx, grace)
	return func() { s.stopping.Delete(b.ID) }, nil
}

// Wait waits until a sandbox has ended, and returns the reason.
func (s *records) Wait(ctx context.Context, ref string) (_ sandbox.Exit, err error) {
	defer core.Name(ops.SandboxWait, &err)
	who, err := s.Look(ctx, ops.SandboxWait, ref)
	if err != nil {
		return sandbox.Exit{}, err
	}
	b, err := s.find(ctx, who.Tenant, ref)
	if err != nil {
		return sandbox.Exit{}, err
	}
	if err := s.inflight.Wait(ctx, b.ID); err != nil {
		return sandbox.Exit{}, err
	}
	if b, err = s.record(ctx, who.Tenant, b.ID); err != nil {
		return sandbox.Exit{}, err
	}
	switch {
	case b.Exit != nil:
		return *b.Exit, nil
	case b.State == sandbox.Gone || b.State == sandbox.Stopped:
		return removed(&b), nil
	}
	return s.waitEnd(ctx, b)
}

// waitEnd waits for the end of a sandbox. A sandbox that is paused to disk has
// not ended.
func (s *records) waitEnd(ctx context.Context, b store.Sandbox) (exit sandbox.Exit, err error) {
	for {
		if b.Rest.Kept == "" {
			life, _ := s.watched.Load(b.ID)
			box, err := s.attach(ctx, &b)
			if err != nil {
				return exit, err
			}
			if exit, err = box.Wait(ctx); err != nil {
				return exit, err
			}
			if b, err = s.quiet(ctx, &b); err != nil {
				return exit, err
			}
			now, _ := s.watched.Load(b.ID)
			if b.Rest.Kept == "" && (now == nil || now == life) || b.State == sandbox.Stopped {
				if b.State == sandbox.Gone && b.Reason == reasonLifetime {
					exit.Reason = sandbox.ReasonLifetime // the provider was late, so the daemon removed it
				}
				return exit, nil
			}
		}
		select {
		case <-ctx.Done():
			return exit, ctx.Err()
		case <-time.After(waitPoll):
		}
		if b, err = s.quiet(ctx, &b); err != nil {
			return exit, err
		}
		if b.State == sandbox.Gone || b.State == sandbox.Stopped {
			return removed(&b), nil
		}
	}
}

// removed returns the exit of a removed sandbox for which the provider reported
// none.
func removed(b *store.Sandbox) sandbox.Exit {
	exit := sandbox.Exit{Code: 137, Signal: 9, Reason: sandbox.ReasonKilled, Detail: b.Reason}
	if b.Reason == reasonLifetime {
		exit.Reason = sandbox.ReasonLifetime
	}
	return exit
}

// waitPoll is the interval at which waitEnd checks whether a sandbox on disk is
// running again.
const waitPoll = time.Second

// quiet returns the record of a sandbox once no operation is in progress.
func (s *records) quiet(ctx context.Context, b *store.Sandbox) (store.Sandbox, error) {
	release, err := s.locks.Take(ctx, b.ID)
	if err != nil {
		return *b, err
	}
	defer release()
	return s.record(ctx, b.Tenant, b.ID)
}

// watcher is a goroutine that waits until a sandbox ends or is put to disk.
type watcher struct{ box *control.Sandbox }

// refind follows a sandbox that this daemon did not create, or had lost.
func (s *records) refind(tenant string, box *control.Sandbox) {
	if _, known := s.watched.Load(box.ID()); !known {
		s.Go(func() { s.Exec.WatchBackground(tenant, box) })
	}
	s.follow(tenant, box)
}

// follow waits for the end of a sandbox in the background, and records it.
func (s *records) follow(tenant string, box *control.Sandbox) {
	w := &watcher{box}
	if _, twice := s.watched.LoadOrStore(box.ID(), w); !twice {
		s.await(tenant, w)
	}
}

// followAnew is follow for a sandbox that runs again. It replaces the watcher
// of its former run.
func (s *records) followAnew(tenant string, box *control.Sandbox) {
	w := &watcher{box}
	s.watched.Store(box.ID(), w)
	s.await(tenant, w)
}

func (s *records) await(tenant string, w *watcher) {
	s.Go(func() {
		defer s.watched.CompareAndDelete(w.box.ID(), w)
		exit, err := w.box.Wait(s.Life)
		if err != nil {
			return // the daemon is stopping, or the sandbox is lost; Reconcile finds out which
		}
		s.Report(s.Life, s.ended(tenant, w, exit))
	})
}

// ended records that a sandbox ended without a request. An expired one is
// removed; others are kept so that the owner can see the reason.
func (s *records) ended(tenant string, w *watcher, exit sandbox.Exit) error {
	id := w.box.ID()
	ctx, cancel := context.WithTimeout(s.Life, finalizeTimeout)
	defer cancel()
	release, err := s.locks.Take(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	b, err := s.record(ctx, tenant, id)
	if err != nil || b.State == sandbox.Gone || b.Rest.Kept != "" {
		return err // the operation that ended it records that
	}
	if now, _ := s.watched.Load(id); now != w {
		return nil // it is running again
	}
	if exit.Reason == sandbox.ReasonLifetime {
		if err := s.end(ctx, &b); err != nil {
			return err
		}
		return s.observe(ctx, &b, found{state: sandbox.Gone, reason: reasonLifetime, exit: &exit})
	}
	state := sandbox.Failed
	switch exit.Reason {
	case sandbox.ReasonExited:
		state = sandbox.Stopped
	case sandbox.ReasonKilled:
		return nil // the operation that removed it records that
	}
	return s.observe(ctx, &b, found{state: state, reason: "it ended: " + string(exit.Reason), exit: &exit})
}

// ignoreChanged drops the error that a record was changed since it was read:
// the newer state takes precedence.
func ignoreChanged(err error) error {
	if sandbox.CodeOf(err) == sandbox.CodeConflict {
		return nil
	}
	return ignoreGone(err)
}

func ignoreGone(err error) error {
	if errors.Is(err, &sandbox.Error{Code: sandbox.CodeGone}) {
		return nil
	}
	return err
}

// Running returns an unguarded handle on a sandbox of any tenant. It is nil if
// the sandbox is known not to run.
func (s *records) Running(ctx context.Context, id sandbox.ID) (*control.Sandbox, error) {
	b, err := store.Read(ctx, s.Store, func(tx *store.Tx) (store.Sandbox, error) { return tx.Operator().Sandbox(ctx, id) })
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound:
		return nil, nil
	case err != nil:
		return nil, err
	case b.State != sandbox.Running && b.State != sandbox.Lost:
		return nil, nil
	}
	box, err := s.Providers.Attach(ctx, &b)
	if sandbox.CodeOf(err) == sandbox.CodeGone {
		return nil, nil
	}
	return box, err
}
