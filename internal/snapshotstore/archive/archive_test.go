package archive_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/blob/blobtest"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(blobtest.Main(m)) }

var (
	testKey = bytes.Repeat([]byte{7}, 32)
	sealed  = archive.Set{ID: "ar-sealed", Encrypted: true}
	plain   = archive.Set{ID: "ar-plain"}
)

func wantCode(t *testing.T, what string, err error, code sandbox.Code) {
	t.Helper()
	if err == nil || sandbox.CodeOf(err) != code {
		t.Errorf("%s: %v, want %s", what, err, code)
	}
}

// snapshot writes files like a real snapshot's: pages, of which some differ
// between snapshots, and files.
func snapshot(t testing.TB, seed, pages int) string {
	t.Helper()
	dir := t.TempDir()
	memory := make([]byte, pages*4096)
	common := rand.NewChaCha8([32]byte{1})
	for p := 0; p < pages; p += 2 { // every other page is empty, as much memory is
		_, _ = common.Read(memory[p*4096:][:2048])
	}
	own := rand.NewChaCha8([32]byte{2, byte(seed)})
	for p := pages / 2; p < pages/2+pages/50; p++ {
		_, _ = own.Read(memory[p*4096:][:4096])
	}
	if err := os.WriteFile(filepath.Join(dir, "pages"), memory, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "files.tar"), []byte(fmt.Sprint("files of ", seed)), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func same(t *testing.T, got, want string) {
	t.Helper()
	for _, name := range []string{"pages", "files.tar"} {
		a, errA := os.ReadFile(filepath.Join(got, name))
		b, errB := os.ReadFile(filepath.Join(want, name))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s is another: %v %v", name, errA, errB)
		}
	}
}

func stores(t *testing.T) map[string]blob.Store {
	dir, err := blob.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	bucket, err := blob.Open(t.Context(), blobtest.S3(t))
	if err != nil {
		t.Fatal(err)
	}
	return map[string]blob.Store{"directory": dir, "S3": bucket}
}

func size(t testing.TB, blobs blob.Store) (total int64) {
	t.Helper()
	for info, err := range blobs.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size
	}
	return total
}

// Snapshots of one sandbox share what they have in common; each comes back as it
// was, also in another process; and what goes leaves nothing.
func TestSaveLoadSweep(t *testing.T) {
	for name, blobs := range stores(t) {
		for _, set := range []archive.Set{sealed, plain} {
			t.Run(name+" "+set.ID, func(t *testing.T) {
				a := archive.New(blobs, testKey)
				if all, err := a.List(t.Context(), set); err != nil || len(all) != 0 {
					t.Errorf("%v %v", all, err)
				}
				if err := a.Sweep(t.Context(), set, nil); err != nil {
					t.Errorf("sweeping what was never made: %v", err)
				}
				var dirs []string
				var places []archive.Place
				for i := range 5 {
					dirs = append(dirs, snapshot(t, i, 4096))
					at, err := a.Save(t.Context(), set, fmt.Sprint("sn-", i), dirs[i])
					if err != nil {
						t.Fatal(err)
					}
					places = append(places, at)
				}
				// The cut points of an encrypted one depend on its key, which differs each
				// time, so it may share less.
				most := places[0].Stored / 3
				if set.Encrypted {
					most = places[0].Stored * 9 / 10
				}
				if first, later := places[0].Stored, places[4].Stored; later > most || first > 16<<20 {
					t.Errorf("the first takes %d bytes, a later one %d", first, later)
				}
				other := archive.New(blobs, testKey)
				for i, at := range places {
					into := t.TempDir()
					if err := other.Load(t.Context(), set, at, into); err != nil {
						t.Fatal(err)
					}
					same(t, into, dirs[i])
				}
				sweepAndLook(t, a, other, set, places, dirs)
				if left := size(t, blob.Below(blobs, "snapshots/"+set.ID)); left > 4<<10 {
					t.Errorf("%d bytes are left", left)
				}
			})
		}
	}
}

