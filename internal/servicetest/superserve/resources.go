package superserve

import (
	"cmp"
	"context"
	"crypto/rand"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
)

func (s *Server) controlPlane() http.Handler {
	mux := http.NewServeMux()
	s.handle(mux, "POST /sandboxes", s.create)
	s.handle(mux, "GET /sandboxes", s.list)
	s.handle(mux, "GET /sandboxes/{id}", s.withBox(func(_ *http.Request, b *box) (int, any, error) { return http.StatusOK, s.shown(b), nil }))
	s.handle(mux, "PATCH /sandboxes/{id}", s.withBox(s.patch))
	s.handle(mux, "DELETE /sandboxes/{id}", s.withBox(s.deleteCall))
	s.handle(mux, "POST /sandboxes/{id}/activate", s.withBox(s.activate))
	s.handle(mux, "POST /sandboxes/{id}/pause", s.withBox(s.pauseCall))
	s.handle(mux, "POST /sandboxes/{id}/resume", s.withBox(s.resume))
	s.handle(mux, "GET /sandboxes/{id}/network", s.withBox(func(*http.Request, *box) (int, any, error) {
		return http.StatusOK, map[string]any{"entries": []any{}}, nil
	}))
	s.handle(mux, "POST /sandboxes/{id}/secrets", s.withBox(s.attachSecret))
	s.handle(mux, "DELETE /sandboxes/{id}/secrets/{env}", s.withBox(s.detachSecret))
	s.handle(mux, "GET /sandboxes/{id}/preview-ports", s.withBox(s.listPorts))
	s.handle(mux, "POST /sandboxes/{id}/preview-ports", s.withBox(s.publish))
	s.handle(mux, "DELETE /sandboxes/{id}/preview-ports/{port}", s.withBox(s.unpublish))
	s.handle(mux, "POST /sandboxes/{id}/preview-ports/{port}/token", s.withBox(s.portToken))
	s.handle(mux, "POST /sandboxes/{id}/preview-ports/{port}/token/rotate", s.withBox(s.rotatePort))
	s.handle(mux, "POST /sandboxes/{id}/snapshot", s.withBox(s.capture))
	s.handle(mux, "GET /sandboxes/{id}/snapshots", s.snapshotsOf)
	s.handle(mux, "GET /snapshots/{id}", s.withSnapshot(func(_ *http.Request, sn *snapshot) (int, any, error) { return http.StatusOK, s.copyOf(sn), nil }))
	s.handle(mux, "DELETE /snapshots/{id}", s.withSnapshot(s.deleteSnapshot))
	s.handle(mux, "POST /templates", s.createTemplate)
	s.handle(mux, "GET /templates", s.listTemplates)
	s.handle(mux, "GET /templates/{id}", s.withTemplate(func(_ *http.Request, t *template) (int, any, error) { return http.StatusOK, t, nil }))
	s.handle(mux, "DELETE /templates/{id}", s.withTemplate(s.deleteTemplate))
	s.handle(mux, "GET /templates/{id}/builds/{build}", s.withTemplate(s.build))
	s.handle(mux, "POST /secrets", s.createSecret)
	s.handle(mux, "GET /secrets", s.listSecrets)
	s.handle(mux, "DELETE /secrets/{name}", s.deleteSecret)
	return mux
}

// snapshot holds the memory and the files of a sandbox.
type snapshot struct {
	ID      string     `json:"id"`
	Box     string     `json:"sandbox_id"`
	Kind    string     `json:"kind"`
	Status  string     `json:"status"`
	Name    string     `json:"name,omitempty"`
	Size    int64      `json:"size_bytes"`
	Created time.Time  `json:"created_at"`
	Ready   *time.Time `json:"ready_at,omitempty"`

	team, key string
	ref       driver.SnapshotRef
}

func (s *Server) copyOf(sn *snapshot) snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *sn
}

