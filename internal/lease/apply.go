package lease

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Op is an operation on a lease: Acquire, Commit, Fail, Lost, Release, GiveUp,
// Heartbeat, Save, Persist, Begin, Confirm, Rotate, Evict, Keep, Depart,
// Arrive, Stay, Restart, Gate, Meter or Tick.
type Op interface {
	apply(m *machine) (Effect, error)
}

// Effect is the result of an operation, besides the changed lease.
type Effect struct {
	// Role is the caller's role after an Acquire.
	Role Role `json:"role,omitempty"`
	// Done reports that the operation took effect. If it is false, the fence did
	// not match and nothing changed.
	Done bool `json:"done"`
	// Prior is the archive that Save or Persist replaced; its owner may remove it.
	Prior json.RawMessage `json:"prior,omitempty"`
	// Due reports, after a Tick, that the sandbox must be drained now.
	Due bool `json:"due,omitempty"`
	// Warm is the time counted by a Meter or Tick.
	Warm time.Duration `json:"warm,omitempty"`
}

// Role is the role of a caller that acquired a lease.
type Role string

// The roles.
const (
	Spawner  Role = "spawner"  // it creates the sandbox, then commits or fails
	Attached Role = "attached" // the sandbox exists, or another caller is creating it
	Rearmed  Role = "rearmed"  // attached, and draining was canceled
)

type machine struct {
	lease Lease
	cfg   Config
	now   time.Time
}

// Apply applies op at the time now. If it returns an error, the returned lease
// is l. The caller stores the lease if Effect.Done is set.
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

// Acquire adds a holder. A second Acquire of the same holder counts as a
// heartbeat.
type Acquire struct {
	Kind    Kind
	ID      string
	Subject string
	// Image is the expected image; empty: any. A live sandbox with another image
	// is drained if it has no other holders. Otherwise Acquire fails with
	// CodeConflict.
	Image string
	// Spawner names the daemon of the caller.
	Spawner string
	// Epoch, if not 0, is the epoch that the caller believes to be current. If the
	// lease does not follow it (Lease.Follows), the Acquire of a Turn fails with
	// CodeStale.
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
		l.Spawner = o.Spawner
		return Effect{Done: true, Role: Spawner}, nil
	case Draining:
		if l.Ending || l.Evicting {
			return Effect{Done: true, Role: Attached}, nil // the caller waits until the lease is cold
		}
		l.State, l.Expires = Warm, time.Time{}
		return Effect{Done: true, Role: Rearmed}, nil
	}
	return Effect{Done: true, Role: Attached}, nil
}

// MaxHolders limits the holders of a lease. Each change of a lease writes all of
// them.
const MaxHolders = 1000

