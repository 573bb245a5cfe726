package sandboxes

import (
	"context"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/sandbox"
)

// Stats compares what is recorded with what exists, and changes nothing.
type Stats struct {
	Running []driver.Found // what exists and is recorded
	// Unrecorded exist and have no record, Missing are recorded as running and
	// do not exist. What is being made or removed is neither.
	Unrecorded, Missing []sandbox.ID
	// Unreachable belong to a provider, account or address that this daemon
	// does not work on.
	Unreachable []sandbox.ID
}

// Stats looks at the sandboxes of this node. It is for the owner of the
// machine, whom the caller has found to be asking.
func (s *reconciler) Stats(ctx context.Context) (c Stats, err error) {
	known, err := s.Recorded(ctx)
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
		case lives && b.Rest.Step == "" && !s.inflight.Has(b.ID):
			c.Missing = append(c.Missing, b.ID)
		}
	}
	for id, f := range seen {
		if f.Labels[control.LabelOwner] == "" && f.State != sandbox.Creating && f.State != sandbox.Gone && !s.inflight.Has(id) {
			c.Unrecorded = append(c.Unrecorded, id)
		}
	}
	return c, nil
}
