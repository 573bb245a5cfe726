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

	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/sandbox"
)

// EnvdVersion is the version of the data plane that sandboxes report. The SDKs
// switch features on by it, so it is the newest all of whose features work.
const EnvdVersion = "0.6.4"

// envdPort is the port at which the SDKs expect the data plane.
const envdPort = 49983

// Options of a handler.
type Options struct {
	// Secret, of at least 32 bytes, is what the tokens of sandboxes are made
	// from. A handler with another secret does not know them.
	Secret []byte
	// Domain is told to clients as the one under which sandboxes are reached,
	// as PORT-ID.DOMAIN. Empty: they use what they are configured with.
	Domain string
	// Internet allows sandboxes what their clients do not deny, as E2B does.
	// Without it they reach only what their clients allow.
	Internet bool
	// RetryAfter finds out when a refused request is worth repeating. Nil
	// never knows.
	RetryAfter func(error) (time.Duration, bool)
	// Uploads is a directory for files of templates that clients send. It is a
	// cache: the caller empties it before. Builds is one for files of builds.
	Uploads, Builds string
	// Now is the clock. Nil: time.Now.
	Now func() time.Time
	// Logger gets what callers are not told. Nil: slog.Default.
	Logger *slog.Logger
}

// Handler serves both planes on one listener. It finds out what a request is for
// and passes it to the handler of that part of the protocol.
type Handler struct {
	*common
	entrance Entrance
	control  http.Handler // of what is not inside a sandbox
	envd     http.Handler // of the data plane of a sandbox
	ports    *portAPI
	close    []func()
}

// common is what all parts share.
type common struct {
	opts   Options
	tokens tokens
}

// New returns a handler, which the caller closes.
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
	c := &common{opts, tokens{opts.Secret}}
	h := &Handler{common: c, entrance: s.Entrance}
	inside := &guest{common: c, openBox: s.Open}
	metrics := &metricsAPI{finder{s.Sandboxes}, s.Usage}
	h.control = h.controlPlane(&s, metrics)
	h.envd = h.dataPlane(inside, metrics)
	h.ports = newPortAPI(inside, s.Ports)
	return h
}

// Close lets go of the commands that are followed and of the watchers, and
// gives up builds. The commands run on.
func (h *Handler) Close() error {
	for _, end := range h.close {
		end()
	}
	return h.ports.proxy.Close()
}

// ServeHTTP finds out what a request is for: a port of a sandbox, named by the
// host or, where the host says nothing, by headers, or else the control plane.
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

// The headers by which a request names a sandbox.
const (
	headerID   = "E2b-Sandbox-Id"
	headerPort = "E2b-Sandbox-Port"
	// headerToken bears the token of a sandbox.
	headerToken = "X-Access-Token"
)

var sandboxHost = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([0-9]{1,5})-([a-z0-9-]+)$`) })

// destination returns which port of which sandbox a request names, if any.
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

// ofDataPlane reports whether a path is one of the data plane's.
func ofDataPlane(path string) bool {
	switch path {
	case "/health", "/files", "/metrics", "/envs":
		return true
	}
	return strings.HasPrefix(path, "/process.Process/") || strings.HasPrefix(path, "/filesystem.Filesystem/")
}

// idPrefix begins Atoll's ids; E2B's have no hyphen, because a host name is cut
// at the first.
const idPrefix = "sb-"

// publicID returns the id under which E2B's clients know a sandbox.
func publicID(id sandbox.ID) string {
	return "sb" + strings.TrimPrefix(string(id), idPrefix)
}

// privateID is the reverse of publicID. Old clients append "-" and the id of a
// client, which says nothing.
func privateID(public string) (sandbox.ID, error) {
	own, _, _ := strings.Cut(strings.ToLower(public), "-")
	rest, ok := strings.CutPrefix(own, "sb")
	id := sandbox.ID(idPrefix + rest)
	if !ok || rest == "" || sandbox.ValidateName(string(id)) != nil {
		return "", &sandbox.Error{Code: sandbox.CodeNotFound, Subject: "sandbox", Message: "there is no sandbox with that id"}
	}
	return id, nil
}
