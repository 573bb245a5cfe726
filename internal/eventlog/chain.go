package eventlog

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/atoll-run/atoll/internal/store"
)

const (
	recordDomain  = "atoll event v1\n"
	genesisDomain = "atoll genesis v1\n"
)

// Hash is a link of the chain.
type Hash [sha256.Size]byte

// Genesis returns the hash that a tenant's first record is linked to.
func Genesis(tenant string) Hash {
	return sha256.Sum256([]byte(genesisDomain + tenant))
}

// Link returns the hash of a record. body is its canonical form, and prev is
// the hash of the record before it.
func Link(prev Hash, body []byte) (h Hash) {
	d := sha256.New()
	d.Write([]byte(recordDomain))
	d.Write(prev[:])
	d.Write(body)
	d.Sum(h[:0])
	return h
}

// Head is the end of a tenant's log. It is zero if the log is empty.
type Head struct {
	Seq  int64
	Hash Hash
}

func headOf(h store.EventHead, tenant string) (Head, error) {
	if h.Seq == 0 {
		return Head{0, Genesis(tenant)}, nil
	}
	if len(h.Hash) != sha256.Size {
		return Head{}, fmt.Errorf("the head of the log of %s is damaged", tenant)
	}
	return Head{h.Seq, Hash(h.Hash)}, nil
}

// extend returns the rows that continue a tenant's log after head, and fills in
// Tenant, Seq and Time of the events.
func extend(head Head, tenant string, now func() time.Time, entries []*entry) (Head, []store.EventRow, error) {
	rows := make([]store.EventRow, 0, len(entries))
	for _, en := range entries {
		e := &en.event
		e.bound()
		e.Tenant, e.Seq, e.Time = tenant, head.Seq+1, now()
		body, err := encode(e)
		if err != nil {
			return head, nil, err
		}
		head = Head{e.Seq, Link(head.Hash, body)}
		rows = append(rows, store.EventRow{
			Seq: e.Seq, Time: e.Time, Type: e.Type, Op: e.Op, Sandbox: e.Sandbox, Code: string(e.Code),
			Body: body, Hash: bytes.Clone(head.Hash[:]), Opens: en.opens, Closes: e.Ref,
		})
	}
	return head, rows, nil
}
