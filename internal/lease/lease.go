// Package lease is the state machine that decides who may create, use and end
// the sandbox of a group of sessions. A lease is a durable record; a group has
// at most one live sandbox.
//
// The package is pure: [Apply] takes a lease, an operation and the time, and
// returns the new lease and the effect. It does no I/O, reads no clock and
// makes no random choice. A store runs each operation in one transaction, so
// operations on a lease never overlap.
package lease

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// State is the state of a lease.
type State string

// The states of a lease.
const (
	Cold     State = "cold"     // no sandbox
	Warming  State = "warming"  // a spawner is creating or resuming the sandbox
	Warm     State = "warm"     // the sandbox serves its holders
	Draining State = "draining" // the sandbox has no holders and ends after a grace period
)

// Kind is the kind of a holder.
type Kind string

// The kinds of holders.
const (
	Turn     Kind = "turn"     // a working agent; never ended by the reaper
	Viewer   Kind = "viewer"   // a spectator; ends when its heartbeats stop
	Operator Kind = "operator" // a person or program that uses the sandbox; ends like a Viewer
)

// Valid reports whether k is one of the kinds.
func (k Kind) Valid() bool { return k == Turn || k == Viewer || k == Operator }

// Holder is a user of the sandbox.
type Holder struct {
	Kind    Kind      `json:"kind"`
	ID      string    `json:"id"`                // unique among the holders of its kind
	Subject string    `json:"subject,omitempty"` // the user it acts for
	Beat    time.Time `json:"beat"`              // last heartbeat
}

// Lease is the durable record of a group. The zero value, except for Group, is
// a cold lease that was never used.
type Lease struct {
	Group   string   `json:"group"`
	State   State    `json:"state"`
	Holders []Holder `json:"holders,omitempty"`

	// Epoch counts the sandboxes that have served the group. It increases only
	// when a sandbox becomes warm.
	Epoch int64 `json:"epoch"`
	// Attempt counts the spawners. It distinguishes a late spawner from the one
	// that replaced it, which Epoch cannot.
	Attempt int64 `json:"attempt"`
	// Spawner is the daemon that makes or made the last attempt. A daemon that
	// starts knows that attempts of its own name are over; see Restart.
	Spawner string `json:"spawner,omitempty"`

	// Carried is the first epoch whose files have been carried over in every
	// change of sandbox since. A request for an epoch from Carried on may be
	// served by the current sandbox. 0: files were not carried over.
	Carried int64 `json:"carried,omitempty"`
	// Moving is set while the session moves to another sandbox, which the current
	// attempt creates. It is the time at which the move expires unless it is
	// renewed. Meanwhile the old sandbox serves no requests; it continues to serve
	// if the move fails.
	Moving time.Time `json:"moving,omitzero"`

	// Drains counts how often the lease began to drain, and Captured is the count
	// at which an archive was last stored. They tell a slow reaper that the
	// sandbox has been used again.
	Drains   int64 `json:"drains,omitempty"`
	Captured int64 `json:"captured,omitempty"`
	// Ending means that a draining sandbox is being ended. It cannot be kept any
	// more, and callers wait until the lease is cold.
	Ending bool `json:"ending,omitempty"`

	// Provider, Binding and Sandbox identify the live sandbox. Image is the image
	// that was asked for. They are empty if there is none.
	Provider string     `json:"provider,omitempty"`
	Binding  string     `json:"binding,omitempty"`
	Sandbox  sandbox.ID `json:"sandbox,omitempty"`
	Image    string     `json:"image,omitempty"`
	// Ref is the reference to the sandbox: an envelope without an archive. Archive
	// is what the sandbox can be rebuilt from. Both are opaque here. Archive
	// outlives the sandbox.
	Ref     json.RawMessage `json:"box,omitempty"`
	Archive json.RawMessage `json:"archive,omitempty"`

	// Expires is the end of the current state: for a warming lease the end of the
	// spawner's time, for a draining lease the end of the grace period. A warm
	// lease does not expire.
	Expires time.Time `json:"expires,omitzero"`
	// Deadline is when the provider ends the sandbox; zero if it does not.
	Deadline time.Time `json:"deadline,omitzero"`
	// Rotating refuses new holders because the deadline is near. The sandbox is
	// drained as soon as it has no holders.
	Rotating bool `json:"rotating,omitempty"`
	// Evicting means that the sandbox is drained although it has holders, because
	// its deadline is very near. It serves no requests. The holders stay and get
	// the next sandbox.
	Evicting bool `json:"evicting,omitempty"`
	// Retry is when a failed rotation is tried again.
	Retry time.Time `json:"retry,omitzero"`
	// Began is when the sandbox began to serve the group.
	Began time.Time `json:"began,omitzero"`
	// Failures are the errors of turns that could not get a sandbox, oldest first.
	// They are removed with the turn, or when the group has a sandbox again.
	Failures []Failure `json:"failures,omitempty"`
	// Gated refuses viewers and operators, because a usage limit was reached.
	Gated bool `json:"gated,omitempty"`
	// Metered is the time up to which use of the sandbox has been counted.
	Metered time.Time `json:"metered,omitzero"`
}

