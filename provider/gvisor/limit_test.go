package gvisor_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
d, value = "/root/of-%d" % os.getpid(), b"x" * 60000
os.mkdir(d)
for i in range(1 << 20):
    open("%s/%d" % (d, i), "w").close()
    os.setxattr("%s/%d" % (d, i), "user.a", value)`,
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

// TestReserveIsSpared lets programs reach the limit of a sandbox slowly. They are
// ended before the host refuses memory, also after the limit was changed. The
// host's cache of files may use the reserve for a moment only.
func TestReserveIsSpared(t *testing.T) {
	need.Program(t, "python3")
	p := newProvider(t, nil)
	limited(t, p, "memory")
	victim := create(t, p, sandbox.Spec{
		ID: "victim", Image: "host", Resources: sandbox.Resources{Memory: 192 << 20},
		Mounts: []sandbox.Mount{{Source: t.TempDir(), Target: "/mnt"}},
	})
	in := victim.(*gvisor.Instance)
	exceed(t, in, 192<<20)
	for _, limit := range []int64{256 << 20, 160 << 20} {
		eventually(t, "the memory of the program is free", func() bool {
			err := in.Resize(t.Context(), sandbox.Resources{Memory: limit})
			if err != nil && p.ErrorCode(err) != sandbox.CodeConflict {
				t.Fatal(err)
			}
			return err == nil
		})
		exceed(t, in, limit)
	}
	if o := sh(t, victim, "dd if=/dev/zero of=/mnt/large bs=1M count=300 2>/dev/null && sync && cat /mnt/large >/dev/null"); o.exit.Code != 0 {
		t.Errorf("writing a file ended with %+v", o)
	}
	eventually(t, "the host gives its cache above the limit back", func() bool { return in.Charged() <= in.MemoryLimit() })
}

// exceed starts a program that makes its sandbox use more than its limit, slowly,
// and waits for its end.
func exceed(t *testing.T, in *gvisor.Instance, limit int64) {
	t.Helper()
	in.UsedUp()
	proc, err := in.Exec(t.Context(), &sandbox.Command{Stdin: true, Args: []string{"python3", "-c", `
