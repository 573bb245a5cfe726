package lease

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Op is one operation on a lease: Acquire, Commit, Fail, Lost, Release,
// GiveUp, Heartbeat, Save, Persist, Begin, Confirm, Rotate, Evict, Keep, Depart,
// Arrive, Stay, Gate, Meter or Tick.
type Op interface {
	apply(m *machine) (Effect, error)
}

// Effect is what an operation did, besides changing the lease.
type Effect struct {
	// Role is what an Acquire made of the caller.
	Role Role `json:"role,omitempty"`
	// Done reports that the operation had its effect. False means that its
	// fence did not match and nothing changed.
	Done bool `json:"done"`
	// Prior is the archive that Save or Persist replaced, which its owner may remove.
	Prior json.RawMessage `json:"prior,omitempty"`
	// Due reports, after a Tick, that the sandbox is to be drained now.
	Due bool `json:"due,omitempty"`
	// Warm is the time that a Meter or Tick counted.
	Warm time.Duration `json:"warm,omitempty"`
}

// Role is what a caller became by acquiring a lease.
type Role string

// The roles.
const (
	Spawner  Role = "spawner"  // it makes the sandbox, and commits or fails
	Attached Role = "attached" // the sandbox is there, or somebody makes it
	Rearmed  Role = "rearmed"  // attached, and the sandbox is no longer drained
)

type machine struct {
	lease Lease
	cfg   Config
	now   time.Time
}

// Apply carries out op at the time now. On an error the lease returned is the
// one given. The caller stores the lease if Effect.Done is set.
func Apply(l Lease, op Op, cfg Config, now time.Time) (Lease, Effect, error) {
	if l.State == "" {
		l.State = Cold
	}
	m := machine{lease: l.Clone(), cfg: cfg, now: now}
	effect, err := op.apply(&m)
	if err != nil || !effect.Done {
		return l, effect, err
	}
	return m.lease, effect, nil
}

// Acquire adds a holder. It is idempotent per holder: a second one counts as a
// heartbeat.
type Acquire struct {
	Kind    Kind
	ID      string
	Subject string
	// Image the caller expects; empty: any. A living sandbox of another image is
	// drained if nobody else holds it, and a conflict otherwise.
	Image string
	// Epoch, if not 0, is the one that the caller believes to be current. A
	// turn with another one is stale.
	Epoch int64
}

func (o Acquire) apply(m *machine) (Effect, error) {
	l := &m.lease
	if !o.Kind.Valid() || o.ID == "" {
		return Effect{}, refuse(sandbox.CodeInvalid, "a holder needs a kind (turn, viewer or operator) and an id")
	}
	at := l.find(o.Kind, o.ID)
	if err := m.admit(o, at < 0); err != nil {
		return Effect{}, err
	}
	others := len(l.Holders) - min(at+1, 1)
	if o.Image != "" && l.Image != "" && o.Image != l.Image && !l.Ending && !l.Evicting {
		if others > 0 {
			return Effect{}, refuse(sandbox.CodeConflict, fmt.Sprintf("others use the sandbox with image %q", l.Image))
		}
		return Effect{Done: true}, m.drainForImage(at)
	}
	m.hold(o, at)
	switch l.State {
	case Cold:
		l.State, l.Expires = Warming, m.now.Add(m.cfg.Warming)
		l.Attempt++
		return Effect{Done: true, Role: Spawner}, nil
	case Draining:
		if l.Ending || l.Evicting {
			return Effect{Done: true, Role: Attached}, nil // and waits until it is cold
		}
		l.State, l.Expires = Warm, time.Time{}
		return Effect{Done: true, Role: Rearmed}, nil
	}
	return Effect{Done: true, Role: Attached}, nil
}