// admit refuses a holder that may not be added.
func (m *machine) admit(o Acquire, added bool) error {
	l := &m.lease
	alive := l.State == Warm || l.State == Draining
	switch {
	case o.Kind == Turn && o.Epoch != 0 && alive && !l.Follows(o.Epoch):
		return refuse(sandbox.CodeStale, fmt.Sprintf("the sandbox is at epoch %d, not %d", l.Epoch, o.Epoch))
	case added && len(l.Holders) >= MaxHolders:
		return refuse(sandbox.CodeExhausted, fmt.Sprintf("there are %d holders already", len(l.Holders)))
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

// hold adds the holder, or records its heartbeat.
func (m *machine) hold(o Acquire, at int) {
	h := Holder{Kind: o.Kind, ID: o.ID, Subject: o.Subject, Beat: m.now}
	if at >= 0 {
		m.lease.Holders[at] = h
		return
	}
	m.lease.Holders = append(m.lease.Holders, h)
}

// drainForImage starts to drain a sandbox with the wrong image and no other
// holders. The caller acquires again when the lease is cold.
func (m *machine) drainForImage(at int) error {
	l := &m.lease
	if l.State == Warming {
		return refuse(sandbox.CodeConflict, "a sandbox with another image is being created")
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

// Commit makes a warming lease warm, under a new epoch. If Effect.Done is
// false, the caller gives up the sandbox, and removes it only if it created it.
type Commit struct {
	Epoch, Attempt int64
	Provider       string
	Binding        string
	Sandbox        sandbox.ID
	Image          string
	Ref            json.RawMessage
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
	l.Provider, l.Binding, l.Sandbox, l.Image, l.Ref, l.Deadline = o.Provider, o.Binding, o.Sandbox, o.Image, o.Ref, o.Deadline
	if len(l.Holders) == 0 {
		m.drain()
	}
	return Effect{Done: true}, nil
}

// drain starts the grace period of a sandbox without holders.
func (m *machine) drain() {
	m.lease.Drains++
	m.lease.State, m.lease.Expires = Draining, m.now.Add(m.cfg.Grace)
	if m.lease.Rotating {
		m.lease.Expires = m.now
	}
}

// Fail ends a spawner's attempt. Holders and the archive stay. The reference to
// the sandbox stays too, unless Gone is set.
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
// gone, by typed evidence about exactly this sandbox at exactly this epoch. The
// holders stay: the next Acquire of one of them rebuilds the sandbox.
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

// Release removes a holder. It is also Done if there is no such holder.
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

// forgive removes the stored failure of a turn.
func (m *machine) forgive(turn string) {
	m.lease.Failures = slices.DeleteFunc(m.lease.Failures, func(f Failure) bool { return f.Turn == turn })
}

// GiveUp removes a holder whose Acquire failed. If Err is set, it is stored for
// a turn, which gets the same error again until the turn ends or the group has
// a sandbox.
type GiveUp struct {
	Kind Kind
	ID   string
	Err  *sandbox.Error
}

// maxFailures limits the number of stored failures, because some turns never
// end.
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

// Heartbeat keeps a holder alive. It is not Done if the holder or its epoch is
// no longer current; the caller then acquires again.
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

// Save stores an archive of a sandbox that continues to run. The sandbox is
// captured again before it ends.
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

// Persist stores the archive of a sandbox that is about to be ended. Without an
// archive, it only checks that the sandbox should still be ended. Drain is the
// Lease.Drains that the caller read before the capture: if the sandbox was used
// since then, Lease.Drains has changed, and the archive is out of date.
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

// unwanted reports that the sandbox of this epoch is in this drain and has no
// holder that it serves.
func (m *machine) unwanted(epoch, drain int64) bool {
	l := &m.lease
	return l.State == Draining && (len(l.Holders) == 0 || l.Evicting) && l.Epoch == epoch && l.Drains == drain
}

// Begin marks the sandbox as being ended, which cannot be undone. It is Done
// only after Persist stored an archive in the same drain. It can be repeated by
// a reaper that continues after a crash.
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
// be gone. The archive stays. With Paused, the sandbox was paused instead, and
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

// Gate closes or opens the lease for viewers and operators. Closing removes the
// existing ones; a turn is never ended.
type Gate struct{ Closed bool }

func (o Gate) apply(m *machine) (Effect, error) {
	l := &m.lease
	l.Gated = o.Closed
	m.enforceGate()
	return Effect{Done: true}, nil
}

// enforceGate removes holders that a closed gate does not admit, unless they
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

// Meter counts the time that the sandbox has served the group since the last
// count. The time is in Effect.Warm.
type Meter struct{ Epoch int64 }

func (o Meter) apply(m *machine) (Effect, error) {
	if m.lease.Epoch != o.Epoch || m.lease.Metered.IsZero() {
		return Effect{}, nil
	}
	return Effect{Done: true, Warm: m.meter()}, nil
}

// meter moves Lease.Metered to now. If the clock went back, it counts nothing
// and does not move Metered back, so that no time is counted twice.
func (m *machine) meter() time.Duration {
	l := &m.lease
	if l.Metered.IsZero() || !m.now.After(l.Metered) {
		return 0
	}
	warm := m.now.Sub(l.Metered)
	l.Metered = m.now
	return warm
}

// Tick is the reaper's regular operation on every lease: it removes viewers and
// operators without a heartbeat, gives up a spawner whose time is over, and
// starts to drain a sandbox without holders. It calls no provider; if
// Effect.Due is set, the caller ends the sandbox.
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
	if stuck { // the mover is gone; the sandbox continues to serve
		l.Moving = time.Time{}
	}
	due := l.State == Draining && (l.Ending || l.Evicting || len(l.Holders) == 0 && !m.now.Before(l.Expires))
	warm := time.Duration(0)
	if l.State == Warm && l.Count(Turn) == 0 { // heartbeats meter turns
		warm = m.meter()
	}
	return Effect{Done: due || stuck || warm > 0 || len(l.Holders) != before || l.State != state, Due: due, Warm: warm}, nil
}

func refuse(code sandbox.Code, message string) error {
	return &sandbox.Error{Code: code, Op: "session.acquire", Message: message}
}
