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
// thread that started it waits for its end, reads what it wrote from its pipes,
// and says all of it at once. Only of a command that takes longer are the
// streams looked after while it runs.
const (
	// firstMoment is how long a command may take until the client hears that it
	// has started, and that of it which it has written.
	firstMoment = 4 * time.Millisecond
	// mostGrace bounds both where programs start slowly.
	mostGrace = 100 * time.Millisecond
	// patience is both for a command in the background, whose client waits for the
	// start rather than for the end. A login shell ends within that.
	patience = 10 * time.Millisecond
	// firstWords is how long it may be silent after that.
	firstWords = 50 * time.Millisecond
)

// fastPath reports whether a command may be one of those. A terminal is there to
// be looked at, and input could be what a command waits for: only in the
// background nobody gives it any before he has heard of the start.
func fastPath(c *sandbox.Command) bool {
	return c.TTY == nil && (!c.Stdin || c.Background)
}

// begin stays for its first moments with a command of which nothing was said
// yet. It reports whether the command has ended and all was said. If not, its
// streams are open. say is how the client hears of the start, and who has the
// seat of a command that has one.
func (a *agent) begin(op *wire.Op, p *proc, who *caller, say func() error) (over bool) {
	op.Gather()
	ended := a.ends(p, p.grace())
	_ = say()
	if !ended {
		_ = op.Flush() // what goes wrong ends the operation, which is noticed below
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

// endsSilent reports whether a command whose start was told ends before it says
// something. Nothing else would notice that a client disconnects.
func (a *agent) endsSilent(op *wire.Op, p *proc) bool {
	if p.cmd.Stdin {
		return false // it may come now
	}
	if p.seat == nil {
		defer p.killOn(op.Over())()
	}
	return a.ends(p, firstWords, p.io.raw[:]...)
}

// moment is how long the end of a command is waited for where it was started.
func (p *proc) moment() time.Duration {
	if p.cmd.Background {
		return p.atMost(patience)
	}
	return p.atMost(firstMoment)
}

// grace is how much more time than that a command gets where its start has taken
// long: a processor that has many to serve lets it wait, and to say that it runs
// would cost another what that costs.
func (p *proc) grace() time.Duration {
	if p.ended || p.cmd.Background {
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
	done, finished := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(finished)
		select {
		case <-over:
			p.drop()
		case <-done:
		}
	}()
	return func() {
		close(done)
		<-finished
	}
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

// drain passes on what is in a stream, and reports whether it has reached the
// end. It never waits: what it reads at most is less than a window, and than
// what a log keeps.
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
