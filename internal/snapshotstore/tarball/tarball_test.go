package tarball_test

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/internal/snapshotstore/tarball"
	"github.com/atoll-run/atoll/sandbox"
)

func write(t *testing.T, dir string) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := tarball.Write(t.Context(), &out, dir); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	big := bytes.Repeat([]byte("0123456789abcdef"), 20000)
	for name, data := range map[string][]byte{"a": []byte("one"), "sub/big": big, "sub/empty": nil, "zeros": make([]byte, 1000)} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	holes, err := os.Create(filepath.Join(dir, "holes"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holes.WriteAt([]byte("end"), 64<<20); err != nil {
		t.Fatal(err)
	}
	holes.Close()
	packed := write(t, dir)
	if len(packed) > 2<<20 {
		t.Errorf("%d bytes for a file with holes", len(packed))
	}
	into := t.TempDir()
	if err := tarball.Read(t.Context(), bytes.NewReader(packed), into); err != nil {
		t.Fatal(err)
	}
	if again := write(t, into); !bytes.Equal(again, packed) {
		t.Error("what was unpacked is not what was packed")
	}
	info, err := os.Stat(filepath.Join(into, "holes"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Sys().(*syscall.Stat_t).Blocks*512 > 1<<20 {
		t.Error("the hole was filled")
	}
	// Wherever it is cut off, it is refused; most of all between two members.
	for at := 0; at < len(packed)-1024; at += 512 {
		if err := tarball.Read(t.Context(), bytes.NewReader(packed[:at]), t.TempDir()); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Fatalf("cut off at %d of %d: %v", at, len(packed), err)
		}
		if at > 8192 && at < len(packed)-8192 {
			at += 64 << 10
		}
	}
}

func TestHostile(t *testing.T) {
	for name, h := range map[string]tar.Header{
		"a link":         {Typeflag: tar.TypeSymlink, Name: "link", Linkname: "/etc/passwd"},
		"a device":       {Typeflag: tar.TypeChar, Name: "dev"},
		"a file outside": {Typeflag: tar.TypeReg, Name: "../outside"},
		"absolute":       {Typeflag: tar.TypeReg, Name: "/absolute"},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if err := tarball.Read(t.Context(), &b, t.TempDir()); sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Error(err)
			}
		})
	}
}

func TestRefusesLinks(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := tarball.Write(t.Context(), new(bytes.Buffer), dir); err == nil {
		t.Error("a link was followed")
	}
}
