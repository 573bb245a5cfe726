//go:build unix

package template

import (
	"os"
	"syscall"
)

// lock locks a file until it is closed, and reports whether it succeeded.
func lock(f *os.File) bool { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil }
