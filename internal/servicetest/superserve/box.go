package superserve

import (
	"cmp"
	"context"
	"crypto/rand"
	"maps"
	"net/http"
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
	Starting  = "starting"
	Active    = "active"
	Pausing   = "pausing"
	Paused    = "paused"
	Resuming  = "resuming"
	Migrating = "migrating"
	Failed    = "failed"
	Deleted   = "deleted"
)

type network struct {
	AllowOut []string `json:"allow_out"`
	DenyOut  []string `json:"deny_out"`
}

type binding struct {
	EnvKey     string `json:"env_key"`
	SecretName string `json:"secret_name"`
	Revoked    bool   `json:"revoked,omitempty"`
}

// facts is a sandbox as the control plane shows it.
type facts struct {
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	Status     string            `json:"status"`
	VCPUs      int               `json:"vcpu_count"`
	Memory     int               `json:"memory_mib"`
	Created    time.Time         `json:"created_at"`
	Timeout    *int64            `json:"timeout_seconds,omitempty"`
	AutoDelete *int64            `json:"auto_delete_seconds,omitempty"`
	Network    *network          `json:"network,omitempty"`
	Metadata   map[string]string `json:"metadata"`
	Preview    string            `json:"preview_access"`
	Secrets    []binding         `json:"secrets,omitempty"`
	Source     string            `json:"source_snapshot_id,omitempty"`
}

// withToken is the answer to what gives out a token.
type withToken struct {
	facts
	Token string `json:"access_token"`
	Hint  string `json:"routing_hint,omitempty"`
}

// box is a sandbox. Its fields are the server's, under its mutex.
type box struct {
	facts
	team  string
	in    driver.Instance
	token string
	hint  string
	env   map[string]string
	ports map[int]*published

	forced string // a status that is shown in place of the real one

	awake context.Context // ends when it is paused or removed
	sleep context.CancelFunc
	timer servicetest.Timer
}

type creation struct {
	Name       string            `json:"name"`
	Template   string            `json:"from_template"`
	Snapshot   string            `json:"from_snapshot"`
	Timeout    *int64            `json:"timeout_seconds"`
	AutoDelete *int64            `json:"auto_delete_seconds"`
	Metadata   map[string]string `json:"metadata"`
	Env        map[string]string `json:"env_vars"`
	Secrets    map[string]string `json:"secrets"`
	Network    *network          `json:"network"`
	Preview    string            `json:"preview_access"`
}

// The limits of the service, in seconds.
const (
	maxTimeout    = 604800
	maxAutoDelete = 30 * 24 * 3600
	maxName       = 64
)

func (c *creation) check() error {
	bad := func(what string) error { return fail(http.StatusBadRequest, "validation_error", "%s is invalid", what) }
	switch {
	case c.Name == "" || len(c.Name) > maxName:
		return bad("name")
	case c.Timeout != nil && (*c.Timeout < 1 || *c.Timeout > maxTimeout):
		return bad("timeout_seconds")
	case c.AutoDelete != nil && (*c.AutoDelete < 0 || *c.AutoDelete > maxAutoDelete):
		return bad("auto_delete_seconds")
	case c.Template != "" && c.Snapshot != "":
		return bad("from_snapshot")
	case !slices.Contains([]string{"", "public", "private"}, c.Preview):
		return bad("preview_access")
	}
	return nil
}

