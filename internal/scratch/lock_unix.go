//go:build unix

package scratch

import (
	"io"
	"os"
	"syscall"
)

// hold locks a directory until the process ends. The caller closes the result,
// even after an error.
func hold(dir string) (io.Closer, error) {
	lock, err := os.Open(dir)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	return lock, err
}

// sweepOne removes a directory of this user that no process holds.
func sweepOne(dir string) {
	lock, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer lock.Close()
	info, err := lock.Stat()
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
		return
	}
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		_ = os.RemoveAll(dir)
	}
}
