package agent

import (
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// stdio is the guest's side of a command's standard streams. They are pipes or
// a terminal inside the sandbox, so they survive a checkpoint.
type stdio struct {
	out, err *os.File // err is nil on a terminal
	raw      *[2]int  // the descriptors of out and err until open is called

	mu  sync.Mutex
	in  *os.File // nil without input or after its end; the main side of a terminal
	tty *os.File
	// taken is how many bytes of input the pipe or terminal has accepted.
	taken int64
}

// ends is the command's side of its streams.
type ends struct {
	files [3]int // its descriptors 0, 1 and 2
	own   []int  // those to close here once the command has them
}

// openStdio creates the streams. The caller owns the returned descriptors.
func (a *agent) openStdio(s *stdio, c *sandbox.Command, acc account) (ends, error) {
	if c.TTY != nil {
		return openTerminal(s, *c.TTY, acc)
	}
	e := ends{own: make([]int, 0, 3)}
	err := a.openInput(s, &e, c.Stdin)
	s.raw = &[2]int{-1, -1}
	for i := 0; err == nil && i < len(s.raw); i++ {
		if s.raw[i], e.files[i+1], err = pipe(); err == nil {
			e.own = append(e.own, e.files[i+1])
		}
	}
	if err != nil {
		closeFDs(e.own)
		s.close()
		return e, err
	}
	a.giveAway(e.own, acc)
	return e, nil
}

// giveAway makes a command's user the owner of pipes. Without it, opening
// /dev/stdout by name would need root.
func (a *agent) giveAway(fds []int, acc account) {
	if !a.self.root || acc.uid == a.self.uid {
		return
	}
	for _, fd := range fds {
		_ = unix.Fchown(fd, int(acc.uid), -1)
	}
}

// openInput creates the input, or one at its end: the shared /dev/null, or a
// pipe without a writer if the sandbox has no /dev/null.
func (a *agent) openInput(s *stdio, e *ends, wanted bool) error {
	if !wanted && a.devNull >= 0 {
		e.files[0] = a.devNull
		return nil
	}
	r, w, err := pipe()
	if err != nil {
		return err
	}
	e.files[0], e.own = r, append(e.own, r)
	if wanted {
		s.in = newFile(w)
		return nil
	}
	return unix.Close(w)
}

// open turns the streams' descriptors into files of Go's poller.
func (s *stdio) open() {
	if s.raw != nil {
		s.out, s.err, s.raw = newFile(s.raw[0]), newFile(s.raw[1]), nil
	}
}

// pipe creates a pipe with blocking ends, as commands expect.
func pipe() (r, w int, err error) {
	var p [2]int
	if err = unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, err
	}
	return p[0], p[1], nil
}

// newFile takes ownership of this side's descriptor and makes it non-blocking.
func newFile(fd int) *os.File {
	_ = unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), "stdio")
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// openTerminal creates a pseudo-terminal. The command's user owns its side, so
// that programs can open /dev/tty and change its mode.
func openTerminal(s *stdio, size sandbox.WindowSize, acc account) (ends, error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ends{}, err
	}
	main := newFile(fd)
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		main.Close()
		return ends{}, err
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		main.Close()
		return ends{}, err
	}
	sub, err := unix.Open("/dev/pts/"+strconv.Itoa(n), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		main.Close()
		return ends{}, err
	}
	if acc.uid != 0 {
		_ = unix.Fchown(sub, int(acc.uid), -1)
	}
	_ = setSize(main, size)
	s.out, s.in, s.tty = main, main, main
	return ends{files: [3]int{sub, sub, sub}, own: []int{sub}}, nil
}

func setSize(tty *os.File, size sandbox.WindowSize) error {
	if size.Cols == 0 || size.Rows == 0 {
		size = sandbox.WindowSize{Cols: 80, Rows: 24}
	}
	conn, err := tty.SyscallConn()
	if err != nil {
		return err
	}
	var ioctl error
	err = conn.Control(func(fd uintptr) {
		ioctl = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: size.Cols, Row: size.Rows})
	})
	if err == nil {
		err = ioctl
	}
	return err
}

// close lets go of everything.
func (s *stdio) close() {
	s.mu.Lock()
	in := s.in
	s.in, s.tty = nil, nil
	s.mu.Unlock()
	if in != nil {
		in.Close()
	}
	if s.raw != nil {
		closeFDs(s.raw[:])
		s.raw = nil
	}
	if s.out != nil {
		s.out.Close()
	}
	if s.err != nil {
		s.err.Close()
	}
}

// endInput ends the input; on a terminal it sends the end-of-file character.
func (s *stdio) endInput() {
	s.mu.Lock()
	in, tty := s.in, s.tty
	s.in = nil
	s.mu.Unlock()
	switch {
	case in == nil:
	case tty != nil:
		_, _ = tty.Write([]byte{4})
	default:
		in.Close()
	}
}

// feed copies the client's input to the command until its end. It stops without
// ending the input when the client leaves or another caller takes the seat.
// Input that the command does not read is dropped.
func (s *stdio) feed(op *wire.Op, who *caller) {
	defer who.fed()
	s.mu.Lock()
	in := s.in
	s.mu.Unlock()
	if in == nil {
		return
	}
	_, err := op.In(0).WriteTo(&intake{s, in})
	if err == nil {
		s.endInput()
		return
	}
	if !who.replaced() {
		_, _ = op.In(0).WriteTo(io.Discard)
	}
}

// intake counts the bytes that a command's pipe or terminal has accepted.
type intake struct {
	s  *stdio
	in *os.File
}

func (i *intake) Write(b []byte) (int, error) {
	n, err := i.in.Write(b)
	i.s.mu.Lock()
	i.s.taken += int64(n)
	i.s.mu.Unlock()
	return n, err
}

// interruptWrites interrupts blocked writes of input until wait is called.
func (s *stdio) interruptWrites() (wait func() (taken int64)) {
	s.mu.Lock()
	in := s.in
	s.mu.Unlock()
	if in != nil {
		_ = in.SetWriteDeadline(time.Unix(1, 0))
	}
	return func() int64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.in != nil {
			_ = s.in.SetWriteDeadline(time.Time{})
		}
		return s.taken
	}
}

// pump passes a stream to write until its end, when it returns nil, or until an
// error of either. It holds a buffer only while there is data: thousands of
// idle commands must cost almost nothing.
func pump(f *os.File, write func(frame []byte) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var frame []byte
		var n int
		var rerr error
		err := conn.Read(func(fd uintptr) bool {
			frame = wire.GetFrame()
			for {
				n, rerr = syscall.Read(int(fd), frame[wire.HeaderLen:])
				if rerr != syscall.EINTR {
					break
				}
			}
			if rerr == syscall.EAGAIN {
				wire.PutFrame(frame)
				return false
			}
			return true
		})
		if err != nil {
			return err // closed
		}
		if rerr != nil || n <= 0 { // a terminal ends with EIO
			wire.PutFrame(frame)
			return rerr
		}
		if n == defaultPipe {
			widen(f)
		}
		if err := write(frame[:wire.HeaderLen+n]); err != nil {
			return err
		}
	}
}

const defaultPipe = 64 << 10

// widen enlarges the pipe of a full stream.
func widen(f *os.File) {
	conn, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) {
		_, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, wire.MaxData*2)
	})
}

// closeInput closes the input when nothing reads it any more. A terminal stays
// open until its output is read.
func (s *stdio) closeInput() {
	s.mu.Lock()
	in, tty := s.in, s.tty
	s.in = nil
	s.mu.Unlock()
	if in != nil && tty == nil {
		in.Close()
	}
}
