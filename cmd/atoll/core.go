//go:build linux && !light

package main

import "golang.org/x/sys/unix"

// leaveNoCore disables core files for this process and its children, because
// its memory contains secrets. A kernel that pipes cores to a program honours a
// limit of one byte, but ignores a limit of zero. If the limit is already zero,
// only root can raise it.
func leaveNoCore() error {
	if unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}) == nil {
		return nil
	}
	return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
}
