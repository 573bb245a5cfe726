package fake

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/fake/internal/memfs"
	"github.com/atoll-run/atoll/sandbox"
)

// fakeSandbox is a sandbox; handles of any number of providers refer to it.
type fakeSandbox struct {
	spec     sandbox.Spec
	hostname string
	created  time.Time
	files    *memfs.FS
	life     context.Context // ends with the sandbox
	die      context.CancelFunc
	stopped  chan struct{} // closed when nothing of it runs any more
	running  sync.WaitGroup

	mu       sync.Mutex
	exit     *sandbox.Exit // set when life ends
	lifetime *time.Timer
	commands []*command // oldest first
	lastPID  int
	count    int // programs that run
	limit    int // of them
	ports    map[uint16]*listener
	frozen   chan struct{} // not nil while frozen; closed when it continues
}

// maxPrograms limits the programs of a sandbox, to stop fork bombs.
const maxPrograms = 4096

// The tree that every sandbox begins with.
var directories = map[string]uint32{
	"/bin": 0o755, "/dev": 0o755, "/etc": 0o755, "/home": 0o755, "/root": 0o700, "/tmp": 0o1777, "/usr": 0o755,
	"/usr/bin": 0o755, "/var": 0o755, "/var/tmp": 0o1777,
}

const passwd = "root:x:0:0:root:/root:/bin/sh\n"

func newFakeSandbox(spec *sandbox.Spec) (*fakeSandbox, error) {
	b := &fakeSandbox{
		spec: *spec, hostname: spec.Hostname, created: time.Now(), files: memfs.New(), stopped: make(chan struct{}),
		limit: maxPrograms, ports: map[uint16]*listener{},
	}
	b.spec.Env, b.spec.Labels = maps.Clone(spec.Env), maps.Clone(spec.Labels)
	if b.hostname == "" {
		b.hostname = spec.Name
	}
	b.life, b.die = context.WithCancel(context.Background())
	if err := b.furnish(); err != nil {
		return nil, fail(sandbox.CodeInternal, "create", string(spec.ID), err.Error())
	}
	if spec.Workdir != "" {
		if err := b.mkdirAll(path.Clean(spec.Workdir), 0o755, owner{}); err != nil {
			return nil, b.fileError("create", spec.Workdir, err)
		}
	}
	return b, nil
}

// furnish makes the initial tree.
func (s *fakeSandbox) furnish() error {
	for _, dir := range slices.Sorted(maps.Keys(directories)) {
		if err := s.files.Mkdir(dir, directories[dir]); err != nil {
			return err
		}
	}
	for _, name := range []string{"null", "zero"} {
		if err := s.files.Mkdev("/dev/"+name, 0o666, name); err != nil {
			return err
		}
	}
	files := map[string]string{"/etc/passwd": passwd, "/etc/hostname": s.hostname + "\n"}
	for name := range programs() {
		files["/bin/"+name] = magic + name
	}
	for name, text := range files {
		mode := uint32(0o644)
		if strings.HasPrefix(text, magic) {
			mode = 0o755
		}
		if err := s.put(name, text, mode); err != nil {
			return err
		}
	}
	return s.files.Symlink("../bin/env", "/usr/bin/env")
}

// put writes a file.
func (s *fakeSandbox) put(name, text string, mode uint32) error {
	f, err := s.files.Open(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err == nil {
		_, err = f.Write([]byte(text))
	}
	return err
}

// start begins the sandbox's lifetime.
func (s *fakeSandbox) start() {
	s.setLimit(s.spec.Resources.PIDs)
	if d := s.spec.Lifetime.Timeout; d > 0 {
		s.endAt(time.Now().Add(d))
	}
}

// killedExit is the end of a sandbox that is ended.
func killedExit(detail string) sandbox.Exit {
	return sandbox.Exit{Code: 137, Signal: sigKill, Reason: sandbox.ReasonKilled, Detail: detail}
}

// end ends the sandbox, the first time it is called, and returns when nothing
// of it runs any more.
func (s *fakeSandbox) end(exit sandbox.Exit) {
	s.mu.Lock()
	first := s.exit == nil
	if first {
		s.exit = &exit
		if s.lifetime != nil {
			s.lifetime.Stop()
		}
	}
	s.mu.Unlock()
	if first {
		s.die()
		s.running.Wait()
		close(s.stopped)
	}
	<-s.stopped
}

// ended returns why the sandbox has ended, nil while it lives.
func (s *fakeSandbox) ended() *sandbox.Exit {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exit == nil {
		return nil
	}
	exit := *s.exit
	return &exit
}

// gone returns an error if the sandbox has ended.
func (s *fakeSandbox) gone(op string) error {
	if s.ended() == nil {
		return nil
	}
	return fail(sandbox.CodeGone, op, string(s.spec.ID), "the sandbox has ended")
}

func (s *fakeSandbox) found() driver.Found {
	f := driver.Found{ID: s.spec.ID, State: sandbox.Running, Created: s.created, Labels: maps.Clone(s.spec.Labels)}
	if s.thawed() != nil {
		f.State = sandbox.Paused
	}
	if f.Exit = s.ended(); f.Exit != nil {
		f.State = sandbox.Stopped
	}
	return f
}

// thawed returns a channel that is closed by thaw, nil while nothing is frozen.
func (s *fakeSandbox) thawed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.frozen
}

// freeze stops programs at their next step. It reports whether they ran before.
func (s *fakeSandbox) freeze() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.frozen == nil
	if first {
		s.frozen = make(chan struct{})
	}
	return first
}

func (s *fakeSandbox) thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen != nil {
		close(s.frozen)
		s.frozen = nil
	}
}

// gate waits until the sandbox is not frozen, or ctx ends.
func (s *fakeSandbox) gate(ctx context.Context) error {
	for thawed := s.thawed(); thawed != nil; thawed = s.thawed() {
		select {
		case <-thawed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err()
}

// enter counts a program that starts, and reports whether it may; leave counts
// one that has ended.
func (s *fakeSandbox) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exit != nil || s.count >= s.limit {
		return false
	}
	s.count++
	s.running.Add(1)
	return true
}

func (s *fakeSandbox) leave() {
	s.mu.Lock()
	s.count--
	s.mu.Unlock()
	s.running.Done()
}

// setLimit limits the number of programs; 0 changes nothing.
func (s *fakeSandbox) setLimit(pids int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case pids > 0:
		s.limit = int(min(pids, maxPrograms))
	case pids < 0:
		s.limit = maxPrograms
	}
}

// lookUser understands "root", numbers, and a group after a colon; empty is
// root.
func lookUser(user string) (owner, bool) {
	name, group, grouped := strings.Cut(user, ":")
	if name == "" || name == "root" {
		name = "0"
	}
	uid, err := strconv.ParseUint(name, 10, 32)
	if err != nil {
		return owner{}, false
	}
	gid := uid
	if grouped {
		gid, err = strconv.ParseUint(group, 10, 32)
	}
	return owner{uint32(uid), uint32(gid)}, err == nil
}

// environ returns a command's environment.
func (s *fakeSandbox) environ(cmd *sandbox.Command) []string {
	env := map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", "HOSTNAME": s.hostname}
	maps.Copy(env, s.spec.Env)
	maps.Copy(env, cmd.Env)
	var list []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, fmt.Sprintf("%s=%s", name, env[name]))
	}
	return list
}
