package boxlite

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

// The statuses of a box.
const (
	Configured = "configured"
	Running    = "running"
	Stopping   = "stopping"
	Stopped    = "stopped"
	Paused     = "paused"
	Failed     = "failed"
	Unknown    = "unknown"
)

// facts are a box as the server shows it.
type facts struct {
	ID         string            `json:"box_id"`
	Name       *string           `json:"name"`
	Status     string            `json:"status"`
	Created    time.Time         `json:"created_at"`
	Updated    time.Time         `json:"updated_at"`
	PID        *int              `json:"pid"`
	Image      string            `json:"image"`
	CPUs       int64             `json:"cpus"`
	Memory     int64             `json:"memory_mib"`
	Labels     map[string]string `json:"labels"`
	AutoStop   int64             `json:"auto_stop"`
	AutoDelete int64             `json:"auto_delete"`
	AutoResume bool              `json:"auto_resume"`
}

// box is a box. The server's mutex guards its fields, except those for the
// holder of op.
type box struct {
	facts
	Asked  Creation
	tenant string
	forced string // a status that is shown in place of the real one

	executions map[string]*execution
	snapshots  map[string]*snapshot
	tunnels    map[int]*httptest.Server
	idle       servicetest.Timer

	op    sync.Mutex // held while the state changes
	in    driver.Instance
	disk  driver.SnapshotRef // of a stopped box
	awake context.Context    // ends when it stops
	sleep context.CancelFunc
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
		return fail(http.StatusUnprocessableEntity, "image_pull_failed", "manifest unknown for %s", c.Image)
	}
	return nil
}

// normal returns the network in the present form.
func (c *Creation) normal() Network {
	n := Network{Outbound: &Flow{Mode: "enabled"}, Inbound: &Flow{Mode: "enabled"}}
	if c.Network == nil {
		return n
	}
	if c.Network.Mode != "" {
		n.Outbound.Mode = c.Network.Mode
	}
	n.Outbound.Allow = c.Network.Allow
	if c.Network.Outbound != nil {
		n.Outbound = c.Network.Outbound
	}
	if c.Network.Inbound != nil {
		n.Inbound = c.Network.Inbound
	}
	return n
}

const defaultAutoStop = 900

// create makes a box without starting it. The same idempotency key returns the same box.
func (s *Server) create(r *http.Request) (int, any, error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, nil, invalid("%v", err)
	}
	r.Body = io.NopCloser(bytes.NewReader(text))
	var c Creation
	if err := read(r, &c); err != nil {
		return 0, nil, err
	}
	if err := c.check(); err != nil {
		return 0, nil, err
	}
	key := r.Header.Get("Idempotency-Key")
	s.mu.Lock()
	defer s.mu.Unlock()
	if was, ok := s.asked[key]; ok && key != "" {
		if was.body != string(text) {
			return 0, nil, fail(http.StatusUnprocessableEntity, "invalid_argument", "the key was used for another request")
		}
		if b := s.boxes[was.box]; b != nil {
			return http.StatusCreated, b.facts, nil
		}
	}
	for _, m := range c.Volumes {
		if m.ReadOnly || !path.IsAbs(m.Path) {
			return 0, nil, invalid("read-only mounts are not supported")
		}
		if v := s.volume(m.Volume, tenantOf(r)); v == nil {
			return 0, nil, notFound("volume", m.Volume)
		}
	}
	b, err := s.add(tenantOf(r), c)
	if err != nil {
		return 0, nil, err
	}
	if key != "" {
		s.asked[key] = request{string(text), b.ID}
	}
	return http.StatusCreated, b.facts, nil
}

// add adds a box that was not started. The mutex is held.
func (s *Server) add(tenant string, c Creation) (*box, error) {
	for _, other := range s.boxes {
		if c.Name != nil && other.tenant == tenant && other.Name != nil && *other.Name == *c.Name {
			return nil, fail(http.StatusConflict, "already_exists", "box already exists: %s", *c.Name)
		}
	}
	now := time.Now().UTC()
	c.Image = cmp.Or(c.Image, images[1])
	b := &box{
		Asked: c, tenant: tenant, executions: map[string]*execution{}, snapshots: map[string]*snapshot{}, tunnels: map[int]*httptest.Server{},
		facts: facts{
			ID: "bx" + rand.Text(), Name: c.Name, Status: Configured, Created: now, Updated: now, Image: c.Image, CPUs: cmp.Or(c.CPUs, 1),
			Memory: cmp.Or(c.Memory, 1024), Labels: map[string]string{}, AutoStop: defaultAutoStop, AutoDelete: c.AutoDelete, AutoResume: true,
		},
	}
	if c.AutoStop != nil {
		b.AutoStop = *c.AutoStop
	}
	if c.AutoResume != nil {
		b.AutoResume = *c.AutoResume
	}
	s.boxes[b.ID] = b
	return b, nil
}

