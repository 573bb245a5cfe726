package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"sync"
)

// ErrClosed is the error of all calls on a connection that this side closed.
var ErrClosed = errors.New("connection closed")

// errDone ends the lanes of an operation that has ended.
var errDone = io.ErrClosedPipe

// Conn carries operations over one byte stream. Its methods may be called
// concurrently.
type Conn struct {
	rw     io.ReadWriteCloser
	peer   Peer
	accept func(*Op) // not nil in the guest
	done   chan struct{}

	// The guest writes under wmu. The client passes its frames through queue to a
	// goroutine, so that a guest that does not read cannot block callers.
	wmu   sync.Mutex
	queue chan []byte
	kick  chan struct{}
	wg    sync.WaitGroup

	mu   sync.Mutex
	ops  map[uint32]*Op
	next uint32
	soon []byte // small frames of a client that must not wait
	err  error
}

// NewClient starts a connection that opens operations. The preface, from which
// peer results, must have been exchanged. The caller must call Close.
func NewClient(rw io.ReadWriteCloser, peer Peer) *Conn {
	c := newConn(rw, peer)
	c.queue = make(chan []byte, 4)
	c.kick = make(chan struct{}, 1)
	c.wg.Add(2)
	go c.writeLoop()
	go func() {
		defer c.wg.Done()
		c.fail(c.readLoop())
	}()
	return c
}

// Overwrites reports whether the guest supports writing into existing files.
// Guests of earlier versions do not.
func (c *Conn) Overwrites() bool { return c.peer.overwrites }

// Serve answers operations until the connection ends and returns the reason. It
// calls accept in a new goroutine for every operation; accept must call Op.End.
// Serve returns without waiting for these goroutines.
func Serve(rw io.ReadWriteCloser, peer Peer, accept func(*Op)) error {
	c := newConn(rw, peer)
	c.accept = accept
	err := c.readLoop()
	c.fail(err)
	return err
}

func newConn(rw io.ReadWriteCloser, peer Peer) *Conn {
	return &Conn{rw: rw, peer: peer, done: make(chan struct{}), ops: make(map[uint32]*Op)}
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err returns why the connection ended, or nil while it is open.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close closes the connection, ends all operations, and waits for the
// connection's goroutines. It is idempotent.
func (c *Conn) Close() error {
	c.fail(ErrClosed)
	c.wg.Wait()
	return nil
}

// fail ends the connection once.
func (c *Conn) fail(err error) {
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF // io.EOF would make streams seem complete
	}
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	ops := c.ops
	c.ops = nil
	c.mu.Unlock()
	close(c.done)
	c.rw.Close()
	for _, op := range ops {
		op.lost(err)
	}
}

func (c *Conn) op(id uint32) *Op {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ops[id]
}

func (c *Conn) forget(id uint32) {
	c.mu.Lock()
	delete(c.ops, id)
	c.mu.Unlock()
}

// readLoop parses frames until the stream ends or is malformed. It blocks only
// on reading, so that no operation delays another.
func (c *Conn) readLoop() error {
	r := bufio.NewReaderSize(c.rw, 16<<10)
	var b [HeaderLen]byte
	for {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return err
		}
		h := parseHeader(b[:])
		if err := c.check(h); err != nil {
			return err
		}
		var err error
		switch {
		case h.kind == kindOpen:
			err = c.opened(r, h)
		default:
			err = c.dispatch(r, h)
		}
		if err != nil {
			return err
		}
	}
}

// check validates a frame's header.
func (c *Conn) check(h header) error {
	limit, client := uint32(0), false
	switch h.kind {
	case kindOpen:
		limit, client = MaxOpen, true
	case kindCancel:
		client = true
	case kindData:
		limit = MaxData
		if c.peer.bulk {
			limit = BulkData // the lane's window limits it further
		}
	case kindCredit:
		limit = 4
	case kindEOF:
	case kindMsg, kindEnd:
		limit = MaxReply
		if c.accept != nil {
			return violation("a guest's frame from a client")
		}
	default:
		return violation("frame of kind %d", h.kind)
	}
	switch {
	case client && c.accept == nil:
		return violation("a client's frame from a guest")
	case h.size > limit:
		return violation("frame of %d bytes", h.size)
	case h.lane >= Lanes:
		return violation("lane %d", h.lane)
	}
	return nil
}

