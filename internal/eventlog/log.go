// Package eventlog is an append-only event log. Each tenant has its own log,
// numbered without gaps. The logs are in the same database as the records they
// describe, and an event can be written in the same transaction as the change
// it describes.
//
// # The chain
//
// The canonical form of a record is its body: the JSON of an event on one line,
// which is hashed, stored and exported byte for byte. The hash of a record
// covers the hash of the record before it:
//
//	hash(0) = SHA-256("atoll genesis v1\n" + tenant)
//	hash(n) = SHA-256("atoll event v1\n" + hash(n-1) + body(n))
//
// where hash(n-1) is 32 raw bytes. A line of an export ends in `"event":BODY}`,
// so another program can verify it without encoding JSON the same way.
//
// # What can be detected
//
// [Log.Verify] finds a record that was edited, removed, inserted, or moved, and
// columns that differ from the body. An attacker who can write to the database
// can also recompute all hashes after an edit, or remove the newest records.
// Comparing with a head that is kept elsewhere reveals that. An [Anchor] keeps
// one outside the database, and [Log.Head] returns one that can be sent to
// another machine. Verify cannot detect records that were removed or rewritten
// after the last kept head (with [FileAnchor], at most those of one second, or
// those since a crash), nor anything done by an attacker who can change the
// anchor too.
package eventlog

