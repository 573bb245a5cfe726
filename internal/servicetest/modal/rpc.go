package modal

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/atoll-run/atoll/internal/modalapi"
	"github.com/atoll-run/atoll/internal/plainproto"
	"github.com/atoll-run/atoll/internal/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

// view is how faults see a method: as a request of HTTP. Methods without one are
// POST requests with the name of the method as their path.
type view struct{ method, path string }

var views = map[string]view{
	"SandboxCreateV2": {http.MethodPost, "/boxes"}, "SandboxListV2": {http.MethodGet, "/boxes"},
	"SandboxGetFromNameV2": {http.MethodGet, "/boxes/one"}, "SandboxWaitV2": {http.MethodGet, "/boxes/one"}, "SandboxTagsGetV2": {http.MethodGet, "/tags"},
	"SandboxTerminateV2": {http.MethodDelete, "/boxes/one"},
}

// ServeHTTP serves both services.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	name := path[strings.LastIndexByte(path, '/')+1:]
	seen, ok := views[name]
	if !ok {
		seen = view{http.MethodPost, "/" + name}
	}
	shown := r.Clone(r.Context())
	shown.Method, shown.URL = seen.method, &url.URL{Path: seen.path}
	s.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		real := r.Clone(r.Context())
		real.Method, real.URL = http.MethodPost, &url.URL{Path: path}
		s.mux.ServeHTTP(w, real)
	})).ServeHTTP(&refusals{ResponseWriter: w}, shown)
}

// codes are the codes of gRPC that mean the same as statuses of HTTP.
var codes = map[int]connect.Code{
	200: 0, 400: connect.CodeInvalidArgument, 401: connect.CodeUnauthenticated, 403: connect.CodePermissionDenied, 404: connect.CodeNotFound,
	409: connect.CodeAborted, 429: connect.CodeResourceExhausted, 500: connect.CodeInternal, 502: connect.CodeUnavailable,
}

// refusals sends a fault with a body of JSON as gRPC does. Others look as if they
// came from a proxy.
type refusals struct {
	http.ResponseWriter
	status int
}

// Flush lets Connect send messages at once.
func (w *refusals) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Unwrap lets an http.ResponseController find the connection.
func (w *refusals) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *refusals) WriteHeader(status int) {
	if w.status = status; w.Header().Get("Content-Type") != "application/json" {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter.
func (w *refusals) Write(body []byte) (int, error) {
	h := w.Header()
	if h.Get("Content-Type") != "application/json" {
		return w.ResponseWriter.Write(body)
	}
	var said struct{ Message string }
	code, known := codes[w.status]
	if err := json.Unmarshal(body, &said); err != nil || !known {
		h.Set("Content-Type", "text/html")
		w.ResponseWriter.WriteHeader(w.status)
		return w.ResponseWriter.Write(body)
	}
	h.Set("Content-Type", "application/grpc+proto")
	h.Set(http.TrailerPrefix+"Grpc-Status", strconv.Itoa(int(code)))
	h.Set(http.TrailerPrefix+"Grpc-Message", url.PathEscape(said.Message))
	if seconds, err := strconv.Atoi(h.Get("Retry-After")); err == nil {
		h.Set(http.TrailerPrefix+"Grpc-Status-Details-Bin", base64.RawStdEncoding.EncodeToString(details(code, float32(seconds))))
		h.Del("Retry-After")
	}
	w.ResponseWriter.WriteHeader(http.StatusOK)
	if code == 0 {
		_, _ = w.ResponseWriter.Write(make([]byte, 5)) // an empty message
	}
	return len(body), nil
}

// details is a google.rpc.Status that says when to try again.
func details(code connect.Code, after float32) []byte {
	type detail struct {
		Type  string `pb:"1"`
		Value []byte `pb:"2"`
	}
	policy, _ := plainproto.Codec{}.Marshal(&modalapi.RetryPolicy{RetryAfter: after})
	status, _ := plainproto.Codec{}.Marshal(&struct {
		Code    int32     `pb:"1"`
		Message string    `pb:"2"`
		Details []*detail `pb:"3"`
	}{int32(code), "too many requests", []*detail{{"type.googleapis.com/" + modalapi.RetryPolicyName, policy}}})
	return status
}

// asStructs encodes messages. They are not compressed, so that faults can change
// them.
var asStructs = connect.WithHandlerOptions(connect.WithCodec(plainproto.Codec{}), connect.WithCompressMinBytes(1<<30))

// fail is an error of the service.
func fail(code connect.Code, text string) error { return connect.NewError(code, errors.New(text)) }

// explain translates errors of the fake's parts.
func explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, servicetest.ErrMissing) || sandbox.CodeOf(err) == sandbox.CodeNotFound:
		return fail(connect.CodeNotFound, err.Error())
	case errors.Is(err, servicetest.ErrTaken):
		return fail(connect.CodeAlreadyExists, err.Error())
	case errors.Is(err, servicetest.ErrConflict):
		return fail(connect.CodeFailedPrecondition, err.Error())
	case sandbox.CodeOf(err) == sandbox.CodeInvalid:
		return fail(connect.CodeInvalidArgument, err.Error())
	}
	return err
}

