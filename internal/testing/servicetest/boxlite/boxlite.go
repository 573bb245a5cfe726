// Package boxlite is a fake of a BoxLite server: its boxes, commands, files,
// snapshots, clones, tunnels and volumes, with their known states and codes.
// Its boxes are sandboxes of an Atoll provider. The official SDK for Python
// works with it in REST mode, and so does Atoll's driver.
//
// What is known of the server comes from its API description and its SDK. Where
// they say nothing, the fake does what is hardest for a client.
package boxlite

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

// Key is the API key that the server takes, of the tenant Prefix.
const (
	Key    = "blk_live_0123456789abcdef"
	Prefix = "acme"
)

// The statuses of a box. The server shows no status of a start.
const (
	configured = "configured"
	starting   = "starting"
	running    = "running"
	stopping   = "stopping"
	stopped    = "stopped"
	deleted    = "deleted"
)

// Server is the server. Make one with New.
type Server struct {
	*servicetest.Face
	dir string // for volumes

	connected atomic.Int64 // through tunnels

	mu      sync.Mutex
	asked   map[string]asked // by idempotency key
	volumes map[string]*volume
}

// asked is what was made for an idempotency key.
type asked struct {
	Creation
	box *servicetest.CloudSandbox
}

// box is the server's record of a box, beside its machine. The server's mutex
// guards it.
type box struct {
	Creation
	op         sync.Mutex // held while the box starts
	executions map[string]*execution
	tunnels    map[int]*httptest.Server
}

// codes are the server's names for statuses of errors.
var codes = map[string]string{
	"bad_request": "invalid_argument", "unauthorized": "unauthenticated", "forbidden": "permission_denied", "conflict": "invalid_state",
	"internal_server_error": "internal",
}

// types are the names of errors that say the same as their codes.
var types = map[string]string{
	"invalid_argument": "InvalidArgumentError", "unauthenticated": "AuthError", "permission_denied": "PermissionError", "not_found": "NotFoundError",
	"already_exists": "AlreadyExistsError", "invalid_state": "InvalidStateError", "stopped": "StoppedError", "image_pull_failed": "ImageError",
}

// New returns a server. Its boxes are sandboxes of a provider, and volumes are
// in a directory.
func New(backing driver.Provider, dir string) *Server {
	s := &Server{dir: dir, asked: map[string]asked{}, volumes: map[string]*volume{}, Face: &servicetest.Face{
		Cloud: servicetest.NewCloud(backing, servicetest.Statuses{
			Made: configured, Starting: starting, Running: running, Stopping: stopping, Stopped: stopped, Failed: "failed", Deleted: deleted,
		}),
		Format: func(_ *http.Request, f *servicetest.Failure) any {
			code := cmp.Or(codes[f.Code], f.Code)
			return map[string]any{"error": map[string]any{
				"message": f.Message, "type": cmp.Or(types[code], "InternalError"), "code": code, "request_id": "req_" + servicetest.NewID(),
			}}
		},
		Denied: servicetest.Failure{Status: http.StatusUnauthorized, Message: "invalid or missing API key"},
	}}
	s.Waits = true
	s.AddKey(Key, Prefix)
	s.HandleFunc("GET /v1/config", func(w http.ResponseWriter, _ *http.Request) {
		servicetest.Answer(w, http.StatusOK, map[string]any{"capabilities": map[string]any{
			"max_cpus": 32, "max_memory_mib": 16384, "max_disk_size_gb": 100, "tty_enabled": true, "streaming_enabled": true,
			"snapshots_enabled": true, "clone_enabled": true, "export_enabled": false, "idempotency_key_lifetime": "PT24H",
		}})
	})
	s.Handle("GET /v1/me", func(_ *http.Request, owner string) (any, error) {
		return map[string]any{
			"sub": "svc-" + owner, "principal_type": "service_account", "path_prefix": owner, "expires_at": nil,
			"scopes": []string{"box:read", "box:write", "box:exec", "box:delete", "volume:read", "volume:write", "volume:delete"},
		}, nil
	})
	s.route("POST", "/boxes", s.create)
	s.route("GET", "/boxes", s.list)
	s.ofBox("GET", "", func(_ *http.Request, b *servicetest.CloudSandbox) (any, error) { return s.shown(b), nil })
	s.ofBox("DELETE", "", s.remove)
	s.ofBox("POST", "/start", func(_ *http.Request, b *servicetest.CloudSandbox) (any, error) { return s.after(b, s.start(b)) })
	s.ofBox("POST", "/stop", func(_ *http.Request, b *servicetest.CloudSandbox) (any, error) {
		if s.Show(b).Status == stopped {
			return s.shown(b), nil
		}
		return s.after(b, s.Stop(b))
	})
	s.snapshotRoutes()
	s.execRoutes()
	s.ofBox("PUT", "/files", s.upload)
	s.ofBoxRaw("GET", "/files", s.download)
	s.ofBox("PUT", "/network/{way}", s.setFlow)
	s.ofBox("POST", "/network/tunnel", s.tunnel)
	s.ofBox("DELETE", "/network/tunnel", s.untunnel)
	s.volumeRoutes()
	return s
}

