package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
)

// soakTime is the duration of TestSoak.
func soakTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("ATOLL_SOAK_TIME")
	if text == "" {
		return 20 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// soak is a soaker with additional faults: its disk fills, processes are
// stopped, and daemons of two builds alternate.
type soak struct {
	*soaker
	disk   string
	next   string         // the other build
	net    *atoll.Sandbox // has a network and a workspace, so it needs the gateway and a file server
	faults map[string]int

	trees map[string]string // contents of the last acknowledged version of each workspace
	bytes int64             // read by slow readers

	sessions, moved int      // that did everything, and those that had a sandbox of another provider too
	givenUp         []string // sessions that did not
}

// TestSoak combines all faults and all client operations for ATOLL_SOAK_TIME,
// and compares what was acknowledged with what exists. In the end nothing may
// be left.
func TestSoak(t *testing.T) {
	fullOnly(t)
	disk := smallDisk(t, "2g")
	next := filepath.Join(built.dir, "atoll-soak")
	goBuild(t, next, ".", "", "-tags=next")
	own := filepath.Join(built.dir, "atoll-there") // leaveNothing looks for processes of the others
	if err := copyFile(built.atoll, own); err != nil {
		t.Fatal(err)
	}
	there := another(t, own)
	s := &soak{soaker: soakerIn(t, filepath.Join(disk, "state")), disk: disk, next: next, faults: map[string]int{}, trees: map[string]string{}}
	var err error
	s.net, err = s.client.Create(t.Context(), sandbox.Spec{
		Name: "net", Resources: sandbox.Resources{Memory: 256 << 20}, Network: sandbox.Network{Egress: []string{}},
		Workspaces: []sandbox.WorkspaceMount{{Name: "held", Create: true}},
	}, atoll.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.alive["net"] = s.net.ID()
	ctx, cancel := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	for worker := range 3 {
		workers.Go(func() { s.work(ctx, t, worker) })
	}
	workers.Go(func() { s.each(ctx, t, s.readSlowly) })
	workers.Go(func() { s.each(ctx, t, s.version) })
	workers.Go(func() { s.each(ctx, t, s.session) })
	for end := time.Now().Add(soakTime(t)); time.Now().Before(end) || s.idle() && time.Now().Before(end.Add(time.Minute)); {
		s.fault(t)
	}
	cancel()
	workers.Wait()
	s.compare(t)
	s.compareTrees(t)
	t.Logf("faults %v, workspace versions %d, slow readers read %d bytes, sessions %d, moved %d, given up %d", s.faults, len(s.trees), s.bytes, s.sessions, s.moved, len(s.givenUp))
	s.compareSessions(t, there)
	s.leaveNothing(t)
}

// harm is a named fault.
type harm struct {
	name string
	do   func(*testing.T)
}

// fault causes one fault and ends it.
func (s *soak) fault(t *testing.T) {
	harms := []harm{
		{"kill", func(t *testing.T) { s.kill(); s.comeBack(t) }},
		{"upgrade", func(t *testing.T) {
			s.kill()
			s.bin, s.next = s.next, s.bin
			s.comeBack(t)
		}},
		{"full disk", func(t *testing.T) {
			empty := fill(t, s.disk, 0)
			s.pause()
			empty()
		}},
		{"full disk and kill", func(t *testing.T) {
			empty := fill(t, s.disk, 0)
			s.pause()
			s.kill()
			if s.tryStart(t) {
				empty()
				return
			}
			empty()
			s.comeBack(t)
		}},
		{"stopped gateway", func(t *testing.T) { s.stopFor(findGateway(s.daemon.Process.Pid)) }},
		{"stopped kernel", func(*testing.T) { kernel, _ := s.processes(s.some()); s.stopFor(kernel) }},
		{"stopped pool", func(*testing.T) { s.stopFor(s.pool()) }},
		{"stopped file server", func(*testing.T) { _, gofer := s.processes(s.net.ID()); s.stopFor(gofer) }},
	}
	if os.Getenv("ATOLL_SOAK_CLOCK") != "" {
		harms = append(harms, harm{"clock", s.stepClock})
	}
	now := harms[rand.IntN(len(harms))]
	now.do(t)
	s.faults[now.name]++
	s.pause()
}

// pause waits for a random time without a fault.
func (s *soak) pause() { time.Sleep(time.Duration(200+rand.IntN(2500)) * time.Millisecond) }

func (s *soak) comeBack(t *testing.T) {
	t.Helper()
	s.start(t)
}

// stopFor stops a process for a moment. It ignores a missing process.
func (s *soak) stopFor(pid int) {
	if pid < 2 || syscall.Kill(pid, syscall.SIGSTOP) != nil {
		return
	}
	s.pause()
	_ = syscall.Kill(pid, syscall.SIGCONT)
}

// stepClock sets the machine's clock forward and back.
func (s *soak) stepClock(t *testing.T) {
	step := func(d time.Duration) {
		at := unix.NsecToTimeval(time.Now().Add(d).UnixNano())
		if err := unix.Settimeofday(&at); err != nil {
			t.Fatal(err)
		}
	}
	const far = time.Hour
	step(far)
	s.pause()
	step(-far)
}

// some returns a sandbox that probably lives.
func (s *soak) some() sandbox.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range s.alive {
		return id
	}
	return s.net.ID()
}

// processes returns the kernel and the file server of a sandbox, zero without
// one.
func (s *soak) processes(id sandbox.ID) (kernel, gofer int) {
	text, err := os.ReadFile(filepath.Join(s.state, "gvisor", "boxes", string(id), "record.json"))
	var r struct{ Kernel, Gofer struct{ PID int } }
	if err != nil || json.Unmarshal(text, &r) != nil {
		return 0, 0
	}
	return r.Kernel.PID, r.Gofer.PID
}

// pool returns the process that has the daemon's warm sandboxes, zero without
// one.
func (s *soak) pool() int {
	for pid, args := range processesOf(s.bin) {
		if strings.HasPrefix(args, fmt.Sprintf("atoll-pool %d ", s.daemon.Process.Pid)) {
			return pid
		}
	}
	return 0
}

// each calls do repeatedly.
func (s *soak) each(ctx context.Context, t *testing.T, do func(context.Context, *testing.T, int) error) {
	for i := 0; ctx.Err() == nil; i++ {
		late, done := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
		if err := do(late, t, i); err != nil && late.Err() == nil {
			t.Error(err)
		}
		done()
	}
}

// readSlowly reads more than fits into any buffer, slower than it is written.
func (s *soak) readSlowly(ctx context.Context, _ *testing.T, _ int) error {
	const size = 3 << 20
	var p *atoll.Process
	err := persist(ctx, func() (err error) {
		p, err = s.net.Exec(ctx, sandbox.Command{Args: []string{"head", "-c", strconv.Itoa(size), "/dev/zero"}, Hold: 5 * time.Minute})
		return err
	})
	if err != nil {
		return fmt.Errorf("a slow reader: %w", err)
	}
	defer p.Close()
	n := 0
	for buffer := make([]byte, 64<<10); ; time.Sleep(20 * time.Millisecond) {
		m, err := p.Stdout().Read(buffer)
		n += m
		s.bytes += int64(m)
		if err == io.EOF && n == size {
			return nil
		}
		if transient(err) {
			return nil // its connection was stalled for too long, and it got an error
		}
		if err != nil {
			return fmt.Errorf("a slow reader got %d bytes: %w", n, err)
		}
	}
}

// version writes a file into a workspace and persists it.
func (s *soak) version(ctx context.Context, t *testing.T, i int) error {
	name := "tree-" + strconv.Itoa(i%3)
	var sb *atoll.Sandbox
	err := persist(ctx, func() (err error) {
		sb, err = s.client.Create(ctx, sandbox.Spec{
			Name: "tree-" + strconv.Itoa(i), Resources: sandbox.Resources{Memory: 256 << 20},
			Workspaces: []sandbox.WorkspaceMount{{Name: name, Create: true}},
		}, atoll.CreateOptions{IdempotencyKey: "tree" + strconv.Itoa(i)})
		if err == nil && sb.Info().State == sandbox.Creating {
			return &sandbox.Error{Code: sandbox.CodeUnavailable}
		}
		return err
	})
	if err != nil || sb.Info().State != sandbox.Running {
		return nil //nolint:nilerr // it was undone
	}
	s.mu.Lock()
	s.alive[sb.Name()] = sb.ID()
	s.mu.Unlock()
	content := strconv.Itoa(i)
	err = persist(ctx, func() error {
		_, err := sb.Files().Write(ctx, sandbox.WorkspaceDir+"/n", strings.NewReader(content), atoll.WriteOptions{})
		return err
	})
	if err == nil {
		err = persist(ctx, func() error { _, err := s.client.PersistWorkspace(ctx, name, ""); return err })
	}
	if err == nil {
		s.trees[name] = content
	}
	s.remove(ctx, t, sb.Name())
	if err != nil {
		return fmt.Errorf("the workspace %s: %w", name, err)
	}
	return nil
}

// compareTrees fails unless the workspaces contain all acknowledged writes.
func (s *soak) compareTrees(t *testing.T) {
	t.Helper()
	for name, want := range s.trees {
		sb, err := s.client.Create(t.Context(), sandbox.Spec{Workspaces: []sandbox.WorkspaceMount{{Name: name}}}, atoll.CreateOptions{})
		if err != nil {
			t.Error(err)
			continue
		}
		if got := run(t, sb, "cat "+sandbox.WorkspaceDir+"/n"); got != want {
			t.Errorf("the workspace %s holds %q, and %q was acknowledged", name, got, want)
		}
		if err := sb.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// leaveNothing removes everything, and fails if anything is left in the daemon
// or on the machine.
func (s *soak) leaveNothing(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	groups := s.groups(t)
	for info, err := range s.client.List(ctx, atoll.ListOptions{}) {
		if err == nil {
			err = s.client.Remove(ctx, string(info.ID))
		}
		if err != nil {
			t.Error(err)
		}
	}
	for snap, err := range s.client.Snapshots(ctx, nil) {
		if err == nil {
			err = s.client.RemoveSnapshot(ctx, snap.ID)
		}
		if err != nil {
			t.Error(err)
		}
	}
	for _, dir := range []string{"gvisor/boxes", "snapshots"} {
		if err := eventually(func() error { return wantEmpty(filepath.Join(s.state, dir)) }); err != nil {
			t.Error(err)
		}
	}
	if err := eventually(func() error {
		left, err := filepath.Glob(groups)
		if left = slices.DeleteFunc(left, func(dir string) bool { return strings.HasPrefix(filepath.Base(dir), "0-") }); len(left) > 0 {
			err = fmt.Errorf("control groups are left: %v", left)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), s.state+"/") {
		t.Errorf("a mount is left: %v", err)
	}
	usedRoutines, usedFiles := s.holds(t)
	slack := 20 * (1 + s.warm())
	s.kill()
	s.start(t)
	routines, files := s.holds(t)
	t.Logf("after it all the daemon has %d goroutines and %d descriptors; a new one has %d and %d", usedRoutines, usedFiles, routines, files)
	if usedRoutines > routines+slack || usedFiles > files+slack {
		t.Error("it keeps unneeded resources")
	}
	for _, program := range []string{s.bin, s.next} {
		for pid, args := range processesOf(program) {
			if pid != s.daemon.Process.Pid && !strings.HasPrefix(args, "atoll-gateway") {
				t.Errorf("process %d is left: %.100s", pid, args)
			}
		}
	}
}

// groups returns the pattern of the control groups of this daemon's sandboxes.
// Their names end with a hash of the state directory.
func (s *soak) groups(t *testing.T) string {
	t.Helper()
	kernel, _ := s.processes(s.net.ID())
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", kernel))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		group := strings.TrimSpace(line[strings.LastIndexByte(line, ':')+1:])
		if i := strings.LastIndexByte(group, '-'); i > 0 && strings.Contains(group, "/atoll/") {
			root := "/sys/fs/cgroup"
			if !strings.HasPrefix(line, "0::") {
				root += "/*"
			}
			pattern := root + filepath.Dir(group) + "/*" + group[i:]
			if found, err := filepath.Glob(pattern); err != nil || len(found) == 0 {
				t.Fatalf("no control group is like %s: %v", pattern, err)
			}
			return pattern
		}
	}
	t.Fatalf("the kernel is not in a separate control group: %s", text)
	return ""
}

// warm returns the number of sandboxes in the pool.
func (s *soak) warm() int {
	all, _ := filepath.Glob(filepath.Join(s.state, "gvisor", "boxes", "0-*"))
	return len(all)
}

func wantEmpty(dir string) error {
	left, err := os.ReadDir(dir)
	left = slices.DeleteFunc(left, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), "0-") })
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("%s holds %v", dir, left)
	}
	return err
}

var goroutines = regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)

// holds returns the daemon's numbers of goroutines and open files, once they no
// longer decrease.
func (s *soak) holds(t *testing.T) (routines, files int) {
	t.Helper()
	for still := 0; still < 5; {
		_, text := s.fetch(t, "/metrics")
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.daemon.Process.Pid))
		found := goroutines.FindStringSubmatch(text)
		if err != nil || found == nil {
			t.Fatalf("%v: %.200s", err, text)
		}
		n, _ := strconv.Atoi(found[1])
		if still++; routines == 0 || n < routines || len(open) < files {
			still = 0
		}
		routines, files = n, len(open)
		time.Sleep(300 * time.Millisecond) // resources are released with a delay
	}
	return routines, files
}
