package lease

import (
	"testing"
	"time"
)

// RB-97: the pointer moves by compare-and-swap, once, and only while the move is
// the present one.
func TestMoves(t *testing.T) {
	undone := func(l Lease, now time.Time, ops ...Op) {
		t.Helper()
		for _, op := range ops {
			if _, effect, err := Apply(l, op, config, now); err != nil || effect.Done {
				t.Errorf("%#v was done: %v", op, err)
			}
		}
	}
	undone(at(Cold, 1), start, Depart{Epoch: 3})
	undone(at(Warm, 1), start, Depart{Epoch: 2}, Arrive{Epoch: 3, Attempt: 5}, Depart{Epoch: 3, Attempt: 5})
	l, _ := apply(t, at(Warm, 1), start, Depart{Epoch: 3})
	if l.Attempt != 6 || l.Moving != start.Add(config.Warming) || l.Epoch != 3 {
		t.Fatalf("departed: %+v", l)
	}
	undone(l, start, Depart{Epoch: 3}, Arrive{Epoch: 3, Attempt: 5}, Arrive{Epoch: 2, Attempt: 6}, Stay{3, 5})
	later := start.Add(config.Warming)
	renewed, _ := apply(t, l, later.Add(-3*time.Second), Depart{Epoch: 3, Attempt: 6})
	undone(renewed, later, Tick{})

	// When its time is over, the old sandbox serves again, so it can neither arrive nor go on.
	undone(l, later, Arrive{Epoch: 3, Attempt: 6}, Depart{Epoch: 3, Attempt: 6})
	if back, _ := apply(t, l, later, Stay{3, 6}); !back.Moving.IsZero() {
		t.Errorf("stayed late: %+v", back)
	}

	// If the mover dies, the sandbox continues, and a late result is refused.
	stuck, _ := apply(t, l, later, Tick{})
	if stuck.State != Warm || stuck.Sandbox != "sb-1" {
		t.Errorf("a move that was given up: %+v", stuck)
	}
	undone(stuck, later, Arrive{Epoch: 3, Attempt: 6})
	lost, _ := apply(t, l, start, Lost{3, "sb-1"})
	undone(lost, start, Arrive{Epoch: 3, Attempt: 6})
	stayed, _ := apply(t, l, start, Stay{3, 6})
	if !stayed.Moving.IsZero() || stayed.Epoch != 3 || stayed.Sandbox != "sb-1" {
		t.Errorf("stayed: %+v", stayed)
	}

	l, _ = apply(t, l, start, Arrive{Epoch: 3, Attempt: 6, Sandbox: "sb-2"}, Depart{Epoch: 4}, Arrive{Epoch: 4, Attempt: 7, Sandbox: "sb-3"})
	if l.Epoch != 5 || l.Sandbox != "sb-3" || !l.Moving.IsZero() {
		t.Errorf("arrived: %+v", l)
	}
	for epoch, want := range map[int64]bool{2: false, 3: true, 4: true, 5: true, 6: false} {
		if l.Follows(epoch) != want {
			t.Errorf("epoch %d follows: %v, want %v", epoch, !want, want)
		}
	}
	l, _ = apply(t, l, start, Lost{5, "sb-3"}, turn("t1"), Commit{Epoch: 5, Attempt: 8, Sandbox: "sb-4"})
	if l.Follows(5) || l.Follows(3) || !l.Follows(6) {
		t.Errorf("a rebuilt sandbox is followed: %+v", l)
	}
}

// A daemon that starts ends the attempt, the move and the holders of its own
// dead process, and nothing else (RB-56).
func TestRestart(t *testing.T) {
	own := func(id string) bool { return id == "daemon-a-1" }
	restart := Restart{Spawner: "a", Own: own}
	spawning, _ := apply(t, at(Cold, 0), start, Acquire{Kind: Turn, ID: "t1", Spawner: "a"})
	moving, _ := apply(t, at(Warm, 1), start, Depart{Epoch: 3, Spawner: "a"})
	held, _ := apply(t, at(Warm, 0), start, Acquire{Kind: Operator, ID: "daemon-a-1"})
	shared, _ := apply(t, at(Warm, 1), start, Acquire{Kind: Operator, ID: "daemon-b-1"})
	for _, tt := range []struct {
		name    string
		lease   Lease
		op      Restart
		done    bool
		state   State
		holders int
	}{
		{"its attempt", spawning, restart, true, Cold, 1},
		{"the attempt of another", spawning, Restart{Spawner: "b", Own: own}, false, Warming, 1},
		{"its move", moving, restart, true, Warm, 1},
		{"the move of another", moving, Restart{Spawner: "b", Own: own}, false, Warm, 1},
		{"its last holder", held, restart, true, Draining, 0},
		{"the holders of others", shared, restart, false, Warm, 2},
		{"a lease of an earlier version", at(Warming, 1), Restart{Own: own}, false, Warming, 1},
	} {
		l, effect, err := Apply(tt.lease, tt.op, config, start)
		if err != nil || effect.Done != tt.done || l.State != tt.state || len(l.Holders) != tt.holders {
			t.Errorf("%s: %v, %v, %+v", tt.name, err, effect.Done, l)
		}
		if tt.done && !l.Moving.IsZero() {
			t.Errorf("%s: it still moves", tt.name)
		}
	}
	next, effect := apply(t, spawning, start, restart, Acquire{Kind: Turn, ID: "t1", Spawner: "a"})
	if effect.Role != Spawner || next.Attempt != spawning.Attempt+1 {
		t.Errorf("the next caller: %+v, %+v", effect, next)
	}
}
