package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/serial"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/sandbox"
)

// Version is the version of the API, not of the program.
const Version = "1"

const (
	maxBody     = 4 << 20 // of a JSON request
	bodyTimeout = 30 * time.Second
)

// openAPIPath is the path of the OpenAPI document, without its extension.
const openAPIPath = "/openapi"

// Options of a handler.
type Options struct {
	// RetryAfter returns how long a caller should wait before it repeats a refused
	// request. Nil: no Retry-After header is sent.
	RetryAfter func(error) (time.Duration, bool)
	// Fence refuses requests for an earlier epoch of a session than was seen. Nil:
	// none are.
	Fence func(session string, epoch int64) error
	// Logger gets internal errors, which callers do not see. Nil: slog.Default.
	Logger *slog.Logger
}

// API is the handler of the native API.
type API struct {
	services Services
	opts     Options
	mux      *http.ServeMux
	huma     huma.API

	revisions serial.Numbers // of events of files
}

// New returns a handler that calls services.
func New(services Services, opts Options) *API {
	ownErrors()
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	opts.Logger = slog.New(span.Logs(opts.Logger.Handler()))
	a := &API{services: services, opts: opts, mux: http.NewServeMux()}
	config := huma.DefaultConfig("Atoll", Version)
	config.Info.Description = "Sandboxes for AI agents. Errors are application/problem+json with a stable code. " +
		"A sandbox is named by its id or its name."
	config.DocsPath, config.SchemasPath = "", "" // the pages would load scripts from other hosts
	config.CreateHooks = nil
	config.Formats = formats()
	config.OpenAPIPath = openAPIPath
	config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"key": {Type: "http", Scheme: "bearer", Description: "an API key; not needed on the local socket"},
	}
	config.Security = []map[string][]string{{"key": {}}}
	a.huma = humago.New(a.mux, config)
	a.health()
	a.doctor()
	a.sandboxes()
	a.lifecycle()
	a.snapshots()
	a.processes()
	a.files()
	a.ports()
	a.streams()
	a.recordings()
	a.machines()
	a.nodes()
	a.computer()
	a.code()
	a.source()
	a.events()
	a.keys()
	a.console()
	a.tenants()
	a.profiles()
	a.policies()
	a.secrets()
	a.templates()
	a.workspaces()
	a.sessions()
	a.mux.HandleFunc("/", a.nowhere)
	return a
}

// nowhere answers requests for unknown paths with 404.
func (a *API) nowhere(w http.ResponseWriter, r *http.Request) {
	p := &Problem{
		Status: http.StatusNotFound, Title: http.StatusText(http.StatusNotFound), Code: sandbox.CodeNotFound,
		Detail: "there is no such resource", Hint: "see /openapi.json",
	}
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := a.mux.Handler(other); pattern != "/" {
			w.Header().Add("Allow", method)
			p.Status, p.Title = http.StatusMethodNotAllowed, http.StatusText(http.StatusMethodNotAllowed)
			p.Code, p.Detail = sandbox.CodeInvalid, "the resource does not know that method"
		}
	}
	WriteProblem(w, p)
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if a.opts.Fence != nil {
		if session := r.Header.Get(span.SessionHeader); session != "" {
			epoch, err := requestEpoch(r)
			if err == nil {
				err = a.opts.Fence(session, epoch)
			}
			if err != nil {
				a.fail(w, r, err)
				return
			}
		}
	}
	a.mux.ServeHTTP(w, r)
}

// OpenAPI returns the document that describes the API, in JSON.
func (a *API) OpenAPI() ([]byte, error) { return a.huma.OpenAPI().MarshalJSON() }

// Routes returns the routes with what they need, ordered by path and method.
func (a *API) Routes() []ops.Route {
	all := []ops.Route{{Name: "GET " + openAPIPath + ".json", Open: true}}
	for _, other := range []string{".yaml", "-3.0.json", "-3.0.yaml"} {
		all = append(all, ops.Route{Name: "GET " + openAPIPath + other})
	}
	for path, item := range sorted(a.huma.OpenAPI().Paths) {
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Put, item.Patch, item.Delete} {
			if op == nil {
				continue
			}
			r := op.Metadata[routeKey].(ops.Route)
			all = append(all, r)
			if resource, ok := strings.CutPrefix(path, "/v1/sandboxes/{ref}/"); ok {
				first, _, _ := strings.Cut(resource, "/")
				if slices.Contains(routed, first) {
					r.Name, r.Ops = op.Method+" "+sessionBase+"/"+resource, append([]ops.Op{ops.SessionRoute}, r.Ops...)
					r.Some = append([]ops.Op{ops.SessionAcquire}, r.Some...) // if its sandbox does not run
					all = append(all, r)
				}
			}
		}
	}
	return all
}

