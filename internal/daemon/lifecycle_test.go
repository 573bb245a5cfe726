package daemon_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// shell runs a script and returns its output.
func shell(t *testing.T, s *atoll.Sandbox, script string) string {
	t.Helper()
	res, err := s.Run(t.Context(), sandbox.Command{Shell: script}, atoll.RunOptions{})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return string(res.Stdout) + string(res.Stderr)
}

// must fails unless a change brought the sandbox into a state.
func must(t *testing.T, state sandbox.State, info sandbox.Sandbox, err error) sandbox.Sandbox {
	t.Helper()
	if err != nil || info.State != state {
		t.Fatalf("%+v %v, want %s", info, err, state)
	}
	return info
}

func TestPauseAndResume(t *testing.T) {
	m := daemontest.New(t)
	c := daemontest.Client(t, m.Start(t, nil))
	s := create(t, c, sandbox.Spec{Name: "one"})
	shell(t, s, "echo before > /f")
	for range 2 { // twice is as once
		info, err := s.Pause(t.Context(), sandbox.PauseMemory)
		if must(t, sandbox.Paused, info, err).Pause != sandbox.PauseMemory {
			t.Errorf("%+v", info)
		}
	}
	if running(t, m)[s.ID()].State != sandbox.Paused {
		t.Error("it is paused on paper only")
	}
	_, err := s.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{})
	wantCode(t, err, sandbox.CodeConflict)
	if !strings.Contains(err.Error(), "paused in memory") {
		t.Errorf("%v", err)
	}
	for range 2 {
		info, err := s.Resume(t.Context())
		must(t, sandbox.Running, info, err)
	}
	if out := shell(t, s, "cat /f"); out != "before\n" {
		t.Errorf("%q", out)
	}
	agree(t, m, c)
}

// A stopped or disk-paused sandbox uses no resources, survives the daemon, and
// comes back with its files and environment, which is in no file in plain text.
func TestRestOnDisk(t *testing.T) {
	const canary = "s3cr3t-canary-value"
	rests := map[string]func(context.Context, *atoll.Sandbox) (sandbox.Sandbox, error){
		"stopped": func(ctx context.Context, s *atoll.Sandbox) (sandbox.Sandbox, error) { return s.Stop(ctx, time.Second) },
		"paused": func(ctx context.Context, s *atoll.Sandbox) (sandbox.Sandbox, error) {
			return s.Pause(ctx, sandbox.PauseDisk)
		},
	}
	for state, rest := range rests {
		t.Run(state, func(t *testing.T) {
			m := daemontest.New(t)
			first := m.Start(t, nil)
			s := create(t, daemontest.Client(t, first), sandbox.Spec{
				Name: "one", Env: map[string]string{"TOKEN": canary}, Labels: map[string]string{"a": "b"}, Lifetime: sandbox.Lifetime{Timeout: time.Hour},
			})
			shell(t, s, "echo kept > /f")
			info, err := rest(t.Context(), s)
			info = must(t, sandbox.State(state), info, err)
			if !info.Expires.IsZero() || info.Left <= 0 || info.Left > time.Hour {
				t.Errorf("its time goes on: %+v", info)
			}
			if len(running(t, m)) != 0 {
				t.Error("it still holds something")
			}
			_, err = s.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{})
			wantCode(t, err, sandbox.CodeConflict)
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			findNowhere(t, m.Dir, canary)
			c := daemontest.Client(t, m.Start(t, nil))
			agree(t, m, c)
			if s, err = c.Get(t.Context(), "one"); err != nil || string(s.Info().State) != state {
				t.Fatalf("%+v %v", s.Info(), err)
			}
			if state == "stopped" {
				info, err = s.Start(t.Context())
			} else {
				info, err = s.Resume(t.Context())
			}
			if info = must(t, sandbox.Running, info, err); info.Expires.IsZero() || info.Left != 0 {
				t.Errorf("its time stands still: %+v", info)
			}
			if out := shell(t, s, "cat /f; echo $TOKEN; hostname"); out != "kept\n"+canary+"\none\n" {
				t.Errorf("%q", out)
			}
			agree(t, m, c)
			if err := s.Destroy(t.Context()); err != nil {
				t.Fatal(err)
			}
			if left, err := os.ReadDir(m.Dir + "/environments"); err != nil || len(left) != 0 {
				t.Errorf("%v is left, %v", left, err)
			}
		})
	}
}

