package worktree_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/workspace"
	"github.com/atoll-run/atoll/internal/workspace/worktree"
	"github.com/atoll-run/atoll/sandbox"
)

// machine is the worktree store of one machine.
func machine(t *testing.T, blobs blob.Store, key string) (*worktree.Store, string) {
	t.Helper()
	k, err := worktree.Key(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "workspaces")
	s, err := worktree.Open(dir, blobs, k)
	if err != nil {
		t.Fatal(err)
	}
	return s, dir
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestLife(t *testing.T) {
	ctx := t.Context()
	blobs := must(blob.OpenDir(t.TempDir()))(t)
	key := filepath.Join(t.TempDir(), "key")
	here, dir := machine(t, blobs, key)
	if err := here.Create(ctx, "ws-1", true); err != nil {
		t.Fatal(err)
	}
	w := must(here.Open(ctx, "ws-1", true))(t)
	tree := must(here.Checkout(ctx, w))(t)
	write(t, tree, "f", "one")
	v := must(here.Persist(ctx, w, workspace.PersistOptions{Note: "n"}, true))(t)
	if v.Number != 1 {
		t.Fatalf("%+v", v)
	}

	// The next one on the same machine works in the same directory.
	if again := must(here.Checkout(ctx, w))(t); again != tree {
		t.Errorf("another directory: %s", again)
	}
	write(t, tree, "f", "two, and nobody persists it")

	// Another machine continues from the persisted version.
	there, _ := machine(t, blobs, key)
	w2 := must(there.Open(ctx, "ws-1", true))(t)
	tree2 := must(there.Checkout(ctx, w2))(t)
	if got := read(t, tree2, "f"); got != "one" {
		t.Errorf("the other machine has %q", got)
	}
	write(t, tree2, "f", "from the other machine")
	must(there.Persist(ctx, w2, workspace.PersistOptions{Note: "m"}, true))(t)

	// Back here nothing is overwritten on either side.
	if _, err := here.Persist(ctx, w, workspace.PersistOptions{Note: "n"}, true); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("persisting over the other's: %v", err)
	}
	tree = must(here.Checkout(ctx, w))(t)
	if got := read(t, tree, "f"); got != "from the other machine" {
		t.Errorf("afterwards there is %q", got)
	}
	kept := must(filepath.Glob(filepath.Join(dir, "ws-1", "unsaved-*", "f")))(t)
	if len(kept) != 1 || read(t, filepath.Dir(kept[0]), "f") != "two, and nobody persists it" {
		t.Errorf("what was not persisted is lost: %q", kept)
	}
	if err := here.Remove(ctx, "ws-1"); err != nil {
		t.Fatal(err)
	}
	for info := range blobs.List(ctx, "") {
		t.Errorf("%s is left", info.Key)
	}
}

// A process killed during a checkout leaves garbage, but never an incomplete
// directory under a final name.
func TestKilledCheckout(t *testing.T) {
	ctx := t.Context()
	s, dir := machine(t, must(blob.OpenDir(t.TempDir()))(t), filepath.Join(t.TempDir(), "key"))
	if err := s.Create(ctx, "ws-1", false); err != nil {
		t.Fatal(err)
	}
	w := must(s.Open(ctx, "ws-1", false))(t)
	tree := must(s.Checkout(ctx, w))(t)
	write(t, tree, "f", "good")
	must(s.Persist(ctx, w, workspace.PersistOptions{}, true))(t)
	own := filepath.Join(dir, "ws-1")
	for name, crash := range map[string]func() error{
		"while restoring":       func() error { return os.RemoveAll(filepath.Join(own, "tree")) },
		"before the base":       func() error { return os.Remove(filepath.Join(own, "base")) },
		"between base and mark": func() error { return os.RemoveAll(filepath.Join(own, "dirty")) },
	} {
		if err := os.MkdirAll(filepath.Join(own, "new-half", "d"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := crash(); err != nil {
			t.Fatal(name, err)
		}
		tree := must(s.Checkout(ctx, w))(t)
		if got := read(t, tree, "f"); got != "good" {
			t.Errorf("%s: %q", name, got)
		}
		if left := must(filepath.Glob(filepath.Join(own, "new-*")))(t); len(left) > 0 {
			t.Errorf("%s: %q is left", name, left)
		}
		must(s.Persist(ctx, w, workspace.PersistOptions{}, true))(t)
	}
	// Killed between the commit and writing it down.
	write(t, tree, "f", "newer")
	must(s.Persist(ctx, w, workspace.PersistOptions{Note: "n"}, false))(t)
	write(t, own, "base", "1")
	if v := must(s.Persist(ctx, w, workspace.PersistOptions{Note: "n"}, true))(t); v.Number != 2 {
		t.Errorf("it is version %d", v.Number)
	}
}

func TestSubdirs(t *testing.T) {
	tree, outside := t.TempDir(), t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(tree, "a", "b"), 0o755), os.Symlink(outside, filepath.Join(tree, "out")),
		os.Symlink("a", filepath.Join(tree, "in")), os.WriteFile(filepath.Join(tree, "file"), nil, 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := worktree.Subdirs(tree, []string{"a/b", "new/deep"}, true); err != nil {
		t.Error(err)
	}
	for _, p := range []string{"out", "out/x", "in", "in/b", "file", "file/x"} {
		if err := worktree.Subdirs(tree, []string{p}, true); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", p, err)
		}
	}
	if err := worktree.Subdirs(tree, []string{"missing"}, false); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a missing one: %v", err)
	}
	if entries := must(os.ReadDir(outside))(t); len(entries) > 0 {
		t.Errorf("outside there is %v", entries)
	}
}

func TestKeyFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "key")
	first := must(worktree.Key(name))(t)
	if again := must(worktree.Key(name))(t); string(again) != string(first) || len(first) != 32 {
		t.Errorf("another key of %d bytes", len(again))
	}
	if err := os.Chmod(name, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := worktree.Key(name)
	if sandbox.CodeOf(err) != sandbox.CodeInvalid || strings.Contains(err.Error(), string(first)) {
		t.Errorf("a key that all can read: %v", err)
	}
}
