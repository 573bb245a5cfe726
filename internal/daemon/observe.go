package daemon

import (
	"context"
	"net/http"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/metrics"
	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/telemetry"
)

// observed counts the requests of a handler and adds the metrics endpoint.
func (d *Daemon) observed(next http.Handler) http.Handler {
	m := metrics.New(d.stats, d.leases)
	counted := d.otel.Wrap(m.Wrap(next))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			counted.ServeHTTP(w, r)
			return
		}
		if err := d.services.Machine.MayObserve(r.Context()); err != nil {
			api.WriteProblem(w, api.NewProblem(err, nil))
			return
		}
		m.ServeHTTP(w, r)
	})
}

// openTelemetry starts the export of traces and events to a collector, if one
// is configured.
func (d *Daemon) openTelemetry(ctx context.Context) (err error) {
	d.otel, err = telemetry.New(ctx, telemetry.Options{
		Endpoint: d.opts.Telemetry, Version: d.opts.Version, Node: d.member.Node, LookupEnv: d.opts.LookupEnv, Logger: d.opts.Logger,
	})
	d.onClose(d.otel.Close)
	return err
}

func (d *Daemon) stats(ctx context.Context) (c metrics.Stats, err error) {
	c.DiskFull = d.diskFull()
	c.Making, c.Waiting = d.gate.Stats()
	c.GatewaySilent = d.gatewaySilent(ctx)
	if d.hub != nil {
		c.Machines, c.MachineStreams = d.hub.Stats()
	}
	held := d.view.Held()
	c.HeldBytes, c.HeldTime = held.Bytes, held.Time
	if facts, err := d.provider.Probe(ctx); err == nil {
		for _, f := range facts.Findings {
			if f.Severity == driver.Warning || f.Severity == driver.Blocker {
				c.Warnings++
			}
		}
	}
	err = d.store.View(ctx, func(tx *store.Tx) (err error) {
		if c.Sandboxes, c.Unsettled, err = tx.Operator().Stats(ctx, d.member.Node); err != nil {
			return err
		}
		c.Leases, err = tx.Operator().LeaseStates(ctx)
		return err
	})
	return c, err
}
