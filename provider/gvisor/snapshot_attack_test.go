package gvisor_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// busy lists what a process may have open when it is saved. Each entry is
// created by its first line and must answer its second line with its third in
// every copy.
var busy = []struct{ name, make, ask, want string }{
	{"modules", "import os, socket, threading, time, pty, ctypes, mmap, select, fcntl, tempfile", "1", "1"},
	{"a list", "big = list(range(3000000))", "sum(big)", "4499998500000"},
	{"a deleted file", "f = open('/root/gone', 'w+'); f.write('kept'); f.flush(); os.unlink('/root/gone')", "(f.seek(0), f.read(), os.fstat(f.fileno()).st_nlink)", "(0, 'kept', 0)"},
	{"a FIFO", "os.mkfifo('/root/fifo'); fifo = os.open('/root/fifo', os.O_RDWR); os.write(fifo, b'in it')", "os.read(fifo, 5)", "b'in it'"},
	{"a terminal", "a, b = pty.openpty(); os.write(a, b'typed\\n')", "os.read(b, 6)", "b'typed\\n'"},
	{
		"an inotify", "libc = ctypes.CDLL(None); ino = libc.inotify_init(); os.mkdir('/root/watched'); libc.inotify_add_watch(ino, b'/root/watched', 0x100)",
		"(open('/root/watched/new', 'w').close(), len(os.read(ino, 4096)) > 0)", "(None, True)",
	},
	{"a lock", "l = open('/root/lock', 'w'); fcntl.flock(l, fcntl.LOCK_EX)", "os.system('flock -n /root/lock true') != 0", "True"},
	{"an epoll", "r, w = os.pipe(); e = select.epoll(); e.register(r, select.EPOLLIN)", "(os.write(w, b'x'), len(e.poll(5)))", "(1, 1)"},
	{"a shared mapping", "m = mmap.mmap(-1, 1 << 20); m[:5] = b'hello'", "m[:5]", "b'hello'"},
	{
		"a server", "s = socket.create_server(('127.0.0.1', 8000))\x3bthreading.Thread(target=lambda: [c.sendall(b'served') or c.close() for c, _ in iter(s.accept, 0)], daemon=True).start()",
		"socket.create_connection(('127.0.0.1', 8000)).recv(6)", "b'served'",
	},
	{"a connection", "one = socket.create_connection(('127.0.0.1', 8000)); greeting = one.recv(6)", "greeting + one.recv(1)", "b'served'"},
	{"a timer", "fired = threading.Event(); threading.Timer(1.5, fired.set).start()", "fired.wait(20)", "True"},
	{"clocks", "before = time.monotonic(), time.time()", "time.monotonic() >= before[0] and 0 <= time.time() - before[1] < 600", "True"},
	{"attributes", "open('/root/attrs', 'w').close(); os.setxattr('/root/attrs', 'user.big', b'x' * 60000)", "len(os.getxattr('/root/attrs', 'user.big'))", "60000"},
	{
		"a sparse file", "p = open('/root/sparse', 'w'); p.truncate(1 << 40); p.seek(1 << 39); p.write('deep'); p.flush()",
		"(os.stat('/root/sparse').st_size, os.pread(os.open('/root/sparse', 0), 4, 1 << 39))", "(1099511627776, b'deep')",
	},
}

