package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// flock calls flock(2), and repeats it if a signal interrupts it.
func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// errLocked means that another process or goroutine holds the lock.
var errLocked = errors.New("locked")

// tryLock opens and locks the file name in the locks directory, or returns
// errLocked. Closing the file unlocks it. The holder of a lock may delete the
// file, so after locking tryLock checks that the file still has its name.
func (s *Store) tryLock(name string, how int) (*os.File, error) {
	path := filepath.Join(s.dir, "locks", name)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := flock(f, how|unix.LOCK_NB); err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, errLocked
			}
			return nil, err
		}
		held, err1 := f.Stat()
		named, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(held, named) {
			return f, nil
		}
		f.Close()
	}
}

// lock waits for a lock until ctx ends. waiting is called once if it has to
// wait. It polls, because a blocked flock cannot be canceled.
func (s *Store) lock(ctx context.Context, name string, how int, waiting func()) (*os.File, error) {
	for delay := time.Millisecond; ; delay = min(2*delay, 50*time.Millisecond) {
		f, err := s.tryLock(name, how)
		if !errors.Is(err, errLocked) {
			return f, err
		}
		if waiting != nil {
			waiting()
			waiting = nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(delay):
		}
	}
}

// The locks, in the order in which they are taken:
//
//	gc          shared while files are written; exclusive, and only if it is
//	            free, to remove what no record mentions
//	ref-HEX     one Get of one reference at a time
//	blob-HEX    one download of one blob at a time
//	rootfs-HEX  one build of one file system at a time
//	index       exclusive, for moments, to change refs and images
const (
	lockGC    = "gc"
	lockIndex = "index"
)
