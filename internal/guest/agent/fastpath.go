package agent

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/spawn"
	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// Most commands end within milliseconds and write little. Apart from the
// command itself, the cost is system calls and wake-ups of this process. So the
// thread that started the command waits for its end, reads its output from the
// pipes, and sends everything in one message. Only a command that takes longer
// gets goroutines for its streams.
const (
	// firstMoment is how long to wait for the end of a command before the client
	// is sent its start and its output so far.
	firstMoment = 4 * time.Millisecond
	// mostGrace limits both firstMoment and patience where programs start slowly.
	mostGrace = 100 * time.Millisecond
	// patience replaces firstMoment for a background command, whose client waits
	// for the start rather than for the end. A login shell ends within this time.
	patience = 10 * time.Millisecond
	// firstWords is how long to wait after that for the first output.
	firstWords = 50 * time.Millisecond
)

// fastPath reports whether the fast path may be tried for a command. A terminal
// is interactive. A foreground command with input may wait for that input; a
// background command gets none before its client knows that it has started.
func fastPath(c *sandbox.Command) bool {
	return c.TTY == nil && (!c.Stdin || c.Background)
}

// begin serves the first moments of a command that the client was told nothing
// about. It reports whether the command has ended and everything was sent. If
// not, the command's streams are open. say tells the client that the command
// has started; who has the seat of a command that has one.
func (a *agent) begin(op *wire.Op, p *proc, who *caller, say func() error) (over bool) {
	op.Gather()
	ended := a.ends(p, p.grace())
	_ = say()
	if !ended {
		_ = op.Flush() // a failure ends the operation, which the code below notices
		if ended = a.endsSilent(op, p); ended {
			op.Gather()
		}
	}
	if !ended {
		a.outlive(p)
	} else if a.sayAll(op, p, who) {
		p.io.close()
		return true
	}
	p.io.open()
	_ = op.Flush()
	return false
}

// endsSilent reports whether a command whose start was sent ends before it
// writes anything. It watches the operation, because nothing else notices here
// that the client disconnects.
func (a *agent) endsSilent(op *wire.Op, p *proc) bool {
	if p.cmd.Stdin {
		return false // input may come now
	}
	if p.seat == nil {
		defer p.hangUpOn(op.Over())()
	}
	return a.ends(p, firstWords, p.io.raw[:]...)
}

// moment returns how long the starting thread waits for the end of the command.
func (p *proc) moment() time.Duration {
	if p.cmd.Background {
		return p.atMost(patience)
	}
	return p.atMost(firstMoment)
}

// grace returns the extra time for a command whose start was slow. On a busy
// processor the command itself waits, and sending its start early would only
// cost others more processor time.
func (p *proc) grace() time.Duration {
	if p.ended || p.cmd.Background {
		return 0
	}
	start := time.Since(p.info.Started) - firstMoment
	return max(0, min(8*start, mostGrace)-firstMoment)
}

// atMost returns most, limited to the rest of the command's timeout.
func (p *proc) atMost(most time.Duration) time.Duration {
	if t := p.cmd.Timeout; t > 0 {
		most = max(0, min(most, t-time.Since(p.info.Started)))
	}
	return most
}

// ends reports whether a command ends within this time and, if streams are
// given, before it writes to them.
func (a *agent) ends(p *proc, most time.Duration, streams ...int) bool {
	if !p.ended && most > 0 {
		p.ended = spawn.Await(p.atMost(most), append([]int{p.pidfd}, streams...)...)
	}
	if !p.ended {
		return false
	}
	p.closePidfd()
	a.reaper.collect(p.pid)
	<-p.done
	return true
}

// hangUpOn hangs a command up when over is closed, until stop is called.
func (p *proc) hangUpOn(over <-chan struct{}) (stop func()) {
	done, finished := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(finished)
		select {
		case <-over:
			p.hangUp()
		case <-done:
		}
	}()
	return func() {
		close(done)
		<-finished
	}
}

// outlive moves a command from the fast path to the normal one.
func (a *agent) outlive(p *proc) {
	p.closePidfd()
	a.reaper.call()
	p.mu.Lock()
	p.setTimer()
	p.mu.Unlock()
}

func (p *proc) closePidfd() {
	unix.Close(p.pidfd)
	p.pidfd = -1
}

// sayAll sends the output and exit status of a command that has ended. It
// reports whether that was everything: orphans of the command may still write.
func (a *agent) sayAll(op *wire.Op, p *proc, who *caller) bool {
	keep := func(lane int, frame []byte) error { return op.SendFrame(lane, frame) }
	if p.seat != nil {
		keep = p.seat.keep
	}
	for lane, fd := range p.io.raw {
		if !p.leftNothing() {
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_NONBLOCK)
		}
		if !drain(fd, func(frame []byte) error { return keep(lane, frame) }) {
			return false
		}
	}
	if p.seat != nil {
		p.seat.ended()
	}
	for lane := range p.io.raw {
		if p.seat == nil {
			_ = op.CloseWrite(lane)
		} else {
			p.seat.send(op, lane, who, view{})
		}
	}
	_ = a.sayExit(op, p)
	return true
}

// drain passes on the content of a stream and reports whether it has reached
// the end. It never blocks. It reads less than a window and less than a log
// keeps.
func drain(fd int, keep func(frame []byte) error) bool {
	for range 4 {
		frame := wire.GetFrame()
		n, err := syscall.Read(fd, frame[wire.HeaderLen:])
		if n <= 0 || err != nil {
			wire.PutFrame(frame)
			return err == nil
		}
		if keep(frame[:wire.HeaderLen+n]) != nil {
			return false
		}
	}
	return false
}
