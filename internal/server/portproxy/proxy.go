// Package portproxy is a reverse proxy for HTTP servers inside sandboxes. The
// host name of a request, or two headers, select the port. Requests need a
// token for it. WebSockets and streams are forwarded unchanged.
//
// Neither the server behind a port nor the caller is trusted. A token gives
// access to ports of one sandbox only, connections are never shared between
// tokens, Atoll's credentials are not forwarded, and a page from a sandbox has
// its own origin.
package portproxy

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/sandbox"
)

// The headers of a request. They are not forwarded.
const (
	HeaderToken   = "Atoll-Token"   // instead of a bearer token in Authorization
	HeaderSandbox = "Atoll-Sandbox" // together with the next, instead of a host name
	HeaderPort    = "Atoll-Port"
)

const (
	maxHeader = 256 << 10
	idleTime  = 30 * time.Second
	idleConns = 8 // per token and port
)

// Service opens ports. Its methods may be called concurrently; their errors are
// *sandbox.Error.
type Service interface {
	// EnterPort checks a token. It returns the context for requests with it, and
	// the sandbox that ref names. All failures are the same CodeUnauthorized.
	EnterPort(ctx context.Context, token, ref string, port uint16) (context.Context, sandbox.ID, error)
	// DialPort connects to a port of a sandbox. The caller closes it.
	DialPort(ctx context.Context, ref string, port uint16) (net.Conn, error)
}

// Options of a Proxy.
type Options struct {
	// Domains are the domains for names of the form PORT-SANDBOX.DOMAIN, in
	// addition to localhost.
	Domains []string
	// Failed answers a request if the server inside did not respond. Nil: an error
	// as in the API.
	Failed func(w http.ResponseWriter, r *http.Request, err error)
	// Logger gets internal errors, which callers do not see. Nil: slog.Default.
	Logger *slog.Logger
}

// Proxy is the handler. It may be used concurrently.
type Proxy struct {
	service   Service
	domains   []string
	transport *http.Transport // reuses connections
	once      *http.Transport // does not reuse connections
	reverse   *httputil.ReverseProxy
	opened    opened
}

// New returns a Proxy. The caller closes it.
func New(service Service, opts Options) *Proxy {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if opts.Failed == nil {
		opts.Failed = failed
	}
	p := &Proxy{service: service, domains: []string{"localhost"}}
	for _, d := range opts.Domains {
		p.domains = append(p.domains, strings.ToLower(strings.Trim(d, ".")))
	}
	p.transport = &http.Transport{
		DialContext: p.dial, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		MaxIdleConnsPerHost: idleConns, IdleConnTimeout: idleTime, TLSHandshakeTimeout: idleTime,
		TLSClientConfig: &tls.Config{ServerName: "localhost", InsecureSkipVerify: true}, //nolint:gosec // see Port
	}
	p.once = p.transport.Clone()
	p.once.DisableKeepAlives = true
	p.reverse = &httputil.ReverseProxy{
		Rewrite: rewrite, Transport: roundTripper(p.roundTrip), FlushInterval: -1, ModifyResponse: confine,
		ErrorHandler: opts.Failed, ErrorLog: slog.NewLogLogger(opts.Logger.Handler(), slog.LevelInfo), // why a response broke off
	}
	return p
}

// Close closes idle connections. Running requests continue.
func (p *Proxy) Close() error {
	p.transport.CloseIdleConnections()
	return nil
}

// target is the port and the sandbox of a request.
type target struct {
	ref    string
	port   uint16
	id     sandbox.ID // set when the token has been checked
	pool   string     // requests with the same pool may share a connection
	header bool       // selected by headers
	tls    bool       // the server there uses HTTPS
}

// Match reports whether a request is for a port, even if it is malformed.
func (p *Proxy) Match(r *http.Request) bool {
	if r.Header.Get(HeaderSandbox) != "" || r.Header.Get(HeaderPort) != "" {
		return true
	}
	_, _, ok := p.split(r.Host)
	return ok
}

