package gvisor_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// fillers fill the memory of a sandbox with data that its kernel holds.
var fillers = map[string]string{
	"memfd": `
f = os.memfd_create("x")
while True: os.write(f, b"x" * (1 << 20))`,
	"one write": `
import mmap
f, m = os.memfd_create("x"), mmap.mmap(-1, 64 << 20)
while True: os.write(f, m)`,
	"shared": `
import mmap
keep = []
while True:
    m = mmap.mmap(-1, 8 << 20)
    m.write(b"x" * (8 << 20))
    keep.append(m)`,
	"pipes": `
import fcntl
keep = []
while True:
    r, w = os.pipe()
    fcntl.fcntl(w, 1031, 1 << 20)
    os.set_blocking(w, False)
    try:
        while True: os.write(w, b"x" * (1 << 20))
    except BlockingIOError: pass
    keep.append((r, w))`,
	"private": `
b = []
while True: b.append(b"x" * (8 << 20))`,
	"attributes": `
d = "/root/%d" % os.getpid()
os.mkdir(d)
for i in range(1 << 20):
    open("%s/%d" % (d, i), "w").close()
    os.setxattr("%s/%d" % (d, i), "user.a", os.urandom(60000))`,
}

// TestAttackMemoryOfTheKernel fills the memory of a sandbox with data that its
// kernel holds for a program. The program ends, as it does with ordinary memory,
// and the sandbox goes on with its files.
func TestAttackMemoryOfTheKernel(t *testing.T) {
	need.Program(t, "python3")
	victim, neighbour, p := pair(t, sandbox.Resources{Memory: 192 << 20})
	limited(t, p, "memory")
	sh(t, victim, "echo kept > /root/kept")
	for _, name := range []string{"memfd", "shared", "pipes", "private", "one write", "memfd"} {
		if o := python(t, victim, "import os"+fillers[name]); o.exit.Reason != sandbox.ReasonMemory {
			t.Errorf("%s: the command ended with %+v, want reason %s", name, o, sandbox.ReasonMemory)
		}
		recovers(t, victim)
		if o := sh(t, victim, "cat /root/kept"); o.stdout != "kept\n" {
			t.Errorf("%s: afterwards the file has %+v", name, o)
		}
	}
	stillWorks(t, neighbour)
}

// waiting makes a sandbox that waits at its memory limit because the process
// that would make room is stopped. kill kills that process.
func waiting(t *testing.T, state string) (in *gvisor.Instance, leave, kill func()) {
	t.Helper()
	need.Program(t, "python3")
	probe := newProvider(t, nil)
	limited(t, probe, "memory")
	if probe.LimitVersion() != 1 {
		need.Thing(t, "cgroup v1", "with version 2 a sandbox never waits")
	}
	store, err := images()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Get(t.Context(), "host", image.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	cmd, out := startVictim(t, victimPlan{State: state, Images: imagesDir, ID: "waits", Memory: 192 << 20})
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	eventually(t, "the sandbox is watched", func() bool { return groupWaits("waits") })
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err, out)
	}
	p := newProvider(t, func(o *gvisor.Options) { o.StateDir, o.Attached = state, false })
	found, err := p.Attach(t.Context(), "waits")
	if err != nil {
		t.Fatal(err)
	}
	sh(t, found, "echo kept > /root/kept")
	if _, err := found.Exec(t.Context(), &sandbox.Command{Args: []string{"python3", "-c", "import os" + fillers["memfd"]}}); err != nil {
		t.Fatal(err)
	}
	in = found.(*gvisor.Instance)
	eventually(t, "the sandbox waits at its limit", in.AtLimit)
	return in, func() { p.Close() }, kill
}

// groupWaits reports whether the group of a sandbox waits at its memory limit
// until a process makes room.
func groupWaits(id string) bool {
	files, _ := filepath.Glob("/sys/fs/cgroup/memory/atoll/" + id + "-*/memory.oom_control")
	for _, f := range files {
		if b, _ := os.ReadFile(f); strings.Contains(string(b), "oom_kill_disable 1") {
			return true
		}
	}
	return false
}

func eventually(t *testing.T, what string, happens func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !happens(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("this does not happen: %s", what)
		}
	}
}

