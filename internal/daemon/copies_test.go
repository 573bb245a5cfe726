package daemon_test

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/driver/faults"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

func notes() sandbox.Spec {
	return sandbox.Spec{Workspaces: []sandbox.WorkspaceMount{{Name: "notes", Create: true}}}
}

func workspaceOf(t *testing.T, c *atoll.Client, name string) durable.Workspace {
	t.Helper()
	w, err := c.Workspace(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// versions returns how many versions a workspace has.
func versions(t *testing.T, c *atoll.Client, name string) int {
	t.Helper()
	all, err := c.WorkspaceVersions(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// A workspace that the provider cannot mount is copied into the sandbox before
// the first command, and saved on save, pause, stop, drain and removal.
func TestBridgedWorkspace(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	d := m.Start(t, shortGrace)
	c := daemontest.Client(t, d)
	s := openSession(t, c, notes(), atoll.SessionOptions{Name: "agent"})
	if got := runShell(t, s, "pwd; mkdir -p /workspace/sub; echo one > /workspace/sub/note"); got != "/workspace" {
		t.Errorf("commands start in %q, want /workspace", got)
	}
	saved, err := s.Save(t.Context())
	if err != nil || len(saved.Workspaces) != 1 || saved.Archive != nil {
		t.Fatalf("save: %+v, %v; want a version of the workspace", saved, err)
	}
	first := workspaceOf(t, c, "notes")
	if first.Latest == nil || first.Latest.Files != 1 || "v"+strconv.Itoa(first.Latest.Number) != saved.Workspaces[0].Version {
		t.Errorf("the workspace after saving: %+v, want what %+v says", first.Latest, saved.Workspaces)
	}
	if again, err := s.Save(t.Context()); err != nil || again.Workspaces[0] != saved.Workspaces[0] {
		t.Errorf("saving what did not change: %+v, %v; want %+v", again, err, saved.Workspaces)
	}
	runShell(t, s, "echo two > /workspace/more; rm -r /workspace/sub")
	if err := s.Release(t.Context()); err != nil { // it is drained
		t.Fatal(err)
	}
	untilCold(t, c, "agent")
	r, err := s.Acquire(t.Context())
	if err != nil || r.Outcome != durable.OutcomeRebuilt || len(r.From.Workspaces) != 1 {
		t.Fatalf("the receipt: %+v, %v", r, err)
	}
	if got := runShell(t, s, "ls /workspace; cat /workspace/more"); got != "more\ntwo" {
		t.Errorf("the next sandbox has %q", got)
	}
	id := string(s.Receipt().Sandbox)
	runShell(t, s, "echo three > /workspace/more")
	if err := c.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := runShell(t, s, "cat /workspace/more"); got != "three" {
		t.Errorf("after the sandbox was removed: %q, want what it wrote last", got)
	}
	if got := versions(t, c, "notes"); got != 3 {
		t.Errorf("%d versions, want one of each state", got)
	}
}

// A daemon that ends when a sandbox is there and the copy of its workspace is not:
// the next one makes the copy before the first command, though it fails at first,
// and nothing that was saved is replaced by the empty directory.
func TestCrashBridgedWorkspace(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	var broken atomic.Int32
	m.Fault = func(op string) error {
		if op == "archive.import" && broken.Add(-1) >= 0 {
			return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the connection broke"}
		}
		return nil
	}
	d := m.Start(t, nil)
	c := daemontest.Client(t, d)
	opts := atoll.CreateOptions{IdempotencyKey: "once"}
	spec := sandbox.Spec{Name: "web", Workspaces: notes().Workspaces}
	b, err := c.Create(t.Context(), sandbox.Spec{Workspaces: notes().Workspaces}, atoll.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := b.Run(t.Context(), sandbox.Command{Shell: "echo one > /workspace/note"}, atoll.RunOptions{}); err != nil || res.Exit.Code != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	if err := b.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}

	d = m.Start(t, func(o *daemon.Options) { o.Fault = crashAt("create.empty") })
	_, err = daemontest.Client(t, d).Create(t.Context(), spec, opts)
	wantCode(t, err, sandbox.CodeInternal)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}

	broken.Store(2)
	c = daemontest.Client(t, m.Start(t, nil))
	eventually(t, "the sandbox is usable", func() bool {
		again, err := c.Get(t.Context(), "web")
		return err == nil && again.Info().State == sandbox.Running
	})
	if broken.Load() >= 0 {
		t.Error("no copy failed")
	}
	replay, err := c.Create(t.Context(), spec, opts)
	if err != nil {
		t.Fatal(err)
	}
	if len(running(t, m)) != 1 {
		t.Errorf("there are the sandboxes %v, want one", running(t, m))
	}
	res, err := replay.Run(t.Context(), sandbox.Command{Shell: "cat /workspace/note; echo two >> /workspace/note"}, atoll.RunOptions{})
	if err != nil || string(res.Stdout) != "one\n" {
		t.Errorf("the copy has %+v, %v", res, err)
	}
	if err := replay.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	var content bytes.Buffer
	readWorkspace(t, m, c, &content)
	if content.String() != "one\ntwo\n" {
		t.Errorf("the workspace has %q", content.String())
	}
}

// Pausing and stopping save, and what runs again has its own files.
func TestBridgedWorkspaceRests(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	d := m.Start(t, nil)
	c := daemontest.Client(t, d)
	b, err := c.Create(t.Context(), sandbox.Spec{Name: "web", Workspaces: notes().Workspaces}, atoll.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	script := func(script string) string {
		t.Helper()
		res, err := b.Run(t.Context(), sandbox.Command{Shell: script}, atoll.RunOptions{})
		if err != nil || res.Exit.Code != 0 {
			t.Fatalf("%s: %+v, %v", script, res, err)
		}
		return strings.TrimSpace(string(res.Stdout))
	}
	script("echo one > /workspace/note")
	if _, err := b.Pause(t.Context(), sandbox.PauseMemory); err != nil {
		t.Fatal(err)
	}
	if w := workspaceOf(t, c, "notes"); w.Latest == nil || w.Latest.Files != 1 {
		t.Errorf("after the pause: %+v, want a version with the file", w.Latest)
	}
	if _, err := b.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	script("echo two > /workspace/note")
	if _, err := b.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if got := versions(t, c, "notes"); got != 2 {
		t.Errorf("%d versions after the stop, want 2", got)
	}
	if _, err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := script("cat /workspace/note"); got != "two" {
		t.Errorf("started again it has %q", got)
	}
}

// Copies are saved from time to time, and a failed save keeps the sandbox.
func TestBridgedWorkspaceIsSavedFromTimeToTime(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	broken := make(chan struct{})
	m.Fault = func(op string) error {
		select {
		case <-broken:
			return nil
		default:
		}
		if op == "archive.export" {
			return &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the sandbox does not exist"}
		}
		return nil
	}
	d := m.Start(t, func(o *daemon.Options) { o.SaveEvery = 20 * time.Millisecond })
	c := daemontest.Client(t, d)
	s := openSession(t, c, notes(), atoll.SessionOptions{Name: "agent"})
	runShell(t, s, "echo one > /workspace/note")
	_, err := s.Save(t.Context())
	wantCode(t, err, sandbox.CodeUnavailable)
	wantCode(t, c.Remove(t.Context(), string(s.Receipt().Sandbox)), sandbox.CodeUnavailable)
	if got := runShell(t, s, "cat /workspace/note"); got != "one" || len(sandboxes(t, c)) != 1 {
		t.Errorf("a failed save ended the sandbox, or its files: %q", got)
	}
	close(broken)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if w := workspaceOf(t, c, "notes"); w.Latest != nil && w.Latest.Files == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing was saved")
		}
	}
}

// A session with a workspace moves between providers that mount and that copy.
// RB-97.
func TestSwapWithWorkspace(t *testing.T) {
	t.Parallel()
	h := newHarbour(t)
	s := openSession(t, h.Client, notes(), atoll.SessionOptions{Name: "agent"})
	runShell(t, s, "echo one > /workspace/note; echo out > /outside")
	r := mustSwap(t, s, "two")
	if len(r.From.Workspaces) != 1 {
		t.Errorf("the receipt: %+v, want the version that went along", r)
	}
	if got := runShell(t, s, "cat note; ls /outside || true"); got != "one" {
		t.Errorf("after the move it has %q", got)
	}
	h.alone(t) // the former sandbox ends, and must not bring its copy back
	runShell(t, s, "echo two > /workspace/note")
	// A move that fails half way leaves the copy of the old one alone.
	h.one.Add(faults.Fault{Op: faults.Attach, Err: &faults.Error{Code: sandbox.CodeUnavailable, Text: "gone"}, Times: 1})
	if out, err := s.Swap(t.Context(), "one"); err == nil && out.Swapped {
		t.Fatalf("the swap: %+v; want it to fail", out)
	}
	h.one.Clear()
	h.alone(t)
	if got := runShell(t, s, "cat /workspace/note"); got != "two" {
		t.Errorf("after the failed move it has %q", got)
	}
	mustSwap(t, s, "one")
	h.alone(t)
	runShell(t, s, "echo three >> /workspace/note")
	if _, err := s.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	var content bytes.Buffer
	readWorkspace(t, h.machine, h.Client, &content)
	if content.String() != "two\nthree\n" {
		t.Errorf("the workspace has %q", content.String())
	}
}

// readWorkspace reads the file note of the workspace notes from a daemon's working
// directory.
func readWorkspace(t *testing.T, m *daemontest.Machine, c *atoll.Client, into *bytes.Buffer) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(m.Dir, "*", workspaceOf(t, c, "notes").ID, "tree", "note"))
	if err != nil || len(found) != 1 {
		t.Fatalf("working directories of the workspace: %v, %v; want one", found, err)
	}
	data, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	into.Write(data)
}

