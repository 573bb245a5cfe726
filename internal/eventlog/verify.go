package eventlog

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/atoll-run/atoll/internal/store"
)

// FaultKind says how a log was tampered with.
type FaultKind string

// The kinds of faults.
const (
	Missing    FaultKind = "missing"    // records were removed before this one
	Edited     FaultKind = "edited"     // the record does not match its hash
	Reordered  FaultKind = "reordered"  // the record belongs elsewhere
	Mislabeled FaultKind = "mislabeled" // the columns differ from the record
	Truncated  FaultKind = "truncated"  // the newest records were removed
	Cut        FaultKind = "cut"        // the oldest records were removed, and the cut is not authentic
	Rewritten  FaultKind = "rewritten"  // the chain is valid but does not contain the anchored head
)

// Fault is the first problem found in a log.
type Fault struct {
	Seq    int64     `json:"seq"` // number of the record
	Kind   FaultKind `json:"kind"`
	Detail string    `json:"detail"`
}

// Report is the result of Verify.
type Report struct {
	Tenant string `json:"tenant"`
	// Records is the number of valid records, from the first that still exists.
	Records int64 `json:"records"`
	// Pruned is the number of the last record that was removed by Prune, and
	// PrunedAt the time of that. Zero: the log was not pruned.
	Pruned   int64     `json:"pruned,omitempty"`
	PrunedAt time.Time `json:"prunedAt,omitzero"`
	Head     Head      `json:"-"` // the last valid record
	// Anchored is the number of the record whose hash is kept in the anchor. Zero:
	// none is.
	Anchored int64  `json:"anchored"`
	Fault    *Fault `json:"fault,omitempty"` // nil: the log is valid
}

// Verify reads a tenant's whole log, from the last cut, and reports the first
// fault. It may run while other callers append and prune. An error means that
// the log could not be read.
func (l *Log) Verify(ctx context.Context, tenant string) (Report, error) {
	for {
		r, err := l.verify(ctx, tenant)
		if err != nil || r.Fault == nil {
			return r, err
		}
		cut, err := store.Read(ctx, l.store, func(tx *store.Tx) (store.EventCut, error) { return tx.Events().LastCut(ctx, tenant) })
		if err != nil || cut.Seq <= r.Pruned || r.Fault.Kind == Cut {
			return r, err
		}
		// The log was pruned during the read: start again.
	}
}

func (l *Log) verify(ctx context.Context, tenant string) (Report, error) {
	r := Report{Tenant: tenant, Head: Head{0, Genesis(tenant)}}
	var kept Head
	var err error
	if l.opts.Anchor != nil {
		if kept, err = l.opts.Anchor.Kept(tenant); err != nil {
			return r, damaged(err)
		}
	}
	end, err := l.Head(ctx, tenant)
	if err != nil {
		return r, err
	}
	begin, cut, fault, err := l.beginning(ctx, tenant)
	if err != nil || fault != nil {
		r.Fault = fault
		return r, err
	}
	r.Head = begin
	if cut.Seq > 0 {
		r.Pruned, r.PrunedAt = cut.Seq, cut.Time
	}
	if kept.Seq > 0 && kept.Seq == begin.Seq && kept != begin {
		r.Fault = &Fault{kept.Seq, Rewritten, "the cut does not follow the anchored record"}
		return r, nil
	}
	if err := l.verifyRows(ctx, &r, kept); err != nil || r.Fault != nil {
		return r, err
	}
	switch {
	case r.Head.Seq < end.Seq:
		r.Fault = &Fault{r.Head.Seq + 1, Truncated, fmt.Sprintf("the log ends at record %d, but %d records were written", r.Head.Seq, end.Seq)}
	case r.Head.Seq < kept.Seq:
		r.Fault = &Fault{r.Head.Seq + 1, Truncated, fmt.Sprintf("the log ends at record %d, but record %d is anchored", r.Head.Seq, kept.Seq)}
	}
	r.Anchored = min(kept.Seq, r.Head.Seq)
	return r, nil
}

// verifyRows follows the chain to its end or to the first fault.
func (l *Log) verifyRows(ctx context.Context, r *Report, kept Head) error {
	for {
		rows, err := l.readRows(ctx, r.Tenant, Filter{}, r.Head.Seq, pageSize)
		if err != nil {
			return err
		}
		for i := range rows {
			if r.Fault = verifyRow(r, &rows[i]); r.Fault != nil {
				return nil
			}
			r.Records, r.Head = r.Records+1, Head{rows[i].Seq, Hash(rows[i].Hash)}
			if r.Head.Seq == kept.Seq && r.Head != kept {
				r.Fault = &Fault{kept.Seq, Rewritten, "the hash of the record differs from the anchored one"}
				return nil
			}
		}
		if len(rows) < pageSize {
			return nil
		}
	}
}

func verifyRow(r *Report, row *store.EventRow) *Fault {
	e, err := decode(row)
	want := Link(r.Head.Hash, row.Body)
	switch {
	case row.Seq != r.Head.Seq+1:
		return &Fault{r.Head.Seq + 1, Missing, fmt.Sprintf("record %d follows %d", row.Seq, r.Head.Seq)}
	case err != nil:
		return &Fault{row.Seq, Edited, "the record cannot be read"}
	case e.Seq != row.Seq || e.Tenant != r.Tenant:
		return &Fault{row.Seq, Reordered, fmt.Sprintf("the record says that it is number %d of tenant %s", e.Seq, bounded(e.Tenant))}
	case len(row.Hash) != sha256.Size || !bytes.Equal(want[:], row.Hash):
		return &Fault{row.Seq, Edited, "the hash does not match this record and the previous one"}
	case !e.Time.Equal(row.Time) || e.Type != row.Type || e.Op != row.Op || e.Sandbox != row.Sandbox || string(e.Code) != row.Code:
		return &Fault{row.Seq, Mislabeled, "the filter columns do not match the record"}
	}
	return nil
}
