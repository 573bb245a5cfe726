// Package superserve is a fake of the service Superserve: both of its APIs,
// with their known states, codes and races. Its sandboxes are sandboxes of an
// Atoll provider. The official SDK for Python works with it, and so does
// Atoll's driver.
//
// What is known of the service comes from its SDK and its documents. Where they
// say nothing, the fake does what is hardest for a client.
package superserve

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
)

// Host is the name of the data plane in addresses that SDKs make.
const Host = "sandbox.superserve.ai"

// Key is the API key that the service takes, of the team Team.
const (
	Key  = "ss_live_use_0123456789abcdefghijABCDEFGHIJ_-"
	Team = "team-1"
)

// The statuses of a sandbox.
const (
	Starting  = "starting"
	Active    = "active"
	Pausing   = "pausing"
	Paused    = "paused"
	Resuming  = "resuming"
	Migrating = "migrating"
	Failed    = "failed"
	Deleted   = "deleted"
)

// Server is the service. Make one with New.
type Server struct {
	*servicetest.Face

	mu        sync.Mutex
	templates []string          // their names, which are their IDs
	secrets   map[string]string // their teams by name
}

// serviceSandbox is the service's record of a sandbox besides the cloud, which has its ID
// as a name. The fields are the server's, under its mutex.
type serviceSandbox struct {
	*servicetest.CloudSandbox
	creation
	token string // empty: it is being made
	ports map[int]*published
	timer servicetest.Timer
}

// New returns a service. Its sandboxes are sandboxes of a provider.
func New(backing driver.Provider) *Server {
	s := &Server{
		Face: &servicetest.Face{
			Cloud: servicetest.NewCloud(backing, servicetest.Statuses{
				Starting: Starting, Running: Active, Failed: Failed, Deleted: Deleted,
			}),
			Format: failure, Denied: servicetest.Failure{Status: http.StatusUnauthorized, Message: "invalid API key"},
			Key: func(r *http.Request) string { return r.Header.Get("X-API-Key") },
		},
		templates: []string{"", "superserve/base"}, secrets: map[string]string{},
	}
	s.Pauses, s.Memory = servicetest.PauseWords{Pausing: Pausing, Paused: Paused, Resuming: Resuming}, true
	s.AddKey(Key, Team)
	s.Handle("POST /sandboxes", s.create)
	s.Handle("GET /sandboxes", s.list)
	s.Handle("GET /sandboxes/{id}", s.withSandbox(func(_ *http.Request, b *serviceSandbox) (any, error) { return s.shown(b), nil }))
	s.Handle("PATCH /sandboxes/{id}", s.withSandbox(s.patch))
	s.Handle("DELETE /sandboxes/{id}", s.withSandbox(s.delete))
	s.Handle("POST /sandboxes/{id}/activate", s.withSandbox(s.activate))
	s.Handle("POST /sandboxes/{id}/pause", s.withSandbox(s.pause))
	s.Handle("POST /sandboxes/{id}/resume", s.withSandbox(s.resume))
	s.resourceRoutes()
	s.dataRoutes()
	return s
}

// ServeHTTP serves both planes, and the ports of sandboxes at their own names.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, _, _ := strings.Cut(r.Host, ".")
	if port, id, ok := strings.Cut(name, "-"); ok && strings.Trim(port, "0123456789") == "" {
		s.preview(w, r, port, id)
		return
	}
	s.Face.ServeHTTP(w, r)
}

// failure is the body of an error: in the data plane only a text.
func failure(r *http.Request, f *servicetest.Failure) any {
	if f.Code != "sandbox_route_stale" && (strings.HasPrefix(r.URL.Path, "/exec") || r.URL.Path == "/files") {
		return map[string]string{"error": f.Message}
	}
	if f.Code == "bad_request" {
		f.Code = "validation_error"
	}
	return map[string]any{"error": map[string]string{"code": f.Code, "message": f.Message}}
}

func invalid(what string) error {
	return servicetest.Fail(http.StatusBadRequest, "%s is invalid", what)
}

func notFound(what, id string) error {
	return servicetest.Fail(http.StatusNotFound, "%s %s not found", what, id)
}

// withSandbox is a call about one sandbox.
func (s *Server) withSandbox(f func(r *http.Request, b *serviceSandbox) (any, error)) func(*http.Request, string) (any, error) {
	return func(r *http.Request, team string) (any, error) {
		b := s.sandbox(r.PathValue("id"))
		if b == nil || s.Show(b.CloudSandbox).Owner != team {
			return nil, notFound("sandbox", r.PathValue("id"))
		}
		return f(r, b)
	}
}

// sandbox finds a sandbox of any team, or nil.
func (s *Server) sandbox(id string) *serviceSandbox {
	found, err := s.Find("", id)
	if err != nil {
		return nil
	}
	b, _ := s.Show(found).Request.(*serviceSandbox)
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.token == "" {
		return nil
	}
	return b
}

