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
	"cmp"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
)

// Key is the API key that the service takes, of the tenant Tenant.
const (
	Key    = "ak_0123456789abcdef"
	Tenant = "tenant-1"
)

// The statuses of a sandbox.
const (
	Starting = "starting"
	Running  = "running"
	Pausing  = "pausing"
	Paused   = "paused"
	Stopping = "stopping"
	Stopped  = "stopped"
	Resuming = "resuming"
	Failed   = "failed"
	Deleted  = "deleted"
)

// Server is the service. Make one with New.
type Server struct {
	*servicetest.Face

	mu       sync.Mutex
	life     time.Duration // of tokens
	tokens   map[string]token
	profiles []*profile
	execs    map[string]*execution
	items    []item
}

type token struct {
	key  string
	ends time.Time
}

// New returns a service. Its sandboxes are sandboxes of a provider.
func New(backing driver.Provider) *Server {
	s := &Server{life: 10 * time.Minute, tokens: map[string]token{}, execs: map[string]*execution{}}
	s.Face = &servicetest.Face{
		Cloud: servicetest.NewCloud(backing, servicetest.Statuses{
			Starting: Starting, Running: Running, Stopping: Stopping, Stopped: Stopped, Failed: Failed, Deleted: Deleted,
		}),
		Format: failure, Denied: servicetest.Failure{Status: http.StatusUnauthorized, Message: "invalid or expired token"}, Key: s.key,
	}
	s.Pauses = servicetest.PauseWords{Pausing: Pausing, Paused: Paused, Resuming: Resuming}
	s.AddKey(Key, Tenant)
	s.HandleFunc("POST /auth/token", s.exchange)
	s.Handle("POST /sandboxes", s.create)
	s.Handle("GET /sandboxes", s.list)
	show := s.change(func(*servicetest.CloudSandbox) error { return nil })
	s.Handle("GET /sandboxes/-/by-id/{name}", show) // also one that was deleted
	s.Handle("GET /sandboxes/{name}", show)
	s.Handle("POST /sandboxes/{name}/pause", s.change(s.Pause))
	s.Handle("POST /sandboxes/{name}/stop", s.change(s.Stop))
	s.Handle("POST /sandboxes/{name}/resume", s.change(s.resume))
	s.Handle("DELETE /sandboxes/{name}", s.withSandbox(func(_ *http.Request, b *servicetest.CloudSandbox) (any, error) {
		return servicetest.Reply{Status: http.StatusAccepted}, s.Delete(b)
	}))
	s.Handle("POST /snapshots/", s.save)
	s.Handle("GET /snapshots/{$}", s.listSnapshots)
	s.Handle("GET /snapshots/{name}", s.withSnapshot(func(m *servicetest.Snapshot) (any, error) { return shownSnapshot(*m), nil }))
	s.Handle("DELETE /snapshots/{name}", s.withSnapshot(func(m *servicetest.Snapshot) (any, error) {
		return servicetest.Reply{Status: http.StatusNoContent}, s.Forget(m)
	}))
	s.commandRoutes()
	s.gatewayRoutes()
	return s
}

// codes are the service's codes for errors that have none of their own.
var codes = map[string]string{
	"bad_request": "VALIDATION_ERROR", "unauthorized": "AUTH_TOKEN_INVALID", "conflict": "SANDBOX_INVALID_STATE", "not_found": "FILE_NOT_FOUND",
	"internal_server_error": "INTERNAL_ERROR",
}

// failure is the body of an error.
func failure(_ *http.Request, f *servicetest.Failure) any {
	return map[string]string{"code": cmp.Or(codes[f.Code], f.Code), "message": f.Message, "request_id": rand.Text()}
}

func invalid(what string) error {
	return servicetest.Fail(http.StatusBadRequest, "%s is invalid", what)
}

func notFound(what, name string) error {
	return servicetest.FailAs(http.StatusNotFound, "RESOURCE_NOT_FOUND", "%s %s not found", what, name)
}

// read decodes the body of a request. Null and unknown fields are refused,
// because the SDK does not send them.
func read(r *http.Request, into any) error {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	if bytes.Contains(bytes.ReplaceAll(text, []byte(" "), nil), []byte(":null")) {
		return invalid("null")
	}
	r.Body = io.NopCloser(bytes.NewReader(text))
	return servicetest.ReadStrictly(r, into)
}

