package lease

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

var (
	start  = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	config = Config{Warming: time.Minute, Grace: 10 * time.Minute, ViewerTTL: 90 * time.Second, Viewers: 2}
)

// at returns a lease in a state, at epoch 3 and attempt 5 unless it is cold and
// new, with turn holders t1, t2, ….
func at(state State, turns int) Lease {
	l := Lease{Group: "g", State: state, Epoch: 3, Attempt: 5}
	for i := range turns {
		l.Holders = append(l.Holders, Holder{Kind: Turn, ID: fmt.Sprintf("t%d", i+1), Beat: start})
	}
	switch state {
	case Warming:
		l.Expires = start.Add(time.Minute)
	case Draining:
		l.Expires, l.Drains = start.Add(10*time.Minute), 7
	}
	if state == Warm || state == Draining {
		l.Provider, l.Sandbox, l.Image, l.Ref, l.Metered = "p", "sb-1", "debian", json.RawMessage(`{}`), start
	}
	return l
}

func turn(id string) Acquire { return Acquire{Kind: Turn, ID: id} }

// The table of RB-48: what each operation does in each state.
func TestOperations(t *testing.T) {
	tests := []struct {
		name    string
		lease   Lease
		op      Op
		after   time.Duration
		state   State
		epoch   int64
		holders int
		role    Role
		undone  bool
		code    sandbox.Code
	}{
		{name: "the first holder is the spawner", lease: at(Cold, 0), op: turn("a"), state: Warming, epoch: 3, holders: 1, role: Spawner},
		{name: "a cold lease with holders has a spawner again", lease: at(Cold, 1), op: turn("t1"), state: Warming, epoch: 3, holders: 1, role: Spawner},
		{name: "the second waits", lease: at(Warming, 1), op: turn("a"), state: Warming, epoch: 3, holders: 2, role: Attached},
		{name: "a warm sandbox is shared", lease: at(Warm, 1), op: turn("a"), state: Warm, epoch: 3, holders: 2, role: Attached},
		{name: "acquiring twice holds once", lease: at(Warm, 1), op: turn("t1"), state: Warm, epoch: 3, holders: 1, role: Attached},
		{name: "a draining sandbox is kept", lease: at(Draining, 0), op: turn("a"), state: Warm, epoch: 3, holders: 1, role: Rearmed},
		{name: "a turn of an old epoch is fenced", lease: at(Warm, 1), op: Acquire{Kind: Turn, ID: "a", Epoch: 2}, state: Warm, epoch: 3, holders: 1, code: sandbox.CodeStale},
		{name: "a turn of an old epoch does not re-arm", lease: at(Draining, 0), op: Acquire{Kind: Turn, ID: "a", Epoch: 2}, state: Draining, epoch: 3, code: sandbox.CodeStale},
		{name: "a viewer has no epoch", lease: at(Warm, 1), op: Acquire{Kind: Viewer, ID: "v", Epoch: 2}, state: Warm, epoch: 3, holders: 2, role: Attached},
		{name: "a holder needs an id", lease: at(Warm, 1), op: turn(""), state: Warm, epoch: 3, holders: 1, code: sandbox.CodeInvalid},
		{name: "a holder needs a kind", lease: at(Warm, 1), op: Acquire{Kind: "x", ID: "a"}, state: Warm, epoch: 3, holders: 1, code: sandbox.CodeInvalid},

		{name: "a commit raises the epoch", lease: at(Warming, 1), op: Commit{Epoch: 3, Attempt: 5, Sandbox: "s"}, state: Warm, epoch: 4, holders: 1},
		{name: "a commit without holders drains", lease: at(Warming, 0), op: Commit{Epoch: 3, Attempt: 5, Sandbox: "s"}, state: Draining, epoch: 4},
		{name: "a commit of another epoch", lease: at(Warming, 1), op: Commit{Epoch: 2, Attempt: 5}, state: Warming, epoch: 3, holders: 1, undone: true},
		{name: "a commit of a spawner that was given up", lease: at(Warming, 1), op: Commit{Epoch: 3, Attempt: 4}, state: Warming, epoch: 3, holders: 1, undone: true},
		{name: "a second commit", lease: at(Warm, 1), op: Commit{Epoch: 3, Attempt: 5}, state: Warm, epoch: 3, holders: 1, undone: true},
		{name: "a commit on a cold lease", lease: at(Cold, 1), op: Commit{Epoch: 3, Attempt: 5}, state: Cold, epoch: 3, holders: 1, undone: true},

		{name: "a failure keeps the holders", lease: at(Warming, 2), op: Fail{Epoch: 3, Attempt: 5}, state: Cold, epoch: 3, holders: 2},
		{name: "a late failure", lease: at(Warming, 2), op: Fail{Epoch: 3, Attempt: 4}, state: Warming, epoch: 3, holders: 2, undone: true},
		{name: "a failure on a warm lease", lease: at(Warm, 1), op: Fail{Epoch: 3, Attempt: 5}, state: Warm, epoch: 3, holders: 1, undone: true},

		{name: "a lost sandbox", lease: at(Warm, 1), op: Lost{Epoch: 3, Sandbox: "sb-1"}, state: Cold, epoch: 3, holders: 1},
		{name: "another sandbox is lost", lease: at(Warm, 1), op: Lost{Epoch: 3, Sandbox: "sb-2"}, state: Warm, epoch: 3, holders: 1, undone: true},
		{name: "a sandbox of another epoch is lost", lease: at(Warm, 1), op: Lost{Epoch: 2, Sandbox: "sb-1"}, state: Warm, epoch: 3, holders: 1, undone: true},

		{name: "the last holder starts draining", lease: at(Warm, 1), op: Release{Turn, "t1"}, state: Draining, epoch: 3},
		{name: "another holder stays", lease: at(Warm, 2), op: Release{Turn, "t1"}, state: Warm, epoch: 3, holders: 1},
		{name: "a release while warming only counts", lease: at(Warming, 1), op: Release{Turn, "t1"}, state: Warming, epoch: 3},
		{name: "releasing nothing", lease: at(Draining, 0), op: Release{Turn, "x"}, state: Draining, epoch: 3},

		{name: "a heartbeat", lease: at(Warm, 1), op: Heartbeat{Turn, "t1", 3}, state: Warm, epoch: 3, holders: 1},
		{name: "a heartbeat of an old epoch", lease: at(Warm, 1), op: Heartbeat{Turn, "t1", 2}, state: Warm, epoch: 3, holders: 1, undone: true},
		{name: "a heartbeat of nobody", lease: at(Warm, 1), op: Heartbeat{Turn, "x", 3}, state: Warm, epoch: 3, holders: 1, undone: true},
		{name: "draining takes no heartbeat", lease: at(Draining, 1), op: Heartbeat{Turn, "t1", 3}, state: Draining, epoch: 3, holders: 1, undone: true},

		{name: "a drain is persisted", lease: at(Draining, 0), op: Persist{3, 7, json.RawMessage(`1`)}, state: Draining, epoch: 3},
		{name: "a re-armed drain is not persisted", lease: at(Warm, 1), op: Persist{3, 7, json.RawMessage(`1`)}, state: Warm, epoch: 3, holders: 1, undone: true},
		{name: "a drain of another epoch is not persisted", lease: at(Draining, 0), op: Persist{2, 7, nil}, state: Draining, epoch: 3, undone: true},
		{name: "a drain is confirmed", lease: at(Draining, 0), op: Confirm{Epoch: 3, Drain: 7}, state: Cold, epoch: 3},
		{name: "a re-armed drain is not confirmed", lease: at(Warm, 1), op: Confirm{Epoch: 3, Drain: 7}, state: Warm, epoch: 3, holders: 1, undone: true},
		{name: "a drain of another epoch is not confirmed", lease: at(Draining, 0), op: Confirm{Epoch: 4, Drain: 7}, state: Draining, epoch: 3, undone: true},

		{name: "an old drain is not persisted", lease: at(Draining, 0), op: Persist{3, 6, json.RawMessage(`1`)}, state: Draining, epoch: 3, undone: true},
		{name: "an old drain is not confirmed", lease: at(Draining, 0), op: Confirm{Epoch: 3, Drain: 6}, state: Draining, epoch: 3, undone: true},
		{name: "nothing is ended before it is captured", lease: at(Draining, 0), op: Begin{3, 7}, state: Draining, epoch: 3, undone: true},

		{name: "a spawner's time is up", lease: at(Warming, 1), op: Tick{}, after: time.Minute, state: Cold, epoch: 3, holders: 1},
		{name: "a spawner has time", lease: at(Warming, 1), op: Tick{}, after: time.Minute - 1, state: Warming, epoch: 3, holders: 1, undone: true},
		{name: "turns do not expire", lease: at(Warm, 1), op: Tick{}, after: time.Hour, state: Warm, epoch: 3, holders: 1, undone: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := fmt.Sprint(tt.lease)
			got, effect, err := Apply(tt.lease, tt.op, config, start.Add(tt.after))
			if sandbox.CodeOf(err) != tt.code {
				t.Fatalf("error %v, want code %q", err, tt.code)
			}
			if got.State != tt.state || got.Epoch != tt.epoch || len(got.Holders) != tt.holders || effect.Role != tt.role {
				t.Errorf("state %s, epoch %d, %d holders, role %q; want %s, %d, %d, %q", got.State, got.Epoch, len(got.Holders), effect.Role, tt.state, tt.epoch, tt.holders, tt.role)
			}
			if want := !tt.undone && tt.code == ""; effect.Done != want {
				t.Errorf("done %v, want %v", effect.Done, want)
			}
			if !effect.Done && fmt.Sprint(got) != before || fmt.Sprint(tt.lease) != before {
				t.Errorf("an operation that was not done changed the lease:\n%s\n%v", before, got)
			}
		})
	}
}

