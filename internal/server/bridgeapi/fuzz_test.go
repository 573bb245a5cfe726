package bridgeapi

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/bounds"
)

// links are fake files, some of which are symbolic links. The fuzzer chooses
// the name and the target of one.
type links struct {
	Files
	name, target string
	asked        []string
}

func (l *links) Stat(_ context.Context, p string) (sandbox.FileInfo, error) {
	l.asked = append(l.asked, p)
	if strings.HasSuffix(p, l.name) {
		return sandbox.FileInfo{Type: sandbox.TypeSymlink, Target: l.target}, nil
	}
	return sandbox.FileInfo{Type: sandbox.TypeDir}, nil
}

// FuzzPaths: for any request path and any link in the sandbox, the result is
// below the workspace, and no other file is read.
func FuzzPaths(f *testing.F) {
	f.Add("a/b", "b", "../c")
	f.Add("..%2f..%2fetc/passwd", "etc", "/")
	f.Add("%00", "x", "x")
	f.Add("a//./b/", "a", "/workspace/../root")
	f.Add("a/a/a", "a", "a")
	f.Fuzz(func(t *testing.T, escaped, name, target string) {
		p, err := fileOf(escaped)
		if err != nil {
			return
		}
		if !below(p) || path.Clean(p) != p || strings.ContainsRune(p, 0) || len(p) > bounds.MaxPathLen+len(root)+1 {
			t.Fatalf("%q is %q", escaped, p)
		}
		files := &links{name: name, target: target}
		to, err := follow(t.Context(), files, p, "path")
		if err == nil && (!below(to) || path.Clean(to) != to) {
			t.Errorf("%q leads to %q", p, to)
		}
		for _, a := range files.asked {
			if !below(a) {
				t.Errorf("%q was looked at", a)
			}
		}
		if most := (maxLinks + 2) * (len(p) + len(target) + 2); len(files.asked) > most {
			t.Errorf("looked %d times", len(files.asked))
		}
	})
}

// FuzzWords: a line that is split into words is one command, and never a shell
// builtin.
func FuzzWords(f *testing.F) {
	for _, line := range []string{"ls -l", `echo 'a b' "c\"d" e\ f`, "a=b c", "cd /", "x;y", "a\nb", "$(id)", "'\n'", `"\` + "\n" + `"`} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		all, ok := words(line)
		if !ok {
			return
		}
		if len(all) == 0 || all[0] == "" {
			t.Fatalf("%q is %q", line, all)
		}
		// Quoted again, the words are the same ones.
		var again []string
		for _, w := range all {
			again = append(again, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
		}
		same, ok := words(strings.Join(again, " "))
		if !ok || len(same) != len(all) {
			t.Fatalf("%q is %q, and then %q", line, all, same)
		}
		for i := range all {
			if same[i] != all[i] {
				t.Errorf("%q is %q, and then %q", line, all, same)
			}
		}
	})
}

// tarred are fake files whose export is an untrusted archive.
type tarred struct {
	Files
	text []byte
}

func (a *tarred) Export(_ context.Context, _ string, w io.Writer, _ driver.ExportOptions) error {
	_, err := w.Write(a.text)
	return err
}

func (a *tarred) Read(_ context.Context, p string, _ driver.ReadOptions) (io.ReadCloser, sandbox.FileInfo, error) {
	if !below(p) {
		return nil, sandbox.FileInfo{}, errors.New("read " + p)
	}
	return io.NopCloser(strings.NewReader("linked")), sandbox.FileInfo{Size: 6}, nil
}

// FuzzExport: for any archive from a sandbox, a client gets one that has only
// files, directories and links below the workspace.
func FuzzExport(f *testing.F) {
	f.Add(tarOf(f,
		tar.Header{Name: "workspace/", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "workspace/a", Typeflag: tar.TypeReg, Mode: 0o644, Size: 3},
		tar.Header{Name: "workspace/b", Typeflag: tar.TypeLink, Linkname: "workspace/a"},
		tar.Header{Name: "workspace/c", Typeflag: tar.TypeSymlink, Linkname: "/workspace/a"},
		tar.Header{Name: "workspace/d/e", Typeflag: tar.TypeSymlink, Linkname: "../../.."},
		tar.Header{Name: "workspace/f", Typeflag: tar.TypeChar},
	))
	f.Add(tarOf(f, tar.Header{Name: "../../x", Typeflag: tar.TypeReg}, tar.Header{Name: "workspace/../../y", Typeflag: tar.TypeSymlink, Linkname: "../.."}))
	f.Fuzz(func(t *testing.T, text []byte) {
		var out bytes.Buffer
		a := &archive{ctx: t.Context(), files: &tarred{text: text}}
		if err := a.export(&out, nil); err != nil {
			if strings.HasPrefix(err.Error(), "read ") {
				t.Errorf("a link led to another place: %v", err)
			}
			return
		}
		for r := tar.NewReader(&out); ; {
			head, err := r.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
				t.Fatal(err)
			}
			at := path.Join(root, head.Name)
			if !below(at) || strings.HasPrefix(head.Name, "/") {
				t.Errorf("there is %q", head.Name)
			}
			switch head.Typeflag {
			case tar.TypeReg, tar.TypeDir:
			case tar.TypeSymlink:
				if to := path.Join(path.Dir(at), head.Linkname); path.IsAbs(head.Linkname) || !below(to) {
					t.Errorf("%q leads to %q", head.Name, head.Linkname)
				}
			default:
				t.Errorf("%q is of type %q", head.Name, head.Typeflag)
			}
			if fs.FileMode(head.Mode)&^0o7777 != 0 && head.Mode >= 0 {
				t.Errorf("%q has the mode %o", head.Name, head.Mode)
			}
		}
	})
}

func tarOf(f *testing.F, members ...tar.Header) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i := range members {
		if err := w.WriteHeader(&members[i]); err != nil {
			f.Fatal(err)
		}
		if _, err := w.Write([]byte("abc")[:members[i].Size]); err != nil {
			f.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	return out.Bytes()
}