// findNowhere fails if some file below dir holds text.
func findNowhere(t *testing.T, dir, text string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(text)) {
			t.Errorf("%s holds a secret", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestRemoveWhatRests(t *testing.T) {
	m := daemontest.New(t)
	c := daemontest.Client(t, m.Start(t, nil))
	s := create(t, c, sandbox.Spec{Name: "one"})
	info, err := s.Stop(t.Context(), 0)
	must(t, sandbox.Stopped, info, err)
	for range 2 {
		if err := s.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	agree(t, m, c)
	_, err = s.Start(t.Context())
	wantCode(t, err, sandbox.CodeGone)
	create(t, c, sandbox.Spec{Name: "one"}) // the name is free
}

func TestSnapshots(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, nil)
	c, other := daemontest.Client(t, d), bearer(t, d, "other", "admin")
	s := create(t, c, sandbox.Spec{Name: "one", Env: map[string]string{"TOKEN": "x"}, Workdir: "/work"})
	shell(t, s, "echo 1 > f")
	snap, err := s.Snapshot(t.Context(), durable.SnapshotRequest{Name: "before", Labels: map[string]string{"task": "7"}})
	if err != nil || snap.Name != "before" || !snap.Ready || snap.Memory || snap.Size == 0 || snap.Parent != s.ID() || snap.Engine == "" {
		t.Fatalf("%+v %v", snap, err)
	}
	_, err = s.Snapshot(t.Context(), durable.SnapshotRequest{Name: "before"})
	wantCode(t, err, sandbox.CodeAlreadyExists)
	_, err = s.Snapshot(t.Context(), durable.SnapshotRequest{Name: "deep", Memory: true})
	wantCode(t, err, sandbox.CodeUnsupported)
	shell(t, s, "echo 2 > f")
	again := create(t, c, sandbox.Spec{Name: "again", Snapshot: "before"})
	if out := shell(t, again, "pwd; cat f; echo [$TOKEN]"); out != "/work\n1\n[x]\n" {
		t.Errorf("%q", out)
	}
	if got, err := c.GetSnapshot(t.Context(), snap.ID); err != nil || got.Children != 1 {
		t.Errorf("%+v %v", got, err)
	}
	// Sandboxes of another tenant look as if they did not exist.
	_, err = other.GetSnapshot(t.Context(), "before")
	wantCode(t, err, sandbox.CodeNotFound)
	wantCode(t, other.RemoveSnapshot(t.Context(), snap.ID), sandbox.CodeNotFound)
	_, err = other.Create(t.Context(), sandbox.Spec{Snapshot: snap.ID}, atoll.CreateOptions{})
	wantCode(t, err, sandbox.CodeNotFound)
	for snap := range other.Snapshots(t.Context(), nil) {
		t.Errorf("another tenant sees %+v", snap)
	}
	count := func(labels map[string]string) (n int) {
		for _, err := range c.Snapshots(t.Context(), labels) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		return n
	}
	if count(nil) != 1 || count(map[string]string{"task": "7"}) != 1 || count(map[string]string{"task": "8"}) != 0 {
		t.Error("they are listed wrongly")
	}
	if removed, err := c.PruneSnapshots(t.Context(), nil); err != nil || len(removed) != 0 {
		t.Errorf("pruned what is in use: %v %v", removed, err)
	}
	if err := again.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if removed, err := c.PruneSnapshots(t.Context(), nil); err != nil || len(removed) != 1 {
		t.Errorf("%v %v", removed, err)
	}
	wantCode(t, c.RemoveSnapshot(t.Context(), "before"), sandbox.CodeNotFound)
	agree(t, m, c)
}

// A snapshot of a stopped sandbox contains the files it left on disk.
func TestSnapshotOfStopped(t *testing.T) {
	m := daemontest.New(t)
	c := daemontest.Client(t, m.Start(t, nil))
	s := create(t, c, sandbox.Spec{Name: "one"})
	shell(t, s, "echo 1 > /f")
	info, err := s.Stop(t.Context(), 0)
	must(t, sandbox.Stopped, info, err)
	if _, err := s.Snapshot(t.Context(), durable.SnapshotRequest{Name: "later"}); err != nil {
		t.Fatal(err)
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out := shell(t, create(t, c, sandbox.Spec{Snapshot: "later"}), "cat /f"); out != "1\n" {
		t.Errorf("%q", out)
	}
	agree(t, m, c)
}

// Nothing starts from a damaged snapshot, and a damaged snapshot is not
// forgotten.
func TestDamagedSnapshots(t *testing.T) {
	m := daemontest.New(t)
	c := daemontest.Client(t, m.Start(t, nil))
	s := create(t, c, sandbox.Spec{Name: "one"})
	saved(t, s, "snap")
	for _, pack := range packs(t, m.Dir+"/blobs") { // else it would heal
		if err := os.Truncate(pack, 512); err != nil {
			t.Fatal(err)
		}
	}
	info, err := s.Stop(t.Context(), 0)
	must(t, sandbox.Stopped, info, err)
	trees, err := filepath.Glob(m.Dir + "/snapshots/*/files/tree.tar")
	if err != nil || len(trees) != 2 {
		t.Fatalf("%v %v", trees, err)
	}
	for _, tree := range trees {
		if err := os.Truncate(tree, 512); err != nil {
			t.Fatal(err)
		}
	}
	_, err = s.Start(t.Context())
	wantCode(t, err, sandbox.CodeInvalid)
	_, err = c.Create(t.Context(), sandbox.Spec{Name: "two", Snapshot: "snap"}, atoll.CreateOptions{})
	wantCode(t, err, sandbox.CodeInvalid)
	if again, err := c.Get(t.Context(), "one"); err != nil || again.Info().State != sandbox.Stopped {
		t.Errorf("%+v %v", again.Info(), err)
	}
	if len(running(t, m)) != 0 {
		t.Error("something was started")
	}
}

func TestFork(t *testing.T) {
	m := daemontest.New(t)
	c := daemontest.Client(t, m.Start(t, nil))
	s := create(t, c, sandbox.Spec{Name: "one", Env: map[string]string{"TOKEN": "x"}, Labels: map[string]string{"a": "b"}})
	shell(t, s, "echo parent > /f")
	copies, err := s.Fork(t.Context(), durable.ForkRequest{Count: 3, Prefix: "try", Labels: map[string]string{"c": "d"}})
	if err != nil || len(copies) != 3 {
		t.Fatalf("%v %v", copies, err)
	}
	for i, f := range copies {
		want := fmt.Sprintf("parent\nx\ntry-%d\n", i+1)
		if out := shell(t, f, "cat /f; echo $TOKEN; hostname; echo mine > /f"); out != want {
			t.Errorf("%q, want %q", out, want)
		}
		if f.Info().Labels["a"] != "b" || f.Info().Labels["c"] != "d" {
			t.Errorf("%+v", f.Info())
		}
	}
	if out := shell(t, s, "cat /f"); out != "parent\n" {
		t.Errorf("a copy reached its parent: %q", out)
	}
	_, err = s.Fork(t.Context(), durable.ForkRequest{Count: 2, Prefix: "try"})
	wantCode(t, err, sandbox.CodeAlreadyExists)
	info, err := s.Stop(t.Context(), 0)
	must(t, sandbox.Stopped, info, err)
	if copies, err = s.Fork(t.Context(), durable.ForkRequest{}); err != nil || shell(t, copies[0], "cat /f") != "parent\n" {
		t.Errorf("a stopped one: %v %v", copies, err)
	}
	agree(t, m, c)
}

func TestUpdate(t *testing.T) {
	m := daemontest.New(t)
	c := daemontest.Client(t, m.Start(t, nil))
	s := create(t, c, sandbox.Spec{Name: "one", Labels: map[string]string{"a": "1", "b": "2"}})
	idle, action, three := 5*time.Minute, sandbox.IdlePause, "3"
	info, err := s.Update(t.Context(), sandbox.Change{Labels: map[string]*string{"a": nil, "c": &three}, Lifetime: sandbox.LifetimeChange{Idle: &idle, IdleAction: &action}})
	if must(t, sandbox.Running, info, err); info.Lifetime.Idle != idle || info.Lifetime.IdleAction != action || len(info.Labels) != 2 || info.Labels["c"] != "3" {
		t.Errorf("%+v", info)
	}
	bad := sandbox.IdleAction("explode")
	for _, change := range []sandbox.Change{
		{Resources: sandbox.Resources{Memory: 1}}, {Lifetime: sandbox.LifetimeChange{IdleAction: &bad}}, {Labels: map[string]*string{"atoll.tenant": &three}},
	} {
		_, err := s.Update(t.Context(), change)
		wantCode(t, err, sandbox.CodeInvalid)
	}
	info, err = s.Stop(t.Context(), 0)
	must(t, sandbox.Stopped, info, err)
	info, err = s.Update(t.Context(), sandbox.Change{Resources: sandbox.Resources{Memory: 1 << 30}})
	must(t, sandbox.Stopped, info, err)
	info, err = s.Start(t.Context())
	if must(t, sandbox.Running, info, err).Resources.Memory != 1<<30 {
		t.Errorf("%+v", info)
	}
	agree(t, m, c)
}

// If a change of state is interrupted at any point, the next daemon completes
// or undoes it.
func TestLifecycleCrashPoints(t *testing.T) {
	pause := func(ctx context.Context, s *atoll.Sandbox) error {
		_, err := s.Pause(ctx, sandbox.PauseMemory)
		return err
	}
	sleep := func(ctx context.Context, s *atoll.Sandbox) error {
		_, err := s.Pause(ctx, sandbox.PauseDisk)
		return err
	}
	stop := func(ctx context.Context, s *atoll.Sandbox) error {
		_, err := s.Stop(ctx, 0)
		return err
	}
	resume := func(rest func(context.Context, *atoll.Sandbox) error) func(context.Context, *atoll.Sandbox) error {
		return func(ctx context.Context, s *atoll.Sandbox) error {
			if err := rest(ctx, s); err != nil {
				return err
			}
			_, err := s.Resume(ctx)
			return err
		}
	}
	start := func(ctx context.Context, s *atoll.Sandbox) error {
		if err := stop(ctx, s); err != nil {
			return err
		}
		_, err := s.Start(ctx)
		return err
	}
	snapshot := func(ctx context.Context, s *atoll.Sandbox) error {
		_, err := s.Snapshot(ctx, durable.SnapshotRequest{Name: "snap"})
		return err
	}
	fork := func(ctx context.Context, s *atoll.Sandbox) error {
		_, err := s.Fork(ctx, durable.ForkRequest{Count: 2, Prefix: "try"})
		return err
	}
	update := func(ctx context.Context, s *atoll.Sandbox) error {
		_, err := s.Update(ctx, sandbox.Change{Resources: sandbox.Resources{Memory: 1 << 30}})
		return err
	}
	for _, tt := range []struct {
		point string
		do    func(context.Context, *atoll.Sandbox) error
		then  sandbox.State
	}{
		{"update.recorded", update, sandbox.Running},
		{"update.done", update, sandbox.Running},
		{"pause.recorded", pause, sandbox.Running},
		{"pause.done", pause, sandbox.Running},
		{"resume.recorded", resume(pause), sandbox.Running},
		{"resume.done", resume(pause), sandbox.Running},
		{"sleep.recorded", sleep, sandbox.Running},
		{"sleep.kept", sleep, sandbox.Paused},
		{"resume.recorded", resume(sleep), sandbox.Paused},
		{"resume.made", resume(sleep), sandbox.Running},
		{"stop.recorded", stop, sandbox.Running},
		{"stop.kept", stop, sandbox.Stopped},
		{"start.recorded", start, sandbox.Stopped},
		{"start.made", start, sandbox.Running},
		{"snapshot.recorded", snapshot, sandbox.Running},
		{"snapshot.kept", snapshot, sandbox.Running},
		{"fork.recorded", fork, sandbox.Running},
		{"fork.written", fork, sandbox.Running},
		{"fork.made", fork, sandbox.Running},
	} {
		t.Run(tt.point+" to "+string(tt.then), func(t *testing.T) {
			m := daemontest.New(t)
			first := m.Start(t, func(o *daemon.Options) { o.Fault = crashAt(tt.point) })
			s := create(t, daemontest.Client(t, first), sandbox.Spec{Name: "one"})
			shell(t, s, "echo kept > /f")
			if err := tt.do(t.Context(), s); err == nil {
				t.Fatal("the fault point was not reached")
			}
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			c := daemontest.Client(t, m.Start(t, nil))
			agree(t, m, c)
			s, err := c.Get(t.Context(), "one")
			if err != nil || s.Info().State != tt.then {
				t.Fatalf("%+v %v, want %s", s.Info(), err, tt.then)
			}
			switch tt.then {
			case sandbox.Paused:
				_, err = s.Resume(t.Context())
			case sandbox.Stopped:
				_, err = s.Start(t.Context())
			}
			if err != nil || shell(t, s, "cat /f") != "kept\n" {
				t.Errorf("it is not what it was: %v", err)
			}
			agree(t, m, c)
		})
	}
}
