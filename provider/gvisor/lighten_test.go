package gvisor_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	pgallocpb "gvisor.dev/gvisor/pkg/sentry/pgalloc/pgalloc_metadata_go_proto"
	"gvisor.dev/gvisor/pkg/state/pretty"
	"gvisor.dev/gvisor/pkg/state/statefile"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// mappings makes a program have all kinds of memory, most of which it never
// touches or sets to zero, and remember what has to be in it.
const mappings = `
import mmap, os, sys
size = 8 << 20
with open('/root/ones', 'wb') as f: f.write(b'\xff' * size)
f = open('/root/ones', 'r+b')
P, S, A = mmap.MAP_PRIVATE, mmap.MAP_SHARED, mmap.MAP_ANONYMOUS
maps = [mmap.mmap(-1, size, flags=P|A), mmap.mmap(-1, size, flags=S|A), mmap.mmap(f.fileno(), size, flags=P), mmap.mmap(-1, size, flags=P|A)]
want = [bytearray(size), bytearray(size), bytearray(b'\xff' * size), bytearray(size)]
def put(n, at, data):
    maps[n][at:at + len(data)] = data
    want[n][at:at + len(data)] = data
def check(): return [maps[n][:] == bytes(want[n]) for n in range(len(maps))]
for n in range(len(maps)):
    put(n, 5000, b'a')
    put(n, 3 << 20, b'b' * 5000)
put(2, 4 << 20, bytes(2 << 20))
to, answer = os.pipe(), os.pipe()
if os.fork() == 0:
    put(3, 5 << 20, b'child')
    while os.read(to[0], 1): os.write(answer[1], repr(check()).encode())
    os._exit(0)
put(3, 5 << 20, b'parent')
def both():
    os.write(to[1], b'?')
    return repr(check()) + os.read(answer[0], 1000).decode()
`

const sound = "[True, True, True, True][True, True, True, True]"

// TestUntouchedMemoryIsNotSaved: a snapshot leaves out what no program has ever
// written to, without looking at it, and no program finds its memory changed:
// neither one that goes on, nor its copy, whose own snapshots do the same.
func TestUntouchedMemoryIsNotSaved(t *testing.T) {
	p := newProvider(t, nil)
	in := create(t, p, sandbox.Spec{ID: "source", Image: "host"})
	proc := background(t, in, repl)
	out := bufio.NewReader(proc.Stdout())
	say := func(line string) int { return len(ask(t, proc, out, line)) + len("\n") }
	said := say(fmt.Sprintf("exec(%q)", mappings))
	type state struct {
		dir  string
		said int // by the program, before
	}
	saved := []state{{lightSnapshot(t, in), said}}
	for _, line := range []string{"put(0, 1 << 20, b'new')", "put(2, 5 << 20, b'new')", "put(3, 7 << 20, b'new')"} {
		said += say(line)
	}
	saved = append(saved, state{lightSnapshot(t, in), said})
	for i, s := range saved {
		id := sandbox.ID(fmt.Sprint("copy-", i))
		twin, _ := restore(t, p, s.dir, sandbox.Spec{ID: id, Image: "host", Hostname: string(id)})
		next, how := restore(t, p, lightSnapshot(t, twin), sandbox.Spec{ID: id + "-copy", Image: "host"})
		if !how.Memory {
			t.Fatalf("the memory was not restored: %s", how.Why)
		}
		for _, in := range []driver.Instance{twin, next} {
			proc, out := reconnect(t, in, proc.Info().ID, s.said)
			if got := ask(t, proc, out, "both()"); got != sound {
				t.Errorf("the memory of %s is not what was written: %s", in.ID(), got)
			}
		}
	}
	if got := ask(t, proc, out, "both()"); got != sound {
		t.Errorf("the memory of the source is not what was written: %s", got)
	}
}

// lightSnapshot takes snapshots until one is free of what it need not have: of
// some 70 MB that the program has and never touched, some 8 remain. Pages that
// were copied with zeros are known as zero when they have been saved once, and
// nobody waits for the kernel when it is told that it will be saved.
func lightSnapshot(t *testing.T, in driver.Instance) string {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		dir := snapshot(t, in, driver.SnapshotOptions{Memory: true})
		untouched, longest := untouched(t, dir), longestArray(t, dir)
		if untouched < 24<<20 && longest < 4<<10 {
			return dir
		}
		if time.Now().After(deadline) {
			t.Fatalf("a snapshot has %d bytes that nobody has touched, and an array of %d bytes", untouched, longest)
		}
	}
}

