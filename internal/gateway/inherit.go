package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/gateway/messages"
)

// socketName is the socket on which a lingering gateway process waits for the
// next control plane. Only the owner of the directory can connect to it.
const socketName = "control"

// handOverTimeout limits the time that an earlier process may take to hand
// over.
const handOverTimeout = 10 * time.Second

// Resume takes over the links of a gateway process that an earlier daemon left.
// Otherwise this happens with the first new link.
func (g *Gateway) Resume(ctx context.Context) error {
	g.op.Lock()
	defer g.op.Unlock()
	if err := g.inherit(); err != nil {
		return err
	}
	g.mu.Lock()
	needed := g.process == nil && len(g.links) > 0 && !g.closed
	g.mu.Unlock()
	if !needed {
		return nil
	}
	_, err := g.start()
	return err
}

// inherit takes over the links of an earlier process, once. The caller holds
// g.op.
func (g *Gateway) inherit() error {
	if g.inherited || !g.opts.Linger {
		return nil
	}
	conn, err := dialIn(g.opts.Dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		g.inherited = true // there is no earlier process
		return nil
	} else if err != nil {
		return fmt.Errorf("an earlier gateway process does not respond: %w", err)
	}
	defer conn.Close()
	stop := time.AfterFunc(handOverTimeout, func() { conn.Close() })
	defer stop.Stop()
	for {
		m, files, err := conn.Receive()
		if err != nil {
			return fmt.Errorf("an earlier gateway process does not hand over its links: %w", err)
		}
		switch {
		case m.Op == messages.OpHeld && m.Add != nil && len(files) == 1:
			g.keep(m, files[0])
		case m.Op == messages.OpHandedOver:
			g.inherited = true
			return conn.Send(&messages.Message{Op: messages.OpQuit})
		default:
			messages.CloseAll(files)
		}
	}
}

// keep stores an inherited link.
func (g *Gateway) keep(m *messages.Message, f *os.File) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.links[m.Sandbox] != nil {
		f.Close()
		return
	}
	if m.Add.Names == nil {
		m.Add.Names = map[string]uint16{}
	}
	g.links[m.Sandbox] = &link{file: f, add: *m.Add}
}

// dialIn connects to the socket in a directory. The path may be longer than the
// 108 bytes of a socket address.
func dialIn(dir string) (*messages.Conn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: inDir(d, socketName)})
	if err != nil {
		return nil, err
	}
	return messages.NewConn(c), nil
}

// listenIn creates the socket and replaces one that an earlier process left.
func listenIn(dir string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	if err := os.Remove(filepath.Join(dir, socketName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), socketName)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: inDir(d, socketName)}); err != nil {
		f.Close()
		return nil, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(fd, 4); err != nil {
		f.Close()
		return nil, os.NewSyscallError("listen", err)
	}
	return f, nil
}

func inDir(d *os.File, name string) string {
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(d.Fd())), name)
}