// TestEverythingOpen saves a process that has everything open that a process
// can have, and checks two copies and the original.
func TestEverythingOpen(t *testing.T) {
	p := newProvider(t, nil)
	in := create(t, p, sandbox.Spec{ID: "busy", Image: "host"})
	proc := background(t, in, repl)
	out := bufio.NewReader(proc.Stdout())
	said := 0
	for _, b := range busy {
		if got := ask(t, proc, out, b.make); got != "ok" {
			t.Fatalf("making %s: %s", b.name, got)
		}
		said += len("ok\n")
	}
	dir := snapshot(t, in, driver.SnapshotOptions{Memory: true})
	check := func(who string, p driver.Process, out *bufio.Reader) {
		for _, b := range busy {
			if got := ask(t, p, out, b.ask); got != b.want {
				t.Errorf("%s: %s: %s is %s and not %s", who, b.name, b.ask, got, b.want)
			}
		}
	}
	check("the source", proc, out)
	for i := range 2 {
		twin, how := restore(t, p, dir, sandbox.Spec{ID: sandbox.ID(fmt.Sprint("copy-", i)), Image: "host"})
		if !how.Memory {
			t.Fatal(how.Why)
		}
		again, answers := reconnect(t, twin, proc.Info().ID, said)
		check("a copy", again, answers)
		conn, err := twin.(driver.Dialer).Dial(t.Context(), 8000)
		if err != nil {
			t.Fatalf("reaching the copy of a server: %v", err)
		}
		if got, err := io.ReadAll(conn); string(got) != "served" {
			t.Errorf("the copy of a server says %q, %v", got, err)
		}
		conn.Close()
	}
	// A snapshot without memory has the files.
	files, _ := restore(t, p, snapshot(t, in, driver.SnapshotOptions{}), sandbox.Spec{ID: "files", Image: "host"})
	o := sh(t, files, `stat -c %s /root/sparse; python3 -c 'import os; print(len(os.getxattr("/root/attrs", "user.big")))'; ls /root/gone 2>/dev/null; stat -c %F /root/fifo`)
	if want := "1099511627776\n60000\nfifo\n"; o.stdout != want {
		t.Errorf("the files are %+v", o)
	}
}

