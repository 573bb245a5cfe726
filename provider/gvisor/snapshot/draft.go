package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Sandbox is a sandbox that is paused while it is saved.
type Sandbox interface {
	// SaveMemory makes the kernel write its state and all of its memory to empty
	// files. The kernel continues afterwards, even after an error.
	SaveMemory(state, index, pages *os.File) error
	// SaveGuest writes the image of the guest's program to a new file.
	SaveGuest(path string) error
	// SaveFiles writes the changes of the sandbox's image; see package layer.
	SaveFiles(w io.Writer) error
}

// Draft is a snapshot that is being written. It is used by one goroutine.
type Draft struct {
	Manifest

	dir string
}

// New returns a draft in an empty directory. The caller completes the manifest
// before Finish, and sets its Memory before the first Save.
func New(dir string, m Manifest) *Draft {
	m.Format, m.Created = manifestFormat, time.Now().UTC()
	return &Draft{m, dir}
}

// SaveMemory writes the memory of a sandbox and the program that it needs. used
// is the memory that the sandbox has, in bytes: without enough space on the disk
// the error is ENOSPC.
func (d *Draft) SaveMemory(from Sandbox, used int64) error {
	if err := d.saveState(from, used); err != nil {
		return fmt.Errorf("saving the memory: %w", err)
	}
	if err := from.SaveGuest(filepath.Join(d.dir, fileGuest)); err != nil {
		return fmt.Errorf("saving the guest's program: %w", err)
	}
	return nil
}

func (d *Draft) saveState(from Sandbox, used int64) error {
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for _, name := range []string{fileKernel, fileIndex, filePages} {
		f, err := d.create(name)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	surplus, err := allocate(files[2], used)
	if err != nil {
		return err
	}
	defer surplus()
	return from.SaveMemory(files[0], files[1], files[2])
}

// SaveFiles writes the files of a sandbox.
func (d *Draft) SaveFiles(from Sandbox) error {
	out, err := d.create(fileFiles)
	if err == nil {
		err = errors.Join(from.SaveFiles(out), out.Close())
	}
	if err != nil {
		return fmt.Errorf("saving the files: %w", err)
	}
	return nil
}

// Finish writes the manifest, which completes the snapshot. It computes the
// checksums, for which the sandbox need not be paused. It does not sync to disk.
func (d *Draft) Finish(ctx context.Context) error { return d.write(ctx, d.dir) }

// create creates a part.
func (d *Draft) create(name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(d.dir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
}

// saveMargin is the disk space, besides its memory, for a kernel's data and for
// the writes of its programs meanwhile.
const saveMargin = 16 << 20

// allocate reserves disk space for the memory before the kernel writes, because
// a kernel does not survive running out of space. surplus returns the unused
// space.
func allocate(pages *os.File, used int64) (surplus func(), err error) {
	fd := int(pages.Fd())
	err = unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, max(used, 1))
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = nil // free space was checked, but is not reserved
	}
	var fs unix.Statfs_t
	if err == nil {
		err = unix.Fstatfs(fd, &fs)
	}
	if err == nil && int64(fs.Bavail)*fs.Bsize < saveMargin {
		err = unix.ENOSPC
	}
	if err != nil {
		return nil, fmt.Errorf("making room for %d bytes: %w", used, err)
	}
	return func() {
		if info, err := pages.Stat(); err == nil {
			_ = pages.Truncate(info.Size()) // frees the space beyond
		}
	}, nil
}
