// Package scratch creates temporary directories that are removed even if their
// creator is killed: the next call of Dir with the same prefix removes them.
package scratch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// young is the age below which an unlocked directory is assumed to be new, not
// abandoned.
const young = time.Minute

// Dir creates a directory below the system's temporary directory. Its name
// begins with prefix, which must not be a prefix of another one in use. Other
// users can traverse it. It is removed by remove, which must be called once, or
// after the end of this process by the next Dir with the same prefix.
func Dir(prefix string) (dir string, remove func() error, err error) {
	sweep(prefix, time.Now())
	dir, err = os.MkdirTemp("", prefix)
	if err != nil {
		return "", nil, err
	}
	lock, err := hold(dir)
	if err == nil {
		err = os.Chmod(dir, 0o711)
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("keeping %s: %w", dir, err), lock.Close())
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, func() error {
		return errors.Join(os.RemoveAll(dir), lock.Close())
	}, nil
}

// sweep removes abandoned directories. Directories that cannot be removed,
// perhaps because they belong to another user, are skipped.
func sweep(prefix string, now time.Time) {
	entries, err := os.ReadDir(os.TempDir())
	if err != nil {
		return
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.IsDir() && strings.HasPrefix(e.Name(), prefix) && now.Sub(info.ModTime()) > young {
			sweepOne(filepath.Join(os.TempDir(), e.Name()))
		}
	}
}
