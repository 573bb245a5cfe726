package superserve

import (
	"cmp"
	"crypto/rand"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/testing/servicetest"
)

func (s *Server) resourceRoutes() {
	s.Handle("GET /sandboxes/{id}/preview-ports", s.withSandbox(s.listPorts))
	s.Handle("POST /sandboxes/{id}/preview-ports", s.withSandbox(s.publish))
	s.Handle("DELETE /sandboxes/{id}/preview-ports/{port}", s.withPort(unpublish))
	s.Handle("POST /sandboxes/{id}/preview-ports/{port}/token", s.withPort(portToken))
	s.Handle("POST /sandboxes/{id}/snapshot", s.withSandbox(s.capture))
	s.Handle("GET /sandboxes/{id}/snapshots", s.snapshotsOf)
	s.Handle("GET /snapshots/{id}", s.withSnapshot(func(m *servicetest.Snapshot) (any, error) { return shownSnapshot(m), nil }))
	s.Handle("DELETE /snapshots/{id}", s.withSnapshot(func(m *servicetest.Snapshot) (any, error) {
		return servicetest.Reply{Status: http.StatusNoContent}, s.Forget(m)
	}))
	s.Handle("POST /templates", s.createTemplate)
	s.Handle("GET /templates/{id}", s.getTemplate)
	s.Handle("GET /templates/{id}/builds/{build}", s.getTemplate)
	s.Handle("DELETE /templates/{id}", s.deleteTemplate)
	s.Handle("POST /secrets", s.createSecret)
}

// capture is the request for a snapshot, and its sandbox. The cloud has its key as
// a name: the same key is the same snapshot.
type capture struct {
	Kind    string `json:"kind"`
	Key     string `json:"idempotency_key"`
	Name    string `json:"name"`
	sandbox string
}

func shownSnapshot(m *servicetest.Snapshot) map[string]any {
	c, _ := m.Request.(capture)
	shown := map[string]any{
		"id": m.ID, "sandbox_id": c.sandbox, "kind": c.Kind, "status": "creating", "name": c.Name, "size_bytes": m.Size, "created_at": m.Created,
	}
	if m.Ready {
		shown["status"], shown["ready_at"] = "ready", m.Created
	}
	return shown
}

func (s *Server) capture(r *http.Request, b *serviceSandbox) (any, error) {
	var c capture
	if err := servicetest.ReadStrictly(r, &c); err != nil {
		return nil, err
	}
	if c.Kind != "mem+fs" || c.Key == "" {
		return nil, servicetest.Fail(http.StatusBadRequest, "kind and idempotency_key are required")
	}
	now := s.Show(b.CloudSandbox)
	c.sandbox = now.Name
	m, err := s.Snapshot(now.Owner, c.Key)
	if err != nil {
		if _, err = s.Save(b.CloudSandbox, servicetest.Snapshot{ID: servicetest.UUID(), Name: c.Key, Request: c}); err == nil {
			m, err = s.Snapshot(now.Owner, c.Key)
		}
	}
	if err != nil {
		return nil, err
	}
	return servicetest.Reply{Status: http.StatusAccepted, Body: shownSnapshot(m)}, nil
}

func (s *Server) snapshotsOf(r *http.Request, team string) (any, error) {
	all := []map[string]any{}
	for _, m := range slices.Backward(s.Snapshots(team)) {
		if one := shownSnapshot(&m); one["sandbox_id"] == r.PathValue("id") {
			all = append(all, one)
		}
	}
	return servicetest.Page(r, 100, all), nil
}

func (s *Server) withSnapshot(f func(*servicetest.Snapshot) (any, error)) func(*http.Request, string) (any, error) {
	return func(r *http.Request, team string) (any, error) {
		m, err := s.Snapshot(team, r.PathValue("id"))
		if err != nil {
			return nil, notFound("snapshot", r.PathValue("id"))
		}
		return f(m)
	}
}

// published is a port that the preview hosts serve.
type published struct {
	Port    int                  `json:"port"`
	Version int                  `json:"token_version"`
	Access  string               `json:"access"`
	tokens  map[string]time.Time // and when they end
}

func (s *Server) listPorts(_ *http.Request, b *serviceSandbox) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ports := []published{}
	for _, p := range b.ports {
		ports = append(ports, *p)
	}
	return map[string]any{"preview_access": b.Preview, "ports": ports}, nil
}