// admit refuses a holder that must not be added.
func (m *machine) admit(o Acquire, added bool) error {
	l := &m.lease
	alive := l.State == Warm || l.State == Draining
	switch {
	case o.Kind == Turn && o.Epoch != 0 && alive && !l.Follows(o.Epoch):
		return refuse(sandbox.CodeStale, fmt.Sprintf("the sandbox is at epoch %d, not %d", l.Epoch, o.Epoch))
	case added && o.Kind == Viewer && m.cfg.Viewers > 0 && l.Count(Viewer) >= m.cfg.Viewers:
		return refuse(sandbox.CodeExhausted, fmt.Sprintf("there are %d viewers already", l.Count(Viewer)))
	case o.Kind == Turn && l.Failure(o.ID) != nil:
		return l.Failure(o.ID)
	case added && l.Gated && o.Kind != Turn && (o.Kind != Operator || l.Count(Turn) == 0): // a turn works through operators
		return refuse(sandbox.CodeExhausted, "a usage limit was reached: only turns may use the sandbox")
	case added && l.Rotating && alive && !l.Ending && !l.Evicting && (o.Kind != Operator || len(l.Holders) == 0):
		return refuse(sandbox.CodeUnavailable, "the sandbox is about to reach its lifetime and is being replaced")
	}
	return nil
}

// hold adds the holder, or counts as its heartbeat.
func (m *machine) hold(o Acquire, at int) {
	h := Holder{Kind: o.Kind, ID: o.ID, Subject: o.Subject, Beat: m.now}
	if at >= 0 {
		m.lease.Holders[at] = h
		return
	}
	m.lease.Holders = append(m.lease.Holders, h)
}

// drainForImage starts to drain a sandbox that nobody else uses because its
// image is not the one asked for. The caller acquires again when it is cold.
func (m *machine) drainForImage(at int) error {
	l := &m.lease
	if l.State == Warming {
		return refuse(sandbox.CodeConflict, "a sandbox of another image is being made")
	}
	if at >= 0 {
		l.Holders = slices.Delete(l.Holders, at, at+1)
	}
	if l.State != Draining {
		m.drain()
	}
	l.Expires = m.now
	return nil
}

// Commit makes a warming lease warm, under a new epoch. If it is not done, the
// caller lets go of the sandbox, and removes it only if it made it.
type Commit struct {
	Epoch, Attempt int64
	Provider       string
	Binding        string
	Sandbox        sandbox.ID
	Image          string
	Box            json.RawMessage
	Deadline       time.Time
}

func (o Commit) apply(m *machine) (Effect, error) {
	l := &m.lease
	if l.State != Warming || l.Epoch != o.Epoch || l.Attempt != o.Attempt {
		return Effect{}, nil
	}
	l.State, l.Expires, l.Metered = Warm, time.Time{}, m.now
	l.Epoch++
	l.Carried, l.Failures = 0, nil
	l.Rotating, l.Evicting, l.Retry, l.Began = false, false, time.Time{}, m.now
	l.Provider, l.Binding, l.Sandbox, l.Image, l.Box, l.Deadline = o.Provider, o.Binding, o.Sandbox, o.Image, o.Box, o.Deadline
	if len(l.Holders) == 0 {
		m.drain()
	}
	return Effect{Done: true}, nil
}

// drain begins the grace period of a sandbox without holders.
func (m *machine) drain() {
	m.lease.Drains++
	m.lease.State, m.lease.Expires = Draining, m.now.Add(m.cfg.Grace)
	if m.lease.Rotating {
		m.lease.Expires = m.now
	}
}

// Fail ends a spawner's attempt. Holders and the archive stay. What is known of
// a sandbox stays too: only proof that it is gone, in Gone, forgets it.
type Fail struct {
	Epoch, Attempt int64
	Gone           bool // the sandbox that the lease names is proved to be gone
}

func (o Fail) apply(m *machine) (Effect, error) {
	l := &m.lease
	if l.State != Warming || l.Epoch != o.Epoch || l.Attempt != o.Attempt {
		return Effect{}, nil
	}
	m.cool(o.Gone)
	return Effect{Done: true}, nil
}

// cool makes the lease cold.
func (m *machine) cool(gone bool) {
	l := &m.lease
	if gone {
		l.forget()
	}
	l.State, l.Expires = Cold, time.Time{}
}

// Lost makes a warm or draining lease cold, because its sandbox is proved to be
// gone: typed evidence about exactly this sandbox at exactly this epoch. The
// holders stay, so that the next Acquire of one of them rebuilds it.
type Lost struct {
	Epoch   int64
	Sandbox sandbox.ID
}

