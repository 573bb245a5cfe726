// Package blaxel is a fake of the service Blaxel. Its sandboxes are sandboxes of
// an Atoll provider. The official SDK for Python works with it, and so does
// Atoll's driver.
package blaxel

import (
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
)

// The API key that the service takes, and the workspace that it is for.
const (
	Key       = "bl_0123456789abcdef"
	Workspace = "team"
)

// Host is the host of the API, which the SDK does not let a user change.
const Host = "api.blaxel.ai"

// Server is the service. Make one with New. It serves the API below /v0, and
// those of sandboxes below /sbx.
type Server struct {
	*servicetest.Face

	mu        sync.Mutex
	processes []*process
	uploads   map[string]*upload
	ids       map[string]string // of the latest sandboxes, by name
}

// The words of the service.
const (
	deployed   = "DEPLOYED"
	terminated = "TERMINATED"
)

// New returns a service. Its sandboxes are sandboxes of a provider.
func New(backing driver.Provider) *Server {
	s := &Server{
		uploads: map[string]*upload{}, ids: map[string]string{},
		Face: &servicetest.Face{
			Cloud: servicetest.NewCloud(backing, servicetest.Statuses{
				Starting: "DEPLOYING", Running: deployed, Stopping: "ARCHIVING", Stopped: "ARCHIVED", Failed: "FAILED", Deleted: terminated,
			}),
			Format: format,
			Denied: servicetest.Failure{Status: http.StatusForbidden, Code: "UNAUTHORIZED", Message: "Authorization failed"},
			Scope:  func(r *http.Request) string { return r.Header.Get("X-Blaxel-Workspace") },
		},
	}
	s.AddKey(Key, Workspace)
	const one = "/v0/sandboxes/{name}"
	show := func(f func(b *servicetest.CloudSandbox) error) func(*http.Request, string) (any, error) {
		return s.withSandbox(func(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
			err := f(b)
			return shown(r, s.Show(b)), err
		})
	}
	s.Handle("POST /v0/sandboxes", s.create)
	s.Handle("GET /v0/sandboxes", s.list)
	s.Handle("GET "+one, show(func(*servicetest.CloudSandbox) error { return nil }))
	s.Handle("PUT "+one, s.withSandbox(s.change))
	s.Handle("DELETE "+one, show(s.Delete))
	s.Handle("POST "+one+"/archive", show(s.Stop))
	s.Handle("POST "+one+"/unarchive", show(s.Start))
	s.processRoutes()
	s.fileRoutes()
	return s
}

// ServeHTTP serves the API. The SDK begins paths of files with two slashes, and
// the path of a file could be that of another route.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.Header.Set("Authorization", r.Header.Get("X-Blaxel-Authorization"))
	r.URL.Path = strings.Replace(strings.ReplaceAll(r.URL.Path, "//", "/"), "/filesystem-multipart/initiate/", "/filesystem-initiate/", 1)
	r.URL.RawPath = ""
	s.Face.ServeHTTP(w, r)
}

// format is the body of an error: that of a creation, of a sandbox's API, or of
// any other request.
func format(r *http.Request, f *servicetest.Failure) any {
	code := strings.ToUpper(f.Code)
	switch {
	case r.Method == http.MethodPost && r.URL.Path == "/v0/sandboxes":
		return map[string]any{"code": code, "message": f.Message, "status_code": f.Status}
	case strings.HasPrefix(code, "WORKLOAD_"):
		return map[string]any{"error": map[string]string{"code": code, "message": f.Message}}
	case strings.HasPrefix(r.URL.Path, "/sbx/"):
		return map[string]string{"error": f.Message}
	}
	return map[string]any{"error": code, "code": f.Status, "message": f.Message}
}

// withSandbox is a call about one sandbox. One that has ended is still shown.
func (s *Server) withSandbox(f func(r *http.Request, b *servicetest.CloudSandbox) (any, error)) func(*http.Request, string) (any, error) {
	return func(r *http.Request, owner string) (any, error) {
		s.mu.Lock()
		id := s.ids[r.PathValue("name")]
		s.mu.Unlock()
		b, err := s.Find(owner, id)
		if err != nil || s.Show(b).Status == terminated && r.Method != http.MethodGet {
			return nil, servicetest.Fail(http.StatusNotFound, "Sandbox %s not found", r.PathValue("name"))
		}
		return f(r, b)
	}
}

// description is what clients send and get of a sandbox.
type description struct {
	Metadata struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec map[string]any `json:"spec"`
}

// runtime returns a part of the runtime that a client asks for.
func (d *description) runtime(name string) any {
	all, _ := d.Spec["runtime"].(map[string]any)
	return all[name]
}