// create makes a sandbox. It is active when the response is sent.
func (s *Server) create(r *http.Request, team string) (int, any, error) {
	var c creation
	if err := read(r, &c); err != nil {
		return 0, nil, err
	}
	if err := c.check(); err != nil {
		return 0, nil, err
	}
	b := &box{
		team: team, env: orEmpty(c.Env), ports: map[int]*published{},
		facts: facts{
			ID: newID(), Name: c.Name, Status: Active, VCPUs: 1, Memory: 1024, Created: time.Now().UTC(), Timeout: c.Timeout, AutoDelete: c.AutoDelete,
			Network: c.Network, Metadata: orEmpty(c.Metadata), Preview: cmp.Or(c.Preview, "legacy_public"), Source: c.Snapshot,
		},
	}
	if err := s.bindAll(b, c.Secrets); err != nil {
		return 0, nil, err
	}
	// The service continues when its client has given up.
	if err := s.boot(context.WithoutCancel(r.Context()), b, &c); err != nil {
		return 0, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.boxes[b.ID] = b
	s.awaken(b)
	return http.StatusCreated, withToken{b.facts, b.token, b.hint}, nil
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

func (s *Server) boot(ctx context.Context, b *box, c *creation) (err error) {
	s.mu.Lock()
	s.serial++
	id := sandbox.ID("ss-" + strconv.Itoa(s.serial) + "-" + b.ID[:8])
	tmpl, sn := s.templates[cmp.Or(c.Template, "superserve/base")], s.snapshots[c.Snapshot]
	s.mu.Unlock()
	spec := &sandbox.Spec{ID: id, Name: string(id), Image: "host", Resources: sandbox.Resources{Memory: 1 << 30, Disk: 1 << 30, PIDs: 1024}}
	switch {
	case c.Snapshot != "" && (sn == nil || sn.team != b.team):
		return notFound("snapshot", c.Snapshot)
	case c.Snapshot != "" && sn.Status != "ready":
		return fail(http.StatusConflict, "conflict", "snapshot is not ready")
	case c.Snapshot != "":
		restorer, ok := driver.As[driver.Restorer](s.backing)
		if !ok {
			return fail(http.StatusNotImplemented, "unsupported", "no snapshots")
		}
		b.in, _, err = restorer.Restore(ctx, spec, sn.ref)
		return err
	case tmpl == nil:
		return fail(http.StatusBadRequest, "validation_error", "template %s not found", c.Template)
	}
	b.in, err = s.backing.Create(ctx, spec)
	return err
}

// awaken gives a sandbox that runs from now on a new token and its time. The
// mutex is held.
func (s *Server) awaken(b *box) {
	b.Status = Active
	b.awake, b.sleep = context.WithCancel(context.Background())
	s.rotate(b)
	s.limit(b)
}

func (s *Server) rotate(b *box) {
	b.token, b.hint = "tok_"+rand.Text(), hint(time.Now().Add(time.Hour))
}

// limit has the sandbox pause when its active time is over.
func (s *Server) limit(b *box) {
	if b.Timeout == nil {
		b.timer.Set(0, nil)
		return
	}
	b.timer.Set(time.Duration(*b.Timeout)*time.Second, func() { _ = s.pause(context.Background(), b) })
}

// get finds a sandbox of a team.
func (s *Server) get(id, team string) (*box, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.boxes[id]
	if b == nil || b.team != team {
		return nil, notFound("sandbox", id)
	}
	return b, nil
}

func (s *Server) shown(b *box) facts {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := b.facts
	if b.forced != "" {
		f.Status = b.forced
	}
	return f
}

// Force has the service show a status in place of the real one, and act by it.
// Empty ends that.
func (s *Server) Force(id, status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.boxes[id]; b != nil {
		b.forced = status
	}
}

// IDs returns the ids of all sandboxes, in no particular order.
func (s *Server) IDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.boxes))
}

// Rotate takes the sandbox's token back, as another client does that connects.
func (s *Server) Rotate(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.boxes[id]; b != nil {
		s.rotate(b)
	}
}

// list lists the sandboxes of a team, filtered by metadata and status.
func (s *Server) list(r *http.Request, team string) (int, any, error) {
	q := r.URL.Query()
	all := []facts{}
	for _, id := range s.IDs() {
		b, err := s.get(id, team)
		if err != nil {
			continue
		}
		f := s.shown(b)
		fits := q.Get("status") == "" || slices.Contains(strings.Split(q.Get("status"), ","), f.Status)
		for name, values := range q {
			if key, ok := strings.CutPrefix(name, "metadata."); ok && f.Metadata[key] != values[0] {
				fits = false
			}
		}
		if fits {
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b facts) int { return cmp.Or(b.Created.Compare(a.Created), strings.Compare(a.ID, b.ID)) })
	offset, _ := strconv.Atoi(q.Get("offset"))
	all = all[min(offset, len(all)):]
	if limit, err := strconv.Atoi(q.Get("limit")); err == nil {
		all = all[:min(limit, len(all))]
	}
	return http.StatusOK, all, nil
}
