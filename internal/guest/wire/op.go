package wire

import (
	"context"
	"io"
	"sync"
	"time"
)

// Op is one operation of a connection.
type Op struct {
	// Method and Request are what the client asked for. The request is set in
	// the guest only, and belongs to the handler.
	Method  Method
	Request []byte

	conn *Conn
	id   uint32
	bulk bool // both sides have said that they take BulkData, and the method is for it
	in   [Lanes]inLane
	out  [Lanes]outLane

	// gathered are frames that are held back while gathering is set.
	gathering bool
	gathered  []byte

	msgs chan []byte
	over chan struct{} // client: ended or lost; guest: canceled or lost
	once sync.Once

	// result and err are written before over is closed.
	result []byte
	err    error
}

func newOp(c *Conn, id uint32, m Method) *Op {
	op := &Op{Method: m, conn: c, id: id, bulk: c.peer.bulk && m.isBulk(), over: make(chan struct{})}
	window := Window
	if op.bulk {
		window = BulkWindow
	}
	for i := range op.in {
		op.in[i].op, op.in[i].lane = op, byte(i)
		op.in[i].ready.L = &op.in[i].mu
		op.in[i].window, op.out[i].window, op.out[i].credit = window, window, window
		op.out[i].ready.L = &op.out[i].mu
	}
	return op
}

// Open starts an operation. The context bounds only how long it may take to
// send the request.
func (c *Conn) Open(ctx context.Context, m Method, request []byte) (*Op, error) {
	if len(request)+1 > MaxOpen {
		return nil, violation("request of %d bytes", len(request))
	}
	op := newOp(c, 0, m)
	op.msgs = make(chan []byte, maxMessages)
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, c.err
	}
	for c.next++; c.ops[c.next] != nil; c.next++ {
		// An operation may live while four thousand million others pass.
	}
	op.id = c.next
	c.ops[op.id] = op
	c.mu.Unlock()

	frame := make([]byte, HeaderLen+1+len(request))
	header{size: uint32(1 + len(request)), op: op.id, kind: kindOpen}.put(frame)
	frame[HeaderLen] = byte(m)
	copy(frame[HeaderLen+1:], request)
	if err := c.send(frame, ctx.Done()); err != nil {
		c.forget(op.id)
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	return op, nil
}

// Over is closed when the operation has ended, in the guest also when it was
// canceled or its connection was lost.
func (op *Op) Over() <-chan struct{} { return op.over }

// Ended reports whether the guest has ended the operation and found no fault
// with it: all that it said and sent is here.
func (op *Op) Ended() bool {
	select {
	case <-op.over:
		return op.err == nil
	default:
		return false
	}
}

// Messages yields what the guest says while the operation goes on. It is
// never closed: wait for Over too, and then once more for what is buffered.
func (op *Op) Messages() <-chan []byte { return op.msgs }

// Result is the outcome, valid once Over is closed: the result, an error of
// the guest as *RemoteError, or why the connection was lost.
func (op *Op) Result() ([]byte, error) { return op.result, op.err }

// In is the receiving side of a lane. It ends with io.EOF, with the
// operation's error, or with why the connection was lost.
func (op *Op) In(lane int) interface {
	io.Reader
	io.WriterTo
} {
	return &op.in[lane]
}

// Drop throws away what arrives on a lane from now on. A reader gets err.
func (op *Op) Drop(lane int, err error) { op.in[lane].drop(err) }

// Write sends a copy of p on a lane, as fast as the receiver consumes.
func (op *Op) Write(lane int, p []byte) (int, error) {
	sent := 0
	for sent < len(p) {
		n, err := op.out[lane].acquire(1, min(len(p)-sent, MaxData))
		if err != nil {
			return sent, err
		}
		var frame []byte
		if n > MaxData/4 {
			frame = GetFrame()[:HeaderLen+n]
		} else {
			frame = make([]byte, HeaderLen+n)
		}
		copy(frame[HeaderLen:], p[sent:sent+n])
		if err := op.sendData(lane, frame); err != nil {
			return sent, err
		}
		sent += n
	}
	return sent, nil
}

// NextFrame returns a buffer for SendFrame with all the room that a frame of
// this operation can have after HeaderLen, if sent, which says how much was sent
// already, shows that there is much to send.
func (op *Op) NextFrame(sent int64) []byte {
	if op.bulk && sent >= MaxData {
		return bulkFrames.Get().(*bulkFrame)[:]
	}
	return GetFrame()
}

// SendFrame sends the bytes after HeaderLen of a frame got from NextFrame,
// without a copy when the receiver has room for them. The frame is given away.
func (op *Op) SendFrame(lane int, frame []byte) error {
	want := len(frame) - HeaderLen
	if want == 0 {
		PutFrame(frame)
		return nil
	}
	least := 1
	if op.bulk {
		least = want // to wait is cheaper than to cut; a receiver that has read all has granted more
	}
	n, err := op.out[lane].acquire(least, want)
	if err != nil {
		PutFrame(frame)
		return err
	}
	if n == want {
		return op.sendData(lane, frame)
	}
	// Part of it now, and the rest when there is credit again.
	rest := append([]byte(nil), frame[HeaderLen+n:]...)
	if err := op.sendData(lane, frame[:HeaderLen+n]); err != nil {
		return err
	}
	_, err = op.Write(lane, rest)
	return err
}

