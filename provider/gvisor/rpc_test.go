package gvisor

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestControlIsNotInherited checks that a connection to a kernel has O_CLOEXEC.
// Otherwise the kernel of another sandbox, started at the same time, would
// control this one.
func TestControlIsNotInherited(t *testing.T) {
	dir := t.TempDir()
	l, err := listenControl(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := unix.Listen(int(l.Fd()), 1); err != nil {
		t.Fatal(err)
	}
	before := inheritable(t)
	conn, err := dialControl(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if after := inheritable(t); after != before {
		t.Errorf("%d descriptors would be inherited, and %d with a connection", before, after)
	}
}

// inheritable counts this process's descriptors that are not closed on exec.
func inheritable(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	// Descriptors are dense, and fcntl on a closed one is harmless.
	n := 0
	for fd := range uintptr(len(entries) + 64) {
		if flags, err := unix.FcntlInt(fd, unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			n++
		}
	}
	return n
}
