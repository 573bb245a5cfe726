// Package eventlog is the append-only record of what happened: one log per
// tenant, numbered without gaps, in the same database as what it is about and,
// where the caller wants it, in the same transaction.
//
// # The chain
//
// Each record has a canonical form, its body: the JSON of an event on one
// line, stored and exported byte for byte as it was hashed. Each record has a
// hash that covers the one before it:
//
//	hash(0) = SHA-256("atoll genesis v1\n" + tenant)
//	hash(n) = SHA-256("atoll event v1\n" + hash(n-1) + body(n))
//
// where hash(n-1) is 32 raw bytes. A line of an export ends in
// `"event":BODY}`, so that another program can check it without knowing how
// JSON is written here.
//
// # What can be detected
//
// [Log.Verify] finds a record that was edited, removed, inserted, or moved, and
// columns that do not say what the body says. Someone who can write to the
// database can also recompute all hashes after an edit, or remove the newest
// records. Comparing with a head that is kept elsewhere reveals that. An
// [Anchor] keeps one outside the database, and [Log.Head] returns one for those
// who want to send it further away. Not detected are records removed or
// rewritten after the last head that was kept (with [FileAnchor], at most a
// second's worth and those of a crash), and anything done by somebody who can
// change the anchor too.
package eventlog

import (
	"context"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Options of a Log. The zero value is usable.
type Options struct {
	// Anchor keeps heads outside the database. Nil: none are kept, and a cut
	// of the newest records cannot be found.
	Anchor Anchor
	// AnchorEvery is the least time between two heads kept of one tenant.
	// Zero: one second.
	AnchorEvery time.Duration
	// CutKey seals the cuts of logs that are pruned. It must be out of reach of
	// whoever may write to the database, and the same for all daemons that share
	// one. Empty: nothing is pruned, and no cut is believed.
	CutKey []byte
	// Sends is the node whose unsent records are not pruned, see [Log.Unsent].
	// Empty: none.
	Sends string
	// Poll is how often followers look for records of other daemons, if the
	// database is shared. Zero: one second.
	Poll time.Duration
	// OnError is told about heads that could not be kept and events of
	// AppendLater that could not be written. Nil ignores them: they are tried
	// again.
	OnError func(error)
}

// Log appends to and reads the logs of all tenants in one store. It may be
// used concurrently. The caller closes it before the store.
type Log struct {
	store    *store.Store
	opts     Options
	anchorer *anchorer

	mu      sync.Mutex
	queue   []*entry                 // written by nobody yet, in order
	urgent  int                      // how many of them somebody waits for
	leading bool                     // somebody writes
	lag     *time.Timer              // nil, or running out for those nobody waits for
	waiters map[string]chan struct{} // by tenant, closed at the next record
	closed  bool
	idle    *sync.Cond // leading became false
}

// New makes a Log over a store.
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

// Close writes what is queued and keeps the last heads. Events after it are
// refused. Followers are not ended: their contexts end them. Close is
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

// Append writes e, durably when it returns, and returns it with Tenant, Seq and
// Time filled in. Concurrent calls share transactions, so that a burst costs
// few of them. A canceled call may have been written; its error says nothing
// about that.
func (l *Log) Append(ctx context.Context, e Event) (Event, error) {
	return l.append(ctx, e, "")
}

// Announce is Append for an event that another, with its Ref, will be the
// outcome of. Until then it is open, and found by [Log.Open]. It is not cut
// short when ctx ends: the caller learns what to close.
func (l *Log) Announce(ctx context.Context, node string, e Event) (Event, error) {
	return l.append(ctx, e, node)
}

// AppendTx writes e as a part of a transaction, which fails as a whole if the
// event cannot be written. The tenant's log is locked until the transaction
// ends, so this should be the last step of it.
func (l *Log) AppendTx(ctx context.Context, tx *store.Tx, e Event) (Event, error) {
	return l.appendTx(ctx, tx, e, "")
}

// AnnounceTx is AppendTx for an event as in Announce.
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

// label puts the labels of sandboxes on the events about them.
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

// wrote wakes those who follow a tenant's log.
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

// Open lists what a node announced and has no outcome yet, at most limit.
func (l *Log) Open(ctx context.Context, node string, limit int) ([]store.OpenIntent, error) {
	l.flush(ctx)
	return store.Read(ctx, l.store, func(tx *store.Tx) ([]store.OpenIntent, error) {
		return tx.Operator().OpenIntents(ctx, node, limit)
	})
}

// Head returns the end of a tenant's log as the database has it.
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
