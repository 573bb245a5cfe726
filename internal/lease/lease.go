// Package lease is the state machine that decides who may make, use and end the
// sandbox of a group of sessions. A lease is the durable record that a group
// owns at most one living sandbox.
//
// The package is pure: [Apply] takes a lease, an operation and the time, and
// returns the new lease and what happened. It does no I/O, reads no clock and
// makes no random choice. A store runs each operation in one transaction, so
// operations on a lease never overlap.
package lease

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// State is where a lease is in its life.
type State string

// The states of a lease.
const (
	Cold     State = "cold"     // no sandbox
	Warming  State = "warming"  // a spawner is making or resuming the sandbox
	Warm     State = "warm"     // the sandbox serves its holders
	Draining State = "draining" // nobody needs the sandbox; it ends after a grace period
)

// Kind is why a holder needs the sandbox.
type Kind string

// The kinds of holders.
const (
	Turn     Kind = "turn"     // an agent at work; never ended by the reaper
	Viewer   Kind = "viewer"   // somebody who watches; ends when its heartbeat stops
	Operator Kind = "operator" // a person or program that uses the sandbox; as Viewer
)

// Valid reports whether k is one of the kinds.
func (k Kind) Valid() bool { return k == Turn || k == Viewer || k == Operator }

// Holder is somebody who needs the sandbox now.
type Holder struct {
	Kind    Kind      `json:"kind"`
	ID      string    `json:"id"`                // unique among the holders of its kind
	Subject string    `json:"subject,omitempty"` // who it acts for
	Beat    time.Time `json:"beat"`              // last heartbeat
}

// Lease is the record. The zero value, but for Group, is a cold lease that
// nobody has used.
type Lease struct {
	Group   string   `json:"group"`
	State   State    `json:"state"`
	Holders []Holder `json:"holders,omitempty"`

	// Epoch counts the sandboxes that have served the group. It increases when
	// a sandbox becomes warm, and at no other time.
	Epoch int64 `json:"epoch"`
	// Attempt counts the spawners. It tells a late spawner from the one that
	// took over after its time was up, which epochs cannot: they have the same.
	Attempt int64 `json:"attempt"`

	// Carried is the first of the epochs whose files went along with every change
	// of sandbox since: a request that was meant for one of them may follow the
	// session to the present sandbox. 0: there was no such change.
	Carried int64 `json:"carried,omitempty"`
	// Moving says that the session moves to another sandbox, which the present
	// attempt makes, and until when that holds without being renewed. The
	// sandbox serves nobody meanwhile, and goes on if the move fails.
	Moving time.Time `json:"moving,omitzero"`

	// Drains counts how often the lease began to drain, and Captured is the
	// count at which an archive was last stored. They tell a slow reaper that the
	// sandbox was used again since it looked.
	Drains   int64 `json:"drains,omitempty"`
	Captured int64 `json:"captured,omitempty"`
	// Ending says that a draining sandbox is being ended: it can no longer be
	// kept, and callers wait until the lease is cold.
	Ending bool `json:"ending,omitempty"`

	// Provider, Binding, Sandbox and Image identify the living sandbox. They
	// are empty while there is none.
	Provider string     `json:"provider,omitempty"`
	Binding  string     `json:"binding,omitempty"`
	Sandbox  sandbox.ID `json:"sandbox,omitempty"`
	Image    string     `json:"image,omitempty"`
	// Box and Archive are what the sandbox can be found by, and what it can be
	// rebuilt from: an envelope without its archive, and the archive. Both are
	// opaque here. Archive survives the sandbox.
	Box     json.RawMessage `json:"box,omitempty"`
	Archive json.RawMessage `json:"archive,omitempty"`

	// Expires ends the present state: warming at the end of the spawner's time,
	// draining at the end of the grace period. A warm lease does not expire.
	Expires time.Time `json:"expires,omitzero"`
	// Deadline is when the provider ends the sandbox whatever we do; zero if it
	// does not.
	Deadline time.Time `json:"deadline,omitzero"`
	// Rotating refuses new holders because the deadline is near: the sandbox is
	// drained as soon as its holders are gone.
	Rotating bool `json:"rotating,omitempty"`
	// Evicting says that a sandbox is drained although it has holders, because
	// its deadline is very near. It serves nobody meanwhile, and its holders stay.
	Evicting bool `json:"evicting,omitempty"`
	// Retry is when a rotation that failed is tried again.
	Retry time.Time `json:"retry,omitzero"`
	// Began is when the sandbox began to serve the group.
	Began time.Time `json:"began,omitzero"`
	// Failures are why turns could not get a sandbox, oldest first. They end with
	// the turn, or when the group has a sandbox again.
	Failures []Failure `json:"failures,omitempty"`
	// Gated refuses holders that only watch, because a limit was reached.
	Gated bool `json:"gated,omitempty"`
	// Metered is up to when the time of the sandbox has been counted.
	Metered time.Time `json:"metered,omitzero"`
}