import (
	"context"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Options configures a Log. The zero value is usable.
type Options struct {
	// Anchor keeps heads outside the database. Nil: no head is kept, and removal
	// of the newest records cannot be detected.
	Anchor Anchor
	// AnchorEvery is the minimum time between two kept heads of one tenant. Zero:
	// one second.
	AnchorEvery time.Duration
	// CutKey authenticates the cuts of pruned logs. An attacker who can write to
	// the database must not have it. All daemons that share a database need the
	// same key. Empty: Prune fails, and Verify rejects every cut.
	CutKey []byte
	// Sends is the node whose unsent records are not pruned, see [Log.Unsent].
	// Empty: none.
	Sends string
	// Poll is the interval at which followers look for records of other daemons,
	// if the database is shared. Zero: one second.
	Poll time.Duration
	// OnError is called for heads that could not be kept and events of AppendLater
	// that could not be written. The log tries again in both cases. Nil ignores
	// the errors.
	OnError func(error)
}

// Log appends to and reads the logs of all tenants in one store. It is safe for
// concurrent use. The caller closes it before the store.
type Log struct {
	store    *store.Store
	opts     Options
	anchorer *anchorer

	mu      sync.Mutex
	queue   []*entry                 // not written yet, in order
	urgent  int                      // number of queued entries that a caller waits for
	leading bool                     // a goroutine is writing
	lag     *time.Timer              // starts the write of entries that no caller waits for; nil if not running
	waiters map[string]chan struct{} // by tenant, closed at the next record
	closed  bool
	idle    *sync.Cond // leading became false
}

// New returns a Log that uses s. The caller closes the Log.
func New(s *store.Store, opts Options) *Log {
	if opts.Poll <= 0 {
		opts.Poll = time.Second
	}
	if opts.AnchorEvery <= 0 {
		opts.AnchorEvery = time.Second
	}
	l := &Log{store: s, opts: opts, waiters: map[string]chan struct{}{}}
	l.idle = sync.NewCond(&l.mu)
	if opts.Anchor != nil {
		l.anchorer = startAnchorer(l)
	}
	return l
}

// Close writes queued events and keeps the last heads. Events after Close are
// refused. Close does not end followers: their contexts do. Close is
// idempotent.
func (l *Log) Close() error {
	l.mu.Lock()
	l.closed = true
	l.start()
	for l.leading {
		l.idle.Wait()
	}
	l.mu.Unlock()
	if l.anchorer != nil {
		return l.anchorer.close()
	}
	return nil
}

// Append writes e durably, and returns it with Tenant, Seq and Time filled in.
// Concurrent calls share transactions. If ctx ends, Append returns its error,
// and the event may or may not have been written.
func (l *Log) Append(ctx context.Context, e Event) (Event, error) {
	return l.append(ctx, e, "")
}

// Announce is Append for an attempt. The attempt is open, and listed by
// [Log.Open], until an event with its Ref records the outcome. Announce does
// not return early when ctx ends, so that the caller always learns the Seq.
func (l *Log) Announce(ctx context.Context, node string, e Event) (Event, error) {
	return l.append(ctx, e, node)
}

// AppendTx writes e as part of a transaction, which fails if the event cannot
// be written. The tenant's log is locked until the transaction ends, so this
// should be its last step.
func (l *Log) AppendTx(ctx context.Context, tx *store.Tx, e Event) (Event, error) {
	return l.appendTx(ctx, tx, e, "")
}

// AnnounceTx is Announce as part of a transaction.
func (l *Log) AnnounceTx(ctx context.Context, tx *store.Tx, node string, e Event) (Event, error) {
	return l.appendTx(ctx, tx, e, node)
}

func (l *Log) appendTx(ctx context.Context, tx *store.Tx, e Event, opens string) (Event, error) {
	en := &entry{event: e, opens: opens}
	if err := l.write(ctx, tx, e.Tenant, []*entry{en}); err != nil {
		return Event{}, err
	}
	return en.event, nil
}

// write appends entries of one tenant in a transaction.
func (l *Log) write(ctx context.Context, tx *store.Tx, tenant string, entries []*entry) error {
	stored, err := tx.Events().LockHead(ctx, tenant)
	if err != nil {
		return err
	}
	head, err := headOf(stored, tenant)
	if err != nil {
		return err
	}
	if err := label(ctx, tx, tenant, entries); err != nil {
		return err
	}
	head, rows, err := extend(head, tenant, tx.Now, entries)
	if err != nil {
		return err
	}
	tx.OnCommit(func() { l.wrote(tenant, head) })
	return tx.Events().Append(ctx, tenant, rows)
}

// label adds the labels of sandboxes to the events about them.
func label(ctx context.Context, tx *store.Tx, tenant string, entries []*entry) (err error) {
	known := map[sandbox.ID]map[string]string{}
	for _, en := range entries {
		id := en.event.Sandbox
		if id == "" {
			continue
		}
		labels, ok := known[id]
		if !ok {
			if labels, err = tx.Sandboxes().Labels(ctx, tenant, id); err != nil {
				return err
			}
			known[id] = labels
		}
		en.event.Labels = labels
	}
	return nil
}

// wrote wakes the followers of a tenant's log.
func (l *Log) wrote(tenant string, head Head) {
	l.mu.Lock()
	if c := l.waiters[tenant]; c != nil {
		close(c)
		delete(l.waiters, tenant)
	}
	l.mu.Unlock()
	if l.anchorer != nil {
		l.anchorer.note(tenant, head)
	}
}

// Open lists at most limit open attempts of a node.
func (l *Log) Open(ctx context.Context, node string, limit int) ([]store.OpenIntent, error) {
	l.flush(ctx)
	return store.Read(ctx, l.store, func(tx *store.Tx) ([]store.OpenIntent, error) {
		return tx.Operator().OpenIntents(ctx, node, limit)
	})
}

// Head returns the end of a tenant's log as stored in the database.
func (l *Log) Head(ctx context.Context, tenant string) (Head, error) {
	l.flush(ctx)
	stored, err := store.Read(ctx, l.store, func(tx *store.Tx) (store.EventHead, error) { return tx.Events().Head(ctx, tenant) })
	if err != nil {
		return Head{}, err
	}
	h, err := headOf(stored, tenant)
	if err != nil {
		return Head{}, &sandbox.Error{Code: sandbox.CodeInternal, Op: "event", Message: err.Error()}
	}
	return h, nil
}
