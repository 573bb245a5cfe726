package eventlog

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Prune selects the records to remove: the oldest ones, up to the first record
// that does not match.
type Prune struct {
	Before time.Time // remove records older than this; zero: any age
	UpTo   int64     // remove records up to this number; zero: any number
}

// Pruned is the result of Log.Prune.
type Pruned struct {
	Through int64 // number of the last removed record; zero: nothing was removed
	Removed int64 // number of records removed by this call
}

// pruneBatch is the number of records removed in one transaction, which blocks
// appends to that log.
const pruneBatch = 5000

// Prune removes the oldest records of a tenant's log, durably when it returns.
// It stores a cut: the number and the hash of the last removed record,
// authenticated with Options.CutKey. [Log.Verify] starts from there. Prune also
// appends note to the log, with Type, Subject and Bytes filled in.
//
// It refuses to prune a log with a fault, because that would hide the fault. It
// never removes the newest record, an attempt without an outcome, or a record
// that the node Options.Sends has not sent yet. Without a CutKey it returns
// CodeUnsupported.
func (l *Log) Prune(ctx context.Context, tenant string, what Prune, note Event) (done Pruned, err error) {
	if len(l.opts.CutKey) == 0 {
		return done, &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "audit.prune", Message: "pruning needs an audit key, and this daemon has none"}
	}
	report, err := l.Verify(ctx, tenant)
	if err != nil {
		return done, err
	}
	if report.Fault != nil {
		return done, &sandbox.Error{
			Code: sandbox.CodeConflict, Op: "audit.prune", Subject: tenant, Message: "the log is not sound: " + report.Fault.Detail,
			Hint: "pruning would hide that; keep a copy of the database and see: atoll audit verify",
		}
	}
	limit := report.Head.Seq - 1
	if l.opts.Anchor != nil {
		limit = min(limit, report.Anchored-1) // keep the anchored record
	}
	for {
		n, last, err := l.pruneSome(ctx, tenant, what, limit, note, done.Removed == 0)
		if n > 0 {
			done.Removed += n
			done.Through = last
		}
		if err != nil || n < pruneBatch {
			return done, err
		}
	}
}

// pruneSome removes one batch.
func (l *Log) pruneSome(ctx context.Context, tenant string, what Prune, limit int64, note Event, first bool) (n, last int64, err error) {
	err = l.store.Update(ctx, func(tx *store.Tx) error {
		n, last = 0, 0
		if _, err := tx.Events().LockHead(ctx, tenant); err != nil {
			return err
		}
		to, err := l.pruneTo(ctx, tx, tenant, what, limit)
		if err != nil {
			return err
		}
		now, err := tx.Events().LastCut(ctx, tenant)
		if err != nil || to <= now.Seq {
			return err
		}
		last = min(to, now.Seq+pruneBatch)
		if n, err = l.cut(ctx, tx, tenant, last); err != nil || !first {
			return err
		}
		note.Tenant, note.Type, note.Bytes = tenant, AuditPruned, 0
		note.Subject = fmt.Sprintf("%d-%d", now.Seq+1, to)
		return l.write(ctx, tx, tenant, []*entry{{event: note}})
	})
	if err != nil {
		return 0, 0, err
	}
	return n, last, nil
}

// pruneTo returns the number of the last record to remove.
func (l *Log) pruneTo(ctx context.Context, tx *store.Tx, tenant string, what Prune, to int64) (int64, error) {
	if what.UpTo > 0 {
		to = min(to, what.UpTo)
	}
	if !what.Before.IsZero() {
		old, err := tx.Events().LastBefore(ctx, tenant, what.Before)
		if err != nil {
			return 0, err
		}
		to = min(to, old)
	}
	open, err := tx.Events().OldestIntent(ctx, tenant)
	if err != nil {
		return 0, err
	}
	if open > 0 {
		to = min(to, open-1)
	}
	if l.opts.Sends == "" {
		return to, nil
	}
	sent, err := tx.Events().Cursor(ctx, l.opts.Sends, tenant)
	return min(to, sent), err
}

// cut removes the records up to a number and stores an authenticated cut.
func (l *Log) cut(ctx context.Context, tx *store.Tx, tenant string, seq int64) (int64, error) {
	rows, err := tx.Events().List(ctx, tenant, store.EventFilter{}, seq-1, 1)
	if err != nil {
		return 0, err
	}
	if len(rows) != 1 || rows[0].Seq != seq || len(rows[0].Hash) != sha256.Size {
		return 0, damaged(fmt.Errorf("record %d is missing", seq))
	}
	c := store.EventCut{Seq: seq, Hash: rows[0].Hash, Time: tx.Now()}
	c.Seal = l.seal(tenant, &c)
	return tx.Events().Cut(ctx, tenant, c)
}

// seal returns the MAC of a cut.
func (l *Log) seal(tenant string, c *store.EventCut) []byte {
	m := hmac.New(sha256.New, l.opts.CutKey)
	fmt.Fprintf(m, "atoll cut v1\n%s\n%d\n%x\n%d", tenant, c.Seq, c.Hash, c.Time.UnixNano())
	return m.Sum(nil)
}

// beginning returns where a tenant's log begins: at its genesis, or at a cut. A
// cut whose MAC is wrong is a fault.
func (l *Log) beginning(ctx context.Context, tenant string) (Head, store.EventCut, *Fault, error) {
	genesis := Head{0, Genesis(tenant)}
	c, err := store.Read(ctx, l.store, func(tx *store.Tx) (store.EventCut, error) { return tx.Events().LastCut(ctx, tenant) })
	if err != nil || c.Seq == 0 {
		return genesis, c, nil, err
	}
	if len(l.opts.CutKey) == 0 || len(c.Hash) != sha256.Size || !hmac.Equal(c.Seal, l.seal(tenant, &c)) {
		return genesis, c, &Fault{c.Seq, Cut, fmt.Sprintf("the records up to %d are gone, and that cut is not signed with this daemon's key", c.Seq)}, nil
	}
	return Head{c.Seq, Hash(c.Hash)}, c, nil, nil
}
