package e2bapi

import (
	"context"
	"net"
	"net/http"
	"strings"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// interpreterPort is where the SDKs expect the code interpreter.
const interpreterPort = 49999

// Interpreter connects to the code interpreter of a sandbox.
type Interpreter interface {
	// Dial starts the interpreter if it does not run, as the account that a function
	// returns. If that fails, the error is a *StartError. The caller closes the
	// connection.
	Dial(ctx context.Context, id sandbox.ID, account func(context.Context) (InterpreterAccount, error)) (net.Conn, error)
}

// InterpreterAccount is how the code interpreter runs in a sandbox.
type InterpreterAccount struct {
	User, Dir string
	Env       map[string]string
}

// StartError is why the code interpreter could not be started.
type StartError struct{ Cause error }

func (e *StartError) Error() string { return e.Cause.Error() }

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Cause }

// interpret connects to the code interpreter, which runs as the user of the code.
func (h *portAPI) interpret(ctx context.Context, id sandbox.ID) (net.Conn, error) {
	return h.interpreter.Dial(ctx, id, func(ctx context.Context) (InterpreterAccount, error) {
		sb, err := h.openSandbox(ctx, string(id))
		if err != nil {
			return InterpreterAccount{}, err
		}
		user, err := h.accounts.find(ctx, sb, "", defaults{})
		return InterpreterAccount{
			User: user.name, Dir: user.home,
			Env: map[string]string{"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": publicID(id), "PYTHONDONTWRITEBYTECODE": "1"},
		}, err
	})
}

// interpreterRoute is that of the port of the code interpreter, except for its
// health.
var interpreterRoute = ops.Route{Name: "port 49999, the code interpreter", Ops: []ops.Op{ops.SandboxFind, ops.PortOpen, ops.ProcessExec}}

// mayInterpret checks whether a request may go to the code interpreter. Running
// code requires a token of the sandbox whose key may run commands. For contexts,
// the SDKs send the token for traffic; versions without that token send none,
// and are refused.
func (h *portAPI) mayInterpret(r *http.Request, id sandbox.ID) error {
	if r.Method == http.MethodGet && r.URL.Path == "/health" {
		return nil
	}
	_, ok := h.tokens.keyOf(forEnvd, string(id), r.Header.Get(headerToken))
	if contexts := r.URL.Path == "/contexts" || strings.HasPrefix(r.URL.Path, "/contexts/"); !ok && contexts {
		_, ok = h.tokens.keyOf(forTraffic, string(id), r.Header.Get(headerTraffic))
	}
	if !ok {
		return unauthorized("missing or wrong access token")
	}
	return h.allow(r.Context(), id, interpreterRoute.Ops)
}
