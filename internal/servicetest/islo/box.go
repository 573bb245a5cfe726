package islo

import (
	"cmp"
	"context"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

// The statuses of a sandbox.
const (
	Starting = "starting"
	Running  = "running"
	Pausing  = "pausing"
	Paused   = "paused"
	Stopping = "stopping"
	Stopped  = "stopped"
	Resuming = "resuming"
	Failed   = "failed"
	Deleted  = "deleted"
)

type spec struct {
	CPUs   int64 `json:"vcpus"`
	Memory int64 `json:"memory_mb"`
	Disk   int64 `json:"disk_gb"`
}

type lifecycle struct {
	AutoResume     string `json:"auto_resume,omitempty"`
	DeleteAfter    *int64 `json:"delete_after,omitempty"`
	PauseAfter     *int64 `json:"pause_after,omitempty"`
	PauseAfterIdle *int64 `json:"pause_after_idle,omitempty"`
}

// facts is a sandbox as the service shows it.
type facts struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Status    string     `json:"status"`
	Image     string     `json:"image"`
	Workdir   string     `json:"workdir,omitempty"`
	Spec      spec       `json:"spec"`
	Lifecycle lifecycle  `json:"lifecycle"`
	Created   time.Time  `json:"created_at"`
	Deleted   *time.Time `json:"deleted_at,omitempty"`
}

// box is a sandbox. Its fields are the server's, under its mutex.
type box struct {
	facts
	tenant   string
	in       driver.Instance
	env      map[string]string
	profile  string // id of its gateway profile
	internet bool
	shares   []*share
	sessions []*session
	execs    map[string]*execution

	forced string              // a status that is shown in place of the real one
	frozen *driver.SnapshotRef // its files, while it is stopped

	awake context.Context // ends when it is paused, stopped or removed
	sleep context.CancelFunc
	timer servicetest.Timer
}

