// Package statedir finds and checks the state directory, for the engine and for
// programs without it.
package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// Open returns the state directory: dir, or from the environment, or the
// default. It makes it if it is missing, and checks that only the current user
// can write there, because its contents determine what sandboxes run.
func Open(dir string, env func(string) (string, bool)) (string, error) {
	if dir == "" {
		var err error
		if dir, err = byDefault(os.Geteuid(), env); err != nil {
			return "", err
		}
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", refuse(dir, err.Error(), "")
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return "", refuse(abs, reason(err), "choose another directory with --state-dir or $ATOLL_STATE_DIR")
	}
	// The path may be a symbolic link of ours; check the target.
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return "", refuse(dir, reason(err), "")
	}
	if err := CheckOwned(abs, uint32(os.Geteuid())); err != nil {
		return abs, err
	}
	return abs, closeToOthers(abs)
}

// closeToOthers removes other users' permissions from a directory.
func closeToOthers(dir string) error {
	info, err := os.Lstat(dir)
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = os.Chmod(dir, 0o700) //nolint:gosec // a directory
	}
	if err != nil {
		return refuse(dir, reason(err), "make it private: chmod 700 "+dir)
	}
	return nil
}

// byDefault follows the XDG base directory specification, except for
// root.
func byDefault(uid int, env func(string) (string, bool)) (string, error) {
	if dir, _ := env("ATOLL_STATE_DIR"); dir != "" {
		return dir, nil
	}
	if uid == 0 {
		return "/var/lib/atoll", nil
	}
	// The specification requires that a relative path is ignored.
	if dir, _ := env("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "atoll"), nil
	}
	if home, _ := env("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "atoll"), nil
	}
	return "", refuse("", "there is no home directory to keep state in", "choose a directory with --state-dir or $ATOLL_STATE_DIR")
}

// CheckOwned checks that dir is a directory of the user, and that no other user
// can write to it.
func CheckOwned(dir string, uid uint32) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return refuse(dir, reason(err), "")
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return refuse(dir, "is not a directory", "")
	case st.Uid != uid:
		return refuse(dir, fmt.Sprintf("belongs to user %d and not to you", st.Uid), "choose another directory with --state-dir or $ATOLL_STATE_DIR")
	case st.Mode&0o022 != 0:
		return refuse(dir, "can be written to by others", "if that was not intended: chmod go-w "+dir)
	}
	return nil
}

func refuse(dir, message, hint string) error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "state.open", Subject: dir, Message: "the state directory cannot be used: " + message, Hint: hint}
}

// reason returns an error without its path, which the message already contains.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}
