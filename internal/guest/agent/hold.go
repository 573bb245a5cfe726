package agent

import (
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// A command that is held for its caller keeps more output than can be in
// transit: two connection windows plus the buffers between them. It buffers
// twice that in total, so that there is always something to send while it
// waits.
const (
	heldBehind = wire.Window + wire.Window/2
	heldCap    = 2 * heldBehind
)

// seat is the place of a command's caller, who may lose the connection and
// return over another one. Each stream of a command with a Hold has its own
// log, so that an unread stream does not block the other. A background command
// has one log for both streams, which keeps their order; so has a command on a
// terminal, which has one stream.
type seat struct {
	hold   time.Duration // how long it is kept for the caller to return; zero: not at all
	shared *cmdLog       // log of a background command or of one on a terminal
	own    [3]*cmdLog    // logs by stream, of any other command

	turn sync.Mutex // held while callers change

	mu    sync.Mutex
	who   *caller     // the current caller, or the last one
	timer *time.Timer // runs while there is no caller
	over  bool        // it was given up
	kept  bool        // it became a background command, which needs no caller
}

func newSeat(all *logs, c *sandbox.Command) *seat {
	s := &seat{hold: c.Hold}
	switch {
	case c.TTY != nil:
		s.shared = newLog(all, 1)
		if c.Hold > 0 {
			s.shared.limit, s.shared.behind = heldCap, heldBehind
		}
	case c.Hold == 0:
		s.shared = newLog(all, 2)
	default:
		for stream := 1; stream <= 2; stream++ {
			s.own[stream] = newLog(all, 1)
			s.own[stream].limit, s.own[stream].behind = heldCap, heldBehind
		}
	}
	return s
}

// log returns the log of a stream.
func (s *seat) log(stream byte) *cmdLog {
	if s.shared != nil {
		return s.shared
	}
	return s.own[stream]
}

func (s *seat) each(do func(*cmdLog)) {
	if s.shared != nil {
		do(s.shared)
		return
	}
	do(s.own[1])
	do(s.own[2])
}

// ended records that no stream will be written any more.
func (s *seat) ended() {
	if s.shared != nil {
		s.shared.close() // it has two streams to close
	}
	s.each((*cmdLog).close)
}

// keep takes ownership of a frame that was written on a lane.
func (s *seat) keep(lane int, frame []byte) error {
	stream := byte(lane + 1)
	s.log(stream).write(stream, frame[wire.HeaderLen:])
	wire.PutFrame(frame)
	return nil
}

// send sends a lane to a client until its end, and then the end. It stops when
// the client leaves or another caller takes the seat. It reports false if bytes
// were missing.
func (s *seat) send(op *wire.Op, lane int, who *caller, from view) bool {
	stream := byte(lane + 1)
	v := logView{at: from.at[stream], stream: stream, follow: true, exact: from.exact, who: who}
	if !copyLog(op, s.log(stream), v, func(_ logRead, frame []byte) error { return op.SendFrame(lane, frame) }) {
		return false
	}
	_ = op.CloseWrite(lane)
	return true
}

// forget frees the memory.
func (s *seat) forget() { s.each((*cmdLog).forget) }

// caller is a connection that has, or had, a command's seat. All methods accept
// a nil receiver: it has no seat and is never replaced.
type caller struct {
	gone  chan struct{} // closed when another took the seat
	input chan struct{} // closed when no more input is taken from this one
	once  sync.Once
}

func (c *caller) taken() <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.gone
}

func (c *caller) replaced() bool {
	select {
	case <-c.taken():
		return true
	default:
		return false
	}
}

// fed records that no more input will be taken from this caller.
func (c *caller) fed() {
	if c != nil {
		c.once.Do(func() { close(c.input) })
	}
}

// take gives the seat to a new caller. The previous caller can no longer write
// input.
func (s *seat) take(p *proc) *caller {
	s.turn.Lock()
	defer s.turn.Unlock()
	now := &caller{gone: make(chan struct{}), input: make(chan struct{})}
	if !p.cmd.Stdin {
		now.fed()
	}
	s.mu.Lock()
	before := s.who
	s.who = now
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	s.mu.Unlock()
	if before != nil {
		wait := p.io.interruptWrites()
		close(before.gone)
		<-before.input
		wait()
	}
	s.each(func(l *cmdLog) { l.hold(now) })
	return now
}

