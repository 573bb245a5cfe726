package gvisor_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// mustDie runs a victim that must kill itself at the point in its plan.
func mustDie(t *testing.T, plan victimPlan) {
	t.Helper()
	cmd, out := startVictim(t, plan)
	err := cmd.Wait()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); err == nil || !ok || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("%s: the victim was not killed: %v\n%s", plan.Point, err, out)
	}
}

// TestKilledWhileSaving kills the process that writes a snapshot. The next
// process that attaches finds the sandbox running and can save it.
func TestKilledWhileSaving(t *testing.T) {
	state := t.TempDir()
	lasting := func(o *gvisor.Options) { o.StateDir, o.Attached = state, false }
	first := newProvider(t, lasting)
	in := create(t, first, sandbox.Spec{ID: "saved", Image: "host"})
	proc := background(t, in, repl)
	out := bufio.NewReader(proc.Stdout())
	said := len(ask(t, proc, out, "n = 0")) + 1
	for i, point := range []string{"snapshot.held", "snapshot.memory", "snapshot.saved", "snapshot.written", "snapshot.stopping"} {
		id := newSnapshotID()
		mustDie(t, victimPlan{State: state, Images: imagesDir, Point: point, ID: "saved", Save: id, Stop: i >= 3})
		other, err := newProvider(t, lasting).Attach(t.Context(), "saved")
		if err != nil {
			t.Fatalf("%s: %v", point, err)
		}
		again, answers := reconnect(t, other, proc.Info().ID, said)
		got := ask(t, again, answers, fmt.Sprintf("n + %d", i))
		said += len(got) + 1
		if got != fmt.Sprint(i) {
			t.Errorf("%s: it answers %q", point, got)
		}
		if i < 3 {
			if _, err := first.FindSnapshot(t.Context(), id); first.ErrorCode(err) != sandbox.CodeNotFound {
				t.Errorf("%s: an unfinished snapshot is found: %v", point, err)
			}
			half := filepath.Join(snapshotDir, ".new-"+id, "files")
			if _, _, err := first.Restore(t.Context(), &sandbox.Spec{ID: "half", Image: "host"}, refTo(t, half)); first.ErrorCode(err) != sandbox.CodeInvalid {
				t.Errorf("%s: an unfinished snapshot is restored: %v", point, err)
			}
		} else if _, err := first.FindSnapshot(t.Context(), id); err != nil {
			t.Errorf("%s: the complete snapshot is not found: %v", point, err)
		}
		for f, err := range first.Snapshots(t.Context()) {
			if err == nil && f.ID == id {
				err = first.RemoveSnapshot(t.Context(), f.Ref)
			}
			if err != nil {
				t.Errorf("%s: %v", point, err)
			}
		}
	}
	snapshot(t, in, driver.SnapshotOptions{Memory: true})
}

// TestKilledWhilePausing kills a process that has paused a sandbox and has not
// recorded it yet. The next process that attaches resumes it.
func TestKilledWhilePausing(t *testing.T) {
	state := t.TempDir()
	lasting := func(o *gvisor.Options) { o.StateDir, o.Attached = state, false }
	in := create(t, newProvider(t, lasting), sandbox.Spec{ID: "paused", Image: "host"})
	proc := background(t, in, repl)
	out := bufio.NewReader(proc.Stdout())
	said := len(ask(t, proc, out, "n = 41")) + 1
	mustDie(t, victimPlan{State: state, Images: imagesDir, Point: "pause.held", ID: "paused", Pause: true})
	other, err := newProvider(t, lasting).Attach(t.Context(), "paused")
	if err != nil {
		t.Fatal(err)
	}
	again, answers := reconnect(t, other, proc.Info().ID, said)
	if got := ask(t, again, answers, "n + 1"); got != "42" {
		t.Errorf("it answers %q", got)
	}
}