// Tokens says how long tokens are good from now on.
func (s *Server) Tokens(life time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.life = life
}

// Expire makes all tokens end now.
func (s *Server) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.tokens)
}

// key returns the key that the token of a request was given for.
func (s *Server) key(r *http.Request) string {
	text, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tokens[text]; time.Now().Before(t.ends) {
		return t.key
	}
	return ""
}

// exchange gives a token for a key.
func (s *Server) exchange(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Key string `json:"access_key"`
	}
	err := read(r, &in)
	if err == nil && s.Account(in.Key) == "" {
		err = servicetest.FailAs(http.StatusUnauthorized, "AUTH_REQUIRED", "invalid access key")
	}
	if err != nil {
		s.Refuse(w, r, err)
		return
	}
	text := "tok_" + rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens[text] = token{in.Key, time.Now().Add(s.life)}
	servicetest.Answer(w, http.StatusOK, map[string]any{"session_token": text, "session_jwt": text, "cookie_max_age": int64(s.life / time.Second)})
}

// withSandbox is a call about one sandbox.
func (s *Server) withSandbox(f func(r *http.Request, b *servicetest.CloudSandbox) (any, error)) func(*http.Request, string) (any, error) {
	return func(r *http.Request, tenant string) (any, error) {
		b, err := s.Find(tenant, r.PathValue("name"))
		if err != nil {
			return nil, servicetest.FailAs(http.StatusNotFound, "SANDBOX_NOT_FOUND", "sandbox %s not found", r.PathValue("name"))
		}
		return f(r, b)
	}
}

// change is a call that changes a sandbox, and shows it.
func (s *Server) change(f func(b *servicetest.CloudSandbox) error) func(*http.Request, string) (any, error) {
	return s.withSandbox(func(_ *http.Request, b *servicetest.CloudSandbox) (any, error) {
		err := f(b)
		return shown(s.Show(b)), err
	})
}

// resume makes a paused sandbox run on, or starts a stopped one.
func (s *Server) resume(b *servicetest.CloudSandbox) error {
	if s.Show(b).Status == Stopped {
		return s.Start(b)
	}
	return s.Resume(b)
}

type lifecycle struct {
	AutoResume  string `json:"auto_resume,omitempty"`
	DeleteAfter *int64 `json:"delete_after,omitempty"`
}