import os, time
f = os.memfd_create("x")
os.write(f, b"x" * (1 << 20))
print("ready", flush=True)
for i in range(int(input())): os.write(f, b"x" * (1 << 20))
while True:
    time.sleep(0.02)
    os.write(f, b"x" * (1 << 20))`}})
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	if line, err := bufio.NewReader(proc.Stdout()).ReadString('\n'); line != "ready\n" {
		t.Fatalf("it said %q, %v", line, err)
	}
	if _, err := fmt.Fprintln(proc.Stdin(), (limit-in.Held())>>20-16); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if exit, err := proc.Wait(ctx); err != nil || exit.Reason != sandbox.ReasonMemory {
		t.Errorf("with a limit of %d bytes, the command ended with %+v, %v; want reason %s; %s", limit, exit, err, sandbox.ReasonMemory, in.LimitState())
	}
	recovers(t, in)
	eventually(t, "what was lent is given back", func() bool { return in.MemoryLimit() <= limit })
	if in.UsedUp() {
		t.Errorf("with a limit of %d bytes, the reserve was used up; %s", limit, in.LimitState())
	}
}

// waiting makes a sandbox that waits at its memory limit, or is slowed down there,
// because the process that would make room is stopped. kill kills that process.
// With version 1 the kernel may end there, because the host refuses it memory.
// Then waiting makes another one.
func waiting(t *testing.T, state string, id sandbox.ID) (in *gvisor.Instance, leave, kill func()) {
	t.Helper()
	for range 5 {
		if in, leave, kill = tryWaiting(t, state, id); in != nil {
			return in, leave, kill
		}
	}
	t.Fatal("the kernel always ends at the memory limit")
	return nil, nil, nil
}

// tryWaiting is waiting. in is nil if the kernel ended at the limit.
func tryWaiting(t *testing.T, state string, id sandbox.ID) (in *gvisor.Instance, leave, kill func()) {
	t.Helper()
	need.Program(t, "python3")
	probe := newProvider(t, nil)
	limited(t, probe, "memory")
	haveHost(t)
	cmd, out := startVictim(t, victimPlan{State: state, Images: imagesDir, ID: id, Memory: 192 << 20})
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(func() {
		kill()
		if t.Failed() {
			t.Logf("the process that made the sandbox said: %s", out)
			removeForeign(state, id)
		}
	})
	eventually(t, "the sandbox is watched", func() bool {
		return watched(state, string(id)) && (probe.LimitVersion() != 1 || groupWaits(string(id)))
	})
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	p, found := attached(t, state, id)
	in = found.(*gvisor.Instance)
	sh(t, found, "echo kept > /root/kept")
	hog, err := found.Exec(t.Context(), &sandbox.Command{Args: []string{"python3", "-c", "import os" + fillers["memfd"]}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hog.Close() })
	var over bool
	eventually(t, "the sandbox waits at its limit", func() bool {
		exit, ended := hasEnded(t.Context(), found)
		if ended && (exit.Reason != sandbox.ReasonMemory || probe.LimitVersion() != 1) {
			t.Fatalf("the sandbox has ended before it waits at its limit: %+v; %s", exit, in.LimitState())
		}
		if exit, left := hasEnded(t.Context(), hog); left && !ended {
			if _, ended = hasEnded(t.Context(), found); !ended {
				said, _ := io.ReadAll(hog.Stderr())
				t.Fatalf("the program has ended before the sandbox waits at its limit: %+v, %s; the sandbox has %s", exit, said, in.LimitState())
			}
		}
		over = ended
		return ended || in.AtLimit()
	})
	if over {
		kill()
		if err := found.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
		p.Close()
		return nil, nil, nil
	}
	return in, func() { p.Close() }, kill
}

// ownID makes an ID that no other run of the tests has: groups are found by it.
func ownID(name string) sandbox.ID { return sandbox.ID(name + "-" + strconv.Itoa(os.Getpid())) }

// removeForeign removes a sandbox that a test has left, if it can.
func removeForeign(state string, id sandbox.ID) {
	store, err := images()
	if err != nil {
		return
	}
	p, err := gvisor.New(gvisor.Options{StateDir: state, SnapshotDir: snapshotDir, Images: store})
	if err != nil {
		return
	}
	defer p.Close()
	if in, err := p.Attach(context.Background(), id); err == nil {
		_ = in.Destroy(context.Background())
	}
}

// haveHost puts the image host into the store, so that victims need not.
func haveHost(t *testing.T) {
	t.Helper()
	store, err := images()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Get(t.Context(), "host", image.GetOptions{}); err != nil {
		t.Fatal(err)
	}
}

// watched reports whether a process makes room in a sandbox at its limit.
func watched(state, id string) bool {
	f, err := os.Open(filepath.Join(state, "boxes", id, "starved"))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// groupWaits reports whether the group of a sandbox, of version 1, waits at its memory limit
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

// patience is how long a test waits for what will happen. An emulated machine is
// slow.
const patience = 5 * time.Minute

func eventually(t *testing.T, what string, happens func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !happens(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("this does not happen: %s", what)
		}
	}
}

// TestAttachAtLimit kills the process that makes room. The sandbox waits at its
// limit until another one attaches, which ends the program. With version 1 the
// kernel may end meanwhile, as in waiting.
func TestAttachAtLimit(t *testing.T) {
	for range 5 {
		if attachAtLimit(t) {
			return
		}
	}
	t.Error("the kernel always ends at the memory limit")
}

// attachAtLimit returns false if the kernel ended at the limit.
func attachAtLimit(t *testing.T) (stayed bool) {
	t.Helper()
	state, id := t.TempDir(), ownID("attached-at-limit")
	in, leave, kill := waiting(t, state, id)
	leave()
	kill()
	if watched(state, string(id)) {
		t.Error("a process that was killed makes room")
	}
	version := newProvider(t, nil).LimitVersion()
	ended := false
	// With version 2 it goes on slowly, and the program ends with its connection.
	if version == 1 && !in.AtLimit() {
		if ended = in.Ended(); !ended {
			t.Error("the sandbox does not wait for another process")
		}
	}
	p, found := attached(t, state, id)
	eventually(t, "the sandbox recovers", func() bool {
		// As the daemon does for each call: it repeats a failed attempt to connect.
		if _, err := p.Attach(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		exit, over := hasEnded(t.Context(), found)
		if ended = over; over && (exit.Reason != sandbox.ReasonMemory || version != 1) {
			t.Fatalf("the sandbox has ended: %+v; %s", exit, in.LimitState())
		}
		return over || answers(t.Context(), found) == nil
	})
	if !ended { // a program may still be ended until the memory is free
		eventually(t, "the file is read", func() bool {
			o := sh(t, found, "cat /root/kept")
			if o.exit.Code == 0 && o.stdout != "kept\n" {
				t.Fatalf("the file has %+v", o)
			}
			return o.exit.Code == 0
		})
	}
	if err := found.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	return !ended
}

// TestDestroyAtLimit destroys a sandbox that waits at its limit.
func TestDestroyAtLimit(t *testing.T) {
	state := t.TempDir()
	id := ownID("destroyed-at-limit")
	in, _, kill := waiting(t, state, id)
	if err := in.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	kill()
	nothingLeft(t, state, id)
}

// TestReleaseAtLimit checks that a sandbox waits at its limit only for a process
// that makes room. Otherwise the host kills its programs.
func TestReleaseAtLimit(t *testing.T) {
	state := t.TempDir()
	p, _ := unattached(t, state, sandbox.Spec{ID: "released", Image: "host", Resources: sandbox.Resources{Memory: 192 << 20}})
	limited(t, p, "memory")
	if p.LimitVersion() != 1 {
		need.Thing(t, "cgroup v1", "version 2 waits for nobody")
	}
	other, _ := attached(t, state, "released")
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
	victim, neighbour, p := pair(t, sandbox.Resources{Memory: 64 << 20})
	limited(t, p, "memory")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	filled := make(chan struct{})
	go func() {
		defer close(filled)
		fillMemory(ctx, victim)
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
	err := answers(t.Context(), victim)
	if err == nil { // the end of the last program has freed enough
		eventually(t, "the sandbox is no longer full", func() bool { return !victim.(*gvisor.Instance).Full() })
	} else if p.ErrorCode(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), "atoll update --memory") {
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

// fullOf makes a sandbox whose memory is full of extended attributes, and kills
// the process that has noticed that.
func fullOf(t *testing.T, state string, id sandbox.ID) {
	t.Helper()
	need.Program(t, "python3")
	limited(t, newProvider(t, nil), "memory")
	haveHost(t)
	cmd, out := startVictim(t, victimPlan{State: state, Images: imagesDir, ID: id, Memory: 64 << 20, Fill: true})
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the process ended with %v, want that it is killed: %s", err, out)
	}
}

// TestKillWhileFull kills the process of a sandbox that waits for more memory.
// The sandbox waits for the next process, and goes on with its files when it has
// a higher limit.
func TestKillWhileFull(t *testing.T) {
	state := t.TempDir()
	fullOf(t, state, "full")
	p, found := attached(t, state, "full")
	waitsForMore(t, found)
	if err := answers(t.Context(), found); p.ErrorCode(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), "atoll update --memory") {
		t.Errorf("a call fails with %v", err)
	}
	if err := found.(driver.Resizer).Resize(t.Context(), sandbox.Resources{Memory: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	recovers(t, found)
	if o := sh(t, found, "cat /root/kept"); o.stdout != "kept\n" {
		t.Errorf("the file has %+v", o)
	}
	if err := found.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	nothingLeft(t, state, "full")
}

// waitsForMore waits until a sandbox from fullOf waits for more memory again. If the
// end of its last program has freed so much that what was lent suffices, it is
// filled again.
func waitsForMore(t *testing.T, in driver.Instance) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	filled := make(chan struct{})
	full := in.(*gvisor.Instance).Full
	go func() {
		defer close(filled)
		for ctx.Err() == nil && !full() {
			fill(ctx, in, fillers["attributes"])
		}
	}()
	defer func() {
		cancel()
		<-filled
	}()
	eventually(t, "the sandbox waits for more memory", full)
}

// TestDestroyWhileFull destroys a sandbox that waits for more memory and whose
// process was killed, as another process does.
func TestDestroyWhileFull(t *testing.T) {
	state := t.TempDir()
	fullOf(t, state, "full")
	_, found := attached(t, state, "full")
	if err := found.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	nothingLeft(t, state, "full")
}

// TestDeadlineWhileFull checks that the lifetime of such a sandbox ends it although
// no process is connected with it.
func TestDeadlineWhileFull(t *testing.T) {
	state := t.TempDir()
	fullOf(t, state, "full")
	p, in := attached(t, state, "full")
	if err := in.(driver.DeadlineSetter).SetDeadline(t.Context(), time.Now().Add(3*time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	other := newProvider(t, func(o *gvisor.Options) { o.StateDir = state })
	eventually(t, "its lifetime ends the sandbox", func() bool { return stateOf(t, other, "full") == sandbox.Stopped })
	_, in = attached(t, state, "full")
	if err := in.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	nothingLeft(t, state, "full")
}

// TestResizeAttachedWhilePaused changes the limit of a paused sandbox, whose guest
// the process that attached has not reached.
func TestResizeAttachedWhilePaused(t *testing.T) {
	state := t.TempDir()
	first, in := unattached(t, state, sandbox.Spec{ID: "paused", Image: "host", Resources: sandbox.Resources{Memory: 192 << 20}})
	limited(t, first, "memory")
	if err := in.(driver.Pauser).Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	_, in = attached(t, state, "paused")
	if err := in.(driver.Resizer).Resize(t.Context(), sandbox.Resources{Memory: 256 << 20}); err != nil {
		t.Error(err)
	}
	if err := in.(driver.Pauser).Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	stillWorks(t, in)
}

// TestLoanOfKilledProcess checks that memory which a process has lent before it
// was killed is taken back, and that a sandbox without a reserve, from an older
// version, gets one.
func TestLoanOfKilledProcess(t *testing.T) {
	for name, set := range map[sandbox.ID]int64{"lent": 256 << 20, "without": 160 << 20} {
		state := t.TempDir()
		first, in := unattached(t, state, sandbox.Spec{ID: name, Image: "host", Resources: sandbox.Resources{Memory: 192 << 20}})
		limited(t, first, "memory")
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		if err := in.(*gvisor.Instance).Lend(set); err != nil {
			t.Fatal(err)
		}
		_, in = attached(t, state, name)
		if got := in.(*gvisor.Instance).MemoryLimit(); got != 192<<20 {
			t.Errorf("%s: the limit is %d bytes", name, got)
		}
		stillWorks(t, in)
	}
}

// TestFrozenByFormerVersion attaches to a sandbox that a former version of Atoll
// froze because its memory was full.
func TestFrozenByFormerVersion(t *testing.T) {
	state, id := t.TempDir(), ownID("frozen")
	first, in := unattached(t, state, sandbox.Spec{ID: id, Image: "host", Resources: sandbox.Resources{Memory: 192 << 20}})
	limited(t, first, "memory")
	if first.LimitVersion() != 2 {
		need.Thing(t, "cgroup v2", "nothing was frozen with version 1")
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := in.(*gvisor.Instance).Freeze(); err != nil {
		t.Fatal(err)
	}
	_, in = attached(t, state, id)
	stillWorks(t, in)
}

// attached attaches to a sandbox that outlives its provider.
func attached(t *testing.T, state string, id sandbox.ID) (*gvisor.Provider, driver.Instance) {
	t.Helper()
	p := newProvider(t, func(o *gvisor.Options) { o.StateDir, o.Attached = state, false })
	in, err := p.Attach(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return p, in
}

// fillMemory makes the file /root/kept and fills the memory of a sandbox with what
// the end of no program frees, until its caller gives up. What reaches the limit
// first are files in memory that no program writes: a program would be ended for it.
func fillMemory(ctx context.Context, in driver.Instance) {
	fill(ctx, in, `
open("/root/kept", "w").write("kept\n")
for i in range(1000):
    open("/root/%d" % i, "w").close()
    os.setxattr("/root/%d" % i, "user.a", b"x" * 60000)`)
	for i := range 16 {
		if files, ok := driver.As[driver.FileSystem](in); ok {
			_, _ = files.Write(ctx, "/dev/shm/"+strconv.Itoa(i), io.LimitReader(zeros{}, 4<<20), driver.WriteOptions{})
		}
	}
	for ctx.Err() == nil {
		fill(ctx, in, fillers["attributes"])
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
