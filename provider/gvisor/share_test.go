package gvisor_test

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// large makes a program allocate 64 MB of memory and record its content.
const large = `
import hashlib, mmap, os, subprocess
MB = 1 << 20
m = mmap.mmap(-1, 64 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
block = os.urandom(MB)
for i in range(64): m[i * MB:(i + 1) * MB] = bytes([i]) + block[1:]
def sums(): return [hashlib.sha1(m[i * MB:(i + 1) * MB]).hexdigest()[:8] for i in range(len(m) // MB)]
want = sums()
def put(i, data):
    m[i * MB:(i + 1) * MB] = data
    want[i] = hashlib.sha1(data).hexdigest()[:8]
def written():
    with open('/root/copy', 'wb') as f: f.write(m)
    with open('/root/copy', 'rb') as f: return [hashlib.sha1(f.read(MB)).hexdigest()[:8] for i in range(len(m) // MB)]
def filled(i):
    with open('/root/bytes', 'wb') as f: f.write(b'\x55' * MB)
    with open('/root/bytes', 'rb') as f: f.readinto(memoryview(m)[i * MB:(i + 1) * MB])
    want[i] = hashlib.sha1(b'\x55' * MB).hexdigest()[:8]
def child():
    r, w = os.pipe()
    if os.fork() == 0:
        right = sums() == want
        m[0:MB] = bytes(MB)
        os.write(w, b'right' if right else b'wrong')
        os._exit(0)
    os.wait()
    return os.read(r, 100).decode()
`

// TestMemoryIsShared checks that copies of a sandbox use its memory without
// copying it until they write to it, and that no copy sees the changes of
// another, in whatever way they are made.
func TestMemoryIsShared(t *testing.T) {
	p := newProvider(t, nil)
	in := create(t, p, sandbox.Spec{ID: "source", Image: "host"})
	proc := background(t, in, repl)
	out := bufio.NewReader(proc.Stdout())
	said := len(ask(t, proc, out, fmt.Sprintf("exec(%q)", large))) + len("\n")
	dir := snapshot(t, in, driver.SnapshotOptions{Memory: true})

	copies := make([]driver.Instance, 3)
	for i := range copies {
		var how driver.Restored
		if copies[i], how = restore(t, p, dir, sandbox.Spec{ID: sandbox.ID(fmt.Sprint("copy-", i)), Image: "host"}); !how.Memory {
			t.Fatalf("the memory was not restored: %s", how.Why)
		}
	}
	if err := os.RemoveAll(dir); err != nil { // open files stay usable
		t.Fatal(err)
	}
	const right = "True"
	talk := func(in driver.Instance, said *int) func(line, want string) {
		proc, out := reconnect(t, in, proc.Info().ID, *said)
		return func(line, want string) {
			t.Helper()
			got := ask(t, proc, out, line)
			*said += len(got) + len("\n")
			if got != want {
				t.Errorf("%s answers %s with %s, and not with %s", in.ID(), line, got, want)
			}
		}
	}
	own := func(in driver.Instance, least, most int64) {
		t.Helper()
		if size := ownMemory(t, in) >> 20; size < least || size > most {
			t.Errorf("%s has %d MB of its own, and not %d to %d", in.ID(), size, least, most)
		}
	}

	heard := [3]int{said, said, said}
	first, second, third := talk(copies[0], &heard[0]), talk(copies[1], &heard[1]), talk(copies[2], &heard[2])
	first("sums() == want", right)
	first("written() == want", right)
	first("subprocess.run(['/bin/true']).returncode", "0")
	own(copies[0], 0, 20)
	first("put(3, b'x' * MB)", "None")
	first("filled(9)", "None")
	first("sums() == want", right)
	own(copies[0], 4, 30)

	second("sums() == want", right)
	second("m.madvise(mmap.MADV_DONTNEED, 5 * MB, 2 * MB)", "None")
	second("m[5 * MB:7 * MB] == bytes(2 * MB)", right)
	second("m.resize(96 * MB)", "None")
	second("m[64 * MB:] == bytes(32 * MB)", right)
	second("sums()[:5] == want[:5] and sums()[7:64] == want[7:]", right)
	own(copies[1], 0, 60)

	own(copies[2], 0, 20)
	third("child()", "right")
	third("sums() == want", right)
	third("child()", "right")
	own(copies[2], 60, 100) // a forked child needs its own copy
	if t.Failed() {
		return
	}

	// A snapshot also contains the shared memory.
	dir = snapshot(t, copies[0], driver.SnapshotOptions{Memory: true})
	before := heard[0]
	first("sums() == want", right)
	next, how := restore(t, p, dir, sandbox.Spec{ID: "copy-of-copy", Image: "host"})
	if !how.Memory {
		t.Fatalf("the memory was not restored: %s", how.Why)
	}
	fourth := talk(next, &before)
	fourth("sums() == want", right)
	own(next, 0, 20)
}

// TestSharedMemoryHasALimit: shared memory does not count towards the limit, so
// a copy can have more memory than its limit. An operation that would unshare
// it must fail and not end the copy, and must succeed again when there is room.
func TestSharedMemoryHasALimit(t *testing.T) {
	p := newProvider(t, nil)
	spec := sandbox.Spec{ID: "source", Image: "host", Resources: sandbox.Resources{Memory: 160 << 20}}
	in := create(t, p, spec)
	proc := background(t, in, repl)
	out := bufio.NewReader(proc.Stdout())
	said := len(ask(t, proc, out, fmt.Sprintf("exec(%q)", large))) + len("\n")
	dir := snapshot(t, in, driver.SnapshotOptions{Memory: true})
	spec.ID = "copy"
	twin, how := restore(t, p, dir, spec)
	if !how.Memory {
		t.Fatalf("the memory was not restored: %s", how.Why)
	}
	proc, out = reconnect(t, twin, proc.Info().ID, said)
	for _, line := range []string{"more = os.urandom(80 * MB)", "exec('try: child()\\nexcept OSError as e: failed = e.errno')", "failed"} {
		if got, want := ask(t, proc, out, line), map[string]string{"failed": "12"}[line]; want != "" && got != want {
			t.Errorf("a child that does not fit: %s, and not %s", got, want)
		}
	}
	_, err := twin.(driver.Snapshotter).Snapshot(t.Context(), driver.SnapshotOptions{ID: newSnapshotID(), Memory: true})
	if sandbox.CodeOf(err) != sandbox.CodeExhausted {
		t.Errorf("a snapshot that does not fit: %v", err)
	}
	for _, line := range []string{"sums() == want", "len(more) == 80 * MB", "exec('more = 0') is None", "child() == 'right'", "sums() == want"} {
		if got := ask(t, proc, out, line); got != "True" {
			t.Fatalf("the copy answers %s with %s", line, got)
		}
	}
	snapshot(t, twin, driver.SnapshotOptions{Memory: true})
}

// ownMemory returns how much memory a sandbox has that it does not share, in
// bytes.
func ownMemory(t *testing.T, in driver.Instance) (size int64) {
	t.Helper()
	fds := fmt.Sprintf("/proc/%d/fd", in.(*gvisor.Instance).Kernel())
	names, err := os.ReadDir(fds)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, name := range names {
		at := filepath.Join(fds, name.Name())
		if to, err := os.Readlink(at); err != nil || !strings.HasPrefix(to, "/memfd:runsc-memory") {
			continue
		}
		info, err := os.Stat(at)
		if err != nil {
			t.Fatal(err)
		}
		found = true
		size += info.Sys().(*syscall.Stat_t).Blocks * 512
	}
	if !found {
		t.Fatal("the kernel has no memory that can be found")
	}
	return size
}