// problem converts err to a Problem, and logs the parts that callers must not
// see.
func (a *API) problem(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	p := NewProblem(cutOff(ctx, err), a.opts.RetryAfter)
	if p.Code == sandbox.CodeInternal {
		cause := err
		if e := new(sandbox.Error); errors.As(err, &e) && e.Cause != nil {
			cause = e.Cause
		}
		p.Request, _ = span.IDs(ctx)
		a.opts.Logger.ErrorContext(ctx, "request failed", "op", p.Op, "error", err, "cause", cause)
	}
	return p
}

// fail answers a request outside of huma with an error.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := &Problem{}
	errors.As(a.problem(r.Context(), err), &p)
	WriteProblem(w, p) // even if the caller may be gone: without it, net/http would send 200
}

// operation returns the description of an API operation, which carries out
// does. Without a permission that those need, it is refused.
func operation(id, method, path, tag, summary string, does ...ops.Op) huma.Operation {
	return huma.Operation{
		OperationID: id, Method: method, Path: path, Tags: []string{tag}, Summary: summary,
		Metadata:     map[string]any{routeKey: ops.Route{Name: method + " " + path, Ops: does}},
		MaxBodyBytes: maxBody, BodyReadTimeout: bodyTimeout,
		Errors: []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusConflict, http.StatusGone, http.StatusServiceUnavailable},
	}
}

// routeKey is the key of the route of an operation.
const routeKey = "route"

// sometimes adds what only some requests of an operation carry out.
func sometimes(op huma.Operation, does ...ops.Op) huma.Operation {
	r := op.Metadata[routeKey].(ops.Route)
	r.Some = does
	op.Metadata[routeKey] = r
	return op
}

// open makes an operation one that needs no key.
func open(op huma.Operation) huma.Operation {
	op.Security = []map[string][]string{}
	r := op.Metadata[routeKey].(ops.Route)
	r.Open = true
	op.Metadata[routeKey] = r
	return op
}

// raw registers an operation that reads and writes its body without huma, and
// describes it in the OpenAPI document.
func (a *API) raw(op huma.Operation, query map[string]string, body, answer string, handler func(http.ResponseWriter, *http.Request) error) {
	a.mux.HandleFunc(op.Method+" "+op.Path, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead && op.OperationID != readFileID {
			a.nowhere(w, r) // a HEAD request must not start a stream, as some never end
			return
		}
		defer BoundBody(w, r)()
		sent := &sentBody{ReadCloser: r.Body}
		r.Body = sent
		if err := handler(w, r); err != nil {
			a.fail(w, r, sent.blamed(err))
		}
	})
	for _, name := range pathParams(op.Path) {
		op.Parameters = append(op.Parameters, &huma.Param{Name: name, In: "path", Required: true, Schema: &huma.Schema{Type: "string"}})
	}
	for name, doc := range sorted(query) {
		op.Parameters = append(op.Parameters, &huma.Param{Name: name, In: "query", Description: doc, Schema: &huma.Schema{Type: "string"}})
	}
	if body != "" {
		op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{body: {}}}
	}
	ok := &huma.Response{Description: "OK"}
	if answer != "" {
		ok.Content = map[string]*huma.MediaType{answer: {}}
	}
	problem := &huma.Response{Description: "Error", Content: map[string]*huma.MediaType{
		"application/problem+json": {Schema: &huma.Schema{Ref: "#/components/schemas/Problem"}},
	}}
	op.Responses = map[string]*huma.Response{"200": ok, "default": problem}
	if answer == "websocket" {
		op.Responses = map[string]*huma.Response{"101": {Description: "a WebSocket; see docs/reference/http-api.md"}, "default": problem}
	}
	if answer == "" {
		op.Responses = map[string]*huma.Response{"204": {Description: "Done"}, "default": problem}
	}
	a.huma.OpenAPI().AddOperation(&op)
}

type none struct{}

type readyOutput struct {
	Body struct {
		Status string `json:"status" enum:"ok"`
	}
}

func (a *API) health() {
	live := open(operation("healthz", http.MethodGet, "/healthz", "Health", "Check that the daemon is alive"))
	huma.Register(a.huma, live, func(context.Context, *none) (*readyOutput, error) {
		out := &readyOutput{}
		out.Body.Status = "ok"
		return out, nil
	})
	ready := open(operation("readyz", http.MethodGet, "/readyz", "Health", "Check that the daemon can make sandboxes"))
	huma.Register(a.huma, ready, func(ctx context.Context, _ *none) (*readyOutput, error) {
		if err := a.services.Machine.Ready(ctx); err != nil {
			return nil, a.problem(ctx, err)
		}
		out := &readyOutput{}
		out.Body.Status = "ok"
		return out, nil
	})
}
