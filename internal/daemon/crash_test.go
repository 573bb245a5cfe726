package daemon_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
)

var errCrash = errors.New("the daemon died here")

// crashAt is a fault that fails at one point, once.
func crashAt(point string) func(string) error {
	var once sync.Once
	return func(at string) (err error) {
		if at == point {
			once.Do(func() { err = errCrash })
		}
		return err
	}
}

// running lists the running sandboxes of a machine.
func running(t *testing.T, m *daemontest.Machine) map[sandbox.ID]driver.Found {
	t.Helper()
	p := fake.New(fake.Options{World: m.World})
	defer p.Close()
	out := map[sandbox.ID]driver.Found{}
	for f, err := range p.List(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		out[f.ID] = f
	}
	return out
}

// kept fails unless the snapshots on disk are those in the store, and every
// sandbox on disk has one.
func kept(t *testing.T, m *daemontest.Machine, c *atoll.Client) {
	t.Helper()
	wanted := wantedSnapshots(t, m.Dir+"/atoll.db")
	there, err := os.ReadDir(m.Dir + "/snapshots")
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // no snapshot was ever made
		t.Fatal(err)
	}
	for _, e := range there {
		if !wanted[e.Name()] {
			t.Errorf("the snapshot %s is left", e.Name())
		}
		delete(wanted, e.Name())
	}
	for id := range wanted {
		t.Errorf("the snapshot %s is missing", id)
	}
}

// wantedSnapshots are the snapshots in a database file. Without a file there
// are none.
func wantedSnapshots(t *testing.T, file string) map[string]bool {
	t.Helper()
	wanted := map[string]bool{}
	if _, err := os.Stat(file); err != nil {
		return wanted
	}
	rows, err := openSQL(t, file).Query("SELECT id FROM snapshots WHERE ready = 1 UNION SELECT kept FROM sandboxes WHERE kept <> ''")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		wanted[id] = true
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return wanted
}

// agree fails unless the store, the provider and the log are consistent.
func agree(t *testing.T, m *daemontest.Machine, c *atoll.Client) {
	t.Helper()
	real := running(t, m)
	for s, err := range c.List(context.Background(), atoll.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		full, err := c.Get(context.Background(), string(s.ID))
		if err != nil {
			t.Fatal(err)
		}
		f, ok := real[s.ID]
		resting := s.State == sandbox.Stopped || full.Info().Pause == sandbox.PauseDisk
		if resting && ok || !resting && (!ok || f.State != s.State) {
			t.Errorf("%s is recorded as %s and is %q", s.Name, s.State, f.State)
		}
		delete(real, s.ID)
	}
	kept(t, m, c)
	for id, f := range real {
		t.Errorf("%s (%s) runs without a record", id, f.State)
	}
	report, err := c.Admin().VerifyAudit(context.Background())
	if err != nil || !report.Sound {
		t.Errorf("%+v %v", report, err)
	}
	open := map[int64]bool{}
	for e, err := range c.Events(context.Background(), sandbox.EventQuery{}) {
		switch {
		case err != nil:
			t.Fatal(err)
		case e.Type == "attempted":
			open[e.Seq] = true
		case e.Ref != 0:
			delete(open, e.Ref)
		}
	}
	if len(open) != 0 {
		t.Errorf("attempts without an outcome: %v", open)
	}
}

// If a creation or removal is interrupted at any point, the next daemon
// completes or undoes it, and nothing is leaked or forgotten.
func TestCrashPoints(t *testing.T) {
	tests := []struct {
		point string
		lives bool // the sandbox, afterwards
	}{
		{"create.recorded", false},
		{"create.made", true},
		{"create.done", true},
		{"destroy.recorded", true},
		{"destroy.done", false},
	}
	for _, tt := range tests {
		t.Run(tt.point, func(t *testing.T) {
			m := daemontest.New(t)
			first := m.Start(t, func(o *daemon.Options) { o.Fault = crashAt(tt.point) })
			c := daemontest.Client(t, first)
			opts := atoll.CreateOptions{IdempotencyKey: "once"}
			s, err := c.Create(t.Context(), sandbox.Spec{Name: "one"}, opts)
			if err == nil {
				err = s.Destroy(t.Context())
			}
			wantCode(t, err, sandbox.CodeInternal)
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			c = daemontest.Client(t, m.Start(t, nil))
			agree(t, m, c)
			again, err := c.Get(t.Context(), "one")
			if lives := err == nil && again.Info().State == sandbox.Running; lives != tt.lives {
				t.Errorf("lives: %v, %v", lives, err)
			}
			if !tt.lives {
				return
			}
			// The caller who never got an answer gets it now.
			if replay, err := c.Create(t.Context(), sandbox.Spec{Name: "one"}, opts); err != nil || replay.ID() != again.ID() {
				t.Errorf("%v %v", replay.ID(), err)
			}
			if res, err := again.Run(t.Context(), sandbox.Command{Shell: "echo ok"}, atoll.RunOptions{}); err != nil || string(res.Stdout) != "ok\n" {
				t.Errorf("%+v %v", res, err)
			}
		})
	}
}

