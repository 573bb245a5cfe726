package gvisor_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// The state of a running sandbox is deleted by hand. Probe reports the kernel
// and how to end it, but ends nothing. The next provider that sweeps ends it,
// and no process that only looks like one.
func TestStateRemovedByHand(t *testing.T) {
	need.Root(t, "others may not see what another process's descriptors are")
	state := t.TempDir()
	detached := func(o *gvisor.Options) { o.StateDir, o.Attached = state, false }
	p := newProvider(t, detached)
	create(t, p, sandbox.Spec{ID: "kept", Image: "host"})
	lost, err := p.Create(t.Context(), &sandbox.Spec{ID: "lost", Image: "host"})
	if err != nil {
		t.Fatal(err)
	}
	sandboxes := filepath.Join(state, "boxes")
	if err := os.RemoveAll(filepath.Join(sandboxes, "lost")); err != nil {
		t.Fatal(err)
	}
	impostors := []*exec.Cmd{
		impostor(t, filepath.Join(sandboxes, "kept"), "other"),           // another file of an existing sandbox
		impostor(t, filepath.Join(t.TempDir(), "boxes"), "upper"),        // of another directory
		impostor(t, filepath.Join(sandboxes, "deeper", "lost"), "upper"), // further down
	}
	if err := os.RemoveAll(filepath.Join(sandboxes, "deeper")); err != nil {
		t.Fatal(err)
	}

	found := func() (f driver.Finding) {
		facts, err := newProvider(t, detached).Probe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if i := slices.IndexFunc(facts.Findings, func(f driver.Finding) bool { return f.Subject == "orphans" }); i >= 0 {
			f = facts.Findings[i]
		}
		return f
	}
	for range 2 { // Probe changes nothing
		f := found()
		if f.Severity != driver.Warning || !strings.Contains(f.Message, ": lost") || strings.Contains(f.Message, "kept") || !strings.Contains(f.Fix, "kill -9 ") {
			t.Fatalf("%+v", f)
		}
	}
	for f, err := range newProvider(t, detached).List(t.Context()) {
		if err != nil || f.ID != "kept" {
			t.Errorf("%v: %v", f.ID, err)
		}
	}
	if _, err := lost.Wait(context.Background()); err != nil { // its kernel has ended
		t.Error(err)
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*/atoll/lost"); len(left) > 0 {
		t.Errorf("its control groups remain: %v", left)
	}
	if f := found(); f.Subject != "" {
		t.Errorf("%+v", f)
	}
	for i, cmd := range impostors {
		if err := cmd.Process.Signal(unix.Signal(0)); err != nil {
			t.Errorf("impostor %d: %v", i, err)
		}
	}
}

// impostor starts a process with a kernel's name that holds a deleted file.
func impostor(t *testing.T, dir, name string) *exec.Cmd {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command("sleep", "600")
	cmd.Args[0], cmd.ExtraFiles = "runsc-sandbox", []*os.File{f}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	return cmd
}