// find finds the box of a request by its id or its name.
func (s *Server) find(r *http.Request) (*box, error) {
	id := r.PathValue("id")
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.boxes {
		if b.tenant == tenantOf(r) && (b.ID == id || b.Name != nil && *b.Name == id) {
			return b, nil
		}
	}
	return nil, notFound("box", id)
}

func (s *Server) all() []*box {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.boxes))
}

// IDs returns the ids of all boxes, in no particular order.
func (s *Server) IDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.boxes))
}

// Asked returns the request that created a box.
func (s *Server) Asked(id string) Creation {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.boxes[id]; b != nil {
		return b.Asked
	}
	return Creation{}
}

func (s *Server) shown(b *box) facts {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := b.facts
	f.Status = cmp.Or(b.forced, f.Status)
	return f
}

func (s *Server) status(b *box) string { return s.shown(b).Status }

// Force has the server show a status in place of the real one, and act by it.
// Empty ends that.
func (s *Server) Force(id, status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.boxes[id]; b != nil {
		b.forced = status
	}
}

func (s *Server) set(b *box, status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.Status, b.Updated, b.PID = status, time.Now().UTC(), nil
	if status == Running {
		pid := 4242
		b.PID = &pid
	}
}

// list lists the boxes of a tenant, a page at a time.
func (s *Server) list(r *http.Request) (int, any, error) {
	q := r.URL.Query()
	var all []facts
	for _, b := range s.all() {
		f := s.shown(b)
		if b.tenant == tenantOf(r) && (q.Get("status") == "" || q.Get("status") == f.Status) {
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b facts) int { return strings.Compare(a.ID, b.ID) })
	size, err := strconv.Atoi(cmp.Or(q.Get("pageSize"), "100"))
	if err != nil || size < 1 || size > 1000 {
		return 0, nil, invalid("pageSize must be between 1 and 1000")
	}
	for len(all) > 0 && all[0].ID <= q.Get("pageToken") {
		all = all[1:]
	}
	page := map[string]any{"boxes": append([]facts{}, all[:min(size, len(all))]...), "next_page_token": nil}
	if len(all) > size {
		page["next_page_token"] = all[size-1].ID
	}
	return http.StatusOK, page, nil
}

func (s *Server) transition() {
	s.mu.Lock()
	takes := s.takes
	s.mu.Unlock()
	time.Sleep(takes)
}

func (s *Server) startCall(r *http.Request, b *box) (int, any, error) {
	if err := s.start(context.WithoutCancel(r.Context()), b); err != nil {
		return 0, nil, err
	}
	return http.StatusOK, s.shown(b), nil
}

// start starts a box, from its disk if it has one.
func (s *Server) start(ctx context.Context, b *box) error {
	b.op.Lock()
	defer b.op.Unlock()
	switch status := s.status(b); status {
	case Running:
		s.touch(b)
		return nil
	case Configured, Stopped:
	default:
		return conflict("box is %s", status)
	}
	s.transition()
	s.mu.Lock()
	_, there := s.boxes[b.ID]
	s.serial++
	id := sandbox.ID("bl-" + strconv.Itoa(s.serial) + "-" + strings.ToLower(b.ID[2:10]))
	spec := &sandbox.Spec{ID: id, Name: string(id), Image: "host", Resources: sandbox.Resources{Memory: b.Memory << 20, Disk: 1 << 30, PIDs: 1024}}
	for _, m := range b.Asked.Volumes {
		if v := s.volume(m.Volume, b.tenant); v != nil {
			spec.Mounts = append(spec.Mounts, sandbox.Mount{Source: v.dir, Target: m.Path})
		}
	}
	s.mu.Unlock()
	if !there {
		return notFound("box", b.ID)
	}
	err := s.boot(ctx, b, spec)
	if err != nil {
		return err
	}
	b.awake, b.sleep = context.WithCancel(context.Background())
	s.set(b, Running)
	s.touch(b)
	return nil
}

func (s *Server) boot(ctx context.Context, b *box, spec *sandbox.Spec) (err error) {
	if b.disk.Data == "" {
		b.in, err = s.backing.Create(ctx, spec)
		return err
	}
	restorer, _ := driver.As[driver.Restorer](s.backing)
	if b.in, _, err = restorer.Restore(ctx, spec, b.disk); err != nil {
		return err
	}
	return s.drop(ctx, &b.disk)
}

// keeper is what the backing provider must have.
type keeper interface {
	driver.SnapshotKeeper
	driver.SnapshotCopier
	driver.SnapshotExporter
}

func (s *Server) keeper() keeper {
	k, _ := driver.As[keeper](s.backing)
	return k
}

