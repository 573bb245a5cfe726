package snapshotstore_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/snapshotstore"
	"github.com/atoll-run/atoll/sandbox"
)

func wantCode(t testing.TB, what string, err error, code sandbox.Code) {
	t.Helper()
	if err == nil || sandbox.CodeOf(err) != code {
		t.Errorf("%s: %v, want %s", what, err, code)
	}
}

func open(t testing.TB, dir string) *snapshotstore.Snapshots {
	t.Helper()
	return snapshotstore.NewSnapshots(dir, "test", func(dir string) (driver.SnapshotKind, string, error) {
		if _, err := os.Stat(filepath.Join(dir, "sub", "tree")); err != nil {
			return "", "", err
		}
		return driver.SnapshotMemory, "engine", nil
	})
}

func refTo(id string) driver.SnapshotRef {
	return driver.SnapshotRef{Provider: "test", Kind: driver.SnapshotMemory, Data: id}
}

// keep makes a snapshot of two files.
func keep(t testing.TB, s *snapshotstore.Snapshots, id string) {
	t.Helper()
	draft(t, s, id)
	snap, err := s.Finish(t.Context(), driver.SnapshotOptions{ID: id})
	if err != nil || snap.Size != 10 || snap.Engine != "engine" || snap.Ref != refTo(id) {
		t.Fatalf("%+v %v", snap, err)
	}
}

func draft(t testing.TB, s *snapshotstore.Snapshots, id string) {
	t.Helper()
	dir, err := s.Draft(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"memory": "pages", "sub/tree": "files"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestKeepAndUse(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	keep(t, s, "one")
	if _, err := s.Draft("one"); sandbox.CodeOf(err) != sandbox.CodeAlreadyExists {
		t.Errorf("a draft of what is kept: %v", err)
	}
	if found, err := s.Find(t.Context(), "one"); err != nil || found.Size != 10 || found.Ref != refTo("one") {
		t.Errorf("%+v %v", found, err)
	}
	dir, release, err := open(t, root).Use(t.Context(), refTo("one"))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if text, err := os.ReadFile(filepath.Join(dir, "sub", "tree")); err != nil || string(text) != "files" {
		t.Errorf("%q %v", text, err)
	}
	_, _, err = s.Use(t.Context(), refTo("none"))
	wantCode(t, "what is not there", err, sandbox.CodeNotFound)
	if !errors.Is(err, driver.ErrSnapshotLost) {
		t.Errorf("%v is no ErrSnapshotLost", err)
	}
	_, err = s.Find(t.Context(), "none")
	wantCode(t, "finding what was not written", err, sandbox.CodeNotFound)
	if _, err := s.Draft("empty"); err != nil {
		t.Fatal(err)
	}
	_, err = s.Find(t.Context(), "empty")
	wantCode(t, "finding what is incomplete", err, sandbox.CodeNotFound)
	foreign := refTo("one")
	foreign.Provider = "other"
	_, _, err = s.Use(t.Context(), foreign)
	wantCode(t, "a snapshot of another provider", err, sandbox.CodeInvalid)
	wantCode(t, "removing that", s.Remove(t.Context(), foreign), sandbox.CodeInvalid)
	for _, hostile := range []string{"../x", "", "a/b", ".new-x"} {
		_, err := s.Draft(hostile)
		wantCode(t, hostile, err, sandbox.CodeInvalid)
		wantCode(t, hostile, s.Remove(t.Context(), refTo(hostile)), sandbox.CodeInvalid)
	}
}

// Any change of a snapshot is found before it is used.
func TestAttackDamageIsFound(t *testing.T) {
	for what, damage := range map[string]func(dir string) error{
		"a file is cut": func(dir string) error { return os.Truncate(filepath.Join(dir, "files", "memory"), 3) },
		"a file grew": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "files", "memory"), []byte("pages!"), 0o600)
		},
		"a byte is another": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "files", "memory"), []byte("pagez"), 0o600)
		},
		"a file is missing": func(dir string) error { return os.Remove(filepath.Join(dir, "files", "sub", "tree")) },
		"there is one more": func(dir string) error { return os.WriteFile(filepath.Join(dir, "files", "more"), nil, 0o600) },
		"a file is a link":  func(dir string) error { return relink(filepath.Join(dir, "files", "memory")) },
		"no manifest":       func(dir string) error { return os.Remove(filepath.Join(dir, "manifest.json")) },
		"half a manifest":   func(dir string) error { return os.Truncate(filepath.Join(dir, "manifest.json"), 20) },
		"a hostile manifest": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "manifest.json"), []byte(`{"files":[{"path":"../../../etc/passwd"}]}`), 0o600)
		},
		"an empty manifest":   func(dir string) error { return os.WriteFile(filepath.Join(dir, "manifest.json"), []byte(`{}`), 0o600) },
		"no files of its own": func(dir string) error { return os.RemoveAll(filepath.Join(dir, "files")) },
	} {
		t.Run(what, func(t *testing.T) {
			root := t.TempDir()
			s := open(t, root)
			keep(t, s, "one")
			if err := damage(filepath.Join(root, "one")); err != nil {
				t.Fatal(err)
			}
			_, _, err := s.Use(t.Context(), refTo("one"))
			wantCode(t, what, err, sandbox.CodeInvalid)
			_, err = s.Copy(t.Context(), refTo("one"), "two")
			wantCode(t, "copying it", err, sandbox.CodeInvalid)
			if err := s.Remove(t.Context(), refTo("one")); err != nil {
				t.Errorf("it cannot be removed: %v", err)
			}
		})
	}
}

func relink(path string) error {
	if err := os.Rename(path, path+"-real"); err != nil {
		return err
	}
	return os.Symlink(path+"-real", path)
}