type network struct {
	AllowOut []string `json:"allow_out"`
	DenyOut  []string `json:"deny_out"`
}

// settings are what a client asks for and is shown.
type settings struct {
	Name       string            `json:"name"`
	Timeout    *int64            `json:"timeout_seconds,omitempty"`
	AutoDelete *int64            `json:"auto_delete_seconds,omitempty"`
	Network    *network          `json:"network,omitempty"`
	Metadata   map[string]string `json:"metadata"`
	Preview    string            `json:"preview_access"`
}

// creation is the request for a new sandbox.
type creation struct {
	settings
	Template string            `json:"from_template"`
	Snapshot string            `json:"from_snapshot"`
	Env      map[string]string `json:"env_vars"`
	Secrets  map[string]string `json:"secrets"`
}

type binding struct {
	EnvKey string `json:"env_key"`
	Name   string `json:"secret_name"`
}

// facts is a sandbox as the control plane shows it. Only what starts it answers
// with a token.
type facts struct {
	ID      string    `json:"id"`
	Status  string    `json:"status"`
	VCPUs   int       `json:"vcpu_count"`
	Memory  int       `json:"memory_mib"`
	Created time.Time `json:"created_at"`
	settings
	Secrets []binding `json:"secrets,omitempty"`
	Source  string    `json:"source_snapshot_id,omitempty"`
	Token   string    `json:"access_token,omitempty"`
	Hint    string    `json:"routing_hint,omitempty"`
}

// day is a day in seconds.
const day = 24 * 3600

func (c *settings) check() error {
	switch {
	case c.Name == "" || len(c.Name) > 64:
		return invalid("name")
	case c.Timeout != nil && (*c.Timeout < 1 || *c.Timeout > 7*day):
		return invalid("timeout_seconds")
	case c.AutoDelete != nil && (*c.AutoDelete < 0 || *c.AutoDelete > 30*day):
		return invalid("auto_delete_seconds")
	case !slices.Contains([]string{"", "public", "private", "legacy_public"}, c.Preview):
		return invalid("preview_access")
	}
	return nil
}

