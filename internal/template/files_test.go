package template

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// tree makes files in a directory beside a secret that none of them may reach.
func tree(t *testing.T, files map[string]string) *Files {
	t.Helper()
	top := t.TempDir()
	write(t, filepath.Join(top, "secret"), "canary")
	dir := filepath.Join(top, "files")
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if target, ok := strings.CutPrefix(content, "->"); ok {
			if err := os.Symlink(target, path); err != nil {
				t.Fatal(err)
			}
			continue
		}
		write(t, path, content)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	f, err := NewFiles(root)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// copied returns the names in the layer of a copy step, directories with a
// slash, and links with their targets.
func copied(f *Files, dest string, sources ...string) ([]string, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	s := &Step{Op: OpCopy, Args: append(slices.Clone(sources), dest)}
	if err := s.validate(); err != nil {
		return nil, err
	}
	if err := f.writeCopy(w, s, "/"+destination("/w", s), owner{7, 8}); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	var names []string
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err != nil {
			return nil, err
		}
		name := h.Name
		if h.Typeflag == tar.TypeSymlink {
			name += "->" + h.Linkname
		}
		if h.Uid != 7 || h.Gid != 8 || !h.ModTime.Equal(epoch) {
			return nil, errors.New(name + " has another owner or time")
		}
		names = append(names, name)
	}
}

func TestCopy(t *testing.T) {
	f := tree(t, map[string]string{
		"a": "1", "b.txt": "2", "c.txt": "3", "d/x": "4", "d/e/y": "5", "link": "->a", "d/up": "->../a", "skip/z": "6", "skip/keep": "7",
		"node_modules/m/i": "8", "d/e/.git/o": "9", ".dockerignore": "# comment\nskip\n!skip/keep\n**/.git\nnode_modules\n",
	})
	for _, tc := range []struct {
		dest    string
		sources []string
		want    string
	}{
		{"/to", []string{"a"}, "to"},
		{"/to/", []string{"a"}, "to/a"},
		{"rel/", []string{"a"}, "w/rel/a"},
		{".", []string{"a"}, "w/a"},
		{"/to/", []string{"*.txt"}, "to/b.txt to/c.txt"},
		{"/to/", []string{"a", "d"}, "to/a to/e/ to/e/y to/up->../a to/x"},
		{"/to", []string{"d"}, "to/e/ to/e/y to/up->../a to/x"},
		{"/to", []string{"link"}, "to"},
		{"/", []string{"skip"}, ""},
		{"/to/", []string{"/a"}, "to/a"},
	} {
		got, err := copied(f, tc.dest, tc.sources...)
		if tc.want == "" {
			if sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Errorf("copy %v to %s: %v, %v", tc.sources, tc.dest, got, err)
			}
			continue
		}
		if err != nil || strings.Join(got, " ") != tc.want {
			t.Errorf("copy %v to %s: %v (%v), want %s", tc.sources, tc.dest, got, err, tc.want)
		}
	}
	all, err := copied(f, "/", ".")
	if err != nil || !slices.Contains(all, "skip/keep") || slices.Contains(all, "skip/z") || slices.Contains(all, "node_modules/m/i") || slices.Contains(all, "d/e/.git/o") {
		t.Errorf("copy of everything: %v (%v)", all, err)
	}
}

// TestCopyCannotLeave: for any files, nothing outside of them is copied.
func TestCopyCannotLeave(t *testing.T) {
	f := tree(t, map[string]string{
		"out": "->../secret", "abs": "->/etc/passwd", "dir/out": "->../../secret", "dirlink": "->..", ".wh.a": "x",
	})
	for _, src := range []string{"out", "abs", "dirlink/secret", "dirlink", "../secret", "*/../../secret", ".wh.a", "missing", "no*"} {
		names, err := copied(f, "/to/", src)
		if sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("copy of %q: %v, %v", src, names, err)
		}
		if err != nil && (strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), os.TempDir())) {
			t.Errorf("copy of %q: the error tells too much: %v", src, err)
		}
	}
	// A link that is part of a tree stays a link: it means something in the
	// sandbox, and nothing here.
	names, err := copied(f, "/to/", "dir")
	if err != nil || !slices.Equal(names, []string{"to/out->../../secret"}) {
		t.Errorf("copy of a tree with a link: %v, %v", names, err)
	}
	if _, err := copied(&Files{}, "/to/", "a"); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("copy without files: %v", err)
	}
}

