package spawn

import (
	"syscall"
	"time"
	"unsafe"
)

// pollFD is the kernel's struct pollfd.
type pollFD struct {
	fd      int32
	events  int16
	revents int16
}

const pollIn = 1

// Await waits until one of at most three descriptors is readable, at its end
// or, for a pidfd, until the process has ended, or until the time is over. It
// reports whether it was the first one. Like Wait, it releases its processor in
// Go's scheduler.
func Await(most time.Duration, fds ...int) (first bool) {
	var list [3]pollFD
	for i, fd := range fds {
		list[i] = pollFD{fd: int32(fd), events: pollIn}
	}
	left := syscall.NsecToTimespec(most.Nanoseconds())
	for poll(&list[0], len(fds), &left) == syscall.EINTR { // the kernel writes the rest of the time to left
	}
	return list[0].revents != 0
}

//go:noinline
//go:norace
//go:nosplit
func poll(list *pollFD, n int, left *syscall.Timespec) syscall.Errno {
	entersyscallblock()
	errno := rawPoll(list, n, left)
	exitsyscall()
	return errno
}

//go:noinline
//go:norace
//go:nosplit
func rawPoll(list *pollFD, n int, left *syscall.Timespec) syscall.Errno {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(list)), uintptr(n), uintptr(unsafe.Pointer(left)), 0, 0, 0)
	return errno
}
