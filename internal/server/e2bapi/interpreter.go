package e2bapi

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/server/e2bapi/interpreter"
	"github.com/atoll-run/atoll/sandbox"
)

// interpreters starts servers of the code interpreter: on the first request to
// the port, if nothing listens on it.
type interpreters struct {
	mu   sync.Mutex
	busy map[sandbox.ID]*sync.Mutex
}

// interpreterPatience is the maximum time for a server to start.
const interpreterPatience = time.Minute

// interpret connects to the port of the code interpreter after a connection was
// refused. It starts our server, unless another request just did.
func (h *portAPI) interpret(ctx context.Context, id sandbox.ID) (net.Conn, error) {
	h.interpreters.mu.Lock()
	if h.interpreters.busy == nil {
		h.interpreters.busy = map[sandbox.ID]*sync.Mutex{}
	}
	mine := h.interpreters.busy[id]
	if mine == nil {
		mine = &sync.Mutex{}
		h.interpreters.busy[id] = mine
	}
	h.interpreters.mu.Unlock()
	mine.Lock()
	defer mine.Unlock()
	defer func() {
		h.interpreters.mu.Lock()
		delete(h.interpreters.busy, id)
		h.interpreters.mu.Unlock()
	}()
	if conn, err := h.dialer.DialPort(ctx, string(id), interpreter.Port); err == nil {
		return conn, nil // another request was faster
	}
	ctx, cancel := context.WithTimeout(ctx, interpreterPatience)
	defer cancel()
	if err := h.startInterpreter(ctx, id); err != nil {
		return nil, &interpreterError{err}
	}
	return h.dialer.DialPort(ctx, string(id), interpreter.Port)
}

// interpreterError is why the server of the code interpreter could not be started.
type interpreterError struct{ error }

func (e *interpreterError) Unwrap() error { return e.error }

// startInterpreter writes the programs into a sandbox, owned by root, and starts
// the server as the user of the code.
func (h *portAPI) startInterpreter(ctx context.Context, id sandbox.ID) error {
	ctx, _, err := h.entrance.Enter(ctx, id, "") // the key may not be allowed to write its files
	if err != nil {
		return err
	}
	box, err := h.openBox(ctx, string(id))
	if err != nil {
		return err
	}
	user, err := h.accounts.find(ctx, box, "", defaults{})
	if err != nil {
		return err
	}
	for name, content := range interpreter.Files() {
		opts := driver.WriteOptions{Owner: "root", Mode: 0o644}
		if _, err := box.Files().Write(ctx, path.Join(interpreter.Dir, name), bytes.NewReader(content), opts); err != nil {
			return err
		}
	}
	p, err := box.Exec(ctx, sandbox.Command{
		Args: interpreter.Command(), User: user.name, Dir: user.home, Background: true,
		Env: map[string]string{"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": publicID(id), "PYTHONDONTWRITEBYTECODE": "1"},
	})
	if err != nil {
		return err
	}
	defer p.Close() // it runs on
	defer context.AfterFunc(ctx, func() { _ = p.Close() })()
	line, err := bufio.NewReader(p.Stdout()).ReadString('\n')
	if err == nil && line == interpreter.Ready+"\n" {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	why, _ := io.ReadAll(io.LimitReader(p.Stderr(), maxOutput))
	return &sandbox.Error{
		Code: sandbox.CodeUnsupported, Subject: "code interpreter", Message: "cannot be started in this sandbox: " + clip(string(bytes.TrimSpace(why))),
		Hint: "use a template with python3",
	}
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
