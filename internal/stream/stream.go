// Package stream carries the standard streams of one command over one
// WebSocket, between the daemon and its clients.
//
// A binary frame is one byte that names a channel (0 standard input, 1 standard
// output or terminal, 2 standard error) and what was written to it. A text
// frame is a [Message] in JSON. Each channel has a window of its own: a sender
// has at most [Window] bytes on the way that the receiver has not acknowledged
// as read, so a channel that nobody reads stops its writer, fills no memory, and
// holds up neither the other channels nor the messages.
package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/sandbox"
)

// The channels.
const (
	Stdin  = 0
	Stdout = 1
	Stderr = 2

	channels = 3
)

const (
	// Window is how many bytes of a channel may be on the way unread.
	Window = 256 << 10
	// maxData is the most that a frame carries.
	maxData = 32 << 10
	// MaxMessage bounds a message: a command with its arguments fits.
	MaxMessage = 4 << 20

	pingEvery   = 30 * time.Second
	pingTimeout = 30 * time.Second
)

// Message is a text frame. Fields that its type does not need are empty.
type Message struct {
	// Type is one of: start, started, signal, resize, exit, error, eof, ack.
	Type string `json:"type"`

	Command json.RawMessage      `json:"command,omitempty"` // start: what to run
	Process *sandbox.ProcessInfo `json:"process,omitempty"` // started
	Exit    *sandbox.Exit        `json:"exit,omitempty"`    // exit
	Error   json.RawMessage      `json:"error,omitempty"`   // error: a problem as in HTTP
	Signal  int                  `json:"signal,omitempty"`  // signal: by its Linux number
	Size    *sandbox.WindowSize  `json:"size,omitempty"`    // resize

	At *Position `json:"at,omitempty"` // started: where the streams go on, if they can be rejoined

	Channel int `json:"channel,omitempty"` // eof and ack
	N       int `json:"n,omitempty"`       // ack: how many bytes were read
}

// Position is how far the streams of a command have come, in bytes. A negative
// one of input says that input cannot be sent again.
type Position struct {
	Stdin  int64 `json:"stdin"`
	Stdout int64 `json:"stdout"`
	Stderr int64 `json:"stderr"`
}

// ErrClosed is returned by reads and writes after the link was closed.
var ErrClosed = errors.New("the stream is closed")

// errProtocol says that the other side does not follow the protocol.
var errProtocol = errors.New("the other side broke the protocol")

// Link is one end of a stream. Its methods may be called concurrently, but each
// channel has one reader and one writer. The caller runs Run, and closes the
// Link.
type Link struct {
	ws  *websocket.Conn
	ctx context.Context // ends with the link
	end context.CancelFunc
	in  [channels]inflow
	out [channels]outflow
}

// New makes a link over an open WebSocket, which it owns from now on.
func New(ctx context.Context, ws *websocket.Conn) *Link {
	l := &Link{ws: ws}
	l.ctx, l.end = context.WithCancel(ctx)
	ws.SetReadLimit(MaxMessage)
	for i := range channels {
		l.in[i].link, l.in[i].id = l, i
		l.in[i].wake.L = &l.in[i].mu
		l.out[i].link, l.out[i].id, l.out[i].credit = l, i, Window
		l.out[i].wake.L = &l.out[i].mu
	}
	return l
}

// Read returns what the other side writes to a channel.
func (l *Link) Reader(channel int) io.Reader { return &l.in[channel] }

// Writer writes to a channel; closing it ends the channel.
func (l *Link) Writer(channel int) io.WriteCloser { return &l.out[channel] }

// Arrived is how many bytes of a channel have come, read or not. They can all
// be read, also after the link has ended.
func (l *Link) Arrived(channel int) int64 {
	f := &l.in[channel]
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.came
}

// Send sends a message.
func (l *Link) Send(ctx context.Context, m Message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return l.ws.Write(ctx, websocket.MessageText, text)
}

// Receive waits for one message. It is for the beginning, before Run.
func (l *Link) Receive(ctx context.Context) (m Message, err error) {
	kind, data, err := l.ws.Read(ctx)
	if err != nil {
		return m, err
	}
	if kind != websocket.MessageText {
		return m, errProtocol
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, errProtocol
	}
	return m, nil
}

// Run receives until the link ends, and hands messages that are not about
// channels to handle, which must not block. Then all reads and writes end. The
// error is nil if the other side closed the link in good order.
func (l *Link) Run(handle func(Message)) error {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		l.keepAlive()
	}()
	err := l.receive(handle)
	l.fail(err)
	l.end()
	<-stopped
	if websocket.CloseStatus(err) == websocket.StatusNormalClosure {
		return nil
	}
	return err
}

func (l *Link) receive(handle func(Message)) error {
	for {
		kind, data, err := l.ws.Read(l.ctx)
		if err != nil {
			return err
		}
		if kind == websocket.MessageBinary {
			if len(data) == 0 || int(data[0]) >= channels || !l.in[data[0]].add(data[1:]) {
				return l.refuse()
			}
			continue
		}
		var m Message
		if json.Unmarshal(data, &m) != nil || m.Channel < 0 || m.Channel >= channels {
			return l.refuse()
		}
		switch m.Type {
		case "eof":
			l.in[m.Channel].finish(io.EOF)
		case "ack":
			if !l.out[m.Channel].grant(m.N) {
				return l.refuse()
			}
		default:
			handle(m)
		}
	}
}

