package e2bapi

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/server"
	"github.com/atoll-run/atoll/internal/server/routes"
	"github.com/atoll-run/atoll/sandbox"
)

// target is the sandbox of a request of the data plane.
type target struct {
	sandbox.Sandbox
	refused error           // why the caller has no access to the data plane
	own     context.Context // for the daemon's own work in the sandbox
}

type targetKey struct{}

// targetOf returns the sandbox that enter has found.
func targetOf(ctx context.Context) *target { return ctx.Value(targetKey{}).(*target) }

// absent is the response of E2B's proxy if it cannot reach a sandbox or its
// port.
type absent struct {
	SandboxID string `json:"sandboxId"`
	Message   string `json:"message"`
	Port      uint16 `json:"port,omitempty"`
	Code      int    `json:"code"`
}

func (h *common) notRunning(w http.ResponseWriter, id sandbox.ID) {
	writeJSON(w, http.StatusBadGateway, absent{SandboxID: publicID(id), Message: "The sandbox was not found", Code: http.StatusBadGateway})
}

// enter serves a port of a sandbox.
func (h *Handler) enter(w http.ResponseWriter, r *http.Request, id sandbox.ID, port uint16) {
	keyID, refused := h.bearer(r, id, port)
	ctx, s, err := h.entrance.Enter(r.Context(), id, keyID)
	switch code := sandbox.CodeOf(err); {
	case code == sandbox.CodeNotFound || code == sandbox.CodeGone || err == nil && !reachable(&s, r, port):
		h.notRunning(w, id)
		return
	case err != nil:
		h.fail(w, r, err)
		return
	}
	if port != envdPort {
		h.ports.show(w, r.WithContext(ctx), &s, port, keyID)
		return
	}
	own, _, err := h.entrance.Enter(ctx, id, "")
	if err != nil {
		h.fail(w, r, err)
		return
	}
	ctx = context.WithValue(ctx, targetKey{}, &target{s, refused, own})
	defer server.CutOff(ctx, w, r)()
	h.envd.ServeHTTP(w, r.WithContext(ctx))
}

// bearer returns the key whose token a request carries. Without a key, err is
// why the request has no access to the data plane.
func (h *Handler) bearer(r *http.Request, id sandbox.ID, port uint16) (keyID string, err error) {
	given := r.Header.Get(headerToken)
	if port != envdPort {
		return h.ports.bearer(r, id, port), nil
	}
	if keyID, ok := h.tokens.keyOf(forEnvd, string(id), given); ok {
		return keyID, nil
	}
	switch {
	case r.URL.Path != "/files":
		return "", unauthorized("missing or wrong access token")
	case given != "":
		return "", unauthorized("access token present in header but does not match")
	}
	return h.signer(r, id)
}

// signer returns the key with whose token a URL was signed.
func (h *Handler) signer(r *http.Request, id sandbox.ID) (string, error) {
	operation := "read"
	if r.Method == http.MethodPost {
		operation = "write"
	}
	if r.URL.Query().Get("signature") == "" {
		return "", unauthorized("missing signature query parameter")
	}
	keys, err := h.entrance.Keys(r.Context(), id)
	if err != nil {
		return "", err
	}
	for _, keyID := range keys {
		err := checkSignature(h.tokens.envd(id, keyID), operation, r.URL.Query(), h.opts.Now())
		if err == nil || err == errExpired {
			return keyID, err
		}
	}
	return "", unauthorized("invalid signature")
}

// reachable reports whether a request can be served. A paused sandbox that wakes
// on traffic wakes when the request opens it. A health check does not wake it.
func reachable(s *sandbox.Sandbox, r *http.Request, port uint16) bool {
	if s.State == sandbox.Paused || s.State == sandbox.Pausing || s.State == sandbox.Resuming {
		return s.Wakes && !(port == envdPort && r.URL.Path == "/health")
	}
	return s.State == sandbox.Running
}

// unnamed serves requests of the data plane that name no sandbox. Some SDKs send
// such requests when all sandboxes have one address. The access token or the
// signature identifies the sandbox.
func (h *Handler) unnamed(w http.ResponseWriter, r *http.Request) {
	ids, err := h.entrance.Live(r.Context())
	if err != nil {
		h.fail(w, r, err)
		return
	}
	given := r.Header.Get(headerToken)
	expired := false
	for _, id := range ids {
		ok := false
		if given != "" {
			_, ok = h.tokens.keyOf(forEnvd, string(id), given)
		} else if r.URL.Path == "/files" {
			_, err := h.signer(r, id)
			ok, expired = err == nil, expired || err == errExpired
		}
		if ok {
			h.enter(w, r, id, envdPort)
			return
		}
	}
	switch {
	case given != "":
		writeJSON(w, http.StatusBadGateway, absent{Message: "The sandbox was not found", Code: http.StatusBadGateway})
	case r.URL.Query().Get("signature") == "":
		h.refuse(w, unauthorized("missing signature query parameter"))
	case expired:
		h.refuse(w, errExpired)
	default:
		h.refuse(w, unauthorized("invalid signature"))
	}
}

