// Package boxlite is a fake of a BoxLite server: its boxes, commands, files,
// snapshots, clones, tunnels and volumes, with their known states and codes.
// Its boxes are sandboxes of an Atoll provider. The official SDK for Python
// works with it in REST mode, and so does Atoll's driver.
//
// What is known of the server comes from its API description and its SDK. Where
// they say nothing, the fake does what is hardest for a client.
package boxlite

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

// Key is the API key that the server takes, of the tenant Prefix.
const (
	Key    = "blk_live_0123456789abcdef"
	Prefix = "acme"
)

// Server is the server. Make one with New.
type Server struct {
	connected atomic.Int64 // connections through tunnels
	// Faults break requests.
	Faults servicetest.Faults

	backing driver.Provider
	dir     string // for volumes
	mux     http.Handler
	work    sync.WaitGroup

	mu      sync.Mutex
	takes   time.Duration
	keys    map[string]string // prefixes by key
	boxes   map[string]*box
	asked   map[string]request // by idempotency key
	volumes map[string]*volume
	serial  int
}

// request is one that was made with an idempotency key.
type request struct{ body, box string }

// New returns a server. Its boxes are sandboxes of a provider, and volumes are
// in a directory.
func New(backing driver.Provider, dir string) *Server {
	s := &Server{
		backing: backing, dir: dir, keys: map[string]string{Key: Prefix}, boxes: map[string]*box{}, asked: map[string]request{}, volumes: map[string]*volume{},
	}
	s.mux = s.routes()
	return s
}

// Transitions has starting and stopping take a while. At first they take no
// longer than they need.
func (s *Server) Transitions(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takes = d
}

// AddKey has the server take another key.
func (s *Server) AddKey(key, prefix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[key] = prefix
}

// RevokeKey has the server not take a key any more.
func (s *Server) RevokeKey(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.keys, key)
}

// Close removes all boxes and waits for running work.
func (s *Server) Close(ctx context.Context) error {
	var errs []error
	for _, b := range s.all() {
		errs = append(errs, s.remove(ctx, b))
	}
	s.work.Wait()
	return errors.Join(errs...)
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /boxes", s.handle(s.create))
	mux.HandleFunc("GET /boxes", s.handle(s.list))
	mux.HandleFunc("POST /boxes/import", s.handle(s.load))
	mux.HandleFunc("GET /boxes/{id}", s.handle(s.withBox(func(_ *http.Request, b *box) (int, any, error) { return http.StatusOK, s.shown(b), nil })))
	mux.HandleFunc("HEAD /boxes/{id}", s.handle(s.withBox(func(*http.Request, *box) (int, any, error) { return http.StatusNoContent, nil, nil })))
	mux.HandleFunc("DELETE /boxes/{id}", s.handle(s.withBox(s.deleteCall)))
	mux.HandleFunc("POST /boxes/{id}/start", s.handle(s.withBox(s.startCall)))
	mux.HandleFunc("POST /boxes/{id}/stop", s.handle(s.withBox(s.stopCall)))
	mux.HandleFunc("POST /boxes/{id}/exec", s.handle(s.withBox(s.exec)))
	mux.HandleFunc("GET /boxes/{id}/executions/{exec}", s.handle(s.withBox(s.withExecution(s.getExecution))))
	mux.HandleFunc("DELETE /boxes/{id}/executions/{exec}", s.handle(s.withBox(s.withExecution(s.killExecution))))
	mux.HandleFunc("POST /boxes/{id}/executions/{exec}/signal", s.handle(s.withBox(s.withExecution(s.signal))))
	mux.HandleFunc("POST /boxes/{id}/executions/{exec}/resize", s.handle(s.withBox(s.withExecution(s.resize))))
	mux.HandleFunc("GET /boxes/{id}/executions/{exec}/attach", s.attach)
	mux.HandleFunc("PUT /boxes/{id}/files", s.handle(s.withBox(s.upload)))
	mux.HandleFunc("GET /boxes/{id}/files", s.download)
	mux.HandleFunc("POST /boxes/{id}/snapshots", s.handle(s.withBox(s.capture)))
	mux.HandleFunc("GET /boxes/{id}/snapshots", s.handle(s.withBox(s.listSnapshots)))
	mux.HandleFunc("GET /boxes/{id}/snapshots/{name}", s.handle(s.withBox(s.getSnapshot)))
	mux.HandleFunc("DELETE /boxes/{id}/snapshots/{name}", s.handle(s.withBox(s.deleteSnapshot)))
	mux.HandleFunc("POST /boxes/{id}/snapshots/{name}/restore", s.handle(s.withBox(s.restoreSnapshot)))
	mux.HandleFunc("POST /boxes/{id}/clone", s.handle(s.withBox(s.clone)))
	mux.HandleFunc("POST /boxes/{id}/export", s.export)
	mux.HandleFunc("PUT /boxes/{id}/network/outbound", s.handle(s.withBox(s.setFlow)))
	mux.HandleFunc("PUT /boxes/{id}/network/inbound", s.handle(s.withBox(s.setFlow)))
	mux.HandleFunc("POST /boxes/{id}/network/tunnel", s.handle(s.withBox(s.tunnel)))
	mux.HandleFunc("DELETE /boxes/{id}/network/tunnel", s.handle(s.withBox(s.untunnel)))
	mux.HandleFunc("POST /volumes", s.handle(s.createVolume))
	mux.HandleFunc("GET /volumes", s.handle(s.listVolumes))
	mux.HandleFunc("GET /volumes/{volume}", s.handle(s.withVolume(func(_ *http.Request, v *volume) (int, any, error) { return http.StatusOK, v, nil })))
	mux.HandleFunc("DELETE /volumes/{volume}", s.handle(s.withVolume(s.deleteVolume)))
	return mux
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Faults.Wrap(http.HandlerFunc(s.route)).ServeHTTP(w, r)
}