func (op *Op) sendData(lane int, frame []byte) error {
	header{size: uint32(len(frame) - HeaderLen), op: op.id, kind: kindData, lane: byte(lane)}.put(frame)
	return op.send(frame, op.over)
}

// Gather holds back what is sent from now on until Flush or the end of the
// operation, so that one write takes all of it. Guest only; meanwhile nothing
// may be sent from another goroutine.
func (op *Op) Gather() { op.gathering = true }

// Flush sends what was gathered, and what follows at once again.
func (op *Op) Flush() error {
	frames := op.gathered
	op.gathering, op.gathered = false, nil
	if len(frames) == 0 {
		return nil
	}
	return op.conn.send(frames, op.over)
}

func (op *Op) send(frame []byte, stop <-chan struct{}) error {
	if !op.gathering {
		return op.conn.send(frame, stop)
	}
	op.gathered = append(op.gathered, frame...)
	PutFrame(frame)
	return nil
}

// SetReadDeadline is net.Conn's, for the receiving side of a lane.
func (op *Op) SetReadDeadline(lane int, at time.Time) {
	op.in[lane].deadline.set(at, &op.in[lane].ready)
}

// SetWriteDeadline is net.Conn's, for Write on a lane.
func (op *Op) SetWriteDeadline(lane int, at time.Time) {
	op.out[lane].deadline.set(at, &op.out[lane].ready)
}

// CloseWrite ends a lane: the receiver gets io.EOF.
func (op *Op) CloseWrite(lane int) error { return op.control(kindEOF, lane, nil) }

func (op *Op) control(kind byte, lane int, payload []byte) error {
	frame := make([]byte, HeaderLen+len(payload))
	header{size: uint32(len(payload)), op: op.id, kind: kind, lane: byte(lane)}.put(frame)
	copy(frame[HeaderLen:], payload)
	return op.send(frame, nil)
}

// StopWriting ends this side's use of a lane: writers get err.
func (op *Op) StopWriting(lane int, err error) { op.out[lane].finish(err) }

// Cancel tells the guest that the operation is wanted no more. The operation
// goes on until the guest ends it.
func (op *Op) Cancel() {
	select {
	case <-op.over:
	default:
		frame := make([]byte, HeaderLen)
		header{op: op.id, kind: kindCancel}.put(frame)
		op.conn.sendSoon(frame)
	}
}

// Abandon cancels and forgets: whatever still comes is dropped, and readers
// and writers get io.ErrClosedPipe.
func (op *Op) Abandon() {
	op.Leave()
	for i := range op.in {
		op.in[i].drop(errDone)
	}
}

// Leave is Abandon, but what has arrived can still be read.
func (op *Op) Leave() {
	op.Cancel()
	op.conn.forget(op.id)
	op.lost(errDone)
}

// Message tells the client something. Guest only.
func (op *Op) Message(payload []byte) error { return op.control(kindMsg, 0, payload) }

// End ends the operation with a result. Guest only; nothing may be sent after it.
func (op *Op) End(result []byte) { op.end(append([]byte{0}, result...)) }

// Fail ends the operation with an error. Guest only.
func (op *Op) Fail(e *RemoteError) { op.end(e.append([]byte{1})) }

func (op *Op) end(payload []byte) {
	op.conn.forget(op.id)
	_ = op.control(kindEnd, 0, payload)
	_ = op.Flush()
	op.lost(errDone)
	for i := range op.in {
		op.in[i].drop(errDone)
	}
}

// message queues what the guest said; a guest that says more than anybody can
// want breaks the protocol.
func (op *Op) message(b []byte) error {
	select {
	case op.msgs <- b:
		return nil
	case <-op.over:
		return nil
	default:
		return violation("too many messages")
	}
}

// ended takes the outcome that the guest sent.
func (op *Op) ended(payload []byte) {
	var result []byte
	var err error
	switch {
	case len(payload) > 0 && payload[0] == 0:
		result = payload[1:]
	case len(payload) > 0 && payload[0] == 1:
		err = decodeRemoteError(payload[1:])
	default:
		err = violation("outcome without a status")
	}
	op.finish(result, err)
}

// canceled is lost without an error: the client wants no more.
func (op *Op) canceled() { op.finish(nil, errDone) }

func (op *Op) lost(err error) { op.finish(nil, err) }

func (op *Op) finish(result []byte, err error) {
	op.once.Do(func() {
		op.result, op.err = result, err
		close(op.over)
	})
	end := err
	if end == nil {
		end = io.EOF
	}
	for i := range op.in {
		op.in[i].finish(end)
		op.out[i].finish(errDone)
	}
}