func (l *Link) refuse() error {
	_ = l.ws.Close(websocket.StatusPolicyViolation, errProtocol.Error())
	return errProtocol
}

// keepAlive finds out that the other side is gone without a word.
func (l *Link) keepAlive() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-tick.C:
			ctx, cancel := context.WithTimeout(l.ctx, pingTimeout)
			err := l.ws.Ping(ctx)
			cancel()
			if err != nil {
				_ = l.ws.CloseNow()
				return
			}
		}
	}
}

// fail ends all reads and writes.
func (l *Link) fail(err error) {
	if err == nil || websocket.CloseStatus(err) == websocket.StatusNormalClosure {
		err = ErrClosed
	} else {
		err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	for i := range channels {
		l.in[i].finish(err)
		l.out[i].finish()
	}
}

// Close ends the link in good order, or after a few seconds without.
func (l *Link) Close() error {
	err := l.ws.Close(websocket.StatusNormalClosure, "")
	l.fail(nil)
	l.end()
	return err
}

// Abort ends the link at once.
func (l *Link) Abort() {
	_ = l.ws.CloseNow()
	l.fail(nil)
	l.end()
}

// inflow is the receiving end of a channel.
type inflow struct {
	link *Link
	id   int

	mu     sync.Mutex
	wake   sync.Cond
	buf    []byte
	came   int64 // bytes that arrived ever
	read   int   // bytes that were read and not yet acknowledged
	err    error // once nothing more will come
	unread int   // bytes that the other side may still think are on the way
}

// add takes what arrived. It reports false if the other side sent more than it
// was allowed to.
func (f *inflow) add(data []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil || f.unread+len(data) > Window {
		return false
	}
	f.unread += len(data)
	f.came += int64(len(data))
	f.buf = append(f.buf, data...)
	f.wake.Broadcast()
	return true
}

func (f *inflow) finish(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
	f.wake.Broadcast()
}

// Read returns what arrived, in order; what arrived before the end comes
// before the end.
func (f *inflow) Read(p []byte) (int, error) {
	f.mu.Lock()
	for len(f.buf) == 0 && f.err == nil && len(p) > 0 {
		f.wake.Wait()
	}
	n := copy(p, f.buf)
	f.buf = f.buf[n:]
	if len(f.buf) == 0 {
		f.buf = nil // an idle channel holds no memory
	}
	f.read += n
	ack := 0
	if f.err == nil && (f.read >= Window/4) {
		ack, f.read = f.read, 0
		f.unread -= ack
	}
	err := f.err
	f.mu.Unlock()
	if ack > 0 {
		// Should it fail, the link is at its end and the next read says so.
		_ = f.link.Send(f.link.ctx, Message{Type: "ack", Channel: f.id, N: ack})
	}
	if n > 0 || len(p) == 0 {
		return n, nil
	}
	return 0, err
}

// outflow is the sending end of a channel.
type outflow struct {
	link *Link
	id   int

	sending sync.Mutex // held while frames are written, so that they keep their order

	mu     sync.Mutex
	wake   sync.Cond
	credit int
	closed bool
}

// grant lets n more bytes be sent. It reports false if there cannot have been
// so many.
func (f *outflow) grant(n int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n <= 0 || f.credit+n > Window {
		return false
	}
	f.credit += n
	f.wake.Broadcast()
	return true
}

func (f *outflow) finish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.wake.Broadcast()
}

// take waits until something may be sent and returns how much, or 0 when the
// channel is closed.
func (f *outflow) take(want int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.credit == 0 && !f.closed {
		f.wake.Wait()
	}
	if f.closed {
		return 0
	}
	n := min(want, f.credit, maxData)
	f.credit -= n
	return n
}

// Write sends p, and waits for the other side to read if it is far behind.
func (f *outflow) Write(p []byte) (sent int, err error) {
	f.sending.Lock()
	defer f.sending.Unlock()
	var frame []byte
	for len(p) > 0 {
		n := f.take(len(p))
		if n == 0 {
			return sent, ErrClosed
		}
		frame = append(append(frame[:0], byte(f.id)), p[:n]...)
		if err := f.link.ws.Write(f.link.ctx, websocket.MessageBinary, frame); err != nil {
			return sent, fmt.Errorf("%w: %w", ErrClosed, err)
		}
		p = p[n:]
		sent += n
	}
	return sent, nil
}

// Close ends the channel. A Write that waits returns ErrClosed.
func (f *outflow) Close() error {
	f.mu.Lock()
	was := f.closed
	f.closed = true
	f.wake.Broadcast()
	f.mu.Unlock()
	if was {
		return nil
	}
	f.sending.Lock()
	defer f.sending.Unlock()
	return f.link.Send(f.link.ctx, Message{Type: "eof", Channel: f.id})
}
