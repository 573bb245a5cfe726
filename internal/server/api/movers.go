package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

type targetsOutput struct {
	Body struct {
		Targets []durable.SessionTarget `json:"targets" doc:"best first"`
	}
}

type sessionCapabilitiesOutput struct {
	Body catalog.CapabilityDocument
}

type swapInput struct {
	SessionRef
	Body durable.SwapRequest
}

type swapOutput struct{ Body durable.Swapped }

// RunOnRequest runs a command on another provider.
type RunOnRequest struct {
	Target  string      `json:"target" minLength:"1" maxLength:"63" doc:"a provider, or default for the provider that the session was created with"`
	Command ExecRequest `json:"command"`
}

type runOnInput struct {
	SessionRef
	Body RunOnRequest
}

// movers registers the operations that move a session to other providers.
func (a *API) movers() {
	huma.Register(a.huma, operation("sessionTargets", http.MethodGet, sessionBase+"/targets", "Sessions", "List the providers that a session can move to, and why it cannot move to others", ops.SessionTargets),
		func(ctx context.Context, in *SessionRef) (*targetsOutput, error) {
			out := &targetsOutput{}
			got, err := a.services.Movers.Targets(ctx, in.Ref)
			out.Body.Targets = append([]durable.SessionTarget{}, got...)
			return out, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("sessionCapabilities", http.MethodGet, sessionBase+"/capabilities", "Sessions", "Get the capabilities that a session has now, and why others are missing", ops.SessionGet),
		func(ctx context.Context, in *SessionRef) (*sessionCapabilitiesOutput, error) {
			got, err := a.services.Sessions.Capabilities(ctx, in.Ref)
			return &sessionCapabilitiesOutput{got}, a.problem(ctx, err)
		})
	swap := operation("swapSession", http.MethodPost, sessionBase+"/swap", "Sessions", "Move a session to another provider with its workspaces, or the files below /workspace; on an error, it stays where it is", ops.ProviderList, ops.SessionSwap)
	runOn := operation("runOnSession", http.MethodPost, sessionBase+"/run-on", "Sessions", "Run a command on another provider with a copy of the files below /workspace; the session stays where it is", ops.ProviderList, ops.SandboxCreate, ops.SessionRunOn)
	swap.Errors, runOn.Errors = append(swap.Errors, http.StatusTooManyRequests), append(runOn.Errors, http.StatusTooManyRequests)
	huma.Register(a.huma, swap, func(ctx context.Context, in *swapInput) (*swapOutput, error) {
		got, err := a.services.Movers.Swap(ctx, in.Ref, in.Body)
		return &swapOutput{got}, a.problem(ctx, err)
	})
	huma.Register(a.huma, runOn, a.runOn)
}

func (a *API) runOn(ctx context.Context, in *runOnInput) (out *execOutput, err error) {
	if in.Body.Command.Background {
		return nil, a.problem(ctx, invalid("command", "cannot be in the background: its sandbox ends with it"))
	}
	var failed error // a *Problem
	err = a.services.Movers.Visit(ctx, in.Ref, in.Body.Target, func(ctx context.Context, id sandbox.ID) error {
		out, failed = a.exec(ctx, &execInput{SandboxRef: SandboxRef{Ref: string(id)}, Body: in.Body.Command})
		return nil
	})
	if failed != nil {
		return nil, failed
	}
	return out, a.problem(ctx, err)
}
