package bridgeapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/atoll-run/atoll/internal/keyed"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/server"
	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/internal/server/portproxy"
	"github.com/atoll-run/atoll/internal/server/routes"
)

// Options of a handler.
type Options struct {
	// Idle is how long a sandbox may be unused before it is paused to disk. Zero:
	// 15 minutes.
	Idle time.Duration
	// Secret is the key from which the addresses of tunnels are derived. It must be
	// the same after a restart.
	Secret []byte
	// Logger gets internal errors, which callers do not see. Nil: slog.Default.
	Logger *slog.Logger
	// quiet is how long the stream of a command stays silent after a timeout before
	// it ends.
	quiet time.Duration
}

const (
	defaultIdle = 15 * time.Minute
	// quietTime is longer than the five seconds of silence that the Python client
	// treats as a timeout. It treats anything else as another error.
	quietTime = 6 * time.Second
	// maxBody bounds a JSON request. Arguments of a command are at most 1 MiB,
	// of which JSON may make six.
	maxBody = 8 << 20
)

// Handler serves the API. It may be used concurrently.
type Handler struct {
	services Services
	opts     Options
	making   singleflight.Group // of sandboxes, by tenant and name
	mux      *routes.Mux
	routes   map[string]route // of a sandbox, by method and the first segment after its id
	tunnels  *tunnels
	locks    keyed.Locks[string] // of sandboxes whose sessions or tunnels change, by call.key
	active   commands            // in sessions, by call.key and session
}

// New returns a handler, which the caller closes.
func New(s Services, opts Options) *Handler {
	if opts.Idle <= 0 {
		opts.Idle = defaultIdle
	}
	if opts.quiet == 0 {
		opts.quiet = quietTime
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	h := &Handler{services: s, opts: opts, mux: &routes.Mux{}}
	h.routes = h.sandboxRoutes()
	h.tunnels = &tunnels{
		secret: opts.Secret, ports: s.Ports, entrance: s.Entrance,
		proxy: portproxy.New(dialer{s.Ports}, portproxy.Options{Logger: opts.Logger}),
	}
	h.mux.Handle(ops.Route{Name: "GET /health", Open: true}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, done{true}) }))
	handle := func(pattern string, to route) { h.mux.Handle(ops.Route{Name: pattern, Ops: to.does}, h.serve("", to)) }
	handle("POST /v1/sandbox", route{h.create, codePool, []ops.Op{ops.SandboxCreate}, nil})
	handle("GET /v1/openapi.json", route{openAPI, codePool, nil, nil})
	handle("/", route{noRoute, codeInvalid, nil, nil})
	return h
}

// Close closes idle connections to sandboxes. Running requests continue.
func (h *Handler) Close() error { return h.tunnels.proxy.Close() }

// done is the response to requests without a result.
type done struct {
	OK bool `json:"ok"`
}

// call is a request for a sandbox.
type call struct {
	tenant string
	id     string // the client's id
	rest   string // of the path, as it was sent
}

// key is unique per tenant and sandbox.
func (c *call) key() string { return c.tenant + "/" + c.id }

// route carries out a request. If it returns an error, the error is sent to the
// client, with the code failed if the operation itself failed.
type route struct {
	do     func(http.ResponseWriter, *http.Request, *call) error
	failed string
	does   []ops.Op // operations that each request carries out
	some   []ops.Op // and those of some, of which the control plane checks the permissions
}

func (h *Handler) sandboxRoutes() map[string]route {
	does := func(all ...ops.Op) []ops.Op { return all }
	up := does(ops.SandboxCreate, ops.SandboxStart) // if the sandbox does not run
	return map[string]route{
		"DELETE ":        {h.remove, codePool, does(ops.SandboxDestroy), nil},
		"GET running":    {h.running, codePool, does(ops.SandboxGet), nil},
		"POST exec":      {h.exec, codeTransport, does(ops.SandboxFind, ops.ProcessExec), append(up, ops.FilesWrite)},
		"GET file":       {h.readFile, codeRead, does(ops.SandboxFind, ops.FilesRead), up},
		"PUT file":       {h.writeFile, codeWrite, does(ops.SandboxFind, ops.FilesWrite), up},
		"POST persist":   {h.persist, codeRead, does(ops.SandboxFind, ops.SandboxGet, ops.FilesExport), up},
		"POST hydrate":   {h.hydrate, codeWrite, does(ops.SandboxFind, ops.FilesImport), up},
		"GET pty":        {h.pty, codeTransport, does(ops.SandboxFind, ops.ProcessExec), append(up, ops.FilesWrite)},
		"POST mount":     {h.mount, codeMount, does(ops.SandboxFind, ops.SandboxGet), up},
		"POST unmount":   {h.unmount, codeUnmount, nil, nil},
		"POST session":   {h.createSession, codeSession, does(ops.SandboxFind, ops.FilesWrite), up},
		"DELETE session": {h.deleteSession, codeSession, does(ops.SandboxGet, ops.FilesRemove, ops.ProcessKill), nil},
		"POST tunnel":    {h.createTunnel, codeTunnel, does(ops.SandboxGet, ops.PortShare, ops.SandboxUpdate), up},
		"DELETE tunnel":  {h.deleteTunnel, codeTunnel, does(ops.SandboxGet, ops.SandboxUpdate), nil},
	}
}

