package store

import (
	"context"
	"sync"
	"time"
)

// serverClock is the time of a database server. Daemons that share a database
// use it, so that the clocks of their machines may be wrong. Between two
// questions it goes on by the clock of this machine.
type serverClock struct {
	local func() time.Time // of this machine

	mu     sync.Mutex
	asked  time.Time // by the local clock; zero: never
	server time.Time // at asked
}

const (
	// askEvery is how long the local clock counts, and askWithin is how long the
	// server may take to answer: half of it is the error.
	askEvery  = 10 * time.Second
	askWithin = 2 * time.Second
	// jump is a difference between the wall clock and the monotonic one that shows
	// that the machine slept, or that its clock was set.
	jump = 500 * time.Millisecond
)

// now returns the server's time. The bool reports whether to ask it again.
func (c *serverClock) now() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	local := c.local()
	if c.asked.IsZero() {
		return local.Round(0), true
	}
	passed := local.Sub(c.asked)
	slept := (local.Round(0).Sub(c.asked.Round(0)) - passed).Abs() > jump
	return c.server.Add(passed), slept || passed >= askEvery
}

// set records an answer that arrived now, to a question at a local time.
func (c *serverClock) set(question, answer time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	took := c.local().Sub(question)
	if took > askWithin && !c.asked.IsZero() {
		return // the next transaction asks again
	}
	c.asked, c.server = question, answer.Add(-took/2)
}

// askTime asks the server for its time, if that is due.
func (tx *Tx) askTime(ctx context.Context) error {
	c := tx.s.clock
	if c == nil {
		return nil
	}
	if _, due := c.now(); !due {
		return nil
	}
	const query = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)"
	ctx, stop, release := tx.s.patiently(ctx)
	defer release()
	question := c.local()
	var micros int64
	if err := stop(tx.statement(ctx, query).QueryRowContext(ctx).Scan(&micros)); err != nil {
		return err
	}
	c.set(question, time.UnixMicro(micros))
	return nil
}