// apply carries out operations that must all be done.
func apply(t *testing.T, l Lease, now time.Time, ops ...Op) (Lease, Effect) {
	t.Helper()
	var effect Effect
	for _, op := range ops {
		var err error
		if l, effect, err = Apply(l, op, config, now); err != nil || !effect.Done {
			t.Fatalf("%#v: %+v, %v", op, effect, err)
		}
	}
	return l, effect
}

// RB-48.
func TestPersistKeepsWhatItReplaces(t *testing.T) {
	l := at(Draining, 0)
	l.Archive = json.RawMessage(`"old"`)
	l, effect := apply(t, l, start, Persist{3, 7, json.RawMessage(`"new"`)})
	if string(effect.Prior) != `"old"` || string(l.Archive) != `"new"` {
		t.Errorf("prior %s, archive %s", effect.Prior, l.Archive)
	}
	l, effect = apply(t, l, start, Persist{3, 7, nil}, Confirm{Epoch: 3, Drain: 7})
	if effect.Prior != nil || string(l.Archive) != `"new"` || l.Sandbox != "" || l.Ref != nil {
		t.Errorf("after the end: %+v", l)
	}
}

// RB-56.
func TestEndingCannotBeUndone(t *testing.T) {
	l, _ := apply(t, at(Draining, 0), start, Persist{3, 7, json.RawMessage(`1`)}, Begin{3, 7}, Begin{3, 7})
	l, effect := apply(t, l, start, turn("a"))
	if effect.Role != Attached || l.State != Draining {
		t.Fatalf("a sandbox that is being ended was kept: %+v, %+v", effect, l)
	}
	if l, effect = apply(t, l, start, Tick{}); !effect.Due {
		t.Error("another reaper does not go on")
	}
	l, _ = apply(t, l, start, Confirm{Epoch: 3, Drain: 7})
	if _, effect = apply(t, l, start, turn("a")); effect.Role != Spawner || l.Ending || l.Sandbox != "" {
		t.Errorf("who waited is %q, lease %+v", effect.Role, l)
	}
	// Used between the capture and the end: the capture is outdated.
	l, _ = apply(t, at(Draining, 0), start, Persist{3, 7, json.RawMessage(`1`)}, turn("a"), Release{Turn, "a"})
	for _, op := range []Op{Begin{3, 7}, Begin{3, 8}, Persist{3, 7, nil}} {
		if _, effect, _ := Apply(l, op, config, start); effect.Done {
			t.Errorf("%#v was done", op)
		}
	}
}