func sweepAndLook(t *testing.T, a, other *archive.Archive, set archive.Set, places []archive.Place, dirs []string) {
	t.Helper()
	if err := a.Sweep(t.Context(), set, []int{places[0].Version, places[4].Version}); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "what is gone", other.Load(t.Context(), set, places[4], t.TempDir()), sandbox.CodeInvalid)
	into := t.TempDir()
	if err := other.Load(t.Context(), set, places[2], into); err != nil {
		t.Fatal(err)
	}
	same(t, into, dirs[2])
	all, err := other.List(t.Context(), set)
	if err != nil || len(all) != 3 || all[0].Note != "sn-1" || all[0].Version != places[1].Version || all[0].Created.IsZero() {
		t.Errorf("%+v %v", all, err)
	}
	if err := other.Sweep(t.Context(), set, []int{places[1].Version, places[2].Version, places[3].Version}); err != nil {
		t.Fatal(err)
	}
}

// A stream comes back as it was, or not at all.
func TestStreams(t *testing.T) {
	for name, blobs := range stores(t) {
		t.Run(name, func(t *testing.T) {
			a, scratch := archive.New(blobs, testKey), t.TempDir()
			want := bytes.Repeat([]byte("some bytes "), 1<<16)
			at, size, err := a.Write(t.Context(), sealed, "one", scratch, func(w io.Writer) error {
				_, err := w.Write(want)
				return err
			})
			if err != nil || size != int64(len(want)) {
				t.Fatalf("%d bytes, %v; want %d", size, err, len(want))
			}
			broken := errors.New("broken")
			if _, _, err := a.Write(t.Context(), sealed, "two", scratch, func(io.Writer) error { return broken }); !errors.Is(err, broken) {
				t.Errorf("a stream that broke: %v", err)
			}
			if all, err := a.List(t.Context(), sealed); err != nil || len(all) != 1 {
				t.Errorf("there are %+v, %v; want the stream that was whole", all, err)
			}
			var got []byte
			err = archive.New(blobs, testKey).Read(t.Context(), sealed, at, scratch, func(r io.Reader) (err error) {
				got, err = io.ReadAll(r)
				return err
			})
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("it came back as %d bytes, %v", len(got), err)
			}
			never := func(io.Reader) error { t.Error("it was given to the reader"); return nil }
			wantCode(t, "another digest", a.Read(t.Context(), sealed, archive.Place{Version: at.Version, Digest: "00"}, scratch, never), sandbox.CodeInvalid)
			files, err := a.Save(t.Context(), sealed, "files", snapshot(t, 1, 64))
			if err != nil {
				t.Fatal(err)
			}
			wantCode(t, "files that are no stream", a.Read(t.Context(), sealed, files, scratch, never), sandbox.CodeInvalid)
			if left, err := os.ReadDir(scratch); err != nil || len(left) != 0 {
				t.Errorf("left is %v, %v", left, err)
			}
		})
	}
}

func TestNothingIsBelieved(t *testing.T) {
	for name, blobs := range stores(t) {
		t.Run(name, func(t *testing.T) {
			a := archive.New(blobs, testKey)
			one, err := a.Save(t.Context(), plain, "sn-1", snapshot(t, 1, 64))
			if err != nil {
				t.Fatal(err)
			}
			two, err := a.Save(t.Context(), plain, "sn-2", snapshot(t, 2, 64))
			if err != nil {
				t.Fatal(err)
			}
			swapped := archive.Place{Version: one.Version, Digest: two.Digest}
			wantCode(t, "another one", a.Load(t.Context(), plain, swapped, t.TempDir()), sandbox.CodeInvalid)
			wantCode(t, "none", a.Load(t.Context(), plain, archive.Place{}, t.TempDir()), sandbox.CodeInvalid)
			wantCode(t, "into what is not empty", a.Load(t.Context(), plain, one, snapshot(t, 1, 1)), sandbox.CodeConflict)
			if _, err := a.Save(t.Context(), sealed, "sn-3", snapshot(t, 3, 64)); err != nil {
				t.Fatal(err)
			}
			_, err = archive.New(blobs, bytes.Repeat([]byte{8}, 32)).Save(t.Context(), sealed, "sn-4", snapshot(t, 3, 64))
			wantCode(t, "another key", err, sandbox.CodeDenied)
			// A set that is not encrypted, in the place of one that is.
			move(t, blobs, "snapshots/ar-plain/", "snapshots/ar-sealed/")
			wantCode(t, "a set in the place of another",
				archive.New(blobs, testKey).Load(t.Context(), sealed, one, t.TempDir()), sandbox.CodeDenied)
			wantCode(t, "and the other way round",
				archive.New(blobs, testKey).Load(t.Context(), archive.Set{ID: "ar-sealed"}, one, t.TempDir()), sandbox.CodeInvalid)
		})
	}
}

