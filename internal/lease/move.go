package lease

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Depart begins to move a warm session to another sandbox, created by a new
// attempt, or renews a move. Until the move ends, the old sandbox serves no
// requests, so that nothing is written to it after its files were copied.
type Depart struct {
	Epoch   int64
	Attempt int64 // 0: begin; otherwise the move to renew
	Spawner string
}

func (o Depart) apply(m *machine) (Effect, error) {
	l := &m.lease
	switch {
	case l.State != Warm || l.Epoch != o.Epoch:
		return Effect{}, nil
	case o.Attempt == 0 && !l.Moving.IsZero() && m.now.Before(l.Moving):
		return Effect{}, nil // another caller is moving it
	case o.Attempt != 0 && !m.inMove(o.Epoch, o.Attempt):
		return Effect{}, nil
	case o.Attempt == 0:
		l.Attempt++
		l.Spawner = o.Spawner
	}
	l.Moving = m.now.Add(m.cfg.Warming)
	return Effect{Done: true}, nil
}

// Arrive ends a move: the new sandbox serves the session, under a new epoch. If
// it is not Done, the caller removes the new sandbox. A move whose time is over
// does not arrive.
type Arrive struct {
	Epoch, Attempt int64
	Provider       string
	Binding        string
	Sandbox        sandbox.ID
	Image          string
	Ref            json.RawMessage
	Deadline       time.Time
}

func (o Arrive) apply(m *machine) (Effect, error) {
	l := &m.lease
	if !m.inMove(o.Epoch, o.Attempt) {
		return Effect{}, nil
	}
	warm := m.meter()
	if l.Carried == 0 {
		l.Carried = l.Epoch
	}
	l.Epoch++
	l.Moving, l.Metered, l.Rotating, l.Retry, l.Began = time.Time{}, m.now, false, time.Time{}, m.now
	l.Failures = nil
	l.Provider, l.Binding, l.Sandbox, l.Image, l.Ref, l.Deadline = o.Provider, o.Binding, o.Sandbox, o.Image, o.Ref, o.Deadline
	if len(l.Holders) == 0 {
		m.drain()
	}
	return Effect{Done: true, Warm: warm}, nil
}

// Stay ends a move that failed. The old sandbox continues to serve the session.
type Stay struct{ Epoch, Attempt int64 }

func (o Stay) apply(m *machine) (Effect, error) {
	if !m.moving(o.Epoch, o.Attempt) {
		return Effect{}, nil
	}
	m.lease.Moving = time.Time{}
	return Effect{Done: true}, nil
}

// moving reports whether the lease is in the move of that attempt.
func (m *machine) moving(epoch, attempt int64) bool {
	l := &m.lease
	return l.State == Warm && l.Epoch == epoch && l.Attempt == attempt && !l.Moving.IsZero()
}

// clockError is more than the clocks of two daemons with one database differ.
const clockError = 2 * time.Second

// inMove reports whether the lease is in the move of that attempt, and its time
// is not over. Afterwards the old sandbox serves again, and the copy of it
// may be out of date.
func (m *machine) inMove(epoch, attempt int64) bool {
	return m.moving(epoch, attempt) && m.now.Add(clockError).Before(m.lease.Moving)
}

// Restart ends what an earlier process of a daemon left when it was killed: its
// attempt to make a sandbox, its move, and its holders. The daemon applies it
// when it starts, before it serves requests. What the attempt made is an orphan
// from then on.
type Restart struct {
	Spawner string
	// Own reports whether a holder is one of the daemon's.
	Own func(id string) bool
}

func (o Restart) apply(m *machine) (Effect, error) {
	l := &m.lease
	before := len(l.Holders)
	l.Holders = slices.DeleteFunc(l.Holders, func(h Holder) bool { return h.Kind == Operator && o.Own(h.ID) })
	dead := l.Spawner != "" && l.Spawner == o.Spawner
	attempt, move := dead && l.State == Warming, dead && !l.Moving.IsZero()
	if attempt {
		m.cool(false)
	}
	if move { // the old sandbox continues to serve
		l.Moving = time.Time{}
	}
	if l.State == Warm && len(l.Holders) == 0 {
		m.drain()
	}
	return Effect{Done: attempt || move || len(l.Holders) != before}, nil
}
