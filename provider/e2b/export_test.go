package e2b

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Remember records a sandbox as if the provider had made it.
func Remember(ctx context.Context, p *Provider, id sandbox.ID, boxID string) error {
	l, err := p.state.lock(ctx, id)
	if err != nil {
		return err
	}
	defer l.unlock()
	binding, err := p.Binding(ctx)
	if err != nil {
		return err
	}
	return l.write(record{Box: boxID, Ends: time.Now().Add(time.Hour), Binding: binding})
}