// RB-48.
func TestPausedSandboxIsResumed(t *testing.T) {
	l, _ := apply(t, at(Draining, 0), start, Confirm{Epoch: 3, Drain: 7, Paused: true})
	if l.State != Cold || l.Sandbox != "sb-1" || l.Ref == nil {
		t.Fatalf("the paused sandbox was forgotten: %+v", l)
	}
	l, _ = apply(t, l, start, turn("a"), Fail{Epoch: 3, Attempt: 6})
	if l.Sandbox != "sb-1" {
		t.Error("a failure without proof forgot the sandbox")
	}
	l, _ = apply(t, l, start, turn("a"), Fail{Epoch: 3, Attempt: 7, Gone: true})
	if l.Sandbox != "" || l.Ref != nil {
		t.Error("a sandbox that is proved gone is still named")
	}
}

// RB-49.
func TestImage(t *testing.T) {
	want := Acquire{Kind: Turn, ID: "t1", Image: "alpine"}
	if l, _ := apply(t, at(Warm, 1), start, want); l.State != Draining || len(l.Holders) != 0 || l.Sandbox != "sb-1" {
		t.Errorf("the sandbox of another image is not drained: %+v", l)
	}
	if _, _, err := Apply(at(Warm, 2), want, config, start); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("others use the sandbox: %v", err)
	}
	unknown := at(Warm, 2)
	unknown.Image = ""
	if l, _ := apply(t, unknown, start, want); l.State != Warm {
		t.Error("an unknown image conflicts")
	}
}