func TestRemoveWaitsForUsers(t *testing.T) {
	s := open(t, t.TempDir())
	keep(t, s, "one")
	_, release, err := s.Use(t.Context(), refTo("one"))
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	wantCode(t, "removing what is used", s.Remove(ended, refTo("one")), sandbox.CodeCanceled)
	removed := make(chan error)
	go func() { removed <- s.Remove(context.Background(), refTo("one")) }()
	release()
	release() // a second call does nothing
	if err := <-removed; err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), refTo("one")); err != nil {
		t.Errorf("removing it again: %v", err)
	}
	for f, err := range s.List(t.Context()) {
		t.Errorf("%+v is left, %v", f, err)
	}
}

func TestCopySharesBytes(t *testing.T) {
	root := t.TempDir()
	s := open(t, root)
	keep(t, s, "one")
	if snap, err := s.Copy(t.Context(), refTo("one"), "two"); err != nil || snap.Size != 10 {
		t.Fatalf("%+v %v", snap, err)
	}
	a, errA := os.Stat(filepath.Join(root, "one", "files", "memory"))
	b, errB := os.Stat(filepath.Join(root, "two", "files", "memory"))
	if errA != nil || errB != nil || !os.SameFile(a, b) {
		t.Errorf("they are stored twice: %v %v", errA, errB)
	}
	if err := s.Remove(t.Context(), refTo("one")); err != nil {
		t.Fatal(err)
	}
	if _, release, err := s.Use(t.Context(), refTo("two")); err != nil {
		t.Errorf("the copy went with the first: %v", err)
	} else {
		release()
	}
}

// A writer that was killed before it could finish left all there is.
func TestFindFinishes(t *testing.T) {
	root := t.TempDir()
	draft(t, open(t, root), "one")
	found, err := open(t, root).Find(t.Context(), "one")
	if err != nil || found.Ref != refTo("one") || found.Size != 10 {
		t.Fatalf("%+v %v", found, err)
	}
	_, release, err := open(t, root).Use(t.Context(), found.Ref)
	if err != nil {
		t.Fatal(err)
	}
	release()
}

// A transient snapshot is used unchecked, and stays a draft.
func TestTransient(t *testing.T) {
	s := open(t, t.TempDir())
	draft(t, s, "one")
	snap, err := s.Finish(t.Context(), driver.SnapshotOptions{ID: "one", Transient: true})
	if err != nil || snap.Size != 10 {
		t.Fatalf("%+v %v", snap, err)
	}
	_, release, err := s.Use(t.Context(), snap.Ref)
	if err != nil {
		t.Fatal(err)
	}
	release()
	for range 2 {
		if err := s.Remove(t.Context(), snap.Ref); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err = s.Use(t.Context(), snap.Ref)
	wantCode(t, "a transient snapshot that is gone", err, sandbox.CodeNotFound)
}

func TestExportImport(t *testing.T) {
	s, other := open(t, t.TempDir()), open(t, t.TempDir())
	keep(t, s, "one")
	var packed bytes.Buffer
	if err := s.Export(t.Context(), refTo("one"), &packed); err != nil {
		t.Fatal(err)
	}
	_, err := other.Import(t.Context(), "two", bytes.NewReader(packed.Bytes()[:packed.Len()-1024]))
	wantCode(t, "half a snapshot", err, sandbox.CodeInvalid)
	snap, err := other.Import(t.Context(), "two", &packed)
	if err != nil || snap.Size != 10 || snap.Ref != refTo("two") {
		t.Fatalf("%+v %v", snap, err)
	}
	_, release, err := other.Use(t.Context(), snap.Ref)
	if err != nil {
		t.Fatal(err)
	}
	release()
}

func TestEnvironments(t *testing.T) {
	const canary = "s3cr3t-canary"
	dir, key := t.TempDir(), filepath.Join(t.TempDir(), "seal.key")
	e, err := snapshotstore.OpenEnvironments(dir, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Put("sb-1", map[string]string{"TOKEN": canary}); err != nil {
		t.Fatal(err)
	}
	if err := e.Put("sb-2", nil); err != nil {
		t.Fatal(err)
	}
	again, err := snapshotstore.OpenEnvironments(dir, key)
	if err != nil {
		t.Fatal(err)
	}
	if env, err := again.Get("sb-1"); err != nil || env["TOKEN"] != canary {
		t.Errorf("%v %v", env, err)
	}
	if env, err := again.Get("sb-2"); err != nil || env != nil {
		t.Errorf("%v %v", env, err)
	}
	sealed, err := os.ReadFile(filepath.Join(dir, "sb-1.sealed"))
	if err != nil || bytes.Contains(sealed, []byte(canary)) || bytes.Contains(sealed, []byte("TOKEN")) {
		t.Errorf("it is not sealed: %q %v", sealed, err)
	}
	for _, f := range []string{key, filepath.Join(dir, "sb-1.sealed")} {
		if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", f, info.Mode(), err)
		}
	}
	// It belongs to that sandbox and no other.
	if err := os.WriteFile(filepath.Join(dir, "sb-3.sealed"), sealed, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = again.Get("sb-3")
	wantCode(t, "another's environment", err, sandbox.CodeInvalid)
	if ids, err := again.List(); err != nil || !slices.Equal(ids, []sandbox.ID{"sb-1", "sb-3"}) {
		t.Errorf("%v %v", ids, err)
	}
	for range 2 {
		if err := again.Remove("sb-1"); err != nil {
			t.Error(err)
		}
	}
	if err := os.WriteFile(key, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = snapshotstore.OpenEnvironments(dir, key)
	wantCode(t, "a damaged key", err, sandbox.CodeUnavailable)
}
