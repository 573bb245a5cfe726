package agent

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/spawn"
	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// Most commands end within milliseconds and write little. What such a command
// costs is, next to itself, system calls and wake-ups of this process. So the
// thread that started it waits for its end, reads what it wrote from its
// pipes, and says all of it at once. Only of a command that takes longer are the
// streams looked after while it runs.
const (
	// firstMoment is how long a command may take until the client hears that it
	// has started, and that of it which it has written.
	firstMoment = 4 * time.Millisecond
	// mostGrace bounds both where programs start slowly.
	mostGrace = 100 * time.Millisecond
	// firstWords is how long it may be silent after that.
	firstWords = 50 * time.Millisecond
)

// isBrief reports whether a command may be one of those. Input could be what it
// waits for, and the others are not for one client that awaits the end.
func isBrief(c *sandbox.Command) bool {
	return c.TTY == nil && !c.Stdin && !c.Background && c.Hold == 0
}

// begin is foreground for such a command, of which nothing was said yet. Its
// first moment is over.
func (a *agent) begin(op *wire.Op, p *proc) error {
	op.Gather()
	ended := a.ends(p, p.grace())
	_ = sayStarted(op, p)
	if !ended {
		_ = op.Flush() // what goes wrong ends the operation, which is noticed below
		stop := p.killOn(op.Over())
		ended = a.ends(p, firstWords, p.io.raw[:]...)
		if stop(); ended {
			op.Gather()
		}
	}
	switch {
	case !ended:
		a.outlive(p)
	case a.sayAll(op, p):
		defer p.io.close()
		if !p.leftNothing() {
			_ = op.Flush()
			<-op.Over() // what it started runs on until the client lets go
			a.sweep(p)
		}
		return nil
	}
	p.io.open()
	_ = op.Flush()
	return a.foreground(op, p)
}

// grace is how much more time than the first moment a command gets where its
// start has taken long: a processor that has many to serve lets it wait, and to
// say that it runs would cost another what that costs.
func (p *proc) grace() time.Duration {
	if p.ended {
		return 0
	}
	start := time.Since(p.info.Started) - firstMoment
	return max(0, min(8*start, mostGrace)-firstMoment)
}

// atMost is no more than what is left of the time that a command may take.
func (p *proc) atMost(most time.Duration) time.Duration {
	if t := p.cmd.Timeout; t > 0 {
		most = max(0, min(most, t-time.Since(p.info.Started)))
	}
	return most
}

// ends reports whether a command ends within this time, and before it writes if
// its streams are given. It then has.
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

// killOn kills a command when over is closed, until the returned function is
// called.
func (p *proc) killOn(over <-chan struct{}) (stop func()) {
	done := make(chan struct{})
	go func() {
		select {
		case <-over:
			_ = p.signal(syscall.SIGKILL)
		case <-done:
		}
	}()
	return func() { close(done) }
}

// outlive makes a command one like all others.
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

// sayAll says what a command that has ended has written, and how it ended. It
// reports whether that was all: what the command started may still write.
func (a *agent) sayAll(op *wire.Op, p *proc) bool {
	for lane, fd := range p.io.raw {
		if !p.leftNothing() {
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_NONBLOCK)
		}
		if !drain(op, lane, fd) {
			return false
		}
	}
	_ = op.CloseWrite(0)
	_ = op.CloseWrite(1)
	_ = a.sayExit(op, p)
	return true
}

// drain passes on what is in a stream, and reports whether it has reached the
// end. It never waits: what it reads at most is less than a window.
func drain(op *wire.Op, lane, fd int) bool {
	for range 4 {
		frame := wire.GetFrame()
		n, err := syscall.Read(fd, frame[wire.HeaderLen:])
		if n <= 0 || err != nil {
			wire.PutFrame(frame)
			return err == nil
		}
		if op.SendFrame(lane, frame[:wire.HeaderLen+n]) != nil {
			return false
		}
	}
	return false
}
