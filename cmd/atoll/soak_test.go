package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
)

// soakRounds is the number of kills in TestDaemonIsKilled.
func soakRounds() int {
	if n, err := strconv.Atoi(os.Getenv("ATOLL_SOAK_ROUNDS")); err == nil {
		return n
	}
	if testing.Short() {
		return 1
	}
	return 4
}

// soaker is a daemon that is killed repeatedly, and its clients.
type soaker struct {
	bin    string // its program
	state  string // its state directory
	env    []string
	args   []string // of atoll up
	inside *network // where the daemon runs; nil: in the network of the test
	log    io.Writer
	client *atoll.Client
	daemon *exec.Cmd

	mu    sync.Mutex
	alive map[string]sandbox.ID // acknowledged, and not to be removed
	dead  map[string]sandbox.ID // removals that were acknowledged
	kept  []string              // names of living sandboxes that are no longer used
	files map[sandbox.ID]string // content of /acked in a sandbox
	snaps map[string]string     // name → id of acknowledged snapshots
}

// newSoaker starts a daemon in a new directory. The daemon and all its
// sandboxes end with the test.
func newSoaker(t testing.TB) *soaker {
	t.Helper()
	return soakerIn(t, filepath.Join(t.TempDir(), "state"))
}

func soakerIn(t testing.TB, state string) *soaker { return soakerOf(t, built.atoll, state) }