type creation struct {
	Name        string            `json:"name"`
	Image       string            `json:"image"`
	CPUs        int64             `json:"vcpus"`
	Memory      int64             `json:"memory_mb"`
	Disk        int64             `json:"disk_gb"`
	Env         map[string]string `json:"env"`
	Workdir     string            `json:"workdir"`
	Profile     string            `json:"gateway_profile"`
	Internet    *bool             `json:"internet_enabled"`
	Snapshot    string            `json:"snapshot_name"`
	Lifecycle   lifecycle         `json:"lifecycle"`
	Request     string            `json:"request_id"`
	Init        map[string]any    `json:"init"` // this and what follows does nothing here
	Environment string            `json:"environment"`
	Scripts     []map[string]any  `json:"setup_scripts"`
	Sources     []map[string]any  `json:"sources"`
	CacheKey    string            `json:"cache_key"`
}

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,254}$`)

// images are those that the service can fetch. Empty is its default.
var images = []string{"", "docker.io/library/python:3.12-slim"}

func (c *creation) check() error {
	switch {
	case c.Name != "" && !nameForm.MatchString(c.Name):
		return invalid("name is invalid")
	case !slices.Contains(images, c.Image):
		return fail(http.StatusBadRequest, "INVALID_REQUEST", "image %s cannot be pulled", c.Image)
	case c.Lifecycle.DeleteAfter != nil && (*c.Lifecycle.DeleteAfter < 60 || *c.Lifecycle.DeleteAfter%60 != 0):
		return invalid("delete_after must be a multiple of 60")
	case !slices.Contains([]string{"", "never", "on_activity"}, c.Lifecycle.AutoResume):
		return invalid("auto_resume is invalid")
	case min(c.CPUs, c.Memory, c.Disk) < 0:
		return invalid("the size is invalid")
	}
	return nil
}

// create makes a sandbox. It is running or starting when the response is sent.
func (s *Server) create(r *http.Request, tenant string) (int, any, error) {
	var c creation
	if err := read(r, &c); err != nil {
		return 0, nil, err
	}
	if err := c.check(); err != nil {
		return 0, nil, err
	}
	b := &box{
		tenant: tenant, env: c.Env, execs: map[string]*execution{}, internet: c.Internet == nil || *c.Internet,
		facts: facts{
			ID: newID(), Name: c.Name, Status: Starting, Image: cmp.Or(c.Image, "ghcr.io/islo-labs/islo-runner:latest"), Workdir: c.Workdir,
			Spec: spec{cmp.Or(c.CPUs, 1), cmp.Or(c.Memory, 1024), cmp.Or(c.Disk, 10)}, Lifecycle: c.Lifecycle, Created: time.Now().UTC(),
		},
	}
	if b.Name == "" {
		b.Name = "sandbox-" + b.ID[:8]
	}
	if err := s.reserve(b, &c); err != nil {
		return 0, nil, err
	}
	if err := s.unlessSlow(func() error { return s.boot(context.Background(), b, c.Snapshot) }); err != nil { // even if the client has given up
		return 0, nil, err
	}
	return http.StatusCreated, s.shown(b), nil
}

// unlessSlow does something, and waits for it unless transitions take a while.
func (s *Server) unlessSlow(f func() error) error {
	s.mu.Lock()
	takes := s.takes
	s.mu.Unlock()
	done := make(chan error, 1)
	s.work.Go(func() {
		time.Sleep(takes)
		done <- f()
	})
	if takes > 0 {
		return nil
	}
	return <-done
}

// reserve gives a sandbox its name and its profile.
func (s *Server) reserve(b *box, c *creation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.boxes {
		if other.tenant == b.tenant && other.Name == b.Name && other.Status != Deleted {
			return fail(http.StatusConflict, "SANDBOX_ALREADY_EXISTS", "sandbox %s already exists", b.Name)
		}
	}
	for _, p := range s.profiles {
		if p.tenant == b.tenant && (p.Name == c.Profile || p.ID == c.Profile || c.Profile == "" && p.IsDefault) {
			b.profile = p.ID
		}
	}
	switch {
	case c.Profile != "" && b.profile == "":
		return fail(http.StatusBadRequest, "INVALID_REQUEST", "gateway profile %s not found", c.Profile)
	case c.Snapshot != "" && s.snapshot(b.tenant, c.Snapshot) == nil:
		return fail(http.StatusNotFound, "RESOURCE_NOT_FOUND", "snapshot %s not found", c.Snapshot)
	}
	s.boxes = append(s.boxes, b)
	return nil
}

func (s *Server) boot(ctx context.Context, b *box, from string) (err error) {
	var ref *driver.SnapshotRef
	s.mu.Lock()
	if sn := s.snapshot(b.tenant, from); sn != nil {
		ref = &sn.ref
	}
	s.mu.Unlock()
	if err = s.start(ctx, b, ref); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.boxes = slices.DeleteFunc(s.boxes, func(other *box) bool { return other == b })
		return fail(http.StatusServiceUnavailable, "SANDBOX_PROVISIONING_FAILED", "%v", err)
	}
	if after := b.Lifecycle.DeleteAfter; after != nil {
		b.timer.Set(time.Duration(*after)*time.Second, func() { _ = s.remove(context.Background(), b) })
	}
	return nil
}

// start starts a machine, with its own files or a snapshot's.
func (s *Server) start(ctx context.Context, b *box, from *driver.SnapshotRef) (err error) {
	s.mu.Lock()
	s.serial++
	id := sandbox.ID("islo-" + strconv.Itoa(s.serial) + "-" + b.ID[:8])
	s.mu.Unlock()
	own := &sandbox.Spec{ID: id, Name: string(id), Image: "host", Resources: sandbox.Resources{Memory: 1 << 30, Disk: 1 << 30, PIDs: 1024}}
	var in driver.Instance
	if from == nil {
		in, err = s.backing.Create(ctx, own)
	} else {
		restorer, ok := driver.As[driver.Restorer](s.backing)
		if !ok {
			return fail(http.StatusServiceUnavailable, "RESOURCE_UNAVAILABLE", "no snapshots")
		}
		in, _, err = restorer.Restore(ctx, own, *from)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b.in = in
	s.awaken(b)
	return nil
}

// awaken notes that a sandbox runs. The mutex is held.
func (s *Server) awaken(b *box) {
	b.Status = Running
	b.awake, b.sleep = context.WithCancel(context.Background())
}

// all returns the sandboxes that were not deleted.
func (s *Server) all() []*box {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.boxes), func(b *box) bool { return b.Status == Deleted })
}

func noSandbox(name string) error {
	return fail(http.StatusNotFound, "SANDBOX_NOT_FOUND", "sandbox %s not found", name)
}

// get finds a sandbox of a tenant by its name.
func (s *Server) get(name, tenant string) (*box, error) {
	for _, b := range s.all() {
		if b.tenant == tenant && b.Name == name {
			return b, nil
		}
	}
	return nil, noSandbox(name)
}

func (s *Server) shown(b *box) facts {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := b.facts
	f.Status = cmp.Or(b.forced, f.Status)
	return f
}

// Force has the service show a status in place of the real one, and act by it.
// Empty ends that.
func (s *Server) Force(name, status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.boxes {
		if b.Name == name {
			b.forced = status
		}
	}
}

// Names returns the names of the sandboxes that there are.
func (s *Server) Names() (names []string) {
	for _, b := range s.all() {
		names = append(names, b.Name)
	}
	return names
}

// list lists the sandboxes of a tenant, also those that were deleted.
func (s *Server) list(r *http.Request, tenant string) (int, any, error) {
	q := r.URL.Query()
	s.mu.Lock()
	boxes := slices.Clone(s.boxes)
	s.mu.Unlock()
	found := []facts{}
	for _, b := range boxes {
		f := s.shown(b)
		fits := b.tenant == tenant && strings.HasPrefix(f.Name, q.Get("name_prefix")) && strings.Contains(f.Name, cmp.Or(q.Get("search"), q.Get("q")))
		if fits && (len(q["status"]) == 0 || slices.Contains(q["status"], f.Status)) {
			found = append(found, f)
		}
	}
	return http.StatusOK, page(r, found), nil
}

// byID also finds a sandbox that was deleted.
func (s *Server) byID(r *http.Request, tenant string) (int, any, error) {
	s.mu.Lock()
	boxes := slices.Clone(s.boxes)
	s.mu.Unlock()
	for _, b := range boxes {
		if b.ID == r.PathValue("id") && b.tenant == tenant {
			return http.StatusOK, s.shown(b), nil
		}
	}
	return 0, nil, noSandbox(r.PathValue("id"))
}