func (s *Server) publish(r *http.Request, b *serviceSandbox) (any, error) {
	var c published
	if err := servicetest.ReadStrictly(r, &c); err != nil {
		return nil, err
	}
	if c.Port < 1024 || c.Port > 65535 || c.Port == 49983 {
		return nil, invalid("port")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.ports[c.Port] == nil {
		b.ports[c.Port] = &published{Port: c.Port, Version: 1, Access: strings.TrimPrefix(b.Preview, "legacy_"), tokens: map[string]time.Time{}}
	}
	p := b.ports[c.Port]
	p.Access = cmp.Or(c.Access, p.Access)
	return *p, nil
}

// withPort is a call about a published port, with the mutex held.
func (s *Server) withPort(f func(r *http.Request, b *serviceSandbox, p *published) (any, error)) func(*http.Request, string) (any, error) {
	return s.withSandbox(func(r *http.Request, b *serviceSandbox) (any, error) {
		n, _ := strconv.Atoi(r.PathValue("port"))
		s.mu.Lock()
		defer s.mu.Unlock()
		if p := b.ports[n]; p != nil {
			return f(r, b, p)
		}
		return nil, notFound("port", r.PathValue("port"))
	})
}

func unpublish(_ *http.Request, b *serviceSandbox, p *published) (any, error) {
	delete(b.ports, p.Port)
	return servicetest.Reply{Status: http.StatusNoContent}, nil
}

func portToken(r *http.Request, b *serviceSandbox, p *published) (any, error) {
	c := struct {
		Life int64 `json:"expires_in_seconds"`
	}{7 * day}
	if r.ContentLength != 0 {
		if err := servicetest.ReadStrictly(r, &c); err != nil {
			return nil, err
		}
	}
	if c.Life < 1 || c.Life > 7*day {
		return nil, invalid("expires_in_seconds")
	}
	token, ends := "pv_"+rand.Text(), time.Now().Add(time.Duration(c.Life)*time.Second)
	p.tokens[token] = ends
	return map[string]any{
		"token": token, "port": p.Port, "header": "X-Superserve-Preview-Token", "query_param": "superserve_token", "token_version": p.Version,
		"access": p.Access, "preview_access": b.Preview, "expires_at": ends,
	}, nil
}

// preview serves a port of a sandbox at its own name.
func (s *Server) preview(w http.ResponseWriter, r *http.Request, port, id string) {
	n, _ := strconv.Atoi(port)
	token := cmp.Or(r.Header.Get("X-Superserve-Preview-Token"), r.URL.Query().Get("superserve_token"))
	b := s.sandbox(id)
	if b == nil {
		http.NotFound(w, r)
		return
	}
	in, _, err := s.Machine(b.CloudSandbox)
	s.mu.Lock()
	p := b.ports[n]
	allowed := p != nil && (p.Access == "public" || time.Now().Before(p.tokens[token]))
	s.mu.Unlock()
	switch {
	case err != nil || p == nil:
		http.NotFound(w, r)
	case !allowed:
		http.Error(w, "preview token required", http.StatusUnauthorized)
	default:
		if err := servicetest.Forward(w, r, in, uint16(n)); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	}
}

func (s *Server) hasTemplate(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.templates, name)
}

// getTemplate shows a template, or its build. All are the same here.
func (s *Server) getTemplate(r *http.Request, team string) (any, error) {
	name := r.PathValue("id")
	if !s.hasTemplate(name) {
		return nil, notFound("template", name)
	}
	return map[string]any{
		"id": name, "name": name, "team_id": team, "template_id": name, "build_id": "b-1", "status": "ready", "vcpu": 1, "memory_mib": 1024, "disk_mib": 4096,
		"build_spec_hash": "0", "created_at": time.Now().UTC(),
	}, nil
}

func (s *Server) createTemplate(r *http.Request, team string) (any, error) {
	var c struct {
		Name string         `json:"name"`
		Spec map[string]any `json:"build_spec"`
	}
	if err := servicetest.Read(r, &c); err != nil {
		return nil, err
	}
	if c.Name == "" || c.Spec["from"] == nil {
		return nil, invalid("name or build_spec.from")
	}
	s.mu.Lock()
	s.templates = append(s.templates, c.Name)
	s.mu.Unlock()
	r.SetPathValue("id", c.Name)
	return s.getTemplate(r, team)
}

func (s *Server) deleteTemplate(r *http.Request, team string) (any, error) {
	_, err := s.getTemplate(r, team)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.templates = slices.DeleteFunc(s.templates, func(name string) bool { return name == r.PathValue("id") })
	return servicetest.Reply{Status: http.StatusNoContent}, err
}

func (s *Server) createSecret(r *http.Request, team string) (any, error) {
	var c struct{ Name, Value string }
	if err := servicetest.Read(r, &c); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.secrets[c.Name] != "" {
		return nil, servicetest.Fail(http.StatusConflict, "secret exists")
	}
	s.secrets[c.Name] = team
	return servicetest.Reply{Status: http.StatusCreated, Body: map[string]any{
		"id": servicetest.UUID(), "name": c.Name, "auth_type": "bearer", "hosts": []string{}, "created_at": time.Now().UTC(),
	}}, nil
}