// Failure is why a turn could not get a sandbox. Trying again would not help.
type Failure struct {
	Turn string        `json:"turn"`
	Err  sandbox.Error `json:"error"`
}

// Failure returns why a turn could not get a sandbox; nil: it may try.
func (l *Lease) Failure(turn string) error {
	for _, f := range l.Failures {
		if f.Turn == turn {
			return &f.Err
		}
	}
	return nil
}

// Count returns how many holders of kind there are; of all kinds if it is empty.
func (l *Lease) Count(kind Kind) int {
	n := 0
	for _, h := range l.Holders {
		if kind == "" || h.Kind == kind {
			n++
		}
	}
	return n
}

// Clone returns a copy that shares nothing with l that [Apply] changes.
func (l *Lease) Clone() Lease {
	c := *l
	c.Holders = slices.Clone(l.Holders)
	c.Failures = slices.Clone(l.Failures)
	return c
}

// Holds reports whether there is a holder of that kind and id.
func (l *Lease) Holds(kind Kind, id string) bool { return l.find(kind, id) >= 0 }

func (l *Lease) find(kind Kind, id string) int {
	return slices.IndexFunc(l.Holders, func(h Holder) bool { return h.Kind == kind && h.ID == id })
}

// Follows reports whether a request that was meant for an epoch may go to the
// present sandbox: it is the same, or has its files.
func (l *Lease) Follows(epoch int64) bool {
	return epoch == l.Epoch || l.Carried > 0 && l.Carried <= epoch && epoch < l.Epoch
}

// forget clears what identifies a living sandbox. The archive stays.
func (l *Lease) forget() {
	l.Provider, l.Binding, l.Sandbox, l.Image, l.Box = "", "", "", "", nil
	l.Deadline, l.Rotating, l.Ending, l.Expires, l.Metered = time.Time{}, false, false, time.Time{}, time.Time{}
	l.Moving, l.Evicting, l.Retry, l.Began = time.Time{}, false, time.Time{}, time.Time{}
}

// Serves reports whether the sandbox of the lease can be used.
func (l *Lease) Serves() bool {
	return l.State == Warm || l.State == Draining && !l.Ending && !l.Evicting
}

// maxLead is how long before its deadline a sandbox is replaced, at most.
const maxLead = time.Hour

// Lead is how long before its deadline the sandbox is to be replaced: an hour,
// but at most half of its lifetime.
func (l *Lease) Lead() time.Duration {
	if l.Began.IsZero() || l.Deadline.IsZero() {
		return maxLead
	}
	return min(maxLead, l.Deadline.Sub(l.Began)/2)
}

// Config are the durations that the state machine works with.
type Config struct {
	Warming   time.Duration // how long a spawner has
	Grace     time.Duration // how long a sandbox without holders is kept
	ViewerTTL time.Duration // how long a viewer or operator lives without a heartbeat
	Viewers   int           // at most so many viewers per lease; 0: no limit
}

// Default returns the durations of RB-57 of the requirements, and at most 64
// viewers.
func Default() Config {
	return Config{Warming: 2 * time.Minute, Grace: 15 * time.Minute, ViewerTTL: 90 * time.Second, Viewers: 64}
}

// Sweep is how often the reaper looks at all leases.
const Sweep = 30 * time.Second

// Check reports durations that would let the reaper and the provider end a
// sandbox before those who use it. idle and hard are the provider's idle and
// hard timeouts; 0 means none.
func (c Config) Check(sweep, idle, hard time.Duration) error {
	refuse := func(message string) error {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "lease.configure", Message: message}
	}
	switch {
	case c.Warming <= 0 || c.Grace <= 0 || c.ViewerTTL <= 0 || sweep <= 0:
		return refuse("every duration of a lease must be positive")
	case sweep >= c.ViewerTTL:
		return refuse("the reaper must run more often than a viewer expires")
	case idle > 0 && hard > 0 && idle > hard:
		return refuse("the idle timeout must not be longer than the hard timeout")
	case idle > 0 && c.ViewerTTL >= idle:
		return refuse("a viewer must expire before the provider's idle timeout")
	case idle > 0 && sweep+c.Grace >= idle:
		return refuse("the reaper and the grace period must end before the provider's idle timeout")
	}
	return nil
}
