// Package opensandbox is a fake of an OpenSandbox server. Its sandboxes are
// sandboxes of an Atoll provider. The official SDK for Python works with it, and
// so does Atoll's driver.
package opensandbox

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
)

// Key is the API key that the server takes.
const Key = "osb-0123456789abcdef"

const (
	keyHeader = "Open-Sandbox-Api-Key"
	// execdPort and egressPort are where execd and the egress sidecar listen.
	execdPort  = "44772"
	egressPort = "18080"
	// snapshotImages begins the names of the images of snapshots.
	snapshotImages = "opensandbox-snapshots:"
	// shortest is the shortest lifetime, in seconds.
	shortest = 60
	// Strict is the mode in which the sidecar checks addresses, too.
	Strict = "dns+nft"
)

// Server is the server. Make one with New.
type Server struct {
	*servicetest.Face

	mu     sync.Mutex
	mode   string
	execds map[*servicetest.CloudSandbox]*Execd
	// deleting has the snapshots that were removed while a sandbox used them.
	deleting map[string]bool
}

// New returns a server. Its sandboxes are sandboxes of a provider.
func New(backing driver.Provider) *Server {
	s := &Server{
		mode: Strict, execds: map[*servicetest.CloudSandbox]*Execd{}, deleting: map[string]bool{},
		Face: &servicetest.Face{
			Cloud: servicetest.NewCloud(backing, servicetest.Statuses{
				Starting: "Pending", Running: "Running", Stopping: "Pausing", Stopped: "Paused", Failed: "Failed", Deleted: "Stopping",
			}),
			Format: func(_ *http.Request, f *servicetest.Failure) any {
				return map[string]string{"code": f.Code, "message": f.Message}
			},
			Denied: servicetest.Failure{Status: http.StatusUnauthorized, Code: "INVALID_API_KEY", Message: "Authentication credentials are invalid."},
		},
	}
	s.AddKey(Key, "team-1")
	const sandbox = "/v1/sandboxes/{sandbox}"
	s.handle("POST /v1/sandboxes", http.StatusAccepted, s.create)
	s.handle("GET /v1/sandboxes", http.StatusOK, s.list)
	s.handle("GET "+sandbox, http.StatusOK, s.withSandbox(func(_ *http.Request, b *servicetest.CloudSandbox) (any, error) { return shown(s.Show(b)), nil }))
	s.handle("DELETE "+sandbox, http.StatusNoContent, s.withSandbox(func(_ *http.Request, b *servicetest.CloudSandbox) (any, error) { return nil, s.Delete(b) }))
	s.handle("POST "+sandbox+"/pause", http.StatusAccepted, s.withSandbox(func(_ *http.Request, b *servicetest.CloudSandbox) (any, error) { return nil, s.Stop(b) }))
	s.handle("POST "+sandbox+"/resume", http.StatusAccepted, s.withSandbox(func(_ *http.Request, b *servicetest.CloudSandbox) (any, error) { return nil, s.Start(b) }))
	s.handle("PATCH "+sandbox+"/metadata", http.StatusOK, s.withSandbox(s.change))
	s.handle("POST "+sandbox+"/renew-expiration", http.StatusOK, s.withSandbox(s.renew))
	s.handle("GET "+sandbox+"/networkpolicy", http.StatusOK, s.withSandbox(s.policy))
	s.handle("GET "+sandbox+"/endpoints/{port}", http.StatusOK, s.withSandbox(s.endpoint))
	s.handle("POST "+sandbox+"/snapshots", http.StatusAccepted, s.withSandbox(s.save))
	s.handle("GET /v1/snapshots", http.StatusOK, s.snapshots)
	s.handle("GET /v1/snapshots/{snapshot}", http.StatusOK, s.withSnapshot(func(kept *servicetest.Snapshot) (any, error) { return s.shownSnapshot(*kept), nil }))
	s.handle("DELETE /v1/snapshots/{snapshot}", http.StatusNoContent, s.withSnapshot(s.forget))
	s.handle("POST /v1/metrics/events", http.StatusNoContent, func(*http.Request, string) (any, error) { return nil, nil })
	s.HandleFunc(sandbox+"/proxy/{port}/", s.proxy)
	return s
}

// ServeHTTP serves the API.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.Header.Set("Authorization", "Bearer "+r.Header.Get(keyHeader))
	s.Face.ServeHTTP(w, r)
}

// Mode sets whether sidecars check names only, or addresses, too.
func (s *Server) Mode(mode string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = mode
}

