package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// SandboxRef names a sandbox in a path. It is exported because huma ignores
// unexported types.
type SandboxRef struct {
	Ref string `path:"ref" maxLength:"63" doc:"id or name of the sandbox"`
}

type createInput struct {
	IdempotencyKey string `header:"Idempotency-Key" maxLength:"255" doc:"a repeated request with the same key returns the sandbox that the first request made"`
	Abandon        bool   `header:"Atoll-Abandon" hidden:"true"`
	Body           sandbox.CreateRequest
	RawBody        []byte
}

type sandboxOutput struct {
	Status   int
	Replayed string `header:"Idempotent-Replayed"`
	Body     sandbox.Sandbox
}

type listInput struct {
	State  []string `query:"state" maxItems:"16" enum:"creating,running,pausing,paused,resuming,stopped,lost,failed,gone" doc:"only sandboxes in these states; all but gone if it is left out"`
	Label  []string `query:"label,explode" maxItems:"64" doc:"only those with this label, KEY=VALUE; with several, those that have all of them"`
	Cursor string   `query:"cursor" maxLength:"256" doc:"cursor that was returned with the page before"`
	Limit  int      `query:"limit" minimum:"0" maximum:"1000" doc:"maximum number of sandboxes"`
}

type listOutput struct{ Body listOutputBody }

type listOutputBody struct {
	Sandboxes []sandbox.Sandbox `json:"sandboxes" doc:"newest first"`
	Next      string            `json:"next,omitempty" doc:"the cursor of the next page; empty at the end"`
}

type networkOutput struct{ Body sandbox.Network }

type exitOutput struct{ Body sandbox.Exit }

func (a *API) sandboxes() {
	create := operation("createSandbox", http.MethodPost, "/v1/sandboxes", "Sandboxes", "Create a sandbox", ops.SandboxCreate)
	create.DefaultStatus = http.StatusCreated
	create.Errors = append(create.Errors, http.StatusTooManyRequests)
	huma.Register(a.huma, create, a.create)
	huma.Register(a.huma, operation("listSandboxes", http.MethodGet, "/v1/sandboxes", "Sandboxes", "List sandboxes", ops.SandboxList), a.list)
	huma.Register(a.huma, operation("getSandbox", http.MethodGet, "/v1/sandboxes/{ref}", "Sandboxes", "Get a sandbox", ops.SandboxGet),
		func(ctx context.Context, in *SandboxRef) (*sandboxOutput, error) {
			s, err := a.services.Sandboxes.Get(ctx, in.Ref)
			return &sandboxOutput{Status: http.StatusOK, Body: s}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("getNetwork", http.MethodGet, "/v1/sandboxes/{ref}/network", "Sandboxes", "Get which hosts a sandbox may reach", ops.SandboxGet),
		func(ctx context.Context, in *SandboxRef) (*networkOutput, error) {
			n, err := a.services.Sandboxes.Network(ctx, in.Ref)
			return &networkOutput{n}, a.problem(ctx, err)
		})
	remove := operation("removeSandbox", http.MethodDelete, "/v1/sandboxes/{ref}", "Sandboxes", "Remove a sandbox with everything in it; removing it again is success", ops.SandboxDestroy)
	remove.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, remove, func(ctx context.Context, in *SandboxRef) (*struct{}, error) {
		return nil, a.problem(ctx, a.services.Sandboxes.Destroy(ctx, in.Ref))
	})
	huma.Register(a.huma, operation("waitSandbox", http.MethodGet, "/v1/sandboxes/{ref}/wait", "Sandboxes", "Wait until it has ended", ops.SandboxWait),
		func(ctx context.Context, in *SandboxRef) (*exitOutput, error) {
			exit, err := a.services.Sandboxes.Wait(ctx, in.Ref)
			return &exitOutput{exit}, a.problem(ctx, err)
		})
}

func (a *API) create(ctx context.Context, in *createInput) (*sandboxOutput, error) {
	req := in.Body
	req.IdempotencyKey, req.Raw, req.Abandon = in.IdempotencyKey, in.RawBody, in.Abandon
	s, replayed, err := a.services.Sandboxes.Create(ctx, req)
	if err != nil {
		return nil, a.problem(ctx, err)
	}
	out := &sandboxOutput{Status: http.StatusCreated, Body: s}
	if replayed {
		out.Status, out.Replayed = http.StatusOK, "true"
	}
	return out, nil
}

func (a *API) list(ctx context.Context, in *listInput) (*listOutput, error) {
	wanted, err := labels(in.Label)
	if err != nil {
		return nil, a.problem(ctx, err)
	}
	states := make([]sandbox.State, len(in.State))
	for i, state := range in.State {
		states[i] = sandbox.State(state)
	}
	page, next, err := a.services.Sandboxes.List(ctx, sandbox.ListQuery{States: states, Labels: wanted, Cursor: in.Cursor, Limit: in.Limit})
	if err != nil {
		return nil, a.problem(ctx, err)
	}
	return &listOutput{listOutputBody{Sandboxes: page, Next: next}}, nil
}
