package telemetry

import (
	"context"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/log"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/trace"

	"github.com/atoll-run/atoll/internal/eventlog"
)

func (t *Telemetry) startEvents(ctx context.Context) (err error) {
	where := []otlploghttp.Option{otlploghttp.WithRetry(otlploghttp.RetryConfig{
		Enabled: true, InitialInterval: time.Second, MaxInterval: 30 * time.Second, MaxElapsedTime: time.Minute,
	})}
	if u, ok := t.opts.at("v1/logs"); ok {
		where = append(where, otlploghttp.WithEndpointURL(u))
	}
	t.events, err = otlploghttp.New(ctx, where...)
	return err
}

// Events reports whether the event log is exported.
func (t *Telemetry) Events() bool { return t != nil && t.events != nil }

const (
	// shipEvery is the interval between checks for new events.
	shipEvery = time.Second
	// maxPause is the maximum delay after failures of a collector.
	maxPause = time.Minute
	// shipBatch is the number of events per request.
	shipBatch = 500
)

// Ship exports the events that this daemon writes to the event log, from the
// beginning and each at least once, until ctx ends. Progress is kept in the
// store. Call it once.
func (t *Telemetry) Ship(ctx context.Context, events *eventlog.Log) {
	s := newShipper(t, events)
	pause := shipEvery
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		switch err := s.round(ctx); {
		case err == nil:
			pause = shipEvery
		case ctx.Err() != nil:
			return
		default:
			pause = min(2*pause, maxPause)
			t.opts.Logger.Warn("events could not be sent; they stay in the log and are tried again", "error", clip(err))
		}
	}
}

// shipper exports events. It is not safe for concurrent use.
type shipper struct {
	t        *Telemetry
	log      *eventlog.Log
	records  collected
	provider *sdklog.LoggerProvider
}

func newShipper(t *Telemetry, events *eventlog.Log) *shipper {
	s := &shipper{t: t, log: events}
	s.provider = sdklog.NewLoggerProvider(sdklog.WithResource(t.resource), sdklog.WithProcessor(&s.records))
	return s
}

// collected buffers records until they are sent.
type collected struct{ all []sdklog.Record }

func (c *collected) OnEmit(_ context.Context, r *sdklog.Record) error {
	c.all = append(c.all, r.Clone())
	return nil
}

func (c *collected) Enabled(context.Context, sdklog.EnabledParameters) bool { return true }
func (c *collected) Shutdown(context.Context) error                         { return nil }
func (c *collected) ForceFlush(context.Context) error                       { return nil }

// round sends all pending events.
func (s *shipper) round(ctx context.Context) error {
	waiting, err := s.log.Unsent(ctx, s.t.opts.Node)
	if err != nil {
		return err
	}
	for _, w := range waiting {
		for after := w.After; after < w.Head; {
			if after, err = s.batch(ctx, w.Tenant, after); err != nil {
				return err
			}
		}
	}
	return nil
}

// batch sends the next events of a tenant and returns the last number sent. In
// a shared log, each daemon sends only its own events.
func (s *shipper) batch(ctx context.Context, tenant string, after int64) (int64, error) {
	page, err := s.log.Records(ctx, tenant, eventlog.Filter{}, after, shipBatch)
	if err != nil || len(page) == 0 {
		return after, errors.Join(err, ctx.Err(), emptyPage(page))
	}
	s.records.all = s.records.all[:0]
	logger := s.provider.Logger(scope, log.WithInstrumentationVersion(s.t.opts.Version))
	for i := range page {
		if page[i].Node == s.t.opts.Node {
			logger.Emit(traced(ctx, page[i].Trace), recordOf(&page[i]))
		}
	}
	if len(s.records.all) > 0 {
		if err := s.t.events.Export(ctx, s.records.all); err != nil && !rejected(err) {
			return after, err
		} else if err != nil {
			s.t.opts.Logger.Warn("the collector rejected some of the events", "error", clip(err))
		}
	}
	after = page[len(page)-1].Seq
	// Progress is stored even during shutdown.
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	return after, s.log.Sent(late, s.t.opts.Node, tenant, after)
}

func emptyPage(page []eventlog.Record) error {
	if len(page) > 0 {
		return nil
	}
	return errors.New("the log is shorter than its head says")
}

// rejected reports whether a collector rejected events permanently. The
// exporter's error for that has no exported type.
func rejected(err error) bool { return strings.Contains(err.Error(), "OTLP partial success") }

// traced returns a context with the trace of a record.
func traced(ctx context.Context, id string) context.Context {
	traceID, err := trace.TraceIDFromHex(id)
	if err != nil {
		return trace.ContextWithSpanContext(ctx, trace.SpanContext{})
	}
	return trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID}))
}

// recordOf converts an event to an OpenTelemetry record.
func recordOf(e *eventlog.Record) (r log.Record) {
	r.SetEventName("atoll." + e.Type)
	r.SetTimestamp(e.Time)
	r.SetObservedTimestamp(e.Time)
	r.SetSeverity(severity(e))
	r.SetSeverityText(severity(e).String())
	r.SetBody(attribute.StringValue(e.Type))
	r.AddAttributes(attributes(e)...)
	return r
}

func severity(e *eventlog.Record) log.Severity {
	if e.Code != "" || e.Type == eventlog.EgressDenied {
		return log.SeverityWarn
	}
	return log.SeverityInfo
}

// attributes returns the non-empty fields of an event.
func attributes(e *eventlog.Record) []attribute.KeyValue {
	kvs := []attribute.KeyValue{
		attribute.String("atoll.tenant", e.Tenant), attribute.Int64("atoll.seq", e.Seq), attribute.String("atoll.hash", hex.EncodeToString(e.Hash[:])),
	}
	for _, f := range []struct{ key, value string }{
		{"atoll.op", e.Op},
		{"atoll.actor.key", e.Key},
		{"atoll.node", e.Node},
		{"atoll.sandbox.id", string(e.Sandbox)},
		{"atoll.sandbox.name", e.Name},
		{"atoll.subject", e.Subject},
		{"atoll.policy", e.Policy},
		{"error.type", string(e.Code)},
		{"atoll.program", e.Program},
		{"atoll.reason", string(e.Reason)},
		{"atoll.request", e.Request},
	} {
		if f.value != "" {
			kvs = append(kvs, attribute.String(f.key, f.value))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.Labels)) {
		kvs = append(kvs, attribute.String("atoll.sandbox.label."+name, e.Labels[name]))
	}
	for _, f := range []struct {
		key   string
		value int64
	}{{"atoll.ref", e.Ref}, {"atoll.argc", int64(e.Argc)}, {"atoll.bytes", e.Bytes}, {"atoll.duration_ms", e.Duration.Milliseconds()}} {
		if f.value != 0 {
			kvs = append(kvs, attribute.Int64(f.key, f.value))
		}
	}
	if e.UID != nil {
		kvs = append(kvs, attribute.Int64("atoll.actor.uid", int64(*e.UID)))
	}
	if e.Exit != nil {
		kvs = append(kvs, attribute.Int("atoll.exit", *e.Exit))
	}
	if len(e.Args) > 0 {
		kvs = append(kvs, attribute.StringSlice("atoll.args", e.Args))
	}
	return kvs
}
