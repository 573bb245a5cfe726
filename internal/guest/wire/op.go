package wire

import (
	"context"
	"io"
	"sync"
	"time"
)

// Op is one operation of a connection.
type Op struct {
	// Method and Request are the client's request. Request is set only in the
	// guest and belongs to the handler.
	Method  Method
	Request []byte

	conn *Conn
	id   uint32
	bulk bool // both sides accept BulkData, and the method moves whole files
	in   [Lanes]inLane
	out  [Lanes]outLane

	// gathered holds back frames while gathering is set.
	gathering bool
	gathered  []byte

	msgs chan []byte
	over chan struct{} // client: ended or lost; guest: canceled or lost
	once sync.Once

	// result and err are set before over is closed.
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

// Open starts an operation. The context limits only sending the request.
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
		// The counter wraps: an old operation may still use the number.
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

// Ended reports whether the guest ended the operation without an error, so that
// all of its data has arrived.
func (op *Op) Ended() bool {
	select {
	case <-op.over:
		return op.err == nil
	default:
		return false
	}
}

// Messages returns the guest's messages during the operation. The channel is
// never closed: wait for Over, too, and then read the buffered messages.
func (op *Op) Messages() <-chan []byte { return op.msgs }

// Result returns the outcome after Over is closed: the result, the guest's
// error as *RemoteError, or why the connection was lost.
func (op *Op) Result() ([]byte, error) { return op.result, op.err }

// In returns the receiving side of a lane. It ends with io.EOF, with the
// operation's error, or with the reason why the connection was lost.
func (op *Op) In(lane int) interface {
	io.Reader
	io.WriterTo
} {
	return &op.in[lane]
}

// Drop discards the lane's buffered and future data. Readers get err.
func (op *Op) Drop(lane int, err error) { op.in[lane].drop(err) }

// Write sends a copy of p on a lane. It blocks while the receiver's window is
// full.
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

// NextFrame returns a buffer for SendFrame. sent is the number of bytes sent so
// far: if it shows that there is much to send, the buffer has the largest size
// that this operation allows after HeaderLen.
func (op *Op) NextFrame(sent int64) []byte {
	if op.bulk && sent >= MaxData {
		return bulkFrames.Get().(*bulkFrame)[:]
	}
	return GetFrame()
}

// SendFrame sends the bytes after HeaderLen of a frame from NextFrame, without
// a copy if the receiver has room. It takes ownership of the frame.
func (op *Op) SendFrame(lane int, frame []byte) error {
	want := len(frame) - HeaderLen
	if want == 0 {
		PutFrame(frame)
		return nil
	}
	least := 1
	if op.bulk {
		least = want // waiting is cheaper than splitting; an idle receiver has granted enough
	}
	n, err := op.out[lane].acquire(least, want)
	if err != nil {
		PutFrame(frame)
		return err
	}
	if n == want {
		return op.sendData(lane, frame)
	}
	// Send a part of it now, and the rest when there is credit again.
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

// Gather holds back frames until Flush or the end of the operation, so that one
// write sends all of them. It may be used only in the guest. Meanwhile no other
// goroutine may send.
func (op *Op) Gather() { op.gathering = true }

// Flush sends the gathered frames and ends gathering.
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

// SetReadDeadline is like net.Conn's, for the receiving side of a lane.
func (op *Op) SetReadDeadline(lane int, at time.Time) {
	op.in[lane].deadline.set(at, &op.in[lane].ready)
}

// SetWriteDeadline is like net.Conn's, for Write on a lane.
func (op *Op) SetWriteDeadline(lane int, at time.Time) {
	op.out[lane].deadline.set(at, &op.out[lane].ready)
}

// CloseWrite ends a lane. The receiver gets io.EOF.
func (op *Op) CloseWrite(lane int) error { return op.control(kindEOF, lane, nil) }

func (op *Op) control(kind byte, lane int, payload []byte) error {
	frame := make([]byte, HeaderLen+len(payload))
	header{size: uint32(len(payload)), op: op.id, kind: kind, lane: byte(lane)}.put(frame)
	copy(frame[HeaderLen:], payload)
	return op.send(frame, nil)
}

// StopWriting stops sending on a lane. Writers get err.
func (op *Op) StopWriting(lane int, err error) { op.out[lane].finish(err) }

// Cancel tells the guest to stop the operation. The operation continues until
// the guest ends it.
func (op *Op) Cancel() {
	select {
	case <-op.over:
	default:
		frame := make([]byte, HeaderLen)
		header{op: op.id, kind: kindCancel}.put(frame)
		op.conn.sendSoon(frame)
	}
}

// Abandon cancels the operation and discards everything that still arrives.
// Readers and writers get io.ErrClosedPipe.
func (op *Op) Abandon() {
	op.Leave()
	for i := range op.in {
		op.in[i].drop(errDone)
	}
}

// Leave is Abandon, but data that has arrived can still be read.
func (op *Op) Leave() {
	op.Cancel()
	op.conn.forget(op.id)
	op.lost(errDone)
}

// Message sends a message to the client. It may be used only in the guest.
func (op *Op) Message(payload []byte) error { return op.control(kindMsg, 0, payload) }

// End ends the operation with a result. It may be used only in the guest.
// Nothing may be sent afterwards.
func (op *Op) End(result []byte) { op.end(append([]byte{0}, result...)) }

// Fail ends the operation with an error. It may be used only in the guest.
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

// message queues a message of the guest. A guest that sends more messages than
// the queue holds violates the protocol.
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

// ended handles the outcome that the guest sent.
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

// canceled ends the operation in the guest after a cancel of the client.
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
