// Package server serves the API on listeners. It authenticates callers, refuses
// requests of foreign web pages, limits connections and requests, and shuts
// down gracefully.
package server

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/internal/server/console"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

const (
	maxHeader     = 64 << 10
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
)

// Caller describes the caller of a request before authentication.
type Caller struct {
	// UID is the user id of the peer of a Unix socket, as reported by the kernel.
	// Nil on any other connection.
	UID *uint32
	// Token is the API key in the request; empty if there is none.
	Token string
	// Tenant is the tenant that the request names; empty if it names none.
	Tenant string
}

// Config configures a Server.
type Config struct {
	// Handler answers authenticated requests.
	Handler http.Handler
	// Ports answers requests for ports of sandboxes. It recognises and
	// authenticates them itself. Nil: there are none.
	Ports PortHandler
	// Console serves the web console, which signs callers in itself. Nil: there is
	// none.
	Console *console.Handler
	// Authenticate returns the context for a caller's request, or the error that
	// refuses it. If it is nil, Handler must authenticate callers itself, and check
	// host names and origins.
	Authenticate func(ctx context.Context, c Caller) (context.Context, error)
	// Share returns the key under which a request counts towards MaxPerKey. Nil:
	// its API key. A request with the share "" is not counted.
	Share func(r *http.Request) string
	// Hosts are the host names that the daemon serves over TCP, in addition to
	// localhost and IP addresses.
	Hosts []string
	// Ready, if set, is closed when the daemon has loaded its sandboxes. Until then
	// requests wait, except those for its health.
	Ready <-chan struct{}
	// Logger gets internal errors, which callers do not see. Nil: slog.Default.
	Logger *slog.Logger
}

// PortHandler is a handler for some of the requests.
type PortHandler interface {
	http.Handler
	Match(r *http.Request) bool
}

// Server serves any number of listeners. Its methods may be called
// concurrently.
type Server struct {
	cfg    Config
	http   *http.Server
	stop   context.CancelCauseFunc
	active sync.WaitGroup
	shares shares

	mu        sync.Mutex // of what follows
	listeners map[net.Listener]bool
	running   int           // requests
	quiet     chan struct{} // made by Shutdown, closed when none runs
}

// New returns a Server. The caller calls Shutdown.
func New(cfg Config) *Server {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.Logger = slog.New(span.Logs(cfg.Logger.Handler()))
	s := &Server{cfg: cfg, listeners: map[net.Listener]bool{}, shares: shares{limit: MaxPerKey, held: map[string]int{}}}
	base, stop := context.WithCancelCause(context.Background())
	s.stop = stop
	if s.cfg.Share == nil {
		s.cfg.Share = bearer
	}
	handler := s.share(s.cfg.Share, cfg.Handler)
	if cfg.Authenticate != nil {
		handler = s.defend(s.console(s.authenticate(handler)))
	}
	s.http = &http.Server{
		Handler:           s.track(s.recover(s.admit(s.route(handler)))),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return withCounted(withPeer(ctx, c), c) },
		ErrorLog:          slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}
	return s
}

// Serve serves requests on a listener until Shutdown, and closes the listener.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	s.listeners[l] = true
	if s.quiet != nil {
		_ = l.Close()
	}
	s.mu.Unlock()
	err := s.http.Serve(l)
	if errors.Is(err, http.ErrServerClosed) || s.ending() {
		return nil
	}
	return err
}

// ending reports whether Shutdown was called.
func (s *Server) ending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.quiet != nil
}

// refuseMore closes the listeners and returns a channel that is closed when all
// requests have ended.
func (s *Server) refuseMore() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.listeners {
		_ = l.Close() // Serve closes it again
	}
	if s.quiet == nil {
		s.quiet = make(chan struct{})
		if s.running == 0 {
			close(s.quiet)
		}
	}
	return s.quiet
}

