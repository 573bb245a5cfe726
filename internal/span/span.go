// Package span identifies the current request and traces its duration.
//
// A span has a name, a sandbox and an outcome, and no field for other data, so
// commands, paths, variables and secrets cannot become part of a trace. Code
// that creates spans does not depend on the collector: it uses the [Tracer] in
// the context. Without one, a span costs one context lookup.
package span

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/atoll-run/atoll/sandbox"
)

// Tracer collects spans. It must be safe for concurrent use.
type Tracer interface {
	// Start starts a span below the one in ctx. The returned function ends the
	// span with its error.
	Start(ctx context.Context, layer, op string, sb sandbox.ID) (context.Context, func(error))
}

type tracerKey struct{}

// WithTracer returns a context whose spans are collected by t.
func WithTracer(ctx context.Context, t Tracer) context.Context {
	return context.WithValue(ctx, tracerKey{}, t)
}

func ignore(error) {}

// Start starts a span for an operation of a layer, whose names must be
// constant, on a sandbox, if any. The caller calls end with the operation's
// error; only its code is recorded.
func Start(ctx context.Context, layer, op string, sb sandbox.ID) (_ context.Context, end func(error)) {
	t, ok := ctx.Value(tracerKey{}).(Tracer)
	if !ok {
		return ctx, ignore
	}
	return t.Start(ctx, layer, op, sb)
}

// In runs f in a span.
func In(ctx context.Context, layer, op string, sb sandbox.ID, f func(context.Context) error) error {
	t, ok := ctx.Value(tracerKey{}).(Tracer)
	if !ok {
		return f(ctx)
	}
	ctx, end := t.Start(ctx, layer, op, sb)
	err := f(ctx)
	end(err)
	return err
}

type requestKey struct{}

// request identifies the current request.
type request struct {
	id    string
	trace atomic.Pointer[string]
	done  <-chan struct{} // closed when the context of the request ends

	mu    sync.Mutex
	over  bool
	after []func()
}

// WithRequest returns the context of a request with its id and the id of its
// trace, which may be empty. Both are displayed and logged unchanged.
func WithRequest(ctx context.Context, id, trace string) context.Context {
	r := &request{id: id, done: ctx.Done()}
	r.trace.Store(&trace)
	return context.WithValue(ctx, requestKey{}, r)
}

// AtEnd calls f once ctx has ended. For a request, Over calls f, which avoids
// the goroutine of context.AfterFunc.
func AtEnd(ctx context.Context, f func()) {
	r, ok := ctx.Value(requestKey{}).(*request)
	if !ok || r.done != ctx.Done() || !r.add(f) {
		context.AfterFunc(ctx, f)
	}
}

func (r *request) add(f func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		r.after = append(r.after, f)
	}
	return !r.over
}

// Over marks the request of ctx as completed. The creator of the context calls
// it.
func Over(ctx context.Context) {
	r, ok := ctx.Value(requestKey{}).(*request)
	if !ok {
		return
	}
	r.mu.Lock()
	after := r.after
	r.over, r.after = true, nil
	r.mu.Unlock()
	for _, f := range after {
		f()
	}
}

// SetTrace sets the trace id of the request of ctx, if there is one, for all
// holders of the context.
func SetTrace(ctx context.Context, trace string) {
	if r, ok := ctx.Value(requestKey{}).(*request); ok {
		r.trace.Store(&trace)
	}
}

// IDs returns the ids of the request of ctx and of its trace. Each is empty if
// there is none.
func IDs(ctx context.Context) (id, trace string) {
	if r, ok := ctx.Value(requestKey{}).(*request); ok {
		return r.id, *r.trace.Load()
	}
	return "", ""
}

type epochKey struct{}

type epochOf struct {
	session string
	epoch   int64
}

// WithEpoch returns the context of a request for a session, by its id, that its
// sandbox of this epoch serves.
func WithEpoch(ctx context.Context, session string, epoch int64) context.Context {
	return context.WithValue(ctx, epochKey{}, epochOf{session, epoch})
}

// Epoch returns the session and the epoch of a request. Without a session, the
// epoch is 0.
func Epoch(ctx context.Context) (session string, epoch int64) {
	e, _ := ctx.Value(epochKey{}).(epochOf)
	return e.session, e.epoch
}

// Headers of requests to a self-hosted machine: the id of the session that a
// request is for, and its epoch.
const (
	SessionHeader = "Atoll-Session"
	EpochHeader   = "Atoll-Epoch"
)
