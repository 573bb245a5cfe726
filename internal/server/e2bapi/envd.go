package e2bapi

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/sandbox"
)

// target is the sandbox of a request of the data plane.
type target struct {
	sandbox.Sandbox
	token string
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
	ctx, s, err := h.entrance.Enter(r.Context(), id)
	switch code := sandbox.CodeOf(err); {
	case code == sandbox.CodeNotFound || code == sandbox.CodeGone || err == nil && !reachable(&s, r, port):
		h.notRunning(w, id)
		return
	case err != nil:
		h.fail(w, r, err)
		return
	}
	if port != envdPort {
		h.ports.show(w, r.WithContext(ctx), &s, port)
		return
	}
	ctx = context.WithValue(ctx, targetKey{}, &target{s, h.tokens.envd(id)})
	h.envd.ServeHTTP(w, r.WithContext(ctx))
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
	given, operation := r.Header.Get(headerToken), "read"
	if r.Method == http.MethodPost {
		operation = "write"
	}
	expired := false
	for _, id := range ids {
		token, err := h.tokens.envd(id), error(nil)
		if given == "" {
			err = checkSignature(token, operation, r.URL.Query(), h.opts.Now())
			expired = expired || err == errExpired
		}
		if given != "" && same(given, token) || given == "" && r.URL.Path == "/files" && err == nil {
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
func (h *Handler) dataPlane(inside *guest, metrics *metricsAPI) http.Handler {
	files := &filesystemAPI{guest: inside, entrance: h.entrance}
	processes := &processAPI{guest: inside}
	h.close = append(h.close, processes.commands.close, files.watchers.close)
	return (&envdAPI{inside, metrics, &fileAPI{inside}}).routes(processes.routes(), files.routes())
}

// envdAPI serves the routes outside the process and filesystem services.
type envdAPI struct {
	*guest
	usage *metricsAPI
	files *fileAPI
}

// routes returns the handler of the data plane.
func (h *envdAPI) routes(processes, filesystem http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	files := func(method, operation string, f func(http.ResponseWriter, *http.Request) error) {
		mux.HandleFunc(method+" /files", func(w http.ResponseWriter, r *http.Request) {
			if err := h.mayUseFiles(r, operation); err != nil {
				h.refuse(w, err)
				return
			}
			h.answer(w, r, f(w, r))
		})
	}
	files("GET", "read", h.files.download)
	files("POST", "write", h.files.upload)
	secured := func(pattern string, next http.Handler) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if !same(r.Header.Get(headerToken), targetOf(r.Context()).token) {
				h.fail(w, r, unauthorized("missing or wrong access token"))
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	answer := func(f func(http.ResponseWriter, *http.Request) error) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.answer(w, r, f(w, r))
		})
	}
	secured("GET /envs", answer(h.envs))
	secured("GET /metrics", answer(h.envdMetrics))
	secured("/process.Process/", processes)
	secured("/filesystem.Filesystem/", filesystem)
	secured("/", answer(func(http.ResponseWriter, *http.Request) error {
		return &sandbox.Error{Code: sandbox.CodeNotFound, Message: "there is no such route"}
	}))
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

// mayUseFiles checks the access token or, without one, the signature.
func (h *envdAPI) mayUseFiles(r *http.Request, operation string) error {
	token := targetOf(r.Context()).token
	if given := r.Header.Get(headerToken); given != "" {
		if !same(given, token) {
			return unauthorized("access token present in header but does not match")
		}
		return nil
	}
	return checkSignature(token, operation, r.URL.Query(), h.opts.Now())
}

// guest opens the sandboxes of requests.
type guest struct {
	*common
	openBox  func(ctx context.Context, ref string) (Box, error)
	accounts accountCache
}

// open returns the sandbox of a request. If the sandbox does not run, open
// returns CodeGone.
func (h *guest) open(ctx context.Context) (Box, error) {
	box, err := h.openBox(ctx, string(targetOf(ctx).ID))
	if code := sandbox.CodeOf(err); code == sandbox.CodeNotFound || code == sandbox.CodeConflict {
		return nil, &sandbox.Error{Code: sandbox.CodeGone, Message: "the sandbox is not running", Hint: "connect to it first", Cause: err}
	}
	return box, err
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
	box, err := h.open(r.Context())
	if err != nil {
		return err
	}
	out, err := output(r.Context(), box, sandbox.Command{Args: []string{"/usr/bin/env", "-0"}})
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

// unary registers a procedure with one response.
func unary[Req, Res any](mux *http.ServeMux, procedure string, f func(context.Context, *call, *Req) (*Res, error), h *guest) {
	mux.Handle(procedure, connect.NewUnaryHandler(procedure, func(ctx context.Context, req *connect.Request[Req]) (*connect.Response[Res], error) {
		c, err := h.call(ctx, procedure, req.Header())
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
func serverStream[Req, Res any](mux *http.ServeMux, procedure string, f func(context.Context, *call, *Req, *connect.ServerStream[Res]) error, h *guest) {
	mux.Handle(procedure, withFlusher(connect.NewServerStreamHandler(procedure, func(ctx context.Context, req *connect.Request[Req], out *connect.ServerStream[Res]) error {
		c, err := h.call(ctx, procedure, req.Header())
		if err == nil {
			err = f(ctx, c, req.Msg, out)
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
	box    Box
	user   account
	header http.Header

	metadata map[string]string // of uploaded files
}

// call returns the sandbox and the user of a request. The client may choose any
// user, because the access token gives access to all of them.
func (h *guest) call(ctx context.Context, procedure string, header http.Header) (*call, error) {
	box, err := h.open(ctx)
	if err != nil {
		return nil, err
	}
	req := http.Request{Header: header}
	name, _, _ := req.BasicAuth()
	find := h.accounts.find // responses about files contain the names of owners
	if strings.HasPrefix(procedure, "/process.Process/") {
		find = h.accounts.findLately
	}
	user, err := find(ctx, box, name, defaultsOf(&targetOf(ctx).Sandbox))
	if err != nil {
		return nil, err
	}
	return &call{box: box, user: user, header: header}, nil
}
