package workspace

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/workspace/chunk"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

func FuzzParse(f *testing.F) {
	f.Add(encode(nil))
	f.Add(encode([]*node{
		{name: "a", kind: file, mode: 0o644, modified: time.Unix(1, 2), content: []piece{{chunk.ID{1}, 5}, {length: 1 << 40}}},
		{name: "b", kind: symlink, target: "a"},
		{name: "c", kind: dir, uid: 1, xattrs: []xattr{{"user.x", []byte("y")}}},
	}))
	f.Fuzz(func(t *testing.T, in []byte) {
		nodes, err := parse(in)
		if err != nil {
			return
		}
		for _, n := range nodes {
			if n.name == "" || n.name == ".." || strings.ContainsAny(n.name, "/\x00") || n.size() < 0 {
				t.Errorf("accepted %q of %d bytes", n.name, n.size())
			}
		}
		again, err := parse(encode(nodes))
		if err != nil || !bytes.Equal(encode(again), encode(nodes)) {
			t.Errorf("what was read cannot be written: %v", err)
		}
	})
}

// Trees that no Atoll writes must do nothing outside the directory they are
// restored into.
func TestAttackForgedTrees(t *testing.T) {
	outside := t.TempDir()
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, []byte("canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, nodes := range map[string][]*node{
		"climbs":          {{name: "..", kind: dir}},
		"has a slash":     {{name: "a/b", kind: file}},
		"has no name":     {{name: "", kind: file}},
		"twice":           {{name: "a", kind: file}, {name: "a", kind: file}},
		"link out":        {{name: "a", kind: same, target: "../secret"}},
		"absolute link":   {{name: "a", kind: same, target: secret}},
		"through a link":  {{name: "l", kind: symlink, target: outside}, {name: "m", kind: same, target: "l/secret"}},
		"unknown kind":    {{name: "a", kind: 'z'}},
		"link to nothing": {{name: "a", kind: same, target: "b"}},
		"link to a dir":   {{name: "a", kind: same, target: "d"}, {name: "d", kind: dir, content: []piece{{chunk.ID{9}, 1}}}},
		"missing content": {{name: "a", kind: file, content: []piece{{chunk.ID{9}, 1}}}},
		"too large":       {{name: "a", kind: file, content: []piece{{length: 1<<62 - 1}}}},
		"an attribute":    {{name: "a", kind: file, xattrs: []xattr{{"security.capability", []byte("x")}}}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			err := restoreForged(t, nodes, dir)
			if code := sandbox.CodeOf(err); code != sandbox.CodeInvalid && code != sandbox.CodeUnavailable {
				t.Errorf("the code is %q: %v", code, err)
			}
			if entries, _ := os.ReadDir(outside); len(entries) != 1 {
				t.Errorf("outside there are %d files", len(entries))
			}
			if got, err := os.ReadFile(secret); err != nil || string(got) != "canary" {
				t.Errorf("the secret is %q: %v", got, err)
			}
		})
	}
}

// restoreForged stores a tree as a version, without any check, and restores it.
func restoreForged(t *testing.T, nodes []*node, dir string) error {
	t.Helper()
	blobs, err := blob.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w, err := Create(t.Context(), blobs, CreateOptions{ID: "forged"})
	if err != nil {
		t.Fatal(err)
	}
	writer := w.chunks.Writer(context.Background(), 1)
	id, err := writer.Add(encode(nodes))
	if err != nil {
		t.Fatal(err)
	}
	packs, err := writer.Close()
	if err != nil {
		t.Fatal(err)
	}
	top := &node{name: topName, kind: 'd', mode: 0o755, modified: time.Unix(1, 0), content: []piece{{id, int64(len(encode(nodes)))}}}
	next := &record{Number: 1, Packs: packs, Versions: []Version{{WorkspaceVersion: durable.WorkspaceVersion{Number: 1, Created: now(), Files: 10, Dirs: 10, Bytes: 1 << 30}, Root: encode([]*node{top})}}}
	if err := w.commit(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	_, err = w.Restore(t.Context(), 0, root)
	return err
}

// A writer that slept while its number was used and pruned away does not count.
func TestSleeperLoses(t *testing.T) {
	blobs, err := blob.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w, err := Create(t.Context(), blobs, CreateOptions{ID: "w"})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	base := 0
	for _, content := range []string{"one", "two", "three"} {
		if err := os.WriteFile(filepath.Join(dir, "f"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		v, err := w.Persist(t.Context(), root, PersistOptions{Base: base})
		if err != nil {
			t.Fatal(err)
		}
		base = v.Number
	}
	asleep, err := w.record(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Prune(t.Context(), Keep{Last: 1}); err != nil {
		t.Fatal(err)
	}
	if err := w.commit(t.Context(), asleep.next()); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("the sleeper got %v", err)
	}
	head, err := w.head(t.Context())
	if err != nil || head.latest().Number != base {
		t.Errorf("%+v, %v", head, err)
	}
	if _, err := blobs.Stat(t.Context(), recordKey(2)); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("its record is left: %v", err)
	}
}