// split parses PORT-SANDBOX.DOMAIN. No host name of the daemon itself has this
// form.
func (p *Proxy) split(host string) (port, ref string, ok bool) {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	label, domain, _ := strings.Cut(strings.ToLower(strings.TrimSuffix(host, ".")), ".")
	port, ref, ok = strings.Cut(label, "-")
	if !ok || port == "" || strings.Trim(port, "0123456789") != "" {
		return "", "", false
	}
	for _, d := range p.domains {
		if d == domain {
			return port, ref, true
		}
	}
	return "", "", false
}

func (p *Proxy) target(r *http.Request) (t target, err error) {
	port := ""
	refs, ports := r.Header.Values(HeaderSandbox), r.Header.Values(HeaderPort)
	if len(refs) > 0 || len(ports) > 0 {
		if len(refs) != 1 || len(ports) != 1 {
			return t, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: HeaderSandbox, Message: HeaderSandbox + " and " + HeaderPort + " are needed once each"}
		}
		t.ref, port, t.header = refs[0], ports[0], true
	} else {
		port, t.ref, _ = p.split(r.Host)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return t, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "port", Message: "is not a number from 1 to 65535"}
	}
	t.port = uint16(n)
	return t, nil
}

// keyPrefix is the prefix of API keys. A key that is sent instead of a token
// must not reach code in a sandbox.
const keyPrefix = "atoll_"

// headerKey is the header in which E2B clients send an API key.
const headerKey = "X-Api-Key"

// IsKey reports whether the value of a header is an API key, in either form,
// with or without "Bearer".
func IsKey(value string) bool {
	value = strings.TrimSpace(value)
	if scheme, bearer, ok := strings.Cut(value, " "); ok && strings.EqualFold(scheme, "Bearer") {
		value = strings.TrimSpace(bearer)
	}
	return strings.HasPrefix(envd.Token(value), keyPrefix)
}

// token removes the token from a request and returns it.
func token(r *http.Request) (string, error) {
	h := r.Header
	cookie := cookieToken(r)
	scheme, bearer, _ := strings.Cut(h.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		bearer = strings.TrimSpace(bearer)
	} else {
		bearer = ""
	}
	found := h.Get(HeaderToken)
	for _, name := range []string{HeaderToken, "Authorization", headerKey} {
		if slices.ContainsFunc(h.Values(name), IsKey) {
			return "", &sandbox.Error{
				Code: sandbox.CodeUnauthorized, Message: "API keys are not accepted at ports of sandboxes, because code inside could see them",
				Hint: "make a token with: atoll port token SANDBOX",
			}
		}
	}
	if found == "" && bearer == "" && cookie != "" {
		found = cookie
	} else if found == "" {
		found = bearer
		h.Del("Authorization") // it was the token; with HeaderToken, the header is for the program inside
	}
	for _, name := range []string{HeaderToken, HeaderSandbox, HeaderPort} {
		h.Del(name)
	}
	if found == "" {
		return "", &sandbox.Error{
			Code: sandbox.CodeUnauthorized, Message: "missing port token",
			Hint: "make one with: atoll port token SANDBOX, and send it in " + HeaderToken,
		}
	}
	return found, nil
}

type targetKey struct{}

// Routes returns the routes, for callers with a port token. The operations are
// those that its maker needed.
func Routes() []ops.Route {
	makes := []ops.Op{ops.SandboxFind, ops.PortShare}
	return []ops.Route{
		{Name: "a port of a sandbox", Open: true, Ops: makes}, {Name: "GET " + OpenPath, Open: true}, {Name: "POST " + OpenPath, Open: true, Ops: makes},
	}
}

// ServeHTTP forwards a request for which Match is true to its port.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t, err := p.target(r)
	if err != nil {
		refuse(w, err)
		return
	}
	if r.Method == http.MethodConnect {
		refuse(w, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "method", Message: "CONNECT is not supported"})
		return
	}
	r = r.Clone(r.Context())
	if r.URL.Path == OpenPath {
		p.open(w, r, t)
		return
	}
	secret, err := token(r)
	if err != nil {
		refuse(w, err)
		return
	}
	ctx, id, err := p.service.EnterPort(r.Context(), secret, t.ref, t.port)
	if err != nil {
		refuse(w, err)
		return
	}
	t.id = id
	p.show(w, r.WithContext(ctx), t, secret)
}

