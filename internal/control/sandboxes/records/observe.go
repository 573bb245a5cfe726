package records

import (
	"context"
	"errors"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Found is the observed state of a sandbox.
type Found struct {
	State  sandbox.State
	Reason string
	Exit   *sandbox.Exit
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

// Observe records an observed state if it differs from the record.
func (s *Records) Observe(ctx context.Context, b *store.Sandbox, now Found) error {
	if s.permanent(ctx, b) && (now.State == sandbox.Gone || now.State == sandbox.Failed || now.State == sandbox.Stopped) {
		now = Found{State: sandbox.Lost, Reason: "the machine does not answer"}
	}
	if b.State == now.State {
		return nil
	}
	fact := audit.Action{Tenant: b.Tenant, Op: ops.SandboxObserve, Sandbox: b.ID, Name: b.Name, Subject: b.Name}
	seen, err := store.Write(ctx, s.Core.Store, func(tx *store.Tx) (store.Sandbox, error) {
		return tx.Sandboxes().Update(ctx, b.Tenant, b.ID, store.Expect{Version: b.Version, Observed: true}, func(b *store.Sandbox) {
			b.State, b.Reason = now.State, now.Reason
			if now.State == sandbox.Paused {
				b.Rest.Pause = sandbox.PauseMemory
			} else if b.Rest.Kept == "" {
				b.Rest.Pause = ""
			}
			if now.Exit != nil {
				b.Exit = now.Exit
			}
		})
	})
	if err != nil {
		return IgnoreChanged(err)
	}
	s.Ports.Sync(&seen)
	if now.State == sandbox.Gone {
		s.Discard(ctx, b)
		s.Workspaces.DetachLater(b.ID, b.Name)
	}
	return s.Core.Audit.Fact(ctx, fact, eventFor(b.State, now.State, now.Exit), func(e *eventlog.Event) {
		if now.Exit != nil {
			e.Reason, e.Exit = now.Exit.Reason, &now.Exit.Code
		}
	})
}

// permanent reports whether a sandbox is a machine that belongs to its user.
// Such a sandbox is never considered gone.
func (s *Records) permanent(ctx context.Context, b *store.Sandbox) bool {
	be, err := s.Providers.Backend(ctx, b.Provider)
	return err == nil && driver.IsPermanent(be.Driver)
}

// Mirror records whether the provider has paused or resumed a sandbox. If the
// provider cannot be reached, nothing changes.
func (s *Records) Mirror(ctx context.Context, b *store.Sandbox) error {
	if b.Node != s.Core.Node || !Resident(b) {
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
	return s.ObservePause(ctx, b, state)
}

// Resident reports whether a sandbox is running or paused in memory.
func Resident(b *store.Sandbox) bool {
	return b.Rest.Step == "" && (b.State == sandbox.Running || b.State == sandbox.Paused && b.Rest.Pause == sandbox.PauseMemory)
}

// ObservePause records that a sandbox was found running, paused or failed, if
// that differs from the record, and updates b.
func (s *Records) ObservePause(ctx context.Context, b *store.Sandbox, state sandbox.State) error {
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
	if err := s.Observe(ctx, b, Found{State: state, Reason: reason}); err != nil {
		return err
	}
	now, err := s.Record(ctx, b.Tenant, b.ID)
	if err == nil {
		*b = now
	}
	return err
}

// IgnoreChanged drops the error that a record was changed since it was read:
// the newer state takes precedence.
func IgnoreChanged(err error) error {
	if sandbox.CodeOf(err) == sandbox.CodeConflict {
		return nil
	}
	return IgnoreGone(err)
}

// IgnoreGone drops the error that a sandbox is gone.
func IgnoreGone(err error) error {
	if errors.Is(err, &sandbox.Error{Code: sandbox.CodeGone}) {
		return nil
	}
	return err
}
