//go:build linux

package unpack

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// errLocked means that another process has unpacked for too long.
var errLocked = errors.New("another process has been unpacking the engine for " + lockTime.String())

// lock waits for a lock, which ends with its holder.
func lock(path string, limit time.Duration) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(limit); ; time.Sleep(lockPoll) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return func() { _ = f.Close() }, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return nil, errors.Join(err, f.Close())
		case time.Now().After(end):
			return nil, errors.Join(errLocked, f.Close())
		}
	}
}

var digests = regexp.MustCompile("^[0-9a-f]{64}$")

// Self returns the path of the program that the user called. If this process is
// an unpacked engine, Self also keeps the engine from being removed as long as
// the process lives.
func Self() string {
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	dir := filepath.Dir(self)
	if !digests.MatchString(filepath.Base(dir)) || filepath.Base(filepath.Dir(dir)) != dirName {
		return self
	}
	if fd, err := unix.Open("/proc/self/exe", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil { // is never closed
		_ = unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB)
	}
	if len(os.Args) > 0 && filepath.IsAbs(os.Args[0]) {
		return os.Args[0] // see Exec
	}
	return self
}

// removeOthers removes engines of other versions that no process runs and that
// were not started in the last hour. It is best effort: a later call finds what
// is left.
func removeOthers(dir, digest string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	others := 0
	for _, e := range entries {
		if digests.MatchString(e.Name()) && e.Name() != digest {
			others++
		}
	}
	if others == 0 {
		return
	}
	release, err := lock(filepath.Join(dir, lockName), 0)
	if err != nil {
		return
	}
	defer release()
	for _, e := range entries {
		if digests.MatchString(e.Name()) && e.Name() != digest && unused(filepath.Join(dir, e.Name(), programName)) {
			_ = os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
}

// unused reports whether an engine can be removed. One that is missing can.
func unused(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || time.Since(time.Unix(st.Mtim.Sec, st.Mtim.Nsec)) < unusedTime {
		return false
	}
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// clearUnfinished removes what processes left that ended while they unpacked. The
// caller holds the lock.
func clearUnfinished(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), temporary) {
			_ = os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
}