// capture takes a snapshot. The same key is the same snapshot. It answers 202
// when it takes a while.
func (s *Server) capture(r *http.Request, b *box) (int, any, error) {
	var c struct {
		Kind string `json:"kind"`
		Key  string `json:"idempotency_key"`
		Name string `json:"name"`
	}
	if err := read(r, &c); err != nil {
		return 0, nil, err
	}
	if c.Kind != "mem+fs" || c.Key == "" {
		return 0, nil, fail(http.StatusBadRequest, "validation_error", "kind and idempotency_key are required")
	}
	if status := s.shown(b).Status; status != Active && status != Paused {
		return 0, nil, conflict("conflict", "sandbox is "+status)
	}
	s.mu.Lock()
	for _, sn := range s.snapshots {
		if sn.key == c.Key && sn.team == b.team && sn.Status != "deleting" {
			found := *sn
			s.mu.Unlock()
			return http.StatusOK, found, nil
		}
	}
	sn := &snapshot{ID: newID(), Box: b.ID, Kind: c.Kind, Status: "creating", Name: c.Name, Created: time.Now().UTC(), team: b.team, key: c.Key}
	s.snapshots[sn.ID] = sn
	slow := s.takes > 0
	s.mu.Unlock()
	ctx := context.WithoutCancel(r.Context())
	if !slow {
		err := s.take(ctx, b, sn)
		return http.StatusCreated, s.copyOf(sn), err
	}
	s.work.Go(func() { _ = s.take(ctx, b, sn) })
	return http.StatusAccepted, s.copyOf(sn), nil
}

func (s *Server) take(ctx context.Context, b *box, sn *snapshot) error {
	s.transition()
	status, now := "failed", time.Now().UTC()
	var saved driver.Snapshot
	err := error(fail(http.StatusNotImplemented, "unsupported", "no snapshots"))
	if shot, ok := driver.As[driver.Snapshotter](b.in); ok {
		if saved, err = shot.Snapshot(ctx, driver.SnapshotOptions{ID: "ss-" + sn.ID[:8], Memory: true}); err == nil {
			status = "ready"
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sn.Status, sn.ref, sn.Size, sn.Ready = status, saved.Ref, saved.Size, &now
	return err
}

func (s *Server) snapshotsOf(r *http.Request, team string) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []snapshot{}
	for _, sn := range s.snapshots {
		if sn.Box == r.PathValue("id") && sn.team == team {
			all = append(all, *sn)
		}
	}
	slices.SortFunc(all, func(a, b snapshot) int { return b.Created.Compare(a.Created) })
	offset, _ := strconv.Atoi(r.URL.Query().Get("offset"))
	all = all[min(offset, len(all)):]
	if limit, err := strconv.Atoi(r.URL.Query().Get("limit")); err == nil {
		all = all[:min(limit, len(all))]
	}
	return http.StatusOK, all, nil
}

func (s *Server) withSnapshot(f func(*http.Request, *snapshot) (int, any, error)) call {
	return func(r *http.Request, team string) (int, any, error) {
		s.mu.Lock()
		sn := s.snapshots[r.PathValue("id")]
		s.mu.Unlock()
		if sn == nil || sn.team != team {
			return 0, nil, notFound("snapshot", r.PathValue("id"))
		}
		return f(r, sn)
	}
}

func (s *Server) deleteSnapshot(r *http.Request, sn *snapshot) (int, any, error) {
	if keeper, ok := driver.As[driver.SnapshotKeeper](s.backing); ok && sn.ref.Data != "" {
		if err := keeper.RemoveSnapshot(context.WithoutCancel(r.Context()), sn.ref); err != nil {
			return 0, nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.snapshots, sn.ID)
	return http.StatusNoContent, nil, nil
}

// Snapshots returns how many snapshots there are.
func (s *Server) Snapshots() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.snapshots)
}

// published is a port that the preview hosts serve.
type published struct {
	Port    int                  `json:"port"`
	Version int                  `json:"token_version"`
	Access  string               `json:"access"`
	tokens  map[string]time.Time // and when they end
}

func (s *Server) listPorts(_ *http.Request, b *box) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return http.StatusOK, map[string]any{"preview_access": b.Preview, "ports": slices.Collect(maps.Values(b.ports))}, nil
}

