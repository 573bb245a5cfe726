package remote

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// limitSilence sets [Silence] for a new socket.
func limitSilence(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(Silence.Milliseconds()))
	})
	return errors.Join(err, failed)
}
