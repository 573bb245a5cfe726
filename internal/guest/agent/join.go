package agent

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
)

// nestedPoint is where a guest that is not process 1 takes connections. It is
// another than process 1's, for the sandbox around it may be one of ours.
const nestedPoint = "@atoll-nested"

// serveNested is the guest in a sandbox that somebody else keeps. It lives as
// long as that does: its commands in the background outlive their callers.
func serveNested(program string) int {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	a := newAgent("/")
	a.start()
	a.remember(filepath.Join(filepath.Dir(program), "defaults"))
	if err := a.listen(nestedPoint); err != nil {
		return 1 // another was faster
	}
	unix.Close(wire.LinkIn) // tells whoever started it
	select {}
}

// join is the guest as "join": it connects its standard input and output with
// the nested guest, and ends when either does.
func join(program string) int {
	feed := os.Getenv(wire.FeedEnv)
	_ = os.Unsetenv(wire.FeedEnv) //nolint:forbidigo // a process of its own, whose children must not have it
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 1
	}
	code := offer(nestedPoint, fds[1:])
	if code == refused {
		if startNested(program) != nil {
			return 1
		}
		code = offer(nestedPoint, fds[1:])
	}
	unix.Close(fds[1])
	if code != 0 {
		return code
	}
	link, err := openSocket(fds[0])
	if err == nil && feed != "" {
		return converse(link, feed)
	}
	if err == nil {
		err = unix.SetNonblock(0, true) // so that waiting for it can end
	}
	if err != nil {
		return 1
	}
	go func() {
		_ = deframe(link, os.NewFile(0, "stdin"))
		link.Close()
	}()
	_, _ = io.Copy(os.NewFile(1, "stdout"), link)
	return 0
}

// startNested starts the nested guest, in a session of its own, and waits until
// it listens or has ended.
func startNested(program string) error {
	var ready [2]int
	if err := unix.Pipe2(ready[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	defer unix.Close(ready[0])
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		fd := uintptr(null)
		_, err = syscall.ForkExec(program, []string{program, wire.NestedArg}, &syscall.ProcAttr{
			Dir: "/", Env: os.Environ(), Files: []uintptr{fd, fd, fd, uintptr(ready[1])}, Sys: &syscall.SysProcAttr{Setsid: true},
		})
		unix.Close(null)
	}
	unix.Close(ready[1])
	if err != nil {
		return err
	}
	for {
		if _, err := unix.Read(ready[0], make([]byte, 1)); err != unix.EINTR {
			return err
		}
	}
}

// remember keeps the defaults of commands in a file from now on, and takes those
// that are there: a machine that was stopped and started again has a new guest.
func (a *agent) remember(file string) {
	a.memory = file
	text, err := os.ReadFile(file)
	if err != nil {
		return
	}
	var def wire.Defaults
	d := &wire.Decoder{B: text}
	def.Decode(d)
	if d.End() == nil {
		a.defaults = def
	}
}

// record writes the defaults where the next guest finds them, unless nothing
// can be written there. They may hold secrets: only root reads them.
func (a *agent) record(def *wire.Defaults) {
	if a.memory == "" {
		return
	}
	var e wire.Encoder
	def.Encode(&e)
	tmp, err := os.CreateTemp(filepath.Dir(a.memory), ".defaults-")
	if err != nil {
		return
	}
	_, err = tmp.Write(e.B)
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), a.memory)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
}

// source is where frames come from.
type source interface {
	io.Reader
	SetReadDeadline(t time.Time) error
}

// deframe copies what frames hold until they end, make no sense, or do not come
// in time: then the caller is gone, and nobody else would tell.
func deframe(to io.Writer, from source) error {
	buf := make([]byte, wire.MaxJoin)
	for {
		if err := from.SetReadDeadline(time.Now().Add(wire.JoinSilence)); err != nil {
			return err
		}
		if err := readHeader(from, buf[:wire.JoinHeader]); err != nil {
			return err
		}
		n := binary.BigEndian.Uint32(buf)
		if n > wire.MaxJoin {
			return wire.ErrProtocol
		}
		if _, err := io.ReadFull(from, buf[:n]); err != nil {
			return err
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return err
		}
	}
}

// thawed is how long a caller may take to be heard whose time is over.
const thawed = 5 * time.Second

// readHeader reads the header of a frame. When the time is over, the machine may
// have been frozen meanwhile: then what the caller sent is there to be read.
func readHeader(from source, header []byte) error {
	n, err := io.ReadFull(from, header)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	if err := from.SetReadDeadline(time.Now().Add(thawed)); err != nil {
		return err
	}
	_, err = io.ReadFull(from, header[n:])
	return err
}
