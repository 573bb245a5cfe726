package gvisor_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	pgallocpb "gvisor.dev/gvisor/pkg/sentry/pgalloc/pgalloc_metadata_go_proto"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// mappings makes a program allocate all kinds of memory, most of which it never
// touches or sets to zero, and record the expected content.
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

// TestUntouchedMemoryIsNotSaved checks that a snapshot leaves out untouched
// memory without reading it, and that the memory of the source and of the copy
// is intact. The same holds for the copy's snapshots.
func TestUntouchedMemoryIsNotSaved(t *testing.T) {
	p := newProvider(t, nil)
	in := create(t, p, sandbox.Spec{ID: "source", Image: "host"})
	proc := background(t, in, repl)
	out := bufio.NewReader(proc.Stdout())
	say := func(line string) int { return len(ask(t, proc, out, line)) + len("\n") }
	said := say(fmt.Sprintf("exec(%q)", mappings))
	type state struct {
		dir  string
		said int // output of the program read before
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

// lightSnapshot takes snapshots until one leaves out most of the untouched
// memory: of about 70 MB, 8 remain. gVisor knows only after the first snapshot
// that pages which were copied with zeros are zero.
func lightSnapshot(t *testing.T, in driver.Instance) string {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		dir := snapshot(t, in, driver.SnapshotOptions{Memory: true})
		size := untouched(t, dir)
		if size < 24<<20 {
			return dir
		}
		if time.Now().After(deadline) {
			t.Fatalf("a snapshot has %d bytes of untouched memory, want less than %d", size, 24<<20)
		}
	}
}

// untouched returns how much memory of a snapshot is allocated and zero.
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
