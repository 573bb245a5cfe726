package records

import "sync/atomic"

// Signal wakes a goroutine that waits for it.
type Signal chan struct{}

// NewSignal returns a Signal for one receiver.
func NewSignal() Signal { return make(Signal, 1) }

// Send wakes the receiver, or lets its next wait end at once.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Recheck remembers that a state is known to be incomplete, so that the next
// reconciliation comes soon.
type Recheck struct {
	wanted atomic.Bool
	urgent Signal
}

// Again lets the next wait for a reconciliation be short.
func (r *Recheck) Again() { r.wanted.Store(true) }

// Soon is Again, and ends the present wait, because something could not be
// recorded.
func (r *Recheck) Soon() {
	r.wanted.Store(true)
	r.urgent.Send()
}

// Begin is called when a reconciliation begins.
func (r *Recheck) Begin() { r.wanted.Store(false) }

// Wanted reports whether Again or Soon was called since Begin.
func (r *Recheck) Wanted() bool { return r.wanted.Load() }

// Urgent returns the Signal that Soon sends.
func (r *Recheck) Urgent() Signal { return r.urgent }