// Failure is why a turn could not get a sandbox. Retrying would not help.
type Failure struct {
	Turn string        `json:"turn"`
	Err  sandbox.Error `json:"error"`
}

// Failure returns the stored error of a turn; nil: it may try.
func (l *Lease) Failure(turn string) error {
	for _, f := range l.Failures {
		if f.Turn == turn {
			return &f.Err
		}
	}
	return nil
}

// Count returns the number of holders of a kind, or of all kinds if kind is
// empty.
func (l *Lease) Count(kind Kind) int {
	n := 0
	for _, h := range l.Holders {
		if kind == "" || h.Kind == kind {
			n++
		}
	}
	return n
}

// Clone returns a copy that shares no data with l that [Apply] changes.
func (l *Lease) Clone() Lease {
	c := *l
	c.Holders = slices.Clone(l.Holders)
	c.Failures = slices.Clone(l.Failures)
	return c
}

// Holds reports whether there is a holder with that kind and id.
func (l *Lease) Holds(kind Kind, id string) bool { return l.find(kind, id) >= 0 }

func (l *Lease) find(kind Kind, id string) int {
	return slices.IndexFunc(l.Holders, func(h Holder) bool { return h.Kind == kind && h.ID == id })
}

// Follows reports whether the current sandbox may serve a request for an epoch:
// it is the same sandbox, or has its files.
func (l *Lease) Follows(epoch int64) bool {
	return epoch == l.Epoch || l.Carried > 0 && l.Carried <= epoch && epoch < l.Epoch
}

// forget clears the reference to the live sandbox. The archive stays.
func (l *Lease) forget() {
	l.Provider, l.Binding, l.Sandbox, l.Image, l.Ref = "", "", "", "", nil
	l.Deadline, l.Rotating, l.Ending, l.Expires, l.Metered = time.Time{}, false, false, time.Time{}, time.Time{}
	l.Moving, l.Evicting, l.Retry, l.Began = time.Time{}, false, time.Time{}, time.Time{}
}

// Serves reports whether the sandbox may serve requests.
func (l *Lease) Serves() bool {
	return l.State == Warm || l.State == Draining && !l.Ending && !l.Evicting
}

// maxLead is the maximum time before its deadline at which a sandbox is
// replaced.
const maxLead = time.Hour

// Lead returns how long before its deadline the sandbox is replaced: an hour,
// but at most half of its lifetime.
func (l *Lease) Lead() time.Duration {
	if l.Began.IsZero() || l.Deadline.IsZero() {
		return maxLead
	}
	return min(maxLead, l.Deadline.Sub(l.Began)/2)
}

// Config are the parameters of the state machine.
type Config struct {
	Warming   time.Duration // time limit of a spawner
	Grace     time.Duration // how long a sandbox without holders is kept
	ViewerTTL time.Duration // how long a viewer or operator lives without a heartbeat
	Viewers   int           // maximum number of viewers per lease; 0: no limit
}

// Default returns the default durations, and a limit of 64 viewers.
func Default() Config {
	return Config{Warming: 2 * time.Minute, Grace: 15 * time.Minute, ViewerTTL: 90 * time.Second, Viewers: 64}
}

// Sweep is the interval at which the reaper checks all leases.
const Sweep = 30 * time.Second

// Check refuses durations with which the reaper or the provider could end a
// sandbox in use. idle and hard are the provider's idle and hard timeouts; 0
// means none.
func (c Config) Check(sweep, idle, hard time.Duration) error {
	refuse := func(message string) error {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "lease.configure", Message: message}
	}
	switch {
	case c.Warming <= 0 || c.Grace <= 0 || c.ViewerTTL <= 0 || sweep <= 0:
		return refuse("every duration of a lease must be positive")
	case sweep >= c.ViewerTTL:
		return refuse("the reaper must run more often than a viewer expires")
	case hard > 0 && sweep+c.Grace >= hard:
		return refuse("the reaper and the grace period must end before the provider ends a sandbox")
	case idle > 0 && hard > 0 && idle > hard:
		return refuse("the idle timeout must not be longer than the hard timeout")
	case idle > 0 && c.ViewerTTL >= idle:
		return refuse("a viewer must expire before the provider's idle timeout")
	case idle > 0 && sweep+c.Grace >= idle:
		return refuse("the reaper and the grace period must end before the provider's idle timeout")
	}
	return nil
}
