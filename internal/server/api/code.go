package api

import (
	"context"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox/coding"
)

// Code runs code in the interpreters of sandboxes.
type Code interface {
	// Run executes code and calls each with its events, from one goroutine. An
	// error of each ends the execution.
	Run(ctx context.Context, ref string, req coding.CodeRequest, each func(coding.CodeEvent) error) error
	Contexts(ctx context.Context, ref string) ([]coding.CodeContext, error)
	CreateContext(ctx context.Context, ref string, n coding.NewCodeContext) (coding.CodeContext, error)
	RestartContext(ctx context.Context, ref, id string) error
	InterruptContext(ctx context.Context, ref, id string) error
	RemoveContext(ctx context.Context, ref, id string) error
}

var eventType = reflect.TypeFor[coding.CodeEvent]()

type codeInput struct {
	SandboxRef
	Body coding.CodeRequest
}

type newContextInput struct {
	SandboxRef
	Body coding.NewCodeContext
}

type contextRef struct {
	SandboxRef
	ID string `path:"id" maxLength:"64" doc:"id of a context"`
}

type contextOutput struct{ Body coding.CodeContext }

type contextsOutput struct {
	Body struct {
		Contexts []coding.CodeContext `json:"contexts"`
	}
}

func (a *API) code() {
	run := operation("runCode", http.MethodPost, "/v1/sandboxes/{ref}/code", "Code", "Execute code in a context that keeps its variables; the answer is a stream of events, as JSON lines", ops.SandboxFind, ops.ProcessExec, ops.PortOpen)
	event := a.huma.OpenAPI().Components.Schemas.Schema(eventType, true, "")
	run.Responses = map[string]*huma.Response{"200": {Description: "OK", Content: map[string]*huma.MediaType{"application/x-ndjson": {Schema: event}}}}
	huma.Register(a.huma, run, func(ctx context.Context, in *codeInput) (*huma.StreamResponse, error) {
		return a.runCode(in), nil
	})
	const contexts = "/v1/sandboxes/{ref}/code/contexts"
	huma.Register(a.huma, operation("listCodeContexts", http.MethodGet, contexts, "Code", "List the contexts of the code interpreter", ops.SandboxFind, ops.ProcessExec, ops.PortOpen),
		func(ctx context.Context, in *SandboxRef) (*contextsOutput, error) {
			all, err := a.services.Code.Contexts(ctx, in.Ref)
			out := &contextsOutput{}
			out.Body.Contexts = append([]coding.CodeContext{}, all...)
			return out, a.problem(ctx, err)
		})
	create := operation("createCodeContext", http.MethodPost, contexts, "Code", "Make a context with variables of its own", ops.SandboxFind, ops.ProcessExec, ops.PortOpen)
	create.DefaultStatus = http.StatusCreated
	huma.Register(a.huma, create, func(ctx context.Context, in *newContextInput) (*contextOutput, error) {
		c, err := a.services.Code.CreateContext(ctx, in.Ref, in.Body)
		return &contextOutput{c}, a.problem(ctx, err)
	})
	a.onContext(operation("restartCodeContext", http.MethodPost, contexts+"/{id}/restart", "Code", "Forget the variables of a context", ops.SandboxFind, ops.ProcessExec, ops.PortOpen), Code.RestartContext)
	a.onContext(operation("interruptCodeContext", http.MethodPost, contexts+"/{id}/interrupt", "Code", "Interrupt what a context executes; its variables stay", ops.SandboxFind, ops.ProcessExec, ops.PortOpen), Code.InterruptContext)
	a.onContext(operation("removeCodeContext", http.MethodDelete, contexts+"/{id}", "Code", "Remove a context", ops.SandboxFind, ops.ProcessExec, ops.PortOpen), Code.RemoveContext)
}

// onContext registers an operation on one context, without a result.
func (a *API) onContext(op huma.Operation, do func(c Code, ctx context.Context, ref, id string) error) {
	op.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, op, func(ctx context.Context, in *contextRef) (*struct{}, error) {
		return nil, a.problem(ctx, do(a.services.Code, ctx, in.Ref, in.ID))
	})
}

// runCode answers with the events of an execution. An error after the first one
// is a line of its own.
func (a *API) runCode(in *codeInput) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		r, w := humago.Unwrap(hctx)
		var out *lines
		err := a.services.Code.Run(r.Context(), in.Ref, in.Body, func(e coding.CodeEvent) error {
			if out == nil {
				out = newLines(w)
			}
			if !out.write(e) {
				return context.Canceled
			}
			return nil
		})
		switch {
		case err == nil:
		case out == nil:
			a.fail(w, r, err)
		default:
			out.write(map[string]any{"error": a.problem(r.Context(), err)})
		}
	}}
}