// left is called when a caller's connection has ended. A held command waits for
// another caller; a background command does not need one.
func (a *agent) left(p *proc, who *caller) {
	who.fed()
	s := p.seat
	if !s.held() {
		s.each(func(l *cmdLog) { l.release(who) })
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.who == who && s.timer == nil && !s.over {
		s.timer = time.AfterFunc(s.hold, func() { a.abandon(p, who, p.hangUp) })
	}
}

// abandon ends a command whose last caller did not return, or does not need it.
func (a *agent) abandon(p *proc, last *caller, end func()) {
	s := p.seat
	s.mu.Lock()
	if s.who != last || s.over {
		s.mu.Unlock()
		return // a caller returned at the last moment
	}
	s.over = true
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	end()
	s.forget()
}

// held reports whether the command needs a caller.
func (s *seat) held() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hold > 0 && !s.kept
}

// background makes a held command on a terminal a background command, at its
// caller's request.
func (a *agent) background(d *wire.Decoder) error {
	id := d.String()
	if err := d.End(); err != nil {
		return err
	}
	p, err := a.procs.get(id)
	switch {
	case err != nil:
		return err
	case p.seat == nil || p.seat.hold == 0 || p.cmd.TTY == nil:
		return fail(sandbox.CodeConflict, id, "only a command on a terminal that was started with Hold can become a background command")
	}
	s := p.seat
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return fail(sandbox.CodeConflict, id, "the command is being ended")
	}
	s.kept = true
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	who := s.who
	s.mu.Unlock()
	p.mu.Lock()
	p.info.Background = true
	p.mu.Unlock()
	s.each(func(l *cmdLog) { l.release(who) })
	return nil
}

// letGo kills a foreground command at its caller's request.
func (a *agent) letGo(d *wire.Decoder) error {
	id := d.String()
	if err := d.End(); err != nil {
		return err
	}
	p, err := a.procs.get(id)
	if err != nil {
		return err
	}
	switch {
	case p.seat == nil:
		p.dropSoon()
		return nil
	case !p.seat.held():
		return fail(sandbox.CodeConflict, id, "the process runs in the background")
	}
	p.seat.mu.Lock()
	who := p.seat.who
	p.seat.mu.Unlock()
	a.abandon(p, who, p.dropSoon)
	return nil
}

// execHeld starts a command that can be rejoined.
func (a *agent) execHeld(op *wire.Op, d *wire.Decoder) error {
	c := wire.TakeCommand(d)
	c.Hold = time.Duration(d.Int())
	if err := d.End(); err != nil {
		return err
	}
	if err := c.Validate(); err != nil || c.Hold == 0 {
		return fail(sandbox.CodeInvalid, "", "not a command that can be held")
	}
	p, se := a.launch(c)
	who := p.seat.take(p)
	defer a.left(p, who)
	over, err := a.introduce(op, p, who, se, func() error { return begin(op, p, [3]int64{}, 0) })
	if over || err != nil {
		return err
	}
	return a.follow(op, p, who, view{exact: true})
}

// rejoin connects a client to a command after an earlier connection was lost.
func (a *agent) rejoin(op *wire.Op, d *wire.Decoder) error {
	id := d.String()
	want := [3]int64{1: d.Int(), 2: d.Int()}
	skip := d.Bool()
	if err := d.End(); err != nil {
		return err
	}
	p, err := a.procs.get(id)
	switch {
	case err != nil:
		return err
	case p.seat == nil:
		return fail(sandbox.CodeConflict, id, "the process cannot be reattached: it was started without Hold")
	}
	from, begins := view{exact: true}, [3]int64{}
	for stream := byte(1); stream <= 2; stream++ {
		from.at[stream], begins[stream] = p.seat.log(stream).from(stream, want[stream])
		switch {
		case begins[stream] < want[stream]:
			return fail(sandbox.CodeInvalid, id, "the offset is beyond the end of the output")
		case begins[stream] > max(0, want[stream]) && !skip:
			return fail(sandbox.CodeExhausted, id, "output after that point is no longer kept")
		}
	}
	var who *caller // nil for a background command, which may have any number of clients
	taken := int64(-1)
	if p.seat.held() {
		who = p.seat.take(p)
		defer a.left(p, who)
		p.io.mu.Lock()
		taken = p.io.taken
		p.io.mu.Unlock()
	}
	if err := begin(op, p, begins, taken); err != nil {
		return err
	}
	return a.follow(op, p, who, from)
}

// begin tells a client where its view of a command starts and how much input
// was taken. taken is negative if several clients can write input.
func begin(op *wire.Op, p *proc, begins [3]int64, taken int64) error {
	e := wire.Encoder{B: []byte{wire.MsgStarted}}
	info := p.snapshot()
	info.Args = nil // long ones would exceed the frame
	wire.PutProcess(&e, &info)
	e.Int(taken)
	e.Int(begins[1])
	e.Int(begins[2])
	return op.Message(e.B)
}
