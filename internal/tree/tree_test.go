package tree

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// member is one entry of a stream that a test makes.
type member struct {
	name, link, body string
	kind             byte
	mode             int64
}

func stream(t testing.TB, members ...member) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		h := &tar.Header{Name: m.name, Linkname: m.link, Typeflag: m.kind, Mode: m.mode, Size: int64(len(m.body)), ModTime: time.Unix(1e9, 0)}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func dir(name string) member { return member{name: name, kind: tar.TypeDir, mode: 0o755} }
func file(name, body string) member {
	return member{name: name, kind: tar.TypeReg, mode: 0o644, body: body}
}

func symlink(name, to string) member {
	return member{name: name, link: to, kind: tar.TypeSymlink, mode: 0o777}
}
func hardlink(name, to string) member { return member{name: name, link: to, kind: tar.TypeLink} }

func TestRoundTrip(t *testing.T) {
	from := t.TempDir()
	for name, mode := range map[string]fs.FileMode{"d": fs.ModeDir | 0o750, "d/e": fs.ModeDir | 0o500, "f": 0o640, "d/run": 0o755} {
		p := filepath.Join(from, name)
		if mode.IsDir() {
			if err := os.MkdirAll(p, 0o700); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(p, []byte(name), 0o600); err != nil {
			_ = os.MkdirAll(filepath.Dir(p), 0o700)
			if err := os.WriteFile(p, []byte(name), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, mode := range map[string]fs.FileMode{"d": 0o750, "d/e": 0o500, "f": 0o640, "d/run": 0o755} {
		if err := os.Chmod(filepath.Join(from, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../f", filepath.Join(from, "d", "link")); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := Pack(t.Context(), &b, from, "name"); err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	if skipped, err := Unpack(t.Context(), &b, to, "other"); err != nil || len(skipped) > 0 {
		t.Fatal(skipped, err)
	}
	if got, want := listing(t, filepath.Join(to, "other")), listing(t, from); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// listing describes a tree in a way that two trees can be compared by.
func listing(t *testing.T, root string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := strings.TrimPrefix(p, root) + " " + info.Mode().String()
		if info.Mode().IsRegular() {
			data, _ := os.ReadFile(p)
			text += " " + string(data) + info.ModTime().UTC().String()
		}
		if target, err := os.Readlink(p); err == nil {
			text += " " + target
		}
		out = append(out, text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// For any input from a sandbox, nothing outside of the destination changes.
func TestHostileStreams(t *testing.T) {
	tests := []struct {
		name    string
		members []member
		fails   bool
	}{
		{"climbs", []member{file("x/../../../secret", "new")}, true},
		{"climbs at once", []member{file("../secret", "new")}, true},
		{"is absolute", []member{file("/secret", "new")}, true},
		{"has no name", []member{{name: "", kind: tar.TypeReg}}, true},
		{"writes through a link to a directory", []member{dir("x"), symlink("x/out", "../.."), file("x/out/secret", "new")}, true},
		{"writes through an absolute link", []member{dir("x"), symlink("x/out", "OUTSIDE"), file("x/out/secret", "new")}, true},
		{"makes a directory through a link", []member{dir("x"), symlink("x/out", "OUTSIDE"), dir("x/out/made")}, true},
		{"makes a link through a link", []member{dir("x"), symlink("x/out", "OUTSIDE"), symlink("x/out/l", "y")}, true},
		{"replaces a link by a file", []member{dir("x"), symlink("x/s", "OUTSIDE/secret"), file("x/s", "new")}, false},
		{"replaces a link by a directory", []member{dir("x"), symlink("x/s", "OUTSIDE"), dir("x/s"), file("x/s/secret", "new")}, true},
		{"links hard to the outside", []member{dir("x"), hardlink("x/h", "../secret")}, true},
		{"links hard to a link", []member{dir("x"), symlink("x/s", "OUTSIDE/secret"), hardlink("x/h", "x/s"), file("x/h", "new")}, true},
		{"links hard through a link", []member{dir("x"), symlink("x/o", "OUTSIDE"), hardlink("x/h", "x/o/secret")}, true},
		{"changes the mode through a link", []member{dir("x"), dir("x/d"), symlink("x/d", "OUTSIDE")}, true},
		{"changes the mode of a neighbour", []member{dir("x"), {name: "x/d", kind: tar.TypeDir, mode: 0o777}, symlink("x/d", "../near")}, true},
		{"links hard to a neighbour's file", []member{dir("x"), symlink("x/o", "../near"), hardlink("x/h", "x/o/file")}, true},
		{"writes to a neighbour", []member{dir("x"), symlink("x/o", "../near"), file("x/o/file", "new")}, true},
		{"puts a file in the way", []member{file("x", "1"), file("x/y", "2")}, true},
		{"names the root itself", []member{dir("."), file("./a", "1"), file("./../b", "2")}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			outside := t.TempDir()
			secret := filepath.Join(outside, "secret")
			if err := os.WriteFile(secret, []byte("old"), 0o640); err != nil {
				t.Fatal(err)
			}
			into := filepath.Join(outside, "a", "b")
			if err := os.MkdirAll(filepath.Join(into, "near"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(into, "near", "file"), []byte("old"), 0o640); err != nil {
				t.Fatal(err)
			}
			for i := range tt.members {
				tt.members[i].link = strings.Replace(tt.members[i].link, "OUTSIDE", outside, 1)
			}
			before := listing(t, outside)
			_, err := Unpack(t.Context(), stream(t, tt.members...), into, "x")
			if (err != nil) != tt.fails {
				t.Errorf("error %v", err)
			}
			if err := os.RemoveAll(filepath.Join(into, "x")); err != nil {
				t.Fatal(err)
			}
			if after := listing(t, outside); !slices.Equal(before, after) {
				t.Errorf("the outside changed\nfrom %q\nto   %q", before, after)
			}
		})
	}
}

func TestUnpackTakesAwayPower(t *testing.T) {
	to := t.TempDir()
	members := []member{
		{name: "x", kind: tar.TypeDir, mode: 0o7777},
		{name: "x/suid", kind: tar.TypeReg, mode: 0o6755, body: "#!"},
		{name: "x/fifo", kind: tar.TypeFifo, mode: 0o666},
		{name: "x/dev", kind: tar.TypeChar, mode: 0o666},
		{name: "x/disk", kind: tar.TypeBlock, mode: 0o666},
	}
	skipped, err := Unpack(t.Context(), stream(t, members...), to, "x")
	if err != nil || !slices.Equal(skipped, []string{"x/fifo", "x/dev", "x/disk"}) {
		t.Errorf("left out %q, %v", skipped, err)
	}
	for name, want := range map[string]fs.FileMode{"x": fs.ModeDir | 0o777, "x/suid": 0o755} {
		if info, err := os.Lstat(filepath.Join(to, name)); err != nil || info.Mode() != want {
			t.Errorf("%s has mode %v, %v, want %v", name, info.Mode(), err, want)
		}
	}
	if entries, _ := os.ReadDir(filepath.Join(to, "x")); len(entries) != 1 {
		t.Errorf("made %v", entries)
	}
}

func TestUnpackRefusesNames(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "/a"} {
		if _, err := Unpack(t.Context(), stream(t, file("x", "1")), t.TempDir(), name); err == nil {
			t.Errorf("%q is accepted", name)
		}
	}
}

// The root of a sandbox has no name, so members do not begin with it. Both forms
// of names are used.
func TestUnpackTheWholeRoot(t *testing.T) {
	for _, prefix := range []string{"", "./"} {
		for _, name := range []string{"root", "."} {
			to := t.TempDir()
			members := []member{dir("./"), symlink(prefix+"bin", "usr/bin"), dir(prefix + "etc/"), file(prefix+"etc/a", "1"), hardlink(prefix+"etc/b", prefix+"etc/a")}
			if skipped, err := Unpack(t.Context(), stream(t, members...), to, name); err != nil || len(skipped) > 0 {
				t.Errorf("%q as %q: %v %v", prefix, name, skipped, err)
				continue
			}
			if link, err := os.Readlink(filepath.Join(to, name, "bin")); err != nil || link != "usr/bin" {
				t.Errorf("%q as %q: %s %v", prefix, name, link, err)
			}
			if text, err := os.ReadFile(filepath.Join(to, name, "etc/b")); err != nil || string(text) != "1" {
				t.Errorf("%q as %q: %s %v", prefix, name, text, err)
			}
		}
	}
	if _, err := Unpack(t.Context(), stream(t, dir("./"), file("../b", "2")), t.TempDir(), "root"); err == nil {
		t.Error("a member leads out of the destination")
	}
}

// Names of Linux are bytes.
func TestNamesThatAreNotUTF8(t *testing.T) {
	from := t.TempDir()
	if err := os.MkdirAll(filepath.Join(from, "d\xff", "e\xfe"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"f\xff", "d\xff/g\xfd", "d\xff/e\xfe/h"} {
		if err := os.WriteFile(filepath.Join(from, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for source, files := range map[string][]string{
		from: {"f\xff", "d\xff/g\xfd", "d\xff/e\xfe/h"}, filepath.Join(from, "d\xff"): {"g\xfd", "e\xfe/h"}, filepath.Join(from, "f\xff"): {""},
	} {
		var b bytes.Buffer
		to := t.TempDir()
		if skipped, err := Pack(t.Context(), &b, source, "copy\xff"); err != nil || len(skipped) > 0 {
			t.Errorf("%q: %v %v", source, skipped, err)
		} else if _, err := Unpack(t.Context(), &b, to, "copy\xfe"); err != nil {
			t.Errorf("%q: %v", source, err)
		}
		for _, name := range files {
			if text, err := os.ReadFile(filepath.Join(to, "copy\xfe", name)); err != nil || !strings.HasSuffix(string(text), name) {
				t.Errorf("%q: %q has %q, %v", source, name, text, err)
			}
		}
	}
}

func TestUnpackReportsTheEndOfItsReader(t *testing.T) {
	b := stream(t, file("x", strings.Repeat("a", 10_000)))
	b.Truncate(5_000)
	if _, err := Unpack(t.Context(), b, t.TempDir(), "x"); err == nil {
		t.Error("half a file is a whole one")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Unpack(ctx, stream(t, file("x", "1")), t.TempDir(), "x"); err == nil {
		t.Error("goes on after the end of its context")
	}
	if _, err := Pack(ctx, io.Discard, t.TempDir(), "x"); err == nil {
		t.Error("packs after the end of its context")
	}
}

func TestAttackHostileErrorsAreTyped(t *testing.T) {
	_, err := Unpack(t.Context(), stream(t, file("../x", "1")), t.TempDir(), "x")
	if sandbox.CodeOf(err) != sandbox.CodeDenied {
		t.Errorf("got %v", err)
	}
}

// TestAttackDeepMembers sends names with an excessive number of directories.
func TestAttackDeepMembers(t *testing.T) {
	deep := "x/" + strings.Repeat("d/", 5_000)
	for name, members := range map[string][]member{
		"a file":        {dir("x"), file(deep+"f", "1")},
		"a directory":   {dir("x"), dir(deep)},
		"another name":  {dir("x"), hardlink("x/h", deep+"f")},
		"one too many":  {dir("x"), dir("x/" + strings.Repeat("d/", maxDepth+1))},
		"a file's link": {dir("x"), symlink(deep+"l", "..")},
	} {
		_, err := Unpack(t.Context(), stream(t, members...), t.TempDir(), "x")
		if sandbox.CodeOf(err) != sandbox.CodeDenied {
			t.Errorf("%s: %.200v", name, err)
		}
	}
	if _, err := Unpack(t.Context(), stream(t, dir("x"), dir("x/"+strings.Repeat("d/", 300))), t.TempDir(), "x"); err != nil {
		t.Errorf("300 directories: %.200v", err)
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(stream(f, dir("x"), symlink("x/o", ".."), file("x/o/y", "1"), hardlink("x/h", "x/y")).Bytes())
	f.Add(stream(f, file("../a", "1")).Bytes())
	f.Add([]byte("no tar at all"))
	f.Fuzz(func(t *testing.T, data []byte) {
		outside := t.TempDir()
		into := filepath.Join(outside, "into")
		if err := os.Mkdir(into, 0o700); err != nil {
			t.Fatal(err)
		}
		_, _ = Unpack(t.Context(), bytes.NewReader(data), into, "x")
		for _, d := range []string{outside, into} {
			entries, err := os.ReadDir(d)
			if err != nil || len(entries) > 1 || len(entries) == 1 && entries[0].Name() != "into" && entries[0].Name() != "x" {
				t.Fatalf("%s holds %v, %v", d, entries, err)
			}
		}
	})
}

func BenchmarkUnpack(b *testing.B) {
	data := stream(b, file("x", strings.Repeat("0123456789abcdef", 1<<20))).Bytes()
	to := b.TempDir()
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := Unpack(b.Context(), bytes.NewReader(data), to, "x"); err != nil {
			b.Fatal(err)
		}
	}
}

// Holes survive a copy out and in. Files generated by the kernel have the size
// 0 or one page.
func TestPackFilesWithoutASize(t *testing.T) {
	for _, file := range []string{"/proc/sys/kernel/ostype", "/sys/devices/system/cpu/online"} {
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if _, err := Pack(t.Context(), &b, file, "x"); err != nil {
			t.Fatal(err)
		}
		tr := tar.NewReader(&b)
		if _, err := tr.Next(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(tr); err != nil || string(got) != string(want) {
			t.Errorf("%s: %q, %v; want %q", file, got, err, want)
		}
	}
}

func TestHoles(t *testing.T) {
	const size = 16 << 20
	from, to := t.TempDir(), t.TempDir()
	f, err := os.Create(filepath.Join(from, "holed"))
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{0, 5 << 20} {
		if _, err := f.WriteAt([]byte("data"), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	if _, err := Pack(t.Context(), &stream, from, "x"); err != nil {
		t.Fatal(err)
	}
	if stream.Len() > 64<<10 {
		t.Errorf("the stream has %d bytes", stream.Len())
	}
	if _, err := Unpack(t.Context(), &stream, to, "y"); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(to, "y", "holed"))
	if err != nil || info.Size() != size || info.Sys().(*syscall.Stat_t).Blocks*512 > 64<<10 {
		t.Errorf("%+v %v", info, err)
	}
	a, errA := os.ReadFile(filepath.Join(from, "holed"))
	b, errB := os.ReadFile(filepath.Join(to, "y", "holed"))
	if errA != nil || errB != nil || !bytes.Equal(a, b) {
		t.Errorf("it is another: %v %v", errA, errB)
	}
}
