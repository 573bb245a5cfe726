package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/image/mkfs"
	"github.com/atoll-run/atoll/sandbox"
)

// tarMembers writes a tar of headers; a regular file's content is in Linkname.
func tarMembers(t testing.TB, members ...tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range members {
		var data string
		if h.Typeflag == 0 || h.Typeflag == tar.TypeReg {
			h.Typeflag, data, h.Linkname, h.Size = tar.TypeReg, h.Linkname, "", int64(len(h.Linkname))
		}
		if h.ModTime.IsZero() {
			h.ModTime = time.Unix(1_600_000_000, 0)
		}
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func reg(name, data string) tar.Header { return tar.Header{Name: name, Linkname: data, Mode: 0o644} }

func folder(name string, mode int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode}
}

func link(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}
}

func symlink(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
}

// describe lists all that is to be seen of an image: types, attributes, content,
// and which names are links to one file.
func describe(t testing.TB, img *Image) string {
	t.Helper()
	tree, done, err := img.tree()
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	first := map[*mkfs.Node]string{}
	var lines []string
	var walk func(name string, n *mkfs.Node)
	walk = func(name string, n *mkfs.Node) {
		said := fmt.Sprintf("%s %o %d:%d %d.%d %s", name, n.Mode, n.UID, n.GID, n.MTime, n.MTimeNsec, n.Target)
		if n.Size > 0 {
			in, err := tree.Open(n)
			if err != nil {
				t.Fatal(err)
			}
			sum := sha256.New()
			size, err := io.Copy(sum, in)
			if err != nil || size != n.Size {
				t.Fatalf("%s: %d bytes of %d, %v", name, size, n.Size, err)
			}
			said += fmt.Sprintf(" %d %.8x", size, sum.Sum(nil))
		}
		if to := first[n]; to != "" {
			said += " = " + to
		} else {
			first[n] = name
		}
		lines = append(lines, said)
		for _, base := range slices.Sorted(maps.Keys(n.Children)) {
			walk(path.Join(name, base), n.Children[base])
		}
	}
	walk("/", tree.Root)
	return strings.Join(lines, "\n")
}

// storeWith returns a store with the image base:1 and a limit of layers.
func storeWith(t testing.TB, base []byte, most int) *Store {
	t.Helper()
	s := open(t, Options{MaxLayers: most})
	importBase(t, s, base)
	return s
}

func importBase(t testing.TB, s *Store, base []byte) {
	t.Helper()
	if _, err := s.Import(t.Context(), "tar:"+writeFile(t, filepath.Join(t.TempDir(), "base.tar"), base), "base:1", GetOptions{}); err != nil {
		t.Fatal(err)
	}
}

// storesOf are stores that allow from one layer to some.
func storesOf(t testing.TB) map[int]*Store {
	return map[int]*Store{1: open(t, Options{MaxLayers: 1}), 3: open(t, Options{MaxLayers: 3}), 8: open(t, Options{})}
}

// compareLayers derives images step by step, and compares layered images with
// images of one file.
func compareLayers(t *testing.T, stores map[int]*Store, base []byte, steps ...[]byte) {
	t.Helper()
	want := map[int]string{}
	for _, most := range slices.Sorted(maps.Keys(stores)) {
		s := stores[most]
		importBase(t, s, base)
		img := mustGet(t, s, "base:1", GetOptions{})
		for i, step := range steps {
			var err error
			if img, err = s.Derive(t.Context(), "template/x", img, []Layer{layerFrom(step)}, Config{}); err != nil {
				t.Fatalf("step %d, at most %d layers: %v", i+1, most, err)
			}
			if n := len(img.Layers); n > most || i+2 <= most && n != i+2 {
				t.Errorf("step %d: %d layers, at most %d", i+1, n, most)
			}
			got := describe(t, img)
			if most == 1 {
				want[i] = got
			} else if got != want[i] {
				t.Errorf("step %d, %d layers: got\n%s\nwant\n%s", i+1, len(img.Layers), got, want[i])
			}
		}
	}
}

