package hostedtest

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/ctxsandbox"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Daemon starts a daemon with gVisor on this machine and another provider,
// which is the default if first is set, and returns a client.
func Daemon(t *testing.T, name string, first bool, open func(dir string) (driver.Provider, error)) *atoll.Client {
	t.Helper()
	c, stop := start(t, t.TempDir(), name, first, open)
	t.Cleanup(stop)
	return c
}

// start starts a daemon with the state in a directory.
func start(t *testing.T, dir, name string, first bool, open func(dir string) (driver.Provider, error)) (c *atoll.Client, stop func()) {
	t.Helper()
	kernels := providerset.Entry{Name: gvisor.Name, Open: func(h providerset.Host) (driver.Provider, error) {
		store, err := h.Images()
		if err != nil {
			return nil, err
		}
		return gvisor.New(gvisor.Options{StateDir: h.Dir, SnapshotDir: h.Snapshots, Images: store, Attached: true, Kernel: os.Getenv("ATOLL_BIN")})
	}}
	entries := []providerset.Entry{kernels, {Name: name, Open: func(h providerset.Host) (driver.Provider, error) { return open(h.Dir) }}}
	if first {
		slices.Reverse(entries)
	}
	d, err := daemon.Start(t.Context(), daemon.Options{
		StateDir: dir, Provider: entries[0].Name, Providers: entries, Logger: slog.New(slog.DiscardHandler), SessionGrace: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	if c, err = atoll.New(atoll.Options{Transport: d.Memory().Transport()}); err != nil {
		t.Fatal(err)
	}
	return c, func() {
		_ = c.Close()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Session starts a session on gVisor and moves it to the provider and back,
// with its files and its environment.
func Session(t *testing.T, name string, open func(dir string) (driver.Provider, error)) {
	c := Daemon(t, name, false, open)
	spec := sandbox.Spec{Env: map[string]string{"GREETING": "hello"}}
	s, err := c.Sessions().Create(t.Context(), spec, atoll.SessionOptions{Name: "agent"})
	if err != nil {
		t.Fatal(err)
	}
	sessionSays(t, s, "mkdir -p /workspace/sub && echo kept >/workspace/sub/note", "")
	for n, target := range []string{name, "default"} {
		out, err := s.Swap(t.Context(), target)
		if err != nil || !out.Swapped {
			t.Fatalf("swap to %s: %+v, %v", target, out, err)
		}
		sessionSays(t, s, "echo $GREETING; cat /workspace/sub/note", "hello\nkept\n"+strings.Repeat("more\n", n))
		sessionSays(t, s, "echo more >>/workspace/sub/note", "")
	}
	finish(t, c, s)
}

// Saved starts a session on the provider. The session is saved on request and
// when it is idle, and restored: completely if the provider supports snapshots,
// else the files below /workspace.
func Saved(t *testing.T, name string, open func(dir string) (driver.Provider, error)) {
	c := Daemon(t, name, false, open)
	spec := sandbox.Spec{Provider: name, Env: map[string]string{"GREETING": "hello"}}
	s, err := c.Sessions().Create(t.Context(), spec, atoll.SessionOptions{Name: "elsewhere"})
	if err != nil {
		t.Fatal(err)
	}
	note := "/workspace/note"
	if takesSnapshots(t, c, name) {
		note = "/root/note"
	}
	sessionSays(t, s, "mkdir -p /workspace && echo saved >"+note, "")
	if saved, err := s.Save(t.Context()); err != nil || saved.Archive == nil {
		t.Fatalf("saved %+v, %v", saved, err)
	}
	sessionSays(t, s, "echo kept >>"+note, "")
	if err := s.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		now, err := c.Sessions().Get(t.Context(), "elsewhere")
		if err != nil {
			t.Fatal(err)
		}
		if now.Info().Lease.State == "cold" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the idle session has the lease %+v", now.Info().Lease)
		}
	}
	if _, err := s.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	sessionSays(t, s, "echo $GREETING; cat "+note, "hello\nsaved\nkept\n")
	finish(t, c, s)
}

// Kept takes a snapshot, which only the provider has. That is no failure.
func Kept(t *testing.T, name string, open func(dir string) (driver.Provider, error)) {
	c := Daemon(t, name, true, open)
	sb, err := c.Create(t.Context(), sandbox.Spec{Name: "kept"})
	if err != nil {
		t.Fatal(err)
	}
	snap, err := sb.Snapshot(t.Context(), durable.SnapshotRequest{Name: "kept"})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); snap.Problem == "" && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if snap, err = c.GetSnapshot(t.Context(), "kept"); err != nil {
			t.Fatal(err)
		}
	}
	if snap.Problem != durable.ProblemKept || snap.Saved {
		t.Errorf("the snapshot is %+v", snap)
	}
	if err := c.RemoveSnapshot(t.Context(), "kept"); err != nil {
		t.Error(err)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

func takesSnapshots(t *testing.T, c *atoll.Client, name string) bool {
	t.Helper()
	all, err := c.Providers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.Name == name {
			return p.Capabilities["snapshot"]
		}
	}
	t.Fatalf("there is no provider %s", name)
	return false
}

// finish ends the last session of a daemon. Nothing may be left of it.
func finish(t *testing.T, c *atoll.Client, s *atoll.Session) {
	t.Helper()
	if err := s.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	for left, err := range c.List(t.Context(), atoll.ListOptions{}) {
		t.Errorf("%s is left, %v", left.Name, err)
	}
}

func sessionSays(t *testing.T, s *atoll.Session, script, want string) {
	t.Helper()
	res, err := s.Run(t.Context(), sandbox.Command{Shell: script}, atoll.RunOptions{})
	if err != nil || res.Exit.Code != 0 || string(res.Stdout) != want {
		t.Fatalf("%s: %q, want %q: %+v, %v", script, res.Stdout, want, res, err)
	}
}

// Context uses ctx.sandbox to create a sandbox of the provider, run commands in
// it, and end it.
func Context(t *testing.T, name string, open func(dir string) (driver.Provider, error)) {
	c := Daemon(t, name, true, open)
	sandboxes := ctxsandbox.New(c)
	sb, err := sandboxes.Create(t.Context(), ctxsandbox.SandboxSpec{Labels: map[string]string{"run": "7"}})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	res, err := sb.Exec(t.Context(), "printf", []string{"%s\n", "one argument with spaces"}, patience)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&out, "%d %s", res.ExitCode, res.Output())
	if res, err = sb.Shell(t.Context(), "echo to a log; exit 3", patience); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&out, "%d %s", res.ExitCode, res.Output())
	for found, err := range sandboxes.List(t.Context(), map[string]string{"run": "7"}) {
		fmt.Fprintln(&out, found.ID() == sb.ID(), err)
	}
	if want := "0 one argument with spaces\n3 to a log\ntrue <nil>\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	if err := sb.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}

