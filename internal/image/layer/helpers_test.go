package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/erofs/go-erofs"

	"github.com/atoll-run/atoll/internal/image/mkfs"
)

// member is one member of a tar in a test.
type member struct {
	name string
	typ  byte // tar.TypeReg if 0
	data string
	link string
	mode int64
	hdr  func(*tar.Header) // last word
}

func file(name, data string) member   { return member{name: name, data: data} }
func dir(name string) member          { return member{name: name, typ: tar.TypeDir, mode: 0o755} }
func symlink(name, to string) member  { return member{name: name, typ: tar.TypeSymlink, link: to} }
func hardlink(name, to string) member { return member{name: name, typ: tar.TypeLink, link: to} }

// tarOf writes a tar of the members.
func tarOf(t testing.TB, members ...member) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, m := range members {
		hdr := &tar.Header{
			Format: tar.FormatPAX, Typeflag: m.typ, Name: m.name, Linkname: m.link, Mode: m.mode,
			Size: int64(len(m.data)), ModTime: time.Unix(1_700_000_000, 5),
		}
		if m.typ == 0 {
			hdr.Typeflag = tar.TypeReg
		}
		if m.mode == 0 {
			hdr.Mode = 0o644
		}
		if m.hdr != nil {
			m.hdr(hdr)
		}
		if err := w.WriteHeader(hdr); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(m.data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// stack applies layers and returns the image.
func stack(t testing.TB, limits Limits, opts Options, layers ...[]byte) (fs.FS, error) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	w := mkfs.NewWriter(f)
	a := New(w, limits)
	for i, l := range layers {
		opts.Name = fmt.Sprintf("layer %d", i+1)
		if err := a.Apply(context.Background(), bytes.NewReader(l), opts); err != nil {
			return nil, err
		}
	}
	if _, err := w.Finish(a.Root()); err != nil {
		t.Fatalf("a tree that was accepted cannot be written: %v", err)
	}
	img, err := erofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	return img, nil
}

// list describes all files of an image, one per line: directories with a
// slash, files with their content, links with their target, and hard links by
// the name that sorts first.
func list(t testing.TB, img fs.FS) []string {
	t.Helper()
	var lines []string
	first := map[int64]string{}
	err := fs.WalkDir(img, ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		fi, err := fs.Lstat(img, name)
		if err != nil {
			return err
		}
		st := fi.Sys().(*erofs.Stat)
		line := name
		switch st.Mode.Type() {
		case fs.ModeDir:
			line += "/"
		case fs.ModeSymlink:
			target, err := fs.ReadLink(img, name)
			if err != nil {
				return err
			}
			line += "->" + target
		case fs.ModeNamedPipe:
			line += "|"
		case 0:
			data, err := fs.ReadFile(img, name)
			if err != nil {
				return err
			}
			line += "=" + string(data)
		default:
			line += "?"
		}
		if st.Nlink > 1 && !fi.IsDir() {
			if f, ok := first[st.Ino]; ok {
				line += " #" + f
			} else {
				first[st.Ino] = name
			}
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(lines)
	return lines
}

func words(s string) []string {
	var out []string
	for l := range strings.SplitSeq(s, ",") {
		if l = strings.TrimSpace(l); l != "" {
			out = append(out, l)
		}
	}
	slices.Sort(out)
	return out
}
