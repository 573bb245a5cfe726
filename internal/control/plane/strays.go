package plane

import (
	"context"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/sandbox"
)

// Census compares what is recorded with what exists, and changes nothing.
type Census struct {
	Running []driver.Found // what exists and is recorded
	// Unrecorded exist and have no record, Missing are recorded as running and
	// do not exist. What is being made or removed is neither.
	Unrecorded, Missing []sandbox.ID
	// Unreachable belong to a provider, account or address that this daemon
	// does not work on.
	Unreachable []sandbox.ID
}

// Census looks at the sandboxes of this node. It is for the owner of the
// machine, whom the caller has found to be asking.
func (p *Plane) Census(ctx context.Context) (c Census, err error) {
	known, err := p.recordedBoxes(ctx)
	if err != nil {
		return c, err
	}
	seen := map[sandbox.ID]driver.Found{}
	for _, be := range p.Providers.Opened() {
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
		if _, err := p.Providers.Of(ctx, &b); err != nil {
			c.Unreachable = append(c.Unreachable, b.ID)
			continue
		}
		lives := b.State == sandbox.Running || b.State == sandbox.Paused && b.Rest.Kept == ""
		switch {
		case there:
			c.Running = append(c.Running, f)
		case lives && b.Rest.Step == "" && !p.making.Has(b.ID):
			c.Missing = append(c.Missing, b.ID)
		}
	}
	for id, f := range seen {
		if f.Labels[control.LabelOwner] == "" && f.State != sandbox.Creating && f.State != sandbox.Gone && !p.making.Has(id) {
			c.Unrecorded = append(c.Unrecorded, id)
		}
	}
	return c, nil
}
