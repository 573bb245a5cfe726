package drivertest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
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

// archiver returns the sandbox's archiver.
func (sb *testSandbox) archiver() driver.Archiver {
	a, ok := driver.As[driver.Archiver](sb.inst)
	if !ok {
		sb.Fatalf("archive is declared, but the instance is no Archiver")
	}
	return a
}

// member is one entry of a tar stream.
type member struct {
	tar.Header
	data string
}

// export returns the members of an exported tree.
func (sb *testSandbox) export(p string, opts driver.ExportOptions) []member {
	var buf bytes.Buffer
	sb.ok("Export", sb.archiver().Export(sb.ctx, p, &buf, opts))
	var members []member
	for tr := tar.NewReader(&buf); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return members
		}
		if err != nil {
			sb.Fatalf("the exported stream is no tar: %v", err)
		}
		data, err := readAll(tr)
		if err != nil {
			sb.Fatalf("the exported stream is no tar: %v", err)
		}
		members = append(members, member{*h, string(data)})
	}
}

// tarball creates a tar stream and sets the sizes of its members.
func (t *caseT) tarball(members ...member) []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, m := range members {
		m.Size = int64(len(m.data))
		if m.Mode == 0 {
			m.Mode = 0o644
		}
		err := w.WriteHeader(&m.Header)
		if err == nil {
			_, err = io.WriteString(w, m.data)
		}
		if err != nil {
			t.Fatalf("making a tar stream: %v", err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatalf("making a tar stream: %v", err)
	}
	return buf.Bytes()
}

func file(name, data string) member {
	return member{tar.Header{Typeflag: tar.TypeReg, Name: name}, data}
}

func link(kind byte, name, target string) member {
	return member{tar.Header{Typeflag: kind, Name: name, Linkname: target}, ""}
}

func (sb *testSandbox) importTo(p string, stream []byte) error {
	return sb.archiver().Import(sb.ctx, p, bytes.NewReader(stream), driver.ImportOptions{})
}

// needFiles ends an archive case that needs the file system if there is none.
func (t *caseT) needFiles() bool {
	if !t.declared(capFiles) {
		t.Errorf("%s is declared without %s", capArchive, capFiles)
	}
	return t.declared(capFiles)
}

var archiveCases = []testCase{
	{"archive/export", capArchive, func(t *caseT) {
		b := t.sandbox()
		b.mustSh("mkdir -p tree/sub tree/empty; printf data >tree/f; chmod 640 tree/f; printf x >tree/sub/g; ln -s ../f tree/sub/l; ln tree/f tree/hard; chmod 1755 tree/empty; mkfifo tree/fifo")
		members := map[string]member{}
		for i, m := range b.export(b.path("tree"), driver.ExportOptions{}) {
			name := strings.TrimSuffix(m.Name, "/")
			if i == 0 && name != "tree" {
				t.Errorf("the first member is %q, want tree", m.Name)
			}
			members[name] = m
		}
		if m := members["tree/empty"]; m.Typeflag != tar.TypeDir || m.Mode&0o7777 != 0o1755 {
			t.Errorf("the empty directory: %+v", m.Header)
		}
		if m := members["tree/sub/l"]; m.Typeflag != tar.TypeSymlink || m.Linkname != "../f" {
			t.Errorf("the symbolic link: %+v", m.Header)
		}
		if m := members["tree/fifo"]; m.Typeflag != tar.TypeFifo {
			t.Errorf("the fifo: %+v", m.Header)
		}
		f, hard := members["tree/f"], members["tree/hard"]
		if f.Typeflag != tar.TypeReg || f.data != "data" || f.Mode&0o7777 != 0o640 || time.Since(f.ModTime) > time.Hour {
			t.Errorf("the file: %+v", f)
		}
		if hard.Typeflag != tar.TypeLink || hard.Linkname != "tree/f" {
			t.Errorf("the hard link: %+v", hard.Header)
		}
		if len(members) != 8 {
			t.Errorf("%d members, want 8", len(members))
		}
	}},
	{"archive/export-file", capArchive, func(t *caseT) {
		b := t.sandbox()
		b.mustSh("printf data >f")
		if m := b.export(b.path("f"), driver.ExportOptions{}); len(m) != 1 || m[0].Name != "f" || m[0].data != "data" {
			t.Errorf("members %+v", m)
		}
	}},
	{"archive/export-missing", capArchive, func(t *caseT) {
		b := t.sandbox()
		err := b.archiver().Export(t.ctx, b.path("missing"), io.Discard, driver.ExportOptions{})
		t.wantCode("Export", err, sandbox.CodeNotFound)
	}},
	{"archive/export-writer-fails", capArchive, func(t *caseT) {
		b := t.sandbox()
		b.mustSh("dd if=/dev/zero of=f bs=65536 count=32 2>/dev/null")
		if err := b.archiver().Export(t.ctx, b.path("f"), failingWriter{}, driver.ExportOptions{}); err == nil {
			t.Errorf("Export to a failing writer succeeds")
		}
	}},
	{"archive/exclude", capArchive, func(t *caseT) {
		b := t.sandbox()
		b.mustSh("mkdir -p t/keep t/drop/deep t/keep/sub; for f in t/a.o t/a.c t/keep/b.o t/keep/sub/x t/drop/deep/y; do echo >$f; done")
		var names []string
		for _, m := range b.export(b.path("t"), driver.ExportOptions{Exclude: []string{"*.o", "drop", "keep/s?b"}}) {
			names = append(names, strings.TrimSuffix(m.Name, "/"))
		}
		slices.Sort(names)
		if want := []string{"t", "t/a.c", "t/keep", "t/keep/b.o"}; !slices.Equal(names, want) {
			t.Errorf("members %q, want %q", names, want)
		}
	}},
	{"archive/exclude-bad-pattern", capArchive, func(t *caseT) {
		b := t.sandbox()
		err := b.archiver().Export(t.ctx, b.dir, io.Discard, driver.ExportOptions{Exclude: []string{"[bad"}})
		t.wantCode("Export", err, sandbox.CodeInvalid)
	}},
	{"archive/round-trip", capArchive, archiveRoundTrip},
	{"archive/import", capArchive, func(t *caseT) {
		b := t.sandbox()
		stream := t.tarball(
			member{tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}, ""},
			member{tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o750}, ""},
			member{tar.Header{Typeflag: tar.TypeReg, Name: "d/f", Mode: 0o600, ModTime: time.Unix(1e9, 0)}, "one"},
			file("implied/parent/g", "two"),
			link(tar.TypeSymlink, "l", "d/f"),
			link(tar.TypeLink, "h", "d/f"),
			member{tar.Header{Typeflag: tar.TypeFifo, Name: "p", Mode: 0o622}, ""},
			file("./dot", "three"),
		)
		t.ok("Import", b.importTo(b.path("made/here"), stream))
		t.want(b.sh("cd made/here && cat d/f l h implied/parent/g dot && [ -p p ] && [ -L l ]"), "oneoneonetwothree")
		if !t.needFiles() {
			return
		}
		if d := b.stat("made/here/d"); d.Mode != 0o750 {
			t.Errorf("the directory's mode is %o", d.Mode)
		}
		if p := b.stat("made/here/p"); p.Mode != 0o622 {
			t.Errorf("the fifo's mode is %o", p.Mode)
		}
		f, h := b.stat("made/here/d/f"), b.stat("made/here/h")
		if f.Mode != 0o600 || !f.ModTime.Equal(time.Unix(1e9, 0)) {
			t.Errorf("the file: %+v", f)
		}
		if f.Identity != h.Identity {
			t.Errorf("the hard link is another file")
		}
	}},
	{"archive/import-modes", capArchive, func(t *caseT) {
		b := t.sandbox()
		modes := []int64{0o400, 0o444, 0o600, 0o644, 0o666, 0o755, 0o777, 0o4755}
		var all []member
		for _, dir := range []string{"", "new/"} { // new directories and existing ones take different paths
			for _, mode := range modes {
				all = append(all, member{tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("%sf%o", dir, mode), Mode: mode}, "x"})
			}
		}
		b.mustSh("mkdir t")
		t.ok("Import", b.importTo(b.path("t"), t.tarball(all...)))
		if !t.needFiles() {
			return
		}
		for _, m := range all {
			if f := b.stat("t/" + m.Name); int64(f.Mode) != m.Mode {
				t.Errorf("%s has the mode %o", m.Name, f.Mode)
			}
		}
	}},
	{"archive/import-replaces", capArchive, func(t *caseT) {
		b := t.sandbox()
		b.mustSh("mkdir -p t/d; echo old >t/f; echo stays >t/other; echo x >t/d/stays")
		stream := t.tarball(file("f", "new\n"), member{tar.Header{Typeflag: tar.TypeDir, Name: "d", Mode: 0o755}, ""})
		t.ok("Import", b.importTo(b.path("t"), stream))
		t.want(b.sh("cat t/f t/other t/d/stays"), "new\nstays\nx\n")
	}},
	{"archive/all-or-nothing", capArchive, archiveAllOrNothing},
	{"archive/sparse", capArchive, func(t *caseT) {
		b := t.sandbox()
		const size, zeros = 24 << 20, 3 << 20 // h has zeros, but no holes
		b.mustSh("printf start >f; printf end | dd of=f bs=1 seek=25165821 2>/dev/null; : >g; dd if=/dev/zero of=h bs=1048576 count=3 2>/dev/null")
		var buf bytes.Buffer
		t.ok("Export", b.archiver().Export(t.ctx, b.dir, &buf, driver.ExportOptions{}))
		if buf.Len() > zeros+1<<20 {
			t.Errorf("the holes of a file of %d bytes take %d", size, buf.Len())
		}
		t.ok("Import", b.importTo(b.path("copy"), buf.Bytes()))
		in := "copy/" + path.Base(b.dir)
		if !t.needFiles() {
			return
		}
		for name, want := range map[string]int{"f": size, "g": 0, "h": zeros} {
			got, original := b.read(path.Join(in, name)), b.read(name)
			if len(got) != want || got != original {
				t.Errorf("%s has %d bytes, want %d, and is the same: %v", name, len(got), want, got == original)
			}
		}
	}},
	{"archive/many", capArchive, func(t *caseT) {
		b := t.sandbox()
		var members []member
		for i := range 2000 {
			members = append(members, file(fmt.Sprintf("tree/d%d/e%d/f%d", i%7, i%13, i), fmt.Sprint(i)))
		}
		t.ok("Import", b.importTo(b.dir, t.tarball(members...)))
		exported := b.export(b.path("tree"), driver.ExportOptions{})
		t.ok("Import", b.importTo(b.path("again"), t.tarball(exported...)))
		if n := len(exported); n != 2000+1+7+7*13 {
			t.Errorf("%d members", n)
		}
		t.want(b.sh("cat tree/d6/e12/f1000 again/tree/d6/e12/f1000 again/tree/d2/e11/f1675"), "100010001675")
	}},
	{"archive/odd-names", capArchive, func(t *caseT) {
		// A name like those of the guest's temporary files, or one that leaves no
		// room for such a suffix, is valid.
		b := t.sandbox()
		names := []string{strings.Repeat("n", 255), ".atoll-tmp-0123456789abcdef01234567", ".atoll-tmp-", ".wh.f", "GNUSparseFile.0", "-rf", "a\\b", "\u00e9"}
		for range 2 { // as new files, and replacing them
			var members []member
			for _, name := range names {
				members = append(members, file("odd/"+name, name), file("odd/deep/"+name, name))
			}
			t.ok("Import", b.importTo(b.dir, t.tarball(members...)))
		}
		found := map[string]string{}
		for _, m := range b.export(b.path("odd"), driver.ExportOptions{}) {
			found[m.Name] = m.data
		}
		for _, name := range names {
			if found["odd/"+name] != name || found["odd/deep/"+name] != name {
				t.Errorf("%q holds %q and %q", name, found["odd/"+name], found["odd/deep/"+name])
			}
		}
		if len(found) != 2*len(names)+2 {
			t.Errorf("%d members: %q", len(found), found)
		}
	}},
	{"archive/import-owner", capUsers, func(t *caseT) {
		if !t.declared(capArchive) || !t.declared(capFiles) {
			t.Logf("the provider does not declare %s and %s", capArchive, capFiles)
			return
		}
		b := t.sandbox()
		m := file("f", "x")
		m.Uid, m.Gid = 1234, 2345
		stream := t.tarball(m)
		t.ok("Import", b.importTo(b.path("kept"), stream))
		if f := b.stat("kept/f"); f.UID != 1234 || f.GID != 2345 {
			t.Errorf("owner %d:%d, want 1234:2345", f.UID, f.GID)
		}
		t.ok("Import", b.archiver().Import(t.ctx, b.path("given"), bytes.NewReader(stream), driver.ImportOptions{Owner: "77:88"}))
		if f := b.stat("given/f"); f.UID != 77 || f.GID != 88 {
			t.Errorf("owner %d:%d, want 77:88", f.UID, f.GID)
		}
	}},
	{"archive/import-truncated", capArchive, func(t *caseT) {
		b := t.sandbox()
		stream := t.tarball(file("a", strings.Repeat("a", 5000)), file("b", strings.Repeat("b", 5000)))
		for _, n := range []int{100, 700, 3000, 6500} {
			t.wantCode(fmt.Sprintf("Import of the first %d bytes", n), b.importTo(b.path("t"), stream[:n]), sandbox.CodeInvalid)
		}
		t.wantCode("Import of what is no tar", b.importTo(b.path("t"), pattern(4096)), sandbox.CodeInvalid)
		t.ok("Import of an empty stream", b.importTo(b.path("t"), t.tarball()))
	}},
	{"archive/import-reader-fails", capArchive, func(t *caseT) {
		b := t.sandbox()
		stream := t.tarball(file("a", strings.Repeat("a", 5000)))
		err := b.archiver().Import(t.ctx, b.path("t"), io.MultiReader(bytes.NewReader(stream[:2000]), failing{}), driver.ImportOptions{})
		if !errors.Is(err, errReader) {
			t.Errorf("error %v, want that of the reader", err)
		}
	}},
}