// untouched is how much memory a snapshot says is set aside and zero.
func untouched(t *testing.T, dir string) (size uint64) {
	t.Helper()
	index, err := os.ReadFile(filepath.Join(dir, "pages.index"))
	if err != nil {
		t.Fatal(err)
	}
	var m pgallocpb.MemoryFileMetadataProto
	if err := proto.Unmarshal(index[8:8+binary.LittleEndian.Uint64(index)], &m); err != nil {
		t.Fatal(err)
	}
	for _, r := range m.MemAcct {
		if !r.KnownCommitted {
			size += r.End - r.Start
		}
	}
	return size
}

// looks makes a program look at /proc of every process, and keep its own open.
const looks = `
import glob, os
for name in glob.glob('/proc/[0-9]*/st*'): open(name).read()
own, opened = os.open('/proc/self', os.O_RDONLY), open('/proc/self/stat')
os.chdir('/proc/self/fd')
def stat(): return opened.seek(0) or int(opened.read().split()[0])
def there(name, *how): return int(os.readlink('/proc/self')) if name in os.listdir(*how) else 0
def same(): return {os.getpid()} == {stat(), there('stat', own), there('0', '.'), there('stat', '/proc/self'), int(open('/proc/%d/stat' % os.getpid()).read().split()[0])}
def everybody(): return same() and open('/proc/1/comm').read().strip()
`

// TestUnusedNamesAreNotSaved: a snapshot has nothing of what somebody once looked
// at in /proc, but for what is open, and nobody finds it changed.
func TestUnusedNamesAreNotSaved(t *testing.T) {
	p := newProvider(t, nil)
	in := create(t, p, sandbox.Spec{ID: "source", Image: "host"})
	proc := background(t, in, repl)
	out := bufio.NewReader(proc.Stdout())
	said := len(ask(t, proc, out, fmt.Sprintf("exec(%q)", looks))) + len("\n")
	guest := ask(t, proc, out, "everybody()")
	said += len(guest) + len("\n")
	if guest == "" || guest == "False" {
		t.Fatalf("the program does not see what it is to see: %q", guest)
	}
	var dir string
	for deadline := time.Now().Add(time.Minute); ; {
		dir = snapshot(t, in, driver.SnapshotOptions{Memory: true})
		state := stateText(t, dir)
		processes := strings.Count(state, "fsimpl/proc.taskInode]{")
		unnumbered := strings.Contains(state, "\tids: nil,\n")
		if processes == 1 && unnumbered {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a snapshot has %d directories of processes, and no numbers of packets: %t", processes, unnumbered)
		}
	}
	twin, how := restore(t, p, dir, sandbox.Spec{ID: "copy", Image: "host"})
	if !how.Memory {
		t.Fatalf("the memory was not restored: %s", how.Why)
	}
	again, answers := reconnect(t, twin, proc.Info().ID, said)
	if got := ask(t, again, answers, "everybody()"); got != guest {
		t.Errorf("the copy's /proc is not what it was: %s", got)
	}
	if got := ask(t, proc, out, "everybody()"); got != guest {
		t.Errorf("the source's /proc is not what it was: %s", got)
	}
}

// settings makes a program remember all of /proc/sys but what is random each time.
const settings = `
import os
def settings():
    found = {}
    for dir, dirs, files in os.walk('/proc/sys'):
        for name in files:
            path = os.path.join(dir, name)
            if os.access(path, os.R_OK) and name != 'uuid': found[path] = open(path).read()
        found[dir] = sorted(dirs)
    return found
before = settings()
def same():
    now = settings()
    return len(now) > 80 and {path for path in before.keys() | now.keys() if before.get(path) != now.get(path)} or 'same'
`

