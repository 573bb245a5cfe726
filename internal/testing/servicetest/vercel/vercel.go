// Package vercel is a fake of the service Vercel Sandbox. Its sandboxes are
// sandboxes of an Atoll provider. The official SDK for Python works with it, and
// so does Atoll's driver.
package vercel

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
)

// The access token that the service takes, and what it is for.
const (
	Token   = "vcp_0123456789abcdef"
	Team    = "team_1"
	Project = "prj_1"
)

// Server is the service. Make one with New.
type Server struct {
	*servicetest.Face

	mu       sync.Mutex
	sessions []*session
	kept     []kept
}

// session is one run of a sandbox. Commands are under the server's mutex.
type session struct {
	id       string
	sandbox  *servicetest.CloudSandbox
	timer    servicetest.Timer
	commands []*command
	dropped  bool // what the service saved of it was removed
}

// The words of the service.
const (
	running  = "running"
	stopped  = "stopped"
	stopping = "stopping"
	deleted  = "deleted"
)

// New returns a service. Its sandboxes are sandboxes of a provider.
func New(backing driver.Provider) *Server {
	s := &Server{
		Face: &servicetest.Face{
			Cloud: servicetest.NewCloud(backing, servicetest.Statuses{
				Starting: "pending", Running: running, Stopping: stopping, Stopped: stopped, Failed: "failed", Deleted: deleted,
			}),
			Format: func(_ *http.Request, f *servicetest.Failure) any {
				return map[string]any{"error": map[string]string{"code": f.Code, "message": f.Message}}
			},
			Denied: servicetest.Failure{Status: http.StatusForbidden, Message: "Not authorized"},
			Scope:  func(r *http.Request) string { return r.URL.Query().Get("teamId") },
		},
	}
	s.AddKey(Token, Team)
	s.Handle("POST /api/v3/sandboxes", s.create)
	s.Handle("GET /api/v2/sandboxes", s.list)
	s.Handle("GET /api/v2/sandboxes/{name}", s.withSandbox(s.get))
	s.Handle("PATCH /api/v2/sandboxes/{name}", s.withSandbox(s.patch))
	s.Handle("DELETE /api/v2/sandboxes/{name}", s.withSandbox(s.remove))
	s.snapshotRoutes()
	s.sessionRoutes()
	return s
}

// project checks that a request names the project.
func project(given string) error {
	if given != Project {
		return servicetest.Fail(http.StatusBadRequest, "Invalid project %q", given)
	}
	return nil
}

// withSandbox is a call about one sandbox.
func (s *Server) withSandbox(f func(r *http.Request, b *servicetest.CloudSandbox) (any, error)) func(*http.Request, string) (any, error) {
	return func(r *http.Request, owner string) (any, error) {
		if err := project(r.URL.Query().Get("projectId")); err != nil {
			return nil, err
		}
		b, err := s.Find(owner, r.PathValue("name"))
		if err != nil || s.Show(b).Status == deleted {
			return nil, servicetest.Fail(http.StatusNotFound, "Sandbox %s not found", r.PathValue("name"))
		}
		return f(r, b)
	}
}

// creation is the request for a new sandbox.
type creation struct {
	Project    string            `json:"projectId"`
	Name       string            `json:"name"`
	Image      string            `json:"image"`
	Source     *source           `json:"source"`
	Timeout    int64             `json:"timeout"`
	Persistent *bool             `json:"persistent"`
	Env        map[string]string `json:"env"`
	Tags       map[string]string `json:"tags"`
	Policy     *policy           `json:"networkPolicy"`
}

// policy is what the client asked for, in one of two forms.
type policy struct {
	Mode    string                       `json:"mode"`
	Allow   map[string][]json.RawMessage `json:"allow"`
	Subnets *struct {
		Allow []string `json:"allow"`
		Deny  []string `json:"deny"`
	} `json:"subnets"`
}

// shown is a policy as the service shows it: always with a mode.
func (p *policy) shown() map[string]any {
	switch {
	case p == nil:
		return map[string]any{"mode": "allow-all"}
	case p.Mode != "":
		return map[string]any{"mode": p.Mode}
	}
	m, domains := map[string]any{"mode": "custom"}, []string{}
	for name := range p.Allow {
		domains = append(domains, name)
	}
	slices.Sort(domains)
	m["allowedDomains"] = domains
	if p.Subnets != nil {
		m["allowedCIDRs"], m["deniedCIDRs"] = p.Subnets.Allow, p.Subnets.Deny
	}
	return m
}

// The limits of a request.
const (
	maxTags    = 5
	maxTimeout = 5 * time.Hour
)

