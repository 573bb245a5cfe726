// Package server puts the API behind listeners: it finds out who is calling,
// keeps browsers out, bounds what a caller can make it hold, and ends in good
// order.
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
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	maxHeader     = 64 << 10
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
)

// Caller describes the caller before anything is checked.
type Caller struct {
	// UID is that of the process at the other end of a Unix socket, as the
	// kernel tells it; nil on any other connection.
	UID *uint32
	// Token is the API key that was sent; empty without one.
	Token string
}

// Config configures a Server.
type Config struct {
	// Handler answers authenticated requests.
	Handler http.Handler
	// Ports answers requests for ports of sandboxes, which it tells from the
	// others and authenticates itself. Nil: there are none.
	Ports PortHandler
	// Authenticate returns the context for a caller's requests, or why there
	// are to be none. Nil leaves that to Handler, together with the question
	// under which names, and from which web pages, it may be reached.
	Authenticate func(ctx context.Context, c Caller) (context.Context, error)
	// Share says who a request counts for: nobody may have more than MaxPerKey
	// of them at a time. Nil: the bearer of its key. "" is not counted.
	Share func(r *http.Request) string
	// Hosts are the names under which the daemon is reached over TCP, besides
	// localhost and addresses.
	Hosts []string
	// Ready, if set, is closed when the daemon knows its sandboxes. Until then
	// requests wait, except for those about its health.
	Ready <-chan struct{}
	// Logger gets what callers are not told. Nil: slog.Default.
	Logger *slog.Logger
}

// PortHandler is a handler that knows which requests are its own.
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

// New returns a Server, which the caller shuts down.
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
		handler = s.defend(s.authenticate(handler))
	}
	s.http = &http.Server{
		Handler:           s.track(s.recover(s.admit(s.route(handler)))),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       withPeer,
		ErrorLog:          slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}
	return s
}

// Serve answers on a listener until Shutdown, and closes it.
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

// refuseMore closes the listeners and returns a channel that is closed when no
// request runs any more.
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

// lateEnd is how long requests that were cut off may take to end.
const lateEnd = 10 * time.Second

// Shutdown takes no more connections and waits for the requests that run; when
// ctx ends, they are cut off. Meanwhile a request on a connection that was made
// before is answered that the daemon ends.
func (s *Server) Shutdown(ctx context.Context) error {
	select {
	case <-s.refuseMore():
	case <-ctx.Done():
	}
	err := s.http.Shutdown(ctx)
	if errors.Is(err, net.ErrClosed) {
		err = nil // it closes the listeners once more
	}
	s.stop(shuttingDown()) // streams, and what is still there
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
		return nil // cutting off is what was asked for
	}
	return err
}

// track counts requests until they have ended, and gives each an id that its
// caller is told and that is part of what is logged and recorded for it. A
// caller may choose it, to find the request in logs of its own, and may name
// the trace that it is part of.
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

// usableID reports whether an id can be shown and logged as it is.
func usableID(id string) bool {
	for _, c := range id {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	return len(id) > 0 && len(id) <= 64
}

// admit lets requests wait until the daemon has started, and refuses them once
// it ends. It is alive all the time.
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

// route tells requests for ports of sandboxes from those for the API. The
// former bear a token each, whatever page sends them, and are answered under
// names of their own.
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

// recover turns a panic into an answer.
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

// defend keeps web pages from using a browser's reach: none may call from
// another origin, and no name that somebody points here is answered.
func (s *Server) defend(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		switch {
		case foreignOrigin(r):
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

func foreignOrigin(r *http.Request) bool {
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

// open are the paths that say nothing about anybody.
var open = map[string]bool{"/healthz": true, "/readyz": true, "/openapi.json": true}

func (s *Server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if open[r.URL.Path] {
			next.ServeHTTP(w, r)
			return
		}
		ctx, err := s.cfg.Authenticate(r.Context(), Caller{UID: peerOf(r.Context()), Token: bearer(r)})
		if err != nil {
			// The rest of the body is not waited for longer than this.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(cutTime))
			refuse(w, err)
			return
		}
		// A body that does not come must not keep open what was cut off.
		defer context.AfterFunc(ctx, func() { unblock(w, r) })()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// share refuses requests of whoever has too many already.
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
		next.ServeHTTP(w, r)
	})
}

// cutTime is how long the last answer of a request that was cut off may take.
const cutTime = 5 * time.Second

// unblock ends reads and writes of a request that was cut off by who let it in,
// and not by its own end. Handlers of WebSockets do that themselves.
func unblock(w http.ResponseWriter, r *http.Request) {
	if r.Context().Err() != nil || r.Header.Get("Upgrade") != "" {
		return
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now())
	_ = rc.SetWriteDeadline(time.Now().Add(cutTime))
}

func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}
