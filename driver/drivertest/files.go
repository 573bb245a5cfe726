package drivertest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// files returns the sandbox's file system.
func (sb *testSandbox) files() driver.FileSystem {
	fs, ok := driver.As[driver.FileSystem](sb.inst)
	if !ok {
		sb.Fatalf("files are declared, but the instance is no FileSystem")
	}
	return fs
}

// write writes a file through the API.
func (sb *testSandbox) write(name, content string) sandbox.FileInfo {
	info, err := sb.files().Write(sb.ctx, sb.path(name), strings.NewReader(content), driver.WriteOptions{})
	sb.ok("Write", err)
	return info
}

// read reads a whole file through the API.
func (sb *testSandbox) read(name string) string {
	return sb.readPart(name, driver.ReadOptions{})
}

func (sb *testSandbox) readPart(name string, opts driver.ReadOptions) string {
	r, _, err := sb.files().Read(sb.ctx, sb.path(name), opts)
	sb.ok("Read", err)
	return sb.drain(r)
}

// drain reads to the end, and closes the reader.
func (sb *testSandbox) drain(r io.ReadCloser) string {
	data, err := readAll(r)
	sb.ok("reading", err)
	sb.ok("closing the reader", r.Close())
	return string(data)
}

func (sb *testSandbox) stat(name string) sandbox.FileInfo {
	info, err := sb.files().Stat(sb.ctx, sb.path(name))
	sb.ok("Stat "+name, err)
	return info
}

func (sb *testSandbox) exists(name string) bool {
	_, err := sb.files().Stat(sb.ctx, sb.path(name))
	if err != nil {
		sb.wantCode("Stat "+name, err, sandbox.CodeNotFound)
	}
	return err == nil
}

// list returns the paths that List yields, in its order.
func (sb *testSandbox) list(name string, depth int) []string {
	var paths []string
	for info, err := range sb.files().List(sb.ctx, path.Join(sb.dir, name), driver.ListOptions{Depth: depth}) {
		sb.ok("List", err)
		paths = append(paths, info.Path)
	}
	return paths
}

func (sb *testSandbox) listError(p string) error {
	for _, err := range sb.files().List(sb.ctx, p, driver.ListOptions{}) {
		if err != nil {
			return err
		}
	}
	return nil
}

// oddNames are names that every file system supports but some programs do not.
var oddNames = []string{
	"two words", " lead", "trail ", "new\nline", "tab\t", "grüße", "世界", "\xff\xfe", "-rf", "*", "a'b\"c", `back\slash`,
	"$HOME", "...", "..x", ".hidden", "%00", "\x01\x1b", strings.Repeat("n", 255),
}

