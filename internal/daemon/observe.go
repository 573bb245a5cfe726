package daemon

import (
	"context"
	"net/http"

	"github.com/atoll-run/atoll/internal/metrics"
	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/internal/store"
)

// observed serves metrics beside a handler, whose requests they count.
func (d *Daemon) observed(next http.Handler) http.Handler {
	m := metrics.New(d.census)
	counted := m.Wrap(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			counted.ServeHTTP(w, r)
			return
		}
		if err := d.plane.MayObserve(r.Context()); err != nil {
			api.WriteProblem(w, api.NewProblem(err, nil))
			return
		}
		m.ServeHTTP(w, r)
	})
}

func (d *Daemon) census(ctx context.Context) (c metrics.Census, err error) {
	err = d.store.View(ctx, func(tx *store.Tx) (err error) {
		c.Sandboxes, c.Unsettled, err = tx.Operator().Census(ctx, d.member.Node)
		return err
	})
	return c, err
}