// handle sets a route with another status than 200.
func (s *Server) handle(pattern string, status int, call func(r *http.Request, owner string) (any, error)) {
	s.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		var body any
		owner, err := s.Owner(r)
		if err == nil {
			body, err = call(r, owner)
		}
		switch {
		case err != nil:
			s.Refuse(w, r, err)
		case body == nil:
			w.WriteHeader(status)
		default:
			servicetest.Answer(w, status, body)
		}
	})
}

// withSandbox is a call about one sandbox.
func (s *Server) withSandbox(f func(r *http.Request, b *servicetest.CloudSandbox) (any, error)) func(*http.Request, string) (any, error) {
	return func(r *http.Request, owner string) (any, error) {
		b, err := s.find(owner, r.PathValue("sandbox"))
		if err != nil {
			return nil, err
		}
		return f(r, b)
	}
}

// find finds a sandbox. Of one that was removed, the server knows nothing.
func (s *Server) find(owner, id string) (*servicetest.CloudSandbox, error) {
	b, err := s.Find(owner, id)
	if err == nil && slices.Contains(s.Names(), id) {
		return b, nil
	}
	return nil, servicetest.FailAs(http.StatusNotFound, "DOCKER::SANDBOX_NOT_FOUND", "Sandbox %s not found.", id)
}

// creation is the request for a new sandbox.
type creation struct {
	Image      *struct{ URI string } `json:"image"`
	Snapshot   string                `json:"snapshotId"`
	Entrypoint []string              `json:"entrypoint"`
	Timeout    *int64                `json:"timeout"`
	Env        map[string]string     `json:"env"`
	Metadata   map[string]string     `json:"metadata"`
	Limits     map[string]string     `json:"resourceLimits"`
	Network    *policy               `json:"networkPolicy"`
}

type policy struct {
	Default string `json:"defaultAction"`
	Rules   []rule `json:"egress"`
}

type rule struct {
	Action string `json:"action"`
	Target string `json:"target"`
}

func (s *Server) create(r *http.Request, owner string) (any, error) {
	var c creation
	if err := servicetest.Read(r, &c); err != nil {
		return nil, err
	}
	var from *servicetest.Snapshot
	if c.Snapshot != "" && c.Image == nil {
		var err error
		if from, err = s.snapshot(owner, c.Snapshot); err != nil {
			return nil, err
		}
		if !from.Ready {
			return nil, servicetest.FailAs(http.StatusConflict, "SNAPSHOT::NOT_READY", "Snapshot %s is not ready for restore.", from.ID)
		}
		c.Image = &struct{ URI string }{snapshotImages + from.ID}
	}
	switch {
	case c.Image == nil || c.Image.URI == "" || len(c.Entrypoint) == 0 || c.Limits == nil:
		return nil, servicetest.FailAs(http.StatusUnprocessableEntity, "SANDBOX::INVALID_PARAMETER", "an image or a snapshot, entrypoint and resourceLimits are required")
	case strings.HasPrefix(c.Image.URI, "missing"):
		return nil, servicetest.FailAs(http.StatusInternalServerError, "DOCKER::SANDBOX_IMAGE_PULL_FAILED", "Failed to pull image %s", c.Image.URI)
	case c.Timeout != nil && *c.Timeout < shortest:
		return nil, servicetest.FailAs(http.StatusUnprocessableEntity, "SANDBOX::INVALID_PARAMETER", "timeout must be at least %d", shortest)
	}
	if err := label(c.Metadata); err != nil {
		return nil, err
	}
	id := servicetest.NewID()
	sandbox := servicetest.Sandbox{ID: id, Name: id, Owner: owner, Labels: c.Metadata, Request: c}
	if c.Timeout != nil {
		sandbox.Ends = time.Now().Add(time.Duration(*c.Timeout) * time.Second)
	}
	b, err := s.Create(sandbox, from)
	if err != nil {
		return nil, err
	}
	return shown(s.Show(b)), nil
}

// Asked returns what the only sandbox was asked for.
func (s *Server) Asked() string {
	text := []string{}
	for _, name := range s.Names() {
		b, err := s.Find("team-1", name)
		if err != nil {
			continue
		}
		c, _ := s.Show(b).Request.(creation)
		text = append(text, c.Image.URI, "cpu="+c.Limits["cpu"], "memory="+c.Limits["memory"])
		if c.Timeout != nil {
			text = append(text, fmt.Sprintf("timeout=%d", *c.Timeout))
		}
	}
	return strings.Join(text, " ")
}

