package eventlog

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Filter selects events. The zero value selects all.
type Filter struct {
	Since   time.Time // inclusive
	Until   time.Time // exclusive
	Ops     []string
	Types   []Type
	Codes   []sandbox.Code // outcomes; "" means success
	Sandbox sandbox.ID
}

// Validate returns CodeInvalid for an unknown type, or if Until is before
// Since.
func (f *Filter) Validate() error {
	for _, t := range f.Types {
		if !slices.Contains(Types(), t) {
			return &sandbox.Error{
				Code: sandbox.CodeInvalid, Subject: "type", Message: fmt.Sprintf("%.40q is not an event type", t),
				Hint: "types are " + strings.Join(Types(), ", "),
			}
		}
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && f.Until.Before(f.Since) {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "until", Message: "is before since"}
	}
	return nil
}

func (f *Filter) rows() store.EventFilter {
	out := store.EventFilter{Since: f.Since, Until: f.Until, Ops: f.Ops, Types: f.Types, Sandbox: f.Sandbox}
	for _, c := range f.Codes {
		out.Codes = append(out.Codes, string(c))
	}
	return out
}

// Limits of one read.
const (
	maxRead  = 1000
	pageSize = 500

	// maxNap limits the wait for a point in time, because the clock may be set.
	maxNap = 30 * time.Second
)

// Read returns the tenant's events that match f and have a Seq above after, in
// order. limit is at most 1000, which is also the default for 0. The cursor for
// the next read is the Seq of the last returned event. A cursor beyond the end
// of the log is CodeInvalid.
func (l *Log) Read(ctx context.Context, tenant string, f Filter, after int64, limit int) ([]Event, error) {
	if limit <= 0 || limit > maxRead {
		limit = maxRead
	}
	l.flush(ctx)
	rows, err := store.Read(ctx, l.store, func(tx *store.Tx) ([]store.EventRow, error) {
		rows, err := tx.Events().List(ctx, tenant, f.rows(), after, limit)
		if err != nil || len(rows) > 0 || after <= 0 {
			return rows, err
		}
		head, err := tx.Events().Head(ctx, tenant)
		if err == nil {
			err = within(after, head)
		}
		return rows, err
	})
	if err != nil {
		return nil, err
	}
	return decodeAll(rows)
}

// within refuses a cursor beyond the end of the log: a follower would miss all
// records up to the cursor. The log gets shorter when its database is restored
// from a backup.
func within(after int64, head store.EventHead) error {
	if after <= head.Seq {
		return nil
	}
	return &sandbox.Error{
		Code: sandbox.CodeInvalid, Subject: "after", Message: fmt.Sprintf("is beyond the end of the log, which is %d", head.Seq),
		Hint: "if the database was restored from a backup, start from the beginning",
	}
}

// Record is an event with its hash.
type Record struct {
	Event
	Hash Hash
}

// Records is Read with the hash of each record.
func (l *Log) Records(ctx context.Context, tenant string, f Filter, after int64, limit int) ([]Record, error) {
	if limit <= 0 || limit > maxRead {
		limit = maxRead
	}
	l.flush(ctx)
	rows, err := l.readRows(ctx, tenant, f, after, limit)
	if err != nil {
		return nil, err
	}
	events, err := decodeAll(rows)
	if err != nil {
		return nil, err
	}
	out := make([]Record, len(rows))
	for i := range rows {
		if len(rows[i].Hash) != len(Hash{}) {
			return nil, damaged(fmt.Errorf("the hash of record %d is damaged", rows[i].Seq))
		}
		out[i] = Record{events[i], Hash(rows[i].Hash)}
	}
	return out, nil
}

// Unsent describes a log that a daemon has not completely sent to its
// destination.
type Unsent struct {
	Tenant string
	After  int64 // number of the last record that was sent
	Head   int64 // number of the last record
}

// Unsent lists the logs that a node has not completely sent.
func (l *Log) Unsent(ctx context.Context, node string) ([]Unsent, error) {
	behind, err := store.Read(ctx, l.store, func(tx *store.Tx) ([]store.EventCursor, error) { return tx.Operator().BehindEvents(ctx, node) })
	out := make([]Unsent, len(behind))
	for i, b := range behind {
		out[i] = Unsent{b.Tenant, b.Seq, b.Head}
	}
	return out, err
}

// Sent stores that a node has sent a tenant's log up to the record seq.
func (l *Log) Sent(ctx context.Context, node, tenant string, seq int64) error {
	return l.store.Update(ctx, func(tx *store.Tx) error { return tx.Events().SetCursor(ctx, node, tenant, seq) })
}