// With any damage to the blobs of a snapshot, it is restored exactly or not at
// all: damage is found before a sandbox starts from it.
func TestDamagedBlobs(t *testing.T) {
	damages := map[string]func([]byte) []byte{
		"removed":       nil,
		"empty":         func([]byte) []byte { return []byte{} },
		"truncated":     func(b []byte) []byte { return b[:len(b)/2] },
		"a byte short":  func(b []byte) []byte { return b[:len(b)-1] },
		"longer":        func(b []byte) []byte { return append(bytes.Clone(b), 0) },
		"altered":       func(b []byte) []byte { return flipped(b, len(b)/2) },
		"altered first": func(b []byte) []byte { return flipped(b, 0) },
		"altered last":  func(b []byte) []byte { return flipped(b, len(b)-1) },
		"zeros":         func(b []byte) []byte { return make([]byte, len(b)) },
		"twice":         func(b []byte) []byte { return bytes.Repeat(b, 2) },
	}
	for _, set := range []archive.Set{sealed, plain} {
		t.Run(set.ID, func(t *testing.T) {
			root := t.TempDir()
			blobs, err := blob.OpenDir(root)
			if err != nil {
				t.Fatal(err)
			}
			dir := snapshot(t, 1, 256)
			at, err := archive.New(blobs, testKey).Save(t.Context(), set, "sn-1", dir)
			if err != nil {
				t.Fatal(err)
			}
			for info, err := range blobs.List(t.Context(), "") {
				if err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(root, info.Key)
				good, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				found := 0
				for what, damage := range damages {
					_ = os.Remove(path) // it may be removed already
					if damage != nil {
						if err := os.WriteFile(path, damage(good), 0o600); err != nil {
							t.Fatal(err)
						}
					}
					into := t.TempDir()
					if err := archive.New(blobs, testKey).Load(t.Context(), set, at, into); err == nil {
						same(t, into, dir)
					} else if found++; sandbox.CodeOf(err) == sandbox.CodeInternal {
						t.Errorf("%s, %s: %v", info.Key, what, err)
					}
				}
				if found == 0 {
					t.Errorf("no damage to %s is found", info.Key)
				}
				if err := os.WriteFile(path, good, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			into := t.TempDir()
			if err := archive.New(blobs, testKey).Load(t.Context(), set, at, into); err != nil {
				t.Fatal(err)
			}
			same(t, into, dir)
		})
	}
}

func flipped(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 0x40
	return b
}

// move puts blobs in the place of others.
func move(t *testing.T, blobs blob.Store, from, to string) {
	t.Helper()
	for info, err := range blobs.List(t.Context(), from) {
		if err != nil {
			t.Fatal(err)
		}
		r, err := blobs.Get(t.Context(), info.Key, 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		_ = r.Close() // all of it was read
		if err == nil {
			err = blobs.Put(t.Context(), to+info.Key[len(from):], bytes.NewReader(data), blob.PutOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The cost of a snapshot, in multiples of copying and syncing the same bytes in
// the same directory.
func BenchmarkArchive(b *testing.B) {
	const pages = 64 << 10 // 256 MiB
	blobs, err := blob.OpenDir(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	a := archive.New(blobs, testKey)
	dirs := make([]string, 10)
	for i := range dirs {
		dirs[i] = snapshot(b, i, pages)
	}
	b.Run("copy", func(b *testing.B) {
		b.SetBytes(pages * 4096)
		for b.Loop() {
			copySynced(b, filepath.Join(dirs[0], "pages"), filepath.Join(b.TempDir(), "pages"))
		}
	})
	var places []archive.Place
	b.Run("save", func(b *testing.B) {
		b.SetBytes(pages * 4096)
		for i := 0; b.Loop(); i++ {
			at, err := a.Save(context.Background(), sealed, "sn", dirs[i%len(dirs)])
			if err != nil {
				b.Fatal(err)
			}
			places = append(places, at)
		}
		b.ReportMetric(float64(size(b, blobs))/float64(min(len(places), len(dirs))), "stored-bytes/snapshot")
	})
	b.Run("load", func(b *testing.B) {
		b.SetBytes(pages * 4096)
		for b.Loop() {
			if err := a.Load(context.Background(), sealed, places[0], b.TempDir()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func copySynced(b *testing.B, from, to string) {
	in, err := os.Open(from)
	if err != nil {
		b.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		b.Fatal(err)
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		b.Fatal(err)
	}
	if err := out.Sync(); err != nil {
		b.Fatal(err)
	}
}
