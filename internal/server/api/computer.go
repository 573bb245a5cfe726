package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// Desktops uses the desktops of sandboxes.
type Desktops interface {
	// Start starts the desktop of a sandbox if it does not run, with a VNC server if
	// vnc is set.
	Start(ctx context.Context, ref string, want viewing.Screen, vnc bool) (viewing.DesktopState, error)
	// Act carries out actions in order.
	Act(ctx context.Context, ref string, req viewing.ComputerRequest) (viewing.ComputerResult, error)
}

type desktopInput struct {
	SandboxRef
	Body struct {
		viewing.Screen
		VNC bool `json:"vnc,omitempty" doc:"start a VNC server too, for streams"`
	}
}

type desktopOutput struct{ Body viewing.DesktopState }

type computerInput struct {
	SandboxRef
	Body viewing.ComputerRequest
}

type computerOutput struct{ Body viewing.ComputerResult }

func (a *API) computer() {
	huma.Register(a.huma, operation("startDesktop", http.MethodPut, "/v1/sandboxes/{ref}/desktop", "Desktop", "Start the desktop of a sandbox, unless it runs with that size", ops.SandboxFind, ops.ComputerAct),
		func(ctx context.Context, in *desktopInput) (*desktopOutput, error) {
			d, err := a.services.Desktops.Start(ctx, in.Ref, in.Body.Screen, in.Body.VNC)
			return &desktopOutput{d}, a.problem(ctx, err)
		})
	huma.Register(a.huma, sometimes(operation("useComputer", http.MethodPost, "/v1/sandboxes/{ref}/computer", "Desktop", "Look at a desktop, or use its mouse and keyboard; it is started if it does not run", ops.SandboxFind, ops.ComputerView), ops.ComputerAct),
		func(ctx context.Context, in *computerInput) (*computerOutput, error) {
			r, err := a.services.Desktops.Act(ctx, in.Ref, in.Body)
			return &computerOutput{r}, a.problem(ctx, err)
		})
}