// label checks metadata as the server does: like labels of Kubernetes.
func label(metadata map[string]string) error {
	for k, v := range metadata {
		if len(v) > 63 || strings.Trim(v, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != "" {
			return servicetest.FailAs(http.StatusBadRequest, "SANDBOX::INVALID_METADATA_LABEL", "Metadata value of '%s' is invalid", k)
		}
	}
	return nil
}

// shown is a sandbox as the server shows it.
func shown(b servicetest.Sandbox) map[string]any {
	c, _ := b.Request.(creation)
	m := map[string]any{
		"id": b.ID, "status": map[string]string{"state": b.Status}, "entrypoint": c.Entrypoint, "createdAt": b.Created, "image": map[string]string{"uri": c.Image.URI},
	}
	if len(b.Labels) > 0 {
		m["metadata"] = b.Labels
	}
	if !b.Ends.IsZero() {
		m["expiresAt"] = b.Ends
	}
	return m
}

// list lists sandboxes, a few per page, the newest first.
func (s *Server) list(r *http.Request, owner string) (any, error) {
	wanted, err := url.ParseQuery(r.URL.Query().Get("metadata"))
	if err != nil {
		return nil, servicetest.FailAs(http.StatusBadRequest, "INVALID_METADATA_FORMAT", "%v", err)
	}
	labels := map[string]string{}
	for k := range wanted {
		labels[k] = wanted.Get(k)
	}
	all := []any{}
	for _, b := range s.List(owner, labels) {
		all = append(all, shown(b))
	}
	return paged(r, all), nil
}

// paged is a page of a list, the newest first.
func paged(r *http.Request, all []any) any {
	q, page, size := r.URL.Query(), 1, 20
	_, _ = fmt.Sscan(q.Get("page"), &page)
	_, _ = fmt.Sscan(q.Get("pageSize"), &size)
	size = min(size, 3) // a client must ask for more
	slices.Reverse(all)
	items, total := []any{}, (len(all)+size-1)/size
	for i, one := range all {
		if i >= (page-1)*size && i < page*size {
			items = append(items, one)
		}
	}
	return map[string]any{"items": items, "pagination": map[string]any{
		"page": page, "pageSize": size, "totalItems": len(all), "totalPages": total, "hasNextPage": page < total,
	}}
}

// save takes a snapshot of a sandbox that runs. Names are not unique.
func (s *Server) save(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	var in struct{ Name string }
	if r.ContentLength != 0 {
		if err := servicetest.Read(r, &in); err != nil {
			return nil, err
		}
	}
	kept, err := s.Save(b, servicetest.Snapshot{ID: servicetest.UUID(), Name: in.Name})
	switch {
	case errors.Is(err, servicetest.ErrConflict):
		return nil, servicetest.FailAs(http.StatusConflict, "SNAPSHOT::INVALID_STATE", "Sandbox is not running")
	case err != nil:
		return nil, err
	}
	return s.shownSnapshot(*kept), nil
}

// shownSnapshot is a snapshot as the server shows it.
func (s *Server) shownSnapshot(kept servicetest.Snapshot) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := "Creating"
	switch {
	case s.deleting[kept.ID]:
		state = "Deleting"
	case kept.Ready:
		state = "Ready"
	}
	m := map[string]any{"id": kept.ID, "sandboxId": kept.Sandbox, "status": map[string]string{"state": state}, "createdAt": kept.Created}
	if kept.Name != "" {
		m["name"] = kept.Name
	}
	return m
}

// snapshots lists snapshots, all or those with a name.
func (s *Server) snapshots(r *http.Request, owner string) (any, error) {
	name, all := r.URL.Query().Get("name"), []any{}
	for _, kept := range s.Snapshots(owner) {
		if name == "" || kept.Name == name {
			all = append(all, s.shownSnapshot(kept))
		}
	}
	return paged(r, all), nil
}

func (s *Server) snapshot(owner, id string) (*servicetest.Snapshot, error) {
	kept, err := s.Snapshot(owner, id)
	if err != nil || kept.ID != id {
		return nil, servicetest.FailAs(http.StatusNotFound, "SNAPSHOT::NOT_FOUND", "Snapshot %s not found", id)
	}
	return kept, nil
}

// withSnapshot is a call about one snapshot.
func (s *Server) withSnapshot(f func(*servicetest.Snapshot) (any, error)) func(*http.Request, string) (any, error) {
	return func(r *http.Request, owner string) (any, error) {
		kept, err := s.snapshot(owner, r.PathValue("snapshot"))
		if err != nil {
			return nil, err
		}
		return f(kept)
	}
}

