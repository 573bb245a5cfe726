package memfs

import (
	"bytes"
	"errors"
	"io"
	"math/rand"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// build makes a small tree.
func build(t testing.TB) *FS {
	f := New()
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	check(f.Mkdir("/d", 0o755))
	check(f.Mkdir("/d/sub", 0o755))
	check(f.Mkdir("/private", 0o700))
	check(f.Mkdir("/tmp", 0o1777))
	write(t, f, "/d/f", "content")
	write(t, f, "/private/f", "secret")
	check(f.Symlink("d/f", "/rel"))
	check(f.Symlink("/d", "/abs"))
	check(f.Symlink("../../../../d/f", "/d/sub/up"))
	check(f.Symlink("loop", "/loop"))
	check(f.Symlink("missing", "/dangling"))
	check(f.Mkfifo("/fifo", 0o666))
	return f
}

func write(t testing.TB, f *FS, path, text string) {
	o, err := f.Open(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err == nil {
		_, err = o.Write([]byte(text))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, f *FS, path string) (string, error) {
	o, err := f.Open(path, os.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), nil
}

func TestWalk(t *testing.T) {
	f := build(t)
	for path, want := range map[string]error{
		"/d/f": nil, "/rel": nil, "/abs/f": nil, "/abs/sub/../f": nil, "/d/sub/up": nil, "/../../d/./f": nil, "//d///f": nil,
		"/loop": syscall.ELOOP, "/loop/x": syscall.ELOOP, "/dangling": syscall.ENOENT, "/d/f/x": syscall.ENOTDIR, "/d/f/": syscall.ENOTDIR,
		"/missing": syscall.ENOENT, "relative": syscall.ENOENT, "": syscall.ENOENT, "/" + strings.Repeat("n", 256): syscall.ENAMETOOLONG,
		"/rel/..": syscall.ENOTDIR,
	} {
		text, err := read(t, f, path)
		if !errors.Is(err, want) || (want == nil && text != "content") {
			t.Errorf("%q: %q, %v; want %v", path, text, err, want)
		}
	}
}

func TestRename(t *testing.T) {
	for _, c := range []struct {
		from, to string
		keep     bool
		want     error
	}{
		{"/d/f", "/d/g", false, nil},
		{"/d", "/e", false, nil},
		{"/d/f", "/d/f", false, nil},
		{"/d", "/d/sub/x", false, syscall.EINVAL},
		{"/d", "/d", false, nil},
		{"/d/f", "/d/sub", false, syscall.EISDIR},
		{"/d/sub", "/d/f", false, syscall.ENOTDIR},
		{"/private", "/d", false, syscall.ENOTEMPTY},
		{"/d/f", "/rel", true, syscall.EEXIST},
		{"/", "/x", false, syscall.EBUSY},
		{"/d/f", "/", false, syscall.EBUSY},
		{"/d/f", "/no/x", false, syscall.ENOENT},
		{"/no", "/x", false, syscall.ENOENT},
	} {
		f := build(t)
		if err := f.Rename(c.from, c.to, c.keep); !errors.Is(err, c.want) {
			t.Errorf("%s to %s: %v, want %v", c.from, c.to, err, c.want)
		}
		sound(t, f)
	}
}

// sound checks that the tree is one: every node hangs where it says, and link
// counts are right.
func sound(t *testing.T, f *FS) {
	t.Helper()
	links := map[*Node]uint64{}
	var visit func(dir *Node, depth int)
	visit = func(dir *Node, depth int) {
		if depth > 1000 {
			t.Fatal("the tree has a cycle")
		}
		for name, n := range dir.entries {
			links[n]++
			if n.typ != Dir {
				continue
			}
			if n.parent != dir || n.name != name {
				t.Errorf("the directory %s believes to be %s elsewhere", name, n.name)
			}
			visit(n, depth+1)
		}
	}
	visit(f.root, 0)
	for n, count := range links {
		if n.nlink != count {
			t.Errorf("%s has %d names and counts %d", n.name, count, n.nlink)
		}
	}
}

// FuzzOperations: after any operations, the tree is still a tree.
func FuzzOperations(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a"))
	f.Add([]byte("mkdir rename link symlink"))
	paths := []string{"/", "/d", "/d/f", "/d/sub", "/d/sub/x", "/abs", "/abs/f", "/loop", "/rel", "/tmp", "/tmp/a", "/tmp/a/b", "/..", "/d/..", "/d/.", "/dangling"}
	f.Fuzz(func(t *testing.T, ops []byte) {
		fs := build(t)
		for len(ops) >= 3 {
			a, b := paths[int(ops[1])%len(paths)], paths[int(ops[2])%len(paths)]
			switch ops[0] % 9 {
			case 0:
				_ = fs.Mkdir(a, 0o755)
			case 1:
				_ = fs.Rename(a, b, ops[0] > 128)
			case 2:
				_ = fs.Link(a, b)
			case 3:
				_ = fs.Symlink(b, a)
			case 4:
				_ = fs.Remove(a, ops[0] > 128)
			case 5:
				_ = fs.RemoveAll(a)
			case 6:
				_, _ = fs.Open(a, os.O_RDWR|os.O_CREATE, 0o644)
			case 7:
				_, _ = fs.Publish(fs.Draft(0o644), a, false, ops[0] > 128, func(*Info) (mode, uid, gid uint32) { return 0o644, 0, 0 })
			case 8:
				_, _ = fs.RealPath(a)
			}
			ops = ops[3:]
		}
		sound(t, fs)
	})
}

// TestContent compares sparse content with plain memory.
func TestContent(t *testing.T) {
	rnd := rand.New(rand.NewSource(1))
	var c content
	model := make([]byte, 0, 5*chunk)
	for range 2000 {
		off := rnd.Intn(4 * chunk)
		switch rnd.Intn(4) {
		case 0:
			p := bytes.Repeat([]byte{byte(1 + rnd.Intn(255))}, rnd.Intn(chunk))
			c.writeAt(p, int64(off))
			if end := off + len(p); end > len(model) {
				model = append(model, make([]byte, end-len(model))...)
			}
			copy(model[off:], p)
		case 1:
			if rnd.Intn(4) == 0 {
				c.truncate(int64(off))
				if off <= len(model) {
					model = slices.Clone(model[:off])
				} else {
					model = append(model, make([]byte, off-len(model))...)
				}
			}
		default:
			p := make([]byte, rnd.Intn(2*chunk))
			n := c.readAt(p, int64(off))
			if want := model[min(off, len(model)):min(off+len(p), len(model))]; !bytes.Equal(p[:n], want) {
				t.Fatalf("at %d: %d bytes differ from the %d in memory", off, n, len(want))
			}
		}
		if c.size != int64(len(model)) {
			t.Fatalf("size %d, want %d", c.size, len(model))
		}
	}
}

func TestWatchOverflow(t *testing.T) {
	f := build(t)
	w, err := f.Watch("/tmp", true)
	if err != nil {
		t.Fatal(err)
	}
	for range queue {
		_ = f.Mkdir("/tmp/x", 0o755)
		_ = f.Remove("/tmp/x", true)
	}
	n := 0
	for {
		e, ok := w.Next(t.Context())
		if !ok {
			t.Fatal("the watch ended")
		}
		if n++; e.Op == Overflow {
			break
		}
	}
	if n != queue+1 {
		t.Errorf("the overflow came after %d events", n-1)
	}
	_ = f.Mkdir("/tmp/after", 0o755)
	if e, ok := w.Next(t.Context()); !ok || e.Path != "after" {
		t.Errorf("after an overflow: %+v, %v", e, ok)
	}
	w.Close()
	if _, ok := w.Next(t.Context()); ok {
		t.Error("a closed watch goes on")
	}
}