func (o Lost) apply(m *machine) (Effect, error) {
	l := &m.lease
	if (l.State != Warm && l.State != Draining) || l.Epoch != o.Epoch || l.Sandbox != o.Sandbox {
		return Effect{}, nil
	}
	warm := m.meter()
	l.forget()
	l.State = Cold
	return Effect{Done: true, Warm: warm}, nil
}

// Release removes a holder. Removing one that is not there is done too.
type Release struct {
	Kind Kind
	ID   string
}

func (o Release) apply(m *machine) (Effect, error) {
	m.release(o.Kind, o.ID)
	if o.Kind == Turn {
		m.forgive(o.ID)
	}
	return Effect{Done: true}, nil
}

func (m *machine) release(kind Kind, id string) {
	l := &m.lease
	if at := l.find(kind, id); at >= 0 {
		l.Holders = slices.Delete(l.Holders, at, at+1)
	}
	if l.State == Warm && len(l.Holders) == 0 {
		m.drain()
	}
}

// forgive drops what is remembered of a turn.
func (m *machine) forgive(turn string) {
	m.lease.Failures = slices.DeleteFunc(m.lease.Failures, func(f Failure) bool { return f.Turn == turn })
}

// GiveUp removes a holder whose Acquire failed. With Err, the error is remembered
// for a turn: it gets the same again until it ends or the group has a sandbox.
type GiveUp struct {
	Kind Kind
	ID   string
	Err  *sandbox.Error
}

// maxFailures bounds how many turns are remembered: some never end.
const maxFailures = 16

func (o GiveUp) apply(m *machine) (Effect, error) {
	m.release(o.Kind, o.ID)
	if o.Kind != Turn || o.Err == nil {
		return Effect{Done: true}, nil
	}
	m.forgive(o.ID)
	plain := *o.Err
	plain.Cause = nil
	l := &m.lease
	l.Failures = append(l.Failures, Failure{Turn: o.ID, Err: plain})
	l.Failures = l.Failures[max(0, len(l.Failures)-maxFailures):]
	return Effect{Done: true}, nil
}

// Heartbeat keeps a holder. It is not done if the holder or its epoch is not
// current any more: the caller acquires again.
type Heartbeat struct {
	Kind  Kind
	ID    string
	Epoch int64 // 0: the caller waits for a warming sandbox
}

func (o Heartbeat) apply(m *machine) (Effect, error) {
	l := &m.lease
	at := l.find(o.Kind, o.ID)
	current := l.State == Warming || l.State == Warm && l.Epoch == o.Epoch
	if at < 0 || !current {
		return Effect{}, nil
	}
	l.Holders[at].Beat = m.now
	return Effect{Done: true}, nil
}

// Save records an archive of a sandbox that goes on. The sandbox is captured
// again before it ends.
type Save struct {
	Epoch   int64
	Archive json.RawMessage
}

func (o Save) apply(m *machine) (Effect, error) {
	l := &m.lease
	if !l.Serves() || l.Epoch != o.Epoch {
		return Effect{}, nil
	}
	prior := l.Archive
	l.Archive = o.Archive
	return Effect{Done: true, Prior: prior}, nil
}

// Persist records the archive of a sandbox that is about to be ended. Without
// one it only asks whether the sandbox is still to be ended. Drain is the
// Lease.Drains that the caller saw before it captured: a sandbox that was used
// since then has another, and its archive would be old.
type Persist struct {
	Epoch, Drain int64
	Archive      json.RawMessage
}

func (o Persist) apply(m *machine) (Effect, error) {
	l := &m.lease
	if !m.unwanted(o.Epoch, o.Drain) {
		return Effect{}, nil
	}
	if o.Archive == nil {
		return Effect{Done: true}, nil
	}
	prior := l.Archive
	l.Archive, l.Captured = o.Archive, l.Drains
	return Effect{Done: true, Prior: prior}, nil
}

// unwanted reports that the sandbox of this epoch is in this drain and serves no
// holder.
func (m *machine) unwanted(epoch, drain int64) bool {
	l := &m.lease
	return l.State == Draining && (len(l.Holders) == 0 || l.Evicting) && l.Epoch == epoch && l.Drains == drain
}

// Begin is the point of no return: the sandbox is ended now. It is done only
// after Persist stored an archive in the same drain. A Begin that was done
// already is done again, for the reaper that goes on after a crash.
type Begin struct{ Epoch, Drain int64 }