// TestLayersLookFlat checks that a layered image has the same files as the same
// image in one file.
func TestLayersLookFlat(t *testing.T) {
	stores := storesOf(t)
	base := tarMembers(t,
		folder("./", 0o755), folder("d/", 0o755), reg("d/one", "1"), reg("d/two", "2"), folder("d/sub/", 0o700), reg("d/sub/three", "3"),
		reg("a", "shared"), link("b", "a"), link("d/c", "a"), symlink("l", "d"), symlink("abs", "/d/sub"), reg("empty", ""),
		tar.Header{Typeflag: tar.TypeFifo, Name: "fifo", Mode: 0o600}, reg("big", strings.Repeat("big", 100_000)), reg(".wh.literal", "kept"),
	)
	for _, c := range []struct {
		name  string
		steps [][]tar.Header
	}{
		{"a new file", [][]tar.Header{{reg("new", "n")}}},
		{"a changed file", [][]tar.Header{{reg("d/one", "other")}}},
		{"a removed file", [][]tar.Header{{reg("d/.wh.one", "")}}},
		{"a removed directory", [][]tar.Header{{reg(".wh.d", "")}}},
		{"a removed file that comes back", [][]tar.Header{{reg("d/.wh.one", "")}, {reg("d/one", "back")}}},
		{"a removed directory that comes back", [][]tar.Header{{reg(".wh.d", "")}, {folder("d/", 0o711), reg("d/new", "x")}, {reg("d/two", "y")}}},
		{"an opaque directory", [][]tar.Header{{folder("d/", 0o755), reg("d/.wh..wh..opq", ""), reg("d/new", "x")}}},
		{"an opaque directory below a changed one", [][]tar.Header{{folder("d/", 0o750), folder("d/sub/", 0o755), reg("d/sub/.wh..wh..opq", "")}, {reg("d/sub/late", "x")}}},
		{"an empty opaque directory", [][]tar.Header{{reg("d/.wh..wh..opq", "")}}},
		{"a mode of a directory", [][]tar.Header{{folder("d/", 0o1777)}, {folder("d/sub/", 0o2755)}}},
		{"an owner of a directory", [][]tar.Header{{{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o755, Uid: 7, Gid: 8}}}},
		{"a time of a directory", [][]tar.Header{{{Typeflag: tar.TypeDir, Name: "d/sub/", Mode: 0o700, ModTime: time.Unix(5, 6)}}}},
		{"attributes of the root", [][]tar.Header{{folder("./", 0o700)}, {reg("x", "1")}}},
		{"a mode of a file", [][]tar.Header{{{Name: "d/one", Linkname: "1", Mode: 0o4755, Uid: 1000, Gid: 1000}}}},
		{"a file becomes a directory", [][]tar.Header{{folder("a/", 0o755), reg("a/in", "x")}, {reg("a/in2", "y")}}},
		{"a directory becomes a file", [][]tar.Header{{reg("d", "file")}, {folder("d/", 0o700), reg("d/one", "third")}}},
		{"a directory becomes a link", [][]tar.Header{{reg("d/sub/.wh.three", "")}, {symlink("d/sub", "/")}, {reg("d/sub/out", "x")}}},
		{"a link becomes a directory", [][]tar.Header{{folder("l/", 0o755), reg("l/in", "x")}}},
		{"below a link", [][]tar.Header{{reg("l/through", "x")}, {reg("abs/.wh.three", "")}, {reg("abs/more", "y")}}},
		{"a hard link to a lower file", [][]tar.Header{{link("e", "big")}, {link("f", "e")}, {reg(".wh.big", "")}}},
		{"one of several links removed", [][]tar.Header{{reg(".wh.b", "")}, {reg("d/.wh.c", "")}}},
		{"one of several links changed", [][]tar.Header{{reg("b", "own")}, {link("b", "a")}}},
		{"links in one layer", [][]tar.Header{{reg("x", "x"), link("y", "x")}, {reg(".wh.x", "")}, {reg("y", "z")}}},
		{"a link to what the same layer removes", [][]tar.Header{{link("kept", "big"), reg(".wh.big", "")}}},
		{"a FIFO", [][]tar.Header{{{Typeflag: tar.TypeFifo, Name: "d/fifo", Mode: 0o644}}, {reg(".wh.fifo", "")}}},
		{"devices", [][]tar.Header{{{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}, {Typeflag: tar.TypeChar, Name: "a"}}, {reg("d/x", "x")}}},
		{"extended attributes", [][]tar.Header{{{Name: "d/one", Linkname: "1", Mode: 0o644, PAXRecords: map[string]string{"SCHILY.xattr.user.x": "y", "SCHILY.xattr.trusted.overlay.opaque": "y"}}}}},
		{"whiteouts of nothing", [][]tar.Header{{reg(".wh.none", ""), reg("none/.wh.none", "")}, {reg("new/.wh.x", "")}}},
		{"nothing at all", [][]tar.Header{{}, {}}},
		{"empty files", [][]tar.Header{{reg("empty", "full")}, {reg("empty", "")}, {link("empty2", "empty")}}},
		{"more steps than layers", [][]tar.Header{
			{reg("s1", "1")},
			{reg("s2", "2")},
			{reg(".wh.s1", "")},
			{reg("s4", "4")},
			{reg("d/.wh..wh..opq", "")},
			{reg("d/s6", "6")},
			{reg("s1", "again")},
			{link("s8", "big")},
			{reg("s2", strings.Repeat("long", 5000))},
			{reg(".wh.d", "")},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var steps [][]byte
			for _, s := range c.steps {
				steps = append(steps, tarMembers(t, s...))
			}
			compareLayers(t, stores, base, steps...)
		})
	}
}