// count counts a request until done is called.
func (s *Server) count() (done func()) {
	s.active.Add(1)
	s.mu.Lock()
	s.running++
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		if s.running--; s.running == 0 && s.quiet != nil {
			select {
			case <-s.quiet:
			default:
				close(s.quiet)
			}
		}
		s.mu.Unlock()
		s.active.Done()
	}
}

// lateEnd is how long canceled requests may take to end.
const lateEnd = 10 * time.Second

// Shutdown closes the listeners and waits for running requests. When ctx ends,
// it cancels them. New requests on open connections get CodeUnavailable.
func (s *Server) Shutdown(ctx context.Context) error {
	select {
	case <-s.refuseMore():
	case <-ctx.Done():
	}
	err := s.http.Shutdown(ctx)
	if errors.Is(err, net.ErrClosed) {
		err = nil // it closes the listeners again
	}
	s.stop(shuttingDown()) // cancels streams and all other requests
	done := make(chan struct{})
	go func() {
		s.active.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(lateEnd):
		err = errors.Join(err, errors.New("some requests did not end"))
	}
	_ = s.http.Close()
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return nil // canceling the rest is not an error
	}
	return err
}

// track counts running requests and gives each an id, which is in the response,
// in log lines and in events. A caller can choose the id with X-Request-Id, and
// continue a trace with Traceparent.
func (s *Server) track(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer s.count()()
		id := r.Header.Get(requestID)
		if !usableID(id) {
			id = rand.Text()
		}
		w.Header().Set(requestID, id)
		caller, _ := span.ParseParent(r.Header.Get("Traceparent"))
		r = r.WithContext(span.WithRequest(r.Context(), id, caller.Trace))
		defer span.Over(r.Context())
		began := time.Now()
		defer func() {
			s.cfg.Logger.DebugContext(r.Context(), "request", "method", r.Method, "path", r.URL.Path, "took", time.Since(began))
		}()
		next.ServeHTTP(w, r)
	})
}

const requestID = "X-Request-Id"

// usableID reports whether an id can be logged and returned safely.
func usableID(id string) bool {
	for _, c := range id {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	return len(id) > 0 && len(id) <= 64
}

// admit delays requests until the daemon has started, and refuses them during
// shutdown. Requests for its health are always served.
func (s *Server) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" && !s.admitted(w, r) {
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) admitted(w http.ResponseWriter, r *http.Request) bool {
	if s.ending() {
		w.Header().Set("Connection", "close")
		w.Header().Set("Retry-After", "1")
		refuse(w, shuttingDown())
		return false
	}
	if s.cfg.Ready == nil {
		return true
	}
	if r.URL.Path == "/readyz" {
		select {
		case <-s.cfg.Ready:
			return true
		default:
			refuse(w, &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the daemon is starting"})
			return false
		}
	}
	select {
	case <-s.cfg.Ready:
		return true
	case <-r.Context().Done():
		refuse(w, context.Cause(r.Context()))
		return false
	}
}

// route sends requests for ports of sandboxes to Ports and all others to the
// API. Requests for ports have their own token and their own host names, so
// they may come from any web page.
func (s *Server) route(next http.Handler) http.Handler {
	if s.cfg.Ports == nil {
		return next
	}
	ports := s.share(func(r *http.Request) string { return r.Host }, s.cfg.Ports)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.cfg.Ports.Match(r) {
			ports.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func shuttingDown() error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the daemon is shutting down", Hint: "try again when the next one runs"}
}

// recover turns a panic into an error response.
func (s *Server) recover(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch v := recover(); v {
			case nil:
			case http.ErrAbortHandler:
				panic(v)
			default:
				s.cfg.Logger.ErrorContext(r.Context(), "request panicked", "panic", v, "stack", string(debug.Stack()))
				refuse(w, &sandbox.Error{Code: sandbox.CodeInternal, Message: "internal error"})
			}
		}()
		next.ServeHTTP(w, r)
	})
}

func refuse(w http.ResponseWriter, err error) { api.WriteProblem(w, api.NewProblem(err, nil)) }