// A background command and its log are not affected by a restart of the daemon.
func TestReattach(t *testing.T) {
	m := daemontest.New(t)
	first := m.Start(t, nil)
	s := create(t, daemontest.Client(t, first), sandbox.Spec{Name: "one"})
	p, err := s.Exec(t.Context(), sandbox.Command{Shell: "echo before; read x; echo after", Stdin: true, Background: true})
	if err != nil {
		t.Fatal(err)
	}
	_ = p.Close()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	c := daemontest.Client(t, m.Start(t, nil))
	s, err = c.Get(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	p, err = s.Reconnect(t.Context(), p.Info().ID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := io.WriteString(p.Stdin(), "\n"); err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(p.Stdout()); err != nil || string(out) != "before\nafter\n" {
		t.Errorf("%q %v", out, err)
	}
}

// Temporary files of a killed daemon are removed at the next start.
func TestScratchOfTheKilled(t *testing.T) {
	m := daemontest.New(t)
	for _, name := range []string{".s1234/s", ".backup-99/atoll.db"} {
		path := filepath.Join(m.Dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m.Start(t, func(o *daemon.Options) { o.Socket = true })
	if left, err := filepath.Glob(filepath.Join(m.Dir, ".[sb]*")); err != nil || len(left) > 0 {
		t.Errorf("a new daemon leaves %v, %v", left, err)
	}
}

// A sandbox that cannot be reached is lost, not gone, and is found again.
func TestLostIsNotGone(t *testing.T) {
	m := daemontest.New(t)
	first := m.Start(t, nil)
	s := create(t, daemontest.Client(t, first), sandbox.Spec{Name: "one"})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	m.Fault = func(op string) error {
		if op == "attach" {
			return errors.New("no route to host")
		}
		return nil
	}
	second := m.Start(t, nil)
	c := daemontest.Client(t, second)
	again, err := c.Get(t.Context(), "one")
	if err != nil || again.Info().State != sandbox.Lost {
		t.Fatalf("%+v %v", again.Info(), err)
	}
	_, err = again.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{})
	wantCode(t, err, sandbox.CodeUnavailable)
	_, err = c.Create(t.Context(), sandbox.Spec{Name: "one"}, atoll.CreateOptions{})
	wantCode(t, err, sandbox.CodeAlreadyExists) // a lost sandbox keeps its name
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	m.Fault = nil
	c = daemontest.Client(t, m.Start(t, nil))
	if again, err = c.Get(t.Context(), "one"); err != nil || again.ID() != s.ID() || again.Info().State != sandbox.Running {
		t.Errorf("%+v %v", again.Info(), err)
	}
	agree(t, m, c)
}

// A list that fails proves nothing about any sandbox.
func TestBrokenListProvesNothing(t *testing.T) {
	m := daemontest.New(t)
	first := m.Start(t, nil)
	create(t, daemontest.Client(t, first), sandbox.Spec{Name: "one"})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	m.Fault = func(op string) error {
		if op == "list" {
			return errors.New("input/output error")
		}
		return nil
	}
	s, err := daemontest.Client(t, m.Start(t, nil)).Get(t.Context(), "one")
	if err != nil || s.Info().State != sandbox.Running {
		t.Errorf("%+v %v", s.Info(), err)
	}
}

// Sandboxes created without a daemon, or with a lost database, are adopted by
// their tenant and not destroyed.
func TestAdoption(t *testing.T) {
	m := daemontest.New(t)
	first := m.Start(t, nil)
	mine := create(t, daemontest.Client(t, first), sandbox.Spec{Name: "one", Labels: map[string]string{"k": "v"}})
	theirs := create(t, bearer(t, first, "other", "admin"), sandbox.Spec{Name: "one"})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"atoll.db", "atoll.db-wal", "atoll.db-shm"} {
		_ = os.Remove(m.Dir + "/" + name)
	}
	if lost, err := daemon.Accept(t.Context(), m.Dir); err != nil || len(lost) != 1 || !strings.Contains(lost[0], "atoll.db is missing") {
		t.Fatalf("%q %v", lost, err)
	}
	second := m.Start(t, nil)
	c := daemontest.Client(t, second)
	if s, err := c.Get(t.Context(), "one"); err != nil || s.ID() != mine.ID() || s.Info().Labels["k"] != "v" || len(s.Info().Labels) != 1 {
		t.Errorf("%+v %v", s.Info(), err)
	}
	if s, err := bearer(t, second, "other", "admin").Get(t.Context(), "one"); err != nil || s.ID() != theirs.ID() {
		t.Errorf("%+v %v", s.Info(), err)
	}
	_, err := c.Get(t.Context(), string(theirs.ID()))
	wantCode(t, err, sandbox.CodeNotFound)
}

// An action does not run if it cannot be recorded.
func TestNoRecordNoAction(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, nil)
	c := daemontest.Client(t, d)
	s := create(t, c, sandbox.Spec{Name: "one"})
	breakLog(t, m)
	_, runErr := s.Run(t.Context(), sandbox.Command{Shell: "echo x > /made"}, atoll.RunOptions{})
	_, createErr := c.Create(t.Context(), sandbox.Spec{Name: "two"}, atoll.CreateOptions{})
	for what, err := range map[string]error{"run": runErr, "create": createErr, "destroy": s.Destroy(t.Context())} {
		if err == nil {
			t.Errorf("%s was done without a record", what)
		}
	}
	if len(running(t, m)) != 1 {
		t.Error("something was made or removed")
	}
	if _, err := s.Files().Stat(t.Context(), "/made"); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("the command ran: %v", err)
	}
}

