package e2b

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// Remember adds a record, as if the provider had made the sandbox.
func Remember(ctx context.Context, p *Provider, id sandbox.ID, sandboxID string) error {
	l, err := p.Lock(ctx, string(id))
	if err != nil {
		return err
	}
	defer l.Unlock()
	binding, err := p.Binding(ctx)
	if err != nil {
		return err
	}
	return l.Write(hosted.Record{ServiceID: sandboxID, Ends: time.Now().Add(time.Hour), Binding: binding})
}
