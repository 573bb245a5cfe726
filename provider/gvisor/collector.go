package gvisor

import (
	"os"

	"golang.org/x/sys/unix"
)

// A kernel that writes itself down, or becomes another one, makes a lot of what
// is rubbish a moment later, and everybody waits for it. So it is told before,
// by a pipe, to leave that to lie for a moment. It is advice: a kernel that does
// not get it is slower.

// makeCollector makes the pipe, and opens it for the kernel, which finds it
// empty and not at its end.
func (b box) makeCollector() (*os.File, error) {
	name := b.path(fileCollector)
	if err := unix.Mkfifo(name, 0o600); err != nil {
		return nil, &os.PathError{Op: "mkfifo", Path: name, Err: err}
	}
	return os.OpenFile(name, os.O_RDWR|unix.O_NONBLOCK, 0)
}

// announce tells the kernel what it will do next: kernel.Saving or
// kernel.Restoring. One that an older Atoll made has no pipe.
func (b box) announce(what byte) {
	fd, err := unix.Open(b.path(fileCollector), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	_, _ = unix.Write(fd, []byte{what})
}