func (s *Server) publish(r *http.Request, b *box) (int, any, error) {
	var c struct {
		Port   int    `json:"port"`
		Access string `json:"access"`
	}
	if err := read(r, &c); err != nil {
		return 0, nil, err
	}
	if c.Port < 1024 || c.Port > 65535 || c.Port == 49983 {
		return 0, nil, fail(http.StatusBadRequest, "validation_error", "port is invalid")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := b.ports[c.Port]
	if p == nil {
		p = &published{Port: c.Port, Version: 1, Access: cmp.Or(c.Access, strings.TrimPrefix(b.Preview, "legacy_")), tokens: map[string]time.Time{}}
		b.ports[c.Port] = p
	}
	p.Access = cmp.Or(c.Access, p.Access)
	return http.StatusOK, *p, nil
}

func (s *Server) port(r *http.Request, b *box) (*published, error) {
	n, _ := strconv.Atoi(r.PathValue("port"))
	if p := b.ports[n]; p != nil {
		return p, nil
	}
	return nil, notFound("port", r.PathValue("port"))
}

func (s *Server) unpublish(r *http.Request, b *box) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.port(r, b)
	if err == nil {
		delete(b.ports, p.Port)
	}
	return http.StatusNoContent, nil, err
}

func (s *Server) portToken(r *http.Request, b *box) (int, any, error) {
	c := struct {
		Life int64 `json:"expires_in_seconds"`
	}{7 * 24 * 3600}
	if r.ContentLength != 0 {
		if err := read(r, &c); err != nil {
			return 0, nil, err
		}
	}
	if c.Life < 1 || c.Life > 7*24*3600 {
		return 0, nil, fail(http.StatusBadRequest, "validation_error", "expires_in_seconds is invalid")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.port(r, b)
	if err != nil {
		return 0, nil, err
	}
	token, ends := "pv_"+rand.Text(), time.Now().Add(time.Duration(c.Life)*time.Second)
	p.tokens[token] = ends
	return http.StatusOK, map[string]any{
		"token": token, "port": p.Port, "header": "X-Superserve-Preview-Token", "query_param": "superserve_token", "token_version": p.Version,
		"access": p.Access, "preview_access": b.Preview, "expires_at": ends,
	}, nil
}

func (s *Server) rotatePort(r *http.Request, b *box) (int, any, error) {
	s.mu.Lock()
	p, err := s.port(r, b)
	if err == nil {
		p.Version, p.tokens = p.Version+1, map[string]time.Time{}
	}
	s.mu.Unlock()
	if err != nil {
		return 0, nil, err
	}
	return s.portToken(r, b)
}

// preview serves a port of a sandbox at its own name.
func (s *Server) preview(w http.ResponseWriter, r *http.Request, port, id string) {
	n, _ := strconv.Atoi(port)
	s.mu.Lock()
	b := s.boxes[id]
	token := cmp.Or(r.Header.Get("X-Superserve-Preview-Token"), r.URL.Query().Get("superserve_token"))
	var p published
	known := false
	if b != nil && b.ports[n] != nil && b.Status == Active {
		p = *b.ports[n]
		known = time.Now().Before(p.tokens[token])
	}
	s.mu.Unlock()
	dialer, ok := driver.Dialer(nil), false
	if p.Port != 0 {
		dialer, ok = driver.As[driver.Dialer](b.in)
	}
	switch {
	case !ok:
		http.NotFound(w, r)
	case p.Access == "private" && !known:
		http.Error(w, "preview token required", http.StatusUnauthorized)
	default:
		transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dialer.Dial(ctx, uint16(n)) }}
		proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", "sandbox", r.In.Host
		}}
		proxy.ServeHTTP(w, r)
	}
}

// template is what sandboxes are made from. All are the same here.
type template struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Team    string    `json:"team_id"`
	Status  string    `json:"status"`
	VCPU    int       `json:"vcpu"`
	Memory  int       `json:"memory_mib"`
	Disk    int       `json:"disk_mib"`
	Created time.Time `json:"created_at"`
	Build   string    `json:"build_id,omitempty"`
}

// addTemplate adds one that is ready. It is found by its name and by its id.
func (s *Server) addTemplate(name string, change func(*template)) *template {
	t := &template{ID: newID(), Name: name, Team: Team, Status: "ready", VCPU: 1, Memory: 1024, Disk: 4096, Created: time.Now().UTC(), Build: newID()}
	if change != nil {
		change(t)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.templates[t.ID], s.templates[t.Name] = t, t
	return t
}

func (s *Server) createTemplate(r *http.Request, team string) (int, any, error) {
	var c struct {
		Name  string         `json:"name"`
		Build map[string]any `json:"build_spec"`
		VCPU  int            `json:"vcpu"`
		Mem   int            `json:"memory_mib"`
		Disk  int            `json:"disk_mib"`
	}
	if err := read(r, &c); err != nil {
		return 0, nil, err
	}
	if c.Name == "" || c.Build["from"] == nil || c.VCPU > 4 {
		return 0, nil, fail(http.StatusBadRequest, "validation_error", "name and build_spec.from are required")
	}
	return http.StatusCreated, s.addTemplate(c.Name, func(t *template) {
		t.Team, t.VCPU, t.Memory, t.Disk = team, cmp.Or(c.VCPU, t.VCPU), cmp.Or(c.Mem, t.Memory), cmp.Or(c.Disk, t.Disk)
	}), nil
}

func (s *Server) listTemplates(r *http.Request, _ string) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []*template{}
	for key, t := range s.templates {
		if key == t.ID && strings.HasPrefix(t.Name, r.URL.Query().Get("name_prefix")) {
			all = append(all, t)
		}
	}
	return http.StatusOK, all, nil
}

