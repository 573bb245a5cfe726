package eventlog

import (
	"context"
	"slices"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// entry is one event on its way into the log.
type entry struct {
	event Event
	opens string // node, for an intent
	err   error
	// done is closed once the event is written or has failed. Nil: nobody
	// waits.
	done chan struct{}
	// reserve says that it may use the space that is kept for a full disk.
	reserve bool
	// mark says that there is no event: somebody wants to know when what was
	// queued before has been written.
	mark bool
}

const (
	// maxQueue bounds the memory that a stuck database can cost.
	maxQueue = 10_000
	// lagTime is how long an event that nobody waits for may wait for one
	// that somebody does, with which it shares a transaction.
	lagTime = 50 * time.Millisecond
	// retryTime is the same after the database failed.
	retryTime = time.Second
	// appendTimeout bounds the transaction of a batch, whose callers may all
	// have gone.
	appendTimeout = 30 * time.Second
)

// AppendLater queues e, which is written with the next event that somebody
// waits for, or some 50 ms later. Readers of the log through this Log see it
// anyway. It is lost when the process is killed before; if the database fails,
// it is tried again until Close. An event that does not fit the queue is
// refused.
func (l *Log) AppendLater(e Event) error {
	_, err := l.enqueue(&entry{event: e})
	return err
}

// append queues an event and waits until it is written. While one transaction
// waits for the disk, the next one fills.
func (l *Log) append(ctx context.Context, e Event, opens string) (Event, error) {
	if err := ctx.Err(); err != nil {
		return Event{}, err
	}
	en := &entry{event: e, opens: opens, done: make(chan struct{}), reserve: store.MayUseReserve(ctx)}
	leads, err := l.enqueue(en)
	if err != nil {
		return Event{}, err
	}
	gone := ctx.Done()
	if opens != "" {
		gone = nil // else nobody would know the number to close it with
	}
	if leads {
		l.leadOnce()
	}
	select {
	case <-en.done:
		return en.event, en.err
	case <-gone:
		return Event{}, ctx.Err()
	}
}

// flush waits until what was queued before has been written or has failed, so
// that readers see what their caller was told before.
func (l *Log) flush(ctx context.Context) {
	l.mu.Lock()
	pending := len(l.queue) > 0 || l.leading
	l.mu.Unlock()
	if !pending {
		return
	}
	en := &entry{mark: true, done: make(chan struct{})}
	if _, err := l.enqueue(en); err != nil {
		return
	}
	select {
	case <-en.done:
	case <-ctx.Done():
	}
}

// enqueue queues an entry and sees to it that somebody writes it. Who waits for
// that whatever happens may have to do it: then leads is true, and leadOnce is
// called. It spares a goroutine and its growing stack, and two switches.
func (l *Log) enqueue(en *entry) (leads bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return false, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "event", Message: "the daemon is shutting down"}
	case len(l.queue) >= maxQueue:
		return false, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "event", Message: "the event log cannot keep up"}
	}
	l.queue = append(l.queue, en)
	if en.done == nil {
		l.delay(lagTime)
		return false, nil
	}
	l.urgent++
	if en.opens != "" && !l.leading {
		l.leading = true
		return true, nil
	}
	l.start()
	return false, nil
}

// start makes sure that somebody writes the queue. The caller holds the mutex.
func (l *Log) start() {
	if l.leading || len(l.queue) == 0 {
		return
	}
	l.leading = true
	go l.lead()
}

// delay has the queue written after a while, if nobody does so before. The
// caller holds the mutex.
func (l *Log) delay(d time.Duration) {
	if l.leading || l.lag != nil {
		return
	}
	l.lag = time.AfterFunc(d, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lag = nil
		l.start()
	})
}

// take returns what is to be written now.
func (l *Log) take() []*entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lag != nil {
		l.lag.Stop()
		l.lag = nil
	}
	batch := l.queue
	l.queue, l.urgent = nil, 0
	return batch
}

// stepDown ends the leadership, unless somebody waits for what is queued.
// Entries that no caller waits for are written after a pause, or at once by
// Close.
func (l *Log) stepDown(pause time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.urgent > 0 || l.closed && len(l.queue) > 0 {
		return false
	}
	l.leading = false
	if len(l.queue) > 0 {
		l.delay(pause)
	}
	l.idle.Broadcast()
	return true
}

// lead writes batches until nobody waits for more.
func (l *Log) lead() {
	for !l.stepDown(l.round()) {
	}
}

// leadOnce writes a batch, and leaves it to a goroutine if somebody waits for
// more.
func (l *Log) leadOnce() {
	if !l.stepDown(l.round()) {
		go l.lead()
	}
}

// round writes what is queued, and returns how long what nobody waits for may
// wait after it.
func (l *Log) round() (pause time.Duration) {
	batch := l.take()
	l.writeBatch(context.Background(), batch)
	pause = lagTime
	if l.giveBack(batch) {
		pause = retryTime
	}
	for _, en := range batch {
		if en.done != nil {
			close(en.done)
		}
	}
	return pause
}

// giveBack queues again what nobody waits for and the database did not take,
// and reports whether there was any.
func (l *Log) giveBack(batch []*entry) bool {
	var again []*entry
	var failed error
	for _, en := range batch {
		if en.done != nil || en.err == nil {
			continue
		}
		failed = en.err
		if transient(en.err) {
			en.err = nil
			again = append(again, en)
		}
	}
	if failed != nil && l.opts.OnError != nil {
		l.opts.OnError(failed)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(again) == 0 || l.closed {
		return false
	}
	l.queue = append(again, l.queue...)
	return true
}

// transient reports that no event is guilty of a failure.
func transient(err error) bool {
	switch sandbox.CodeOf(err) {
	case sandbox.CodeUnavailable, sandbox.CodeExhausted, sandbox.CodeTimeout, sandbox.CodeCanceled:
		return true
	}
	return false
}

// writeBatch writes a batch in one transaction. If that fails for a reason
// that one of the events may be guilty of, each is tried alone.
func (l *Log) writeBatch(ctx context.Context, batch []*entry) {
	events := make([]*entry, 0, len(batch))
	for _, en := range batch {
		if !en.mark {
			events = append(events, en)
		}
	}
	err := l.writeTenants(ctx, events)
	switch {
	case err == nil:
	case transient(err):
		for _, en := range events {
			en.err = err
		}
		if sandbox.CodeOf(err) == sandbox.CodeExhausted {
			l.writeReserved(ctx, events)
		}
	default:
		for _, en := range events {
			en.err = l.writeTenants(ctx, []*entry{en})
		}
	}
}

// writeReserved writes those of a batch that may use the space that is kept for a
// full disk, which the batch as a whole may not.
func (l *Log) writeReserved(ctx context.Context, batch []*entry) {
	batch = slices.DeleteFunc(slices.Clone(batch), func(en *entry) bool { return !en.reserve })
	err := l.writeTenants(store.WithReserve(ctx), batch)
	for _, en := range batch {
		en.err = err
	}
}

func (l *Log) writeTenants(ctx context.Context, batch []*entry) error {
	if len(batch) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, appendTimeout)
	defer cancel()
	order, byTenant := group(batch)
	return l.store.Update(ctx, func(tx *store.Tx) error {
		for _, tenant := range order {
			if err := l.write(ctx, tx, tenant, byTenant[tenant]); err != nil {
				return err
			}
		}
		return nil
	})
}
