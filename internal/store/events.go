package store

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// EventRow is a stored record of the event log. Package eventlog defines the
// body and the hash.
type EventRow struct {
	Seq     int64
	Time    time.Time
	Type    string
	Op      string
	Sandbox sandbox.ID
	Code    string
	Body    []byte
	Hash    []byte
	// Opens makes this record an intent of a node, which stays open until a
	// record closes it.
	Opens string
	// Closes is the number of an intent that this record ends, or zero.
	Closes int64
}

// EventHead is the last record of a tenant's log. Without a record it is zero.
type EventHead struct {
	Seq  int64
	Hash []byte
}

// Events reads, extends and prunes the event logs of tenants.
type Events struct{ tx *Tx }

// Events returns the methods for events.
func (tx *Tx) Events() Events { return Events{tx} }

// Head returns the last record of a tenant's log.
func (es Events) Head(ctx context.Context, tenant string) (h EventHead, err error) {
	err = es.tx.queryRow(ctx, "SELECT seq, hash FROM event_heads WHERE tenant = $1", tenant).Scan(&h.Seq, &h.Hash)
	if errors.Is(err, sql.ErrNoRows) {
		return EventHead{}, nil
	}
	return h, err
}

// LockHead is like Head, and blocks other writers of the tenant's log until the
// transaction ends.
func (es Events) LockHead(ctx context.Context, tenant string) (h EventHead, err error) {
	const locked = "SELECT seq, hash FROM event_heads WHERE tenant = $1"
	err = es.tx.queryRow(ctx, locked+es.tx.s.dialect.forUpdate(), tenant).Scan(&h.Seq, &h.Hash)
	if !errors.Is(err, sql.ErrNoRows) {
		return h, err
	}
	_, err = es.tx.exec(ctx, "INSERT INTO event_heads (tenant, seq, hash) VALUES ($1, 0, $2) ON CONFLICT (tenant) DO NOTHING", tenant, []byte{})
	if err != nil {
		return EventHead{}, err
	}
	err = es.tx.queryRow(ctx, locked+es.tx.s.dialect.forUpdate(), tenant).Scan(&h.Seq, &h.Hash)
	return h, err
}

// Append adds records to a tenant's log and moves the head to the last one. The
// caller has locked the head.
func (es Events) Append(ctx context.Context, tenant string, rows []EventRow) error {
	for i := range rows {
		if err := es.appendRow(ctx, tenant, &rows[i]); err != nil {
			return err
		}
	}
	last := rows[len(rows)-1]
	_, err := es.tx.exec(ctx, "UPDATE event_heads SET seq = $1, hash = $2 WHERE tenant = $3", last.Seq, last.Hash, tenant)
	return err
}

func (es Events) appendRow(ctx context.Context, tenant string, r *EventRow) error {
	_, err := es.tx.exec(ctx, "INSERT INTO events (tenant, seq, time, type, op, sandbox, code, body, hash) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
		tenant, r.Seq, nanos(r.Time), r.Type, r.Op, string(r.Sandbox), r.Code, string(r.Body), r.Hash)
	if err != nil {
		return err
	}
	if r.Opens != "" {
		_, err = es.tx.exec(ctx, "INSERT INTO intents (tenant, seq, node, op, sandbox) VALUES ($1, $2, $3, $4, $5)",
			tenant, r.Seq, r.Opens, r.Op, string(r.Sandbox))
	}
	if r.Closes != 0 && err == nil {
		var n int64
		n, err = es.tx.exec(ctx, "DELETE FROM intents WHERE tenant = $1 AND seq = $2", tenant, r.Closes)
		if err == nil && n == 0 {
			err = fail(sandbox.CodeConflict, "event "+strconv.FormatInt(r.Closes, 10), "has its outcome already")
		}
	}
	return err
}

// EventFilter selects records of a log. The zero value selects all.
type EventFilter struct {
	Since   time.Time // inclusive
	Until   time.Time // exclusive; zero: no bound
	Ops     []string
	Types   []string
	Codes   []string // outcomes; "" is success
	Sandbox sandbox.ID
}

// List reads at most limit records of a tenant's log that match and come
// after a record, in their order.
func (es Events) List(ctx context.Context, tenant string, f EventFilter, after int64, limit int) ([]EventRow, error) {
	q := conditions{}
	q.add("tenant = ?", tenant)
	q.add("seq > ?", after)
	if !f.Since.IsZero() {
		q.add("time >= ?", nanos(f.Since))
	}
	if !f.Until.IsZero() {
		q.add("time < ?", nanos(f.Until))
	}
	if f.Sandbox != "" {
		q.add("sandbox = ?", string(f.Sandbox))
	}
	anyOf(&q, "op", f.Ops)
	anyOf(&q, "type", f.Types)
	anyOf(&q, "code", f.Codes)
	rows, err := es.tx.query(ctx, "SELECT seq, time, type, op, sandbox, code, body, hash FROM events WHERE "+
		q.String()+" ORDER BY seq LIMIT "+strconv.Itoa(limit), q.args...)
	return collect(rows, err, func(row scanner) (r EventRow, err error) {
		var at int64
		err = row.Scan(&r.Seq, &at, &r.Type, &r.Op, &r.Sandbox, &r.Code, &r.Body, &r.Hash)
		r.Time = timeOf(at)
		return r, err
	})
}

