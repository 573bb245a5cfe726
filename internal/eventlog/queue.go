package eventlog

import (
	"context"
	"slices"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// entry is a queued event.
type entry struct {
	event Event
	opens string // the node, for an attempt
	err   error
	// done is closed once the event is written or has failed. Nil: no caller
	// waits.
	done chan struct{}
	// reserve allows the use of the space that is reserved for a full disk.
	reserve bool
	// mark means that the entry has no event: flush waits for the entries queued
	// before it.
	mark bool
}

const (
	// maxQueue limits the memory used while the database does not respond.
	maxQueue = 10_000
	// lagTime is how long an event that no caller waits for may stay queued, in
	// order to share a transaction with one that a caller waits for.
	lagTime = 50 * time.Millisecond
	// retryTime replaces lagTime after the database failed.
	retryTime = time.Second
	// appendTimeout limits the transaction of a batch, because all callers may
	// have gone.
	appendTimeout = 30 * time.Second
)

// AppendLater queues e without waiting. It is written with the next event that
// a caller waits for, or after about 50 ms. Readers of this Log see it
// immediately. It is lost if the process is killed before the write. If the
// database fails, the log tries again until Close. AppendLater returns
// CodeUnavailable if the queue is full or the log is closed.
func (l *Log) AppendLater(e Event) error {
	_, err := l.enqueue(&entry{event: e})
	return err
}

// append queues an event and waits until it is written. Events that arrive
// during a transaction are written in the next one.
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
		gone = nil // the caller needs the Seq to close the attempt
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

// flush waits until everything queued before has been written or has failed, so
// that a reader sees every event that was already accepted.
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

// enqueue queues an entry and makes sure that a goroutine writes the queue. If
// leads is true, the caller itself must call leadOnce: it waits in any case,
// and this saves starting a goroutine.
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

// start starts a writer if none is running. The caller holds the mutex.
func (l *Log) start() {
	if l.leading || len(l.queue) == 0 {
		return
	}
	l.leading = true
	go l.lead()
}

// delay starts a writer after d, unless another one starts first. The caller
// holds the mutex.
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

// take removes and returns the entries to write now.
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

// stepDown ends the writer, unless a caller waits for a queued entry. Entries
// that no caller waits for are written after pause, or by Close.
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

// lead writes batches until no caller waits for more.
func (l *Log) lead() {
	for !l.stepDown(l.round()) {
	}
}

// leadOnce writes one batch, and starts a goroutine if callers wait for more.
func (l *Log) leadOnce() {
	if !l.stepDown(l.round()) {
		go l.lead()
	}
}

// round writes the queue. It returns how long entries that no caller waits for
// may stay queued after it.
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

// giveBack queues entries of AppendLater again that the database did not
// accept, and reports whether there were any.
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

// transient reports whether a failure has nothing to do with the event that was
// written.
func transient(err error) bool {
	switch sandbox.CodeOf(err) {
	case sandbox.CodeUnavailable, sandbox.CodeExhausted, sandbox.CodeTimeout, sandbox.CodeCanceled:
		return true
	}
	return false
}

// writeBatch writes a batch in one transaction. If that fails for a reason that
// one of the events may have caused, it writes each event alone.
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

// writeReserved writes the entries of a batch that may use the space reserved
// for a full disk. The whole batch may not use it.
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
