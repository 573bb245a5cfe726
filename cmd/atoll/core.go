//go:build linux

package main

import "golang.org/x/sys/unix"

// leaveNoCore keeps the memory of this process, which holds values of secrets,
// out of core files, and what it starts inherits that. A kernel that hands cores
// to a program asks for a limit of one byte, and ignores one of none. Where the
// limit is none already, nobody but root can raise it.
func leaveNoCore() error {
	if unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}) == nil {
		return nil
	}
	return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
}
