package mkfs

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/erofs/go-erofs"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/need"
)

func dir(children map[string]*Node) *Node {
	return &Node{Mode: unix.S_IFDIR | 0o755, Children: children}
}

func link(target string) *Node { return &Node{Mode: unix.S_IFLNK | 0o777, Target: target} }

func (w *Writer) mustFile(t testing.TB, data []byte) *Node {
	t.Helper()
	block, size, err := w.WriteFile(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return &Node{Mode: unix.S_IFREG | 0o644, Block: block, Size: size}
}

// build writes an image and opens it with an independent reader.
func build(t testing.TB, tree func(w *Writer) *Node) (fs.FS, string) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	w := NewWriter(f)
	size, err := w.Finish(tree(w))
	if err != nil {
		t.Fatal(err)
	}
	if fi, _ := f.Stat(); fi.Size() != size {
		t.Fatalf("the file has %d bytes, Finish said %d", fi.Size(), size)
	}
	img, err := erofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	return img, f.Name()
}

// fsck asks the tool of the kernel's developers, where it is installed.
func fsck(t testing.TB, name string) {
	t.Helper()
	tool := need.Opinion(t, "fsck.erofs")
	if tool == "" {
		return
	}
	if out, err := exec.Command(tool, "--extract", name).CombinedOutput(); err != nil {
		t.Fatalf("fsck.erofs: %v\n%s", err, out)
	}
}

func TestFilesAndLinks(t *testing.T) {
	small, exact, long := []byte("hello"), bytes.Repeat([]byte("x"), BlockSize), bytes.Repeat([]byte("0123456789"), 300_000)
	img, name := build(t, func(w *Writer) *Node {
		shared := w.mustFile(t, small)
		shared.Mode |= unix.S_ISUID
		shared.UID, shared.GID, shared.MTime, shared.MTimeNsec = 70_000, 1<<31, 1_700_000_000, 123
		return dir(map[string]*Node{
			"a":     shared,
			"b":     dir(map[string]*Node{"again": shared}),
			"empty": w.mustFile(t, nil),
			"exact": w.mustFile(t, exact),
			"long":  w.mustFile(t, long),
			"link":  link("b/again"),
			"far":   link("/" + strings.Repeat("y/", 2047)),
			"fifo":  {Mode: unix.S_IFIFO | 0o600, Size: 9, Block: 9},
			"old":   {Mode: unix.S_IFREG, MTime: -5},
			"-":     {Mode: unix.S_IFREG},
			"\xff":  {Mode: unix.S_IFREG},
		})
	})
	fsck(t, name)
	for name, want := range map[string][]byte{"a": small, "b/again": small, "empty": {}, "exact": exact, "long": long} {
		got, err := fs.ReadFile(img, name)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v; want %d", name, len(got), err, len(want))
		}
	}
	a := stat(t, img, "a")
	b := stat(t, img, "b/again")
	if a.Ino != b.Ino || a.Nlink != 2 || a.UID != 70_000 || a.GID != 1<<31 || a.Mtime != 1_700_000_000 || a.MtimeNs != 123 {
		t.Errorf("hard link is not one inode with its metadata: %+v %+v", a, b)
	}
	if a.Mode&fs.ModeSetuid == 0 {
		t.Error("the setuid bit is lost")
	}
	if root := stat(t, img, "."); root.Nlink != 3 {
		t.Errorf("the root has %d links, want 3", root.Nlink)
	}
	if got, err := fs.ReadLink(img, "far"); err != nil || len(got) != 4095 {
		t.Errorf("long link: %d bytes, %v", len(got), err)
	}
	// The kernel cannot map a file whose data is inline.
	for _, name := range []string{"a", "exact", "long"} {
		if l := stat(t, img, name).InodeLayout; l != 0 {
			t.Errorf("%s has data layout %d, want plain", name, l)
		}
	}
}

func stat(t *testing.T, img fs.FS, name string) *erofs.Stat {
	t.Helper()
	fi, err := fs.Lstat(img, name)
	if err != nil {
		t.Fatal(err)
	}
	return fi.Sys().(*erofs.Stat)
}

func TestLargeDirectories(t *testing.T) {
	for _, n := range []int{0, 1, 100, 155, 300, 5000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			children := map[string]*Node{}
			for i := range n {
				name := fmt.Sprintf("%c%s%d", '!'+i%90, strings.Repeat("n", i%200), i)
				children[strings.ReplaceAll(name, "/", "_")] = &Node{Mode: unix.S_IFREG | 0o600}
			}
			img, name := build(t, func(*Writer) *Node { return dir(map[string]*Node{"d": dir(children)}) })
			fsck(t, name)
			list, err := fs.ReadDir(img, "d")
			if err != nil || len(list) != len(children) {
				t.Fatalf("%d entries, %v; want %d", len(list), err, len(children))
			}
			for name := range children {
				if _, err := fs.Stat(img, "d/"+name); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestDeepTree(t *testing.T) {
	root := dir(nil)
	root.Children = map[string]*Node{}
	for at, i := root, 0; i < 1000; i++ {
		next := dir(map[string]*Node{})
		at.Children["d"] = next
		at = next
	}
	img, _ := build(t, func(*Writer) *Node { return root })
	if _, err := fs.Stat(img, strings.Repeat("d/", 999)+"d"); err != nil {
		t.Fatal(err)
	}
}

func TestHolesAndDeadData(t *testing.T) {
	const size = 64 << 20
	_, name := build(t, func(w *Writer) *Node {
		w.mustFile(t, bytes.Repeat([]byte("dead"), 1<<20)) // belongs to no node
		block, n, err := w.WriteFile(io.LimitReader(zeroReader{}, size))
		if err != nil || n != size {
			t.Fatal(n, err)
		}
		return dir(map[string]*Node{
			"zeros": {Mode: unix.S_IFREG, Block: block, Size: n},
			"live":  w.mustFile(t, []byte("live")),
		})
	})
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		t.Fatal(err)
	}
	if used := st.Blocks * 512; used > 4<<20 {
		t.Errorf("an image of zeros and dead data uses %d bytes of disk", used)
	}
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(raw, []byte("deaddead")) {
		t.Error("data of a removed file can be read from the image")
	}
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestRefusesWhatCannotBeStored(t *testing.T) {
	twice := dir(nil)
	for name, root := range map[string]*Node{
		"a file as root":        {Mode: unix.S_IFREG},
		"a long name":           dir(map[string]*Node{strings.Repeat("n", 256): {Mode: unix.S_IFREG}}),
		"an empty name":         dir(map[string]*Node{"": {Mode: unix.S_IFREG}}),
		"dot dot":               dir(map[string]*Node{"..": {Mode: unix.S_IFREG}}),
		"an empty target":       dir(map[string]*Node{"l": link("")}),
		"a long target":         dir(map[string]*Node{"l": link(strings.Repeat("t", 4096))}),
		"a directory two times": dir(map[string]*Node{"a": twice, "b": twice}),
	} {
		f, err := os.Create(filepath.Join(t.TempDir(), "x"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := NewWriter(f).Finish(root); err == nil {
			t.Errorf("%s was written", name)
		}
		f.Close()
	}
}

func BenchmarkWriteFile(b *testing.B) {
	data := make([]byte, 16<<10)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	f, err := os.Create(filepath.Join(b.TempDir(), "x"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	b.SetBytes(int64(len(data)))
	w := NewWriter(f)
	for b.Loop() {
		if w.Size() > 256<<20 {
			w = NewWriter(f)
		}
		if _, _, err := w.WriteFile(bytes.NewReader(data)); err != nil {
			b.Fatal(err)
		}
	}
}