// defend protects against web pages in a browser: it refuses requests with a
// foreign Origin, and unknown host names (DNS rebinding).
func (s *Server) defend(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		static := s.cfg.Console != nil && s.cfg.Console.Static(r)
		switch {
		case ForeignOrigin(r) && !static:
			refuse(w, &sandbox.Error{Code: sandbox.CodeDenied, Subject: "origin", Message: "web pages of other origins may not call this API"})
		case peerOf(r.Context()) == nil && !s.knownHost(r.Host):
			refuse(w, &sandbox.Error{
				Code: sandbox.CodeDenied, Subject: "host", Message: "the daemon does not serve this host name",
				Hint: "start it with this name, or use its address",
			})
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// console sends requests for the web console there.
func (s *Server) console(next http.Handler) http.Handler {
	if s.cfg.Console == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.cfg.Console.Match(r) {
			s.cfg.Console.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ForeignOrigin reports whether a browser sends a request for a page of another
// origin.
func ForeignOrigin(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" || site == "same-site" {
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	return err != nil || u.Host == "" || u.Host != r.Host
}

func (s *Server) knownHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if host == "localhost" || net.ParseIP(strings.Trim(host, "[]")) != nil {
		return true
	}
	for _, known := range s.cfg.Hosts {
		if host == strings.ToLower(known) {
			return true
		}
	}
	return false
}

// open are the paths that need no authentication, because they return no data
// of tenants.
var open = map[string]bool{"/healthz": true, "/readyz": true, "/openapi.json": true}

func (s *Server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if open[r.URL.Path] || strings.HasPrefix(r.URL.Path, api.StreamPath) { // a viewer's token comes later
			next.ServeHTTP(w, r)
			return
		}
		if len(r.Header.Values("Authorization")) > 1 { // a proxy in front may have checked another one
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(cutTime))
			refuse(w, &sandbox.Error{Code: sandbox.CodeUnauthorized, Message: "there is more than one Authorization header", Hint: "send one"})
			return
		}
		ctx, err := s.cfg.Authenticate(r.Context(), Caller{UID: peerOf(r.Context()), Token: bearer(r), Tenant: r.Header.Get(operator.TenantHeader)})
		if err != nil {
			// Bound the wait for the rest of the request body.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(cutTime))
			refuse(w, err)
			return
		}
		defer CutOff(ctx, w, r)()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// share refuses a request if its key already has too many running ones. The
// connections of others are kept while they run: next knows the caller, or asks
// for the key before anything else.
func (s *Server) share(who func(*http.Request) string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leave, ok := s.shares.enter(who(r))
		if !ok {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(cutTime))
			w.Header().Set("Retry-After", "1")
			refuse(w, tooManyRequests())
			return
		}
		defer leave()
		defer keepConnection(r.Context())()
		next.ServeHTTP(w, r)
	})
}

// cutTime bounds the last response of a canceled request.
const cutTime = 5 * time.Second

// CutOff makes the end of ctx, such as that of the caller's key, end a request
// whose client neither sends nor reads. The handler calls done before it
// returns: afterwards, the connection belongs to the next request.
func CutOff(ctx context.Context, w http.ResponseWriter, r *http.Request) (done func()) {
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(over)
		unblock(w, r)
	})
	return func() {
		if !stop() {
			<-over
		}
	}
}

// unblock ends the reads and writes of a request that was canceled because the
// daemon shuts down or its key has ended. Handlers of WebSockets do that
// themselves.
func unblock(w http.ResponseWriter, r *http.Request) {
	if r.Context().Err() != nil || r.Header.Get("Upgrade") != "" {
		return
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now())
	_ = rc.SetWriteDeadline(time.Now().Add(cutTime))
}

// bearer returns the API key of a request: that of its Authorization header or,
// without one, that of a page of the console.
func bearer(r *http.Request) string {
	if r.Header.Get("Authorization") == "" {
		return console.Token(r)
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}
