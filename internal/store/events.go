package store

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// EventRow is a record of the event log as it is stored. Package eventlog says
// what the body and the hash are.
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

// EventHead returns the end of a tenant's log.
func (tx *Tx) EventHead(ctx context.Context, tenant string) (h EventHead, err error) {
	err = tx.queryRow(ctx, "SELECT seq, hash FROM event_heads WHERE tenant = $1", tenant).Scan(&h.Seq, &h.Hash)
	if errors.Is(err, sql.ErrNoRows) {
		return EventHead{}, nil
	}
	return h, err
}

// LockEventHead is EventHead, and lets nobody else append to the tenant's log
// until the transaction ends.
func (tx *Tx) LockEventHead(ctx context.Context, tenant string) (h EventHead, err error) {
	_, err = tx.exec(ctx, "INSERT INTO event_heads (tenant, seq, hash) VALUES ($1, 0, $2) ON CONFLICT (tenant) DO NOTHING", tenant, []byte{})
	if err != nil {
		return EventHead{}, err
	}
	err = tx.queryRow(ctx, "SELECT seq, hash FROM event_heads WHERE tenant = $1"+tx.s.dialect.forUpdate(), tenant).Scan(&h.Seq, &h.Hash)
	return h, err
}

// AppendEvents adds records to a tenant's log, whose head the caller has
// locked and has continued, and moves the head to the last of them.
func (tx *Tx) AppendEvents(ctx context.Context, tenant string, rows []EventRow) error {
	for i := range rows {
		if err := tx.appendEvent(ctx, tenant, &rows[i]); err != nil {
			return err
		}
	}
	last := rows[len(rows)-1]
	_, err := tx.exec(ctx, "UPDATE event_heads SET seq = $1, hash = $2 WHERE tenant = $3", last.Seq, last.Hash, tenant)
	return err
}

func (tx *Tx) appendEvent(ctx context.Context, tenant string, r *EventRow) error {
	_, err := tx.exec(ctx, "INSERT INTO events (tenant, seq, time, type, op, sandbox, code, body, hash) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
		tenant, r.Seq, nanos(r.Time), r.Type, r.Op, string(r.Sandbox), r.Code, string(r.Body), r.Hash)
	if err != nil {
		return err
	}
	if r.Opens != "" {
		_, err = tx.exec(ctx, "INSERT INTO intents (tenant, seq, node, op, sandbox) VALUES ($1, $2, $3, $4, $5)",
			tenant, r.Seq, r.Opens, r.Op, string(r.Sandbox))
	}
	if r.Closes != 0 && err == nil {
		var n int64
		n, err = tx.exec(ctx, "DELETE FROM intents WHERE tenant = $1 AND seq = $2", tenant, r.Closes)
		if err == nil && n == 0 {
			err = fail(sandbox.CodeConflict, "event "+strconv.FormatInt(r.Closes, 10), "has its outcome already")
		}
	}
	return err
}

// EventFilter selects records of a log. The zero value selects all.
type EventFilter struct {
	Since   time.Time // not before
	Until   time.Time // before; zero: no bound
	Ops     []string
	Types   []string
	Codes   []string // outcomes; "" is success
	Sandbox sandbox.ID
}

// Events reads at most limit records of a tenant's log that match and come
// after a record, in their order.
func (tx *Tx) Events(ctx context.Context, tenant string, f EventFilter, after int64, limit int) ([]EventRow, error) {
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
	rows, err := tx.query(ctx, "SELECT seq, time, type, op, sandbox, code, body, hash FROM events WHERE "+
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

// OpenIntents lists what a node announced and did not report the outcome of.
func (o *Operator) OpenIntents(ctx context.Context, node string, limit int) ([]OpenIntent, error) {
	rows, err := o.tx.query(ctx, "SELECT tenant, seq, op, sandbox FROM intents WHERE node = $1 ORDER BY tenant, seq LIMIT $2", node, limit)
	return collect(rows, err, func(row scanner) (i OpenIntent, err error) {
		return i, row.Scan(&i.Tenant, &i.Seq, &i.Op, &i.Sandbox)
	})
}