// Routes returns the routes with what they need. All need an API key, except
// those that are open.
func (h *Handler) Routes() []ops.Route {
	var inside []ops.Route
	for key, to := range h.routes {
		method, action, _ := strings.Cut(key, " ")
		name := method + " /v1/sandbox/{id}"
		if action != "" {
			name += "/" + action
		}
		if rest := deep[action]; rest != "" && (action != "session" || method == http.MethodDelete) {
			name += "/" + rest
		}
		inside = append(inside, ops.Route{Name: name, Ops: to.does, Some: to.some})
	}
	slices.SortFunc(inside, func(a, b ops.Route) int { return strings.Compare(a.Name, b.Name) })
	return slices.Concat(h.mux.List(), inside, []ops.Route{{Name: "the address of a tunnel", Open: true, Ops: h.routes["POST tunnel"].does}})
}

// deep are the path segments after the names of some routes.
var deep = map[string]string{"file": "{path...}", "session": "{session}", "tunnel": "{port}"}

var validID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`) })

// ServeHTTP implements http.Handler. It parses paths below a sandbox itself,
// because http.ServeMux would redirect file paths that are not clean.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.tunnels.serve(h, w, r) {
		return
	}
	if server.ForeignOrigin(r) {
		h.fail(w, r, &problem{http.StatusForbidden, "web pages of other origins may not call this API", codeForbidden}, codeForbidden)
		return
	}
	rest, ok := strings.CutPrefix(r.URL.EscapedPath(), "/v1/sandbox/")
	if !ok {
		h.mux.ServeHTTP(w, r)
		return
	}
	id, rest, _ := strings.Cut(rest, "/")
	action, rest, more := strings.Cut(rest, "/")
	if !validID().MatchString(id) {
		h.fail(w, r, invalid("Invalid sandbox ID format"), codeInvalid)
		return
	}
	to, ok := h.routes[r.Method+" "+action]
	if !ok || more && deep[action] == "" {
		to = route{noRoute, codeInvalid, nil, nil}
	}
	h.serve(id, to, rest)(w, r)
}

// serve returns the handler of a route. All routes need an API key.
func (h *Handler) serve(id string, to route, rest ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, tenant, err := h.services.Authenticate(r.Context(), keyOf(r))
		for i := 0; err == nil && i < len(to.does); i++ {
			err = h.services.Allow(ctx, to.does[i])
		}
		if err == nil {
			api.BoundBody(w, r)
			err = to.do(w, r.WithContext(ctx), &call{tenant: tenant, id: id, rest: strings.Join(rest, "")})
		}
		if err != nil && r.Context().Err() == nil {
			h.fail(w, r, err, to.failed)
		}
	}
}

// keyOf returns the API key of a request. For WebSocket clients that cannot set
// headers, it can be in the query.
func keyOf(r *http.Request) string {
	text := r.Header.Get("Authorization")
	if text == "" && strings.HasSuffix(r.URL.Path, "/pty") {
		text = r.URL.Query().Get("authorization")
	}
	scheme, key, _ := strings.Cut(text, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(key)
}

func noRoute(_ http.ResponseWriter, r *http.Request, _ *call) error {
	return &problem{http.StatusNotFound, "there is no route " + r.Method + " " + clip(r.URL.Path), codeInvalid}
}

func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}

// read decodes the JSON body of a request into a pointer to a struct. An empty
// body leaves it unchanged.
func read(r *http.Request, into any) error {
	text, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return &problem{http.StatusRequestEntityTooLarge, "the JSON body is too large", codeTooLarge}
	case err != nil:
		return invalid("the body cannot be read")
	case len(text) == 0:
		return nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		var mistyped *json.UnmarshalTypeError
		if errors.As(err, &mistyped) && mistyped.Field != "" {
			return invalid("%s has the wrong type", mistyped.Field)
		}
		return invalid("Invalid JSON body")
	}
	return nil
}

// late returns a context for operations that must finish even if the caller
// disconnects.
func late(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
}
