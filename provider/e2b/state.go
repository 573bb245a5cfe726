package e2b

import (
	"time"

	"github.com/atoll-run/atoll/provider/internal/records"
	"github.com/atoll-run/atoll/sandbox"
)

// record is what is kept of a sandbox, which the service does not tell of one
// that has ended. It holds no secret.
type record struct {
	Box  string    `json:"box"`  // the service's id
	Ends time.Time `json:"ends"` // as far as this directory knows
	// Life is how long it may run from its start, or from when it was resumed.
	Life   time.Duration `json:"life,omitempty"`
	Doomed bool          `json:"doomed,omitempty"` // we ended it, or were about to
	// Binding is whose sandbox it is; see [Provider.Binding].
	Binding string `json:"binding,omitempty"`
	// Scope is that of the directory that made the sandbox, if it was another one:
	// the service cannot be told whose a sandbox is.
	Scope string `json:"scope,omitempty"`
}

// lockedRecord is a record that nobody else changes.
type lockedRecord = records.Locked[record]

// recordOf returns what is kept of the sandbox with a service's id; ok is false
// if nothing is, as after we destroyed it.
func (p *Provider) recordOf(id sandbox.ID, boxID string) (r record, ok bool) {
	if r, ok = p.boxes.Get(string(id)); !ok || r.Box != boxID {
		return record{}, false
	}
	return r, true
}

// kept is how long the record of a sandbox is kept that has ended by itself:
// whoever used it may still ask why.
const kept = 24 * time.Hour

// sweep removes records that nobody will ask for. The state of another key's
// sandboxes is unknown.
func (p *Provider) sweep(now time.Time) {
	if len(p.boxes.IDs()) == 0 {
		return
	}
	p.boxes.Sweep(func(r record) bool {
		ours, err := p.ours(r)
		return now.After(r.Ends.Add(kept)) && ours && err == nil
	})
}
