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
	filesDir   = "files"  // root of file operations and working directory of commands
	tempDir    = "tmp"    // for temporary files
	recordFile = "record" // the data for List in other processes
	lockFile   = "lock"   // locked while the sandbox lives
	newPrefix  = ".new-"  // prefix of unfinished directories
)

// record is the stored data of a sandbox. Only its owner can read it.
type record struct {
	Created time.Time         `json:"created"`
	Labels  map[string]string `json:"labels,omitempty"`
	Again   *again            `json:"again,omitempty"` // of a sandbox of a Workdir
}

// again is what is needed to start a sandbox again.
type again struct {
	Env     map[string]string `json:"env,omitempty"`
	User    string            `json:"user,omitempty"`
	Workdir string            `json:"workdir,omitempty"`
	Timeout time.Duration     `json:"timeout,omitempty"`
}

// takeLock takes the lock of a sandbox that no process has.
func takeLock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, &sandbox.Error{Code: sandbox.CodeConflict, Op: "host.attach", Subject: dir, Message: "another process has the sandbox", Cause: err}
	}
	return f, nil
}

func readRecord(dir string) (rec record, err error) {
	b, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err == nil {
		err = json.Unmarshal(b, &rec)
	}
	return rec, err
}

// newDir creates the directory of a sandbox under a temporary name and renames
// it when it is complete. Closing the returned lock releases the sandbox.
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
		err = &sandbox.Error{Code: sandbox.CodeAlreadyExists, Op: "host.create", Subject: string(id), Message: "a sandbox with this ID already exists"}
	}
	return lock, err
}

// locked reports whether a sandbox is alive in any process.
func locked(dir string) bool {
	f, err := os.Open(filepath.Join(dir, lockFile))
	if err != nil {
		return false
	}
	defer f.Close()
	// A shared lock, so that two concurrent checks do not take each other for the
	// owner.
	return errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}

// sweep removes directories that are not locked: their process and its guests
// were killed.
func (p *Provider) sweep() error {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		dir := filepath.Join(p.dir, e.Name())
		if p.workdir != "" && !strings.HasPrefix(e.Name(), newPrefix) {
			if !locked(dir) {
				killMarked(sandbox.ID(e.Name()), dir)
			}
			continue
		}
		unfinished := strings.HasPrefix(e.Name(), newPrefix)
		if unfinished && recent(dir) {
			continue // it may just be being created
		}
		if !e.IsDir() || (!unfinished && sandbox.ValidateName(e.Name()) != nil) || locked(dir) {
			continue
		}
		if !unfinished {
			if _, err := os.Lstat(filepath.Join(dir, recordFile)); err != nil {
				continue // not a sandbox's directory
			}
			killMarked(sandbox.ID(e.Name()), dir)
		}
		if err := removeAll(dir); err != nil {
			return err
		}
	}
	return nil
}

// recent covers the moment between creating a directory and locking it.
func recent(dir string) bool {
	info, err := os.Lstat(dir)
	return err != nil || time.Since(info.ModTime()) < time.Minute
}

// removeAll removes a tree that may contain directories which even their owner
// cannot read.
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