// forget removes a snapshot. One whose image a sandbox uses is only marked.
func (s *Server) forget(kept *servicetest.Snapshot) (any, error) {
	for _, name := range s.Names() {
		b, err := s.Find(kept.Owner, name)
		if err != nil {
			continue
		}
		if c, _ := s.Show(b).Request.(creation); c.Image != nil && c.Image.URI == snapshotImages+kept.ID {
			s.mu.Lock()
			s.deleting[kept.ID] = true
			s.mu.Unlock()
			return nil, servicetest.FailAs(http.StatusConflict, "SNAPSHOT::DELETE_CONFLICT", "snapshot image cannot be deleted due to a conflict")
		}
	}
	if err := s.Forget(kept); errors.Is(err, servicetest.ErrConflict) {
		return nil, servicetest.FailAs(http.StatusConflict, "SNAPSHOT::INVALID_STATE", "Snapshot %s is still being created and cannot be deleted", kept.ID)
	} else if err != nil {
		return nil, err
	}
	return nil, nil
}

func (s *Server) change(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	var patch map[string]*string
	if err := servicetest.Read(r, &patch); err != nil {
		return nil, err
	}
	s.Change(b, func(b *servicetest.Sandbox) {
		now := map[string]string{}
		for k, v := range b.Labels {
			now[k] = v
		}
		for k, v := range patch {
			if delete(now, k); v != nil {
				now[k] = *v
			}
		}
		b.Labels = now
	})
	return shown(s.Show(b)), nil
}

func (s *Server) renew(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	var in struct {
		At time.Time `json:"expiresAt"`
	}
	if err := servicetest.Read(r, &in); err != nil {
		return nil, err
	}
	if s.Show(b).Ends.IsZero() {
		return nil, servicetest.FailAs(http.StatusConflict, "DOCKER::INVALID_EXPIRATION", "it does not have automatic expiration enabled")
	}
	s.Change(b, func(b *servicetest.Sandbox) { b.Ends = in.At })
	return map[string]any{"expiresAt": in.At}, nil
}

// policy answers with the rules of a sandbox's sidecar, if it has one.
func (s *Server) policy(_ *http.Request, b *servicetest.CloudSandbox) (any, error) {
	c, _ := s.Show(b).Request.(creation)
	if c.Network == nil {
		return nil, servicetest.FailAs(http.StatusBadGateway, "BACKEND_CONNECTION_FAILED", "Could not connect to the backend sandbox")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return map[string]any{"status": "ok", "mode": "deny_all", "enforcementMode": s.mode, "policy": c.Network}, nil
}

func (s *Server) endpoint(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	at := fmt.Sprintf("%s/v1/sandboxes/%s/proxy/%s", r.Host, s.Show(b).ID, r.PathValue("port"))
	return map[string]any{"endpoint": at}, nil
}

// proxy forwards requests to what listens in a sandbox.
func (s *Server) proxy(w http.ResponseWriter, r *http.Request) {
	owner, err := s.Owner(r)
	var b *servicetest.CloudSandbox
	if err == nil {
		b, err = s.find(owner, r.PathValue("sandbox"))
	}
	if err == nil && s.Show(b).Status != "Running" {
		err = servicetest.FailAs(http.StatusBadGateway, "BACKEND_CONNECTION_FAILED", "Could not connect to the backend sandbox")
	}
	if err != nil {
		s.Refuse(w, r, err)
		return
	}
	prefix := "/v1/sandboxes/" + r.PathValue("sandbox") + "/proxy/" + r.PathValue("port")
	switch rest := strings.TrimPrefix(r.URL.Path, prefix); {
	case r.PathValue("port") == execdPort:
		http.StripPrefix(prefix, s.execd(b)).ServeHTTP(w, r)
	case r.PathValue("port") == egressPort && rest == "/policy":
		said, err := s.policy(r, b)
		if err != nil {
			s.Refuse(w, r, err)
			return
		}
		servicetest.Answer(w, http.StatusOK, said)
	default:
		s.Refuse(w, r, servicetest.FailAs(http.StatusBadGateway, "BACKEND_CONNECTION_FAILED", "nothing listens"))
	}
}

// execd returns the daemon in a sandbox.
func (s *Server) execd(b *servicetest.CloudSandbox) *Execd {
	c, _ := s.Show(b).Request.(creation)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.execds[b]
	if e == nil {
		e = NewExecd(machine{s, b, c.Env})
		s.execds[b] = e
	}
	return e
}

// Commands returns how many commands run.
func (s *Server) Commands() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.execds {
		n += e.Running()
	}
	return n
}
