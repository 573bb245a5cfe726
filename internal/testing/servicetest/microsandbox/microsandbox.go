// Package microsandbox is a fake of the cloud of microsandbox. Its sandboxes are
// sandboxes of an Atoll provider. The official SDK for Python works with it, and
// so does Atoll's driver.
package microsandbox

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
)

// Key is the API key that the service takes.
const Key = "msb_0123456789abcdef"

// Server is the service. Make one with New.
type Server struct {
	*servicetest.Face
	commands atomic.Int64 // that run

	mu         sync.Mutex
	operations []*operation
	kept       map[string]kept // by the ID of a snapshot
}

// The words of the service.
const (
	running = "running"
	stopped = "stopped"
	removed = "removed"
)

// New returns a service. Its sandboxes are sandboxes of a provider.
func New(backing driver.Provider) *Server {
	s := &Server{
		kept: map[string]kept{},
		Face: &servicetest.Face{
			Cloud: servicetest.NewCloud(backing, servicetest.Statuses{
				Starting: "starting", Running: running, Stopping: "stopping", Stopped: stopped, Failed: "failed", Deleted: removed,
			}),
			Format: func(_ *http.Request, f *servicetest.Failure) any {
				return map[string]any{"error": map[string]string{"code": f.Code, "message": f.Message}}
			},
			Denied: servicetest.Failure{Status: http.StatusUnauthorized, Message: "Invalid API key"},
		},
	}
	s.AddKey(Key, "00000000-0000-4000-8000-000000000001")
	s.Handle("POST /v1/sandboxes", s.create)
	s.Handle("GET /v1/sandboxes", func(r *http.Request, owner string) (any, error) {
		return page(r, s.List(owner, nil), func(b servicetest.Sandbox) string { return b.ID }, func(b servicetest.Sandbox) any { return shown(b) }), nil
	})
	const one = "/v1/sandboxes/{sandbox}"
	show := func(f func(b *servicetest.CloudSandbox) error) func(*http.Request, string) (any, error) {
		return s.withSandbox(func(_ *http.Request, b *servicetest.CloudSandbox) (any, error) {
			err := f(b)
			return shown(s.Show(b)), err
		})
	}
	s.Handle("GET "+one, show(func(*servicetest.CloudSandbox) error { return nil }))
	s.Handle("POST "+one+"/start", show(s.Start))
	s.Handle("POST "+one+"/stop", show(s.Stop))
	s.Handle("DELETE "+one, s.withSandbox(func(_ *http.Request, b *servicetest.CloudSandbox) (any, error) {
		return map[string]string{"message": "Sandbox removed"}, s.Delete(b)
	}))
	s.HandleFunc("GET "+one+"/agent", s.agent)
	s.snapshotRoutes()
	return s
}

// ServeHTTP serves the API. A request that names what it is about is served as one
// with an ID, with a header that says so.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.Header.Del(nameHeader)
	for _, all := range []string{"/v1/sandboxes/", "/v1/snapshots/"} {
		if name, ok := strings.CutPrefix(r.URL.Path, all+"by-name/"); ok {
			r.URL.Path = all + name
			r.Header.Set(nameHeader, "yes")
		}
	}
	s.Face.ServeHTTP(w, r)
}

const nameHeader = "X-By-Name"

// Commands returns how many commands run.
func (s *Server) Commands() int { return int(s.commands.Load()) }

// withSandbox is a call about one sandbox.
func (s *Server) withSandbox(f func(r *http.Request, b *servicetest.CloudSandbox) (any, error)) func(*http.Request, string) (any, error) {
	return func(r *http.Request, owner string) (any, error) {
		text := r.PathValue("sandbox")
		b, err := s.Find(owner, text)
		if err != nil || s.Show(b).Status == removed || (s.Show(b).ID == text) == (r.Header.Get(nameHeader) != "") {
			return nil, notFound(text)
		}
		return f(r, b)
	}
}

func notFound(id string) error {
	return servicetest.FailAs(http.StatusNotFound, "sandbox_not_found", "Sandbox %s not found", id)
}

// creation is the request for a new sandbox.
type creation struct {
	Source string            `json:"source"`
	Name   string            `json:"name"`
	Image  string            `json:"reference"`
	Labels map[string]string `json:"labels"`
	Env    []struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	} `json:"env"`
	Snapshot *struct {
		Type string `json:"type"`
		ID   string `json:"id"`
	} `json:"disk_snapshot_ref"`
	Network   any            `json:"network"`
	Resources map[string]any `json:"resources"`
	Lifecycle map[string]any `json:"lifecycle"`
}

func (s *Server) create(r *http.Request, owner string) (any, error) {
	var c creation
	if err := servicetest.Read(r, &c); err != nil {
		return nil, err
	}
	var from *servicetest.Snapshot
	if c.Source == "disk_snapshot" && c.Snapshot != nil && c.Snapshot.Type == "managed" && c.Image == "" && c.Resources["disk_size_mib"] == nil {
		var err error
		if from, err = s.Snapshot(owner, c.Snapshot.ID); err != nil {
			return nil, servicetest.FailAs(http.StatusNotFound, "snapshot_not_found", "Snapshot %s not found", c.Snapshot.ID)
		}
	}
	if from == nil && (c.Source != "oci" || c.Image == "") || c.Name == "" || len(c.Name) > 128 || r.URL.Query().Get("start") != "true" {
		return nil, servicetest.FailAs(http.StatusBadRequest, "invalid_sandbox_config", "the sandbox needs a name, an image or a snapshot, and to be started")
	}
	id := servicetest.NewID()
	sandbox := servicetest.Sandbox{ID: id[:8] + "-0000-4000-8000-" + id[8:], Name: c.Name, Owner: owner, Labels: c.Labels, Request: c}
	seconds, _ := c.Lifecycle["max_duration_secs"].(float64)
	b, err := s.Create(sandbox, from)
	if err == servicetest.ErrTaken {
		err = servicetest.FailAs(http.StatusConflict, "name_already_exists", "Sandbox %s already exists", c.Name)
	}
	if err != nil {
		return nil, err
	}
	if seconds > 0 { // then it is stopped
		time.AfterFunc(time.Duration(seconds)*time.Second, func() { _ = s.Stop(b) })
	}
	return shown(s.Show(b)), nil
}

// shown is a sandbox as the service shows it.
func shown(b servicetest.Sandbox) map[string]any {
	c, _ := b.Request.(creation)
	ephemeral, _ := c.Lifecycle["ephemeral"].(bool)
	return map[string]any{
		"id": b.ID, "org_id": b.Owner, "name": b.Name, "slug": "slug-" + b.ID[:8], "status": b.Status, "ephemeral": ephemeral,
		"created_at": b.Created.Format(time.RFC3339Nano), "started_at": nil, "stopped_at": nil,
		"spec": map[string]any{"image": c.Image, "resources": c.Resources, "network": c.Network, "lifecycle": c.Lifecycle, "labels": b.Labels},
	}
}