// creation is the request for a new sandbox.
type creation struct {
	Name      string            `json:"name"`
	Image     string            `json:"image"`
	CPUs      int64             `json:"vcpus"`
	Memory    int64             `json:"memory_mb"`
	Disk      int64             `json:"disk_gb"`
	Env       map[string]string `json:"env"`
	Workdir   string            `json:"workdir"`
	Profile   string            `json:"gateway_profile"` // then its ID
	Internet  *bool             `json:"internet_enabled"`
	Snapshot  string            `json:"snapshot_name"`
	Lifecycle lifecycle         `json:"lifecycle"`
	Request   string            `json:"request_id"`
}

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,254}$`)

func (c *creation) check() error {
	switch after := c.Lifecycle.DeleteAfter; {
	case !nameForm.MatchString(c.Name):
		return invalid("name")
	case !slices.Contains([]string{"", "docker.io/library/python:3.12-slim"}, c.Image):
		return servicetest.FailAs(http.StatusBadRequest, "INVALID_REQUEST", "image %s cannot be pulled", c.Image)
	case after != nil && (*after < 60 || *after%60 != 0):
		return invalid("delete_after")
	case !slices.Contains([]string{"", "never", "on_activity"}, c.Lifecycle.AutoResume):
		return invalid("auto_resume")
	}
	return nil
}

// create makes a sandbox. It is running or starting when the response is sent.
func (s *Server) create(r *http.Request, tenant string) (any, error) {
	var c creation
	if err := read(r, &c); err != nil {
		return nil, err
	}
	sandbox := servicetest.Sandbox{ID: servicetest.UUID(), Owner: tenant}
	c.Name = cmp.Or(c.Name, "sandbox-"+sandbox.ID[:8])
	if err := c.check(); err != nil {
		return nil, err
	}
	from, err := s.Snapshot(tenant, c.Snapshot)
	if err != nil && c.Snapshot != "" {
		return nil, notFound("snapshot", c.Snapshot)
	}
	asked := c.Profile
	if c.Profile = s.profileID(tenant, asked); asked != "" && c.Profile == "" {
		return nil, servicetest.FailAs(http.StatusBadRequest, "INVALID_REQUEST", "gateway profile %s not found", asked)
	}
	c.CPUs, c.Memory, c.Disk = cmp.Or(c.CPUs, 1), cmp.Or(c.Memory, 1024), cmp.Or(c.Disk, 10)
	if after := c.Lifecycle.DeleteAfter; after != nil {
		sandbox.Ends = time.Now().Add(time.Duration(*after) * time.Second)
	}
	sandbox.Name, sandbox.Request = c.Name, c
	b, err := s.Create(sandbox, from)
	if errors.Is(err, servicetest.ErrTaken) {
		return nil, servicetest.FailAs(http.StatusConflict, "SANDBOX_ALREADY_EXISTS", "sandbox %s already exists", c.Name)
	}
	if err != nil {
		return nil, servicetest.FailAs(http.StatusServiceUnavailable, "SANDBOX_PROVISIONING_FAILED", "%v", err)
	}
	return servicetest.Reply{Status: http.StatusCreated, Body: shown(s.Show(b))}, nil
}

// shown is a sandbox as the service shows it.
func shown(b servicetest.Sandbox) map[string]any {
	c, _ := b.Request.(creation)
	return map[string]any{
		"id": b.ID, "name": b.Name, "status": b.Status, "image": cmp.Or(c.Image, "ghcr.io/islo-labs/islo-runner:latest"), "workdir": c.Workdir,
		"spec": map[string]int64{"vcpus": c.CPUs, "memory_mb": c.Memory, "disk_gb": c.Disk}, "lifecycle": c.Lifecycle, "created_at": b.Created,
	}
}

// list lists the sandboxes of a tenant, also those that were deleted.
func (s *Server) list(r *http.Request, tenant string) (any, error) {
	q, found := r.URL.Query(), []map[string]any{}
	for _, b := range s.History(tenant) {
		if strings.HasPrefix(b.Name, q.Get("name_prefix")) && strings.Contains(b.Name, q.Get("search")) {
			found = append(found, shown(b))
		}
	}
	return page(r, found), nil
}

func page[T any](r *http.Request, all []T) map[string]any {
	items := servicetest.Page(r, 50, all)
	return map[string]any{"items": items, "limit": len(items), "offset": 0, "total": len(all)}
}

// save saves a sandbox that runs. It is answered when that is done, or, if the
// client prefers it, when it has begun.
func (s *Server) save(r *http.Request, tenant string) (any, error) {
	var in struct {
		Sandbox string `json:"sandbox_name"`
		Name    string `json:"name"`
	}
	if err := read(r, &in); err != nil {
		return nil, err
	}
	r.SetPathValue("name", in.Sandbox)
	return s.withSandbox(func(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
		id := servicetest.UUID()
		m, err := s.Save(b, servicetest.Snapshot{ID: id, Name: cmp.Or(in.Name, "snapshot-"+id[:8])})
		if err == nil && !strings.Contains(r.Header.Get("Prefer"), "respond-async") {
			err = s.Wait(b)
		}
		if err == nil {
			m, err = s.Snapshot(tenant, m.ID)
		}
		if err != nil {
			return nil, err
		}
		return servicetest.Reply{Status: http.StatusCreated, Body: shownSnapshot(*m)}, nil
	})(r, tenant)
}

func shownSnapshot(m servicetest.Snapshot) map[string]any {
	status := "saving"
	if m.Ready {
		status = "ready"
	}
	return map[string]any{"id": m.ID, "name": m.Name, "status": status, "sandbox_id": m.Sandbox, "size_bytes": m.Size, "created_at": m.Created}
}

func (s *Server) listSnapshots(r *http.Request, tenant string) (any, error) {
	all := []map[string]any{}
	for _, m := range s.Snapshots(tenant) {
		all = append(all, shownSnapshot(m))
	}
	return page(r, all), nil
}

func (s *Server) withSnapshot(f func(*servicetest.Snapshot) (any, error)) func(*http.Request, string) (any, error) {
	return func(r *http.Request, tenant string) (any, error) {
		m, err := s.Snapshot(tenant, r.PathValue("name"))
		if err != nil {
			return nil, notFound("snapshot", r.PathValue("name"))
		}
		return f(m)
	}
}
