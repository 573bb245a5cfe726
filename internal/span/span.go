// Package span says which request something is done for, and where the time of
// that request goes.
//
// A span here has a name, a sandbox and an outcome. There is no field for
// anything else, so that no command, path, variable or secret can become part
// of a trace. Code that makes spans does not know the collector: a [Tracer] in
// the context does. Without one, a span costs one context lookup.
package span

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/atoll-run/atoll/sandbox"
)

// Tracer collects spans. It may be used concurrently.
type Tracer interface {
	// Start begins a span below the one in ctx. The function that it returns
	// ends it, once, with what became of it.
	Start(ctx context.Context, layer, op string, box sandbox.ID) (context.Context, func(error))
}

type tracerKey struct{}

// WithTracer returns a context whose spans t collects.
func WithTracer(ctx context.Context, t Tracer) context.Context {
	return context.WithValue(ctx, tracerKey{}, t)
}

func ignore(error) {}

// Start begins a span: what a layer does about an operation, both of which have
// constant names, to a sandbox, if it is to one. The caller calls end, with the
// error that the operation returns, of which only the code is told.
func Start(ctx context.Context, layer, op string, box sandbox.ID) (_ context.Context, end func(error)) {
	t, ok := ctx.Value(tracerKey{}).(Tracer)
	if !ok {
		return ctx, ignore
	}
	return t.Start(ctx, layer, op, box)
}

// In runs f within a span.
func In(ctx context.Context, layer, op string, box sandbox.ID, f func(context.Context) error) error {
	t, ok := ctx.Value(tracerKey{}).(Tracer)
	if !ok {
		return f(ctx)
	}
	ctx, end := t.Start(ctx, layer, op, box)
	err := f(ctx)
	end(err)
	return err
}

type requestKey struct{}

// request identifies the request that work is done for.
type request struct {
	id    string
	trace atomic.Pointer[string]
	done  <-chan struct{} // closed when the context of the request ends

	mu    sync.Mutex
	over  bool
	after []func()
}

// WithRequest returns the context of a request: its id, and that of the trace it
// belongs to, which may be empty. Both are shown and logged as they are.
func WithRequest(ctx context.Context, id, trace string) context.Context {
	r := &request{id: id, done: ctx.Done()}
	r.trace.Store(&trace)
	return context.WithValue(ctx, requestKey{}, r)
}

// AtEnd has f called once ctx has ended. Where that is when a request is over,
// Over calls it, which spares the goroutine that context.AfterFunc would have
// for it.
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

// Over says that the request of ctx was answered. The creator of the context
// calls it.
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

// SetTrace names the trace of the request of ctx, if there is one, for all who
// hold the context.
func SetTrace(ctx context.Context, trace string) {
	if r, ok := ctx.Value(requestKey{}).(*request); ok {
		r.trace.Store(&trace)
	}
}

// IDs returns the id of the request of ctx and of its trace, each empty if there
// is none.
func IDs(ctx context.Context) (id, trace string) {
	if r, ok := ctx.Value(requestKey{}).(*request); ok {
		return r.id, *r.trace.Load()
	}
	return "", ""
}