// dataPlane returns the handler of the services that E2B runs inside every
// sandbox.
func (h *Handler) dataPlane(inside *guest, metrics *metricsAPI) *routes.Mux {
	files := &filesystemAPI{guest: inside}
	processes := &processAPI{guest: inside}
	h.close = append(h.close, processes.commands.close, files.watchers.close)
	return (&envdAPI{inside, metrics, &fileAPI{inside}}).routes(processes, files)
}

// envdAPI serves the routes outside the process and filesystem services.
type envdAPI struct {
	*guest
	usage *metricsAPI
	files *fileAPI
}

// routes returns the handler of the data plane.
func (h *envdAPI) routes(processes *processAPI, filesystem *filesystemAPI) *routes.Mux {
	mux := &routes.Mux{}
	mux.Handle(ops.Route{Name: "GET /health", Open: true}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	files := func(route string, f func(http.ResponseWriter, *http.Request) error, does ...ops.Op) {
		mux.Handle(ops.Route{Name: route, Ops: does}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := targetOf(r.Context()).refused; err != nil {
				h.refuse(w, err)
				return
			}
			err := h.allow(r.Context(), targetOf(r.Context()).ID, does)
			if err == nil {
				err = f(w, r)
			}
			h.answer(w, r, err)
		}))
	}
	files("GET /files", h.files.download, ops.SandboxFind, ops.FilesRead)
	files("POST /files", h.files.upload, ops.SandboxFind, ops.FilesWrite)
	secured := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := targetOf(r.Context()).refused; err != nil {
				h.fail(w, r, err)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	handle := func(route string, f func(http.ResponseWriter, *http.Request) error, does ...ops.Op) {
		mux.Handle(ops.Route{Name: route, Ops: does}, secured(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			err := h.allow(r.Context(), targetOf(r.Context()).ID, does)
			if err == nil {
				err = f(w, r)
			}
			h.answer(w, r, err)
		})))
	}
	handle("GET /envs", h.envs, ops.SandboxFind, ops.ProcessExec)
	handle("GET /metrics", h.envdMetrics, ops.SandboxUsage)
	rpc := procedures{mux, secured, h.guest}
	processes.register(rpc)
	filesystem.register(rpc)
	mux.Handle(ops.Route{Name: "/"}, secured(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.answer(w, r, &sandbox.Error{Code: sandbox.CodeNotFound, Message: "there is no such route"})
	})))
	return mux
}

// answer sends an error of a request, unless err is nil. A sandbox that ended
// or was paused meanwhile gets the same response as one that was not running
// when the request arrived: a 404 would mean that a file does not exist.
func (h *envdAPI) answer(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case err == nil || r.Context().Err() != nil:
	case sandbox.CodeOf(err) == sandbox.CodeGone:
		h.notRunning(w, targetOf(r.Context()).ID)
	default:
		h.fail(w, r, err)
	}
}

// guest opens the sandboxes of requests.
type guest struct {
	*common
	openSandbox func(ctx context.Context, ref string) (Sandbox, error)
	entrance    Entrance
	accounts    accountCache
}

// open returns the sandbox of a request. If the sandbox does not run, open
// returns CodeGone.
func (h *guest) open(ctx context.Context) (Sandbox, error) {
	sb, err := h.openSandbox(ctx, string(targetOf(ctx).ID))
	if code := sandbox.CodeOf(err); code == sandbox.CodeNotFound || code == sandbox.CodeConflict {
		return nil, &sandbox.Error{Code: sandbox.CodeGone, Message: "the sandbox is not running", Hint: "connect to it first", Cause: err}
	}
	return sb, err
}

// envdMetrics sends the metrics of a sandbox in the format of the data plane.
func (h *envdAPI) envdMetrics(w http.ResponseWriter, r *http.Request) error {
	all, err := h.usage.measure(r, &targetOf(r.Context()).Sandbox)
	if err != nil || len(all) == 0 {
		return err
	}
	m := all[0]
	writeJSON(w, http.StatusOK, map[string]any{
		"ts": m.TimestampUnix, "cpu_count": m.CPUCount, "cpu_used_pct": m.CPUUsedPct, "mem_total": m.MemTotal, "mem_used": m.MemUsed, "mem_cache": m.MemCache,
		"mem_total_mib": m.MemTotal >> 20, "mem_used_mib": m.MemUsed >> 20, "disk_used": m.DiskUsed, "disk_total": m.DiskTotal,
	})
	return nil
}

// envs sends the environment of commands, without the variables of every login.
func (h *envdAPI) envs(w http.ResponseWriter, r *http.Request) error {
	sb, err := h.open(r.Context())
	if err != nil {
		return err
	}
	out, err := output(r.Context(), sb, sandbox.Command{Args: []string{"/usr/bin/env", "-0"}})
	if err != nil {
		return err
	}
	envs := map[string]string{}
	for pair := range strings.SplitSeq(out, "\x00") {
		if k, v, ok := strings.Cut(pair, "="); ok {
			envs[k] = v
		}
	}
	for _, k := range []string{"HOME", "USER", "LOGNAME", "PWD", "SHLVL", "_"} {
		delete(envs, k)
	}
	writeJSON(w, http.StatusOK, envs)
	return nil
}

