package template

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// unpackFor unpacks the files of a build below a directory beside a secret, and
// returns how many bytes are there then.
func unpackFor(t testing.TB, r io.Reader, limit time.Duration) (size int64, err error) {
	t.Helper()
	top := t.TempDir()
	if err := os.WriteFile(filepath.Join(top, "secret"), []byte("canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(top, "files")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	err = Unpack(ctx, r, root)
	if entries, _ := os.ReadDir(top); len(entries) != 2 {
		t.Errorf("beside the files there are %v", entries)
	}
	if text, _ := os.ReadFile(filepath.Join(top, "secret")); string(text) != "canary" {
		t.Errorf("the secret is %q", text)
	}
	walkErr := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		if info != nil && info.Mode()&(fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket|fs.ModeSetuid|fs.ModeSetgid) != 0 {
			t.Errorf("there is %s of mode %v", d.Name(), info.Mode())
		}
		return err
	})
	if walkErr != nil {
		t.Error(walkErr)
	}
	return size, err
}

// header is a tar header. Its content need not follow.
func header(t testing.TB, h tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// endless is content that continues until too much of it was read.
type endless struct {
	t    *testing.T
	read int64
}

func (e *endless) Read(p []byte) (int, error) {
	if e.read += int64(len(p)); e.read > 64<<20 {
		e.t.Error("64 MiB were read of a file that is larger than any may be")
		return 0, errors.New("enough")
	}
	clear(p)
	return len(p), nil
}

// TestAttackBuildFiles has a tenant send files of a build that are to fill the
// disk or to keep the daemon busy.
func TestAttackBuildFiles(t *testing.T) {
	regular := func(name string, size int64) []byte {
		return header(t, tar.Header{Name: name, Typeflag: tar.TypeReg, Size: size, Mode: 0o644})
	}
	one := append(regular("a", 1), make([]byte, 512)...)
	for name, tt := range map[string]struct {
		text []byte
		code sandbox.Code
	}{
		"larger than may be":          {regular("b", maxBytes+1), sandbox.CodeExhausted},
		"sizes whose sum overflows":   {append(bytes.Clone(one), regular("b", math.MaxInt64)...), sandbox.CodeExhausted},
		"deeper than may be":          {regular(strings.Repeat("x/", 5_000)+"f", 0), sandbox.CodeInvalid},
		"a deep directory":            {header(t, tar.Header{Name: strings.Repeat("y/", 5_000), Typeflag: tar.TypeDir, Mode: 0o755}), sandbox.CodeInvalid},
		"a device":                    {header(t, tar.Header{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}), sandbox.CodeInvalid},
		"a FIFO":                      {header(t, tar.Header{Name: "fifo", Typeflag: tar.TypeFifo}), sandbox.CodeInvalid},
		"another name of a file":      {header(t, tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "../secret"}), sandbox.CodeInvalid},
		"a file through a link":       {append(header(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}), regular("l/secret", 0)...), sandbox.CodeInvalid},
		"a directory through a link":  {append(header(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/tmp"}), header(t, tar.Header{Name: "l/d", Typeflag: tar.TypeDir})...), sandbox.CodeInvalid},
		"a name that leads out":       {regular("a/../../secret", 0), sandbox.CodeInvalid},
		"an absolute name":            {regular("/secret", 0), sandbox.CodeInvalid},
		"a file in a file's place":    {append(bytes.Clone(one), regular("a", 0)...), sandbox.CodeInvalid},
		"a directory below a file":    {append(bytes.Clone(one), regular("a/b", 0)...), sandbox.CodeInvalid},
		"something that is no tar":    {bytes.Repeat([]byte("no tar "), 200), sandbox.CodeInvalid},
		"a stream that is broken off": {regular("b", 512), sandbox.CodeInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			var rest io.Reader = &endless{t: t}
			if strings.HasPrefix(name, "a stream") {
				rest = strings.NewReader("")
			}
			began := time.Now()
			_, err := unpackFor(t, io.MultiReader(bytes.NewReader(tt.text), rest), 30*time.Second)
			if sandbox.CodeOf(err) != tt.code {
				t.Errorf("%v, want %s", err, tt.code)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// FuzzUnpack: for any uploaded files of a build, none is outside of the
// directory, and none is a device, a FIFO or set-id.
func FuzzUnpack(f *testing.F) {
	link := header(f, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."})
	f.Add(append(bytes.Clone(link), header(f, tar.Header{Name: "l/secret", Typeflag: tar.TypeReg})...))
	f.Add(header(f, tar.Header{Name: "a/b/c", Typeflag: tar.TypeReg, Mode: 0o6755}))
	f.Add(header(f, tar.Header{Name: "a", Typeflag: tar.TypeLink, Linkname: "../secret"}))
	f.Fuzz(func(t *testing.T, text []byte) {
		size, err := unpackFor(t, bytes.NewReader(text), 10*time.Second)
		if size > 16<<20 {
			t.Errorf("%d bytes are there of %d", size, len(text))
		}
		var known *sandbox.Error
		if err != nil && !errors.As(err, &known) {
			t.Errorf("an error without a code: %v", err)
		}
	})
}