var fileReadCases = []testCase{
	{"files/stat", capFiles, func(t *caseT) {
		b := t.sandbox()
		b.mustSh("printf 12345 >f; chmod 640 f; mkdir d; chmod 1777 d; ln -s 'some where' l; mkfifo p")
		for name, want := range map[string]sandbox.FileInfo{
			"f": {Type: sandbox.TypeFile, Size: 5, Mode: 0o640},
			"d": {Type: sandbox.TypeDir, Mode: 0o1777},
			"l": {Type: sandbox.TypeSymlink, Mode: 0o777, Target: "some where"},
			"p": {Type: sandbox.TypeFIFO, Mode: 0o644},
		} {
			got := b.stat(name)
			if got.Path != b.path(name) || got.Type != want.Type || got.Size != want.Size || got.Target != want.Target {
				t.Errorf("Stat %s: %+v, want %+v", name, got, want)
			}
			if got.Mode != want.Mode && name != "p" { // The umask decides about a fifo.
				t.Errorf("Stat %s: mode %o, want %o", name, got.Mode, want.Mode)
			}
			if age := time.Since(got.ModTime); age > time.Hour || age < -time.Hour {
				t.Errorf("Stat %s: modified at %v", name, got.ModTime)
			}
		}
		if info, err := b.files().Stat(t.ctx, "/"); err != nil || info.Type != sandbox.TypeDir || info.Path != "/" {
			t.Errorf("Stat /: %+v, %v", info, err)
		}
		if info, err := b.files().Stat(t.ctx, "/dev/null"); err != nil || info.Type != sandbox.TypeDevice {
			t.Errorf("Stat /dev/null: %+v, %v", info, err)
		}
	}},
	{"files/missing", capFiles, func(t *caseT) {
		b := t.sandbox()
		fs := b.files()
		b.write("file", "x")
		for _, name := range []string{"missing", "missing/deeper"} {
			p := b.path(name)
			_, err := fs.Stat(t.ctx, p)
			t.wantCode("Stat", err, sandbox.CodeNotFound)
			_, _, err = fs.Read(t.ctx, p, driver.ReadOptions{})
			t.wantCode("Read", err, sandbox.CodeNotFound)
			t.wantCode("List", b.listError(p), sandbox.CodeNotFound)
			t.wantCode("Remove", fs.Remove(t.ctx, p, true), sandbox.CodeNotFound)
			t.wantCode("Move", fs.Move(t.ctx, p, b.path("to"), true), sandbox.CodeNotFound)
		}
		_, err := fs.Stat(t.ctx, b.path("file/below"))
		t.wantCode("Stat below a file", err, sandbox.CodeNotFound, sandbox.CodeInvalid)
	}},
	{"files/read-parts", capFiles, func(t *caseT) {
		b := t.sandbox()
		b.write("f", "0123456789")
		for _, c := range []struct {
			offset, length int64
			want           string
		}{{0, 0, "0123456789"}, {3, 0, "3456789"}, {3, 4, "3456"}, {8, 10, "89"}, {10, 0, ""}, {11, 5, ""}, {1 << 40, 1, ""}, {0, 1, "0"}} {
			if got := b.readPart("f", driver.ReadOptions{Offset: c.offset, Length: c.length}); got != c.want {
				t.Errorf("offset %d, length %d: %q, want %q", c.offset, c.length, got, c.want)
			}
		}
	}},
	{"files/read-info", capFiles, func(t *caseT) {
		b := t.sandbox()
		b.write("f", "hello")
		r, info, err := b.files().Read(t.ctx, b.path("f"), driver.ReadOptions{Offset: 2})
		t.ok("Read", err)
		t.ok("Close", r.Close())
		if info.Path != b.path("f") || info.Size != 5 || info.Type != sandbox.TypeFile {
			t.Errorf("info %+v", info)
		}
	}},
	{"files/read-abandoned", capFiles, func(t *caseT) {
		b := t.sandbox()
		b.write("f", string(pattern(size(t.suite, 4<<20, 1<<20))))
		for range 20 {
			r, _, err := b.files().Read(t.ctx, b.path("f"), driver.ReadOptions{})
			t.ok("Read", err)
			if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
				t.Errorf("reading: %v", t.vet(err))
			}
			t.ok("Close", r.Close())
		}
		t.want(b.argv("echo", "well"), "well\n")
	}},
	{"files/read-through-links", capFiles, func(t *caseT) {
		b := t.sandbox()
		b.mustSh("mkdir d; printf inside >d/f; ln -s d/f rel; ln -s \"$PWD/d\" abs; ln -s missing dangling; ln -s loop loop")
		for _, name := range []string{"rel", "abs/f"} {
			if got := b.read(name); got != "inside" {
				t.Errorf("%s: %q", name, got)
			}
		}
		_, _, err := b.files().Read(t.ctx, b.path("dangling"), driver.ReadOptions{})
		t.wantCode("Read of a dangling link", err, sandbox.CodeNotFound)
		_, _, err = b.files().Read(t.ctx, b.path("loop"), driver.ReadOptions{})
		t.wantCode("Read of a link to itself", err, sandbox.CodeInvalid, sandbox.CodeNotFound)
	}},
	{"files/not-regular", capFiles, notRegular},
	{"files/bad-paths", capFiles, badPaths},
	{"files/list", capFiles, func(t *caseT) {
		b := t.sandbox()
		b.mustSh("mkdir -p b/c/d a.d; for f in b/2 b/1 b/c/x b/c/d/y a z .h; do echo >$f; done; ln -s b link")
		one := []string{".h", "a", "a.d", "b", "link", "z"}
		all := []string{".h", "a", "a.d", "b", "b/1", "b/2", "b/c", "b/c/d", "b/c/d/y", "b/c/x", "link", "z"}
		for depth, want := range map[int][]string{0: one, 1: one, -1: all, 9: all, 2: {".h", "a", "a.d", "b", "b/1", "b/2", "b/c", "link", "z"}} {
			got := b.list("", depth)
			// Paths may be ordered as whole strings or by their elements. Both put
			// parents first; "a.d" and "a/…" would tell them apart and are not mixed
			// here.
			if !slices.Equal(got, want) {
				t.Errorf("depth %d: %q, want %q", depth, got, want)
			}
		}
		t.wantCode("List of a file", b.listError(b.path("z")), sandbox.CodeInvalid)
		if got := b.list("a.d", -1); len(got) != 0 {
			t.Errorf("an empty directory: %q", got)
		}
	}},
	{"files/list-large", capFiles, func(t *caseT) {
		b := t.sandbox()
		n := size(t.suite, 2000, 200)
		b.mustSh(`i=0; while [ $i -lt $1 ]; do : >f$i; i=$((i+1)); done`, fmt.Sprint(n))
		got := b.list("", 1)
		if len(got) != n || !slices.IsSorted(got) {
			t.Errorf("%d entries, sorted %v; want %d", len(got), slices.IsSorted(got), n)
		}
		seen := 0
		for range b.files().List(t.ctx, b.dir, driver.ListOptions{}) {
			if seen++; seen == 3 {
				break
			}
		}
		if seen != 3 {
			t.Errorf("an interrupted listing: %d entries", seen)
		}
	}},
	{"files/list-deep", capFiles, func(t *caseT) {
		b := t.sandbox()
		b.mustSh(`d=.; i=0; while [ $i -lt 60 ]; do d=$d/x; i=$((i+1)); done; mkdir -p $d; : >$d/leaf`)
		got := b.list("", -1)
		if len(got) != 61 || !strings.HasSuffix(got[60], "x/leaf") {
			t.Errorf("%d entries", len(got))
		}
	}},
	{"files/odd-names", capFiles, func(t *caseT) {
		b := t.sandbox()
		for _, name := range oddNames {
			b.write(name, "in "+name)
			if got := b.read(name); got != "in "+name {
				t.Errorf("%q: %q", name, got)
			}
			if got := b.stat(name); got.Path != b.path(name) {
				t.Errorf("%q: path %q", name, got.Path)
			}
			t.want(b.argv("cat", b.path(name)), "in "+name)
		}
		want := slices.Sorted(slices.Values(oddNames))
		if got := b.list("", 1); !slices.Equal(got, want) {
			t.Errorf("List: %q, want %q", got, want)
		}
		for _, name := range oddNames {
			t.ok("Move", b.files().Move(t.ctx, b.path(name), b.path("moved"), false))
			t.ok("Remove", b.files().Remove(t.ctx, b.path("moved"), false))
		}
	}},
	{"files/sparse", capFiles, func(t *caseT) {
		b := t.sandbox()
		b.mustSh("printf end | dd of=big bs=1 seek=10737418240 2>/dev/null")
		if got := b.stat("big").Size; got != 10<<30+3 {
			t.Errorf("size %d", got)
		}
		if got := b.readPart("big", driver.ReadOptions{Offset: 10<<30 - 2}); got != "\x00\x00end" {
			t.Errorf("the end: %q", got)
		}
		if got := b.readPart("big", driver.ReadOptions{Offset: 5 << 30, Length: 4}); got != "\x00\x00\x00\x00" {
			t.Errorf("the middle: %q", got)
		}
	}},
}