// TestRandomLayersLookFlat does the same with random layers.
func TestRandomLayersLookFlat(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	dirs := []string{"", "p/", "p/q/", "p/q/r/", "s/"}
	name := func() string { return dirs[r.IntN(len(dirs))] + string(rune('a'+r.IntN(4))) }
	random := func(n int, whole bool) []byte {
		made := map[string]bool{}
		var members []tar.Header
		for range n {
			h := tar.Header{Name: name(), Mode: int64(r.IntN(0o10000)), Uid: r.IntN(3), ModTime: time.Unix(int64(r.IntN(3)), 0)}
			if made[h.Name] {
				continue
			}
			switch k := r.IntN(10); {
			case k < 4:
				h.Linkname = strings.Repeat(string(rune('A'+r.IntN(26))), r.IntN(3)*r.IntN(3000))
				made[h.Name] = true
			case k == 4 && len(made) > 0:
				to := slices.Sorted(maps.Keys(made))
				h.Typeflag, h.Linkname = tar.TypeLink, to[r.IntN(len(to))]
			case k == 5:
				h.Typeflag, h.Linkname = tar.TypeSymlink, "x"+name()
			case k == 6:
				h = folder(dirs[1+r.IntN(len(dirs)-1)], int64(r.IntN(0o10000)))
			case whole:
				continue
			case k == 7:
				dir, base := path.Split(h.Name)
				h = reg(dir+".wh."+base, "")
			case k == 8:
				h = reg(strings.TrimSuffix(dirs[r.IntN(len(dirs))], "/")+"/.wh."+[]string{"p", "s", "q", ".wh..opq"}[r.IntN(4)], "")
			default:
				continue
			}
			members = append(members, h)
		}
		return tarMembers(t, members...)
	}
	stores := storesOf(t)
	for range 5 {
		steps := make([][]byte, 1+r.IntN(9))
		for i := range steps {
			steps[i] = random(1+r.IntN(12), false)
		}
		compareLayers(t, stores, random(30, true), steps...)
		if t.Failed() {
			return
		}
	}
}

