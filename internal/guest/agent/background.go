package agent

import (
	"os"
	"sync"
	"syscall"

	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// keepLog reads what a background command writes until it has closed its
// streams, whoever is connected to it.
func (a *agent) keepLog(p *proc) {
	keep := func(stream byte, f *os.File) {
		_ = pump(f, func(frame []byte) error {
			p.log.write(stream, frame[wire.HeaderLen:])
			wire.PutFrame(frame)
			return nil
		})
		p.log.close()
		f.Close()
	}
	go keep(1, p.io.out)
	if p.io.err != nil {
		go keep(2, p.io.err)
	}
	go func() {
		<-p.done
		p.io.closeInput()
	}()
}

// follow connects a client to a background command, until either ends.
func (a *agent) follow(op *wire.Op, p *proc, starter bool) error {
	var lanes sync.WaitGroup
	send := func(lane int, stream byte) {
		copyLog(op, p.log, logView{stream: stream, follow: true, starter: starter}, func(_ logRead, frame []byte) error { return op.SendFrame(lane, frame) })
		_ = op.CloseWrite(lane)
	}
	lanes.Go(func() { send(0, 1) })
	if p.cmd.TTY == nil {
		lanes.Go(func() { send(1, 2) })
	}
	if p.cmd.Stdin {
		lanes.Go(func() { p.io.feed(op) })
	}
	select {
	case <-p.done:
		_ = a.sayExit(op, p)
		op.Drop(0, os.ErrClosed)
	case <-op.Over():
	}
	lanes.Wait()
	return nil
}

// logView is a part of a log and how it is sent.
type logView struct {
	at     int64
	stream byte // 0: both
	follow bool // until the streams have ended
	header int  // bytes to leave free before each piece
	// starter says that it is sent to who started the command.
	starter bool
}

// copyLog gives what is in a log to send, until it has all or the client lets
// go.
func copyLog(op *wire.Op, l *cmdLog, v logView, send func(logRead, []byte) error) {
	for {
		frame := wire.GetFrame()
		start := wire.HeaderLen + v.header
		r, wait := l.next(v.at, v.stream, frame[start:])
		v.at = r.next
		if v.starter {
			l.reached(v.stream, v.at)
		}
		if r.n > 0 {
			if send(r, frame[:start+r.n]) != nil {
				return
			}
			continue
		}
		wire.PutFrame(frame)
		if wait == nil || !v.follow {
			return
		}
		select {
		case <-wait:
		case <-op.Over():
			return
		}
	}
}

// attach connects a client to a background command that runs, or has run.
func (a *agent) attach(op *wire.Op, d *wire.Decoder) error {
	id := d.String()
	if err := d.End(); err != nil {
		return err
	}
	p, err := a.procs.get(id)
	if err != nil {
		return err
	}
	if p.log == nil {
		return fail(sandbox.CodeConflict, id, "the process does not run in the background")
	}
	e := wire.Encoder{B: []byte{wire.MsgStarted}}
	info := p.snapshot()
	wire.PutProcess(&e, &info)
	if err := op.Message(e.B); err != nil {
		return err
	}
	return a.follow(op, p, false)
}

// logs sends what is kept of a command's output: per piece the stream, the
// number of bytes lost before it, and the bytes.
func (a *agent) logs(op *wire.Op, d *wire.Decoder) error {
	id, tail, follow := d.String(), int(d.Uint()), d.Bool()
	if err := d.End(); err != nil {
		return err
	}
	p, err := a.procs.get(id)
	if err != nil {
		return err
	}
	if p.log == nil {
		return fail(sandbox.CodeConflict, id, "no log is kept of a process that does not run in the background")
	}
	if err := op.Message([]byte{wire.MsgReady}); err != nil {
		return err
	}
	view := logView{follow: follow, header: wire.LogHeaderLen}
	if tail > 0 {
		view.at = p.log.tail(tail)
	}
	copyLog(op, p.log, view, func(r logRead, frame []byte) error {
		wire.PutLogHeader(frame[wire.HeaderLen:], r.stream, r.dropped, r.n)
		return op.SendFrame(0, frame)
	})
	return nil
}

// processes lists the commands, each with its length before it.
func (a *agent) processes(op *wire.Op) error {
	var one wire.Encoder
	for _, p := range a.procs.list() {
		info := p.snapshot()
		one.B = one.B[:0]
		wire.PutProcess(&one, &info)
		var e wire.Encoder
		e.Bytes(one.B)
		if _, err := op.Write(0, e.B); err != nil {
			return err
		}
	}
	return nil
}

// kill signals a command.
func (a *agent) kill(d *wire.Decoder) error {
	id, sig := d.String(), d.Uint()
	if err := d.End(); err != nil {
		return err
	}
	if sig < 1 || sig > 64 {
		return fail(sandbox.CodeInvalid, id, "no such signal")
	}
	p, err := a.procs.get(id)
	if err != nil {
		return err
	}
	return p.signal(syscall.Signal(sig))
}

// resize sets the size of a command's terminal.
func (a *agent) resize(d *wire.Decoder) error {
	id, size := d.String(), wire.TakeSize(d)
	if err := d.End(); err != nil {
		return err
	}
	p, err := a.procs.get(id)
	if err != nil {
		return err
	}
	if p.cmd.TTY == nil {
		return fail(sandbox.CodeInvalid, id, "the process has no terminal")
	}
	p.io.mu.Lock()
	tty := p.io.tty
	p.io.mu.Unlock()
	if tty == nil || !p.snapshot().Running {
		return fail(sandbox.CodeNotFound, id, "the process has ended")
	}
	return about(id, setSize(tty, size))
}