func (s *Server) create(r *http.Request, owner string) (any, error) {
	var c creation
	if err := servicetest.Read(r, &c); err != nil {
		return nil, err
	}
	if err := project(c.Project); err != nil {
		return nil, err
	}
	if c.Timeout == 0 {
		c.Timeout = (5 * time.Minute).Milliseconds()
	}
	switch {
	case c.Image != "" && c.Image != "mine":
		return nil, servicetest.Fail(http.StatusBadRequest, "Image %s not found", c.Image)
	case c.Timeout < 1000 || c.Timeout > maxTimeout.Milliseconds():
		return nil, servicetest.Fail(http.StatusBadRequest, "timeout must be between 1000 and %d", maxTimeout.Milliseconds())
	case len(c.Tags) > maxTags:
		return nil, servicetest.Fail(http.StatusBadRequest, "there may be %d tags", maxTags)
	case c.Policy != nil && c.Policy.Mode != "" && c.Policy.Mode != "allow-all" && c.Policy.Mode != "deny-all":
		return nil, servicetest.Fail(http.StatusBadRequest, "Invalid network policy")
	}
	if c.Name == "" {
		c.Name = "box-" + servicetest.NewID()
	}
	from, err := s.from(owner, c)
	if err != nil {
		return nil, err
	}
	b, err := s.Create(servicetest.Sandbox{ID: servicetest.NewID(), Name: c.Name, Owner: owner, Labels: c.Tags, Request: c}, from)
	if err != nil {
		return nil, err
	}
	s.begin(b)
	return s.shown(b), nil
}

// begin begins a session of a sandbox.
func (s *Server) begin(b *servicetest.CloudSandbox) {
	one := &session{id: "sbx_" + servicetest.NewID(), sandbox: b}
	s.mu.Lock()
	s.sessions = append(s.sessions, one)
	s.mu.Unlock()
	c, _ := s.Show(b).Request.(creation)
	one.timer.Set(time.Duration(c.Timeout)*time.Millisecond, func() {
		if s.current(b) == one {
			_ = s.Stop(b)
		}
	})
}

// current returns the last session of a sandbox.
func (s *Server) current(b *servicetest.CloudSandbox) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range slices.Backward(s.sessions) {
		if one.sandbox == b {
			return one
		}
	}
	return nil
}

// shown is a sandbox with its session as the service shows them.
func (s *Server) shown(b *servicetest.CloudSandbox) map[string]any {
	one := s.current(b)
	m := map[string]any{"sandbox": s.summary(b), "routes": []any{}}
	if one != nil {
		m["session"] = s.shownSession(one)
	}
	return m
}

func (s *Server) summary(b *servicetest.CloudSandbox) map[string]any {
	now, id := s.Show(b), ""
	c, _ := now.Request.(creation)
	if one := s.current(b); one != nil {
		id = one.id
	}
	tags := now.Labels
	if tags == nil {
		tags = map[string]string{}
	}
	return map[string]any{
		"name": now.Name, "currentSessionId": id, "status": now.Status, "persistent": c.Persistent == nil || *c.Persistent, "projectId": c.Project, "cwd": "/vercel/sandbox",
		"region": "iad1", "memory": 4096, "vcpus": 2, "timeout": c.Timeout, "networkPolicy": c.Policy.shown(), "createdAt": now.Created.UnixMilli(),
		"updatedAt": now.Created.UnixMilli(), "tags": tags,
	}
}

func (s *Server) shownSession(one *session) map[string]any {
	now := s.Show(one.sandbox)
	c, _ := now.Request.(creation)
	status := now.Status
	if s.current(one.sandbox) != one {
		status = stopped
	}
	return map[string]any{
		"id": one.id, "sourceSandboxName": now.Name, "projectId": c.Project, "status": status, "cwd": "/vercel/sandbox", "region": "iad1", "memory": 4096, "vcpus": 2,
		"timeout": c.Timeout, "networkPolicy": c.Policy.shown(), "requestedAt": now.Created.UnixMilli(), "startedAt": now.Created.UnixMilli(),
	}
}

// get shows a sandbox. With resume it also starts one that is stopped.
func (s *Server) get(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	if r.URL.Query().Get("resume") == "true" {
		switch s.Show(b).Status {
		case stopped:
			if err := s.Start(b); err != nil {
				return nil, err
			}
			s.begin(b)
		case stopping:
			return nil, servicetest.FailAs(http.StatusUnprocessableEntity, "sandbox_stopping", "Sandbox is stopping")
		}
	}
	return s.shown(b), nil
}

func (s *Server) patch(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	var in struct {
		Tags map[string]string `json:"tags"`
	}
	if err := servicetest.Read(r, &in); err != nil {
		return nil, err
	}
	if in.Tags != nil {
		s.Change(b, func(b *servicetest.Sandbox) { b.Labels = in.Tags })
	}
	return map[string]any{"sandbox": s.summary(b)}, nil
}

// list lists the sandboxes with a tag, a few per page.
func (s *Server) list(r *http.Request, owner string) (any, error) {
	q, labels := r.URL.Query(), map[string]string{}
	if err := project(q.Get("project")); err != nil {
		return nil, err
	}
	if key, value, ok := strings.Cut(q.Get("tags"), ":"); ok {
		labels[key] = value
	}
	all := slices.DeleteFunc(s.List(owner, labels), func(b servicetest.Sandbox) bool { return !strings.HasPrefix(b.Name, q.Get("namePrefix")) })
	page, next := servicetest.After(all, q.Get("cursor"), 3) // a client must follow the cursor
	items := []any{}
	for _, b := range page {
		if one, err := s.Find(owner, b.ID); err == nil {
			items = append(items, s.summary(one))
		}
	}
	return map[string]any{"sandboxes": items, "pagination": map[string]any{"count": len(items), "next": next, "prev": nil}}, nil
}
