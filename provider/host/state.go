package host

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Files in a sandbox's directory.
const (
	filesDir   = "files"  // what file operations are confined to, and commands start in
	tempDir    = "tmp"    // for temporary files
	recordFile = "record" // what List tells to other processes
	lockFile   = "lock"   // held for as long as the sandbox lives
	newPrefix  = ".new-"  // of a directory that is being made
)

// record is what is kept about a sandbox. It holds no secret.
type record struct {
	Created time.Time         `json:"created"`
	Labels  map[string]string `json:"labels,omitempty"`
}

func readRecord(dir string) (rec record, err error) {
	b, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err == nil {
		err = json.Unmarshal(b, &rec)
	}
	return rec, err
}

// newDir makes the directory of a sandbox whole before it gets its name, so
// that nobody ever sees half of one. The lock it returns is closed to give the
// sandbox up.
func newDir(base string, id sandbox.ID, rec record) (lock *os.File, err error) {
	tmp, err := os.MkdirTemp(base, newPrefix)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(tmp)
			if lock != nil {
				lock.Close()
			}
		}
	}()
	lock, err = os.OpenFile(filepath.Join(tmp, lockFile), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return lock, err
	}
	b, err := json.Marshal(rec)
	if err != nil {
		return lock, err
	}
	if err := os.WriteFile(filepath.Join(tmp, recordFile), b, 0o600); err != nil {
		return lock, err
	}
	for name, mode := range map[string]fs.FileMode{filesDir: 0o755, tempDir: 0o777 | fs.ModeSticky, ".": dirMode()} {
		dir := filepath.Join(tmp, name)
		if name != "." {
			if err := os.Mkdir(dir, 0o700); err != nil {
				return lock, err
			}
		}
		if err := os.Chmod(dir, mode); err != nil {
			return lock, err
		}
	}
	err = os.Rename(tmp, filepath.Join(base, string(id)))
	if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) {
		err = &sandbox.Error{Code: sandbox.CodeAlreadyExists, Op: "host.create", Subject: string(id), Message: "there is a sandbox with this ID"}
	}
	return lock, err
}

// locked reports whether a sandbox lives, in whatever process.
func locked(dir string) bool {
	f, err := os.Open(filepath.Join(dir, lockFile))
	if err != nil {
		return false
	}
	defer f.Close()
	// Shared, so that two who look do not take each other for the owner.
	return errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}

// sweep removes what nobody holds any more: a process was killed together with
// its guests.
func (p *Provider) sweep() error {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		dir := filepath.Join(p.dir, e.Name())
		unfinished := strings.HasPrefix(e.Name(), newPrefix)
		if unfinished && recent(dir) {
			continue // perhaps somebody is just making it
		}
		if !e.IsDir() || (!unfinished && sandbox.ValidateName(e.Name()) != nil) || locked(dir) {
			continue
		}
		if !unfinished {
			if _, err := os.Lstat(filepath.Join(dir, recordFile)); err != nil {
				continue // not ours
			}
			killMarked(sandbox.ID(e.Name()), dir)
		}
		if err := removeAll(dir); err != nil {
			return err
		}
	}
	return nil
}

// recent covers the moment between a directory and its lock.
func recent(dir string) bool {
	info, err := os.Lstat(dir)
	return err != nil || time.Since(info.ModTime()) < time.Minute
}

// removeAll removes a tree in which directories may be unreadable, even to
// their owner.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, 0o700) //nolint:gosec // It is about to be removed.
		}
		return nil
	})
	return os.RemoveAll(dir)
}

func isFull(err error) bool {
	for _, e := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
