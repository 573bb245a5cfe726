package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
)

// Reader opens snapshots. It may be used concurrently.
type Reader struct {
	// Restorable reports whether memory that an engine wrote can be restored here.
	// Of other snapshots only the files are used.
	Restorable func(engine string) bool
}

// Saved is a snapshot that is being restored. Its parts are open, so that the
// checked files are used even if the directory changes. It may be used
// concurrently.
type Saved struct {
	Manifest

	id    string // identifies this directory
	parts map[string]*os.File
	users *atomic.Int32
}

// ID identifies the snapshot as long as its files exist.
func (s *Saved) ID() string { return s.id }

// Share returns another reference, which the caller also closes; nil for nil.
func (s *Saved) Share() *Saved {
	if s != nil {
		s.users.Add(1)
	}
	return s
}

// Close gives up a reference. The last one closes the parts. Nil does nothing.
func (s *Saved) Close() {
	if s == nil || s.users.Add(-1) > 0 {
		return
	}
	for _, f := range s.parts {
		f.Close()
	}
}

// Removed reports whether the snapshot was removed since it was opened; false for
// nil.
func (s *Saved) Removed() bool {
	if s == nil {
		return false
	}
	var st unix.Stat_t
	return unix.Fstat(int(s.parts[fileManifest].Fd()), &st) != nil || st.Nlink == 0
}

// Open opens the snapshot in a directory and checks all of its parts. Damage
// returns CodeInvalid. The caller closes the snapshot.
func (r Reader) Open(ctx context.Context, dir string) (_ *Saved, err error) {
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, Damaged("%v", err)
	}
	defer unix.Close(d)
	s := &Saved{parts: map[string]*os.File{}, users: new(atomic.Int32)}
	s.Share()
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	f, err := openPart(d, fileManifest)
	if err != nil {
		return nil, err
	}
	s.parts[fileManifest] = f
	if s.id, err = identityOf(f); err != nil {
		return nil, err
	}
	js, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err != nil {
		return nil, err
	}
	if err := s.parse(js, r.Restorable); err != nil {
		return nil, err
	}
	for _, p := range s.all(r.Restorable) {
		if s.parts[p.Name], err = openPart(d, p.Name); err != nil {
			return nil, err
		}
		if err := p.check(ctx, s.parts[p.Name], s.Transient); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// identityOf returns a string that identifies an existing file.
func identityOf(f *os.File) (string, error) {
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	state, ok := stateOf(info)
	if !ok {
		return "", errors.ErrUnsupported
	}
	return fmt.Sprint(state), nil
}

// Files reads the files, as package layer writes them, from their beginning.
func (s *Saved) Files() io.Reader {
	return io.NewSectionReader(s.parts[fileFiles], 0, s.Parts[0].Size)
}

// State returns the state of the kernel, the index of its pages, and the pages.
// The files belong to the snapshot and share their offset with other callers.
func (s *Saved) State() []*os.File {
	return []*os.File{s.parts[fileKernel], s.parts[fileIndex], s.parts[filePages]}
}

// Guest returns the image with the guest's program that the memory needs, or nil
// if there is none. It belongs to the snapshot, as with State.
func (s *Saved) Guest() *os.File { return s.parts[fileGuest] }

// Describe returns the kind of the snapshot in a directory and the engine that
// wrote its memory. It does not check for damage to the parts.
func (r Reader) Describe(dir string) (driver.SnapshotKind, string, error) {
	f, err := os.Open(filepath.Join(dir, fileManifest))
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	js, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err != nil {
		return "", "", err
	}
	var m Manifest
	if err := m.parse(js, r.Restorable); err != nil {
		return "", "", err
	}
	if m.Memory == nil {
		return driver.SnapshotFilesystem, "", nil
	}
	return driver.SnapshotMemory, m.Memory.Engine, nil
}

// openPart opens a file of a snapshot and rejects anything but a regular file.
func openPart(dir int, name string) (*os.File, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, Damaged("%s: %v", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, Damaged("%s is not a file", name)
	}
	return f, nil
}

// check compares a part with the manifest.
func (p part) check(ctx context.Context, f *os.File, transient bool) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() != p.Size {
		return Damaged("%s has %d bytes and not %d", p.Name, info.Size(), p.Size)
	}
	if transient || verified.knows(info, p.Sum) {
		return nil
	}
	n, got, err := sum(ctx, f)
	switch {
	case err != nil:
		return err
	case n != p.Size || got != p.Sum:
		return Damaged("%s has a wrong checksum", p.Name)
	}
	verified.add(info, p.Sum)
	return nil
}
