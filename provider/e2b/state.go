package e2b

import (
	"time"

	"github.com/atoll-run/atoll/provider/internal/records"
	"github.com/atoll-run/atoll/sandbox"
)

// record is what the provider stores about a sandbox, because the service
// reports nothing about ended ones. It contains no secret.
type record struct {
	Box  string    `json:"box"`  // the service's id
	Ends time.Time `json:"ends"` // as far as known here
	// Life is how long it may run after it was started or resumed.
	Life   time.Duration `json:"life,omitempty"`
	Doomed bool          `json:"doomed,omitempty"` // we ended it, or were about to
	// Binding names the account; see [Provider.Binding].
	Binding string `json:"binding,omitempty"`
	// Scope names the directory that made the sandbox, if it was another one: the
	// owner in the metadata cannot be changed.
	Scope string `json:"scope,omitempty"`
}

// lockedRecord is a record that only its holder can change.
type lockedRecord = records.Locked[record]

// recordOf returns the record of the sandbox with an id of the service. ok is
// false if there is none, as after Destroy.
func (p *Provider) recordOf(id sandbox.ID, boxID string) (r record, ok bool) {
	if r, ok = p.boxes.Get(string(id)); !ok || r.Box != boxID {
		return record{}, false
	}
	return r, true
}

// kept is how long the record of an ended sandbox is kept, so that callers can
// learn why it ended.
const kept = 24 * time.Hour

// sweep removes records that are not needed any more. The state of another
// key's sandboxes is unknown.
func (p *Provider) sweep(now time.Time) {
	if len(p.boxes.IDs()) == 0 {
		return
	}
	p.boxes.Sweep(func(r record) bool {
		ours, err := p.ours(r)
		return now.After(r.Ends.Add(kept)) && ours && err == nil
	})
}
