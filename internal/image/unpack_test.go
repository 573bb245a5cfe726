package image

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

func TestUnpack(t *testing.T) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range []*tar.Header{
		{Name: "ro/", Typeflag: tar.TypeDir, Mode: 0o555},
		{Name: "ro/file", Typeflag: tar.TypeReg, Mode: 0o400},
		{Name: "su", Typeflag: tar.TypeReg, Mode: 0o6755},
		{Name: "hard", Typeflag: tar.TypeLink, Linkname: "su"},
		{Name: "out", Typeflag: tar.TypeSymlink, Linkname: "../../.."},
		{Name: "abs", Typeflag: tar.TypeSymlink, Linkname: "/etc"},
		{Name: "abs/through", Typeflag: tar.TypeReg, Mode: 0o644},
		{Name: "fifo", Typeflag: tar.TypeFifo, Mode: 0o644},
		{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777},
	} {
		h.ModTime = time.Unix(1_600_000_000, 0)
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	img := mustGet(t, open(t, Options{}), "tar:"+writeFile(t, filepath.Join(t.TempDir(), "r.tar"), buf.Bytes()), GetOptions{})
	dir := filepath.Join(t.TempDir(), "new", "dir")
	if err := img.Unpack(context.Background(), dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(dir+"/ro", 0o755) }) // to be removed by who is not root
	st := func(name string) unix.Stat_t {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	for name, mode := range map[string]uint32{
		"ro": unix.S_IFDIR | 0o555, "ro/file": unix.S_IFREG | 0o400, "su": unix.S_IFREG | 0o755, "out": unix.S_IFLNK | 0o777,
		"etc/through": unix.S_IFREG | 0o644, "tmp": unix.S_IFDIR | 0o1777,
	} {
		if s := st(name); s.Mode != mode || s.Mtim.Sec != 1_600_000_000 && s.Mode&unix.S_IFMT == unix.S_IFREG {
			t.Errorf("%s has mode %o and time %d, want mode %o", name, s.Mode, s.Mtim.Sec, mode)
		}
	}
	if a, b := st("su"), st("hard"); a.Ino != b.Ino {
		t.Error("a hard link became two files")
	}
	if _, err := os.Lstat(filepath.Join(dir, "fifo")); err == nil {
		t.Error("a FIFO was made")
	}
	if _, err := os.Lstat("/etc/through"); err == nil {
		t.Fatal("a file was written outside the directory")
	}
	wantCode(t, img.Unpack(context.Background(), dir), sandbox.CodeConflict, "not empty")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	wantCode(t, img.Unpack(ctx, t.TempDir()), sandbox.CodeCanceled)
}