// ofTenant checks that the path of a request is that of the key's tenant.
func ofTenant(r *http.Request, owner string) error {
	if r.PathValue("tenant") != owner {
		return servicetest.Fail(http.StatusForbidden, "not a path of this credential")
	}
	return nil
}

// route sets a route below the path of a tenant.
func (s *Server) route(method, below string, call func(r *http.Request, owner string) (any, error)) {
	s.Handle(method+" /v1/{tenant}"+below, func(r *http.Request, owner string) (any, error) {
		if err := ofTenant(r, owner); err != nil {
			return nil, err
		}
		return call(r, owner)
	})
}

// ofBox sets a route about one box.
func (s *Server) ofBox(method, below string, call func(r *http.Request, b *servicetest.CloudSandbox) (any, error)) {
	s.ofBoxRaw(method, below, func(w http.ResponseWriter, r *http.Request, b *servicetest.CloudSandbox) error {
		body, err := call(r, b)
		if err == nil {
			servicetest.Answer(w, http.StatusOK, body)
		}
		return err
	})
}

// ofBoxRaw sets a route about one box whose call writes the answer.
func (s *Server) ofBoxRaw(method, below string, call func(w http.ResponseWriter, r *http.Request, b *servicetest.CloudSandbox) error) {
	s.HandleRaw(method+" /v1/{tenant}/boxes/{box}"+below, func(w http.ResponseWriter, r *http.Request, owner string) error {
		if err := ofTenant(r, owner); err != nil {
			return err
		}
		b, err := s.find(r, owner)
		if err != nil {
			return err
		}
		return call(w, r, b)
	})
}

// find finds the box of a request by its ID or its name.
func (s *Server) find(r *http.Request, owner string) (*servicetest.CloudSandbox, error) {
	b, err := s.Find(owner, r.PathValue("box"))
	if err != nil || s.Show(b).Status == deleted {
		return nil, notFound("box", r.PathValue("box"))
	}
	return b, nil
}

func (s *Server) of(b *servicetest.CloudSandbox) *box { return s.Show(b).Request.(*box) }

func notFound(what, id string) error {
	return servicetest.Fail(http.StatusNotFound, "%s not found: %s", what, id)
}

func invalid(format string, args ...any) error {
	return servicetest.Fail(http.StatusBadRequest, format, args...)
}

// Creation is the request for a box.
type Creation struct {
	Name       *string           `json:"name"`
	Image      string            `json:"image"`
	Rootfs     string            `json:"rootfs_path"`
	CPUs       int64             `json:"cpus"`
	Memory     int64             `json:"memory_mib"`
	Disk       int64             `json:"disk_size_gb"`
	Dir        string            `json:"working_dir"`
	Env        map[string]string `json:"env"`
	Entrypoint []string          `json:"entrypoint"`
	Cmd        []string          `json:"cmd"`
	User       string            `json:"user"`
	Volumes    []Mount           `json:"volumes"`
	Network    *Network          `json:"network"`
	Secrets    []map[string]any  `json:"secrets"`
	Detach     bool              `json:"detach"`
	TTY        bool              `json:"tty"`
	AutoStop   *int64            `json:"auto_stop"`
	AutoDelete int64             `json:"auto_delete"`
	AutoResume *bool             `json:"auto_resume"`
	Advanced   map[string]any    `json:"advanced"`
}

