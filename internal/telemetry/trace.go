package telemetry

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/sandbox"
)

// Wrap collects the spans of next's requests, below the caller's span if it
// sends one. next must be or end in a http.ServeMux, which sets the path
// pattern; the path itself is not recorded.
func (t *Telemetry) Wrap(next http.Handler) http.Handler {
	if t == nil || t.provider == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, s := t.tracer.Start(remote(r), method(r.Method), trace.WithSpanKind(trace.SpanKindServer))
		id, _ := span.IDs(ctx)
		span.SetTrace(ctx, s.SpanContext().TraceID().String())
		s.SetAttributes(attribute.String("http.request.method", method(r.Method)), attribute.String("atoll.request", id))
		if s.IsRecording() {
			ctx = span.WithTracer(ctx, tracer{t.tracer})
		}
		seen := &answer{ResponseWriter: w, status: http.StatusOK}
		r = r.WithContext(ctx)
		defer func() {
			if r.Pattern != "" && r.Pattern != "/" {
				s.SetName(r.Pattern)
				s.SetAttributes(attribute.String("http.route", r.Pattern))
			}
			s.SetAttributes(attribute.Int("http.response.status_code", seen.status))
			if seen.status >= http.StatusInternalServerError {
				s.SetStatus(codes.Error, "")
			}
			s.End()
		}()
		next.ServeHTTP(seen, r)
	})
}

// method returns the name of a standard method, and one name for all others.
func method(name string) string {
	switch name {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return name
	}
	return "_OTHER"
}

// remote returns the context of a request with the caller's span.
func remote(r *http.Request) context.Context {
	p, ok := span.ParseParent(r.Header.Get("Traceparent"))
	if !ok {
		return r.Context()
	}
	traceID, err := trace.TraceIDFromHex(p.Trace)
	if err != nil {
		return r.Context()
	}
	spanID, err := trace.SpanIDFromHex(p.Span)
	if err != nil {
		return r.Context()
	}
	config := trace.SpanContextConfig{TraceID: traceID, SpanID: spanID, Remote: true}
	if p.Sampled {
		config.TraceFlags = trace.FlagsSampled
	}
	// An invalid tracestate is ignored, as the recommendation requires.
	config.TraceState, _ = trace.ParseTraceState(r.Header.Get("Tracestate"))
	return trace.ContextWithRemoteSpanContext(r.Context(), trace.NewSpanContext(config))
}

// tracer converts our spans to OpenTelemetry's.
type tracer struct{ trace.Tracer }

func (t tracer) Start(ctx context.Context, layer, op string, sb sandbox.ID) (context.Context, func(error)) {
	ctx, s := t.Tracer.Start(ctx, layer+" "+op)
	s.SetAttributes(attribute.String("atoll.layer", layer), attribute.String("atoll.op", op))
	if sb != "" {
		s.SetAttributes(attribute.String("atoll.sandbox.id", string(sb)))
	}
	return ctx, func(err error) {
		if code := sandbox.CodeOf(err); code != "" {
			s.SetAttributes(attribute.String("error.type", string(code)))
			s.SetStatus(codes.Error, string(code)) // never the text, which may contain names
		}
		s.End()
	}
}

// answer records the status of a response.
type answer struct {
	http.ResponseWriter
	status int
}

func (a *answer) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap gives http.ResponseController and WebSockets access to the underlying
// writer.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
