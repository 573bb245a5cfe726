package workspace_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/workspace"
	"github.com/atoll-run/atoll/sandbox"
)

// For a change of any byte of a store, the result is an error or the right
// content.
func TestAttackDamagedStore(t *testing.T) {
	for name, key := range map[string][]byte{"plain": nil, "encrypted": testKey} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, key)
			f.write("a", strings.Repeat("content of a ", 30))
			f.write("dir/b", "content of b")
			f.persist()
			want := describe(t, f.dir)
			for info, err := range f.blobs.List(t.Context(), "") {
				if err != nil {
					t.Fatal(err)
				}
				f.damage(info.Key, key, want)
			}
		})
	}
}

// damage changes a blob in many ways and looks what a restore makes of it.
func (f *fixture) damage(name string, key []byte, want []string) {
	f.Helper()
	body, err := f.blobs.Get(f.Context(), name, 0, -1)
	if err != nil {
		f.Fatal(err)
	}
	good, err := io.ReadAll(body)
	_ = body.Close()
	if err != nil {
		f.Fatal(err)
	}
	store := filepath.Join(f.store, name)
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x41
		if i%7 == 0 {
			bad = good[:i] // truncated
		}
		if err := os.WriteFile(store, bad, 0o600); err != nil {
			f.Fatal(err)
		}
		dir := f.TempDir()
		f.Cleanup(func() { removable(dir) })
		w, err := workspace.Open(f.Context(), f.blobs, key)
		if err == nil {
			_, err = w.Restore(f.Context(), 0, root(f, dir))
		}
		if err == nil && len(describe(f, dir)) > 1 && fmt.Sprint(describe(f, dir)) != fmt.Sprint(want) && key != nil {
			f.Errorf("%s with byte %d changed gave another tree", name, i)
		}
		if code := sandbox.CodeOf(err); err != nil && code == sandbox.CodeInternal {
			f.Errorf("%s with byte %d changed: an error without a code: %v", name, i, err)
		}
	}
	if err := os.WriteFile(store, good, 0o600); err != nil {
		f.Fatal(err)
	}
}

// removable lets a user who is not root remove what is below a directory,
// whatever the modes.
func removable(dir string) { _ = exec.Command("chmod", "-R", "u+rwX", dir).Run() }

// While a tree is persisted, code in a sandbox puts links and FIFOs in the place
// of files and directories. Nothing outside may be read, and nothing may hang.
func TestAttackTreeThatFightsBack(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("canary"), 0o644); err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, nil)
	for i := range 50 {
		f.write(fmt.Sprintf("d%d/secret", i), "harmless")
		f.write(fmt.Sprintf("f%d", i), "harmless")
	}
	ctx, stop := context.WithCancel(t.Context())
	var attacker sync.WaitGroup
	attacker.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			d := filepath.Join(f.dir, fmt.Sprintf("d%d", n%50))
			file := filepath.Join(f.dir, fmt.Sprintf("f%d", n%50))
			_ = os.Rename(d, d+"-real") // what fails is tried again in a moment
			_ = os.Symlink(outside, d)
			_ = os.Remove(file)
			if n%2 == 0 {
				_ = unix.Mkfifo(file, 0o644)
			} else {
				_ = os.Symlink(filepath.Join(outside, "secret"), file)
			}
			_ = os.Remove(d)
			_ = os.Rename(d+"-real", d)
			_ = os.Remove(file)
			_ = os.WriteFile(file, []byte("harmless"), 0o644)
		}
	})
	for range 40 {
		v, err := f.tryPersist()
		if err != nil {
			t.Errorf("persist: %v", err)
			break
		}
		f.base = v.Number
	}
	stop()
	attacker.Wait()
	versions, err := f.w.History(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range versions {
		for _, line := range describe(t, f.restore(v.Number)) {
			if strings.Contains(line, fmt.Sprintf("%x", "canary")) {
				t.Fatalf("version %d holds what is outside: %s", v.Number, line)
			}
		}
	}
}

func TestDevicesAndSocketsAreLeftOut(t *testing.T) {
	f := newFixture(t, nil)
	f.write("file", "x")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	t.Chdir(f.dir) // a socket's path must be short
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "socket"}); err != nil {
		t.Fatal(err)
	}
	skipped := int64(1)
	if os.Geteuid() == 0 && unix.Mknod("null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) == nil {
		skipped++
	}
	if v := f.persist(); v.Skipped != skipped || v.Files != 1 {
		t.Errorf("%+v", v)
	}
	if got := describe(t, f.restore(0)); len(got) != 2 {
		t.Errorf("%q", got)
	}
}

func TestTooDeep(t *testing.T) {
	f := newFixture(t, nil)
	at := root(t, f.dir)
	for range 1100 {
		if err := at.Mkdir("d", 0o755); err != nil {
			t.Fatal(err)
		}
		below, err := at.OpenRoot("d")
		if err != nil {
			t.Fatal(err)
		}
		_ = at.Close()
		at = below
	}
	_ = at.Close()
	if _, err := f.tryPersist(); sandbox.CodeOf(err) != sandbox.CodeExhausted {
		t.Error(err)
	}
}

func TestManyFiles(t *testing.T) {
	f := newFixture(t, nil)
	files := 100_000
	if testing.Short() {
		files = 20_000 // make full makes all
	}
	r := root(t, f.dir)
	for i := range files {
		file, err := r.Create(fmt.Sprintf("f%06d", i))
		if err != nil {
			t.Fatal(err)
		}
		if i%1000 == 0 {
			_, err = fmt.Fprint(file, i)
		}
		if closeErr := file.Close(); err != nil || closeErr != nil {
			t.Fatal(err, closeErr)
		}
	}
	v := f.persist()
	if v.Files != int64(files) {
		t.Errorf("%d files", v.Files)
	}
	equalTrees(t, f.dir, f.restore(0))
}

func TestRestoreWantsAnEmptyDirectory(t *testing.T) {
	f := newFixture(t, nil)
	f.write("a", "x")
	f.persist()
	if _, err := f.w.Restore(t.Context(), 0, root(t, f.dir)); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Error(err)
	}
}