// RB-52.
func TestLateSpawnerCannotPublish(t *testing.T) {
	l, _ := apply(t, Lease{Group: "g"}, start, turn("a"))
	first := l.Attempt
	l, _ = apply(t, l, start.Add(time.Minute), Tick{}, turn("b"))
	if _, effect, _ := Apply(l, Commit{Epoch: l.Epoch, Attempt: first}, config, start); effect.Done {
		t.Error("a spawner that was given up committed")
	}
	apply(t, l, start, Commit{Epoch: l.Epoch, Attempt: l.Attempt})
}

// RB-53.
func TestFiftyAcquires(t *testing.T) {
	l, spawners := Lease{Group: "g"}, 0
	for i := range 50 {
		var effect Effect
		if l, effect = apply(t, l, start, turn(fmt.Sprint(i))); effect.Role == Spawner {
			spawners++
		}
	}
	if spawners != 1 || len(l.Holders) != 50 {
		t.Errorf("%d spawners, %d holders; want 1 and 50", spawners, len(l.Holders))
	}
}

// RB-54.
func TestViewerCap(t *testing.T) {
	l, _ := apply(t, at(Warm, 1), start, Acquire{Kind: Viewer, ID: "1"}, Acquire{Kind: Viewer, ID: "2"}, Acquire{Kind: Viewer, ID: "2"})
	if _, _, err := Apply(l, Acquire{Kind: Viewer, ID: "3"}, config, start); sandbox.CodeOf(err) != sandbox.CodeExhausted {
		t.Errorf("a third viewer: %v", err)
	}
	apply(t, l, start, turn("t2"))
}

// RB-55.
func TestLeaseSweep(t *testing.T) {
	l, _ := apply(t, at(Warm, 0), start, Acquire{Kind: Viewer, ID: "v"})
	if _, effect, _ := Apply(l, Tick{}, config, start.Add(config.ViewerTTL)); effect.Due {
		t.Error("a viewer at its limit was removed")
	}
	later := start.Add(config.ViewerTTL + 1)
	l, effect := apply(t, l, later, Tick{})
	if l.State != Draining || len(l.Holders) != 0 || effect.Due {
		t.Fatalf("after the viewer: %+v, %+v", l, effect)
	}
	if _, effect = apply(t, l, later.Add(config.Grace), Tick{}); !effect.Due {
		t.Error("the grace period is over and the sandbox is not due")
	}
	warming := at(Warming, 0)
	warming.Archive = json.RawMessage(`1`)
	if l, _ := apply(t, warming, start.Add(time.Hour), Tick{}); l.State != Cold || l.Archive == nil {
		t.Errorf("an abandoned attempt lost the archive: %+v", l)
	}
}

// RB-58.
func TestRotation(t *testing.T) {
	l, _ := apply(t, at(Warm, 1), start, Rotate{3})
	if _, _, err := Apply(l, turn("new"), config, start); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("a sandbox that is being replaced took a holder: %v", err)
	}
	l, _ = apply(t, l, start, turn("t1"), Release{Turn, "t1"})
	if l, effect, _ := Apply(l, Tick{}, config, start); !effect.Due || l.State != Draining {
		t.Errorf("a rotating sandbox waits: %+v", effect)
	}
	l, _ = apply(t, l, start, Confirm{Epoch: 3, Drain: 1}, turn("new"), Commit{Epoch: 3, Attempt: 6, Sandbox: "sb-2"})
	if l.Epoch != 4 || l.Rotating {
		t.Errorf("after the rotation: %+v", l)
	}
}