// notRegular reads and writes files that are not regular. No call may block.
func notRegular(t *caseT) {
	b := t.sandbox()
	b.mustSh("mkfifo fifo; mkdir dir; ln -s fifo link")
	for _, p := range []string{b.path("fifo"), b.path("dir"), b.path("link"), "/dev/null", "/"} {
		r, _, err := b.files().Read(t.ctx, p, driver.ReadOptions{})
		if err == nil {
			_ = r.Close()
		}
		t.wantCode("Read "+p, err, sandbox.CodeInvalid)
		if p == b.path("link") {
			continue // Writing may replace the link, or refuse its target.
		}
		_, err = b.files().Write(t.ctx, p, strings.NewReader("x"), driver.WriteOptions{})
		t.wantCode("Write "+p, err, sandbox.CodeInvalid)
	}
	if got := b.stat("fifo").Type; got != sandbox.TypeFIFO {
		t.Errorf("the fifo is now a %s", got)
	}
}

// badPaths passes paths to the driver that the control services reject.
func badPaths(t *caseT) {
	b := t.sandbox()
	fs := b.files()
	for _, p := range []string{"", "relative", "./x", "/nul\x00byte", b.dir + "/x\x00/../y"} {
		what := fmt.Sprintf("path %q: ", p)
		_, err := fs.Stat(t.ctx, p)
		t.wantCode(what+"Stat", err, sandbox.CodeInvalid)
		_, _, err = fs.Read(t.ctx, p, driver.ReadOptions{})
		t.wantCode(what+"Read", err, sandbox.CodeInvalid)
		_, err = fs.Write(t.ctx, p, strings.NewReader("x"), driver.WriteOptions{})
		t.wantCode(what+"Write", err, sandbox.CodeInvalid)
		t.wantCode(what+"List", b.listError(p), sandbox.CodeInvalid)
		t.wantCode(what+"Mkdir", fs.Mkdir(t.ctx, p, driver.MkdirOptions{Parents: true}), sandbox.CodeInvalid)
		t.wantCode(what+"Remove", fs.Remove(t.ctx, p, true), sandbox.CodeInvalid)
		t.wantCode(what+"Move from", fs.Move(t.ctx, p, b.path("to"), true), sandbox.CodeInvalid)
		t.wantCode(what+"Move to", fs.Move(t.ctx, b.dir, p, true), sandbox.CodeInvalid)
	}
}

var errReader = errors.New("the reader failed")

// brokenReader returns n bytes and then fails.
func brokenReader(n int) io.Reader {
	return io.MultiReader(bytes.NewReader(pattern(n)), failing{})
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errReader }