// Settings that a copy cannot keep are refused, and so is a provider that uses
// the files of the machine.
func TestBridgedWorkspaceRefusals(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	entry := func(name string, p driver.Provider) providerset.Entry {
		return providerset.Entry{Name: name, Open: func(providerset.Host) (driver.Provider, error) { return p, nil }}
	}
	d := m.Start(t, func(o *daemon.Options) {
		o.Providers = append(o.Providers, entry("machine", sharing{fake.New(fake.Options{Binding: "machine"})}), entry("bare", fake.New(fake.Options{Bare: true})))
	})
	c := daemontest.Client(t, d)
	for name, spec := range map[string]sandbox.Spec{
		"shared":           {Workspaces: []sandbox.WorkspaceMount{{Name: "notes", Create: true, Mode: sandbox.WorkspaceShared}}},
		"read-only parts":  {Workspaces: []sandbox.WorkspaceMount{{Name: "notes", Create: true, ReadOnly: []string{"lib"}}}},
		"the machine":      {Provider: "machine", Workspaces: notes().Workspaces},
		"nothing but exec": {Provider: "bare", Workspaces: notes().Workspaces},
	} {
		_, err := c.Create(context.Background(), spec, atoll.CreateOptions{})
		if sandbox.CodeOf(err) != sandbox.CodeUnsupported {
			t.Errorf("%s: %v, want %s", name, err, sandbox.CodeUnsupported)
		}
	}
	if left := workspaceOf(t, c, "notes"); len(left.Attached) != 0 {
		t.Errorf("refused sandboxes have the workspace still: %+v", left.Attached)
	}
}