// drop removes a disk.
func (s *Server) drop(ctx context.Context, disk *driver.SnapshotRef) error {
	if disk.Data == "" {
		return nil
	}
	err := s.keeper().RemoveSnapshot(ctx, *disk)
	*disk = driver.SnapshotRef{}
	return err
}

func newDisk() string { return "bl-disk-" + strings.ToLower(rand.Text()[:16]) }

// touch says that a box is used: it stops when it was not for a while.
func (s *Server) touch(b *box) {
	s.mu.Lock()
	after := b.AutoStop
	s.mu.Unlock()
	b.idle.Set(time.Duration(after)*time.Second, func() { _ = s.stop(context.Background(), b) })
}

func (s *Server) stopCall(r *http.Request, b *box) (int, any, error) {
	var c struct {
		Timeout float64 `json:"timeout_seconds"`
	}
	if err := read(r, &c); err != nil && r.ContentLength != 0 {
		return 0, nil, err
	}
	if err := s.stop(context.WithoutCancel(r.Context()), b); err != nil {
		return 0, nil, err
	}
	return http.StatusOK, s.shown(b), nil
}

// Stop stops a box, as another client does.
func (s *Server) Stop(ctx context.Context, id string) error {
	s.mu.Lock()
	b := s.boxes[id]
	s.mu.Unlock()
	return s.stop(ctx, b)
}

// stop stops a box: its processes end, and its disk stays.
func (s *Server) stop(ctx context.Context, b *box) error {
	b.op.Lock()
	defer b.op.Unlock()
	switch status := s.status(b); status {
	case Running:
	case Stopped:
		return nil
	default:
		return conflict("box is %s", status)
	}
	b.idle.Set(0, nil)
	s.set(b, Stopping)
	b.sleep()
	s.transition()
	shot, ok := driver.As[driver.Snapshotter](b.in)
	if !ok {
		return errors.New("the backing provider has no snapshots")
	}
	saved, err := shot.Snapshot(ctx, driver.SnapshotOptions{ID: newDisk(), Stop: true})
	if err == nil {
		err = b.in.Destroy(ctx)
	}
	if err != nil {
		s.set(b, Failed)
		return err
	}
	b.in, b.disk = nil, saved.Ref
	s.mu.Lock()
	clear(b.executions)
	after := b.AutoDelete
	s.mu.Unlock()
	s.set(b, Stopped)
	b.idle.Set(time.Duration(after)*time.Second, func() { _ = s.remove(context.Background(), b) })
	return nil
}

// deleteCall refuses, for the moment, while the state changes, and without force
// while the box runs.
func (s *Server) deleteCall(r *http.Request, b *box) (int, any, error) {
	switch status := s.status(b); {
	case status == Stopping || status == Paused:
		return 0, nil, conflict("box is %s", status)
	case status == Running && r.URL.Query().Get("force") != "true":
		return 0, nil, conflict("box is running")
	}
	return http.StatusNoContent, nil, s.remove(context.WithoutCancel(r.Context()), b)
}

func (s *Server) remove(ctx context.Context, b *box) error {
	b.op.Lock()
	defer b.op.Unlock()
	b.idle.Set(0, nil)
	s.mu.Lock()
	_, there := s.boxes[b.ID]
	delete(s.boxes, b.ID)
	tunnels := slices.Collect(maps.Values(b.tunnels))
	clear(b.tunnels)
	s.mu.Unlock()
	if !there {
		return nil
	}
	for _, t := range tunnels {
		t.Close()
	}
	var errs []error
	if b.in != nil {
		b.sleep()
		errs = append(errs, b.in.Destroy(ctx))
		b.in = nil
	}
	errs = append(errs, s.drop(ctx, &b.disk))
	for _, sn := range b.snapshots {
		errs = append(errs, s.drop(ctx, &sn.disk))
	}
	return errors.Join(errs...)
}

// running returns the machine of a running box, and a channel that is closed
// when it stops.
func (s *Server) running(b *box) (driver.Instance, context.Context, error) {
	b.op.Lock()
	defer b.op.Unlock()
	if status := s.status(b); status != Running || b.in == nil {
		return nil, nil, fail(http.StatusConflict, "stopped", "box is %s", status)
	}
	s.touch(b)
	return b.in, b.awake, nil
}

// setFlow replaces what may pass in a direction.
func (s *Server) setFlow(r *http.Request, b *box) (int, any, error) {
	var f Flow
	if err := read(r, &f); err != nil {
		return 0, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := b.Asked.normal()
	if strings.HasSuffix(r.URL.Path, "/outbound") {
		n.Outbound = &f
	} else {
		n.Inbound = &f
	}
	b.Asked.Network = &n
	return http.StatusNoContent, nil, nil
}

// Flows returns what may pass, as JSON.
func (s *Server) Flows(id string) string {
	c := s.Asked(id)
	text, _ := json.Marshal(c.normal())
	return string(text)
}
