//go:build linux

package unpack

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
)

// script is what is packed in place of the engine. It shows how it was started.
var script = "#!/bin/sh\necho \"$0 $*\"\n" + strings.Repeat("# more\n", 100)

// TestMain runs this test binary as a light program, which Exec replaces, or as
// an engine.
func TestMain(m *testing.M) {
	if slices.Equal(os.Args[1:], []string{"a", "b"}) {
		os.Stdout.WriteString(Self() + "\n")
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test has looked
		os.Exit(0)
	}
	if state := os.Getenv("ATOLL_TEST_STATE"); state != "" {
		p, err := Embedded(os.DirFS(os.Getenv("ATOLL_TEST_PACKED")), ".")
		if err == nil {
			err = p.Exec(state, []string{"a", "b"}, os.Getenv("ATOLL_TEST_NO") == "")
		}
		os.Stderr.WriteString(string(sandbox.CodeOf(err)) + ": " + err.Error())
		os.Exit(7)
	}
	os.Exit(m.Run())
}

// packed returns the engine with a content, as a program embeds it, and its
// directory.
func packed(t *testing.T, content string) (*Packed, string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "engine")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Pack(file, dir); err != nil {
		t.Fatal(err)
	}
	p, err := Embedded(os.DirFS(dir), ".")
	if err != nil {
		t.Fatal(err)
	}
	return p, dir
}

// start runs a light program with the engine in a directory.
func start(t *testing.T, dir, state string, env ...string) (string, error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), append(env, "ATOLL_TEST_STATE="+state, "ATOLL_TEST_PACKED="+dir)...)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func TestExec(t *testing.T) {
	t.Parallel()
	p, dir := packed(t, script)
	state := filepath.Join(t.TempDir(), "state")
	if out, err := start(t, dir, state, "ATOLL_TEST_NO=1"); err == nil || !strings.HasPrefix(out, "not_found: ") {
		t.Errorf("without permission to unpack: %q, %v", out, err)
	}
	path := filepath.Join(state, "engine", p.digest, "atoll")
	for _, no := range []string{"", "1"} { // the second time it is there
		out, err := start(t, dir, state, "ATOLL_TEST_NO="+no)
		if want := path + " a b"; err != nil || out != want {
			t.Errorf("got %q, %v, want %q", out, err, want)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != script {
		t.Errorf("unpacked: %q, %v", got, err)
	}
	for name, want := range map[string]os.FileMode{state: 0o700, filepath.Join(state, "engine"): 0o700, path: 0o755} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", name, info.Mode(), err, want)
		}
	}
}

// An engine knows the program that was called, and is not removed while it runs.
func TestSelf(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	p, dir := packed(t, string(content))
	state := filepath.Join(t.TempDir(), "state")
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), "ATOLL_TEST_STATE="+state, "ATOLL_TEST_PACKED="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if said, err := bufio.NewReader(out).ReadString('\n'); err != nil || said != self+"\n" {
		t.Errorf("Self returned %q, %v, want %s", said, err, self)
	}
	path := filepath.Join(state, dirName, p.digest, programName)
	old := time.Now().Add(-2 * unusedTime)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	if unused(path) {
		t.Error("it counts as unused while it runs")
	}
	if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
		t.Fatal(err)
	}
	if !unused(path) {
		t.Error("it counts as used after its end")
	}
}

// Many processes start at once; the engine is there once, and nothing else.
func TestExecAtOnce(t *testing.T) {
	t.Parallel()
	_, dir := packed(t, script)
	state := filepath.Join(t.TempDir(), "state")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if out, err := start(t, dir, state); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	all.Wait()
	entries, err := os.ReadDir(filepath.Join(state, "engine"))
	if err != nil || len(entries) != 2 { // the engine and the lock
		t.Errorf("%v, %v", entries, err)
	}
}

// What was left by a process that was killed is replaced.
func TestUnfinished(t *testing.T) {
	t.Parallel()
	p, _ := packed(t, script)
	dir := filepath.Join(t.TempDir(), "engine")
	final := filepath.Join(dir, p.digest)
	err := errors.Join(os.MkdirAll(final, 0o700), os.MkdirAll(filepath.Join(dir, temporary+"1"), 0o700),
		os.WriteFile(filepath.Join(final, programName), []byte("#!/bin/s"), 0o755))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Unpack(dir); err != nil {
		t.Fatal(err)
	}
	if err := p.check(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, temporary+"1")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was unfinished is left: %v", err)
	}
}