// RB-19, RB-20: the capabilities of a session can be read without holding it,
// and since when its sandbox has no holders. RB-19.
func TestSessionCapabilities(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	c := daemontest.Client(t, m.Start(t, func(o *daemon.Options) { o.SessionGrace = time.Hour }))
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	doc, err := s.Capabilities(t.Context())
	if err != nil || doc.SessionID != s.Info().ID || doc.Liveness != "warm" || doc.LeaseEpoch != 1 || !doc.FileSystem.Available || doc.Desktop.Transport != "" || doc.Desktop.Reason == "" {
		t.Fatalf("warm: %+v, %v", doc, err)
	}
	if !doc.Git.Available || doc.Git.Reason != "" {
		t.Errorf("git: %+v", doc.Git)
	}
	before := time.Now()
	if err := s.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l := untilLease(t, c, "agent", "draining").Lease; l.Idle.Before(before.Add(-time.Minute)) || l.Idle.After(time.Now().Add(time.Second)) {
		t.Errorf("it is idle since %v, want about %v", l.Idle, before)
	}
	if doc, err := s.Capabilities(t.Context()); err != nil || doc.Liveness != "draining" {
		t.Errorf("draining: %+v, %v; want no new holder", doc, err)
	}
}

// RB-44: an archive of a kind that cannot be read here is refused, and nothing is
// made. RB-44.
func TestArchivesOfOtherKinds(t *testing.T) {
	t.Parallel()
	c := daemontest.Client(t, daemontest.New(t).Start(t, nil))
	e := durable.Envelope{
		Backend: "fake", Binding: "modal:app", Spec: sandbox.Spec{Image: "host"},
		Archive: &durable.Archive{Kind: "MODAL_SANDBOX_FS_SNAPSHOT_V1", Ref: "im-1", Binding: "modal:app"},
	}.Sealed()
	_, err := c.Sessions().Resume(t.Context(), e, atoll.SessionOptions{})
	wantCode(t, err, sandbox.CodeUnsupported)
	if all := sandboxes(t, c); len(all) != 0 {
		t.Errorf("a sandbox was made from an archive that cannot be read: %+v", all)
	}
}

// RB-54: a session has at most 64 viewers, and others may still work in it. RB-54.
func TestSessionsLimitViewers(t *testing.T) {
	t.Parallel()
	d := daemontest.New(t).Start(t, nil)
	c := daemontest.Client(t, d)
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	watch := func(id string) int {
		body := `{"kind":"viewer","holder":"` + id + `"}`
		return statusWith(t, d, "", http.MethodPost, "/v1/sessions/agent/acquire", body)
	}
	for i := range 64 {
		if got := watch("viewer-" + strconv.Itoa(i)); got != http.StatusOK {
			t.Fatalf("viewer %d: status %d", i+1, got)
		}
	}
	if got := watch("viewer-more"); got != http.StatusTooManyRequests {
		t.Errorf("viewer 65: status %d, want %d", got, http.StatusTooManyRequests)
	}
	if got := watch("viewer-0"); got != http.StatusOK {
		t.Errorf("a viewer that is there: status %d", got)
	}
	runShell(t, s, "true")
}