// Port is a port of a sandbox, for Show.
type Port struct {
	Sandbox sandbox.ID
	Number  uint16
	// Bearer identifies callers that may share connections: a secret, or "" for all
	// callers.
	Bearer string
	// TLS says that the server there uses HTTPS. Its certificate is not verified:
	// the connection does not leave the machine and always ends in the sandbox.
	TLS bool
}

// Show forwards a request to a port for another API, which has authenticated
// the caller and removed its own credentials. Connections are made in the
// context of r, and are shared only between requests with the same bearer.
func (p *Proxy) Show(w http.ResponseWriter, r *http.Request, port Port) {
	p.show(w, r, target{id: port.Sandbox, port: port.Number, tls: port.TLS}, port.Bearer)
}

func (p *Proxy) show(w http.ResponseWriter, r *http.Request, t target, bearer string) {
	sum := sha256.Sum256([]byte(string(t.id) + "\x00" + bearer))
	t.pool = strconv.Itoa(int(t.port)) + "." + hex.EncodeToString(sum[:])
	// Without full duplex, net/http closes the request's body when the response
	// begins. If the transport has not yet read its end, it breaks off the
	// response.
	_ = http.NewResponseController(w).EnableFullDuplex() // every version of HTTP supports it
	p.reverse.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), targetKey{}, t)))
}

// rewrite sets the target of a request. Path and query stay unchanged. The host
// stays too, unless headers selected the port, so that links of the program
// work.
func rewrite(r *httputil.ProxyRequest) {
	t := r.In.Context().Value(targetKey{}).(target)
	r.Out.URL.Scheme, r.Out.URL.Host = "http", t.pool
	if t.tls {
		r.Out.URL.Scheme = "https"
	}
	r.Out.URL.RawQuery = r.In.URL.RawQuery
	r.Out.Host = r.In.Host
	if t.header {
		r.Out.Host = "localhost:" + strconv.Itoa(int(t.port))
	}
	r.Out.Header.Set("X-Forwarded-Host", r.In.Host)
	r.Out.Header.Set("X-Forwarded-Proto", "http")
	if r.In.TLS != nil {
		r.Out.Header.Set("X-Forwarded-Proto", "https")
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// roundTrip sends a request. The program inside may close an idle connection
// just when it is reused, and then it is not known whether it has handled the
// request. So only requests that net/http can repeat reuse connections. Every
// other request gets a new one.
func (p *Proxy) roundTrip(r *http.Request) (*http.Response, error) {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		if r.Body == nil || r.Body == http.NoBody {
			return p.transport.RoundTrip(r)
		}
	}
	return p.once.RoundTrip(r)
}

// dial connects to the port of the request in ctx.
func (p *Proxy) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	t, ok := ctx.Value(targetKey{}).(target)
	if !ok {
		return nil, errors.New("portproxy: a connection without a request")
	}
	return p.service.DialPort(ctx, string(t.id), t.port)
}

// confine limits cookies of a program inside to its own host name. A cookie for
// the whole domain would be sent to ports of other sandboxes.
func confine(resp *http.Response) error {
	cookies := resp.Header["Set-Cookie"]
	for i, c := range cookies {
		parts := strings.Split(c, ";")
		kept := parts[:1]
		for _, attribute := range parts[1:] {
			name, _, _ := strings.Cut(attribute, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "Domain") {
				kept = append(kept, attribute)
			}
		}
		cookies[i] = strings.Join(kept, ";")
	}
	return nil
}

// failed answers a request if the program inside did not.
func failed(w http.ResponseWriter, r *http.Request, err error) {
	var known *sandbox.Error
	if !errors.As(context.Cause(r.Context()), &known) && !errors.As(err, &known) {
		known = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the server on this port did not send a valid response", Cause: err}
	}
	problem := api.NewProblem(known, nil)
	if problem.Code == sandbox.CodeUnavailable {
		problem.Status, problem.Title = http.StatusBadGateway, http.StatusText(http.StatusBadGateway)
	}
	api.WriteProblem(w, problem)
}

func refuse(w http.ResponseWriter, err error) { api.WriteProblem(w, api.NewProblem(err, nil)) }
