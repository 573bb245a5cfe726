package guest_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
)

func TestWriteAndRead(t *testing.T) {
	dir := t.TempDir()
	c := newClient(t, dir)
	ctx := testContext(t)
	file := dir + "/a/b/file\xff\n"
	content := bytes.Repeat([]byte("0123456789abcde\n"), 100_000)
	info, err := c.Write(ctx, file, bytes.NewReader(content), driver.WriteOptions{Mode: 0o640})
	if err != nil {
		t.Fatal(err)
	}
	if info.Size != int64(len(content)) || info.Mode != 0o640 || info.Path != file || info.Type != sandbox.TypeFile {
		t.Errorf("%+v", info)
	}
	for _, tt := range []struct {
		opts driver.ReadOptions
		want []byte
	}{
		{driver.ReadOptions{}, content},
		{driver.ReadOptions{Offset: 5, Length: 3}, content[5:8]},
		{driver.ReadOptions{Offset: int64(len(content)) - 2}, content[len(content)-2:]},
		{driver.ReadOptions{Offset: 1 << 40}, nil},
		{driver.ReadOptions{Length: 1 << 40}, content},
	} {
		r, _, err := c.Read(ctx, file, tt.opts)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, tt.want) {
			t.Errorf("%+v: %d bytes, want %d, %v", tt.opts, len(got), len(tt.want), err)
		}
		r.Close()
	}
	// Replacing keeps the mode; the new content is shorter.
	if info, err = c.Write(ctx, file, strings.NewReader("x"), driver.WriteOptions{}); err != nil || info.Mode != 0o640 || info.Size != 1 {
		t.Errorf("%+v %v", info, err)
	}
	_, err = c.Write(ctx, file, strings.NewReader("y"), driver.WriteOptions{NoReplace: true})
	wantCode(t, err, sandbox.CodeAlreadyExists)
	_, err = c.Write(ctx, dir+"/no/such/f", strings.NewReader("y"), driver.WriteOptions{NoParents: true})
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = c.Write(ctx, dir+"/a", strings.NewReader("y"), driver.WriteOptions{})
	wantCode(t, err, sandbox.CodeInvalid)
}

func TestFailedWriteChangesNothing(t *testing.T) {
	dir := t.TempDir()
	c := newClient(t, dir)
	ctx := testContext(t)
	os.WriteFile(dir+"/f", []byte("old"), 0o600)
	for _, mine := range []error{errors.New("mine"), io.ErrUnexpectedEOF} {
		r := io.MultiReader(bytes.NewReader(make([]byte, 300_000)), iotest.ErrReader(mine))
		if _, err := c.Write(ctx, dir+"/f", r, driver.WriteOptions{}); err != mine {
			t.Errorf("got %v, want %v", err, mine)
		}
	}
	waitFor(t, func() bool { return len(names(t, dir)) == 1 })
	if b, _ := os.ReadFile(dir + "/f"); string(b) != "old" {
		t.Errorf("content %q", b)
	}
}

func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestReadOfOddFiles(t *testing.T) {
	dir := t.TempDir()
	c := newClient(t, dir)
	ctx := testContext(t)
	syscall.Mkfifo(dir+"/fifo", 0o600)
	os.Mkdir(dir+"/dir", 0o700)
	os.Symlink("fifo", dir+"/link")
	os.Symlink("loop", dir+"/loop")
	os.Symlink("/etc/passwd", dir+"/out")
	os.Symlink("../../../../../../etc", dir+"/up")
	sock, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(sock)
	if err := syscall.Bind(sock, &syscall.SockaddrUnix{Name: dir + "/sock"}); err != nil {
		t.Fatal(err)
	}
	for name, code := range map[string]sandbox.Code{
		"fifo": sandbox.CodeInvalid, "dir": sandbox.CodeInvalid, "link": sandbox.CodeInvalid, "sock": sandbox.CodeInvalid,
		"loop": sandbox.CodeInvalid, "none": sandbox.CodeNotFound, "fifo/x": sandbox.CodeNotFound,
		"out": sandbox.CodeDenied, "up/passwd": sandbox.CodeDenied, "../x": sandbox.CodeDenied,
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := c.Read(ctx, dir+"/"+name, driver.ReadOptions{})
			wantCode(t, err, code)
			if strings.HasPrefix(name, "fifo") || name == "sock" || name == "out" {
				_, err = c.Write(ctx, dir+"/"+name, strings.NewReader("x"), driver.WriteOptions{})
				if err == nil {
					t.Error("written")
				}
			}
		})
	}
	// Files outside the root can be viewed but not changed.
	if _, err := c.Stat(ctx, "/etc/passwd"); err != nil {
		t.Error(err)
	}
	_, err = c.Stat(ctx, dir+"/up/passwd")
	wantCode(t, err, sandbox.CodeDenied)
	_, _, err = c.Read(ctx, "/etc/passwd", driver.ReadOptions{})
	wantCode(t, err, sandbox.CodeDenied)
	_, _, err = c.Read(ctx, "/dev/null", driver.ReadOptions{})
	wantCode(t, err, sandbox.CodeInvalid)
	_, err = c.Write(ctx, dir+"x/y", strings.NewReader(""), driver.WriteOptions{})
	wantCode(t, err, sandbox.CodeDenied)
	wantCode(t, c.Remove(ctx, "/etc", true), sandbox.CodeDenied)
}

