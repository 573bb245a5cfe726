package servicetest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	"github.com/atoll-run/atoll/internal/plainproto"
	"github.com/atoll-run/atoll/sandbox"
)

// GRPC is the gRPC API of a fake service, with messages that are plain structs.
// It may be used concurrently after its methods are set.
type GRPC struct {
	*Cloud
	// Views are how faults see methods, by the last part of their names: as requests
	// of HTTP. Methods without one are POST requests whose path is that part.
	Views map[string]View
	// Patience returns the detail of an error that says when to try again: the full
	// name of a message, and the message.
	Patience func(seconds int) (kind string, message any)

	mux http.ServeMux
}

// View is a method and a path.
type View struct{ Method, Path string }

// ServeHTTP serves the API.
func (g *GRPC) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	name := path[strings.LastIndexByte(path, '/')+1:]
	seen, ok := g.Views[name]
	if !ok {
		seen = View{http.MethodPost, "/" + name}
	}
	as := func(r *http.Request, v View) *http.Request {
		r = r.Clone(r.Context())
		r.Method, r.URL = v.Method, &url.URL{Path: v.Path}
		return r
	}
	g.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mux.ServeHTTP(w, as(r, View{http.MethodPost, path}))
	})).ServeHTTP(&refusals{ResponseWriter: w, g: g}, as(r, seen))
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
	g      *GRPC
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
		h.Set(http.TrailerPrefix+"Grpc-Status-Details-Bin", base64.RawStdEncoding.EncodeToString(w.g.details(code, seconds)))
		h.Del("Retry-After")
	}
	w.ResponseWriter.WriteHeader(http.StatusOK)
	if code == 0 {
		_, _ = w.ResponseWriter.Write(make([]byte, 5)) // an empty message
	}
	return len(body), nil
}

// details is a google.rpc.Status that says when to try again.
func (g *GRPC) details(code connect.Code, seconds int) []byte {
	type detail struct {
		Type  string `pb:"1"`
		Value []byte `pb:"2"`
	}
	kind, message := g.Patience(seconds)
	value, _ := plainproto.Codec{}.Marshal(message)
	status, _ := plainproto.Codec{}.Marshal(&struct {
		Code    int32     `pb:"1"`
		Message string    `pb:"2"`
		Details []*detail `pb:"3"`
	}{int32(code), "too many requests", []*detail{{"type.googleapis.com/" + kind, value}}})
	return status
}

// plain encodes messages. They are not compressed, so that faults can change
// them.
var plain = connect.WithHandlerOptions(connect.WithCodec(plainproto.Codec{}), connect.WithCompressMinBytes(1<<30))

// Handle sets a method.
func Handle[Req, Res any](g *GRPC, path string, f func(ctx context.Context, h http.Header, in *Req) (*Res, error)) {
	g.mux.Handle(path, connect.NewUnaryHandler(path, func(ctx context.Context, r *connect.Request[Req]) (*connect.Response[Res], error) {
		out, err := f(ctx, r.Header(), r.Msg)
		if err != nil {
			return nil, rpcError(err)
		}
		return connect.NewResponse(out), nil
	}, plain))
}

// HandleStream sets a method that answers with several messages.
func HandleStream[Req, Res any](g *GRPC, path string, f func(ctx context.Context, h http.Header, in *Req, send func(*Res) error) error) {
	g.mux.Handle(path, connect.NewServerStreamHandler(path, func(ctx context.Context, r *connect.Request[Req], out *connect.ServerStream[Res]) error {
		return rpcError(f(ctx, r.Header(), r.Msg, out.Send))
	}, plain))
}

// Refusal is an error of a method.
func Refusal(code connect.Code, text string) error { return connect.NewError(code, errors.New(text)) }

// rpcError translates errors of the fake's parts.
func rpcError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrMissing) || sandbox.CodeOf(err) == sandbox.CodeNotFound:
		return Refusal(connect.CodeNotFound, err.Error())
	case errors.Is(err, ErrTaken):
		return Refusal(connect.CodeAlreadyExists, err.Error())
	case errors.Is(err, ErrConflict):
		return Refusal(connect.CodeFailedPrecondition, err.Error())
	case sandbox.CodeOf(err) == sandbox.CodeInvalid:
		return Refusal(connect.CodeInvalidArgument, err.Error())
	}
	return err
}
