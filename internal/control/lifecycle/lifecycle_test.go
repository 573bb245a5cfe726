package lifecycle_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/sandbox"
)

var (
	creating = lifecycle.Sandbox{Name: "box", State: sandbox.Creating}
	running  = lifecycle.Sandbox{Name: "box", State: sandbox.Running}
	frozen   = lifecycle.Sandbox{Name: "box", State: sandbox.Paused, Pause: sandbox.PauseMemory}
	dozing   = lifecycle.Sandbox{Name: "box", State: sandbox.Paused, Pause: sandbox.PauseMemory, Wakes: true}
	asleep   = lifecycle.Sandbox{Name: "box", State: sandbox.Paused, Pause: sandbox.PauseDisk, Kept: true}
	stopped  = lifecycle.Sandbox{Name: "box", State: sandbox.Stopped, Kept: true}
	ended    = lifecycle.Sandbox{Name: "box", State: sandbox.Stopped, Reason: "it ended: exited"}
	failed   = lifecycle.Sandbox{Name: "box", State: sandbox.Failed}
	lost     = lifecycle.Sandbox{Name: "box", State: sandbox.Lost}
	gone     = lifecycle.Sandbox{Name: "box", State: sandbox.Gone, Reason: "it was removed"}
	between  = lifecycle.Sandbox{Name: "box", State: sandbox.Pausing}
)

func TestDecide(t *testing.T) {
	const act, done, wake = "act", "done", "wake"
	const again, resume, start, rm = "conflict try again", "conflict atoll resume box", "conflict atoll start box", "conflict atoll rm box"
	ops := lifecycle.Ops() // use, pause, sleep, resume, stop, start, update, snapshot, fork
	for _, c := range []struct {
		sandbox lifecycle.Sandbox
		want    [9]string
	}{
		{creating, [9]string{again, again, again, again, again, again, again, again, again}},
		{running, [9]string{act, act, act, done, act, done, act, act, act}},
		{frozen, [9]string{resume, done, act, act, act, resume, act, resume, resume}},
		{dozing, [9]string{wake, done, act, act, act, resume, act, resume, resume}},
		{asleep, [9]string{resume, done, done, act, resume, resume, act, act, act}},
		{stopped, [9]string{start, start, start, start, done, act, act, act, act}},
		{ended, [9]string{rm, rm, rm, rm, done, rm, act, rm, rm}},
		{failed, [9]string{rm, rm, rm, rm, rm, rm, rm, rm, rm}},
		{lost, [9]string{"unavailable", "unavailable", "unavailable", "unavailable", "unavailable", "unavailable", "unavailable", "unavailable", "unavailable"}},
		{gone, [9]string{"gone", "gone", "gone", "gone", "gone", "gone", "gone", "gone", "gone"}},
		{between, [9]string{again, again, again, again, again, again, again, again, again}},
	} {
		for i, op := range ops {
			verdict, err := lifecycle.Decide(c.sandbox, op)
			want, hint, _ := strings.Cut(c.want[i], " ")
			if err == nil {
				if got := []string{"refuse", done, act, wake}[verdict]; got != want {
					t.Errorf("%s of %+v: %s, want %s", op, c.sandbox, got, want)
				}
				continue
			}
			var known *sandbox.Error
			if !errors.As(err, &known) || verdict != lifecycle.Refuse || string(known.Code) != want || !strings.Contains(known.Hint, hint) {
				t.Errorf("%s of %+v: %v (%+v), want %s", op, c.sandbox, err, known, c.want[i])
			}
		}
	}
}

// Stopped, gone and unreachable are three different answers.
func TestAnswersDiffer(t *testing.T) {
	seen := map[string]lifecycle.Sandbox{}
	for _, b := range []lifecycle.Sandbox{creating, frozen, asleep, stopped, ended, failed, lost, gone} {
		_, err := lifecycle.Decide(b, lifecycle.Use)
		if err == nil {
			t.Fatalf("%+v can be used", b)
		}
		if other, twice := seen[err.Error()]; twice {
			t.Errorf("%+v and %+v are told apart by nothing: %v", b, other, err)
		}
		seen[err.Error()] = b
	}
}

// After any sequence of operations, the sandbox is in a valid state.
func TestAfter(t *testing.T) {
	for _, b := range []lifecycle.Sandbox{creating, running, frozen, dozing, asleep, stopped, ended, failed, lost, gone, between} {
		for _, op := range lifecycle.Ops() {
			for _, keeps := range []bool{true, false} {
				to := lifecycle.After(b, op, keeps)
				if (to.Pause != "") != (to.State == sandbox.Paused) {
					t.Errorf("%s makes %+v of %+v", op, to, b)
				}
				if verdict, err := lifecycle.Decide(b, op); (err != nil || verdict == lifecycle.Done) && to != b {
					t.Errorf("%s is not to be done and makes %+v of %+v", op, to, b)
				}
			}
		}
	}
}