func decodeAll(rows []store.EventRow) (events []Event, err error) {
	events = make([]Event, len(rows))
	for i := range rows {
		if events[i], err = decode(&rows[i]); err != nil {
			return nil, damaged(err)
		}
	}
	return events, nil
}

func damaged(err error) error {
	return &sandbox.Error{
		Code: sandbox.CodeInternal, Op: "event", Message: "the event log is damaged", Cause: err,
		Hint: "run `atoll audit verify`",
	}
}

func (l *Log) readRows(ctx context.Context, tenant string, f Filter, after int64, limit int) ([]store.EventRow, error) {
	return store.Read(ctx, l.store, func(tx *store.Tx) ([]store.EventRow, error) {
		return tx.Events().List(ctx, tenant, f.rows(), after, limit)
	})
}

// Follow yields a tenant's events that match f and have a Seq above after, in
// order and without a gap. It waits for more until ctx ends. When f.Until is
// reached, the iteration ends without an error. Follow does not buffer: it
// reads at the pace of its consumer.
func (l *Log) Follow(ctx context.Context, tenant string, f Filter, after int64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		l.flush(ctx)
		for {
			more := l.next(tenant) // before reading, so that no record is missed
			over := !f.Until.IsZero() && !l.store.Now().Before(f.Until)
			if over {
				l.flush(ctx)
			}
			events, seen, err := l.readToEnd(ctx, tenant, f, after)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				yield(Event{}, err)
				return
			}
			for _, e := range events {
				if !yield(e, nil) {
					return
				}
			}
			after = seen
			if len(events) < pageSize && (over || !l.wait(ctx, more, f.Until)) {
				return
			}
		}
	}
}

// readToEnd reads one page of events. It also returns the last record it
// examined, so that a filter with few matches does not examine them again.
func (l *Log) readToEnd(ctx context.Context, tenant string, f Filter, after int64) (events []Event, seen int64, err error) {
	err = l.store.View(ctx, func(tx *store.Tx) error {
		head, err := tx.Events().Head(ctx, tenant)
		if err == nil {
			err = within(after, head)
		}
		if err != nil {
			return err
		}
		rows, err := tx.Events().List(ctx, tenant, f.rows(), after, pageSize)
		if err != nil {
			return err
		}
		seen = head.Seq
		if len(rows) == pageSize {
			seen = rows[len(rows)-1].Seq
		}
		events, err = decodeAll(rows)
		return err
	})
	return events, seen, err
}

// next returns a channel that is closed when the tenant's next record is
// written.
func (l *Log) next(tenant string) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.waiters[tenant]
	if c == nil {
		c = make(chan struct{})
		l.waiters[tenant] = c
	}
	return c
}

// wait waits for more to be closed, for the poll interval, or for the time
// until (zero: no such time). It returns false if ctx has ended.
func (l *Log) wait(ctx context.Context, more <-chan struct{}, until time.Time) bool {
	var wake <-chan time.Time
	nap := time.Duration(-1)
	if l.store.Shared() {
		nap = l.opts.Poll
	}
	if !until.IsZero() {
		if left := max(until.Sub(l.store.Now()), 0); nap < 0 || left < nap {
			nap = min(left, maxNap)
		}
	}
	if nap >= 0 {
		t := time.NewTimer(nap)
		defer t.Stop()
		wake = t.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-more:
	case <-wake:
	}
	return true
}

// Export writes a tenant's matching events as JSON lines. Each line has the
// hash of the record and, last, its body byte for byte.
func (l *Log) Export(ctx context.Context, tenant string, f Filter, w io.Writer) error {
	out := bufio.NewWriter(w)
	l.flush(ctx)
	for after := int64(0); ; {
		rows, err := l.readRows(ctx, tenant, f, after, pageSize)
		if err != nil {
			return err
		}
		for i := range rows {
			after = rows[i].Seq
			if _, err := fmt.Fprintf(out, "{\"hash\":\"%s\",\"event\":%s}\n", hex.EncodeToString(rows[i].Hash), rows[i].Body); err != nil {
				return err
			}
		}
		if len(rows) < pageSize {
			return out.Flush()
		}
	}
}

// group groups a batch by tenant. Logs are locked in the order of the tenants,
// which is the same in every daemon and so avoids deadlocks.
func group(batch []*entry) (order []string, byTenant map[string][]*entry) {
	byTenant = map[string][]*entry{}
	for _, en := range batch {
		byTenant[en.event.Tenant] = append(byTenant[en.event.Tenant], en)
	}
	return slices.Sorted(maps.Keys(byTenant)), byTenant
}