// TestSettingsAreMadeAnew: /proc/sys is not a part of a snapshot unless somebody
// has it open, and is the same in a copy, and in a copy of that.
func TestSettingsAreMadeAnew(t *testing.T) {
	p := newProvider(t, nil)
	in := create(t, p, sandbox.Spec{ID: "source", Image: "host"})
	proc := background(t, in, repl)
	out := bufio.NewReader(proc.Stdout())
	said := 0
	say := func(line, want string) {
		t.Helper()
		if got := ask(t, proc, out, line); got != want {
			t.Fatalf("%s: %s, and not %s", line, got, want)
		}
		said += len(want) + len("\n")
	}
	say(fmt.Sprintf("exec(%q)", settings), "None")
	for _, c := range []struct {
		name, before, after string
		saved               bool
	}{
		{"unused", "same()", "same()", false},
		{"open", "f = os.open('/proc/sys/net/ipv4', os.O_RDONLY)", "len(os.listdir(f)) > 30 and same()", true},
		{"changed", "os.close(f); open('/proc/sys/net/ipv4/ip_forward', 'w').write('1')", "open('/proc/sys/net/ipv4/ip_forward').read()[:1] == '1' and same()", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := "ok"
			if c.before == "same()" {
				want = "same"
			}
			say(c.before, want)
			if c.name == "changed" {
				say("before.update(settings())", "None")
			}
			from := in
			for i := range 2 {
				var dir string
				for deadline := time.Now().Add(time.Minute); ; {
					dir = snapshot(t, from, driver.SnapshotOptions{Memory: true})
					files := strings.Count(stateText(t, dir), "fsimpl/proc.staticFile]{")
					if files < 10 != c.saved {
						break
					}
					if time.Now().After(deadline) {
						t.Fatalf("a snapshot has %d files of /proc", files)
					}
				}
				twin, how := restore(t, p, dir, sandbox.Spec{ID: sandbox.ID(fmt.Sprint(c.name, i)), Image: "host"})
				if !how.Memory {
					t.Fatalf("the memory was not restored: %s", how.Why)
				}
				again, answers := reconnect(t, twin, proc.Info().ID, said)
				if got := ask(t, again, answers, c.after); got != "same" {
					t.Errorf("copy %d has other settings: %s", i, got)
				}
				from = twin
				said += len("same\n")
			}
			said -= 2 * len("same\n")
		})
	}
}

// vectors makes a thread keep numbers in registers for vectors until it is told
// to write them down.
const vectors = `
import ctypes, mmap, threading
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ|mmap.PROT_WRITE|mmap.PROT_EXEC)
code.write(bytes.fromhex(
    'c5fe6f07'    # vmovdqu (%rdi), %ymm0
    'c57e6f7f20'  # vmovdqu 32(%rdi), %ymm15
    'c6460401'    # movb $1, 4(%rsi)
    'f390'        # pause
    '833e00'      # cmpl $0, (%rsi)
    '74f9'        # je back to pause
    'c5fe7f02'    # vmovdqu %ymm0, (%rdx)
    'c57e7f7a20'  # vmovdqu %ymm15, 32(%rdx)
    'c5f877'      # vzeroupper
    'c3'))
numbers, flags, found = (ctypes.create_string_buffer(bytes(n), len(n)) for n in (range(100, 164), bytes(8), bytes(64)))
keep = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
thread = threading.Thread(target=keep, args=[ctypes.addressof(b) for b in (numbers, flags, found)])
thread.start()
while flags.raw[4] == 0: pass
def written():
    flags[0] = 1
    thread.join()
    return found.raw == numbers.raw
`

// TestRegistersAreSaved: of a thread's registers, zeros at the end are left out,
// and all that it uses is there in a copy and in the source.
func TestRegistersAreSaved(t *testing.T) {
	p := newProvider(t, nil)
	in := create(t, p, sandbox.Spec{ID: "source", Image: "host"})
	if longest := longestArray(t, snapshot(t, in, driver.SnapshotOptions{Memory: true})); longest > 1<<10 {
		t.Errorf("the state of a sandbox that does nothing has an array of %d bytes", longest)
	}
	proc := background(t, in, repl)
	out := bufio.NewReader(proc.Stdout())
	said := len(ask(t, proc, out, fmt.Sprintf("exec(%q)", vectors))) + len("\n")
	twin, how := restore(t, p, snapshot(t, in, driver.SnapshotOptions{Memory: true}), sandbox.Spec{ID: "copy", Image: "host"})
	if !how.Memory {
		t.Fatalf("the memory was not restored: %s", how.Why)
	}
	again, answers := reconnect(t, twin, proc.Info().ID, said)
	if got := ask(t, again, answers, "written()"); got != "True" {
		t.Errorf("the copy's registers are not what they were: %s", got)
	}
	if got := ask(t, proc, out, "written()"); got != "True" {
		t.Errorf("the source's registers are not what they were: %s", got)
	}
}

// longestArray is how many bytes the longest array of bytes in a kernel's state
// has, but for zeros at its end.
func longestArray(t *testing.T, dir string) (longest int) {
	t.Helper()
	n := 0
	for line := range strings.Lines(stateText(t, dir)) {
		if n++; len(line) < 3 || line[0] != '\t' || line[1] < '0' || line[1] > '9' {
			n = 0
		}
		longest = max(longest, n)
	}
	return longest
}

// stateText is a kernel's state in words.
func stateText(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "kernel"))
	if err != nil {
		t.Fatal(err)
	}
	r, _, err := statefile.NewReader(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var text strings.Builder
	if err := pretty.PrintText(&text, r); err != nil {
		t.Fatal(err)
	}
	return text.String()
}
