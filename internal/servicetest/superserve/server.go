// Package superserve is a fake of the service Superserve: both of its APIs,
// with their known states, codes and races. Its sandboxes are sandboxes of an
// Atoll provider. The official SDK for Python works with it, and so does
// Atoll's driver.
//
// What is known of the service comes from its SDK and its documents. Where they
// say nothing, the fake does what is hardest for a client.
package superserve

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

// Host is the name of the data plane in addresses that SDKs make.
const Host = "sandbox.superserve.ai"

// Key is the API key that the service takes, of the team Team.
const (
	Key  = "ss_live_use_0123456789abcdefghijABCDEFGHIJ_-"
	Team = "team-1"
)

// Server is the service. Make one with New.
type Server struct {
	// Faults break requests to either plane.
	Faults servicetest.Faults

	backing driver.Provider
	control http.Handler
	data    http.Handler
	work    sync.WaitGroup

	mu        sync.Mutex
	takes     time.Duration
	keys      map[string]string // teams by key
	boxes     map[string]*box
	snapshots map[string]*snapshot
	templates map[string]*template
	secrets   map[string]*secret
	serial    int
}

// New returns a service. Its sandboxes are sandboxes of a provider.
func New(backing driver.Provider) *Server {
	s := &Server{
		backing: backing, keys: map[string]string{Key: Team}, boxes: map[string]*box{}, snapshots: map[string]*snapshot{},
		templates: map[string]*template{}, secrets: map[string]*secret{},
	}
	s.addTemplate("superserve/base", nil)
	s.control, s.data = s.controlPlane(), s.dataPlane()
	return s
}

// Transitions has pausing, resuming and capturing take a while. At first they
// take no longer than they need.
func (s *Server) Transitions(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takes = d
}

// AddKey adds a key for another team.
func (s *Server) AddKey(key, team string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[key] = team
}

// RemoveKey revokes a key.
func (s *Server) RemoveKey(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.keys, key)
}

// Close destroys all sandboxes and waits for running work.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	all := make([]*box, 0, len(s.boxes))
	for _, b := range s.boxes {
		all = append(all, b)
	}
	s.mu.Unlock()
	var errs []error
	for _, b := range all {
		errs = append(errs, s.remove(ctx, b))
	}
	s.work.Wait()
	return errors.Join(errs...)
}

// ServeHTTP serves both planes: the data plane if the host names a sandbox.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Faults.Wrap(http.HandlerFunc(s.route)).ServeHTTP(w, r)
}

func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	name, _, below := strings.Cut(r.Host, ".")
	id := r.Header.Get("X-Superserve-Sandbox-Id")
	switch port, of, preview := strings.Cut(name, "-"); {
	case id != "":
		r.SetPathValue("id", id)
		s.data.ServeHTTP(w, r)
	case below && preview && port == "boxd":
		r.SetPathValue("id", of)
		s.data.ServeHTTP(w, r)
	case below && preview && strings.Trim(port, "0123456789") == "":
		s.preview(w, r, port, of)
	default:
		s.control.ServeHTTP(w, r)
	}
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

func notFound(what, id string) error {
	return fail(http.StatusNotFound, "not_found", "%s %s not found", what, id)
}

// explain makes a failure of any error.
func explain(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	var known *sandbox.Error
	if errors.As(err, &known) && known.Code == sandbox.CodeInvalid {
		return &failure{http.StatusBadRequest, "validation_error", err.Error()}
	}
	return &failure{http.StatusInternalServerError, "internal", err.Error()}
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

// call is a request to the control plane. It returns the status and the body of
// the answer.
type call func(r *http.Request, team string) (int, any, error)

func (s *Server) handle(mux *http.ServeMux, pattern string, f call) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		team := s.keys[r.Header.Get("X-API-Key")]
		s.mu.Unlock()
		status, body, err := 0, any(nil), fail(http.StatusUnauthorized, "unauthorized", "invalid API key")
		if team != "" {
			status, body, err = f(r, team)
		}
		if err != nil {
			f := explain(err)
			answer(w, f.status, map[string]any{"error": map[string]string{"code": f.code, "message": f.message}})
			return
		}
		answer(w, status, body)
	})
}

// read decodes the body of a request.
func read(r *http.Request, into any) error {
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields() // the SDK sends no unknown fields
	if err := dec.Decode(into); err != nil {
		return fail(http.StatusBadRequest, "validation_error", "invalid body: %v", err)
	}
	return nil
}

func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // Read never fails.
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// hint is a routing hint that expires at a time.
func hint(expires time.Time) string {
	payload, _ := json.Marshal(map[string]any{"e": expires.Unix(), "n": rand.Text()})
	return "v1." + base64.RawURLEncoding.EncodeToString(payload) + ".c2ln"
}
