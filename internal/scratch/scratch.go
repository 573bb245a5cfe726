// Package scratch makes temporary directories that go even if their maker is
// killed: what it leaves, the next who asks for one of the kind removes.
package scratch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// young is how old a directory must be before the lack of a lock means that
// its maker is gone, and not that it has just begun.
const young = time.Minute

// Dir makes a directory below the system's temporary one whose name begins
// with prefix, which no other prefix in use begins with. Everybody may pass
// through it. It goes with remove, which must be called once, or after the end
// of this process when Dir is called with the same prefix.
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

// sweep removes what nobody holds any more. Directories that cannot be removed
// are left for the next sweep; they may belong to another user.
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