// rpcCodes maps codes of the vocabulary to codes of Connect.
var rpcCodes = map[sandbox.Code]connect.Code{
	sandbox.CodeInvalid:       connect.CodeInvalidArgument,
	sandbox.CodeNotFound:      connect.CodeNotFound,
	sandbox.CodeGone:          connect.CodeUnavailable,
	sandbox.CodeAlreadyExists: connect.CodeAlreadyExists,
	sandbox.CodeConflict:      connect.CodeFailedPrecondition,
	sandbox.CodeUnavailable:   connect.CodeUnavailable,
	sandbox.CodeUnauthorized:  connect.CodeUnauthenticated,
	sandbox.CodeDenied:        connect.CodePermissionDenied,
	sandbox.CodeExhausted:     connect.CodeResourceExhausted,
	sandbox.CodeTimeout:       connect.CodeDeadlineExceeded,
	sandbox.CodeCanceled:      connect.CodeCanceled,
	sandbox.CodeUnsupported:   connect.CodeUnimplemented,
	sandbox.CodeStale:         connect.CodeFailedPrecondition,
}

// rpcError converts err to an error of Connect.
func rpcError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*connect.Error](err); ok {
		return err
	}
	code, ok := rpcCodes[sandbox.CodeOf(err)]
	if !ok {
		code = connect.CodeInternal
	}
	return connect.NewError(code, errorText(newProblem(err).Message))
}

// errorText is an error that is only a message.
type errorText string

func (e errorText) Error() string { return string(e) }

// procedures registers procedures for callers with a token of the sandbox.
type procedures struct {
	mux     *routes.Mux
	secured func(http.Handler) http.Handler
	*guest
}

// handle registers a procedure that carries out does.
func (p procedures) handle(name string, does []ops.Op, h http.Handler) {
	p.mux.Handle(ops.Route{Name: name, Ops: does}, p.secured(h))
}

// inside returns the operations of a procedure that carries out op in the
// sandbox.
func inside(op ops.Op) []ops.Op { return []ops.Op{ops.SandboxFind, op} }

// unary registers a procedure with one response.
func unary[Req, Res any](p procedures, name string, op ops.Op, f func(context.Context, *call, *Req) (*Res, error)) {
	does := inside(op)
	p.handle(name, does, connect.NewUnaryHandler(name, func(ctx context.Context, req *connect.Request[Req]) (*connect.Response[Res], error) {
		c, err := p.call(ctx, name, does, req.Header())
		if err != nil {
			return nil, rpcError(err)
		}
		res, err := f(ctx, c, req.Msg)
		if err != nil {
			return nil, rpcError(err)
		}
		return connect.NewResponse(res), nil
	}, rpcOptions()...))
}

// serverStream registers a procedure with a stream of responses.
func serverStream[Req, Res any](p procedures, name string, op ops.Op, f func(context.Context, *call, *Req, *connect.ServerStream[Res]) error) {
	does := inside(op)
	p.handle(name, does, withFlusher(connect.NewServerStreamHandler(name, func(ctx context.Context, req *connect.Request[Req], out *connect.ServerStream[Res]) error {
		c, err := p.call(ctx, name, does, req.Header())
		if err == nil {
			err = f(ctx, c, req.Msg, out)
		}
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx) // the key may have ended
		}
		return rpcError(err)
	}, rpcOptions()...)))
}

func rpcOptions() []connect.HandlerOption {
	return []connect.HandlerOption{envd.Codecs(), connect.WithReadMaxBytes(maxMessage)}
}

// maxMessage is the maximum size of a message of a client. Input of commands is
// part of messages.
const maxMessage = 16 << 20

// call is the sandbox and the user of a call of a procedure.
type call struct {
	sandbox Sandbox
	user    account
	header  http.Header

	metadata map[string]string // of uploaded files
}

// call returns the sandbox and the user of a request. The client may choose any
// user, because the access token gives access to all of them.
func (h *guest) call(ctx context.Context, procedure string, does []ops.Op, header http.Header) (*call, error) {
	if err := h.allow(ctx, targetOf(ctx).ID, does); err != nil {
		return nil, err
	}
	sb, err := h.open(ctx)
	if err != nil {
		return nil, err
	}
	req := http.Request{Header: header}
	name, _, _ := req.BasicAuth()
	find := h.accounts.find // responses about files contain the names of owners
	if strings.HasPrefix(procedure, "/process.Process/") {
		find = h.accounts.findLately
	}
	user, err := find(targetOf(ctx).own, sb, name, defaultsOf(&targetOf(ctx).Sandbox))
	if err != nil {
		return nil, err
	}
	return &call{sandbox: sb, user: user, header: header}, nil
}
