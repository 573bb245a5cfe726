package workspace

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/workspace/chunk"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// forger writes what no Atoll writes into the store of a workspace without a key.
type forger struct {
	testing.TB
	w     *Workspace
	blobs blob.Store
	out   *chunk.Writer
}

func newForger(t testing.TB) *forger {
	t.Helper()
	blobs, err := blob.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w, err := Create(t.Context(), blobs, CreateOptions{ID: "forged"})
	if err != nil {
		t.Fatal(err)
	}
	return &forger{t, w, blobs, w.chunks.Writer(t.Context(), 1)}
}

func (f *forger) keep(content []byte) piece {
	f.Helper()
	id, err := f.out.Add(content)
	if err != nil {
		f.Fatal(err)
	}
	return piece{id, int64(len(content))}
}

// commit makes a directory the newest version, with the given metadata.
func (f *forger) commit(said durable.WorkspaceVersion, nodes ...*node) {
	f.Helper()
	listing := f.keep(encode(nodes))
	packs, err := f.out.Close()
	if err != nil {
		f.Fatal(err)
	}
	said.Number, said.Created = 1, now()
	top := &node{name: topName, kind: dir, mode: 0o755, modified: time.Unix(1, 0), content: []piece{listing}}
	next := &record{Number: 1, Packs: packs, Versions: []Version{{WorkspaceVersion: said, Root: encode([]*node{top})}}}
	if err := f.w.commit(f.Context(), next); err != nil {
		f.Fatal(err)
	}
}

// restore restores the newest version, within a time, and returns the files.
func (f *forger) restore() (names []string, used int64, err error) {
	f.Helper()
	at := f.TempDir()
	root, err := os.OpenRoot(at)
	if err != nil {
		f.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	ctx, cancel := context.WithTimeout(f.Context(), time.Minute)
	defer cancel()
	_, err = f.w.Restore(ctx, 0, root)
	walkErr := filepath.WalkDir(at, func(path string, _ os.DirEntry, err error) error {
		names = append(names, path)
		var st unix.Stat_t
		if err == nil && unix.Lstat(path, &st) == nil {
			used += st.Blocks * 512
		}
		return err
	})
	if walkErr != nil {
		f.Error(walkErr)
	}
	return names, used, err
}

// TestAttackSmallStores uses a store of some kilobytes that claims more content
// than any disk, by naming the same content repeatedly.
func TestAttackSmallStores(t *testing.T) {
	modest := durable.WorkspaceVersion{Files: 3, Dirs: 3, Bytes: 1 << 20}
	zeros := make([]byte, chunk.MaxSize)
	t.Run("directories", func(t *testing.T) {
		f := newForger(t)
		level := []*node{{name: "f", kind: file, modified: time.Unix(1, 0)}}
		for range 60 { // two to the power of that
			below := f.keep(encode(level))
			level = nil
			for _, name := range []string{"a", "b"} {
				level = append(level, &node{name: name, kind: dir, mode: 0o755, modified: time.Unix(1, 0), content: []piece{below}})
			}
		}
		f.commit(modest, level...)
		if names, _, err := f.restore(); sandbox.CodeOf(err) != sandbox.CodeInvalid || len(names) > 100 {
			t.Errorf("%d files were made: %v", len(names), err)
		}
	})
	t.Run("a file", func(t *testing.T) {
		f := newForger(t)
		f.commit(modest, &node{name: "f", kind: file, modified: time.Unix(1, 0), content: slices.Repeat([]piece{f.keep(zeros)}, 1000)})
		if _, used, err := f.restore(); sandbox.CodeOf(err) != sandbox.CodeInvalid || used > 64<<20 {
			t.Errorf("%d bytes were written: %v", used, err)
		}
	})
	t.Run("many files", func(t *testing.T) {
		f := newForger(t)
		one := f.keep(zeros)
		var nodes []*node
		for i := range 200 {
			nodes = append(nodes, &node{name: string(rune('a'+i/26)) + string(rune('a'+i%26)), kind: file, modified: time.Unix(1, 0), content: []piece{one}})
		}
		f.commit(durable.WorkspaceVersion{Files: 200, Dirs: 1, Bytes: 1 << 20}, nodes...)
		if _, used, err := f.restore(); sandbox.CodeOf(err) != sandbox.CodeInvalid || used > 64<<20 {
			t.Errorf("%d bytes were written: %v", used, err)
		}
	})
	t.Run("a negative count", func(t *testing.T) {
		f := newForger(t)
		f.commit(durable.WorkspaceVersion{Files: -1, Dirs: -1, Bytes: -1}, &node{name: "f", kind: file, modified: time.Unix(1, 0)})
		if _, _, err := f.restore(); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Error(err)
		}
	})
	t.Run("as it says", func(t *testing.T) {
		f := newForger(t)
		f.commit(durable.WorkspaceVersion{Files: 1, Dirs: 1, Bytes: 3}, &node{name: "f", kind: file, mode: 0o600, modified: time.Unix(1, 0), content: []piece{f.keep([]byte("abc"))}})
		if _, _, err := f.restore(); err != nil {
			t.Error(err)
		}
	})
}

// TestAttackCompressedChunks has a store hold chunks, indexes and records that
// become a thousand times as large when they are read.
func TestAttackCompressedChunks(t *testing.T) {
	c, err := chunk.NewCodec(nil)
	if err != nil {
		t.Fatal(err)
	}
	bomb, err := c.Seal(make([]byte, 1<<30), nil)
	if err != nil {
		t.Fatal(err)
	}
	f := newForger(t)
	if err := f.blobs.Put(t.Context(), recordKey(7), bytes.NewReader(bomb), blob.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	_, _, err = f.restore()
	runtime.ReadMemStats(&after)
	if sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a record of %d bytes that become 2^30: %v", len(bomb), err)
	}
	if grown := int64(after.TotalAlloc) - int64(before.TotalAlloc); grown > 256<<20 {
		t.Errorf("%d MiB were allocated", grown>>20)
	}
}

// FuzzRecord puts anything in the place of a record: a workspace is read as one
// that was written, or not at all, and nothing is made outside of a directory.
func FuzzRecord(f *testing.F) {
	good, err := json.Marshal(&record{Format: format, Number: 1, Claim: "x", Versions: []Version{{WorkspaceVersion: durable.WorkspaceVersion{Number: 1, Files: 1, Dirs: 1}, Root: encode([]*node{{name: topName, kind: dir}})}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"format":1,"number":1,"claim":"x","versions":[{"number":-1},{"number":9223372036854775807}],"packs":[{"target":-1,"name":"../../x","size":-1,"index":9}]}`))
	f.Add([]byte(strings.Repeat("[", 10_000)))
	c, err := chunk.NewCodec(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		w := newForger(t)
		sealed, err := c.Seal(text, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.blobs.Put(t.Context(), recordKey(1), bytes.NewReader(sealed), blob.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		names, _, err := w.restore()
		if err != nil && sandbox.CodeOf(err) == sandbox.CodeInternal {
			t.Errorf("an error without a code: %v", err)
		}
		if len(names) > 1 {
			t.Errorf("%q were made of nothing", names)
		}
		if _, err := w.w.History(t.Context()); err != nil && sandbox.CodeOf(err) == sandbox.CodeInternal {
			t.Errorf("an error without a code: %v", err)
		}
	})
}
