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

// Wrap has the spans of what next answers collected, below that of the caller
// if it names one. next is, or ends in, a http.ServeMux, which tells the
// pattern of the path; the path itself is told nobody.
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

// method is the name of a method that exists; all that callers make up are one.
func method(name string) string {
	switch name {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return name
	}
	return "_OTHER"
}

// remote returns the context of a request with the span of its caller.
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
	// A state that is not as it should be is none, as the recommendation says.
	config.TraceState, _ = trace.ParseTraceState(r.Header.Get("Tracestate"))
	return trace.ContextWithRemoteSpanContext(r.Context(), trace.NewSpanContext(config))
}

// tracer makes OpenTelemetry's spans of ours.
type tracer struct{ trace.Tracer }

func (t tracer) Start(ctx context.Context, layer, op string, box sandbox.ID) (context.Context, func(error)) {
	ctx, s := t.Tracer.Start(ctx, layer+" "+op)
	s.SetAttributes(attribute.String("atoll.layer", layer), attribute.String("atoll.op", op))
	if box != "" {
		s.SetAttributes(attribute.String("atoll.sandbox.id", string(box)))
	}
	return ctx, func(err error) {
		if code := sandbox.CodeOf(err); code != "" {
			s.SetAttributes(attribute.String("error.type", string(code)))
			s.SetStatus(codes.Error, string(code)) // never the text, which names things
		}
		s.End()
	}
}

// answer remembers the status of an answer.
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

// Unwrap lets http.ResponseController and WebSockets find what is below.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
