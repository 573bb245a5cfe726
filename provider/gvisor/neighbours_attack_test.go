package gvisor_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// leave writes a canary to every place in which a sandbox can keep data. The
// search for it is written so that it does not find itself.
const (
	leave = `
import os, subprocess, sys, time
canary = b"cana" + b"ry-7f3a9c"
for d in ("/", "/root", "/tmp", "/var/tmp", "/dev/shm", "/run", "/etc", "/home"):
    try:
        os.makedirs(d, exist_ok=True)
        with open(d + "/left-behind", "wb") as f: f.write(canary * 4096)
    except OSError: pass
os.environ["LEFT"] = canary.decode()
memory = bytearray(canary * (8 << 20 >> 3))
r, w = os.pipe()
os.write(w, canary * 100)
subprocess.Popen(["sleep", "600"], env=os.environ)
print("left", flush=True)
time.sleep(600)
`
	seek = `
import glob, mmap, os, re
needle = re.compile(rb"cana[r]y-7f3a9c")
def report(where): print("FOUND", where)
for top, dirs, files in os.walk("/"):
    dirs[:] = [d for d in dirs if os.path.join(top, d) not in ("/proc", "/sys", "/usr", "/opt", "/dev/pts")]
    for name in files:
        path = os.path.join(top, name)
        if "left-behind" in name: report(path)
        try:
            if os.path.isfile(path) and os.path.getsize(path) < 64 << 20 and needle.search(open(path, "rb").read()): report(path)
        except OSError: pass
regions = 0
for proc in glob.glob("/proc/[0-9]*"):
    for part in ("environ", "cmdline"):
        try:
            if needle.search(open(proc + "/" + part, "rb").read()): report(proc + "/" + part)
        except OSError: pass
    try:
        maps, mem = open(proc + "/maps").read(), open(proc + "/mem", "rb", 0)
    except OSError: continue
    for line in maps.splitlines():
        span, perms = line.split()[:2]
        begin, end = (int(x, 16) for x in span.split("-"))
        if "r" not in perms or end - begin > 256 << 20: continue
        try:
            mem.seek(begin)
            if needle.search(mem.read(end - begin)): report(proc + " " + line)
            regions += 1
        except (OSError, ValueError, OverflowError): pass
fresh = mmap.mmap(-1, 192 << 20)
if fresh[:].count(0) != len(fresh): report("fresh memory")
print("searched", regions > 0)
`
)

// TestAttackLeftoversInPool leaves secrets in sandboxes from the pool and
// searches for them, as root, in the next ones: in files, environments,
// arguments, fresh memory and the memory of all processes.
func TestAttackLeftoversInPool(t *testing.T) {
	need.Program(t, "python3")
	p, await, from := pooled(t, 2)
	fill := func(all, _ int) bool { return all > 0 }
	create(t, p, sandbox.Spec{ID: "asks", Image: "host"}) // so that the pool prewarms this shape
	for i := range 3 {
		await(fill)
		id := sandbox.ID(fmt.Sprint("first-", i))
		in := create(t, p, sandbox.Spec{ID: id, Image: "host", Env: map[string]string{"TOKEN": "canary-7f3a9c"}, Hostname: "canary-7f3a9c"})
		if !from(id) {
			t.Fatal("the first tenant's did not come from the pool")
		}
		proc, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"python3", "-c", leave}})
		if err != nil {
			t.Fatal(err)
		}
		if line, err := readLine(proc); err != nil || line != "left" {
			t.Fatalf("nothing was left: %q, %v", line, err)
		}
		if i == 0 { // the search must find the secrets in their own sandbox
			if o := python(t, in, seek); !strings.Contains(o.stdout, "FOUND /root/left-behind") || !strings.Contains(o.stdout, "FOUND /proc/") {
				t.Fatalf("the search finds nothing: %+v", o)
			}
		}
		if err := in.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
		proc.Close()
		await(fill)
		id = sandbox.ID(fmt.Sprint("second-", i))
		next := create(t, p, sandbox.Spec{ID: id, Image: "host"})
		if !from(id) {
			t.Fatal("the second tenant's did not come from the pool")
		}
		if o := python(t, next, seek); o.stdout != "searched True\n" {
			t.Errorf("another tenant's secrets: %+v", o)
		}
	}
}

// readLine reads a line of a command's output.
func readLine(p driver.Process) (string, error) {
	var line []byte
	for b := make([]byte, 1); ; {
		n, err := p.Stdout().Read(b)
		switch {
		case n == 1 && b[0] == '\n':
			return string(line), nil
		case n == 1:
			line = append(line, b[0])
		case err != nil:
			return string(line), err
		}
	}
}