// archiveAllOrNothing imports streams that fail late over a tree, and checks
// that they leave no trace.
func archiveAllOrNothing(t *caseT) {
	b := t.sandbox()
	b.mustSh("mkdir -p t/d t/real; echo old >t/f; echo stays >t/d/stays; chmod 700 t/d; ln -s real t/link; ln t/f t/hard")
	if !t.needFiles() {
		return
	}
	before := b.untouched()
	good := []member{
		file("f", "new"),
		{tar.Header{Typeflag: tar.TypeDir, Name: "d", Mode: 0o755}, ""},
		file("d/more", "new"),
		file("d/stays", "new"),
		file("fresh/dir/file", "new"),
		{tar.Header{Typeflag: tar.TypeDir, Name: "fresh/dir", Mode: 0o500}, ""},
		file("link/through", "new"),
		link(tar.TypeSymlink, "s", "d"),
		link(tar.TypeLink, "fresh/h", "f"),
		file("twice", "one"), file("twice", "two"),
		{tar.Header{Typeflag: tar.TypeFifo, Name: "p", Mode: 0o600}, ""},
	}
	whole := t.tarball(append(slices.Clone(good), file("last", strings.Repeat("x", 4096)))...)
	for what, stream := range map[string][]byte{
		"a name that climbs": t.tarball(append(slices.Clone(good), file("../evil", "evil"))...),
		"a device":           t.tarball(append(slices.Clone(good), member{tar.Header{Typeflag: tar.TypeChar, Name: "dev"}, ""})...),
		"a link that climbs": t.tarball(append(slices.Clone(good), link(tar.TypeLink, "h", "../outside"))...),
		"a cut":              whole[:len(whole)-3000],
		"rubbish":            append(slices.Clone(whole[:len(whole)-1024]), pattern(2048)...),
	} {
		t.wantCode(what, b.importTo(b.path("t"), stream), sandbox.CodeInvalid)
		t.sameTrees(b.untouched(), before)
		t.wantCode(what+", elsewhere", b.importTo(b.path("made/for/it"), stream), sandbox.CodeInvalid)
		t.sameTrees(b.untouched(), before)
	}
	broken := io.MultiReader(bytes.NewReader(whole[:len(whole)-3000]), failing{})
	if err := b.archiver().Import(t.ctx, b.path("t"), broken, driver.ImportOptions{}); !errors.Is(err, errReader) {
		t.Errorf("error %v, want that of the reader", err)
	}
	// The provider may see the end of the stream later than the caller.
	t.eventually("the files as they were", func() bool { return slices.Equal(b.untouched(), before) })
	inTheWay := t.tarball(append(slices.Clone(good), file("d", "a file"))...)
	if err := b.importTo(b.path("t"), inTheWay); err == nil {
		t.Errorf("a file replaced a directory")
	}
	t.sameTrees(b.untouched(), before)
	t.ok("Import of the whole", b.importTo(b.path("t"), whole))
	t.want(b.sh("cat t/f t/hard t/d/more t/d/stays t/fresh/dir/file t/real/through t/fresh/h t/twice; ls"), "newold\nnewnewnewnewnewtwot\n")
	if d, dir := b.stat("t/d"), b.stat("t/fresh/dir"); d.Mode != 0o755 || dir.Mode != 0o500 {
		t.Errorf("the directories have the modes %o and %o", d.Mode, dir.Mode)
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errReader }

// archiveRoundTrip exports a tree, imports it elsewhere and compares.
func archiveRoundTrip(t *caseT) {
	b := t.sandbox()
	b.mustSh(`mkdir -p tree/deep/er tree/empty; cd tree
printf 'some data' >f; chmod 751 f; ln f deep/hard; ln -s /nowhere abs; ln -s ../f deep/rel
: >"$1"; : >'new
line'; : >"deep/$1"; printf end | dd of=sparse bs=1 seek=4194304 2>/dev/null`, strings.Repeat("long", 50))
	var buf bytes.Buffer
	t.ok("Export", b.archiver().Export(t.ctx, b.path("tree"), &buf, driver.ExportOptions{}))
	t.ok("Import", b.importTo(b.path("copy"), buf.Bytes()))
	if !t.needFiles() {
		return
	}
	t.sameTrees(b.tree("copy/tree"), b.tree("tree"))
	if f, h := b.stat("copy/tree/f"), b.stat("copy/tree/deep/hard"); f.Identity != h.Identity {
		t.Errorf("hard links became two files")
	}
}

// entry is a file of a tree with the properties that an archive must keep.
type entry struct {
	path string
	what string
	time time.Time
	dir  bool
}

// untouched describes all files of the sandbox, without the times of directories:
// temporary names change these even if the import fails.
func (sb *testSandbox) untouched() []entry {
	all := sb.tree(".")
	for i := range all {
		if all[i].dir {
			all[i].time = time.Time{}
		}
	}
	return all
}

// tree describes all files below a directory. A file that is removed meanwhile is
// described as such.
func (sb *testSandbox) tree(root string) []entry {
	var all []entry
	for info, err := range sb.files().List(sb.ctx, sb.path(root), driver.ListOptions{Depth: -1}) {
		if sandbox.CodeOf(err) == sandbox.CodeNotFound && len(all) > 0 {
			return append(all, entry{path: "a directory that was removed"})
		}
		sb.ok("List", err)
		content := ""
		if info.Type == sandbox.TypeFile {
			r, _, err := sb.files().Read(sb.ctx, sb.path(path.Join(root, info.Path)), driver.ReadOptions{})
			if sandbox.CodeOf(err) == sandbox.CodeNotFound {
				all = append(all, entry{path: info.Path + ", which was removed"})
				continue
			}
			sb.ok("Read", err)
			content = sb.drain(r)
		}
		what := fmt.Sprintf("%s, mode %o, size %d, target %q, content %x", info.Type, info.Mode, info.Size, info.Target, sha256.Sum256([]byte(content)))
		all = append(all, entry{info.Path, what, info.ModTime, info.Type == sandbox.TypeDir})
	}
	return all
}

// sameTrees compares descriptions. Times may differ by a second, the precision
// of the oldest tar format.
func (t *caseT) sameTrees(got, want []entry) {
	if len(got) != len(want) {
		t.Fatalf("%d files, want %d", len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		if g.path != w.path || g.what != w.what || g.time.Sub(w.time).Abs() > time.Second {
			t.Errorf("%q: %s at %v; want %q: %s at %v", g.path, g.what, g.time, w.path, w.what, w.time)
		}
	}
}

// hostileArchiveCases import streams that try to leave their directory.
var hostileArchiveCases = []testCase{
	hostile("parent", "../outside/pwned", file("../outside/pwned", "evil")),
	hostile("parent-inside", "d/../../outside/pwned", file("d/../../outside/pwned", "evil")),
	hostile("parent-only", "..", member{tar.Header{Typeflag: tar.TypeDir, Name: "..", Mode: 0o777}, ""}),
	hostile("absolute", "/outside/pwned", file("OUTSIDE/pwned", "evil")),
	hostile("through-link", "link/pwned", link(tar.TypeSymlink, "link", "../outside"), file("link/pwned", "evil")),
	hostile("through-absolute-link", "link/pwned", link(tar.TypeSymlink, "link", "OUTSIDE"), file("link/pwned", "evil")),
	hostile("through-two-links", "b/pwned", link(tar.TypeSymlink, "a", ".."), link(tar.TypeSymlink, "b", "a/outside"), file("b/pwned", "evil")),
	hostile("directory-through-link", "link/pwned", link(tar.TypeSymlink, "link", "../outside"),
		member{tar.Header{Typeflag: tar.TypeDir, Name: "link/pwned", Mode: 0o777}, ""}),
	hostile("symlink-through-link", "link/pwned", link(tar.TypeSymlink, "link", "../outside"), link(tar.TypeSymlink, "link/pwned", "x")),
	hostile("hard-link-out", "h", link(tar.TypeLink, "h", "../outside/victim")),
	hostile("hard-link-absolute", "h", link(tar.TypeLink, "h", "OUTSIDE/victim")),
	hostile("hard-link-through-link", "h", link(tar.TypeSymlink, "link", "../outside"), link(tar.TypeLink, "h", "link/victim")),
	hostile("char-device", "dev", member{tar.Header{Typeflag: tar.TypeChar, Name: "dev", Devmajor: 1, Devminor: 3}, ""}),
	hostile("block-device", "dev", member{tar.Header{Typeflag: tar.TypeBlock, Name: "dev", Devmajor: 8}, ""}),
	{"archive/hostile/file-over-link", capArchive, func(t *caseT) {
		// A link as the last element is replaced, not followed.
		b := t.sandbox()
		b.mustSh("mkdir outside in; echo victim >outside/victim; ln -s ../outside/victim in/l")
		_ = b.importTo(b.path("in"), t.tarball(file("l", "evil\n")))
		t.want(b.argv("cat", b.path("outside/victim")), "victim\n")
	}},
	{"archive/hostile/hard-link-then-write", capArchive, func(t *caseT) {
		b := t.sandbox()
		b.mustSh("mkdir outside in; echo victim >outside/victim; ln outside/victim in/h")
		_ = b.importTo(b.path("in"), t.tarball(file("h", "evil\n")))
		t.want(b.argv("cat", b.path("outside/victim")), "victim\n")
	}},
}

// hostile returns a case that imports members next to a directory that they try
// to reach. OUTSIDE in a name stands for that directory's absolute path. The
// import must fail with an error that names the culprit, and must leave
// everything outside unchanged.
func hostile(name, culprit string, members ...member) testCase {
	return testCase{"archive/hostile/" + name, capArchive, func(t *caseT) {
		b := t.sandbox()
		b.mustSh("mkdir outside in; echo victim >outside/victim; chmod 600 outside/victim")
		bad := slices.Clone(members)
		for i := range bad {
			bad[i].Name = strings.ReplaceAll(bad[i].Name, "OUTSIDE", b.path("outside"))
			bad[i].Linkname = strings.ReplaceAll(bad[i].Linkname, "OUTSIDE", b.path("outside"))
		}
		err := b.importTo(b.path("in"), t.tarball(bad...))
		t.wantCode("Import", err, sandbox.CodeInvalid)
		if err != nil && !strings.Contains(err.Error(), culprit) {
			t.Errorf("the error does not name %q: %v", culprit, err)
		}
		t.want(b.sh("ls outside; cat outside/victim; ls"), "victim\nvictim\nin\noutside\n")
	}}
}
