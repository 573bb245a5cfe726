package agent

import (
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
)

// pipes is a connection made of two pipes.
type pipes struct{ in, out *os.File }

func (p *pipes) Read(b []byte) (int, error)  { return p.in.Read(b) }
func (p *pipes) Write(b []byte) (int, error) { return p.out.Write(b) }

func (p *pipes) Close() error {
	p.out.Close()
	return p.in.Close()
}

// linkFDs returns the descriptors of the connection that this process was
// started with.
func linkFDs() []int {
	if isSocket(wire.LinkIn) {
		return []int{wire.LinkIn}
	}
	return []int{wire.LinkIn, wire.LinkOut}
}

func isSocket(fd int) bool {
	typ, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	return err == nil && typ == unix.SOCK_STREAM
}

// openFirstLink opens the connection that process 1 was started with. The
// original descriptors stay open, because a restored sandbox gets its first
// connection through them.
func openFirstLink() (io.ReadWriteCloser, error) {
	if isSocket(wire.LinkIn) {
		return openSocket(wire.LinkIn)
	}
	in, err := unix.FcntlInt(wire.LinkIn, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	out, err := unix.FcntlInt(wire.LinkOut, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		unix.Close(in)
		return nil, err
	}
	return openLink([]int{in, out})
}

// openLink creates a connection from its descriptors. If that fails, the caller
// still owns them.
func openLink(fds []int) (io.ReadWriteCloser, error) {
	if len(fds) == 1 {
		return openSocket(fds[0])
	}
	for _, fd := range fds {
		if err := openable(fd, unix.S_IFIFO); err != nil {
			return nil, err
		}
	}
	return &pipes{os.NewFile(uintptr(fds[0]), "link"), os.NewFile(uintptr(fds[1]), "link")}, nil
}

func openSocket(fd int) (io.ReadWriteCloser, error) {
	if !isSocket(fd) {
		return nil, unix.ENOTSOCK
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, wire.SocketBuffer)
	if err := openable(fd, unix.S_IFSOCK); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "link"), nil
}

// openable checks the kind of a file and makes it non-blocking.
func openable(fd int, kind uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != kind {
		return unix.EINVAL
	}
	return unix.SetNonblock(fd, true)
}

// links is the set of connections being served.
type links struct {
	mu   sync.Mutex
	open map[io.Closer]chan struct{}
}

// add registers a connection until remove is called.
func (l *links) add(c io.Closer) (remove func()) {
	done := make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = map[io.Closer]chan struct{}{}
	}
	l.open[c] = done
	return func() {
		l.mu.Lock()
		delete(l.open, c)
		l.mu.Unlock()
		close(done)
	}
}

// closeAll closes all connections and returns when none is in use.
func (l *links) closeAll() {
	l.mu.Lock()
	var served []chan struct{}
	for c, done := range l.open {
		c.Close()
		served = append(served, done)
	}
	l.mu.Unlock()
	for _, done := range served {
		<-done
	}
}

// closeNamed closes the connections that are files with a name, and returns when
// they are not in use.
func (l *links) closeNamed(name string) {
	l.mu.Lock()
	var served []chan struct{}
	for c, done := range l.open {
		if f, ok := c.(*os.File); ok && f.Name() == name {
			f.Close()
			served = append(served, done)
		}
	}
	l.mu.Unlock()
	for _, done := range served {
		<-done
	}
}
