// Package daytona is a fake of the service Daytona: its API, and the toolbox
// inside its sandboxes. Its sandboxes are sandboxes of an Atoll provider. The
// official SDK for Python works with it, and so does Atoll's driver.
package daytona

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
)

// Key is the API key that the service takes.
const Key = "dtn_0123456789abcdef"

// Server is the service. Make one with New.
type Server struct {
	*servicetest.Face

	mu       sync.Mutex
	sessions map[string]*session
}

// New returns a service. Its sandboxes are sandboxes of a provider.
func New(backing driver.Provider) *Server {
	s := &Server{
		Face: &servicetest.Face{
			Cloud: servicetest.NewCloud(backing, servicetest.Statuses{
				Starting: "starting", Running: "started", Stopping: "stopping", Stopped: "stopped", Failed: "error", Deleted: "destroyed",
			}),
			Format: failure, Denied: servicetest.Failure{Status: http.StatusUnauthorized, Message: "Invalid credentials"},
		},
		sessions: map[string]*session{},
	}
	s.AddKey(Key, "org-1")
	s.Handle("POST /api/sandbox", s.create)
	s.Handle("GET /api/sandbox", s.list)
	s.Handle("GET /api/sandbox/{sandbox}", s.withSandbox(func(r *http.Request, b *servicetest.CloudSandbox) (any, error) { return s.shown(r, s.Show(b)), nil }))
	s.Handle("DELETE /api/sandbox/{sandbox}", s.withSandbox(func(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
		return s.shown(r, s.Show(b)), s.Delete(b)
	}))
	s.Handle("POST /api/sandbox/{sandbox}/stop", s.withSandbox(func(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
		return s.shown(r, s.Show(b)), s.Stop(b)
	}))
	s.Handle("POST /api/sandbox/{sandbox}/start", s.withSandbox(func(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
		return s.shown(r, s.Show(b)), s.Start(b)
	}))
	s.Handle("PUT /api/sandbox/{sandbox}/labels", s.withSandbox(s.label))
	s.Handle("GET /api/sandbox/{sandbox}/toolbox-proxy-url", s.withSandbox(func(r *http.Request, _ *servicetest.CloudSandbox) (any, error) {
		return map[string]string{"url": toolbox(r)}, nil
	}))
	s.Handle("POST /api/sandbox/{sandbox}/snapshot", s.withSandbox(s.save))
	s.Handle("GET /api/snapshots", s.listSnapshots)
	s.Handle("GET /api/snapshots/{snapshot}", s.withSnapshot(func(m *servicetest.Snapshot) (any, error) { return shownSnapshot(*m), nil }))
	s.Handle("DELETE /api/snapshots/{snapshot}", s.withSnapshot(func(m *servicetest.Snapshot) (any, error) { return struct{}{}, s.Forget(m) }))
	s.toolboxRoutes()
	return s
}

// failure is the body of an error.
func failure(r *http.Request, f *servicetest.Failure) any {
	return map[string]any{
		"statusCode": f.Status, "error": http.StatusText(f.Status), "message": f.Message, "path": r.URL.Path, "timestamp": time.Now().UTC().Format(time.RFC3339),
	}
}

func toolbox(r *http.Request) string { return "http://" + r.Host + "/toolbox" }

// withSandbox is a call about one sandbox.
func (s *Server) withSandbox(f func(r *http.Request, b *servicetest.CloudSandbox) (any, error)) func(*http.Request, string) (any, error) {
	return func(r *http.Request, owner string) (any, error) {
		b, err := s.sandbox(r, owner)
		if err != nil {
			return nil, err
		}
		return f(r, b)
	}
}

// sandbox finds the sandbox in a request. One that was destroyed is not found.
func (s *Server) sandbox(r *http.Request, owner string) (*servicetest.CloudSandbox, error) {
	b, err := s.Find(owner, r.PathValue("sandbox"))
	if err != nil || s.Show(b).Status == "destroyed" && r.Method != http.MethodGet {
		return nil, servicetest.Fail(http.StatusNotFound, "Sandbox with ID or name %s not found", r.PathValue("sandbox"))
	}
	return b, nil
}

// creation is the request for a new sandbox.
type creation struct {
	Name     string            `json:"name"`
	Snapshot string            `json:"snapshot"`
	User     string            `json:"user"`
	Env      map[string]string `json:"env"`
	Labels   map[string]string `json:"labels"`
	Target   string            `json:"target"`
	BlockAll bool              `json:"networkBlockAll"`
	Prefixes string            `json:"networkAllowList"`
	Domains  string            `json:"domainAllowList"`
	TTL      int               `json:"ttlMinutes"`
	AutoStop *int              `json:"autoStopInterval"`
}

// snapshots are those of the account. Empty is the default.
var snapshots = []string{"", "daytona-small", "mine"}