// TestForkBombIsSaved saves a sandbox during a fork bomb.
func TestForkBombIsSaved(t *testing.T) {
	p := newProvider(t, nil)
	in := create(t, p, sandbox.Spec{ID: "bomb", Image: "host", Resources: sandbox.Resources{PIDs: 60}})
	background(t, in, `bomb() { bomb | bomb & }; bomb`)
	for i := range 2 {
		snap, err := in.(driver.Snapshotter).Snapshot(t.Context(), driver.SnapshotOptions{ID: newSnapshotID(), Memory: true})
		if err != nil {
			t.Logf("the bomb is not saved: %v", err)
			if p.ErrorCode(err) == "" {
				t.Errorf("an error without a code: %v", err)
			}
			continue
		}
		twin, _, err := p.Restore(t.Context(), &sandbox.Spec{ID: sandbox.ID(fmt.Sprint("bomb-", i)), Image: "host", Resources: sandbox.Resources{PIDs: 60}}, snap.Ref)
		if err != nil {
			t.Errorf("the bomb is not restored: %v", err)
			continue
		}
		if err := twin.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestLimitInCopies checks that the number of processes of a copy is limited by
// the copy's own spec.
func TestLimitInCopies(t *testing.T) {
	p := newProvider(t, nil)
	in := create(t, p, sandbox.Spec{ID: "roomy", Image: "host", Resources: sandbox.Resources{PIDs: 400}})
	dir := snapshot(t, in, driver.SnapshotOptions{Memory: true})
	crowd := `for i in $(seq 150); do sleep 60 >/dev/null 2>&1 & done 2>/dev/null; echo all`
	if o := sh(t, in, crowd); o.stdout != "all\n" {
		t.Errorf("the source: %+v", o)
	}
	twin, _ := restore(t, p, dir, sandbox.Spec{ID: "tight", Image: "host", Resources: sandbox.Resources{PIDs: 60}})
	if o := sh(t, twin, crowd); o.stdout == "all\n" {
		t.Errorf("the copy has room for 150 processes of 60")
	}
}

// forge rewrites a snapshot's manifest, with matching checksums.
func forge(t *testing.T, dir string, change func(m map[string]any)) {
	t.Helper()
	path := filepath.Join(dir, "manifest.json")
	js, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(js[:len(js)-10], &m); err != nil {
		t.Fatal(err)
	}
	sums := crc32.MakeTable(crc32.Castagnoli)
	for _, p := range m["parts"].([]any) {
		part := p.(map[string]any)
		content, err := os.ReadFile(filepath.Join(dir, part["name"].(string)))
		if err != nil {
			t.Fatal(err)
		}
		part["size"], part["crc32c"] = len(content), crc32.Checksum(content, sums)
	}
	if change != nil {
		change(m)
	}
	if js, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	js = fmt.Appendf(js, "\n%08x\n", crc32.Checksum(js, sums))
	if err := os.WriteFile(path, js, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestAttackForgedSnapshot restores forged snapshots with matching checksums.
func TestAttackForgedSnapshot(t *testing.T) {
	state := t.TempDir()
	p := newProvider(t, func(o *gvisor.Options) { o.StateDir = state })
	in := create(t, p, sandbox.Spec{ID: "honest", Image: "host"})
	sh(t, in, "echo content >/root/file")
	good := snapshot(t, in, driver.SnapshotOptions{Memory: true})
	copied := func() string {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(good)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	memory := func(change func(map[string]any)) func(string) {
		return func(dir string) {
			forge(t, dir, func(m map[string]any) { change(m["memory"].(map[string]any)) })
		}
	}
	spoil := func(part string, change func([]byte) []byte) func(string) {
		return func(dir string) {
			path := filepath.Join(dir, part)
			content, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, change(content), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			forge(t, dir, nil)
		}
	}
	zero := func(b []byte) []byte { return make([]byte, len(b)) }
	refused := map[string]func(dir string){
		"a name that leads out": func(dir string) {
			forge(t, dir, func(m map[string]any) { m["parts"].([]any)[0].(map[string]any)["name"] = "../../../etc/passwd" })
		},
		"a negative size": func(dir string) {
			forge(t, dir, func(m map[string]any) { m["parts"].([]any)[0].(map[string]any)["size"] = -1 })
		},
		"no parts":         func(dir string) { forge(t, dir, func(m map[string]any) { m["parts"] = []any{} }) },
		"another format":   func(dir string) { forge(t, dir, func(m map[string]any) { m["format"] = 99 }) },
		"an endless list":  func(dir string) { forge(t, dir, func(m map[string]any) { m["image"] = strings.Repeat("x", 17<<20) }) },
		"nothing but text": func(dir string) { _ = os.WriteFile(filepath.Join(dir, "manifest.json"), []byte("hello"), 0o600) },
		"a FIFO": func(dir string) {
			path := filepath.Join(dir, "files.tar")
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"files that are no archive": func(dir string) {
			forge(t, dir, func(m map[string]any) { delete(m, "memory"); m["parts"] = m["parts"].([]any)[:1] })
			spoil("files.tar", func([]byte) []byte { return bytes.Repeat([]byte("junk"), 1024) })(dir)
		},
	}
	for _, what := range slices.Sorted(maps.Keys(refused)) {
		dir := copied()
		refused[what](dir)
		in, _, err := p.Restore(t.Context(), &sandbox.Spec{ID: "forged", Image: "host"}, refTo(t, dir))
		if err == nil {
			_ = in.Destroy(t.Context())
		}
		if p.ErrorCode(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", what, err)
		}
		endsWhole(t, what, state, "forged")
	}
	// If the memory cannot be used, the files are restored and the reason is
	// reported.
	fallen := map[string]func(dir string){
		"another engine":    memory(func(m map[string]any) { m["engine"] = "v0\x1b[31m" }),
		"another processor": memory(func(m map[string]any) { m["cpu"] = []any{"quantum"} }),
		"other mounts":      memory(func(m map[string]any) { m["mounts"] = []any{"/elsewhere"} }),
		"an unknown group":  memory(func(m map[string]any) { m["group"] = "../../../.." }),
		"a kernel of zeros": spoil("kernel", zero),
		"half a kernel":     spoil("kernel", func(b []byte) []byte { return b[:len(b)/2] }),
		"a garbled kernel": spoil("kernel", func(b []byte) []byte {
			for i := 5000; i < len(b); i += 97 {
				b[i] ^= 0xff
			}
			return b
		}),
		"an index of zeros": spoil("pages.index", zero),
	}
	for _, what := range slices.Sorted(maps.Keys(fallen)) {
		dir := copied()
		fallen[what](dir)
		in, how, err := p.Restore(t.Context(), &sandbox.Spec{ID: "fallen", Image: "host"}, refTo(t, dir))
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if how.Memory || how.Why == "" || strings.ContainsAny(how.Why, "\x1b\n") {
			t.Errorf("%s: restored as %+v", what, how)
		}
		if o := sh(t, in, "cat /root/file"); o.stdout != "content\n" {
			t.Errorf("%s: %+v", what, o)
		}
		if err := in.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