// opened starts an operation in the guest.
func (c *Conn) opened(r io.Reader, h header) error {
	if h.size == 0 {
		return violation("empty request")
	}
	req := make([]byte, h.size)
	if _, err := io.ReadFull(r, req); err != nil {
		return err
	}
	op := newOp(c, h.op, Method(req[0]))
	op.Request = req[1:]
	c.mu.Lock()
	_, dup := c.ops[h.op]
	if !dup && c.ops != nil {
		c.ops[h.op] = op
	}
	c.mu.Unlock()
	if dup {
		return violation("operation %d twice", h.op)
	}
	go c.accept(op)
	return nil
}

// dispatch handles a frame of an existing operation. Frames of operations that
// have ended are normal: they were in transit.
func (c *Conn) dispatch(r *bufio.Reader, h header) error {
	op := c.op(h.op)
	if op == nil {
		return discard(r, int(h.size))
	}
	switch h.kind {
	case kindData:
		return op.in[h.lane].fill(r, int(h.size))
	case kindEOF:
		op.in[h.lane].finish(io.EOF)
	case kindCancel:
		op.canceled()
	case kindCredit:
		var b [4]byte
		if h.size != 4 {
			return violation("credit of %d bytes", h.size)
		}
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return err
		}
		return op.out[h.lane].add(binary.LittleEndian.Uint32(b[:]))
	case kindMsg, kindEnd:
		b := make([]byte, h.size)
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
		if h.kind == kindEnd {
			c.forget(h.op)
			op.ended(b)
			return nil
		}
		return op.message(b)
	}
	return nil
}

func discard(r io.Reader, n int) error {
	_, err := io.CopyN(io.Discard, r, int64(n))
	return err
}

// send writes a frame, or queues it for the writer. It takes ownership of the
// frame. Closing stop, if not nil, ends the wait for room.
func (c *Conn) send(frame []byte, stop <-chan struct{}) error {
	if c.queue != nil {
		select {
		case c.queue <- frame:
			return nil
		case <-c.done:
			return c.Err()
		case <-stop:
			return errDone
		}
	}
	c.wmu.Lock()
	_, err := c.rw.Write(frame)
	c.wmu.Unlock()
	PutFrame(frame)
	if err != nil {
		c.fail(err)
	}
	return err
}

// sendSoon sends a small frame. In the client it never blocks: the writer
// collects such frames.
func (c *Conn) sendSoon(frame []byte) {
	if c.queue == nil {
		_ = c.send(frame, nil)
		return
	}
	c.mu.Lock()
	if c.err == nil {
		c.soon = append(c.soon, frame...)
	}
	c.mu.Unlock()
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// grant returns credit to the sender.
func (c *Conn) grant(op uint32, lane byte, n int) {
	b := make([]byte, HeaderLen+4)
	header{size: 4, op: op, kind: kindCredit, lane: lane}.put(b)
	binary.LittleEndian.PutUint32(b[HeaderLen:], uint32(n))
	c.sendSoon(b)
}

// writeLoop writes all frames of a client.
func (c *Conn) writeLoop() {
	defer c.wg.Done()
	var err error
	for err == nil {
		select {
		case frame := <-c.queue:
			err = c.put(frame)
		case <-c.kick:
			err = c.putSoon()
		case <-c.done:
			return
		}
	}
	c.fail(err)
}

// putSoon writes the collected frames after everything that was queued before:
// a cancel must not overtake its request.
func (c *Conn) putSoon() error {
	c.mu.Lock()
	frames := c.soon
	c.soon = nil
	c.mu.Unlock()
	for range len(c.queue) {
		if err := c.put(<-c.queue); err != nil {
			return err
		}
	}
	return c.put(frames)
}

func (c *Conn) put(frame []byte) error {
	_, err := c.rw.Write(frame)
	PutFrame(frame)
	return err
}

type (
	frame     = [HeaderLen + MaxData]byte
	bulkFrame = [BulkFrame]byte
)

var (
	frames     = sync.Pool{New: func() any { return new(frame) }}
	bulkFrames = sync.Pool{New: func() any { return new(bulkFrame) }}
)

// GetFrame returns a buffer for Op.SendFrame: HeaderLen bytes for the header,
// then MaxData bytes for data.
func GetFrame() []byte { return frames.Get().(*frame)[:] }

// PutFrame returns a buffer of GetFrame or Op.NextFrame to the pool. It ignores
// other buffers.
func PutFrame(b []byte) {
	switch cap(b) {
	case HeaderLen + MaxData:
		frames.Put((*frame)(b[:cap(b)]))
	case BulkFrame:
		bulkFrames.Put((*bulkFrame)(b[:cap(b)]))
	}
}