// OpenIntent is a record without an outcome.
type OpenIntent struct {
	Tenant  string
	Seq     int64
	Op      string
	Sandbox sandbox.ID
}

// OpenIntents lists the intents of a node without an outcome.
func (o *Operator) OpenIntents(ctx context.Context, node string, limit int) ([]OpenIntent, error) {
	rows, err := o.tx.query(ctx, "SELECT tenant, seq, op, sandbox FROM intents WHERE node = $1 ORDER BY tenant, seq LIMIT $2", node, limit)
	return collect(rows, err, func(row scanner) (i OpenIntent, err error) {
		return i, row.Scan(&i.Tenant, &i.Seq, &i.Op, &i.Sandbox)
	})
}

// EventCursor contains the number of the last record of a tenant's log that a
// daemon has sent, and of the last record.
type EventCursor struct {
	Tenant    string
	Seq, Head int64
}

// BehindEvents lists the logs that a node has not sent completely.
func (o *Operator) BehindEvents(ctx context.Context, node string) ([]EventCursor, error) {
	rows, err := o.tx.query(ctx, `SELECT h.tenant, COALESCE(c.seq, 0), h.seq FROM event_heads h
		LEFT JOIN event_cursors c ON c.tenant = h.tenant AND c.node = $1 WHERE h.seq > COALESCE(c.seq, 0) ORDER BY h.tenant`, node)
	return collect(rows, err, func(row scanner) (c EventCursor, err error) {
		return c, row.Scan(&c.Tenant, &c.Seq, &c.Head)
	})
}

// SetCursor stores how far a node has sent the log of a tenant. It never
// decreases.
func (es Events) SetCursor(ctx context.Context, node, tenant string, seq int64) error {
	_, err := es.tx.exec(ctx, `INSERT INTO event_cursors (node, tenant, seq) VALUES ($1, $2, $3)
		ON CONFLICT (node, tenant) DO UPDATE SET seq = excluded.seq WHERE event_cursors.seq < excluded.seq`, node, tenant, seq)
	return err
}

// Cursor returns how far a node has sent the log of a tenant.
func (es Events) Cursor(ctx context.Context, node, tenant string) (seq int64, err error) {
	err = es.tx.queryRow(ctx, "SELECT COALESCE(MAX(seq), 0) FROM event_cursors WHERE node = $1 AND tenant = $2", node, tenant).Scan(&seq)
	return seq, err
}

// EventCut says up to which record a tenant's log was pruned. Package eventlog
// defines the seal. Without a cut it is zero.
type EventCut struct {
	Seq  int64
	Hash []byte
	Time time.Time
	Seal []byte
}

// LastCut returns the cut of a tenant's log.
func (es Events) LastCut(ctx context.Context, tenant string) (c EventCut, err error) {
	var at int64
	err = es.tx.queryRow(ctx, "SELECT seq, hash, time, seal FROM event_cuts WHERE tenant = $1", tenant).Scan(&c.Seq, &c.Hash, &at, &c.Seal)
	if errors.Is(err, sql.ErrNoRows) {
		return EventCut{}, nil
	}
	c.Time = timeOf(at)
	return c, err
}

// Cut removes the records of a tenant's log up to a cut, and stores the cut in
// their place. The caller has locked the head. Removing an intent without an
// outcome is CodeConflict.
func (es Events) Cut(ctx context.Context, tenant string, c EventCut) (removed int64, err error) {
	open, err := es.OldestIntent(ctx, tenant)
	if err != nil {
		return 0, err
	}
	if open > 0 && open <= c.Seq {
		return 0, fail(sandbox.CodeConflict, "event "+strconv.FormatInt(open, 10), "has no outcome yet")
	}
	_, err = es.tx.exec(ctx, `INSERT INTO event_cuts (tenant, seq, hash, time, seal) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (tenant) DO UPDATE SET seq = excluded.seq, hash = excluded.hash, time = excluded.time, seal = excluded.seal`,
		tenant, c.Seq, c.Hash, nanos(c.Time), c.Seal)
	if err != nil {
		return 0, err
	}
	return es.tx.exec(ctx, "DELETE FROM events WHERE tenant = $1 AND seq <= $2", tenant, c.Seq)
}

// OldestIntent returns the number of the oldest intent in a tenant's log
// without an outcome; zero if there is none.
func (es Events) OldestIntent(ctx context.Context, tenant string) (seq int64, err error) {
	err = es.tx.queryRow(ctx, "SELECT COALESCE(MIN(seq), 0) FROM intents WHERE tenant = $1", tenant).Scan(&seq)
	return seq, err
}

// LastBefore returns the number of the last record of a tenant's log before the
// first one that is not older than a time; zero if there is none.
func (es Events) LastBefore(ctx context.Context, tenant string, at time.Time) (seq int64, err error) {
	err = es.tx.queryRow(ctx, `SELECT COALESCE(
		(SELECT MIN(seq) - 1 FROM events WHERE tenant = $1 AND time >= $2),
		(SELECT MAX(seq) FROM events WHERE tenant = $1), 0)`, tenant, nanos(at)).Scan(&seq)
	return seq, err
}