func (s *Server) withTemplate(f func(*http.Request, *template) (int, any, error)) call {
	return func(r *http.Request, _ string) (int, any, error) {
		s.mu.Lock()
		t := s.templates[r.PathValue("id")]
		s.mu.Unlock()
		if t == nil {
			return 0, nil, notFound("template", r.PathValue("id"))
		}
		return f(r, t)
	}
}

func (s *Server) deleteTemplate(_ *http.Request, t *template) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.templates, t.ID)
	delete(s.templates, t.Name)
	return http.StatusNoContent, nil, nil
}

func (s *Server) build(r *http.Request, t *template) (int, any, error) {
	if r.PathValue("build") != t.Build {
		return 0, nil, notFound("build", r.PathValue("build"))
	}
	return http.StatusOK, map[string]any{"id": t.Build, "template_id": t.ID, "status": "ready", "build_spec_hash": "0", "created_at": t.Created}, nil
}

// secret is a value of a team. Sandboxes see a stand-in.
type secret struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Auth    string    `json:"auth_type"`
	Hosts   []string  `json:"hosts"`
	Created time.Time `json:"created_at"`
	team    string
}

func (s *Server) createSecret(r *http.Request, team string) (int, any, error) {
	var c struct {
		Name     string         `json:"name"`
		Value    string         `json:"value"`
		Provider string         `json:"provider"`
		Auth     map[string]any `json:"auth"`
		Hosts    []string       `json:"hosts"`
	}
	if err := read(r, &c); err != nil {
		return 0, nil, err
	}
	kind, _ := c.Auth["type"].(string)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.secrets[c.Name] != nil {
		return 0, nil, conflict("conflict", "secret exists")
	}
	made := &secret{ID: newID(), Name: c.Name, Auth: cmp.Or(kind, "bearer"), Hosts: c.Hosts, Created: time.Now().UTC(), team: team}
	s.secrets[c.Name] = made
	return http.StatusCreated, made, nil
}

func (s *Server) listSecrets(*http.Request, string) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return http.StatusOK, slices.Collect(maps.Values(s.secrets)), nil
}

func (s *Server) deleteSecret(r *http.Request, _ string) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.secrets[r.PathValue("name")] == nil {
		return 0, nil, notFound("secret", r.PathValue("name"))
	}
	delete(s.secrets, r.PathValue("name"))
	return http.StatusNoContent, nil, nil
}

// bindAll gives a new sandbox stand-ins for secrets.
func (s *Server) bindAll(b *box, secrets map[string]string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, env := range slices.Sorted(maps.Keys(secrets)) {
		if err := s.bind(b, env, secrets[env]); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) bind(b *box, env, name string) error {
	if found := s.secrets[name]; found == nil || found.team != b.team {
		return notFound("secret", name)
	}
	b.Secrets = append(b.Secrets, binding{EnvKey: env, SecretName: name})
	b.env[env] = "sspx_" + rand.Text()
	return nil
}

func (s *Server) attachSecret(r *http.Request, b *box) (int, any, error) {
	var c binding
	if err := read(r, &c); err != nil {
		return 0, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.bind(b, c.EnvKey, c.SecretName); err != nil {
		return 0, nil, err
	}
	return http.StatusOK, b.facts, nil
}

func (s *Server) detachSecret(r *http.Request, b *box) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.Secrets = slices.DeleteFunc(slices.Clone(b.Secrets), func(x binding) bool { return x.EnvKey == r.PathValue("env") })
	delete(b.env, r.PathValue("env"))
	return http.StatusNoContent, nil, nil
}