// racing reads through names that another process swaps between a directory and
// a link, or moves, and prints data from outside.
const racing = `
import os, threading, time
end, outside = time.time() + 6, "OUTSIDE"
os.makedirs("/mnt/own/a/b/c", exist_ok=True)
open("/mnt/own/f", "w").close()
tries = [0]
def swap():
    os.chdir("/")
    i = 0
    while time.time() < end:
        i += 1
        for target in (outside, "../../..", "/proc/self/root", "../../../../../../.." + outside):
            try:
                os.rename("/mnt/own/a/b", "/mnt/own/moved")
                os.symlink(target, "/mnt/own/a/b")
                os.unlink("/mnt/own/a/b")
                os.rename("/mnt/own/moved", "/mnt/own/a/b")
            except OSError: pass
            try:
                os.rename("/mnt/own/a/b/c", "/mnt/c")
                os.rename("/mnt/c", "/mnt/own/a/b/c")
            except OSError: pass
def look(path, dirfd=None):
    tries[0] += 1
    try:
        fd = os.open(path, os.O_RDONLY, dir_fd=dirfd)
    except OSError: return
    try:
        if b"host-secret" in os.read(fd, 100): print("ESCAPED", path, flush=True)
    except OSError: pass
    os.close(fd)
def write(path):
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(fd, b"owned"); os.close(fd)
    except OSError: pass
deep = os.open("/mnt/own/a/b/c", os.O_RDONLY)
threading.Thread(target=swap).start()
while time.time() < end:
    for n in (2, 3, 4, 5): look("../" * n + "secret/file", deep)
    for path in ("/mnt/own/a/b/file", "/mnt/own/a/b/secret/file", "/mnt/sub/file", "/mnt/sub/../secret/file", "/mnt/file"): look(path)
    for path in ("/mnt/own/a/b/file", "/mnt/sub/file", "/mnt/sub/new", "/mnt/file"): write(path)
    for name in ("link", "hard"):
        try: os.link("/mnt/sub/file", "/mnt/own/" + name)
        except OSError: pass
        look("/mnt/own/" + name)
        try: os.unlink("/mnt/own/" + name)
        except OSError: pass
print("tried", tries[0] > 100)
`

// TestAttackMountSwap: root inside, and a host user who may write to a shared
// directory, replace directories by links to the outside while files are
// opened. Nothing outside may be read, created or changed.
func TestAttackMountSwap(t *testing.T) {
	p := newProvider(t, nil)
	top := t.TempDir()
	shared, secret := filepath.Join(top, "shared"), filepath.Join(top, "secret")
	for _, dir := range []string{shared, filepath.Join(shared, "sub"), secret} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range map[string]string{filepath.Join(secret, "file"): "host-secret", filepath.Join(shared, "sub", "file"): "shared", filepath.Join(shared, "real"): "shared"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before := hostTree(t, secret)
	in := create(t, p, sandbox.Spec{ID: "swap", Image: "host", Mounts: []sandbox.Mount{{Source: shared, Target: "/mnt"}}})
	stop, swaps := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		sub, real := filepath.Join(shared, "sub"), filepath.Join(shared, ".real")
		file := filepath.Join(shared, "file")
		for ; ; n++ {
			select {
			case <-stop:
				swaps <- n
				return
			default:
			}
			_ = os.Rename(sub, real)
			_ = os.Symlink(secret, sub)
			_ = os.Symlink(filepath.Join(secret, "file"), file)
			_ = os.Remove(sub)
			_ = os.Rename(real, sub)
			_ = os.Remove(file)
		}
	}()
	end := sync.OnceValue(func() int {
		close(stop)
		return <-swaps
	})
	defer end() // python may skip the test
	o := python(t, in, strings.ReplaceAll(racing, "OUTSIDE", secret))
	if n := end(); n < 100 {
		t.Errorf("the host has swapped %d times only", n)
	}
	if o.stdout != "tried True\n" {
		t.Errorf("got out: %+v", o)
	}
	if after := hostTree(t, secret); after != before {
		t.Errorf("outside was changed to\n%s\nfrom\n%s", after, before)
	}
	stillWorks(t, in)
}

// TestAttackForgedKernelState restores kernels whose saved state was changed at
// random, with matching checksums, as an attacker with access to the snapshot
// directory could do. The kernel that reads the state is confined, so at worst
// the sandbox does not start: the caller gets an error or only the files, in
// limited time, other sandboxes keep working, and nothing is left behind.
func TestAttackForgedKernelState(t *testing.T) {
	state := t.TempDir()
	p := newProvider(t, func(o *gvisor.Options) { o.StateDir = state })
	honest := create(t, p, sandbox.Spec{ID: "honest", Image: "host"})
	sh(t, honest, "echo content >/root/file")
	good := snapshot(t, honest, driver.SnapshotOptions{Memory: true})
	random := rand.New(rand.NewPCG(19, 19))
	outcomes := map[string]int{}
	for i := range 12 {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(good)); err != nil {
			t.Fatal(err)
		}
		part := []string{"kernel", "pages.index"}[i%2]
		path := filepath.Join(dir, part)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for range 1 << (i / 2) { // doubling
			b[random.IntN(len(b))] = byte(random.Uint32())
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		forge(t, dir, nil)
		id := sandbox.ID(fmt.Sprint("forged-", i))
		began := time.Now()
		in, how, err := p.Restore(t.Context(), &sandbox.Spec{ID: id, Image: "host"}, refTo(t, dir))
		if took := time.Since(began); took > 2*time.Minute {
			t.Errorf("%d bytes of %s: took %v", 1<<(i/2), part, took)
		}
		switch {
		case err != nil:
			outcomes["refused"]++
			if code := p.ErrorCode(err); code == "" || code == sandbox.CodeInternal {
				t.Errorf("%d bytes of %s: %v", 1<<(i/2), part, err)
			}
		case how.Memory:
			outcomes["runs"]++
		default:
			outcomes["files only"]++
		}
		if err == nil {
			if err := in.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		}
		endsWhole(t, fmt.Sprintf("%d bytes of %s", 1<<(i/2), part), state, id)
		stillWorks(t, honest)
	}
	t.Log(outcomes)
	if len(slices.Collect(maps.Keys(outcomes))) == 0 {
		t.Error("nothing was restored")
	}
}
