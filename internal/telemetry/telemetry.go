// Package telemetry exports OpenTelemetry data: it collects the spans of
// requests, and sends them and the event log to a collector, over HTTP (OTLP).
//
// It is configured by the standard OTEL_ environment variables, and disabled
// unless they or [Options] name a collector. If a collector is slow or
// unavailable, traces may be lost, but not events, and no request waits for it.
package telemetry

import (
	"context"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/atoll-run/atoll/sandbox"
)

// scope is the instrumentation scope.
const scope = "github.com/atoll-run/atoll"

// Options of a Telemetry.
type Options struct {
	// Endpoint is the address of a collector, such as http://localhost:4318.
	// Empty: the one in the environment, if any.
	Endpoint string
	// Version is the program's version, Node the name of the daemon.
	Version, Node string
	// LookupEnv returns the variables that determine whether and what to send. The
	// OpenTelemetry libraries read further settings from the environment of the
	// process.
	LookupEnv func(string) (string, bool)
	// Logger gets export errors.
	Logger *slog.Logger
}

// Telemetry exports traces and events. [New] returns a nil Telemetry if there
// is no collector; its methods do nothing. It is safe for concurrent use, but
// see [Telemetry.Events].
type Telemetry struct {
	opts     Options
	provider *sdktrace.TracerProvider // nil: no traces
	sending  *patient
	tracer   trace.Tracer
	events   *otlploghttp.Exporter // nil: no events
	resource *resource.Resource
}

// lookup returns the first of the variables that is set.
func (o *Options) lookup(names ...string) string {
	for _, name := range names {
		if v, _ := o.LookupEnv(name); v != "" {
			return v
		}
	}
	return ""
}

// wants reports whether a signal is enabled.
func (o *Options) wants(signal string) bool {
	if strings.EqualFold(o.lookup("OTEL_SDK_DISABLED"), "true") || strings.EqualFold(o.lookup("OTEL_"+signal+"_EXPORTER"), "none") {
		return false
	}
	return o.Endpoint != "" || o.lookup("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != ""
}

// check refuses settings that would be silently ignored.
func (o *Options) check() error {
	bad := func(subject, message, hint string) error {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "telemetry.start", Subject: subject, Message: message, Hint: hint}
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL"} {
		if p := o.lookup(name); p != "" && p != "http/protobuf" {
			return bad(name, "only http/protobuf is supported", "collectors listen for it on port 4318")
		}
	}
	if o.Endpoint == "" {
		return nil
	}
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return bad("otlp", "is not the address of a collector", "write http://HOST:4318; put credentials into OTEL_EXPORTER_OTLP_HEADERS")
	}
	return nil
}

// New returns a Telemetry, or nil if no collector is configured. It does not
// connect. The caller closes it.
func New(ctx context.Context, opts Options) (*Telemetry, error) {
	traces, events := opts.wants("TRACES"), opts.wants("LOGS")
	if !traces && !events {
		return nil, nil
	}
	if err := opts.check(); err != nil {
		return nil, err
	}
	t := &Telemetry{opts: opts}
	var err error
	t.resource, err = resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", "atoll"), attribute.String("service.version", opts.Version), attribute.String("service.instance.id", opts.Node),
	), resource.WithFromEnv()) // last, so that the environment takes precedence
	if err != nil {
		return nil, unusable(err)
	}
	if traces {
		if err := t.startTraces(ctx); err != nil {
			return nil, unusable(err)
		}
	}
	if events {
		if err := t.startEvents(ctx); err != nil {
			return nil, unusable(err)
		}
	}
	return t, nil
}

func unusable(err error) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "telemetry.start", Message: "the OTEL_ variables cannot be used", Cause: err}
}

// at returns the address for a signal, if the options set it.
func (o *Options) at(path string) (string, bool) {
	if o.Endpoint == "" {
		return "", false
	}
	joined, err := url.JoinPath(o.Endpoint, path)
	return joined, err == nil
}

func (t *Telemetry) startTraces(ctx context.Context) error {
	var where []otlptracehttp.Option
	if u, ok := t.opts.at("v1/traces"); ok {
		where = append(where, otlptracehttp.WithEndpointURL(u))
	}
	exporter, err := otlptracehttp.New(ctx, where...)
	if err != nil {
		return err
	}
	t.sending = &patient{SpanExporter: exporter, logger: t.opts.Logger}
	t.sending.life, t.sending.stop = context.WithCancel(context.Background())
	t.provider = sdktrace.NewTracerProvider(sdktrace.WithResource(t.resource), sdktrace.WithBatcher(t.sending))
	t.tracer = t.provider.Tracer(scope, trace.WithInstrumentationVersion(t.opts.Version))
	return nil
}

// patient logs export errors itself, because the library's error handler is
// global.
type patient struct {
	sdktrace.SpanExporter
	logger *slog.Logger
	life   context.Context // canceled by Close
	stop   context.CancelFunc
	mu     sync.Mutex // held while sending
}

func (p *patient) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life.Err() != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.life, cancel)()
	if err := p.SpanExporter.ExportSpans(ctx, spans); err != nil {
		p.logger.Warn("traces could not be sent", "spans", len(spans), "error", clip(err))
	}
	return nil
}

// maxText limits the length of a collector's messages in our log.
const maxText = 300

func clip(err error) string {
	text := strings.ToValidUTF8(err.Error(), "\uFFFD")
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	return text
}

// closeTime is how long Close waits for a collector.
const closeTime = 3 * time.Second

// Close sends pending traces if the collector responds in time, and releases
// all resources. The Telemetry must not be used afterwards.
func (t *Telemetry) Close() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	if t.provider != nil {
		if err := t.provider.Shutdown(ctx); err != nil {
			t.opts.Logger.Warn("the last traces could not be sent", "error", clip(err))
		}
		// Stop exports that are still running after an interrupted Shutdown.
		t.sending.stop()
		t.sending.mu.Lock()
		t.sending.mu.Unlock() //nolint:staticcheck // only wait for it
	}
	if t.events != nil {
		_ = t.events.Shutdown(ctx) // it has no pending data
	}
	return nil
}
