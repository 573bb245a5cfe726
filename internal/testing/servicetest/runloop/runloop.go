// Package runloop is a fake of the service Runloop. Its sandboxes, which it calls
// devboxes, are sandboxes of an Atoll provider. The official SDK for Python works
// with it, and so does Atoll's driver.
package runloop

import (
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
const Key = "ak_0123456789abcdef"

// Server is the service. Make one with New.
type Server struct {
	*servicetest.Face

	mu       sync.Mutex
	policies []policy
	commands []*command
	ids      []string // of all sandboxes, also of those that have ended
}

// The words of the service.
const (
	running   = "running"
	suspended = "suspended"
	shutdown  = "shutdown"
)

// New returns a service. Its sandboxes are sandboxes of a provider.
func New(backing driver.Provider) *Server {
	s := &Server{
		Face: &servicetest.Face{
			Cloud: servicetest.NewCloud(backing, servicetest.Statuses{
				Starting: "provisioning", Running: running, Stopping: "suspending", Stopped: suspended, Failed: "failure", Deleted: shutdown,
			}),
			Format: func(_ *http.Request, f *servicetest.Failure) any {
				return map[string]string{"code": f.Code, "message": f.Message}
			},
			Denied: servicetest.Failure{Status: http.StatusUnauthorized, Message: "Invalid API key"},
		},
	}
	s.AddKey(Key, "org-1")
	show := func(f func(b *servicetest.CloudSandbox) error) func(*http.Request, *servicetest.CloudSandbox) (any, error) {
		return func(_ *http.Request, b *servicetest.CloudSandbox) (any, error) {
			err := f(b)
			return shown(s.Show(b)), err
		}
	}
	s.Handle("POST /v1/devboxes", s.create)
	s.Handle("GET /v1/devboxes", s.list)
	s.Handle("GET /v1/devboxes/{sandbox}", s.withSandbox(show(func(*servicetest.CloudSandbox) error { return nil })))
	s.Handle("POST /v1/devboxes/{sandbox}", s.withSandbox(s.change))
	s.Handle("POST /v1/devboxes/{sandbox}/suspend", s.withSandbox(show(s.Stop)))
	s.Handle("POST /v1/devboxes/{sandbox}/resume", s.withSandbox(show(s.Start)))
	s.Handle("POST /v1/devboxes/{sandbox}/shutdown", s.withSandbox(show(s.Delete)))
	s.Handle("POST /v1/network-policies", s.createPolicy)
	s.Handle("GET /v1/network-policies", s.listPolicies)
	s.snapshotRoutes()
	s.commandRoutes()
	return s
}

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

// sandbox finds the sandbox in a request. One that has ended is still shown.
func (s *Server) sandbox(r *http.Request, owner string) (*servicetest.CloudSandbox, error) {
	b, err := s.Find(owner, r.PathValue("sandbox"))
	if err != nil {
		return nil, servicetest.Fail(http.StatusNotFound, "Devbox %s not found", r.PathValue("sandbox"))
	}
	if s.Show(b).Status == shutdown && r.Method != http.MethodGet {
		return nil, servicetest.Fail(http.StatusBadRequest, "Devbox %s is shut down", r.PathValue("sandbox"))
	}
	return b, nil
}

// creation is the request for a new sandbox.
type creation struct {
	Name      string            `json:"name"`
	Blueprint string            `json:"blueprint_name"`
	Snapshot  string            `json:"snapshot_id"`
	Env       map[string]string `json:"environment_variables"`
	Metadata  map[string]string `json:"metadata"`
	Launch    launch            `json:"launch_parameters"`
}

type launch struct {
	KeepAlive int64  `json:"keep_alive_time_seconds"`
	Policy    string `json:"network_policy_id,omitempty"`
}

// maxAlive is how long a sandbox may live, in seconds.
const maxAlive = 172_800

func (s *Server) create(r *http.Request, owner string) (any, error) {
	var c creation
	if err := servicetest.Read(r, &c); err != nil {
		return nil, err
	}
	if c.Launch.KeepAlive == 0 {
		c.Launch.KeepAlive = 3600
	}
	switch {
	case c.Blueprint != "" && c.Blueprint != "mine":
		return nil, servicetest.Fail(http.StatusBadRequest, "Blueprint %s not found", c.Blueprint)
	case c.Launch.KeepAlive < 0 || c.Launch.KeepAlive > maxAlive:
		return nil, servicetest.Fail(http.StatusBadRequest, "keep_alive_time_seconds must be at most %d", maxAlive)
	case c.Launch.Policy != "" && !s.hasPolicy(owner, c.Launch.Policy):
		return nil, servicetest.Fail(http.StatusBadRequest, "Network policy %s not found", c.Launch.Policy)
	}
	var from *servicetest.Snapshot
	if c.Snapshot != "" {
		var err error
		if from, err = s.Snapshot(owner, c.Snapshot); err != nil || !from.Ready || c.Blueprint != "" {
			return nil, servicetest.Fail(http.StatusBadRequest, "Snapshot %s not found", c.Snapshot)
		}
	}
	id := "dbx" + servicetest.NewID()
	b, err := s.Create(servicetest.Sandbox{
		ID: id, Name: id, Owner: owner, Labels: c.Metadata, Request: c, Ends: time.Now().Add(time.Duration(c.Launch.KeepAlive) * time.Second),
	}, from)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.ids = append(s.ids, id)
	s.mu.Unlock()
	return shown(s.Show(b)), nil
}

// shown is a sandbox as the service shows it.
func shown(b servicetest.Sandbox) map[string]any {
	c, _ := b.Request.(creation)
	metadata := b.Labels
	if metadata == nil {
		metadata = map[string]string{}
	}
	return map[string]any{
		"id": b.ID, "name": c.Name, "status": b.Status, "capabilities": []any{}, "create_time_ms": b.Created.UnixMilli(), "launch_parameters": c.Launch,
		"metadata": metadata, "snapshot_id": c.Snapshot, "state_transitions": []any{},
	}
}

// list lists all sandboxes, also those that have ended, a few per page.
func (s *Server) list(r *http.Request, owner string) (any, error) {
	q, limit := r.URL.Query(), 3
	_, _ = fmt.Sscan(q.Get("limit"), &limit)
	limit = min(limit, 3) // a client must ask for more
	s.mu.Lock()
	ids := slices.Clone(s.ids)
	s.mu.Unlock()
	slices.Reverse(ids) // the newest first
	if i := slices.Index(ids, q.Get("starting_after")); i >= 0 {
		ids = ids[i+1:]
	}
	items, more := []any{}, false
	for _, id := range ids {
		b, err := s.Find(owner, id)
		if err != nil {
			continue
		}
		now := s.Show(b)
		if want := q.Get("status"); want != "" && want != now.Status {
			continue
		}
		if more = len(items) == limit; more {
			break
		}
		items = append(items, shown(now))
	}
	return map[string]any{"devboxes": items, "has_more": more}, nil
}

func (s *Server) change(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	var in struct {
		Metadata map[string]string `json:"metadata"`
	}
	if err := servicetest.Read(r, &in); err != nil {
		return nil, err
	}
	if in.Metadata != nil {
		s.Change(b, func(b *servicetest.Sandbox) { b.Labels = in.Metadata })
	}
	return shown(s.Show(b)), nil
}

// policy is a network policy.
type policy struct {
	owner   string
	ID      string `json:"id"`
	Name    string `json:"name"`
	Egress  egress `json:"egress"`
	Created int64  `json:"create_time_ms"`
	Updated int64  `json:"update_time_ms"`
}

type egress struct {
	All       bool     `json:"allow_all"`
	Names     []string `json:"allowed_hostnames"`
	CIDRs     []any    `json:"allowed_cidrs"`
	Sandboxes bool     `json:"allow_devbox_to_devbox"`
	Mirrors   bool     `json:"allow_runloop_mirrors"`
	Gateway   bool     `json:"allow_agent_gateway"`
	MCP       bool     `json:"allow_mcp_gateway"`
}

func (s *Server) hasPolicy(owner, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.policies, func(p policy) bool { return p.owner == owner && p.ID == id })
}

// Policies returns the names of all network policies.
func (s *Server) Policies() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.policies {
		names = append(names, p.Name)
	}
	return names
}

func (s *Server) createPolicy(r *http.Request, owner string) (any, error) {
	in := struct {
		Name string `json:"name"`
		egress
	}{}
	if err := servicetest.Read(r, &in); err != nil {
		return nil, err
	}
	if in.Names == nil {
		in.Names = []string{}
	}
	if in.CIDRs == nil {
		in.CIDRs = []any{}
	}
	now := time.Now().UnixMilli()
	p := policy{owner: owner, ID: "npo_" + servicetest.NewID(), Name: in.Name, Egress: in.egress, Created: now, Updated: now}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policies = append(s.policies, p)
	return p, nil
}

func (s *Server) listPolicies(r *http.Request, owner string) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []policy{}
	for _, p := range s.policies {
		if p.owner == owner && strings.Contains(p.Name, r.URL.Query().Get("name")) {
			items = append(items, p)
		}
	}
	return map[string]any{"network_policies": items, "has_more": false}, nil
}
