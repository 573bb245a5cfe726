package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/erofs/go-erofs"

	"github.com/atoll-run/atoll/internal/image/mkfs"
	"github.com/atoll-run/atoll/sandbox"
)

// TestLayering is the table of what layers do to one another.
func TestLayering(t *testing.T) {
	base := []member{dir("a"), file("a/x", "1"), file("a/y", "2"), dir("a/d"), file("a/d/z", "3"), file("top", "4")}
	const whole = "a/, a/x=1, a/y=2, a/d/, a/d/z=3, top=4"
	for _, c := range []struct {
		name  string
		lower []member
		upper []member
		want  string
	}{
		{"nothing", base, nil, whole},
		{"whiteout of a file", base, []member{file("a/.wh.x", "")}, "a/, a/y=2, a/d/, a/d/z=3, top=4"},
		{"whiteout of a directory", base, []member{file(".wh.a", "")}, "top=4"},
		{"whiteout of what is not there", base, []member{file(".wh.none", ""), file("a/d/.wh.none", ""), file("no/such/.wh.dir", "")}, whole},
		{"whiteout below a file", base, []member{file("top/.wh.x", "")}, whole},
		{"whiteout, then the same name", base, []member{file("a/.wh.x", ""), file("a/x", "new")}, "a/, a/x=new, a/y=2, a/d/, a/d/z=3, top=4"},
		{"the same name, then whiteout", base, []member{file("a/x", "new"), file("a/.wh.x", "")}, "a/, a/x=new, a/y=2, a/d/, a/d/z=3, top=4"},
		{"whiteout, then the directory anew", base, []member{file(".wh.a", ""), dir("a"), file("a/n", "5")}, "a/, a/n=5, top=4"},
		{"the directory anew, then whiteout", base, []member{dir("a"), file("a/n", "5"), file(".wh.a", "")}, "a/, a/n=5, top=4"},
		{"a file below, then whiteout of its directory", base, []member{file("a/n", "5"), file(".wh.a", "")}, "a/, a/n=5, top=4"},
		{"opaque first", base, []member{file("a/.wh..wh..opq", ""), file("a/n", "5")}, "a/, a/n=5, top=4"},
		{"opaque last", base, []member{file("a/n", "5"), dir("a"), file("a/.wh..wh..opq", "")}, "a/, a/n=5, top=4"},
		{"opaque root", base, []member{file(".wh..wh..opq", ""), file("n", "5")}, "n=5"},
		{"overlayfs whiteout", base, []member{{name: "a/x", typ: tar.TypeChar}}, "a/, a/y=2, a/d/, a/d/z=3, top=4"},
		{"aufs housekeeping", base, []member{file(".wh..wh.plnk", "x"), dir(".wh..wh.orph")}, whole},
		{"a directory gets new attributes and keeps its files", base, []member{{name: "a", typ: tar.TypeDir, mode: 0o700}}, whole},
		{"a file for a directory", base, []member{file("a", "f")}, "a=f, top=4"},
		{"a directory for a file", base, []member{dir("top"), file("top/n", "5")}, "a/, a/x=1, a/y=2, a/d/, a/d/z=3, top/, top/n=5"},
		{"an implied directory for a file", base, []member{file("top/n", "5")}, "a/, a/x=1, a/y=2, a/d/, a/d/z=3, top/, top/n=5"},
		{"a link for a directory", base, []member{symlink("a", "top")}, "a->top, top=4"},
		{"a file, then a directory, hides the lower one", base, []member{file("a", "f"), dir("a")}, "a/, top=4"},
		{"the later of two", nil, []member{file("f", "1"), file("f", "2")}, "f=2"},
		{"devices", nil, []member{{name: "null", typ: tar.TypeChar, hdr: func(h *tar.Header) { h.Devmajor = 1; h.Devminor = 3 }}, {name: "sda", typ: tar.TypeBlock}}, ""},
		{"a FIFO", nil, []member{{name: "p", typ: tar.TypeFifo}}, "p|"},
		{"names that differ in case and Unicode form", nil, []member{file("A", "1"), file("a", "2"), file("\u00e9", "3"), file("e\u0301", "4")}, "A=1, a=2, \u00e9=3, e\u0301=4"},
		{"leading slashes and dots", nil, []member{file("/abs", "1"), file("./rel", "2"), file(".//x/./y", "3"), dir("./")}, "abs=1, rel=2, x/, x/y=3"},

		{"a hard link", nil, []member{file("f", "1"), hardlink("g", "f")}, "f=1, g=1 #f"},
		{"a hard link with a slash", nil, []member{file("d/f", "1"), hardlink("g", "/d/f")}, "d/, d/f=1, g=1 #d/f"},
		{"a hard link before its target", nil, []member{hardlink("g", "f"), file("f", "1")}, "f=1, g=1 #f"},
		{"a chain of them, backwards", nil, []member{hardlink("h", "g"), hardlink("g", "f"), file("f", "1")}, "f=1, g=1 #f, h=1 #f"},
		{"a hard link to a lower layer", base, []member{hardlink("g", "a/x")}, "a/, a/x=1, a/y=2, a/d/, a/d/z=3, g=1 #a/x, top=4"},
		{"… whose target goes in the same layer", base, []member{file("a/.wh.x", ""), hardlink("g", "a/x")}, "a/, a/y=2, a/d/, a/d/z=3, g=1, top=4"},
		{"… whose target is replaced later", base, []member{hardlink("g", "top"), file("top", "new")}, "a/, a/x=1, a/y=2, a/d/, a/d/z=3, g=4, top=new"},
		{"a hard link to a symbolic link", nil, []member{symlink("s", "x"), hardlink("g", "s")}, "g->x, s->x #g"},
		{"replacing one name leaves the other", nil, []member{file("f", "1"), hardlink("g", "f"), file("f", "2")}, "f=2, g=1"},

		{"a file through a link of the layer", nil, []member{dir("real"), symlink("l", "real"), file("l/f", "1")}, "l->real, real/, real/f=1"},
		{"… of a lower layer", []member{dir("usr"), dir("usr/lib"), symlink("lib", "usr/lib")}, []member{file("lib/f", "1")}, "lib->usr/lib, usr/, usr/lib/, usr/lib/f=1"},
		{"… an absolute one", []member{dir("usr"), dir("usr/lib"), symlink("lib", "/usr/lib")}, []member{file("lib/sub/f", "1")}, "lib->/usr/lib, usr/, usr/lib/, usr/lib/sub/, usr/lib/sub/f=1"},
		{"… that climbs out, as in a chroot", nil, []member{symlink("l", "../../../../etc"), file("l/passwd", "1")}, "etc/, etc/passwd=1, l->../../../../etc"},
		{"… that climbs out in a lower layer", []member{symlink("l", "../../etc")}, []member{file("l/passwd", "1")}, "etc/, etc/passwd=1, l->../../etc"},
		{"whiteout through a link", []member{dir("real"), file("real/f", "1"), symlink("l", "real")}, []member{file("l/.wh.f", "")}, "l->real, real/"},
		{"a directory for a link", []member{dir("real"), symlink("l", "real")}, []member{dir("l"), file("l/f", "1")}, "l/, l/f=1, real/"},
	} {
		t.Run(c.name, func(t *testing.T) {
			img, err := stack(t, Limits{}, Options{}, tarOf(t, c.lower...), tarOf(t, c.upper...))
			if err != nil {
				t.Fatal(err)
			}
			if got, want := list(t, img), words(c.want); !slices.Equal(got, want) {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		})
	}
}

func TestLiteral(t *testing.T) {
	img, err := stack(t, Limits{}, Options{Literal: true}, tarOf(t, file("a/.wh.x", "1"), file(".wh..wh..opq", "2"), file(".wh.d/f", "3"), member{name: "c", typ: tar.TypeChar}))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := list(t, img), words("a/, a/.wh.x=1, .wh..wh..opq=2, .wh.d/, .wh.d/f=3"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAttributes(t *testing.T) {
	img, err := stack(t, Limits{}, Options{}, tarOf(t,
		member{name: "./", typ: tar.TypeDir, mode: 0o711},
		member{name: "su", data: "x", mode: 0o6755, hdr: func(h *tar.Header) {
			h.Uid, h.Gid = 1000, 70_000
			h.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "\x01\x00", "SCHILY.xattr.user.a": "b"}
		}},
		member{name: "tmp", typ: tar.TypeDir, mode: 0o1777},
	))
	if err != nil {
		t.Fatal(err)
	}
	st := func(name string) *erofs.Stat {
		fi, err := fs.Lstat(img, name)
		if err != nil {
			t.Fatal(err)
		}
		return fi.Sys().(*erofs.Stat)
	}
	if s := st("su"); s.Mode != 0o755|fs.ModeSetuid|fs.ModeSetgid || s.UID != 1000 || s.GID != 70_000 || s.Mtime != 1_700_000_000 || len(s.Xattrs) != 0 {
		t.Errorf("su: %+v", s)
	}
	if s := st("tmp"); s.Mode != fs.ModeDir|fs.ModeSticky|0o777 {
		t.Errorf("tmp: %v", s.Mode)
	}
	if s := st("."); s.Mode.Perm() != 0o711 {
		t.Errorf("root: %v", s.Mode)
	}
}

// rawHeader makes a tar with a single, modified header that the writer of
// archive/tar refuses to write.
func rawHeader(t *testing.T, data string, change func(h []byte)) []byte {
	raw := tarOf(t, member{name: "victim", data: data, hdr: func(h *tar.Header) { h.Format = tar.FormatGNU; h.ModTime = h.ModTime.Truncate(1e9) }})
	change(raw[:512])
	copy(raw[148:156], "        ")
	sum := 0
	for _, b := range raw[:512] {
		sum += int(b)
	}
	copy(raw[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return raw
}

// TestHostileLayers is the table of attacks. Each is refused with a code, and
// the error names the layer, and the member where there is one.
func TestHostileLayers(t *testing.T) {
	deep := strings.Repeat("d/", 2000)
	small := Limits{Entries: 20, FileSize: 1000, ImageSize: 3000, Depth: 50}
	for _, c := range []struct {
		name   string
		limits Limits
		lower  []member
		layer  []byte
		code   sandbox.Code
		says   string
	}{
		{name: "dot dot", layer: tarOf(t, file("../etc/passwd", "x")), says: "../etc/passwd"},
		{name: "dot dot inside", layer: tarOf(t, file("a/../../etc/passwd", "x")), says: "climbs"},
		{name: "absolute dot dot", layer: tarOf(t, file("/../x", "x")), says: "climbs"},
		{name: "dot dot by a pax path", layer: tarOf(t, member{name: strings.Repeat("x", 101) + "/../../y", data: "x"}), says: "climbs"},
		{name: "hard link out", layer: tarOf(t, hardlink("l", "../../etc/shadow")), says: `"l": a hard link`},
		{name: "absolute hard link to this machine", layer: tarOf(t, hardlink("l", "/etc/shadow")), says: "not in the image"},
		{name: "hard link to nothing", layer: tarOf(t, hardlink("l", "missing")), says: "not in the image"},
		{name: "hard link to itself", layer: tarOf(t, hardlink("l", "l")), says: "not in the image"},
		{name: "hard link cycle", layer: tarOf(t, hardlink("a", "b"), hardlink("b", "c"), hardlink("c", "a")), says: "not in the image"},
		{name: "hard link to a directory", layer: tarOf(t, dir("d"), hardlink("l", "d")), says: "to a directory"},
		{name: "hard link to a later directory", layer: tarOf(t, hardlink("l", "d"), dir("d")), says: "to a directory"},
		{name: "hard link to the root", layer: tarOf(t, hardlink("l", "/")), says: "invalid name"},
		{name: "hard link below a file", layer: tarOf(t, file("f", ""), hardlink("l", "f/x")), says: "not in the image"},
		{name: "file below a file", layer: tarOf(t, file("f", ""), file("f/x", "")), says: "not a directory"},
		{name: "file below a waiting hard link", layer: tarOf(t, hardlink("l", "d"), file("l/x", ""), dir("d")), says: "not a directory"},
		{name: "symbolic link loop as parent", layer: tarOf(t, symlink("a", "b"), symlink("b", "a"), file("a/x", "")), says: "too many"},
		{name: "symbolic link through itself", layer: tarOf(t, symlink("a", "a/a"), file("a/x", "")), says: "too many"},
		{name: "empty symbolic link", layer: tarOf(t, symlink("a", "")), says: "invalid target"},
		{name: "long symbolic link", layer: tarOf(t, symlink("a", strings.Repeat("x", 4096))), says: "invalid target"},
		{name: "whiteout of the parent", layer: tarOf(t, file("a/.wh...", "")), says: "whiteout"},
		{name: "whiteout of the directory", layer: tarOf(t, file("a/.wh..", "")), says: "whiteout"},
		{name: "whiteout of nothing", layer: tarOf(t, file("a/.wh.", "")), says: "whiteout"},
		{name: "whiteout as a directory", layer: tarOf(t, file("a/.wh.b/c", "")), says: "whiteout"},
		{name: "root as a file", layer: tarOf(t, file("./.", "x")), says: "root"},
		{name: "root as a link", layer: tarOf(t, symlink("/", "/etc")), says: "root"},
		{name: "long name", layer: tarOf(t, file(strings.Repeat("n", 256), "")), says: "256 bytes"},
		{name: "long path", layer: tarOf(t, file(strings.Repeat("abcdefg/", 520)+"f", "")), says: "4096"},
		{name: "long name behind a link", layer: tarOf(t, symlink("l", strings.Repeat("n", 300)), file("l/x", "")), says: "unusable target"},
		{name: "deep path", layer: tarOf(t, file(deep+"f", "")), says: "directories"},
		{
			name: "deep by links", limits: Limits{Depth: 50}, lower: []member{dir(strings.Repeat("d/", 40)), symlink("l", strings.Repeat("d/", 40))},
			layer: tarOf(t, file("l/"+strings.Repeat("e/", 40)+"f", "")), says: "directories",
		},
		{name: "owner beyond 32 bits", layer: tarOf(t, member{name: "f", hdr: func(h *tar.Header) { h.Uid = 1 << 32 }}), says: "owner"},
		{name: "owner -1", layer: tarOf(t, member{name: "f", hdr: func(h *tar.Header) { h.Gid = 1<<32 - 1 }}), says: "owner"},
		{name: "unknown type", layer: tarOf(t, member{name: "f", typ: 'Q'}), says: "type"},

		{name: "too many files", limits: small, layer: tarOf(t, slices.Repeat([]member{file("f", "")}, 21)...), code: sandbox.CodeExhausted, says: "20 files"},
		{name: "large file", limits: small, layer: tarOf(t, file("f", strings.Repeat("x", 1001))), code: sandbox.CodeExhausted, says: "1001 bytes"},
		{name: "large sum", limits: small, layer: tarOf(t, slices.Repeat([]member{file("f", strings.Repeat("x", 900))}, 4)...), code: sandbox.CodeExhausted, says: "3000 bytes"},
		{name: "2^63 size", layer: rawHeader(t, "", func(h []byte) { copy(h[124:136], "\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff") }), code: sandbox.CodeExhausted, says: "at most"},
		{name: "2^70 size", layer: rawHeader(t, "", func(h []byte) { copy(h[124:136], "\x80\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff\xff") }), says: "not a usable tar"},
		{name: "negative size", layer: rawHeader(t, "", func(h []byte) { copy(h[124:136], "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe") }), says: "not a usable tar"},
		{name: "broken checksum", layer: append([]byte("junk"), make([]byte, 1020)...), says: "not a usable tar"},
		{name: "cut short", layer: tarOf(t, file("f", strings.Repeat("x", 5000)))[:3000], says: "not a usable tar"},
		{name: "huge extended header", layer: rawHeader(t, strings.Repeat("x", 2<<20), func(h []byte) { h[156] = 'x' }), says: "not a usable tar"},
	} {
		t.Run(c.name, func(t *testing.T) {
			layers := [][]byte{c.layer}
			if c.lower != nil {
				layers = [][]byte{tarOf(t, c.lower...), c.layer}
			}
			_, err := stack(t, c.limits, Options{}, layers...)
			want := c.code
			if want == "" {
				want = sandbox.CodeInvalid
			}
			var e *sandbox.Error
			if !errors.As(err, &e) || e.Code != want {
				t.Fatalf("got %v, want an error with code %s", err, want)
			}
			if !strings.Contains(err.Error(), c.says) || e.Subject != fmt.Sprintf("layer %d", len(layers)) {
				t.Errorf("%q names not the layer, or says not %q", err, c.says)
			}
		})
	}
}

func TestNamesAreQuotedInErrors(t *testing.T) {
	_, err := stack(t, Limits{}, Options{}, tarOf(t, file("../\x1b[2J\n"+strings.Repeat("x", 5000), "")))
	if err == nil || strings.ContainsAny(err.Error(), "\x1b\n") || len(err.Error()) > 400 {
		t.Errorf("%q", err)
	}
}

// TestSparseBomb gives a file of 2^40 bytes that is all hole.
func TestSparseBomb(t *testing.T) {
	const size = 1 << 40
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	sparseMap := fmt.Sprintf("1\n%d\n0\n", size)
	body := sparseMap + strings.Repeat("\x00", 512-len(sparseMap))
	// The writer refuses sparse records, so they are written as another key
	// of the same length and patched.
	if err := w.WriteHeader(&tar.Header{Format: tar.FormatPAX, Typeflag: tar.TypeReg, Name: "bomb", Size: int64(len(body)), Mode: 0o644, PAXRecords: map[string]string{
		"XXX.sparse.major": "1", "XXX.sparse.minor": "0", "XXX.sparse.name": "bomb", "XXX.sparse.realsize": fmt.Sprint(size),
	}}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, body); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := stack(t, Limits{}, Options{}, bytes.ReplaceAll(buf.Bytes(), []byte("XXX."), []byte("GNU.")))
	if sandbox.CodeOf(err) != sandbox.CodeExhausted {
		t.Errorf("got %v, want an exhausted limit", err)
	}
}

func TestCancellation(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f, err := os.Create(filepath.Join(t.TempDir(), "x"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = New(mkfs.NewWriter(f), Limits{}).Apply(ctx, bytes.NewReader(tarOf(t, file("f", ""))), Options{})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestManyEntries puts 200,000 files in one directory.
func TestManyEntries(t *testing.T) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for i := range 50_000 {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("d/%d", i), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	img, err := stack(t, Limits{}, Options{}, buf.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fs.Stat(img, "d/49999"); err != nil {
		t.Error(err)
	}
	if _, err := stack(t, Limits{Entries: 49_999}, Options{}, buf.Bytes()); sandbox.CodeOf(err) != sandbox.CodeExhausted {
		t.Errorf("got %v", err)
	}
}