func (o Begin) apply(m *machine) (Effect, error) {
	l := &m.lease
	again := l.Ending && l.Epoch == o.Epoch && l.Drains == o.Drain
	if !again && (!m.unwanted(o.Epoch, o.Drain) || l.Captured != o.Drain) {
		return Effect{}, nil
	}
	l.Ending = true
	return Effect{Done: true}, nil
}

// Confirm makes a draining lease cold, after its sandbox was ended or proved to
// be gone. The archive stays. With Paused the sandbox was paused instead, and
// the next spawner resumes it.
type Confirm struct {
	Epoch, Drain int64
	Paused       bool
}

func (o Confirm) apply(m *machine) (Effect, error) {
	ending := m.lease.Ending && m.lease.Epoch == o.Epoch && m.lease.Drains == o.Drain
	if !ending && !m.unwanted(o.Epoch, o.Drain) {
		return Effect{}, nil
	}
	warm := m.meter()
	m.lease.Metered, m.lease.Ending = time.Time{}, false
	m.cool(!o.Paused)
	return Effect{Done: true, Warm: warm}, nil
}

// Gate refuses or admits holders that only watch. Refusing removes those there
// are; a turn is never ended.
type Gate struct{ Closed bool }

func (o Gate) apply(m *machine) (Effect, error) {
	l := &m.lease
	l.Gated = o.Closed
	m.enforceGate()
	return Effect{Done: true}, nil
}

// enforceGate removes the holders that a closed gate does not admit, unless they
// serve a turn.
func (m *machine) enforceGate() {
	l := &m.lease
	if !l.Gated {
		return
	}
	turns := l.Count(Turn) > 0
	l.Holders = slices.DeleteFunc(l.Holders, func(h Holder) bool { return h.Kind == Viewer || h.Kind == Operator && !turns })
	if l.State == Warm && len(l.Holders) == 0 {
		m.drain()
	}
}

// Meter counts the time that the sandbox served the group since it was last
// counted. The time is in Effect.Warm.
type Meter struct{ Epoch int64 }

func (o Meter) apply(m *machine) (Effect, error) {
	if m.lease.Epoch != o.Epoch || m.lease.Metered.IsZero() {
		return Effect{}, nil
	}
	return Effect{Done: true, Warm: m.meter()}, nil
}

// meter moves the cursor to now. A clock that went back counts nothing, and
// does not move the cursor back, so that no time is counted twice.
func (m *machine) meter() time.Duration {
	l := &m.lease
	if l.Metered.IsZero() || !m.now.After(l.Metered) {
		return 0
	}
	warm := m.now.Sub(l.Metered)
	l.Metered = m.now
	return warm
}

// Tick is what the reaper does to every lease: viewers and operators without a
// heartbeat go, a spawner whose time is up is given up, and a sandbox without
// holders is drained. It calls no provider; Effect.Due says that the caller is
// to end the sandbox.
type Tick struct{}

func (Tick) apply(m *machine) (Effect, error) {
	l := &m.lease
	dead := func(h Holder) bool { return h.Kind != Turn && m.now.Sub(h.Beat) > m.cfg.ViewerTTL }
	before, state := len(l.Holders), l.State
	l.Holders = slices.DeleteFunc(l.Holders, dead)
	m.enforceGate()
	switch {
	case l.State == Warming && !m.now.Before(l.Expires):
		m.cool(false)
	case l.State == Warm && len(l.Holders) == 0:
		m.drain()
	}
	stuck := !l.Moving.IsZero() && !m.now.Before(l.Moving)
	if stuck { // whoever moved the session is gone; its sandbox goes on
		l.Moving = time.Time{}
	}
	due := l.State == Draining && (l.Ending || l.Evicting || len(l.Holders) == 0 && !m.now.Before(l.Expires))
	warm := time.Duration(0)
	if l.State == Warm && l.Count(Turn) == 0 { // turns are metered by their heartbeats
		warm = m.meter()
	}
	return Effect{Done: due || stuck || warm > 0 || len(l.Holders) != before || l.State != state, Due: due, Warm: warm}, nil
}

func refuse(code sandbox.Code, message string) error {
	return &sandbox.Error{Code: code, Op: "session.acquire", Message: message}
}
