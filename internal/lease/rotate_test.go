package lease

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// A sandbox that is in use near its deadline is drained anyway: it serves no
// requests, its holders stay, and they get the next one (RB-58).
func TestEviction(t *testing.T) {
	if _, effect, _ := Apply(at(Warm, 1), Evict{3}, config, start); effect.Done {
		t.Error("a sandbox was evicted that does not rotate")
	}
	l, _ := apply(t, at(Warm, 1), start, Rotate{3}, Evict{3})
	if l.State != Draining || len(l.Holders) != 1 || l.Serves() {
		t.Fatalf("after the eviction: %+v", l)
	}
	if _, effect, _ := Apply(l, Heartbeat{Turn, "t1", 3}, config, start); effect.Done {
		t.Error("a sandbox that serves nobody took a heartbeat")
	}
	if _, effect, _ := Apply(l, Save{Epoch: 3, Archive: json.RawMessage(`1`)}, config, start); effect.Done {
		t.Error("a sandbox that serves nobody was saved")
	}
	l, effect := apply(t, l, start, turn("t2"))
	if effect.Role != Attached || l.State != Draining {
		t.Fatalf("a sandbox that is evicted was kept: %+v, %+v", effect, l)
	}
	if _, effect, _ := Apply(l, Tick{}, config, start); !effect.Due {
		t.Error("another reaper does not go on")
	}
	l, _ = apply(t, l, start, Persist{3, l.Drains, json.RawMessage(`1`)}, Begin{3, l.Drains}, Confirm{Epoch: 3, Drain: l.Drains})
	if l.State != Cold || len(l.Holders) != 2 || l.Evicting {
		t.Fatalf("after the end: %+v", l)
	}
	l, effect = apply(t, l, start, turn("t1"))
	if effect.Role != Spawner {
		t.Fatalf("the holder is %q", effect.Role)
	}
	if l, _ = apply(t, l, start, Commit{Epoch: 3, Attempt: l.Attempt, Sandbox: "sb-2"}); l.Rotating || l.Epoch != 4 || !l.Serves() {
		t.Errorf("the next sandbox: %+v", l)
	}
}

// A sandbox that cannot be saved continues, and is rotated again later (RB-58).
func TestFailedCaptureKeepsTheSandbox(t *testing.T) {
	l, _ := apply(t, at(Warm, 1), start, Rotate{3}, Evict{3})
	kept, _ := apply(t, l, start, Keep{3, l.Drains})
	if !kept.Serves() || kept.State != Warm || kept.Rotating || !kept.Retry.Equal(start.Add(retryRotation)) {
		t.Errorf("after a failed capture: %+v", kept)
	}
	for _, op := range []Op{Begin{3, l.Drains}, Keep{3, l.Drains}} {
		if _, effect, _ := Apply(kept, op, config, start); effect.Done {
			t.Errorf("%#v was done", op)
		}
	}
	l, _ = apply(t, l, start, Persist{3, l.Drains, json.RawMessage(`1`)}, Begin{3, l.Drains})
	if _, effect, _ := Apply(l, Keep{3, l.Drains}, config, start); effect.Done {
		t.Error("a sandbox that is being ended was kept")
	}
}

// The last quarter of the lead is kept for saving: a rotation that was put off
// is tried again when it begins, and not after it (RB-58).
func TestLastQuarterIsKept(t *testing.T) {
	for left, want := range map[time.Duration]time.Duration{18 * time.Minute: 3 * time.Minute, 14 * time.Minute: 5 * time.Minute} {
		l := at(Warm, 1)
		l.Began, l.Deadline = start.Add(-24*time.Hour), start.Add(left)
		l, _ = apply(t, l, start, Rotate{3}, Evict{3})
		l, _ = apply(t, l, start, Keep{3, l.Drains})
		if got := l.Retry.Sub(start); got != want {
			t.Errorf("%v before the deadline: the next attempt is after %v, want %v", left, got, want)
		}
	}
}

// Half of a short lifetime is the most that replacing a sandbox may take of it (RB-58).
func TestLead(t *testing.T) {
	for life, want := range map[time.Duration]time.Duration{24 * time.Hour: time.Hour, time.Hour: 30 * time.Minute, 0: time.Hour} {
		l := Lease{Began: start}
		if life > 0 {
			l.Deadline = start.Add(life)
		}
		if got := l.Lead(); got != want {
			t.Errorf("a lifetime of %v: %v, want %v", life, got, want)
		}
	}
}

// A turn continues when a limit is reached, with the requests that serve it (RB-59).
func TestTurnsPassTheGate(t *testing.T) {
	operator := Acquire{Kind: Operator, ID: "daemon"}
	l, _ := apply(t, at(Warm, 1), start, operator, Acquire{Kind: Viewer, ID: "v"}, Gate{true})
	if len(l.Holders) != 2 || l.Count(Viewer) != 0 {
		t.Fatalf("after the limit: %+v", l.Holders)
	}
	l, _ = apply(t, l, start, turn("t2"), Acquire{Kind: Operator, ID: "other"}, Release{Turn, "t1"}, Release{Turn, "t2"}, Tick{})
	if l.State != Draining || len(l.Holders) != 0 {
		t.Fatalf("after the turns: %+v", l)
	}
	if _, _, err := Apply(l, operator, config, start); sandbox.CodeOf(err) != sandbox.CodeExhausted {
		t.Errorf("an operator re-armed the sandbox: %v", err)
	}
}

// A turn with a permanent failure gets the same error again; other turns try (RB-43).
func TestFailuresAreRemembered(t *testing.T) {
	why := &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "session.resume", Message: "no such archive", Cause: context.Canceled}
	l, _ := apply(t, Lease{Group: "g"}, start, turn("a"), Fail{Attempt: 1}, GiveUp{Turn, "a", why})
	if _, _, err := Apply(l, turn("a"), config, start); sandbox.CodeOf(err) != why.Code || err.Error() != why.Error() {
		t.Errorf("the turn is told %v", err)
	}
	if l.Failures[0].Err.Cause != nil {
		t.Error("a cause was kept")
	}
	if _, effect := apply(t, l, start, turn("b")); effect.Role != Spawner {
		t.Errorf("another turn is %q", effect.Role)
	}
	if _, effect := apply(t, l, start, Release{Turn, "a"}, turn("a")); effect.Role != Spawner {
		t.Errorf("after it ended, the turn is %q", effect.Role)
	}
	l, _ = apply(t, l, start, turn("b"), Commit{Attempt: 2, Sandbox: "sb-1"})
	if _, effect := apply(t, l, start, turn("a")); effect.Role != Attached {
		t.Errorf("with a sandbox, the turn is %q", effect.Role)
	}
	for range 2 * maxFailures {
		l, _ = apply(t, l, start, GiveUp{Turn, "x" + l.Group, why})
		l.Group += "x"
	}
	if len(l.Failures) != maxFailures {
		t.Errorf("%d failures are kept, want %d", len(l.Failures), maxFailures)
	}
}