// TestAttachAtLimit kills the process that makes room. The sandbox waits at its
// limit until another one attaches, which ends the program.
func TestAttachAtLimit(t *testing.T) {
	state := t.TempDir()
	in, leave, kill := waiting(t, state)
	leave()
	kill()
	if !groupWaits("waits") || !in.AtLimit() {
		t.Error("the sandbox does not wait for another process")
	}
	p := newProvider(t, func(o *gvisor.Options) { o.StateDir, o.Attached = state, false })
	found, err := p.Attach(t.Context(), "waits")
	if err != nil {
		t.Fatal(err)
	}
	recovers(t, found)
	if o := sh(t, found, "cat /root/kept"); o.stdout != "kept\n" {
		t.Errorf("the file has %+v", o)
	}
	if err := found.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestDestroyAtLimit destroys a sandbox that waits at its limit.
func TestDestroyAtLimit(t *testing.T) {
	state := t.TempDir()
	in, _, kill := waiting(t, state)
	if err := in.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	kill()
	nothingLeft(t, state, "waits")
}

// TestReleaseAtLimit checks that a sandbox waits at its limit only for a process
// that makes room. Otherwise the host kills its programs.
func TestReleaseAtLimit(t *testing.T) {
	state := t.TempDir()
	p, _ := unattached(t, state, sandbox.Spec{ID: "released", Image: "host", Resources: sandbox.Resources{Memory: 192 << 20}})
	limited(t, p, "memory")
	if p.LimitVersion() != 1 {
		need.Thing(t, "cgroup v1", "with version 2 a sandbox never waits")
	}
	other := newProvider(t, func(o *gvisor.Options) { o.StateDir, o.Attached = state, false })
	if _, err := other.Attach(t.Context(), "released"); err != nil {
		t.Fatal(err)
	}
	if !groupWaits("released") {
		t.Error("it does not wait for the process that made it")
	}
	if err := other.Close(); err != nil || !groupWaits("released") {
		t.Errorf("it waits no longer after another process has left: %v", err)
	}
	if err := p.Close(); err != nil || groupWaits("released") {
		t.Errorf("it waits for a process that has left: %v", err)
	}
}

// TestAttackAttributesFillMemory fills the memory with extended attributes of
// files, which the end of no program frees. Calls then fail and say why, and the
// sandbox goes on with its files when it has more memory. The kernel may not
// survive that it cannot start programs; the sandbox then ends with its reason.
func TestAttackAttributesFillMemory(t *testing.T) {
	need.Program(t, "python3")
	victim, neighbour, p := pair(t, sandbox.Resources{Memory: 192 << 20})
	limited(t, p, "memory")
	if p.(*gvisor.Provider).LimitVersion() != 1 {
		need.Thing(t, "cgroup v1", "with version 2 the sandbox ends")
	}
	sh(t, victim, "echo kept > /root/kept")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	filled := make(chan struct{})
	go func() {
		defer close(filled)
		for ctx.Err() == nil {
			fill(ctx, victim, fillers["attributes"])
		}
	}()
	var exit sandbox.Exit
	var ended bool
	eventually(t, "the memory is full", func() bool {
		exit, ended = hasEnded(t.Context(), victim)
		return ended || victim.(*gvisor.Instance).Full()
	})
	cancel()
	<-filled
	if ended {
		if exit.Reason != sandbox.ReasonMemory {
			t.Errorf("the sandbox ended with %+v, want reason %s", exit, sandbox.ReasonMemory)
		}
		stillWorks(t, neighbour)
		return
	}
	if err := answers(t.Context(), victim); p.ErrorCode(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), "atoll update --memory") {
		t.Errorf("a call fails with %v", err)
	}
	stillWorks(t, neighbour)
	if err := victim.(driver.Resizer).Resize(t.Context(), sandbox.Resources{Memory: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	recovers(t, victim)
	if o := sh(t, victim, "cat /root/kept"); o.stdout != "kept\n" {
		t.Errorf("the file has %+v", o)
	}
}

// fill runs a filler until it or the sandbox ends.
func fill(ctx context.Context, in driver.Instance, script string) {
	proc, err := in.Exec(ctx, &sandbox.Command{Args: []string{"python3", "-c", "import os" + script}})
	if err != nil {
		return
	}
	defer proc.Close()
	_, _ = proc.Wait(ctx)
}