// tenant is the key of the request's context for the tenant's prefix.
type tenant struct{}

func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v1/config" {
		answer(w, http.StatusOK, map[string]any{"capabilities": map[string]any{
			"max_cpus": 32, "max_memory_mib": 16384, "max_disk_size_gb": 100, "tty_enabled": true, "streaming_enabled": true,
			"snapshots_enabled": true, "clone_enabled": true, "export_enabled": true, "idempotency_key_lifetime": "PT24H",
		}})
		return
	}
	s.mu.Lock()
	prefix, ok := s.keys[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	s.mu.Unlock()
	if !ok {
		refuse(w, fail(http.StatusUnauthorized, "unauthenticated", "invalid or missing API key"))
		return
	}
	if r.URL.Path == "/v1/me" {
		answer(w, http.StatusOK, map[string]any{
			"sub": "svc-" + prefix, "principal_type": "service_account", "path_prefix": prefix, "expires_at": nil,
			"scopes": []string{"box:read", "box:write", "box:exec", "box:delete", "volume:read", "volume:write", "volume:delete"},
		})
		return
	}
	below, ok := strings.CutPrefix(r.URL.Path, "/v1/"+prefix+"/")
	if !ok {
		refuse(w, fail(http.StatusForbidden, "permission_denied", "not a path of this credential"))
		return
	}
	inner := r.Clone(context.WithValue(r.Context(), tenant{}, prefix))
	inner.URL.Path = "/" + below
	s.mux.ServeHTTP(w, inner)
}

func tenantOf(r *http.Request) string {
	prefix, _ := r.Context().Value(tenant{}).(string)
	return prefix
}

// failure is an error in the server's format.
type failure struct {
	status        int
	code, message string
}

func (f *failure) Error() string { return f.message }

func fail(status int, code, format string, args ...any) error {
	return &failure{status, code, fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) error {
	return fail(http.StatusBadRequest, "invalid_argument", format, args...)
}

func conflict(format string, args ...any) error {
	return fail(http.StatusConflict, "invalid_state", format, args...)
}

func notFound(what, id string) error {
	return fail(http.StatusNotFound, "not_found", "%s not found: %s", what, id)
}

// types are the names of errors that say the same as their codes.
var types = map[string]string{
	"invalid_argument": "InvalidArgumentError", "unauthenticated": "AuthError", "permission_denied": "PermissionError", "not_found": "NotFoundError",
	"already_exists": "AlreadyExistsError", "invalid_state": "InvalidStateError", "stopped": "StoppedError", "image_pull_failed": "ImageError",
	"session_reaped": "SessionReapedError", "unsupported": "UnsupportedError",
}

func refuse(w http.ResponseWriter, err error) {
	var f *failure
	var known *sandbox.Error
	switch {
	case errors.As(err, &f):
	case errors.As(err, &known) && known.Code == sandbox.CodeInvalid:
		f = &failure{http.StatusBadRequest, "invalid_argument", err.Error()}
	case errors.As(err, &known) && known.Code == sandbox.CodeNotFound:
		f = &failure{http.StatusNotFound, "not_found", err.Error()}
	default:
		f = &failure{http.StatusInternalServerError, "internal", err.Error()}
	}
	answer(w, f.status, map[string]any{"error": map[string]any{
		"message": f.message, "type": cmp.Or(types[f.code], "InternalError"), "code": f.code, "request_id": "req_" + rand.Text(),
	}})
}

func answer(w http.ResponseWriter, status int, v any) {
	if v == nil {
		w.WriteHeader(status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// call is a request. It returns the status and the body of the answer.
type call func(r *http.Request) (int, any, error)

func (s *Server) handle(f call) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		status, body, err := f(r)
		if err != nil {
			refuse(w, err)
			return
		}
		answer(w, status, body)
	}
}

func (s *Server) withBox(f func(*http.Request, *box) (int, any, error)) call {
	return func(r *http.Request) (int, any, error) {
		b, err := s.find(r)
		if err != nil {
			return 0, nil, err
		}
		return f(r, b)
	}
}

// read decodes the body of a request. The server takes no fields that it does not
// know.
func read(r *http.Request, into any) error {
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return invalid("invalid body: %v", err)
	}
	return nil
}