// rootfsFiles returns the layers that are on disk, and their bytes.
func rootfsFiles(t testing.TB, s *Store) (names []string, size int64) {
	t.Helper()
	entries, err := os.ReadDir(s.path("rootfs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		names, size = append(names, e.Name()), size+fi.Size()
	}
	return names, size
}

// TestLayersAreShared checks what a small change of a large image takes, and that
// the files of the base stay as long as an image needs them, and no longer.
func TestLayersAreShared(t *testing.T) {
	s := storeWith(t, tarMembers(t, reg("big", strings.Repeat("x", 5<<20)), reg("small", "s")), 8)
	base := mustGet(t, s, "base:1", GetOptions{})
	_, before := rootfsFiles(t, s)
	first, err := s.Derive(t.Context(), "template/first", base, []Layer{layerFrom(tarMembers(t, reg("touched", "")))}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.Derive(t.Context(), "template/second", first, []Layer{layerFrom(tarMembers(t, reg("small", "changed")))}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, after := rootfsFiles(t, s)
	if added := after - before; added > 32<<10 {
		t.Errorf("two small changes take %d bytes", added)
	}
	if second.Size != after || first.Size >= second.Size || base.Size != before {
		t.Errorf("sizes %d, %d, %d, on disk %d", base.Size, first.Size, second.Size, after)
	}
	all, err := s.List(t.Context())
	if err != nil || len(all) != 3 {
		t.Fatalf("%v, %v", all, err)
	}
	for _, img := range all {
		if top := img.Digest == second.Digest; top != (img.Unique > 0) || top && img.Unique > 16<<10 {
			t.Errorf("%s alone has %d bytes of %d", img.Ref, img.Unique, img.Size)
		}
	}
	// The names go, but not the files that the second image needs.
	for _, img := range []*Image{first, base} {
		if err := s.Remove(t.Context(), img.Digest); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Get(t.Context(), base.Digest, GetOptions{}); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("the base is still an image: %v", err)
	}
	report, err := s.Prune(t.Context(), PruneOptions{})
	if err != nil || report.Bytes != 0 {
		t.Errorf("pruned %+v, %v", report, err)
	}
	if got := files(t, second); got["small"] != "changed" || len(got["big"]) != 5<<20 {
		t.Errorf("the second image has %d files", len(got))
	}
	dry, err := s.Prune(t.Context(), PruneOptions{All: true, DryRun: true})
	if err != nil || dry.Bytes < after {
		t.Errorf("a dry run says %+v, %v", dry, err)
	}
	report, err = s.Prune(t.Context(), PruneOptions{All: true})
	if names, _ := rootfsFiles(t, s); err != nil || len(names) != 0 || report.Bytes != dry.Bytes {
		t.Errorf("%v stay after %+v, %v; the dry run said %d bytes", names, report, err, dry.Bytes)
	}
}

// TestLayersInUse holds a derived image: neither it nor its base can go.
func TestLayersInUse(t *testing.T) {
	s := storeWith(t, tarMembers(t, reg("a", "1")), 8)
	base := mustGet(t, s, "base:1", GetOptions{})
	img, err := s.Derive(t.Context(), "template/x", base, []Layer{layerFrom(tarMembers(t, reg("b", "2")))}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	held, err := img.OpenLayers()
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, s.Remove(t.Context(), img.Digest), sandbox.CodeConflict, "in use")
	wantCode(t, s.Remove(t.Context(), base.Digest), sandbox.CodeConflict, "in use")
	closeFiles(held)
	if err := s.Remove(t.Context(), img.Digest); err != nil {
		t.Fatal(err)
	}
	wantFiles(t, mustGet(t, s, "base:1", GetOptions{}), map[string]string{"a": "1"})
	s.KeepFlat()
	if one, err := s.Derive(t.Context(), "template/flat", base, []Layer{layerFrom(tarMembers(t, reg("b", "2")))}, Config{}); err != nil || len(one.Layers) != 1 || one.Digest == img.Digest {
		t.Errorf("not flat: %+v, %v", one, err)
	}
	s.flat.Store(false)
	// A layer that is missing makes the image missing, and not a part of it.
	if img, err = s.Derive(t.Context(), "template/x", base, []Layer{layerFrom(tarMembers(t, reg("b", "2")))}, Config{}); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(s.rootfsPath(base.Layers[0])); err != nil {
		t.Fatal(err)
	}
	if found, err := s.Derived("template/x"); found != nil || err != nil {
		t.Errorf("found %v, %v", found, err)
	}
	if _, err := img.OpenLayers(); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("opened: %v", err)
	}
}

// TestLayersHaveRecordsOfTheirOwn: a program that knows no layers must not take
// the upper one for the image.
func TestLayersHaveRecordsOfTheirOwn(t *testing.T) {
	s := storeWith(t, tarMembers(t, reg("a", "1")), 8)
	base := mustGet(t, s, "base:1", GetOptions{})
	img, err := s.Derive(t.Context(), "template/x", base, []Layer{layerFrom(tarMembers(t, reg("b", "2")))}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		img     *Image
		version int
	}{{base, recordVersion}, {img, layeredVersion}} {
		if rec, err := s.readImage(c.img.Digest); err != nil || rec.Version != c.version {
			t.Errorf("%s: %+v, %v, want version %d", c.img.Ref, rec, err, c.version)
		}
	}
}

// TestMerged checks which layers become one.
func TestMerged(t *testing.T) {
	const big = 1 << 30
	for _, c := range []struct {
		sizes []int64 // from the upper one down
		most  int
		want  int
	}{
		{[]int64{big}, 8, 0},
		{[]int64{1, big}, 3, 0},
		{[]int64{1, 1, big}, 3, 2},
		{[]int64{1, 1, 1000, big}, 4, 2},
		{[]int64{1000, 1, 1, big}, 4, 3},
		{[]int64{big}, 1, 1},
		{[]int64{1, 1, 1, 1, 1, big}, 2, 5},
	} {
		if got := merged(c.sizes, c.most); got != c.want {
			t.Errorf("%v, at most %d: %d, want %d", c.sizes, c.most, got, c.want)
		}
	}
}
