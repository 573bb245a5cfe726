package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox/operator"
)

type consoleInput struct{ Body operator.ConsoleSettings }

type consoleOutput struct{ Body operator.ConsoleLink }

type callerOutput struct{ Body operator.Caller }

func (a *API) console() {
	huma.Register(a.huma, operation("openConsole", http.MethodPut, "/v1/console", "Health", "Serve the web console, now and after later starts of the daemon, and get a link that signs in; only for the owner of the machine", ops.DaemonConsole),
		func(ctx context.Context, in *consoleInput) (*consoleOutput, error) {
			link, err := a.services.Machine.OpenConsole(ctx, in.Body)
			return &consoleOutput{link}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("getCaller", http.MethodGet, "/v1/caller", "Keys", "Get the caller's tenant and permissions"),
		func(ctx context.Context, _ *none) (*callerOutput, error) {
			who, err := a.services.Keys.Caller(ctx)
			who.Machines = a.services.Machines.Connected()
			return &callerOutput{who}, a.problem(ctx, err)
		})
}