// An engine that others could have changed is not started.
func TestAttackEngineOfOthers(t *testing.T) {
	t.Parallel()
	p, dir := packed(t, script)
	tests := []struct {
		name   string
		change func(t *testing.T, engine string) error
		code   string // empty: it is replaced
	}{
		{"a directory that others can write to", func(_ *testing.T, e string) error { return os.Chmod(e, 0o770) }, "unavailable"},
		{"a version that others can write to", func(_ *testing.T, e string) error { return os.Chmod(filepath.Join(e, p.digest), 0o722) }, "unavailable"},
		{"a program that others can write to", func(_ *testing.T, e string) error {
			return os.Chmod(filepath.Join(e, p.digest, programName), 0o757)
		}, ""},
		{"a link to a program", func(_ *testing.T, e string) error {
			path := filepath.Join(e, p.digest, programName)
			return errors.Join(os.Rename(path, path+"2"), os.Symlink(path+"2", path))
		}, ""},
		{"a link to a version", func(_ *testing.T, e string) error {
			path := filepath.Join(e, p.digest)
			return errors.Join(os.Rename(path, path+"2"), os.Symlink(path+"2", path))
		}, "unavailable"},
		{"a link to a directory", func(_ *testing.T, e string) error { return errors.Join(os.Rename(e, e+"2"), os.Symlink(e+"2", e)) }, "unavailable"},
		{"a directory of another user", func(t *testing.T, e string) error {
			need.Root(t, "it gives a file to another user")
			return os.Chown(e, 65534, 65534)
		}, "unavailable"},
		{"a program of another user", func(t *testing.T, e string) error {
			need.Root(t, "it gives a file to another user")
			return os.Chown(filepath.Join(e, p.digest, programName), 65534, 65534)
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			state := filepath.Join(t.TempDir(), "state")
			if out, err := start(t, dir, state); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if err := tt.change(t, filepath.Join(state, "engine")); err != nil {
				t.Fatal(err)
			}
			out, err := start(t, dir, state)
			if tt.code == "" {
				info, failed := os.Lstat(filepath.Join(state, "engine", p.digest, programName))
				if err != nil || failed != nil || info.Mode() != 0o755 {
					t.Errorf("it was not replaced: %s, %v, %v", out, err, failed)
				}
				return
			}
			if err == nil || !strings.HasPrefix(out, tt.code+": ") {
				t.Errorf("got %q, %v, want %s", out, err, tt.code)
			}
		})
	}
}

// A program whose engine was damaged says so, and leaves nothing.
func TestDamaged(t *testing.T) {
	t.Parallel()
	_, dir := packed(t, strings.Repeat(script, 100))
	good, err := os.ReadFile(filepath.Join(dir, packedFile))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("something else"))
	for name, files := range map[string]fstest.MapFS{
		"another digest": {packedFile: {Data: good}, sumFile: {Data: []byte(hex.EncodeToString(sum[:]))}},
		"cut":            {packedFile: {Data: good[:len(good)-9]}, sumFile: {Data: []byte(hex.EncodeToString(sum[:]))}},
		"no zstd":        {packedFile: {Data: bytes.Repeat([]byte("x"), 99)}, sumFile: {Data: []byte(hex.EncodeToString(sum[:]))}},
	} {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			p, err := Embedded(files, ".")
			if err == nil {
				err = p.Unpack(filepath.Join(state, "engine"))
				if left, _ := filepath.Glob(filepath.Join(state, "engine", "*", "*")); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			}
			var e *sandbox.Error
			if !errors.As(err, &e) || e.Code != sandbox.CodeInternal || !strings.Contains(e.Hint, "install atoll again") {
				t.Errorf("got %v", err)
			}
		})
	}
	if _, err := Embedded(fstest.MapFS{}, "."); sandbox.CodeOf(err) != sandbox.CodeUnsupported {
		t.Errorf("without an engine: %v", err)
	}
}

// Engines of other versions go, unless they are new or a process runs them.
func TestRemoveOthers(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "engine")
	put := func(digit string, age time.Duration) string {
		path := filepath.Join(dir, strings.Repeat(digit, 64), programName)
		when := time.Now().Add(-age)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o755), os.Chtimes(path, when, when)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	own, old, fresh, runs := put("a", 2*unusedTime), put("b", 2*unusedTime), put("c", unusedTime/2), put("d", 2*unusedTime)
	f, err := os.Open(runs)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "notes")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	removeOthers(dir, strings.Repeat("a", 64))
	for path, want := range map[string]bool{own: true, old: false, fresh: true, runs: true, other: true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v, want it to be there: %v", path, err, want)
		}
	}
}

// Errors of the disk say what to do.
func TestDiskErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		cause error
		code  sandbox.Code
		hint  string
	}{
		{&os.PathError{Op: "write", Path: "/x", Err: unix.ENOSPC}, sandbox.CodeExhausted, "free 100 MB"},
		{&os.PathError{Op: "write", Path: "/x", Err: unix.EDQUOT}, sandbox.CodeExhausted, "free 100 MB"},
		{&os.PathError{Op: "mkdir", Path: "/x", Err: unix.EROFS}, sandbox.CodeUnavailable, "--state-dir"},
		{errLocked, sandbox.CodeTimeout, "fuser"},
	} {
		var e *sandbox.Error
		if err := failed(t.TempDir(), tt.cause); !errors.As(err, &e) || e.Code != tt.code || !strings.Contains(e.Hint, tt.hint) {
			t.Errorf("%v: got %v", tt.cause, err)
		}
	}
}

// A lock that is held does not hold a command up for ever.
func TestLocked(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), lockName)
	release, err := lock(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(path, 0); !errors.Is(err, errLocked) {
		t.Errorf("got %v", err)
	}
	release()
	if again, err := lock(path, 0); err != nil {
		t.Error(err)
	} else {
		again()
	}
}

// Pack writes nothing if the engine is the same.
func TestPackAgain(t *testing.T) {
	t.Parallel()
	p, dir := packed(t, script)
	file := filepath.Join(t.TempDir(), "engine")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, packedFile)
	if err := os.WriteFile(path, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Pack(file, dir); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "untouched" {
		t.Error("it was packed again")
	}
	if err := os.WriteFile(file, bytes.Repeat([]byte("x"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Pack(file, dir); err != nil {
		t.Fatal(err)
	}
	if q, err := Embedded(os.DirFS(dir), "."); err != nil || q.digest == p.digest || q.size != 1000 {
		t.Errorf("%+v, %v", q, err)
	}
}
