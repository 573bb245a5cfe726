//go:build unix

package roundtrip

import (
	"net"
	"syscall"
)

// quiet reports whether a connection is open and nothing waits to be read on it:
// what comes without being asked for is no answer.
func quiet(c net.Conn) (ok bool) {
	s, known := c.(syscall.Conn)
	if !known {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	var one [1]byte
	err = raw.Control(func(fd uintptr) {
		_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		ok = err == syscall.EAGAIN || err == syscall.EINTR
	})
	return ok && err == nil
}