// RB-59.
func TestMetering(t *testing.T) {
	l, effect := apply(t, at(Warm, 1), start.Add(10*time.Second), Meter{3})
	if effect.Warm != 10*time.Second {
		t.Errorf("counted %v", effect.Warm)
	}
	for _, clock := range []time.Duration{10 * time.Second, 4 * time.Second} {
		if l, effect = apply(t, l, start.Add(clock), Meter{3}); effect.Warm != 0 {
			t.Errorf("at %v counted %v again", clock, effect.Warm)
		}
	}
	if _, effect, _ := Apply(l, Meter{2}, config, start.Add(time.Hour)); effect.Done {
		t.Error("another epoch was metered")
	}
	if _, effect, _ := Apply(l, Tick{}, config, start.Add(time.Hour)); effect.Warm != 0 {
		t.Error("the sweep metered a sandbox that a turn holds")
	}
	l, _ = apply(t, l, start, Acquire{Kind: Viewer, ID: "v"}, Gate{true})
	if l.Count(Viewer) != 0 || l.Count(Turn) != 1 || l.State != Warm {
		t.Errorf("after the limit: %+v", l)
	}
	if _, _, err := Apply(l, Acquire{Kind: Viewer, ID: "v"}, config, start); sandbox.CodeOf(err) != sandbox.CodeExhausted {
		t.Errorf("a viewer passed the gate: %v", err)
	}
	apply(t, l, start, Gate{false}, Acquire{Kind: Viewer, ID: "v"})
}

// RB-57.
func TestLeaseDurations(t *testing.T) {
	if err := Default().Check(Sweep, 0, time.Hour); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
	bad := map[string]error{
		"sweep":  Default().Check(2*time.Minute, 0, 0),
		"idle":   Default().Check(Sweep, 2*time.Hour, time.Hour),
		"viewer": Default().Check(Sweep, time.Minute, time.Hour),
		"grace":  Default().Check(Sweep, 15*time.Minute, time.Hour),
		"hard":   Default().Check(Sweep, 0, 15*time.Minute),
		"zero":   Config{}.Check(Sweep, 0, 0),
	}
	for name, err := range bad {
		if sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Saving archives a running sandbox; it does not count as the capture before
// its end (RB-56).
func TestSaveIsNoCapture(t *testing.T) {
	now, cfg := time.Unix(1000, 0), Default()
	do := func(l Lease, op Op) (Lease, Effect) {
		t.Helper()
		after, effect, err := Apply(l, op, cfg, now)
		if err != nil {
			t.Fatal(err)
		}
		return after, effect
	}
	l, _ := do(Lease{Group: "g"}, Acquire{Kind: Operator, ID: "a"})
	if _, effect := do(l, Save{Archive: []byte(`1`)}); effect.Done {
		t.Error("a warming sandbox was saved")
	}
	l, _ = do(l, Commit{Attempt: 1, Sandbox: "sb"})
	if _, effect := do(l, Save{Epoch: 2, Archive: []byte(`1`)}); effect.Done {
		t.Error("a save of another epoch was kept")
	}
	l, effect := do(l, Save{Epoch: 1, Archive: []byte(`1`)})
	if !effect.Done || effect.Prior != nil || string(l.Archive) != "1" {
		t.Errorf("the first save: %+v, %s", effect, l.Archive)
	}
	if l, effect = do(l, Save{Epoch: 1, Archive: []byte(`2`)}); string(effect.Prior) != "1" || string(l.Archive) != "2" {
		t.Errorf("the second save: prior %s, archive %s; want 1 and 2", effect.Prior, l.Archive)
	}
	l, _ = do(l, Release{Kind: Operator, ID: "a"})
	if _, effect = do(l, Begin{Epoch: 1, Drain: l.Drains}); effect.Done {
		t.Error("a sandbox was ended that was not captured since it began to drain")
	}
}

func TestHoldersAreBounded(t *testing.T) {
	l := at(Warm, 1)
	for i := range MaxHolders {
		l.Holders = append(l.Holders, Holder{Kind: Turn, ID: fmt.Sprint(i), Beat: start})
	}
	if _, _, err := Apply(l, turn("one more"), config, start); sandbox.CodeOf(err) != sandbox.CodeExhausted {
		t.Errorf("one more holder than allowed: %v", err)
	}
	apply(t, l, start, turn("7")) // a heartbeat of one of them
}
