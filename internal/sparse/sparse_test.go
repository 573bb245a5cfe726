package sparse_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/sparse"
)

// holed makes a file with data here and there, and returns it and its content.
func holed(t *testing.T, size int64, at ...int64) (*os.File, []byte) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "holed"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	content := make([]byte, size)
	for i, offset := range at {
		data := bytes.Repeat([]byte{byte('a' + i)}, 5000)
		n := copy(content[offset:], data)
		if _, err := f.WriteAt(data[:n], offset); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f, content
}

func allocated(t *testing.T, name string) int64 {
	t.Helper()
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

// archive writes a file between two others.
func archive(t *testing.T, f *os.File, size int64, h *tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	small := func(name string) {
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: 5}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, "small"); err != nil {
			t.Fatal(err)
		}
	}
	small("before")
	extents, worth, err := sparse.Find(f, size, allocated(t, f.Name()))
	if err != nil || !worth {
		t.Fatalf("%v %v %v", extents, worth, err)
	}
	scanned, err := sparse.Scan(f, size)
	if err != nil || len(scanned) != len(extents) {
		t.Errorf("the kernel says %v, the content %v, %v", extents, scanned, err)
	}
	if err := sparse.Write(&out, tw, h, f, extents); err != nil {
		t.Fatal(err)
	}
	small("after")
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// Go's reader and GNU tar read the written files, including holes.
func TestRoundTrip(t *testing.T) {
	const size = 8<<20 + 123
	when := time.Unix(-5, 250_000_000)
	for what, at := range map[string][]int64{
		"at the beginning": {0}, "in the middle": {1 << 20, 3 << 20}, "at the end": {size - 5000}, "nowhere": nil, "odd": {4097, 700_001},
	} {
		t.Run(what, func(t *testing.T) {
			f, content := holed(t, size, at...)
			name := "dir/" + strings.Repeat("long", 60) + "\nname"
			stream := archive(t, f, size, &tar.Header{
				Name: name, Mode: 0o4751, Uid: 3_000_000, Gid: 7, ModTime: when, Size: size,
				PAXRecords: map[string]string{"SCHILY.xattr.user.note": "kept=\nyes"},
			})
			if len(stream) > 64<<10 {
				t.Errorf("the holes take %d bytes", len(stream))
			}
			tr := tar.NewReader(bytes.NewReader(stream))
			var names []string
			for h, err := tr.Next(); !errors.Is(err, io.EOF); h, err = tr.Next() {
				if err != nil {
					t.Fatal(err)
				}
				names = append(names, h.Name)
				if h.Name != name {
					continue
				}
				if !sparse.Is(h) || h.Size != size || h.Mode != 0o4751 || h.Uid != 3_000_000 || h.Gid != 7 || !h.ModTime.Equal(when) ||
					h.PAXRecords["SCHILY.xattr.user.note"] != "kept=\nyes" {
					t.Errorf("%+v", h)
				}
				into, err := os.Create(filepath.Join(t.TempDir(), "into"))
				if err != nil {
					t.Fatal(err)
				}
				if err := sparse.Copy(into, tr, h.Size, func() error { return nil }); err != nil {
					t.Fatal(err)
				}
				check(t, into.Name(), content)
				_ = into.Close()
			}
			if strings.Join(names, " ") != "before "+name+" after" {
				t.Errorf("%q", names)
			}
			dir := t.TempDir()
			gnu := exec.Command("tar", "-x", "--no-same-owner", "-C", dir)
			gnu.Stdin = bytes.NewReader(stream)
			if out, err := gnu.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			check(t, filepath.Join(dir, name), content)
		})
	}
}

func check(t *testing.T, name string, content []byte) {
	t.Helper()
	got, err := os.ReadFile(name)
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("%s is another: %v", filepath.Base(name), err)
	}
	if n := allocated(t, name); n > 128<<10 {
		t.Errorf("%d bytes are allocated", n)
	}
}

// A file with holes written by GNU tar gets its holes again.
func TestGNUTar(t *testing.T) {
	const size = 4 << 20
	f, content := holed(t, size, 0, 1<<20, 2<<20+5)
	for _, format := range [][]string{{"--format=gnu"}, {"--format=pax", "--sparse-version=0.1"}, {"--format=pax", "--sparse-version=1.0"}} {
		cmd := exec.Command("tar", append(format, "-c", "--sparse", "-C", filepath.Dir(f.Name()), "holed")...)
		stream, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		tr := tar.NewReader(bytes.NewReader(stream))
		h, err := tr.Next()
		if err != nil || !sparse.Is(h) {
			t.Fatalf("%v: %+v %v", format, h, err)
		}
		into, err := os.Create(filepath.Join(t.TempDir(), "into"))
		if err != nil {
			t.Fatal(err)
		}
		if err := sparse.Copy(into, tr, h.Size, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		check(t, into.Name(), content)
		_ = into.Close()
	}
}

func TestNotWorthIt(t *testing.T) {
	f, _ := holed(t, 10_000, 0)
	if _, worth, err := sparse.Find(f, 10_000, 8192); worth || err != nil {
		t.Errorf("a small file: %v %v", worth, err)
	}
	data := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data)
	clear(data[5000:20_000]) // too short for a hole
	if err := os.WriteFile(f.Name(), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := sparse.Scan(f, int64(len(data))); err != nil || len(all) != 1 || all[0] != (sparse.Extent{Length: 1 << 20}) {
		t.Errorf("%v %v", all, err)
	}
	if _, worth, err := sparse.Find(f, int64(len(data)), allocated(t, f.Name())); worth || err != nil {
		t.Errorf("a full file: %v %v", worth, err)
	}
}

// A sender of few bytes that expand to many can be stopped.
func TestCopyStops(t *testing.T) {
	f, _ := holed(t, 1<<20)
	enough := errors.New("enough")
	calls := 0
	err := sparse.Copy(f, zeroReader{}, 1<<40, func() error {
		if calls++; calls == 3 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Errorf("%v", err)
	}
	if err := sparse.Copy(f, strings.NewReader("short"), 10, func() error { return nil }); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