// breakLog makes the database refuse records of events.
func breakLog(t *testing.T, m *daemontest.Machine) {
	t.Helper()
	db := openSQL(t, m.Dir+"/atoll.db")
	if _, err := db.Exec("CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'disk is full'); END"); err != nil {
		t.Fatal(err)
	}
}

func TestConcurrentCreateOfOneName(t *testing.T) {
	m := daemontest.New(t)
	c := daemontest.Client(t, m.Start(t, nil))
	var wg sync.WaitGroup
	made := make(chan error, 20)
	for range cap(made) {
		wg.Go(func() {
			_, err := c.Create(context.Background(), sandbox.Spec{Name: "one"}, atoll.CreateOptions{})
			made <- err
		})
	}
	wg.Wait()
	close(made)
	won := 0
	for err := range made {
		if err == nil {
			won++
			continue
		}
		wantCode(t, err, sandbox.CodeAlreadyExists)
	}
	if won != 1 || len(running(t, m)) != 1 {
		t.Errorf("%d won, %d run", won, len(running(t, m)))
	}
}

// rounds is how often TestRestarts restarts the daemon.
func rounds() int {
	if n, err := strconv.Atoi(os.Getenv("ATOLL_SOAK_ROUNDS")); err == nil {
		return n
	}
	if testing.Short() {
		return 1
	}
	return 4
}

// Clients work while daemons start, fail at random points and end. At the end
// everything acknowledged exists, and nothing else.
func TestRestarts(t *testing.T) {
	m := daemontest.New(t)
	acknowledged := map[string]sandbox.ID{}
	var mu sync.Mutex
	points := []string{"create.recorded", "create.made", "create.done", "destroy.recorded", "destroy.done"}
	for round := range rounds() {
		d := m.Start(t, func(o *daemon.Options) {
			o.Drain = time.Millisecond
			o.Fault = func(at string) error {
				if rand.IntN(6) == 0 && points[rand.IntN(len(points))] == at {
					return errCrash
				}
				return nil
			}
		})
		c := daemontest.Client(t, d)
		var wg sync.WaitGroup
		for worker := range 4 {
			wg.Go(func() {
				for i := range 5 {
					name := "w" + strconv.Itoa(round) + "-" + strconv.Itoa(worker) + "-" + strconv.Itoa(i)
					s, err := c.Create(context.Background(), sandbox.Spec{Name: name}, atoll.CreateOptions{})
					if err != nil {
						continue
					}
					mu.Lock()
					acknowledged[name] = s.ID()
					mu.Unlock()
					_, _ = s.Run(context.Background(), sandbox.Command{Shell: "echo x"}, atoll.RunOptions{})
					if i%2 == 0 {
						// From here on it may be there or not.
						mu.Lock()
						delete(acknowledged, name)
						mu.Unlock()
						_ = s.Destroy(context.Background())
					}
				}
			})
		}
		if round%2 == 0 {
			wg.Wait()
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
	}
	c := daemontest.Client(t, m.Start(t, nil))
	agree(t, m, c)
	for name, id := range acknowledged {
		if s, err := c.Get(context.Background(), name); err != nil || s.ID() != id || s.Info().State != sandbox.Running {
			t.Errorf("%s was acknowledged: %v", name, err)
		}
	}
}
