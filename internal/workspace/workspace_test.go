package workspace_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/blob/blobtest"
	"github.com/atoll-run/atoll/internal/workspace"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) {
	if os.Getenv("WORKSPACE_TEST_STEP") != "" {
		dieAtStep()
	}
	os.Exit(blobtest.Main(m))
}

var testKey = bytes.Repeat([]byte{7}, 32)

// fixture is a workspace and a directory.
type fixture struct {
	*testing.T
	store  string // the directory of blobs, if it is one
	blobs  blob.Store
	w      *workspace.Workspace
	dir    string
	cache  string
	base   int
	limits workspace.Limits
}

func newFixture(t *testing.T, key []byte) *fixture {
	t.Helper()
	store := t.TempDir()
	blobs, err := blob.OpenDir(store)
	if err != nil {
		t.Fatal(err)
	}
	f := fixtureOn(t, blobs, key)
	f.store = store
	return f
}

func fixtureOn(t *testing.T, blobs blob.Store, key []byte) *fixture {
	t.Helper()
	w, err := workspace.Create(t.Context(), blobs, workspace.CreateOptions{ID: "w1", Key: key})
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{T: t, blobs: blobs, w: w, dir: t.TempDir(), cache: filepath.Join(t.TempDir(), "cache")}
}

func root(t testing.TB, dir string) *os.Root {
	t.Helper()
	r, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func (f *fixture) write(name, content string) {
	f.Helper()
	p := filepath.Join(f.dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		f.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) tryPersist() (workspace.Version, error) {
	return f.w.Persist(f.Context(), root(f, f.dir), workspace.PersistOptions{Base: f.base, Cache: f.cache, Limits: f.limits})
}

func (f *fixture) persist() workspace.Version {
	f.Helper()
	v, err := f.tryPersist()
	if err != nil {
		f.Fatalf("persist: %v (%v)", err, errors.Unwrap(err))
	}
	f.base = v.Number
	return v
}

func (f *fixture) restore(number int) string {
	f.Helper()
	dir := f.TempDir()
	if _, err := f.w.Restore(f.Context(), number, root(f, dir)); err != nil {
		f.Fatalf("restore: %v (%v)", err, errors.Unwrap(err))
	}
	return dir
}

// describe says everything about a tree that a workspace keeps, a line for each
// file.
func describe(t testing.TB, dir string) []string {
	t.Helper()
	var lines []string
	inodes := map[uint64]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		line := fmt.Sprintf("%q %o %d:%d %d.%09d", rel, st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			content, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %x", content)
			if len(content) > 64 {
				line = fmt.Sprintf("%s %d bytes, hash %x", line[:len(line)-2*len(content)], len(content), maphash(content))
			}
			if first, ok := inodes[st.Ino]; ok {
				line += " is " + first
			}
			inodes[st.Ino] = rel
		case unix.S_IFLNK:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			line += " → " + target
		case unix.S_IFSOCK:
			return nil
		}
		buf := make([]byte, 4096)
		if n, err := unix.Llistxattr(p, buf); err == nil && st.Mode&unix.S_IFMT != unix.S_IFLNK {
			for name := range strings.SplitSeq(strings.TrimRight(string(buf[:n]), "\x00"), "\x00") {
				if strings.HasPrefix(name, "user.") {
					value := make([]byte, 4096)
					n, _ := unix.Lgetxattr(p, name, value)
					line += fmt.Sprintf(" %s=%q", name, value[:n])
				}
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

func maphash(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

func equalTrees(t testing.TB, want, got string) {
	t.Helper()
	a, b := describe(t, want), describe(t, got)
	if slices.Equal(a, b) {
		return
	}
	for _, l := range a {
		if !slices.Contains(b, l) {
			t.Errorf("missing: %.300s", l)
		}
	}
	for _, l := range b {
		if !slices.Contains(a, l) {
			t.Errorf("instead: %.300s", l)
		}
	}
}

// odd fills a directory with everything that a tree can hold.
func (f *fixture) odd() {
	f.Helper()
	must := func(err error) {
		f.Helper()
		if err != nil {
			f.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(f.dir, name) }
	f.write("plain", "hello")
	f.write("empty", "")
	f.write("sub/dir/deep", strings.Repeat("x", 100_000))
	large := make([]byte, 9<<20)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(large)
	f.write("large", string(large))
	f.write("edge", string(large[:1<<20]))
	f.write("edge+1", string(large[:1<<20+1]))
	f.write("bad utf8 \xff\xfe\n\t\"", "any bytes")
	f.write("-rf", "looks like an option")
	f.write(strings.Repeat("n", 255), "the longest name")
	must(os.Chmod(at("plain"), 0o4751|os.ModeSetuid))
	must(os.Symlink("/etc/passwd", at("link out")))
	must(os.Symlink("plain", at("link")))
	must(os.Symlink("nowhere/../..", at("broken")))
	must(os.Link(at("large"), at("sub/again")))
	must(os.Link(at("large"), at("a first name")))
	must(unix.Mkfifo(at("fifo"), 0o640))
	must(os.Mkdir(at("sticky"), 0o755))
	must(os.Chmod(at("sticky"), 0o777|os.ModeSticky))
	must(os.Mkdir(at("closed"), 0o755))
	f.write("closed/inside", "x")
	must(unix.Setxattr(at("plain"), "user.colour", []byte("green\x00\xff"), 0))
	must(unix.Setxattr(at("sub"), "user.dir", []byte("yes"), 0))
	sparse, err := os.Create(at("sparse"))
	must(err)
	must(sparse.Truncate(1 << 33))
	_, err = sparse.WriteAt([]byte("middle"), 1<<32+12345)
	must(err)
	must(sparse.Close())
	hole, err := os.Create(at("hole"))
	must(err)
	must(hole.Truncate(1 << 40))
	must(hole.Close())
	if os.Geteuid() == 0 {
		must(os.Lchown(at("link"), 12, 34))
		must(os.Chown(at("sub/dir"), 1234, 4321))
		must(os.Chmod(at("closed"), 0))
	}
	must(os.Chtimes(at("plain"), time.Unix(1, 2), time.Unix(-1_000_000_000, 123456789)))
}

func TestRoundTrip(t *testing.T) {
	for name, key := range map[string][]byte{"plain": nil, "encrypted": testKey} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, key)
			f.odd()
			if err := os.Remove(filepath.Join(f.dir, "hole")); err != nil { // too large to read
				t.Fatal(err)
			}
			if err := os.Truncate(filepath.Join(f.dir, "sparse"), 4<<20); err != nil {
				t.Fatal(err)
			}
			v := f.persist()
			got := f.restore(0)
			equalTrees(t, f.dir, got)
			if v.Number != 1 || v.Dirs == 0 || v.Files == 0 || v.Bytes < 9<<20 {
				t.Errorf("%+v", v)
			}
			if again := f.persist(); again.Number != 1 {
				t.Errorf("nothing changed, and there is version %d", again.Number)
			}
			if _, err := f.w.Verify(t.Context(), true); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestHolesCostNothing(t *testing.T) {
	f := newFixture(t, nil)
	f.odd()
	v := f.persist()
	if v.Bytes > 64<<20 {
		t.Errorf("%d bytes were stored", v.Bytes)
	}
	got := f.restore(0)
	for name, size := range map[string]int64{"hole": 1 << 40, "sparse": 1 << 33} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(got, name), &st); err != nil {
			t.Fatal(err)
		}
		if st.Size != size || st.Blocks*512 > 1<<20 {
			t.Errorf("%s has %d bytes in %d blocks", name, st.Size, st.Blocks)
		}
	}
	sparse, err := os.Open(filepath.Join(got, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sparse.Close() }()
	middle := make([]byte, 6)
	if _, err := sparse.ReadAt(middle, 1<<32+12345); err != nil || string(middle) != "middle" {
		t.Errorf("in the middle there is %q: %v", middle, err)
	}
}

func TestOnlyWhatChangedMoves(t *testing.T) {
	f := newFixture(t, nil)
	random := rand.NewChaCha8([32]byte{2})
	large := make([]byte, 20<<20)
	_, _ = random.Read(large)
	f.write("large", string(large))
	for i := range 300 {
		f.write(fmt.Sprintf("d%d/f%d", i%7, i), fmt.Sprintf("content %d", i))
	}
	first := f.persist()
	if first.Added < 20<<20 {
		t.Fatalf("the first version added %d bytes", first.Added)
	}
	f.write("d1/f1", "another content")
	f.write("large", string(large[:3<<20])+"inserted"+string(large[3<<20:]))
	second := f.persist()
	if second.Added > 6<<20 {
		t.Errorf("an insertion moved %d bytes of %d", second.Added, len(large))
	}
	equalTrees(t, f.dir, f.restore(second.Number))
	f.write("copy", string(large))
	if third := f.persist(); third.Added > 1<<20 {
		t.Errorf("a copy of what is known moved %d bytes", third.Added)
	}
}

// Without changing anything else, a file that changes right after it was read
// must be noticed.
func TestChangeWithinTheClocksResolution(t *testing.T) {
	f := newFixture(t, nil)
	for i := range 50 {
		f.write("f", fmt.Sprintf("%03d", i))
		f.persist()
		got, err := os.ReadFile(filepath.Join(f.restore(0), "f"))
		if err != nil || string(got) != fmt.Sprintf("%03d", i) {
			t.Fatalf("version %d holds %q: %v", i, got, err)
		}
	}
}

func TestHistory(t *testing.T) {
	f := newFixture(t, testKey)
	f.write("keep", "same")
	f.write("gone", "1")
	f.write("dir/gone too", "1")
	f.write("edit", "old")
	first := f.persist()
	old := f.TempDir()
	if err := os.CopyFS(old, os.DirFS(f.dir)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gone", "dir"} {
		if err := os.RemoveAll(filepath.Join(f.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	f.write("edit", "new")
	f.write("new/file", "x")
	if err := os.Chmod(filepath.Join(f.dir, "keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	second := f.persist()
	changes, more, err := f.w.Diff(t.Context(), first.Number, 0)
	if err != nil || more {
		t.Fatal(more, err)
	}
	var got []string
	for _, c := range changes {
		got = append(got, c.Kind+" "+c.Path)
	}
	want := []string{"removed dir", "removed dir/gone too", "modified edit", "removed gone", "touched keep", "added new", "added new/file"}
	if !slices.Equal(got, want) {
		t.Errorf("changes: %q, want %q", got, want)
	}
	if changes, _, err := f.w.Diff(t.Context(), 0, first.Number); err != nil || len(changes) != 5 {
		t.Errorf("from nothing: %v, %v", changes, err)
	}
	back, err := f.w.Revert(t.Context(), first.Number, "as it was")
	if err != nil {
		t.Fatal(err)
	}
	if changes, _, err := f.w.Diff(t.Context(), first.Number, back.Number); err != nil || len(changes) != 0 {
		t.Errorf("reverted: %v, %v", changes, err)
	}
	if got, err := os.ReadFile(filepath.Join(f.restore(0), "dir/gone too")); err != nil || string(got) != "1" {
		t.Errorf("reverted: %q, %v", got, err)
	}
	equalTrees(t, f.dir, f.restore(second.Number))
	history, err := f.w.History(t.Context())
	if err != nil || len(history) != 3 || history[2].Note != "as it was" {
		t.Errorf("%+v, %v", history, err)
	}
	if _, err := f.w.Restore(t.Context(), 99, root(t, t.TempDir())); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("version 99: %v", err)
	}
	if _, err := f.tryPersist(); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("persisting over the reverted version: %v", err)
	}
}

func TestOneOfManyWritersWins(t *testing.T) {
	f := newFixture(t, nil)
	for round := range 5 {
		var all sync.WaitGroup
		var mu sync.Mutex
		var won []workspace.Version
		for i := range 6 {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "who"), fmt.Appendf(nil, "%d of %d", i, round), 0o600); err != nil {
				t.Fatal(err)
			}
			// Each has its own view, like another daemon.
			w, err := workspace.Open(t.Context(), f.blobs, nil)
			if err != nil {
				t.Fatal(err)
			}
			r := root(t, dir)
			all.Go(func() {
				v, err := w.Persist(context.Background(), r, workspace.PersistOptions{Base: f.base, Note: fmt.Sprintf("%d of %d", i, round)})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					won = append(won, v)
				case sandbox.CodeOf(err) != sandbox.CodeConflict:
					t.Errorf("a loser got %v", err)
				}
			})
		}
		all.Wait()
		if len(won) != 1 {
			t.Fatalf("%d writers won", len(won))
		}
		f.base = won[0].Number
		got, err := os.ReadFile(filepath.Join(f.restore(0), "who"))
		if err != nil || string(got) != won[0].Note {
			t.Errorf("the winner was %q, and %q was kept: %v", won[0].Note, got, err)
		}
	}
}

// If the blob store loses a part, what does not need it can still be read, and a
// directory that is still there is stored again, completely.
func TestLostPart(t *testing.T) {
	f := newFixture(t, testKey)
	f.write("a", "first")
	one := f.persist()
	f.write("b", "second")
	two := f.persist()
	if err := os.RemoveAll(filepath.Join(f.store, "packs", fmt.Sprintf("%010d", two.Number))); err != nil {
		t.Fatal(err)
	}
	whole := func(want ...int) {
		t.Helper()
		versions, err := f.w.Whole(t.Context())
		var got []int
		for _, v := range versions {
			got = append(got, v.Number)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("the versions %d are whole, want %d: %v", got, want, err)
		}
	}
	var err error
	if f.w, err = workspace.Open(t.Context(), f.blobs, testKey); err != nil {
		t.Fatal(err)
	}
	whole(one.Number)
	f.restore(one.Number)
	if _, err := f.w.Verify(t.Context(), false); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("verifying it: %v", err)
	}
	f.persist()
	whole(one.Number, two.Number)
	if got, want := describe(t, f.restore(two.Number)), describe(t, f.dir); !slices.Equal(got, want) {
		t.Errorf("restored is %q, want %q", got, want)
	}
	if _, err := f.w.Prune(t.Context(), workspace.Keep{}); err != nil { // of the lost part
		t.Error(err)
	}
	if _, err := f.w.Verify(t.Context(), true); err != nil {
		t.Errorf("verifying it after a prune: %v", err)
	}
}

func TestPrune(t *testing.T) {
	f := newFixture(t, nil)
	random := rand.NewChaCha8([32]byte{3})
	noise := func() string {
		b := make([]byte, 1<<20)
		_, _ = random.Read(b)
		return string(b)
	}
	for i := range 12 {
		f.write(fmt.Sprintf("f%d", i%3), noise())
		f.persist()
	}
	size := func() (total int64) {
		for info, err := range f.blobs.List(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			total += info.Size
		}
		return total
	}
	before := size()
	if done, err := f.w.Prune(t.Context(), workspace.Keep{}); err != nil || len(done.Versions) != 0 {
		t.Fatalf("nothing was to be pruned: %+v, %v", done, err)
	}
	done, err := f.w.Prune(t.Context(), workspace.Keep{Last: 2})
	if err != nil || len(done.Versions) != 10 {
		t.Fatalf("%+v, %v", done, err)
	}
	if after := size(); after > 5<<20 || after >= before-8<<20 {
		t.Errorf("of %d bytes %d are left", before, after)
	}
	if _, err := f.w.Verify(t.Context(), true); err != nil {
		t.Error(err)
	}
	equalTrees(t, f.dir, f.restore(0))
	if _, err := f.w.Restore(t.Context(), 3, root(t, t.TempDir())); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("a pruned version: %v", err)
	}
	f.write("after", "x") // a marker of the prune is no conflict
	f.persist()
	if done, err := f.w.Prune(t.Context(), workspace.Keep{Within: time.Hour}); err != nil || len(done.Versions) != 0 {
		t.Errorf("all are young: %+v, %v", done, err)
	}
}

func TestLimits(t *testing.T) {
	f := newFixture(t, nil)
	for i := range 20 {
		f.write(fmt.Sprint(i), strings.Repeat("x", 8192))
	}
	for _, l := range []workspace.Limits{{Files: 10}, {Bytes: 100_000}} {
		f.limits = l
		if _, err := f.tryPersist(); sandbox.CodeOf(err) != sandbox.CodeExhausted {
			t.Errorf("%+v: %v", l, err)
		}
	}
	if history, err := f.w.History(t.Context()); err != nil || len(history) != 0 {
		t.Errorf("%v, %v", history, err)
	}
}

func TestSecretsStayInside(t *testing.T) {
	f := newFixture(t, testKey)
	f.write("canary-name", "canary-content")
	f.persist()
	for info, err := range f.blobs.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		r, err := f.blobs.Get(t.Context(), info.Key, 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		var all bytes.Buffer
		_, err = all.ReadFrom(r)
		_ = r.Close()
		if err != nil || bytes.Contains(all.Bytes(), []byte("canary")) || bytes.Contains(all.Bytes(), testKey) {
			t.Errorf("%s tells a secret: %v", info.Key, err)
		}
	}
	for name, key := range map[string][]byte{"none": nil, "a wrong one": bytes.Repeat([]byte{8}, 32)} {
		if _, err := workspace.Open(t.Context(), f.blobs, key); sandbox.CodeOf(err) != sandbox.CodeDenied {
			t.Errorf("opened with the key %s: %v", name, err)
		}
	}
	plain := newFixture(t, nil)
	if _, err := workspace.Open(t.Context(), plain.blobs, testKey); sandbox.CodeOf(err) != sandbox.CodeDenied {
		t.Errorf("a store that was replaced by one without encryption: %v", err)
	}
}

func TestDelete(t *testing.T) {
	f := newFixture(t, nil)
	f.odd()
	f.persist()
	if err := workspace.Delete(t.Context(), f.blobs); err != nil {
		t.Fatal(err)
	}
	for info := range f.blobs.List(t.Context(), "") {
		t.Errorf("%s is left", info.Key)
	}
	if _, err := workspace.Open(t.Context(), f.blobs, nil); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Error(err)
	}
}

// The whole life of a workspace on a real S3 server.
func TestS3(t *testing.T) {
	bucket, err := blob.Open(t.Context(), blobtest.S3(t))
	if err != nil {
		t.Fatal(err)
	}
	f := fixtureOn(t, blob.Below(bucket, "workspaces/w1"), testKey)
	f.odd()
	if err := os.Remove(filepath.Join(f.dir, "hole")); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(f.dir, "sparse"), 4<<20); err != nil {
		t.Fatal(err)
	}
	f.persist()
	f.write("plain", "changed")
	f.persist()
	// Another machine, with nothing but the bucket and the key.
	elsewhere, err := workspace.Open(t.Context(), f.blobs, testKey)
	if err != nil {
		t.Fatal(err)
	}
	got := t.TempDir()
	if _, err := elsewhere.Restore(t.Context(), 0, root(t, got)); err != nil {
		t.Fatal(err)
	}
	equalTrees(t, f.dir, got)
	if _, err := elsewhere.Prune(t.Context(), workspace.Keep{Last: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.w.Verify(t.Context(), true); err != nil {
		t.Error(err)
	}
	equalTrees(t, f.dir, f.restore(0))
	if _, err := workspace.Create(t.Context(), f.blobs, workspace.CreateOptions{ID: "w1"}); sandbox.CodeOf(err) != sandbox.CodeAlreadyExists {
		t.Errorf("a second one in its place: %v", err)
	}
	if err := workspace.Delete(t.Context(), f.blobs); err != nil {
		t.Error(err)
	}
	for info := range bucket.List(t.Context(), "") {
		t.Errorf("%s is left", info.Key)
	}
}

// Unrelated directories are appended as versions concurrently, and can be
// removed individually.
func TestAppendAndForget(t *testing.T) {
	f := newFixture(t, testKey)
	f.write("f", "one")
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var group sync.WaitGroup
	made := make([]workspace.Version, 6)
	for i := range made {
		group.Go(func() {
			w, err := workspace.Open(context.Background(), f.blobs, testKey)
			if err == nil {
				made[i], err = w.Append(context.Background(), root, fmt.Sprint("writer ", i))
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	numbers := map[int]bool{}
	for _, v := range made {
		numbers[v.Number] = true
		if v.Digest() != made[0].Digest() {
			t.Errorf("equal content has two digests: %s, %s", v.Digest(), made[0].Digest())
		}
	}
	if len(numbers) != len(made) {
		t.Errorf("%d versions of %d", len(numbers), len(made))
	}
	f.write("f", "two")
	last, err := f.w.Append(t.Context(), root, "last")
	if err != nil || last.Digest() == made[0].Digest() {
		t.Fatalf("%v, other content has the same digest", err)
	}
	done, err := f.w.Forget(t.Context(), func(v workspace.Version) bool { return v.Note == "writer 3" })
	if err != nil || len(done.Versions) != len(made) {
		t.Fatalf("%+v %v", done, err)
	}
	if all, err := f.w.History(t.Context()); err != nil || len(all) != 1 || all[0].Number != made[3].Number {
		t.Errorf("%+v %v", all, err)
	}
	if text, err := os.ReadFile(filepath.Join(f.restore(made[3].Number), "f")); err != nil || string(text) != "one" {
		t.Errorf("%q %v", text, err)
	}
	// Nothing may be left, and it continues from there.
	if _, err := f.w.Forget(t.Context(), func(workspace.Version) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if r, err := f.w.Verify(t.Context(), true); err != nil || r.Versions != 0 || r.Chunks != 0 {
		t.Errorf("%+v %v", r, err)
	}
	if again, err := f.w.Append(t.Context(), root, "again"); err != nil || again.Digest() != last.Digest() {
		t.Errorf("%+v %v", again, err)
	}
}
