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

// nestedPoint is the socket of a guest that is not process 1. It differs from
// meetingPoint because the surrounding sandbox may be an Atoll sandbox.
const nestedPoint = "@atoll-nested"

// serveNested runs the guest in a sandbox of another product. It lives as long
// as that sandbox: background commands outlive their callers.
func serveNested(program string) int {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	a := newAgent("/")
	a.start()
	a.remember(filepath.Join(filepath.Dir(program), "defaults"))
	if err := a.listen(nestedPoint); err != nil {
		return 1 // another nested guest is already listening
	}
	unix.Close(wire.LinkIn) // closing it signals readiness to the parent
	select {}
}

// join runs the guest as "join": it connects its standard input and output with
// the nested guest, and ends when either closes.
func join(program string) int {
	feed := os.Getenv(wire.FeedEnv)
	_ = os.Unsetenv(wire.FeedEnv) //nolint:forbidigo // a separate process, whose children must not inherit it
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
		err = unix.SetNonblock(0, true) // so that reads can be interrupted
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

// startNested starts the nested guest in a new session and waits until it
// listens or has ended.
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

// remember stores the defaults of commands in a file from now on, and loads
// defaults that are stored there. A sandbox that was stopped and started again
// has a new guest, which needs them.
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

// record stores the defaults for the next guest, if the file can be written.
// They may contain secrets, so the file is readable by root only.
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

// source is a reader of frames with a deadline.
type source interface {
	io.Reader
	SetReadDeadline(t time.Time) error
}

// deframe copies the content of frames to to. It ends when the stream ends,
// when a frame is malformed, or when no frame arrives in time, because a
// vanished caller is not reported in any other way.
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

// thawed is the extra time that a caller gets after its deadline.
const thawed = 5 * time.Second

// readHeader reads the header of a frame. After a deadline it tries once more:
// if the machine was frozen, the caller's frame is already waiting.
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
