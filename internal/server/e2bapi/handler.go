package e2bapi

import (
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/internal/server/routes"
	"github.com/atoll-run/atoll/sandbox"
)

// EnvdVersion is the version of the data plane that sandboxes report. The SDKs
// enable features based on it, so it is the newest version with all features
// supported.
const EnvdVersion = "0.6.4"

// envdPort is the port at which the SDKs expect the data plane.
const envdPort = 49983

// Options of a handler.
type Options struct {
	// Secret, of at least 32 bytes, is the key for the tokens of sandboxes. A
	// handler with another secret refuses them.
	Secret []byte
	// Domain is sent to clients as the domain of sandboxes, as in PORT-ID.DOMAIN.
	// Empty: clients use their own configuration.
	Domain string
	// Internet allows sandboxes everything that their clients do not deny, as E2B
	// does. Without it they reach only what clients allow.
	Internet bool
	// RetryAfter returns when a refused request should be repeated. It may be nil.
	RetryAfter func(error) (time.Duration, bool)
	// Uploads is a directory for uploaded files of templates. It is a cache, which
	// the caller empties before New. Builds is a directory for files of builds.
	Uploads, Builds string
	// Now is the clock. Nil: time.Now.
	Now func() time.Time
	// Logger gets errors that callers do not see. Nil: slog.Default.
	Logger *slog.Logger
}

// Handler serves both planes on one listener. It passes each request to the
// handler of its part of the protocol.
type Handler struct {
	*common
	entrance Entrance
	control  *routes.Mux // the control plane
	envd     *routes.Mux // the data plane
	ports    *portAPI
	close    []func()
}

// common contains the fields that all parts share.
type common struct {
	opts   Options
	tokens tokens
	rights Rights
}

// New returns a handler. The caller closes it.
func New(s Services, opts Options) *Handler {
	if len(opts.Secret) < 32 {
		panic("e2bapi: the secret is too short")
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	c := &common{opts, tokens{opts.Secret}, s.Rights}
	h := &Handler{common: c, entrance: s.Entrance}
	inside := &guest{common: c, openSandbox: s.Open, entrance: s.Entrance}
	metrics := &metricsAPI{finder{s.Sandboxes}, s.Usage}
	h.control = h.controlPlane(&s, metrics)
	h.envd = h.dataPlane(inside, metrics)
	h.ports = newPortAPI(inside, s.Ports, s.Interpreter)
	return h
}

// ControlRoutes returns the routes of the control plane. Those that are open and
// have operations are for callers with a token, which has the rights of the key
// that it was given to.
func (h *Handler) ControlRoutes() []ops.Route { return h.control.List() }

// DataRoutes returns the routes of the data plane and of ports, which are for
// callers with a token of the sandbox. It has the rights of the key that it was
// given to.
func (h *Handler) DataRoutes() []ops.Route {
	return append(h.envd.List(), interpreterRoute, portRoute)
}

// Close disconnects from commands, ends watchers and cancels builds. The
// commands continue to run.
func (h *Handler) Close() error {
	for _, end := range h.close {
		end()
	}
	return h.ports.proxy.Close()
}

// ServeHTTP serves a port of a sandbox, named by the host or by headers, or
// else the control plane.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, port, named, err := destination(r)
	switch {
	case err != nil:
		h.fail(w, r, err)
	case !named:
		defer api.BoundBody(w, r)()
		h.control.ServeHTTP(w, r)
	default:
		h.enter(w, r, id, port)
	}
}

// The headers that name a sandbox.
const (
	headerID   = "E2b-Sandbox-Id"
	headerPort = "E2b-Sandbox-Port"
	// headerToken is the header with the token of a sandbox.
	headerToken = "X-Access-Token"
)

var sandboxHost = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([0-9]{1,5})-([a-z0-9-]+)$`) })

// destination returns the sandbox and port that a request names, if any.
func destination(r *http.Request) (id sandbox.ID, port uint16, named bool, err error) {
	host := r.Host
	if bare, _, err := net.SplitHostPort(host); err == nil {
		host = bare
	}
	label, rest, _ := strings.Cut(strings.ToLower(host), ".")
	text, public := r.Header.Get(headerPort), r.Header.Get(headerID)
	if m := sandboxHost().FindStringSubmatch(label); m != nil {
		text, public = m[1], m[2]
	} else if text == strconv.Itoa(envdPort) && !ofDataPlane(r.URL.Path) {
		return "", 0, false, nil // some clients send the headers to the control plane, too
	} else if public == "" || !(label == "sandbox" || label == "localhost" && rest == "" || net.ParseIP(strings.Trim(host, "[]")) != nil) {
		return "", 0, false, nil
	}
	if text == "" {
		text = strconv.Itoa(envdPort)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return "", 0, false, invalid("port", "%.20q is not a port", text)
	}
	if id, err = privateID(public); err != nil {
		return "", 0, false, invalid("sandbox", "%.40q is not the id of a sandbox", public)
	}
	return id, uint16(n), true, nil
}

// ofDataPlane reports whether a path belongs to the data plane.
func ofDataPlane(path string) bool {
	switch path {
	case "/health", "/files", "/metrics", "/envs":
		return true
	}
	return strings.HasPrefix(path, "/process.Process/") || strings.HasPrefix(path, "/filesystem.Filesystem/")
}

// idPrefix is the prefix of Atoll's ids. E2B's ids have no hyphen, because host
// names are split at the first one.
const idPrefix = "sb-"

// publicID returns the id of a sandbox for E2B's clients.
func publicID(id sandbox.ID) string {
	return "sb" + strings.TrimPrefix(string(id), idPrefix)
}

// privateID is the reverse of publicID. Old clients append "-" and a client id,
// which is ignored.
func privateID(public string) (sandbox.ID, error) {
	own, _, _ := strings.Cut(strings.ToLower(public), "-")
	rest, ok := strings.CutPrefix(own, "sb")
	id := sandbox.ID(idPrefix + rest)
	if !ok || rest == "" || sandbox.ValidateName(string(id)) != nil {
		return "", &sandbox.Error{Code: sandbox.CodeNotFound, Subject: "sandbox", Message: "there is no sandbox with that id"}
	}
	return id, nil
}
