package records

import (
	"cmp"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// The steps that a crash can interrupt, as in store.Rest.Step. Names of fault
// points begin with them.
const (
	StepPause  = "pause"
	StepSleep  = "sleep"
	StepResume = "resume"
	StepStop   = "stop"
	StepStart  = "start"
	StepUpdate = "update"
	StepFork   = "fork" // a copy that is not visible until all copies have been created
)

// Why a sandbox is gone that was ended on purpose.
const (
	ReasonRemoved  = "it was removed"
	ReasonStopped  = "it was stopped"
	ReasonLifetime = "its lifetime ended"
	ReasonUnmade   = "it could not be created"
	ReasonIdle     = "it was idle"
	ReasonLost     = "its node was given up"

	// ReasonUnfinished: the provider never confirmed the creation.
	ReasonUnfinished = "the daemon ended while creating it"
)

// EndedOnPurpose reports whether a sandbox that is gone for a reason was ended by
// Atoll.
func EndedOnPurpose(reason string) bool {
	switch reason {
	case ReasonRemoved, ReasonStopped, ReasonLifetime, ReasonUnmade, ReasonIdle, ReasonLost:
		return true
	}
	return false
}

// ExitOf returns the exit of a removed sandbox for which the provider reported
// none.
func ExitOf(b *store.Sandbox) sandbox.Exit {
	exit := sandbox.Exit{Code: 137, Signal: 9, Reason: sandbox.ReasonKilled, Detail: b.Reason}
	if b.Reason == ReasonLifetime {
		exit.Reason = sandbox.ReasonLifetime
	}
	return exit
}

// ColdReason returns why a sandbox was started from its files only although its
// memory had been saved.
func ColdReason(how driver.Restored) string {
	if how.Memory || how.Why == "" {
		return ""
	}
	return "it started from its files: " + how.Why
}

// Unsupported is the error for an operation that the provider of a sandbox does not support.
func Unsupported(b *store.Sandbox, message, hint string) error {
	return &sandbox.Error{Code: sandbox.CodeUnsupported, Subject: b.Name, Message: message, Hint: hint}
}

// SetLifetime sets the lifetime in a record, starting now.
func SetLifetime(b *store.Sandbox, l sandbox.Lifetime, now time.Time) {
	b.Spec.Lifetime, b.Expires, b.Idle = l, time.Time{}, store.Idle{}
	if l.Timeout > 0 {
		b.Expires = now.Add(l.Timeout)
	}
	if l.Idle > 0 {
		b.Idle = store.Idle{After: l.Idle, Action: string(cmp.Or(l.IdleAction, sandbox.IdleStop))}
	}
}

// SetRunning sets the record of a sandbox to running; its lifetime continues.
func (s *Records) SetRunning(b *store.Sandbox, reason string) {
	if b.Rest.Left > 0 {
		b.Expires = s.Core.Store.Now().Add(b.Rest.Left)
	}
	b.State, b.Reason, b.Rest, b.Exit, b.Active = sandbox.Running, reason, store.Rest{}, nil, s.Core.Store.Now()
}

// Resting describes a sandbox whose saved state is on disk.
type Resting struct {
	State sandbox.State // Paused or Stopped
	Pause sandbox.PauseKind
	Wakes bool
}

// SetResting sets the record of a sandbox to paused or stopped on disk.
func (s *Records) SetResting(b *store.Sandbox, how Resting, id string) {
	left := b.Rest.Left
	b.State, b.Reason, b.Exit = how.State, "", nil
	b.Rest = store.Rest{Pause: how.Pause, Kept: id, Wakes: how.Wakes, Left: left}
	s.HoldClock(b)
}

// HoldClock stops the lifetime in a record.
func (s *Records) HoldClock(b *store.Sandbox) {
	if b.Expires.IsZero() {
		return
	}
	left := b.Expires.Sub(s.Core.Store.Now())
	if left <= 0 && b.Spec.Lifetime.TimeoutAction != "" {
		left = anotherLife
	}
	b.Rest.Left, b.Expires = max(left, 1), time.Time{}
}

// anotherLife is the lifetime of a sandbox that runs again after it was put to
// disk because its time was over, unless another one is set.
const anotherLife = 5 * time.Minute
