package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"sync"
)

// ErrClosed is the error of everything that happens on a connection after this
// side closed it.
var ErrClosed = errors.New("connection closed")

// errDone ends lanes of an operation that is over.
var errDone = io.ErrClosedPipe

// Conn carries operations over one byte stream. Its methods may be called
// concurrently.
type Conn struct {
	rw     io.ReadWriteCloser
	peer   Peer
	accept func(*Op) // not nil in the guest
	done   chan struct{}

	// The guest writes under wmu. The client hands its frames to a goroutine
	// through queue, so that a guest that does not read can block no caller.
	wmu   sync.Mutex
	queue chan []byte
	kick  chan struct{}
	wg    sync.WaitGroup

	mu   sync.Mutex
	ops  map[uint32]*Op
	next uint32
	soon []byte // small frames of a client that may not wait
	err  error
}

// NewClient starts a connection that opens operations. The preface must have
// been exchanged, by which the peer is known. Close must be called.
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

// Overwrites reports whether the guest knows requests to write into files, which
// guests of earlier versions do not.
func (c *Conn) Overwrites() bool { return c.peer.overwrites }

// Serve answers operations until the connection ends, and returns why. Every
// operation is given to accept in a goroutine of its own; accept must call
// Op.End. Serve returns without waiting for them.
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

// Err tells why the connection ended, nil while it lives.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and with it every operation, and waits for the
// connection's goroutines. It is idempotent.
func (c *Conn) Close() error {
	c.fail(ErrClosed)
	c.wg.Wait()
	return nil
}

// fail ends the connection once.
func (c *Conn) fail(err error) {
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF // no stream may seem complete because of it
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

// readLoop takes frames apart until the stream ends or makes no sense. It
// never waits for anything but bytes, so that no operation blocks another.
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

// check refuses a frame by its header alone.
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
			limit = BulkData // a lane's window bounds it, too
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

// opened begins an operation in the guest.
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

// dispatch handles a frame of an existing operation. Frames of operations
// that are over are normal: they were under way when it ended.
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

// send writes a whole frame, or lets the writer do it. The frame belongs to
// the connection from here on. stop, if not nil, abandons the wait for room.
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

// sendSoon sends a small frame, in the client without ever waiting: the writer
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

// grant gives credit back.
func (c *Conn) grant(op uint32, lane byte, n int) {
	b := make([]byte, HeaderLen+4)
	header{size: 4, op: op, kind: kindCredit, lane: lane}.put(b)
	binary.LittleEndian.PutUint32(b[HeaderLen:], uint32(n))
	c.sendSoon(b)
}

// writeLoop is the one writer of a client.
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

// putSoon writes the collected frames, but first what was queued before them:
// a cancel must not overtake the request that it cancels.
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
// then room for MaxData bytes.
func GetFrame() []byte { return frames.Get().(*frame)[:] }

// PutFrame takes a buffer of GetFrame or Op.NextFrame back. Others are left to
// the collector.
func PutFrame(b []byte) {
	switch cap(b) {
	case HeaderLen + MaxData:
		frames.Put((*frame)(b[:cap(b)]))
	case BulkFrame:
		bulkFrames.Put((*bulkFrame)(b[:cap(b)]))
	}
}