// Writer starts a session on the provider and moves it to gVisor and back,
// twice, while a client writes. No acknowledged write may be lost or repeated.
func Writer(t *testing.T, name string, open func(dir string) (driver.Provider, error)) {
	c := Daemon(t, name, true, open)
	s, err := c.Sessions().Create(t.Context(), sandbox.Spec{Provider: name}, atoll.SessionOptions{Name: "writer"})
	if err != nil {
		t.Fatal(err)
	}
	sessionSays(t, s, "mkdir -p /workspace", "")
	stop, written := make(chan struct{}), make(chan int, 1)
	more := make(chan struct{}, 1)
	go func() {
		n := 0
		defer func() { written <- n }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			res, err := s.Run(t.Context(), sandbox.Command{Shell: fmt.Sprintf("echo %d >>/workspace/log", n+1)}, atoll.RunOptions{})
			if err != nil || res.Exit.Code != 0 {
				t.Errorf("write %d: %+v, %v", n+1, res, err)
				return
			}
			n++
			select {
			case more <- struct{}{}:
			default:
			}
		}
	}()
	for _, target := range []string{"gvisor", name, "gvisor", name} {
		<-more // it also writes between moves
		if out, err := s.Swap(t.Context(), target); err != nil || !out.Swapped {
			t.Errorf("swap to %s: %+v, %v", target, out, err)
			break
		}
	}
	close(stop)
	var want strings.Builder
	for n := range <-written {
		fmt.Fprintln(&want, n+1)
	}
	sessionSays(t, s, "cat /workspace/log", want.String())
	if err := s.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

// Workspace starts a session with a workspace on the provider, which cannot
// mount it, and moves it to gVisor, which can, and back. The workspace moves
// along and has a version of each provider's changes.
func Workspace(t *testing.T, name string, open func(dir string) (driver.Provider, error)) {
	c := Daemon(t, name, false, open)
	spec := sandbox.Spec{Provider: name, Workspaces: []sandbox.WorkspaceMount{{Name: "notes", Create: true}}}
	s, err := c.Sessions().Create(t.Context(), spec, atoll.SessionOptions{Name: "agent"})
	if err != nil {
		t.Fatal(err)
	}
	sessionSays(t, s, "pwd; echo one >note", "/workspace\n")
	if saved, err := s.Save(t.Context()); err != nil || len(saved.Workspaces) != 1 || saved.Archive != nil {
		t.Fatalf("saved %+v, %v; want a version of the workspace", saved, err)
	}
	want := "one\n"
	for _, target := range []string{"gvisor", name} {
		if out, err := s.Swap(t.Context(), target); err != nil || !out.Swapped {
			t.Fatalf("swap to %s: %+v, %v", target, out, err)
		}
		sessionSays(t, s, "cat note; echo "+target+" >>note", want)
		want += target + "\n"
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	w, err := c.Workspace(t.Context(), "notes")
	if err != nil || w.Latest == nil || w.Latest.Bytes != int64(len(want)) {
		t.Errorf("the workspace is %+v, %v; want %d bytes in its last version", w.Latest, err, len(want))
	}
}