// soakerOf starts a daemon of another copy of the program.
func soakerOf(t testing.TB, program, state string, args ...string) *soaker {
	t.Helper()
	s := &soaker{
		bin: program, state: state, args: args, env: append(os.Environ(), "ATOLL_STATE_DIR="+state, "ATOLL_KERNEL="+program),
		alive: map[string]sandbox.ID{}, dead: map[string]sandbox.ID{},
		files: map[sandbox.ID]string{}, snaps: map[string]string{},
	}
	client, err := atoll.New(atoll.Options{Host: "unix://" + filepath.Join(state, atoll.SocketName)})
	if err != nil {
		t.Fatal(err)
	}
	s.client = client
	s.start(t)
	t.Cleanup(func() {
		s.kill()
		client.Close()
		rm := exec.Command(built.atoll, "rm", "--force", "--all")
		rm.Env = s.env
		if out, err := rm.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	return s
}

func (s *soaker) start(t testing.TB) {
	t.Helper()
	if !s.tryStart(t) {
		t.Fatal("the daemon does not start")
	}
}

// tryStart starts the daemon and reports whether it listens.
func (s *soaker) tryStart(t testing.TB) bool {
	t.Helper()
	args := append([]string{"up"}, s.args...)
	if s.inside != nil {
		s.daemon = s.inside.command(s.env, s.bin, args...)
	} else {
		s.daemon = exec.Command(s.bin, args...)
	}
	s.daemon.Env = s.env
	said, err := s.daemon.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.daemon.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	for lines.Scan() && !strings.Contains(lines.Text(), "listening") {
		if !strings.Contains(lines.Text(), "ended before it could tell") {
			t.Log(lines.Text())
		}
	}
	if !strings.Contains(lines.Text(), "listening") {
		_ = s.daemon.Wait()
		return false
	}
	log := s.log
	if log == nil {
		log = os.Stderr
	}
	go func() { _, _ = io.Copy(log, said) }() // ends with the daemon
	return true
}

func (s *soaker) kill() {
	_ = s.daemon.Process.Kill()
	_ = s.daemon.Wait()
}

// persist repeats an operation until a daemon acknowledges or refuses it.
func persist(ctx context.Context, do func() error) error {
	for {
		err := do()
		if !transient(err) || ctx.Err() != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// transient reports whether a failed operation can succeed when the daemon runs
// again, the disk has space, and nothing is stopped.
func transient(err error) bool {
	switch sandbox.CodeOf(err) {
	case sandbox.CodeUnavailable, sandbox.CodeConflict, sandbox.CodeExhausted, sandbox.CodeTimeout:
		return err != nil
	}
	return false
}

// work creates and uses sandboxes, and removes half of them.
func (s *soaker) work(ctx context.Context, t *testing.T, worker int) {
	for i := 0; ctx.Err() == nil; i++ {
		s.one(ctx, t, worker, i)
	}
}

// one creates one sandbox and completes every operation it starts.
func (s *soaker) one(ctx context.Context, t *testing.T, worker, i int) {
	late, done := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
	defer done()
	name := "w" + strconv.Itoa(worker) + "-" + strconv.Itoa(i)
	var sb *atoll.Sandbox
	opts := atoll.CreateOptions{IdempotencyKey: name}
	err := persist(late, func() (err error) {
		sb, err = s.client.Create(late, sandbox.Spec{Name: name, Resources: sandbox.Resources{Memory: 256 << 20}}, opts)
		if err == nil && sb.Info().State == sandbox.Creating {
			return &sandbox.Error{Code: sandbox.CodeUnavailable}
		}
		return err
	})
	if err != nil || sb.Info().State != sandbox.Running {
		return // it was undone: the name stays unused
	}
	s.mu.Lock()
	s.alive[name] = sb.ID()
	s.mu.Unlock()
	if err := s.use(late, t, sb, name, i); err != nil && late.Err() == nil { // else the daemons died too fast for this machine
		t.Errorf("%s: %v", name, err)
	}
	if i%3 != 2 {
		s.remove(late, t, name)
		return
	}
	for _, old := range s.keep(name) {
		s.remove(late, t, old)
	}
}

// maxKept is how many sandboxes are kept: a daemon needs a while to attach to
// hundreds, and does not live that long.
const maxKept = 24

// keep keeps a sandbox unused until the end, or until another call of keep
// returns its name.
func (s *soaker) keep(name string) (tooMany []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = append(s.kept, name)
	if n := len(s.kept) - maxKept; n > 0 {
		tooMany, s.kept = s.kept[:n:n], s.kept[n:]
	}
	return tooMany
}

// remove removes a living sandbox, with as many daemons as it takes.
func (s *soaker) remove(ctx context.Context, t *testing.T, name string) {
	s.mu.Lock()
	id := s.alive[name]
	delete(s.alive, name)
	s.mu.Unlock()
	if err := persist(ctx, func() error { return s.client.Remove(ctx, string(id)) }); err != nil {
		t.Errorf("%s cannot be removed: %v", name, err)
	}
	s.mu.Lock()
	s.dead[name] = id
	s.mu.Unlock()
}

// TestDaemonIsKilled kills the daemon at random while clients work, and then
// compares the clients' results, the store, the running kernels and the log.
func TestDaemonIsKilled(t *testing.T) {
	s := newSoaker(t)
	ctx, cancel := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	for worker := range 3 {
		workers.Go(func() { s.work(ctx, t, worker) })
	}
	rounds := soakRounds()
	for round := 0; round < rounds || round < 10*rounds && s.idle(); round++ {
		longer := time.Duration(1 + round/rounds)                                 // a slow machine needs a longer life to get anything done
		time.Sleep(longer * time.Duration(100+rand.IntN(600)) * time.Millisecond) // a random time
		s.kill()
		s.start(t)
	}
	cancel()
	workers.Wait()
	s.compare(t)
}

// idle reports whether nothing has been acknowledged yet.
func (s *soaker) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.alive)+len(s.dead) == 0
}

// compare fails unless all of these agree.
func (s *soaker) compare(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	recorded := s.settled(ctx, t)
	real := s.really(t)
	for name, id := range s.alive {
		if recorded[id] != sandbox.Running || real[id] != sandbox.Running {
			t.Errorf("%s was acknowledged, is recorded as %q and is %q", name, recorded[id], real[id])
		}
	}
	for name, id := range s.dead {
		if recorded[id] != "" || real[id] != "" {
			t.Errorf("%s was removed, is recorded as %q and is %q", name, recorded[id], real[id])
		}
	}
	for id := range real {
		if recorded[id] == "" {
			t.Errorf("%s runs without a record", id)
		}
	}
	for id := range recorded {
		if real[id] == "" {
			t.Errorf("%s is recorded and does not exist", id)
		}
	}
	s.compareKept(ctx, t)
	report, err := s.client.Admin().VerifyAudit(ctx)
	if err != nil || !report.Sound {
		t.Errorf("%+v %v", report, err)
	}
	t.Logf("%d alive, %d removed, %d records", len(s.alive), len(s.dead), report.Records)
	if s.idle() {
		t.Error("nothing was done, so nothing was shown")
	}
}

// settled returns the recorded states when no operation is in progress.
func (s *soaker) settled(ctx context.Context, t *testing.T) map[sandbox.ID]sandbox.State {
	t.Helper()
	for {
		states, half := map[sandbox.ID]sandbox.State{}, false
		for info, err := range s.client.List(ctx, atoll.ListOptions{}) {
			if err != nil {
				t.Fatal(err)
			}
			states[info.ID] = info.State
			half = half || info.State == sandbox.Creating
		}
		if !half {
			return states
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// really returns the states of the existing sandboxes, without the daemon.
func (s *soaker) really(t *testing.T) map[sandbox.ID]sandbox.State {
	t.Helper()
	states := map[sandbox.ID]sandbox.State{}
	for _, b := range s.existing(t) {
		states[b.ID] = b.State
	}
	return states
}

// existing lists the existing sandboxes, without the daemon.
func (s *soaker) existing(t *testing.T) (all []sandbox.Sandbox) {
	t.Helper()
	ls := exec.Command(built.atoll, "ls", "--json", "--provider", "gvisor")
	ls.Env = s.env
	out, err := ls.Output()
	if err == nil {
		err = json.Unmarshal(out, &all)
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}