func (s *Server) create(r *http.Request, owner string) (any, error) {
	var c creation
	if err := servicetest.Read(r, &c); err != nil {
		return nil, err
	}
	from, err := s.Snapshot(owner, c.Snapshot)
	switch {
	case err != nil && !slices.Contains(snapshots, c.Snapshot):
		return nil, servicetest.Fail(http.StatusNotFound, "Snapshot %s not found", c.Snapshot)
	case c.TTL < 0:
		return nil, servicetest.Fail(http.StatusBadRequest, "ttlMinutes must be a non-negative integer")
	}
	sandbox := servicetest.Sandbox{ID: newID(), Name: c.Name, Owner: owner, Labels: c.Labels, Request: c}
	if sandbox.Name == "" {
		sandbox.Name = sandbox.ID
	}
	if c.TTL > 0 {
		sandbox.Ends = time.Now().Add(time.Duration(c.TTL) * time.Minute)
	}
	b, err := s.Create(sandbox, from)
	if err != nil {
		return nil, err
	}
	return s.shown(r, s.Show(b)), nil
}

// shown is a sandbox as the service shows it.
func (s *Server) shown(r *http.Request, b servicetest.Sandbox) map[string]any {
	c, _ := b.Request.(creation)
	m := map[string]any{
		"id": b.ID, "organizationId": b.Owner, "name": b.Name, "state": b.Status, "desiredState": "started", "user": "daytona", "env": map[string]string{}, "labels": b.Labels,
		"public": false, "kvm": false, "networkBlockAll": c.BlockAll, "target": "us", "cpu": 1, "gpu": 0, "memory": 1, "disk": 3,
		"createdAt": b.Created.Format(time.RFC3339Nano), "toolboxProxyUrl": toolbox(r),
	}
	if b.Labels == nil {
		m["labels"] = map[string]string{}
	}
	for k, v := range map[string]string{"networkAllowList": c.Prefixes, "domainAllowList": c.Domains} {
		if v != "" {
			m[k] = v
		}
	}
	if !b.Ends.IsZero() {
		m["autoDestroyAt"] = b.Ends.UTC().Format(time.RFC3339)
	}
	return m
}

// list lists the sandboxes with some labels, a few per page.
func (s *Server) list(r *http.Request, owner string) (any, error) {
	q, labels := r.URL.Query(), map[string]string{}
	if text := q.Get("labels"); text != "" {
		if err := json.Unmarshal([]byte(text), &labels); err != nil {
			return nil, servicetest.Fail(http.StatusBadRequest, "invalid labels")
		}
	}
	all := slices.DeleteFunc(s.List(owner, labels), func(b servicetest.Sandbox) bool { return !strings.HasPrefix(b.Name, q.Get("name")) })
	page, next := servicetest.After(all, q.Get("cursor"), 3) // a client must follow the cursor
	items := []any{}
	for _, b := range page {
		items = append(items, s.shown(r, b))
	}
	return map[string]any{"items": items, "nextCursor": next}, nil
}

func (s *Server) label(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	var in struct{ Labels map[string]string }
	if err := servicetest.Read(r, &in); err != nil {
		return nil, err
	}
	s.Change(b, func(b *servicetest.Sandbox) { b.Labels = in.Labels })
	return map[string]any{"labels": in.Labels}, nil
}

func (s *Server) save(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	var in struct {
		Name   string `json:"name"`
		Memory bool   `json:"includeMemory"`
	}
	if err := servicetest.Read(r, &in); err != nil {
		return nil, err
	}
	if in.Name == "" || in.Memory {
		return nil, servicetest.Fail(http.StatusBadRequest, "containers save no memory, and the name is required")
	}
	_, err := s.Save(b, servicetest.Snapshot{ID: newID(), Name: in.Name})
	return s.shown(r, s.Show(b)), err
}

func shownSnapshot(m servicetest.Snapshot) map[string]any {
	state := "snapshotting"
	if m.Ready {
		state = "active"
	}
	return map[string]any{
		"id": m.ID, "organizationId": m.Owner, "general": false, "name": m.Name, "state": state, "size": float64(m.Size) / (1 << 30), "entrypoint": nil,
		"cpu": 1, "gpu": 0, "mem": 1, "disk": 3, "errorReason": nil, "createdAt": m.Created, "updatedAt": m.Created, "lastUsedAt": nil, "sourceSandboxId": nil,
	}
}

func (s *Server) withSnapshot(f func(*servicetest.Snapshot) (any, error)) func(*http.Request, string) (any, error) {
	return func(r *http.Request, owner string) (any, error) {
		m, err := s.Snapshot(owner, r.PathValue("snapshot"))
		if err != nil {
			return nil, servicetest.Fail(http.StatusNotFound, "Snapshot %s not found", r.PathValue("snapshot"))
		}
		return f(m)
	}
}

// listSnapshots lists snapshots whose name contains a text, two per page.
func (s *Server) listSnapshots(r *http.Request, owner string) (any, error) {
	const limit = 2
	page, items := 1, []any{}
	_, _ = fmt.Sscan(r.URL.Query().Get("page"), &page)
	all := slices.DeleteFunc(s.Snapshots(owner), func(m servicetest.Snapshot) bool { return !strings.Contains(m.Name, r.URL.Query().Get("name")) })
	for _, m := range all[min((page-1)*limit, len(all)):min(page*limit, len(all))] {
		items = append(items, shownSnapshot(m))
	}
	return map[string]any{"items": items, "total": len(all), "page": page, "totalPages": (len(all) + limit - 1) / limit}, nil
}

func newID() string {
	id := servicetest.NewID() + servicetest.NewID()
	return id[:8] + "-" + id[8:12] + "-" + id[12:16] + "-" + id[16:20] + "-" + id[20:32]
}