func TestKeys(t *testing.T) {
	f := tree(t, map[string]string{"a": "1", "b": "1", "c": "2"})
	content := func(src string) string {
		c, err := f.contentHash(&Step{Op: OpCopy, Args: []string{src, "/x"}})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if content("a") != content("b") || content("a") == content("c") {
		t.Error("the hash of a copy is not that of its content")
	}
	one := Step{Op: OpRun, Shell: "x"}
	seen := map[key]string{}
	add := func(what string, k key, s Step, content string) {
		n, err := k.next(&s, content)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[n]; ok {
			t.Errorf("%s has the key of %s", what, other)
		}
		seen[n] = what
	}
	first := firstKey("t", "d")
	add("the step", first, one, "")
	add("another tenant", firstKey("u", "d"), one, "")
	add("another image", firstKey("t", "e"), one, "")
	add("other content", first, one, "c")
	add("another script", first, Step{Op: OpRun, Shell: "y"}, "")
	add("arguments", first, Step{Op: OpRun, Args: []string{"x"}}, "")
	add("build arguments", first, Step{Op: OpRun, Shell: "x", BuildEnv: []Var{{"A", "b"}}}, "")
	moved := one
	moved.Line, moved.Text = 7, "RUN x"
	if a, _ := first.next(&one, ""); true {
		if b, _ := first.next(&moved, ""); a != b {
			t.Error("the key depends on where the step stands")
		}
	}
}

func TestPackUnpack(t *testing.T) {
	f := tree(t, map[string]string{
		"Dockerfile": "FROM x", "a/b": "1", "link": "->a/b", "skip/x": "2", "skip/keep": "3", ".dockerignore": "skip\n!skip/keep\n",
	})
	var b bytes.Buffer
	if err := Pack(t.Context(), f.root, &b); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := Unpack(t.Context(), &b, root); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"Dockerfile": "FROM x", "a/b": "1", "link": "1", "skip/keep": "3"} {
		if got, err := root.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
	if _, err := root.Stat("skip/x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was to be left out is there: %v", err)
	}
}

// TestUnpackHostile: a tar cannot write beside the directory it goes into.
func TestUnpackHostile(t *testing.T) {
	type member struct {
		name, link string
		kind       byte
	}
	for what, members := range map[string][]member{
		"climbs":           {{"../out", "", tar.TypeReg}},
		"absolute":         {{"/out", "", tar.TypeReg}},
		"through a link":   {{"l", "..", tar.TypeSymlink}, {"l/out", "", tar.TypeReg}},
		"through absolute": {{"l", "/tmp", tar.TypeSymlink}, {"l/out", "", tar.TypeReg}},
		"over a link":      {{"l", "../out", tar.TypeSymlink}, {"l", "", tar.TypeReg}},
		"hard link":        {{"l", "../secret", tar.TypeLink}},
		"device":           {{"d", "", tar.TypeChar}},
		"fifo":             {{"d", "", tar.TypeFifo}},
	} {
		top := t.TempDir()
		if err := os.Mkdir(filepath.Join(top, "in"), 0o755); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(filepath.Join(top, "in"))
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, m := range members {
			if err := w.WriteHeader(&tar.Header{Name: m.name, Linkname: m.link, Typeflag: m.kind, Mode: 0o644}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		err = Unpack(t.Context(), &b, root)
		root.Close()
		if sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", what, err)
		}
		if left, _ := os.ReadDir(top); len(left) != 1 {
			t.Errorf("%s: wrote beside its directory: %v", what, left)
		}
	}
}
