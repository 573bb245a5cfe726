package confine

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// capset sets the capabilities of all threads.
func capset(head *unix.CapUserHeader, data *[2]unix.CapUserData) error {
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(head)), uintptr(unsafe.Pointer(data)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