// Generated files such as those in /proc have size 0.
func TestExportOfFilesWithoutASize(t *testing.T) {
	want, err := os.ReadFile("/proc/sys/kernel/ostype")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := newClient(t, "/proc").Export(testContext(t), "/proc/sys/kernel/ostype", &b, driver.ExportOptions{}); err != nil {
		t.Fatal(err)
	}
	tr := tar.NewReader(&b)
	if _, err := tr.Next(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(tr); err != nil || string(got) != string(want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

func TestSparseFile(t *testing.T) {
	dir := t.TempDir()
	c := newClient(t, dir)
	if err := os.WriteFile(dir+"/sparse", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(dir+"/sparse", 1<<40); err != nil {
		need.Thing(t, "large files", "the file system has none of that size")
	}
	r, info, err := c.Read(testContext(t), dir+"/sparse", driver.ReadOptions{Offset: 1<<40 - 100})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if b, err := io.ReadAll(r); len(b) != 100 || err != nil || info.Size != 1<<40 {
		t.Errorf("%d bytes, %v, %+v", len(b), err, info)
	}
}

func TestLinksInside(t *testing.T) {
	dir := t.TempDir()
	c := newClient(t, dir)
	ctx := testContext(t)
	os.MkdirAll(dir+"/real/sub", 0o700)
	os.Symlink("real", dir+"/rel")
	os.Symlink(dir+"/real/sub", dir+"/abs")
	os.Symlink("../rel/sub/../file", dir+"/real/climb")
	if _, err := c.Write(ctx, dir+"/rel/file", strings.NewReader("1"), driver.WriteOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := c.Write(ctx, dir+"/abs/file", strings.NewReader("2"), driver.WriteOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := c.Write(ctx, dir+"/real/climb", strings.NewReader("3"), driver.WriteOptions{}); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(dir + "/real/sub/file"); string(b) != "2" {
		t.Errorf("%q", b)
	}
	if b, _ := os.ReadFile(dir + "/real/file"); string(b) != "3" {
		t.Errorf("%q", b)
	}
	info, err := c.Stat(ctx, dir+"/real/climb")
	if err != nil || info.Type != sandbox.TypeSymlink || info.Target != "../rel/sub/../file" {
		t.Errorf("%+v %v", info, err)
	}
}

func TestMkdirMoveRemove(t *testing.T) {
	dir := t.TempDir()
	c := newClient(t, dir)
	ctx := testContext(t)
	wantCode(t, c.Mkdir(ctx, dir+"/a/b", driver.MkdirOptions{}), sandbox.CodeNotFound)
	if err := c.Mkdir(ctx, dir+"/a/b", driver.MkdirOptions{Parents: true, Mode: 0o1770}); err != nil {
		t.Fatal(err)
	}
	if info, err := c.Stat(ctx, dir+"/a/b"); err != nil || info.Mode != 0o1770 {
		t.Errorf("%+v %v", info, err)
	}
	wantCode(t, c.Mkdir(ctx, dir+"/a", driver.MkdirOptions{}), sandbox.CodeAlreadyExists)
	if err := c.Mkdir(ctx, dir+"/a", driver.MkdirOptions{Parents: true}); err != nil {
		t.Error(err)
	}
	os.WriteFile(dir+"/f", []byte("f"), 0o600)
	os.WriteFile(dir+"/g", []byte("g"), 0o600)
	wantCode(t, c.Mkdir(ctx, dir+"/f", driver.MkdirOptions{Parents: true}), sandbox.CodeAlreadyExists)
	wantCode(t, c.Move(ctx, dir+"/f", dir+"/g", false), sandbox.CodeAlreadyExists)
	wantCode(t, c.Move(ctx, dir+"/f", dir+"/a", true), sandbox.CodeAlreadyExists)
	wantCode(t, c.Move(ctx, dir+"/none", dir+"/x", true), sandbox.CodeNotFound)
	wantCode(t, c.Move(ctx, dir+"/a", dir+"/a/b/c", false), sandbox.CodeInvalid)
	if err := c.Move(ctx, dir+"/f", dir+"/g", true); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(dir + "/g"); string(b) != "f" {
		t.Errorf("%q", b)
	}
	if err := c.Move(ctx, dir+"/a/b", dir+"/g", true); err != nil {
		t.Error(err)
	}
	os.WriteFile(dir+"/g/x", nil, 0)
	wantCode(t, c.Remove(ctx, dir+"/g", false), sandbox.CodeConflict)
	wantCode(t, c.Remove(ctx, dir+"/none", true), sandbox.CodeNotFound)
	wantCode(t, c.Remove(ctx, dir, true), sandbox.CodeInvalid)
	if err := c.Remove(ctx, dir+"/g", true); err != nil {
		t.Error(err)
	}
	// Remove deletes the link, not its target.
	os.Symlink("a", dir+"/l")
	if err := c.Remove(ctx, dir+"/l", true); err != nil {
		t.Error(err)
	}
	if got := names(t, dir); len(got) != 1 || got[0] != "a" {
		t.Errorf("%v", got)
	}
}

func TestDeepTree(t *testing.T) {
	dir := t.TempDir()
	c := newClient(t, dir)
	ctx := testContext(t)
	const depth = 10_000 // more levels than descriptors, and than a path can name
	makeDeep(t, dir, depth)
	n := 0
	for info, err := range c.List(ctx, dir, driver.ListOptions{Depth: -1}) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; len(info.Path) != 2*n-1 {
			t.Fatalf("entry %d has a path of %d bytes", n, len(info.Path))
		}
	}
	if n != depth {
		t.Errorf("%d entries", n)
	}
	if err := c.Remove(ctx, dir+"/d", true); err != nil {
		t.Error(err)
	}
	if got := names(t, dir); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// makeDeep creates nested directories deeper than the longest path.
func makeDeep(t *testing.T, dir string, depth int) {
	t.Helper()
	fd, err := syscall.Open(dir, syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		if err := syscall.Mkdirat(fd, "d", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := syscall.Openat(fd, "d", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		syscall.Close(fd)
		fd = next
	}
	syscall.Close(fd)
}

func TestList(t *testing.T) {
	dir := t.TempDir()
	c := newClient(t, dir)
	for _, f := range []string{"b/y", "b/x/z", "a", "b.txt", "c\xff"} {
		os.MkdirAll(filepath.Dir(dir+"/"+f), 0o700)
		os.WriteFile(dir+"/"+f, []byte(f), 0o600)
	}
	os.Symlink("b", dir+"/link")
	for depth, want := range map[int]string{
		0:  "a b b.txt c\xff link",
		1:  "a b b.txt c\xff link",
		2:  "a b b/x b/y b.txt c\xff link",
		-1: "a b b/x b/x/z b/y b.txt c\xff link",
	} {
		var got []string
		for info, err := range c.List(testContext(t), dir, driver.ListOptions{Depth: depth}) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, info.Path)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("depth %d: %q, want %q", depth, got, want)
		}
	}
	for _, err := range c.List(testContext(t), dir+"/a", driver.ListOptions{}) {
		wantCode(t, err, sandbox.CodeInvalid)
	}
	for range c.List(testContext(t), dir, driver.ListOptions{}) {
		break
	}
}

// TestAttackDeepArchive sends one member with 800 directories. It is refused
// and leaves nothing behind.
func TestAttackDeepArchive(t *testing.T) {
	dir := t.TempDir()
	c := newClient(t, dir)
	var deep bytes.Buffer
	tw := tar.NewWriter(&deep)
	if err := errors.Join(tw.WriteHeader(&tar.Header{Name: strings.Repeat("x/", 800), Typeflag: tar.TypeDir, Mode: 0o755}), tw.Close()); err != nil {
		t.Fatal(err)
	}
	err := c.Import(testContext(t), dir, &deep, driver.ImportOptions{})
	if sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("800 directories: %v", err)
	}
	if got := names(t, dir); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// TestAttackArchiveOfCallerGone: a caller disconnects in the middle of an
// endless archive that creates a directory for every few bytes. The guest must
// stop, remove what it has created, and serve others.
func TestAttackArchiveOfCallerGone(t *testing.T) {
	dir := t.TempDir()
	c := newClient(t, dir)
	r, w := io.Pipe()
	defer r.Close()
	ctx, leave := context.WithCancel(testContext(t))
	sent := make(chan int, 1)
	go func() {
		tw, n := tar.NewWriter(w), 0
		for ; ; n++ {
			h := &tar.Header{Name: fmt.Sprint(n, strings.Repeat("/x", 200), "/"), Typeflag: tar.TypeDir, Mode: 0o755}
			if tw.WriteHeader(h) != nil {
				break
			}
			if n == 50 {
				leave()
			}
		}
		sent <- n
	}()
	err := c.Import(ctx, dir, r, driver.ImportOptions{})
	left := time.Now()
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the caller gets %v", err)
	}
	r.Close()
	if n := <-sent; n < 50 {
		t.Fatalf("only %d members were sent", n)
	}
	waitFor(t, func() bool { return len(names(t, dir)) == 0 })
	if _, err := c.Stat(testContext(t), dir); err != nil {
		t.Error(err)
	}
	if took := time.Since(left); took > 30*time.Second {
		t.Errorf("the guest was busy for %v after its caller had left", took)
	}
}

func TestOverwrite(t *testing.T) {
	dir := t.TempDir()
	c := newClient(t, dir)
	ctx := testContext(t)
	file, other := dir+"/f", dir+"/other"
	if err := os.WriteFile(file, []byte("a longer first"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(file, other); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setxattr(file, "user.mine", []byte("stays"), 0); err != nil {
		need.Thing(t, "extended attributes", err.Error())
	}
	events, err := c.Watch(ctx, dir, false)
	if err != nil {
		t.Fatal(err)
	}
	over := func(p, content string, attributes map[string]string) {
		t.Helper()
		info, err := c.Overwrite(ctx, p, strings.NewReader(content), driver.OverwriteOptions{Namespace: "e2b.", Attributes: attributes})
		if err != nil || info.Size != int64(len(content)) {
			t.Fatalf("%+v %v", info, err)
		}
	}
	over(file, "first", map[string]string{"a": "1", "b": "2"})
	over(file, "second", map[string]string{"b": "3"})
	if ev := <-events; ev.Op == sandbox.OpCreate || ev.Path != "f" {
		t.Errorf("overwriting a file was reported as %+v, want a write", ev)
	}
	got, err := os.ReadFile(other)
	if info, _ := os.Stat(other); err != nil || string(got) != "second" || info.Mode() != 0o640 {
		t.Errorf("its other name has %q, %v", got, err)
	}
	over(dir+"/new", "x", nil)
	if info, err := os.Stat(dir + "/new"); err != nil || info.Mode() != 0o644 {
		t.Errorf("a new file: %v %v", info, err)
	}
	for all, err := range c.Describe(ctx, file, 0) {
		if err != nil || len(all.Attributes) != 2 || all.Attributes["e2b.b"] != "3" || all.Attributes["mine"] != "stays" || all.Path != "." || all.Size != 6 {
			t.Errorf("%+v %v", all, err)
		}
	}
	if err := os.Mkdir(dir+"/d", 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = c.Overwrite(ctx, dir+"/d", strings.NewReader("x"), driver.OverwriteOptions{})
	wantCode(t, err, sandbox.CodeInvalid)
}

func TestDescribe(t *testing.T) {
	dir := t.TempDir()
	c := newClient(t, dir)
	ctx := testContext(t)
	if err := errors.Join(os.MkdirAll(dir+"/d/in", 0o755), os.WriteFile(dir+"/d/f", []byte("12345"), 0o600), os.Symlink("f", dir+"/d/l")); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(dir + "/d/in")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for all, err := range c.Describe(ctx, dir+"/d", 1) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %s %d", all.Path, all.Type, all.StatSize))
	}
	want := fmt.Sprintf("[f file 5 in dir %d l symlink 1]", st.Size())
	if fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	for _, depth := range []int{0, 1} {
		for _, err := range c.Describe(ctx, dir+"/missing", depth) {
			wantCode(t, err, sandbox.CodeNotFound)
		}
	}
}