// handle sets a method of the control plane.
func handle[Req, Res any](s *Server, name string, f func(ctx context.Context, owner string, in *Req) (*Res, error)) {
	path := modalapi.Client + name
	s.mux.Handle(path, connect.NewUnaryHandler(path, func(ctx context.Context, r *connect.Request[Req]) (*connect.Response[Res], error) {
		owner, err := s.owner(r.Header(), strings.HasSuffix(name, "V2") || name == "SandboxGetCommandRouterAccess")
		var out *Res
		if err == nil {
			out, err = f(ctx, owner, r.Msg)
		}
		if err != nil {
			return nil, explain(err)
		}
		return connect.NewResponse(out), nil
	}, asStructs))
}

// routed sets a method of the workers. find returns the task and the command of
// a request; without an ID there is no command yet.
func routed[Req, Res any](s *Server, name string, find func(*Req) (task, id string), f func(ctx context.Context, b *servicetest.CloudBox, e *execution, in *Req) (*Res, error)) {
	path := modalapi.Router + name
	s.mux.Handle(path, connect.NewUnaryHandler(path, func(ctx context.Context, r *connect.Request[Req]) (*connect.Response[Res], error) {
		task, id := find(r.Msg)
		b, e, err := s.worker(r.Header(), task, id)
		var out *Res
		if err == nil {
			out, err = f(ctx, b, e, r.Msg)
		}
		if err != nil {
			return nil, explain(err)
		}
		return connect.NewResponse(out), nil
	}, asStructs))
}

// issue returns a token for something, in the form of a JWT.
func (s *Server) issue(of string) string {
	encode := base64.RawURLEncoding.EncodeToString
	claims, _ := json.Marshal(map[string]any{"exp": time.Now().Add(20 * time.Minute).Unix(), "id": servicetest.NewID()})
	token := encode([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + encode(claims) + "." + encode([]byte("signature"))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens[token] = of
	return token
}

// Expire makes all short-lived tokens invalid.
func (s *Server) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.tokens)
}

// owner returns the account of a request.
func (s *Server) owner(h http.Header, proven bool) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	owner := s.keys[h.Get("X-Modal-Token-Id")+"\n"+h.Get("X-Modal-Token-Secret")]
	switch {
	case h.Get("X-Modal-Client-Type") == "" || h.Get("X-Modal-Client-Version") == "":
		return "", fail(connect.CodeFailedPrecondition, "The client must say what it is")
	case owner == "":
		return "", fail(connect.CodeUnauthenticated, "Token ID or secret is invalid")
	case proven && s.tokens[h.Get("X-Modal-Auth-Token")] != owner:
		return "", fail(connect.CodeUnauthenticated, "The auth token is invalid or expired")
	}
	return owner, nil
}