var (
	validName = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	duration  = regexp.MustCompile(`^([0-9]+)([smhdw])$`)
	units     = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour, "w": 7 * 24 * time.Hour}
)

// lifetime returns the lifetime that a client asks for, or zero.
func (d *description) lifetime() (time.Duration, error) {
	text, _ := d.runtime("ttl").(string)
	if text == "" {
		return 0, nil
	}
	m := duration.FindStringSubmatch(text)
	if m == nil {
		return 0, servicetest.FailAs(http.StatusBadRequest, "INVALID_TTL", "ttl %q is malformed", text)
	}
	n, _ := strconv.Atoi(m[1])
	life := time.Duration(n) * units[m[2]]
	if life < 5*time.Minute {
		return 0, servicetest.FailAs(http.StatusBadRequest, "INVALID_TTL", "ttl must be at least 5m")
	}
	return life, nil
}

func (s *Server) create(r *http.Request, owner string) (any, error) {
	var d description
	if err := servicetest.Read(r, &d); err != nil {
		return nil, err
	}
	life, err := d.lifetime()
	name := d.Metadata.Name
	if name == "" {
		name = "sandbox-" + servicetest.NewID()
	}
	image, _ := d.runtime("image").(string)
	memory, _ := d.runtime("memory").(float64)
	switch {
	case err != nil:
		return nil, err
	case !validName.MatchString(name) || len(name) > 49:
		return nil, servicetest.FailAs(http.StatusBadRequest, "INVALID_NAME", "%q is not a valid name", name)
	case !strings.Contains(image, "/"):
		return nil, servicetest.FailAs(http.StatusBadRequest, "INVALID_IMAGE", "Sandbox image %s is not supported.", image)
	case memory <= 0:
		return nil, servicetest.FailAs(http.StatusBadRequest, "INVALID_MEMORY", "memory must be positive")
	}
	sandbox := servicetest.Sandbox{ID: servicetest.NewID(), Name: name, Owner: owner, Labels: d.Metadata.Labels, Request: d.Spec}
	if life > 0 {
		sandbox.Ends = time.Now().Add(life)
	}
	b, err := s.Create(sandbox, nil)
	if err == servicetest.ErrTaken && r.URL.Query().Get("createIfNotExist") == "true" {
		b, err = s.Find(owner, name)
	}
	if err == servicetest.ErrTaken {
		err = servicetest.FailAs(http.StatusConflict, "SANDBOX_ALREADY_EXISTS", "Sandbox %s already exists", name)
	}
	if err != nil {
		return nil, err
	}
	now := s.Show(b)
	s.mu.Lock()
	s.ids[name] = now.ID
	s.mu.Unlock()
	return shown(r, now), nil
}

// shown is a sandbox as the service shows it.
func shown(r *http.Request, b servicetest.Sandbox) map[string]any {
	m := short(b)
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	m["metadata"].(map[string]any)["url"] = scheme + r.Host + "/sbx/" + b.Name
	m["events"] = []any{}
	return m
}

// short is a sandbox as a list shows it.
func short(b servicetest.Sandbox) map[string]any {
	labels := b.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	return map[string]any{
		"metadata": map[string]any{"name": b.Name, "labels": labels, "createdAt": b.Created.Format(time.RFC3339Nano), "workspace": b.Owner},
		"spec":     b.Request, "status": b.Status, "state": "RUNNING",
	}
}

// list lists sandboxes that have not ended, a few per page.
func (s *Server) list(r *http.Request, owner string) (any, error) {
	const most = 3 // a client must ask for more
	all := s.List(owner, nil)
	if after := r.URL.Query().Get("cursor"); after != "" {
		all = all[slices.IndexFunc(all, func(b servicetest.Sandbox) bool { return b.ID == after })+1:]
	}
	meta := map[string]any{"hasMore": len(all) > most}
	if len(all) > most {
		all = all[:most]
		meta["nextCursor"] = all[most-1].ID
	}
	data := []any{}
	for _, b := range all {
		data = append(data, short(b))
	}
	return map[string]any{"data": data, "meta": meta}, nil
}

// change replaces the description of a sandbox.
func (s *Server) change(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	var d description
	if err := servicetest.Read(r, &d); err != nil {
		return nil, err
	}
	if d.Metadata.Name != s.Show(b).Name || d.Spec == nil {
		return nil, servicetest.Fail(http.StatusBadRequest, "the description is not of this sandbox")
	}
	s.Change(b, func(b *servicetest.Sandbox) { b.Labels, b.Request = d.Metadata.Labels, d.Spec })
	return shown(r, s.Show(b)), nil
}
