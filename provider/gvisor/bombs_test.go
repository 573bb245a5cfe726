package gvisor_test

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

const nullSignal = syscall.Signal(0)

// pair creates a victim of an attack and a neighbour that must not be affected.
func pair(t *testing.T, res sandbox.Resources) (victim, neighbour driver.Instance, p driver.Provider) {
	t.Helper()
	gp := newProvider(t, nil)
	victim = create(t, gp, sandbox.Spec{ID: "victim", Image: "host", Resources: res})
	neighbour = create(t, gp, sandbox.Spec{ID: "neighbour", Image: "host"})
	return victim, neighbour, gp
}

// limited skips a normal user's test of a limit that needs a control group, if
// none can be made.
func limited(t *testing.T, p driver.Provider, limit string) {
	t.Helper()
	facts, err := p.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if l := facts.Limits[limit]; !l.Holds {
		need.Root(t, l.Why)
		t.Fatalf("the limit of %s does not hold: %s", limit, l.Why)
	}
}

func TestForkBomb(t *testing.T) {
	victim, neighbour, _ := pair(t, sandbox.Resources{PIDs: 64, Memory: 512 << 20})
	o := run(t, victim, sandbox.Command{
		Args: []string{"python3", "-c", `
import os, time
n = 0
try:
    while n < 10000:
        if os.fork() == 0:
            os.closerange(0, 3); time.sleep(60); os._exit(0)
        n += 1
except OSError as e:
    print("refused after", n, e.errno)
`}, Timeout: 60 * time.Second,
	})
	if !strings.Contains(o.stdout, "refused after") {
		t.Errorf("the number of processes is not limited: %+v", o)
	}
	bomb, err := victim.Exec(t.Context(), &sandbox.Command{Shell: `f() { f | f & }; f; sleep 2; echo over`, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := bomb.Wait(t.Context()); err != nil || exit.Reason == "" {
		t.Errorf("the bomb: %+v, %v", exit, err)
	}
	stillWorks(t, neighbour)
	// Closing the command ends all its processes, which takes longer while they
	// multiply. Until then no other command can start.
	bomb.Close()
	closed := time.Now()
	for err := answers(t.Context(), victim); err != nil; err = answers(t.Context(), victim) {
		if !strings.Contains(err.Error(), "as many processes as it may have") {
			t.Fatalf("while the bomb ends: %v", err)
		}
		if time.Since(closed) > 2*time.Minute {
			t.Fatalf("the sandbox does not recover: %v", err)
		}
	}
	stillWorks(t, neighbour)
}

// waysOutOfTheLimit are tried by root inside, which then starts processes until
// that fails.
var waysOutOfTheLimit = map[string]string{
	"none": ``,
	"start in another group": `
for d, _, _ in os.walk("/sys/fs/cgroup"): into(d)
`,
	"move to another group": `
for d, _, files in os.walk("/sys/fs/cgroup"): put(d + "/cgroup.procs", "0")
`,
	"mount the groups": `
unshare(NEWUSER | NEWNS)
mount()
for d, _, _ in os.walk("/mnt"):
    put(d + "/pids.max", "max"); put(d + "/cgroup.subtree_control", "-pids")
into("/mnt"); into("/mnt/.."); into("/mnt/../..")
`,
	"mount the groups from below": `
unshare(NEWUSER | NEWNS)
mount()
os.mkdir("/mnt/below"); put("/mnt/below/cgroup.procs", "0")
unshare(NEWCGROUP)
put("/mnt/cgroup.subtree_control", "+pids")
for d, _, _ in os.walk("/mnt"): put(d + "/pids.max", "max")
mount()
for d, _, _ in os.walk("/mnt"): put(d + "/pids.max", "max")
into("/mnt")
`,
	"mount the groups of the first process": `
for ns in "cgroup", "mnt", "user":
    try: libc.setns(os.open("/proc/1/ns/" + ns, os.O_RDONLY), 0)
    except OSError: pass
unshare(NEWUSER | NEWNS)
for ns in "cgroup", "mnt":
    try: libc.setns(os.open("/proc/1/ns/" + ns, os.O_RDONLY), 0)
    except OSError: pass
mount()
for d, _, _ in os.walk("/mnt"): put(d + "/pids.max", "max")
into("/mnt"); into("/proc/1/root/sys/fs/cgroup")
`,
	"mount the groups of old": `
unshare(NEWUSER | NEWNS)
print("old", libc.mount(b"none", b"/mnt", b"cgroup", 0, b"pids"))
for d, _, _ in os.walk("/mnt"):
    put(d + "/pids.max", "max"); put(d + "/cgroup.procs", "0"); put(d + "/tasks", "0")
`,
	"descriptors of the first process": `
try:
    for fd in os.listdir("/proc/1/fd"): into("/proc/1/fd/" + fd)
except OSError: pass
`,
}

// TestLimitOfProcessesHolds counts the concurrent processes that root inside
// can start after trying to lift the limit.
func TestLimitOfProcessesHolds(t *testing.T) {
	const limit = 40
	in := create(t, newProvider(t, nil), sandbox.Spec{Image: "host", Resources: sandbox.Resources{PIDs: limit}})
	for name, way := range waysOutOfTheLimit {
		t.Run(name, func(t *testing.T) {
			o := python(t, in, `
import ctypes, os, signal, struct
libc = ctypes.CDLL(None, use_errno=True)
NEWUSER, NEWNS, NEWCGROUP, INTO = 0x10000000, 0x20000, 0x2000000, 0x200000000
def put(name, what):
    try:
        with open(name, "w") as f: f.write(what)
    except OSError: pass
def unshare(what): print("unshare", libc.unshare(what))
def mount(): print("mount", libc.mount(b"none", b"/mnt", b"cgroup2", 0, None))
def into(name):
    try: fd = os.open(name, os.O_RDONLY)
    except OSError: return
    args = struct.pack("11Q", INTO, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, fd)
    pid = libc.syscall(435, args, len(args))
    os.close(fd)
    if pid > 0: # the child goes on
        os.waitpid(pid, 0); os._exit(0)
`+way+`
children = []
try:
    while len(children) < 200:
        pid = os.fork()
        if pid == 0:
            signal.pause(); os._exit(0)
        children.append(pid)
except BlockingIOError: pass
print("made", len(children), flush=True)
for pid in children: os.kill(pid, signal.SIGKILL)
for pid in children: os.waitpid(pid, 0)
`)
			made := -1
			if _, n, ok := strings.Cut(o.stdout, "made "); ok {
				made, _ = strconv.Atoi(strings.TrimSpace(n))
			}
			if made < limit/2 || made >= limit {
				t.Errorf("%d processes with a limit of %d: %+v", made, limit, o)
			}
			stillWorks(t, in)
		})
	}
}

func TestMemoryBomb(t *testing.T) {
	need.Program(t, "python3")
	victim, neighbour, p := pair(t, sandbox.Resources{Memory: 192 << 20})
	limited(t, p, "memory")
	proc, err := victim.Exec(t.Context(), &sandbox.Command{Args: []string{"python3", "-c", `
b = []
while True:
    b.append(bytearray(8 << 20))
`}})
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if exit, err := proc.Wait(ctx); err != nil || exit.Reason != sandbox.ReasonMemory {
		t.Errorf("the command's Wait = %+v, %v; want reason %s", exit, err, sandbox.ReasonMemory)
	}
	stillWorks(t, neighbour)
	recovers(t, victim)
}

// TestMemoryHeldByNobody fills memory that belongs to no process: a file in
// /dev/shm, which has its own limit.
func TestMemoryHeldByNobody(t *testing.T) {
	victim, neighbour, p := pair(t, sandbox.Resources{Memory: 192 << 20})
	limited(t, p, "memory")
	if o := sh(t, victim, `dd if=/dev/zero of=/dev/shm/fill bs=1M count=400 2>&1`); !strings.Contains(o.stdout, "No space left on device") {
		t.Errorf("/dev/shm is not limited: %+v", o)
	}
	stillWorks(t, neighbour)
	stillWorks(t, victim)
}

// TestKernelFullOfFiles creates so many files that the kernel's data about them
// exceeds the memory limit. The kernel cannot free this data.
func TestKernelFullOfFiles(t *testing.T) {
	victim, neighbour, p := pair(t, sandbox.Resources{Memory: 64 << 20})
	limited(t, p, "memory")
	o := python(t, victim, `
import os
for d in range(10000):
    os.makedirs("/tmp/d/%d" % d)
    for i in range(100): open("/tmp/d/%d/%d" % (d, i), "w").close()
`)
	if o.exit.Reason != sandbox.ReasonMemory {
		t.Errorf("the command: %+v, want reason %s", o.exit, sandbox.ReasonMemory)
	}
	stillWorks(t, neighbour)
	if answers(t.Context(), victim) == nil {
		return
	}
	if exit, ended := hasEnded(t.Context(), victim); ended && exit.Reason != sandbox.ReasonMemory || !ended && !victim.(*gvisor.Instance).Full() {
		t.Errorf("the sandbox has ended: %v, with %+v; want that it waits for more memory, or reason %s", ended, exit, sandbox.ReasonMemory)
	}
}

func TestDiskFill(t *testing.T) {
	victim, neighbour, p := pair(t, sandbox.Resources{Disk: 32 << 20})
	o := sh(t, victim, `dd if=/dev/zero of=/tmp/fill bs=1M count=200 2>&1; du -sm /tmp/fill | cut -f1`)
	if !strings.Contains(o.stdout, "No space left on device") {
		t.Errorf("the disk is not limited: %+v", o)
	}
	files, _ := driver.As[driver.FileSystem](victim)
	_, err := files.Write(t.Context(), "/tmp/more", io.LimitReader(zeros{}, 64<<20), driver.WriteOptions{})
	if code := p.ErrorCode(err); code != sandbox.CodeExhausted {
		t.Errorf("writing to a full disk: %v (%s), want %s", err, code, sandbox.CodeExhausted)
	}
	if o := sh(t, victim, `rm /tmp/fill; ls -A /tmp; echo ok > /tmp/small && cat /tmp/small`); o.stdout != "ok\n" {
		t.Errorf("after making room: %+v", o)
	}
	stillWorks(t, neighbour)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestDescriptorExhaustion(t *testing.T) {
	victim, neighbour, _ := pair(t, sandbox.Resources{Memory: 1 << 30})
	o := python(t, victim, `
import resource, socket
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 300000), hard))
keep = []
try:
    for i in range(200000): keep.append(open("/usr/bin/env"))
except OSError as e: print("files stopped at", len(keep), e.errno)
print("kept", len(keep) > 0)
`)
	if !strings.Contains(o.stdout, "kept True") && o.exit.Code == 0 {
		t.Errorf("unexpected: %+v", o)
	}
	stillWorks(t, neighbour)
	stillWorks(t, victim)
}

func TestOutputNobodyReads(t *testing.T) {
	victim, neighbour, _ := pair(t, sandbox.Resources{Memory: 256 << 20})
	// More than the sandbox could buffer.
	script := fmt.Sprintf(`yes | head -c %d; echo done >&2`, shorter(1<<30, 320<<20))
	foreground, err := victim.Exec(t.Context(), &sandbox.Command{Shell: script})
	if err != nil {
		t.Fatal(err)
	}
	background, err := victim.Exec(t.Context(), &sandbox.Command{Shell: script, Background: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	// A background command ends, because its output is dropped after its starter
	// has left.
	background.Close()
	if background, err = victim.(driver.ProcessManager).Reconnect(ctx, background.Info().ID); err != nil {
		t.Fatal(err)
	}
	if exit, err := background.Wait(ctx); err != nil || exit.Code != 0 {
		t.Errorf("the background command: %+v, %v", exit, err)
	}
	background.Close()
	// A foreground command waits for its reader, and the sandbox still works.
	stillWorks(t, victim)
	if info := foreground.Info(); !info.Running && info.Exit != nil {
		t.Errorf("a command whose output is not read has ended: %+v", info)
	}
	foreground.Close()
	stillWorks(t, neighbour)
}

func TestProcessThatIgnoresSignals(t *testing.T) {
	victim, neighbour, _ := pair(t, sandbox.Resources{})
	o := run(t, victim, sandbox.Command{Shell: `trap '' TERM INT HUP QUIT; sh -c 'trap "" TERM; sleep 300' & while :; do sleep 1; done`, Timeout: time.Second})
	if o.exit.Reason != sandbox.ReasonTimeout {
		t.Errorf("exit = %+v, want reason %s", o.exit, sandbox.ReasonTimeout)
	}
	if o := sh(t, victim, `for p in /proc/[0-9]*; do tr '\0' ' ' < $p/cmdline; done | grep -c 'slee[p] 300'`); o.stdout != "0\n" {
		t.Errorf("a child survived the timeout: %+v", o)
	}
	stillWorks(t, neighbour)
}

func TestDeepTree(t *testing.T) {
	victim, _, _ := pair(t, sandbox.Resources{})
	files, _ := driver.As[driver.FileSystem](victim)
	o := python(t, victim, `
import os
os.makedirs("/tmp/deep"); os.chdir("/tmp/deep")
for i in range(10000):
    os.mkdir("d"); os.chdir("d")
print("made")
`)
	if o.stdout != "made\n" {
		t.Fatalf("making the tree: %+v", o)
	}
	n := 0
	for _, err := range files.List(t.Context(), "/tmp/deep", driver.ListOptions{Depth: -1}) {
		if err != nil {
			t.Fatalf("listing after %d entries: %v", n, err)
		}
		n++
	}
	if n != 10000 {
		t.Errorf("listed %d directories, want 10000", n)
	}
	if err := files.Remove(t.Context(), "/tmp/deep", true); err != nil {
		t.Errorf("removing the tree: %v", err)
	}
	stillWorks(t, victim)
}

func TestOddFiles(t *testing.T) {
	victim, _, p := pair(t, sandbox.Resources{})
	files, _ := driver.As[driver.FileSystem](victim)
	sh(t, victim, `mkdir /tmp/o; cd /tmp/o; mkfifo fifo; truncate -s 8E sparse || truncate -s 4T sparse; ln -s /dev/zero link; ln -s loop loop; mknod zero c 1 5; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, name := range []string{"fifo", "link", "loop", "zero", "sock", "."} {
		r, _, err := files.Read(ctx, "/tmp/o/"+name, driver.ReadOptions{})
		if err == nil {
			r.Close()
		}
		if code := p.ErrorCode(err); code != sandbox.CodeInvalid && code != sandbox.CodeNotFound {
			t.Errorf("reading %s: %v (%s), want %s", name, err, code, sandbox.CodeInvalid)
		}
	}
	r, info, err := files.Read(ctx, "/tmp/o/sparse", driver.ReadOptions{Offset: 1 << 40, Length: 4096})
	if err != nil {
		t.Fatalf("reading a huge sparse file: %v", err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil || len(b) != 4096 || info.Size < 1<<40 {
		t.Errorf("read %d bytes of %d, %v", len(b), info.Size, err)
	}
}
