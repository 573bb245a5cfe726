package reconcile

import (
	"context"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/sandbox"
)

// Stats is a comparison of the records with the sandboxes that exist.
type Stats struct {
	Running []driver.Found // exist and have a record
	// Unrecorded exist without a record. Missing are recorded as running and do
	// not exist. Neither contains sandboxes that are being created or removed.
	Unrecorded, Missing []sandbox.ID
	// Unreachable have a provider, account or address that this daemon does not
	// use.
	Unreachable []sandbox.ID
}

// Stats compares without changing anything. The caller must have checked that
// the request comes from the owner of the machine.
func (s *Reconciler) Stats(ctx context.Context) (c Stats, err error) {
	known, err := s.Records.Recorded(ctx)
	if err != nil {
		return c, err
	}
	seen := map[sandbox.ID]driver.Found{}
	for _, be := range s.Providers.Opened() {
		for f, err := range be.Driver.List(ctx) {
			if err != nil {
				return c, err
			}
			seen[f.ID] = f
		}
	}
	for _, b := range known {
		f, there := seen[b.ID]
		delete(seen, b.ID)
		if _, err := s.Providers.Of(ctx, &b); err != nil {
			c.Unreachable = append(c.Unreachable, b.ID)
			continue
		}
		lives := b.State == sandbox.Running || b.State == sandbox.Paused && b.Rest.Kept == ""
		switch {
		case there:
			c.Running = append(c.Running, f)
		case lives && b.Rest.Step == "" && !s.Records.Inflight.Has(b.ID):
			c.Missing = append(c.Missing, b.ID)
		}
	}
	for id, f := range seen {
		if f.Labels[engine.LabelOwner] == "" && f.State != sandbox.Creating && f.State != sandbox.Gone && !s.Records.Inflight.Has(id) {
			c.Unrecorded = append(c.Unrecorded, id)
		}
	}
	return c, nil
}