// create makes a sandbox. It is active when the response is sent.
func (s *Server) create(r *http.Request, team string) (any, error) {
	var c creation
	err := servicetest.ReadStrictly(r, &c)
	if err == nil {
		err = c.check()
	}
	if err != nil {
		return nil, err
	}
	var from *servicetest.Snapshot
	switch {
	case c.Snapshot == "" && !s.hasTemplate(c.Template):
		return nil, servicetest.Fail(http.StatusBadRequest, "template %s not found", c.Template)
	case c.Snapshot != "" && c.Template != "":
		return nil, invalid("from_snapshot")
	case c.Snapshot != "":
		if from, err = s.Snapshot(team, c.Snapshot); err != nil {
			return nil, notFound("snapshot", c.Snapshot)
		}
		if !from.Ready {
			return nil, servicetest.Fail(http.StatusConflict, "snapshot is not ready")
		}
	}
	c.Preview = cmp.Or(c.Preview, "legacy_public")
	b := &serviceSandbox{creation: c, ports: map[int]*published{}}
	if b.Metadata == nil {
		b.Metadata = map[string]string{}
	}
	if b.Env == nil {
		b.Env = map[string]string{}
	}
	s.mu.Lock()
	for env, name := range c.Secrets {
		if s.secrets[name] != team {
			err = notFound("secret", name)
		}
		b.Env[env] = "sspx_" + rand.Text() // sandboxes see a stand-in
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if b.CloudSandbox, err = s.Create(servicetest.Sandbox{ID: servicetest.NewID(), Name: servicetest.UUID(), Owner: team, Labels: b.Metadata, Request: b}, from); err == nil {
		err = s.Wait(b.CloudSandbox)
	}
	if err != nil {
		return nil, err
	}
	s.limit(b)
	return servicetest.Reply{Status: http.StatusCreated, Body: s.withToken(b)}, nil
}

func (s *Server) shown(b *serviceSandbox) facts {
	now := s.Show(b.CloudSandbox)
	s.mu.Lock()
	defer s.mu.Unlock()
	f := facts{ID: now.Name, Status: now.Status, VCPUs: 1, Memory: 1024, Created: now.Created, settings: b.settings, Source: b.Snapshot}
	for env, name := range b.Secrets {
		f.Secrets = append(f.Secrets, binding{env, name})
	}
	return f
}

// withToken issues a new token. The former one is not valid any more.
func (s *Server) withToken(b *serviceSandbox) facts {
	f := s.shown(b)
	payload, _ := json.Marshal(map[string]any{"e": time.Now().Add(time.Hour).Unix(), "n": rand.Text()})
	f.Token, f.Hint = "tok_"+rand.Text(), "v1."+base64.RawURLEncoding.EncodeToString(payload)+".c2ln"
	s.mu.Lock()
	defer s.mu.Unlock()
	b.token = f.Token
	return f
}

// Rotate takes a sandbox's token back, as another client does that connects.
func (s *Server) Rotate(id string) {
	if b := s.sandbox(id); b != nil {
		s.withToken(b)
	}
}

// limit makes an active sandbox pause when its time is over.
func (s *Server) limit(b *serviceSandbox) {
	b.timer.Set(0, nil)
	if timeout := s.shown(b).Timeout; timeout != nil {
		b.timer.Set(time.Duration(*timeout)*time.Second, func() {
			if s.Pause(b.CloudSandbox) == nil {
				_ = s.paused(b)
			}
		})
	}
}

// paused waits until a sandbox is paused. If it was to be deleted then, it is.
func (s *Server) paused(b *serviceSandbox) error {
	err := s.Wait(b.CloudSandbox)
	after := s.shown(b).AutoDelete
	if b.timer.Set(0, nil); err != nil || after == nil {
		return err
	}
	if *after == 0 {
		return s.Remove(context.Background(), b.CloudSandbox)
	}
	b.timer.Set(time.Duration(*after)*time.Second, func() { _ = s.Remove(context.Background(), b.CloudSandbox) })
	return nil
}

// pause answers when the sandbox is paused or, if the client prefers that, when
// it has begun.
func (s *Server) pause(r *http.Request, b *serviceSandbox) (any, error) {
	done := servicetest.Reply{Status: http.StatusNoContent}
	switch s.Show(b.CloudSandbox).Status {
	case Paused:
		return done, nil
	case Pausing:
		return done, s.Wait(b.CloudSandbox)
	}
	if err := s.Pause(b.CloudSandbox); err != nil {
		return nil, err
	}
	if strings.Contains(r.Header.Get("Prefer"), "respond-async") {
		s.Work.Go(func() { _ = s.paused(b) })
		return servicetest.Reply{Status: http.StatusAccepted, Body: map[string]string{"status": Pausing}}, nil
	}
	return done, s.paused(b)
}

// resume continues a paused sandbox, and refuses any other.
func (s *Server) resume(_ *http.Request, b *serviceSandbox) (any, error) {
	err := s.Resume(b.CloudSandbox)
	if err == nil {
		err = s.Wait(b.CloudSandbox)
	}
	if err != nil {
		return nil, err
	}
	s.limit(b)
	return s.withToken(b), nil
}

// activate continues a paused sandbox, and issues a new token.
func (s *Server) activate(r *http.Request, b *serviceSandbox) (any, error) {
	switch s.Show(b.CloudSandbox).Status {
	case Active:
		return s.withToken(b), nil
	case Pausing:
		return nil, servicetest.FailAs(http.StatusConflict, "sandbox_pausing", "sandbox is pausing")
	}
	return s.resume(r, b)
}

// delete refuses, for the moment, while the state changes.
func (s *Server) delete(_ *http.Request, b *serviceSandbox) (any, error) {
	if s.Show(b.CloudSandbox).Status == Migrating {
		return nil, servicetest.ErrConflict
	}
	return servicetest.Reply{Status: http.StatusNoContent}, s.Delete(b.CloudSandbox)
}

// list lists the sandboxes of a team, filtered by metadata and status.
func (s *Server) list(r *http.Request, team string) (any, error) {
	q, labels, all := r.URL.Query(), map[string]string{}, []facts{}
	for name := range q {
		if key, ok := strings.CutPrefix(name, "metadata."); ok {
			labels[key] = q.Get(name)
		}
	}
	for _, now := range slices.Backward(s.List(team, labels)) {
		b := s.sandbox(now.Name)
		if b != nil && (q.Get("status") == "" || slices.Contains(strings.Split(q.Get("status"), ","), now.Status)) {
			all = append(all, s.shown(b))
		}
	}
	return servicetest.Page(r, 100, all), nil
}

// patch changes the given settings. Null removes a deadline.
func (s *Server) patch(r *http.Request, b *serviceSandbox) (any, error) {
	given, now, copied := map[string]json.RawMessage{}, s.shown(b), settings{}
	if err := servicetest.Read(r, &given); err != nil {
		return nil, err
	}
	if given["network"] != nil && now.Status != Active {
		return nil, servicetest.Fail(http.StatusConflict, "sandbox is not active")
	}
	if given["metadata"] != nil {
		now.Metadata = nil // it is replaced
	}
	before, err1 := json.Marshal(now.settings)
	changes, err2 := json.Marshal(given)
	if err := errors.Join(err1, err2, json.Unmarshal(before, &copied), json.Unmarshal(changes, &copied), copied.check()); err != nil {
		return nil, servicetest.Fail(http.StatusBadRequest, "%v", err)
	}
	s.mu.Lock()
	b.settings = copied
	s.mu.Unlock()
	s.Change(b.CloudSandbox, func(to *servicetest.Sandbox) { to.Labels = copied.Metadata })
	if given["timeout_seconds"] != nil && now.Status == Active {
		s.limit(b)
	}
	return s.shown(b), nil
}