// TestKilledWhileWaking kills a process that has asked whether a sandbox in an
// uncertain state is paused. The next process can save the sandbox at once,
// because none has left a process in it.
func TestKilledWhileWaking(t *testing.T) {
	state := t.TempDir()
	lasting := func(o *gvisor.Options) { o.StateDir, o.Attached = state, false }
	create(t, newProvider(t, lasting), sandbox.Spec{ID: "paused", Image: "host"})
	for _, point := range []string{"pause.held", "settle.asked"} {
		mustDie(t, victimPlan{State: state, Images: imagesDir, Point: point, ID: "paused", Pause: true})
	}
	other, err := newProvider(t, lasting).Attach(t.Context(), "paused")
	if err != nil {
		t.Fatal(err)
	}
	snapshot(t, other, driver.SnapshotOptions{Memory: true})
}

// TestUncertainStateOfASilentGuest: a guest that does not answer is not
// paused. Resuming the kernel would end the sandbox.
func TestUncertainStateOfASilentGuest(t *testing.T) {
	state := t.TempDir()
	in := create(t, newProvider(t, func(o *gvisor.Options) { o.StateDir = state }), sandbox.Spec{ID: "silent", Image: "host"})
	stopGuest(t, in)
	if err := os.WriteFile(filepath.Join(state, "boxes", "silent", "rest"), []byte("pausing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := in.(driver.Pauser).Resume(t.Context()); err != nil {
		t.Fatalf("waking it: %v", err)
	}
	if o := sh(t, in, "echo again"); o.stdout != "again\n" {
		t.Errorf("afterwards: %+v", o)
	}
}

// TestKilledWhileRestoring kills the process that restores a sandbox, and
// checks that the next start removes everything.
func TestKilledWhileRestoring(t *testing.T) {
	p := newProvider(t, nil)
	in := create(t, p, sandbox.Spec{ID: "source", Image: "host"})
	state := t.TempDir()
	for i, memory := range []bool{true, false} {
		dir := snapshot(t, in, driver.SnapshotOptions{Memory: memory})
		special := []string{"restore.kernel", "restore.files"}[i]
		for n, point := range []string{"create.box", "create.cgroup", "create.launched", special, "create.started", "create.connected", "create.ready"} {
			plan := victimPlan{State: state, Images: imagesDir, Point: point, ID: sandbox.ID(fmt.Sprintf("r-%d-%d", i, n)), Restore: dir}
			mustDie(t, plan)
			if point == "create.ready" {
				destroyForeign(t, state, plan.ID)
			}
			nothingLeft(t, state, plan.ID)
		}
	}
}

// archiveBegun is an archive without an end: a file that replaces an existing
// one, and a new tree, with enough data that the guest receives the beginning.
func archiveBegun() []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range []string{"there", "new/tree/file"} {
		_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: 4})
		_, _ = io.WriteString(w, "new\n")
	}
	_ = w.WriteHeader(&tar.Header{Name: "new/tree/large", Mode: 0o644, Size: 8 << 20})
	_, _ = w.Write(make([]byte, 4<<20))
	return b.Bytes()
}

// TestKilledWhileImporting kills the process that imports an archive. Nothing
// of the archive may stay in the sandbox, not even a temporary name, nor in a
// sandbox from a snapshot that was taken meanwhile.
func TestKilledWhileImporting(t *testing.T) {
	state := t.TempDir()
	p := newProvider(t, func(o *gvisor.Options) { o.StateDir, o.Attached = state, false })
	in := create(t, p, sandbox.Spec{ID: "fed", Image: "host"})
	sh(t, in, "mkdir /root/t; echo old >/root/t/there")
	names := func(in driver.Instance) []string {
		t.Helper()
		return strings.Fields(sh(t, in, "ls -A /root/t").stdout)
	}
	await := func(n int) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); len(names(in)) != n; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("there are %q", names(in))
			}
		}
	}
	cmd, out := startVictim(t, victimPlan{State: state, Images: imagesDir, ID: "fed", Import: "/root/t"})
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	await(3) // the existing file, and temporary names of the new file and the tree
	dir := snapshot(t, in, driver.SnapshotOptions{})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("it was not killed: %v\n%s", err, out)
	}
	await(1)
	twin, _ := restore(t, p, dir, sandbox.Spec{ID: "twin", Image: "host"})
	for _, in := range []driver.Instance{in, twin} {
		if o := sh(t, in, "cd /root/t; ls -A; cat there"); o.stdout != "there\nold\n" {
			t.Errorf("%s has %+v", in.ID(), o)
		}
	}
}