// Mount is a managed volume in a box.
type Mount struct {
	Volume   string `json:"managed_volume"`
	Path     string `json:"guest_path"`
	ReadOnly bool   `json:"read_only"`
}

// Network is what may pass: in the present form or in the one before.
type Network struct {
	Outbound *Flow    `json:"outbound,omitempty"`
	Inbound  *Flow    `json:"inbound,omitempty"`
	Mode     string   `json:"mode,omitempty"`
	Allow    []string `json:"allow_net,omitempty"`
}

// Flow is what may pass in a direction.
type Flow struct {
	Mode  string   `json:"mode"`
	Allow []string `json:"allow_net,omitempty"`
}

var nameForm = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$`)

// images are those that the server can fetch. All of them are the backing
// provider's own.
var images = []string{"", "alpine:latest", "python:3.11-slim", "debian:12"}

func (c *Creation) check() error {
	n := c.Network
	switch {
	case c.Name != nil && !nameForm.MatchString(*c.Name):
		return invalid("name is invalid")
	case c.CPUs < 0 || c.CPUs > 32:
		return invalid("cpus must be between 1 and 32")
	case c.Memory != 0 && c.Memory < 128:
		return invalid("memory_mib must be at least 128")
	case c.AutoDelete > 0 && c.AutoStop != nil && *c.AutoStop > 0 && c.AutoDelete <= *c.AutoStop:
		return invalid("auto_delete must be greater than auto_stop")
	case n != nil && n.Mode+strings.Join(n.Allow, "") != "" && (n.Outbound != nil || n.Inbound != nil):
		return invalid("network mixes two forms")
	case n != nil && n.Inbound != nil && len(n.Inbound.Allow) > 0:
		return invalid("inbound.allow_net is not supported")
	case n != nil && n.Outbound != nil && n.Outbound.Mode != "enabled" && n.Outbound.Mode != "disabled":
		return invalid("outbound.mode is invalid")
	case !slices.Contains(images, c.Image):
		return servicetest.FailAs(http.StatusUnprocessableEntity, "image_pull_failed", "manifest unknown for %s", c.Image)
	}
	return nil
}

// normal returns the network in the present form.
func (c *Creation) normal() Network {
	n := Network{Outbound: &Flow{Mode: "enabled"}, Inbound: &Flow{Mode: "enabled"}}
	if c.Network == nil {
		return n
	}
	n.Outbound.Mode, n.Outbound.Allow = cmp.Or(c.Network.Mode, n.Outbound.Mode), c.Network.Allow
	n.Outbound, n.Inbound = cmp.Or(c.Network.Outbound, n.Outbound), cmp.Or(c.Network.Inbound, n.Inbound)
	return n
}

// create makes a box without starting it. The same idempotency key returns the
// same box.
func (s *Server) create(r *http.Request, owner string) (any, error) {
	var c Creation
	if err := servicetest.ReadStrictly(r, &c); err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	key := r.Header.Get("Idempotency-Key")
	s.mu.Lock()
	was, again := s.asked[key]
	s.mu.Unlock()
	switch {
	case !again || key == "":
	case !reflect.DeepEqual(was.Creation, c):
		return nil, servicetest.FailAs(http.StatusUnprocessableEntity, "invalid_argument", "the key was used for another request")
	case s.Show(was.box).Status != deleted:
		return s.shown(was.box), nil
	}
	var mounts []sandbox.Mount
	for _, m := range c.Volumes {
		v := s.volume(m.Volume, owner)
		switch {
		case m.ReadOnly || !path.IsAbs(m.Path):
			return nil, invalid("read-only mounts are not supported")
		case v == nil:
			return nil, notFound("volume", m.Volume)
		}
		mounts = append(mounts, sandbox.Mount{Source: v.dir, Target: m.Path})
	}
	wanted := c
	c.Image, c.CPUs, c.Memory = cmp.Or(c.Image, images[1]), cmp.Or(c.CPUs, 1), cmp.Or(c.Memory, 1024)
	b, err := s.add(owner, c, mounts, nil)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[key] = asked{wanted, b}
	return s.shown(b), nil
}

// add adds a box that is not started, or a copy of one that is stopped.
func (s *Server) add(owner string, c Creation, mounts []sandbox.Mount, from *servicetest.CloudSandbox) (*servicetest.CloudSandbox, error) {
	id := servicetest.NewID()
	name := id
	if c.Name != nil {
		name = *c.Name
	}
	made := &box{Creation: c, executions: map[string]*execution{}, tunnels: map[int]*httptest.Server{}}
	b, err := s.Make(servicetest.Sandbox{ID: id, Name: name, Owner: owner, Request: made, Mounts: mounts, Memory: c.Memory << 20}, from)
	if errors.Is(err, servicetest.ErrTaken) {
		err = servicetest.FailAs(http.StatusConflict, "already_exists", "box already exists: %s", name)
	}
	return b, err
}

const defaultAutoStop = 900

// shown is a box as the server shows it.
func (s *Server) shown(b *servicetest.CloudSandbox) map[string]any { return shown(s.Show(b)) }

func shown(now servicetest.Sandbox) map[string]any {
	c, pid := now.Request.(*box), any(nil)
	switch now.Status {
	case running:
		pid = 4242
	case starting:
		now.Status = configured
	}
	m := map[string]any{
		"box_id": now.ID, "name": c.Name, "status": now.Status, "created_at": now.Created, "updated_at": now.Created, "pid": pid, "image": c.Image,
		"cpus": c.CPUs, "memory_mib": c.Memory, "labels": map[string]string{}, "auto_stop": defaultAutoStop, "auto_delete": c.AutoDelete, "auto_resume": true,
	}
	if c.AutoStop != nil {
		m["auto_stop"] = *c.AutoStop
	}
	if c.AutoResume != nil {
		m["auto_resume"] = *c.AutoResume
	}
	return m
}

// after shows a box if what was done with it succeeded.
func (s *Server) after(b *servicetest.CloudSandbox, err error) (any, error) { return s.shown(b), err }

// Asked returns the request that created a box.
func (s *Server) Asked(name string) Creation {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b, err := s.Find(Prefix, name); err == nil {
		return s.of(b).Creation
	}
	return Creation{}
}

// Flows returns what may pass, as JSON.
func (s *Server) Flows(name string) string {
	c := s.Asked(name)
	text, _ := json.Marshal(c.normal())
	return string(text)
}

// list lists the boxes of a tenant, a page at a time.
func (s *Server) list(r *http.Request, owner string) (any, error) {
	q := r.URL.Query()
	size, err := strconv.Atoi(cmp.Or(q.Get("pageSize"), "100"))
	if err != nil || size < 1 || size > 1000 {
		return nil, invalid("pageSize must be between 1 and 1000")
	}
	all := slices.DeleteFunc(s.List(owner, nil), func(b servicetest.Sandbox) bool { return q.Get("status") != "" && q.Get("status") != b.Status })
	page, next := servicetest.After(all, q.Get("pageToken"), size)
	items := []any{}
	for _, now := range page {
		items = append(items, shown(now))
	}
	return map[string]any{"boxes": items, "next_page_token": next}, nil
}

// start starts a box, unless it runs. Requests wait for each other.
func (s *Server) start(b *servicetest.CloudSandbox) error {
	op := &s.of(b).op
	op.Lock()
	defer op.Unlock()
	if s.Show(b).Status == running {
		return nil
	}
	return s.Start(b)
}

// machine returns the machine of a box that runs.
func (s *Server) machine(b *servicetest.CloudSandbox) (driver.Instance, error) {
	in, _, err := s.Machine(b)
	if err != nil {
		err = servicetest.FailAs(http.StatusConflict, "stopped", "box is %s", s.Show(b).Status)
	}
	return in, err
}

// remove refuses, for the moment, while the state changes, and without force
// while the box runs.
func (s *Server) remove(r *http.Request, b *servicetest.CloudSandbox) (_ any, err error) {
	status := s.Show(b).Status
	if status == "paused" || status == running && r.URL.Query().Get("force") != "true" {
		return nil, servicetest.Fail(http.StatusConflict, "box is %s", status)
	}
	if err := s.Delete(b); err != nil {
		return nil, err
	}
	for _, t := range s.of(b).tunnels {
		t.Close()
	}
	now := s.Show(b)
	for _, kept := range s.Snapshots(now.Owner) {
		if strings.HasPrefix(kept.Name, now.ID+"/") {
			err = errors.Join(err, s.Forget(&kept))
		}
	}
	return nil, err
}

// snapshotRoutes are about snapshots and clones of boxes that are stopped. The
// names of snapshots are unique in a box.
func (s *Server) snapshotRoutes() {
	shown := func(b *servicetest.CloudSandbox, kept servicetest.Snapshot) map[string]any {
		_, name, _ := strings.Cut(kept.Name, "/")
		return map[string]any{
			"id": kept.ID, "box_id": s.Show(b).ID, "name": name, "created_at": kept.Created.Unix(), "guest_disk_bytes": kept.Size,
			"container_disk_bytes": kept.Size, "size_bytes": 2 * kept.Size,
		}
	}
	var body struct {
		Name *string `json:"name"`
	}
	s.ofBox("POST", "/snapshots", func(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
		in := body
		if err := servicetest.ReadStrictly(r, &in); err != nil {
			return nil, err
		}
		if in.Name == nil || !nameForm.MatchString(*in.Name) {
			return nil, invalid("name is invalid")
		}
		kept, err := s.Keep(b, servicetest.NewID(), s.Show(b).ID+"/"+*in.Name)
		if errors.Is(err, servicetest.ErrTaken) {
			err = servicetest.FailAs(http.StatusConflict, "already_exists", "snapshot already exists: %s", *in.Name)
		}
		if err != nil {
			return nil, err
		}
		return shown(b, *kept), nil
	})
	s.ofBox("GET", "/snapshots", func(_ *http.Request, b *servicetest.CloudSandbox) (any, error) {
		all, now := []any{}, s.Show(b)
		for _, kept := range s.Snapshots(now.Owner) {
			if strings.HasPrefix(kept.Name, now.ID+"/") {
				all = append(all, shown(b, kept))
			}
		}
		return map[string]any{"snapshots": all}, nil
	})
	of := func(method, below string, call func(b *servicetest.CloudSandbox, kept *servicetest.Snapshot) (any, error)) {
		s.ofBox(method, "/snapshots/{name}"+below, func(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
			now := s.Show(b)
			kept, err := s.Snapshot(now.Owner, now.ID+"/"+r.PathValue("name"))
			if err != nil {
				return nil, notFound("snapshot", r.PathValue("name"))
			}
			return call(b, kept)
		})
	}
	of("GET", "", func(b *servicetest.CloudSandbox, kept *servicetest.Snapshot) (any, error) {
		return shown(b, *kept), nil
	})
	of("DELETE", "", func(_ *servicetest.CloudSandbox, kept *servicetest.Snapshot) (any, error) { return nil, s.Forget(kept) })
	of("POST", "/restore", func(b *servicetest.CloudSandbox, kept *servicetest.Snapshot) (any, error) {
		return nil, s.Revert(b, kept)
	})
	s.ofBox("POST", "/clone", func(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
		in, now := body, s.Show(b)
		if err := servicetest.ReadStrictly(r, &in); err != nil {
			return nil, err
		}
		c := s.of(b).Creation
		c.Name = in.Name
		made, err := s.add(now.Owner, c, now.Mounts, b)
		if err != nil {
			return nil, err
		}
		return s.shown(made), nil
	})
}

// volume is a managed volume.
type volume struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	State   string    `json:"state"`
	Created time.Time `json:"created_at"`
	Updated time.Time `json:"updated_at"`

	owner, dir string
}
