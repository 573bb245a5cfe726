package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// still is a sandbox in which nothing happens.
type still struct{ fails error }

func (s still) SaveMemory(state, index, pages *os.File) error {
	for f, text := range map[*os.File]string{state: "state", index: "index", pages: "pages"} {
		if _, err := f.WriteString(text); err != nil {
			return err
		}
	}
	return s.fails
}

func (still) SaveGuest(path string) error { return os.WriteFile(path, []byte("guest"), 0o600) }

func (still) SaveFiles(w io.Writer) error {
	_, err := io.WriteString(w, "files")
	return err
}

// write writes a snapshot to a new directory; without an engine, without memory.
func write(t *testing.T, engine string, transient bool) (dir string) {
	t.Helper()
	dir = t.TempDir()
	d := New(dir, Manifest{Image: "host", Transient: transient})
	var err error
	if engine != "" {
		d.Memory = &Memory{Engine: engine, Guest: "x", CPU: []string{"avx"}}
		err = d.SaveMemory(still{}, 1)
	}
	if err == nil {
		err = d.SaveFiles(still{})
	}
	if err == nil {
		err = d.Finish(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func text(t *testing.T, f *os.File) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A snapshot is read as it was written. Memory of another engine is left out.
func TestWrittenSnapshots(t *testing.T) {
	r := Reader{Restorable: own}
	for _, engine := range []string{"", "own", "other"} {
		dir := write(t, engine, false)
		kind, of, err := r.Describe(dir)
		if want := map[bool]driver.SnapshotKind{true: driver.SnapshotMemory, false: driver.SnapshotFilesystem}[engine != ""]; kind != want || of != engine || err != nil {
			t.Errorf("engine %q: it is %s of %q, %v; want %s of %q", engine, kind, of, err, want, engine)
		}
		s, err := r.Open(t.Context(), dir)
		if err != nil {
			t.Fatalf("engine %q: %v", engine, err)
		}
		if files, err := io.ReadAll(s.Files()); string(files) != "files" || err != nil || s.Image != "host" {
			t.Errorf("engine %q: the files are %q of %q, %v", engine, files, s.Image, err)
		}
		if (s.Guest() != nil) != own(engine) {
			t.Errorf("engine %q: there is a guest: %v", engine, s.Guest() != nil)
		}
		if own(engine) {
			state := s.State()
			if got := text(t, state[0]) + text(t, state[1]) + text(t, state[2]) + text(t, s.Guest()); got != "stateindexpagesguest" {
				t.Errorf("the memory is %q", got)
			}
		}
		s.Close()
	}
}

// The parts of a snapshot stay open until the last user closes it, even if it is
// removed.
func TestSharedSnapshot(t *testing.T) {
	dir := write(t, "", false)
	s, err := Reader{Restorable: own}.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	other := s.Share()
	s.Close()
	if other.Removed() {
		t.Error("a snapshot that exists was removed")
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if files, err := io.ReadAll(other.Files()); string(files) != "files" || err != nil || !other.Removed() {
		t.Errorf("after its removal, the files are %q, %v; removed: %v", files, err, other.Removed())
	}
	other.Close()
	if _, err := io.ReadAll(other.Files()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after the last user has closed it: %v, want %v", err, os.ErrClosed)
	}
	var none *Saved
	none.Share().Close()
	if none.Removed() {
		t.Error("no snapshot was removed")
	}
}

// Each damaged or exchanged part is found, unless the snapshot is transient: then
// only its size is compared.
func TestDamagedSnapshots(t *testing.T) {
	r := Reader{Restorable: own}
	for _, part := range []string{fileManifest, fileFiles, fileKernel, fileIndex, filePages, fileGuest} {
		for how, damage := range map[string]func(path string) error{
			"changed": func(path string) error {
				b, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				return os.WriteFile(path, append(bytes.ToUpper(b[:1]), b[1:]...), 0o600)
			},
			"shorter": func(path string) error { return os.Truncate(path, 2) },
			"removed": os.Remove,
			"a pipe":  func(path string) error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) },
			"a link": func(path string) error {
				return errors.Join(os.Rename(path, path+".1"), os.Symlink(path+".1", path))
			},
		} {
			for _, transient := range []bool{false, true} {
				dir := write(t, "own", transient)
				if part == fileManifest && how == "changed" {
					damage = func(path string) error { return os.WriteFile(path, []byte(`{"format":1}`+"\n00000000\n"), 0o600) }
				}
				if err := damage(filepath.Join(dir, part)); err != nil {
					t.Fatal(err)
				}
				s, err := r.Open(t.Context(), dir)
				s.Close()
				unseen := transient && how == "changed" && part != fileManifest
				if want := map[bool]sandbox.Code{false: sandbox.CodeInvalid}[unseen]; sandbox.CodeOf(err) != want {
					t.Errorf("%s, transient %v: %s: %v; want %q", part, transient, how, err, want)
				}
			}
		}
	}
}

// If the kernel cannot write its memory, nothing else is asked of it.
func TestMemoryIsNotSaved(t *testing.T) {
	dir := t.TempDir()
	d := New(dir, Manifest{})
	d.Memory = &Memory{}
	why := errors.New("no")
	if err := d.SaveMemory(still{fails: why}, 0); !errors.Is(err, why) || !strings.HasPrefix(err.Error(), "saving the memory: ") {
		t.Errorf("it fails with %v, want %v", err, why)
	}
	if _, err := os.Stat(filepath.Join(dir, fileGuest)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the guest's program was saved: %v", err)
	}
	if err := New(t.TempDir(), Manifest{}).SaveMemory(still{}, 1<<62); err == nil {
		t.Error("more memory than the disk has room for was saved")
	}
}
