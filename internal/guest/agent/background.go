package agent

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// keepLog stores the output of a rejoinable command until it closes its
// streams. It does not depend on a connected client.
func (a *agent) keepLog(p *proc) {
	keep := func(lane int, f *os.File) {
		_ = pump(f, func(frame []byte) error { return p.seat.keep(lane, frame) })
		p.seat.log(byte(lane + 1)).close()
		f.Close()
	}
	go keep(0, p.io.out)
	if p.io.err != nil {
		go keep(1, p.io.err)
	}
	go func() {
		<-p.done
		p.io.closeInput()
	}()
}

// view is a client's positions in the logs of a command.
type view struct {
	at [3]int64 // by stream
	// exact ends the view when bytes were overwritten before they could be sent.
	exact bool
}

// follow connects a client to a rejoinable command. It returns when the client
// or the command ends, or when another client takes over the seat.
func (a *agent) follow(op *wire.Op, p *proc, who *caller, from view) error {
	var lanes sync.WaitGroup
	var lost atomic.Bool
	send := func(lane int) {
		if !p.seat.send(op, lane, who, from) {
			lost.Store(true)
		}
	}
	lanes.Go(func() { send(0) })
	if p.cmd.TTY == nil {
		lanes.Go(func() { send(1) })
	}
	if p.cmd.Stdin && (who != nil || !p.seat.held()) {
		lanes.Go(func() { p.io.feed(op, who) })
	}
	select {
	case <-p.done:
		_ = a.sayExit(op, p)
		op.Drop(0, os.ErrClosed)
	case <-op.Over():
	case <-who.taken():
		op.Drop(0, os.ErrClosed)
		op.StopWriting(0, os.ErrClosed)
		op.StopWriting(1, os.ErrClosed)
	}
	lanes.Wait()
	switch {
	case who.replaced():
		return fail(sandbox.CodeConflict, p.snapshot().ID, "another connection has taken over the command")
	case lost.Load():
		return fail(sandbox.CodeExhausted, p.snapshot().ID, "output was overwritten before it was read")
	}
	return nil
}

// logView selects a part of a log and how to send it.
type logView struct {
	at     int64
	stream byte // 0: both
	follow bool // continue until the streams have ended
	header int  // bytes to reserve before each piece
	exact  bool // end where bytes are missing
	// who is the caller that holds the command's seat; nil for other readers.
	who *caller
}

// copyLog passes the log to send until its end or until the client leaves. It
// reports false if an exact view misses bytes.
func copyLog(op *wire.Op, l *cmdLog, v logView, send func(logRead, []byte) error) bool {
	for {
		frame := wire.GetFrame()
		start := wire.HeaderLen + v.header
		r, wait := l.next(v.at, v.stream, frame[start:])
		if v.exact && r.missing {
			wire.PutFrame(frame)
			return false
		}
		v.at = r.next
		if v.who != nil {
			l.reached(v.who, v.stream, v.at)
		}
		if r.n > 0 {
			if send(r, frame[:start+r.n]) != nil {
				return true
			}
			continue
		}
		wire.PutFrame(frame)
		if wait == nil || !v.follow {
			return true
		}
		select {
		case <-wait:
		case <-op.Over():
			return true
		case <-v.who.taken():
			return true
		}
	}
}

// attach connects a client to a background command, running or ended.
func (a *agent) attach(op *wire.Op, d *wire.Decoder) error {
	id := d.String()
	if err := d.End(); err != nil {
		return err
	}
	p, err := a.procs.get(id)
	if err != nil {
		return err
	}
	if p.seat == nil {
		return fail(sandbox.CodeConflict, id, "the process does not run in the background")
	}
	e := wire.Encoder{B: []byte{wire.MsgStarted}}
	info := p.snapshot()
	wire.PutProcess(&e, &info)
	if err := op.Message(e.B); err != nil {
		return err
	}
	return a.follow(op, p, nil, view{})
}

// logs sends the stored output of a command. Each piece has its stream, the
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
	if p.log == nil || !p.snapshot().Background {
		return fail(sandbox.CodeConflict, id, "only background processes have a log")
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

// processes lists the commands, each with a length prefix.
func (a *agent) processes(op *wire.Op) error {
	var one wire.Encoder
	var list []sandbox.ProcessInfo
	for _, p := range a.procs.list() {
		list = append(list, p.snapshot())
	}
	for _, st := range a.orphans() {
		list = append(list, describeOrphan(st))
	}
	for _, info := range list {
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
	if isOrphanID(id) {
		return a.killOrphan(id, syscall.Signal(sig))
	}
	p, err := a.procs.get(id)
	if err != nil {
		return err
	}
	return p.kill(syscall.Signal(sig))
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
