// Package islo is a fake of the service islo: its control and compute APIs,
// with their known states and codes. Its sandboxes are sandboxes of an Atoll
// provider. The official SDK for Python works with it, and so does Atoll's
// driver.
//
// What is known of the service comes from its SDK and its documents. Where they
// say nothing, the fake does what is hardest for a client.
package islo

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

// Key is the API key that the service takes, of the tenant Tenant.
const (
	Key    = "ak_0123456789abcdef"
	Tenant = "tenant-1"
)

// Server is the service. Make one with New.
type Server struct {
	// Faults break requests to either plane.
	Faults servicetest.Faults

	backing driver.Provider
	mux     *http.ServeMux
	work    sync.WaitGroup

	mu        sync.Mutex
	takes     time.Duration
	life      time.Duration     // of tokens
	keys      map[string]string // tenants by key
	tokens    map[string]token
	boxes     []*box
	profiles  []*profile
	snapshots []*snapshot
	serial    int
}

type token struct {
	tenant string
	ends   time.Time
}

// New returns a service. Its sandboxes are sandboxes of a provider.
func New(backing driver.Provider) *Server {
	s := &Server{backing: backing, life: 10 * time.Minute, keys: map[string]string{Key: Tenant}, tokens: map[string]token{}, mux: http.NewServeMux()}
	s.mux.HandleFunc("POST /auth/token", s.exchange)
	s.computePlane()
	s.controlPlane()
	return s
}

// Transitions has starting, pausing and the like take a while. At first they
// take no longer than they need.
func (s *Server) Transitions(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takes = d
}

// Tokens says how long tokens are good from now on.
func (s *Server) Tokens(life time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.life = life
}

// Expire has all tokens end now.
func (s *Server) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for text, t := range s.tokens {
		t.ends = time.Time{}
		s.tokens[text] = t
	}
}

// AddKey adds a key for another tenant.
func (s *Server) AddKey(key, tenant string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[key] = tenant
}

// RemoveKey revokes a key and its tokens.
func (s *Server) RemoveKey(key string) {
	s.mu.Lock()
	delete(s.keys, key)
	s.mu.Unlock()
	s.Expire()
}

// Close destroys all sandboxes and waits for running work.
func (s *Server) Close(ctx context.Context) error {
	var errs []error
	for _, b := range s.all() {
		errs = append(errs, s.remove(ctx, b))
	}
	s.work.Wait()
	return errors.Join(errs...)
}

// ServeHTTP serves both planes.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Faults.Wrap(s.mux).ServeHTTP(w, r)
}

func (s *Server) exchange(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Key string `json:"access_key"`
	}
	err := read(r, &in)
	s.mu.Lock()
	defer s.mu.Unlock()
	tenant := s.keys[in.Key]
	if err == nil && tenant == "" {
		err = fail(http.StatusUnauthorized, "AUTH_REQUIRED", "invalid access key")
	}
	if err != nil {
		refuse(w, err)
		return
	}
	t := "tok_" + rand.Text()
	s.tokens[t] = token{tenant, time.Now().Add(s.life)}
	answer(w, http.StatusOK, map[string]any{"session_token": t, "session_jwt": t, "cookie_max_age": int64(s.life / time.Second)})
}

// tenant says who has the token of a request.
func (s *Server) tenant(r *http.Request) (string, error) {
	text, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	s.mu.Lock()
	defer s.mu.Unlock()
	t, known := s.tokens[text]
	switch {
	case !ok:
		return "", fail(http.StatusUnauthorized, "AUTH_REQUIRED", "authentication required")
	case !known:
		return "", fail(http.StatusUnauthorized, "AUTH_TOKEN_INVALID", "invalid token")
	case time.Now().After(t.ends):
		return "", fail(http.StatusUnauthorized, "AUTH_TOKEN_EXPIRED", "token expired")
	}
	return t.tenant, nil
}

// failure is an error in the service's format.
type failure struct {
	status        int
	code, message string
}

func (f *failure) Error() string { return f.message }

func fail(status int, code, format string, args ...any) error {
	return &failure{status, code, fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) error {
	return fail(http.StatusBadRequest, "VALIDATION_ERROR", format, args...)
}

// explain converts any error to a failure. CodeNotFound means a missing file.
func explain(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	switch sandbox.CodeOf(err) {
	case sandbox.CodeInvalid:
		return &failure{http.StatusBadRequest, "INVALID_REQUEST", err.Error()}
	case sandbox.CodeNotFound:
		return &failure{http.StatusNotFound, "FILE_NOT_FOUND", err.Error()}
	}
	return &failure{http.StatusInternalServerError, "INTERNAL_ERROR", err.Error()}
}

func refuse(w http.ResponseWriter, err error) {
	f := explain(err)
	answer(w, f.status, map[string]string{"code": f.code, "message": f.message, "request_id": rand.Text()})
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

// call is a request of a tenant. It returns the status and the body of the
// answer.
type call func(r *http.Request, tenant string) (int, any, error)

func (s *Server) handle(pattern string, f call) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		status, body := 0, any(nil)
		tenant, err := s.tenant(r)
		if err == nil {
			status, body, err = f(r, tenant)
		}
		if err != nil {
			refuse(w, err)
			return
		}
		answer(w, status, body)
	})
}

// read decodes the body of a request. Null and unknown fields are refused,
// because the SDK does not send them.
func read(r *http.Request, into any) error {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if bytes.Contains(text, []byte(":null")) || bytes.Contains(text, []byte(": null")) {
		return invalid("null is not accepted")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return invalid("invalid body: %v", err)
	}
	return nil
}

func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // Read never fails.
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// page cuts a list as a request asks for it.
func page[T any](r *http.Request, items []T) map[string]any {
	limit, offset := 50, 0
	_, _ = fmt.Sscan(r.URL.Query().Get("limit"), &limit)
	_, _ = fmt.Sscan(r.URL.Query().Get("offset"), &offset)
	part := items[min(offset, len(items)):]
	part = part[:min(limit, len(part))]
	return map[string]any{"items": append([]T{}, part...), "limit": limit, "offset": offset, "total": len(items)}
}
