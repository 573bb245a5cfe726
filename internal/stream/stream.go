// Package stream carries the standard streams of one command over one
// WebSocket, between the daemon and its clients.
//
// A binary frame consists of a byte with the channel (0 standard input, 1
// standard output or terminal, 2 standard error) and data. A text frame is a
// [Message] in JSON. Each channel has its own window: a sender has at most
// [Window] bytes in transit that the receiver has not acknowledged as read. So
// an unread channel blocks its writer, and uses bounded memory, without
// blocking other channels or messages.
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
	// Window is the maximum number of unread bytes of a channel.
	Window = 256 << 10
	// maxData is the maximum size of a frame's data.
	maxData = 32 << 10
	// MaxMessage is the maximum size of a message, in bytes. A command with its
	// arguments fits.
	MaxMessage = 4 << 20

	pingEvery   = 30 * time.Second
	pingTimeout = 30 * time.Second
)

// Message is a text frame. Fields that its type does not need are empty.
type Message struct {
	// Type is one of: start, started, signal, resize, background, exit, error, eof,
	// ack. The daemon answers a background with a background.
	Type string `json:"type"`

	Command json.RawMessage      `json:"command,omitempty"` // start: the command
	Process *sandbox.ProcessInfo `json:"process,omitempty"` // started
	Exit    *sandbox.Exit        `json:"exit,omitempty"`    // exit
	Error   json.RawMessage      `json:"error,omitempty"`   // error, or the answer to background: a problem document as in HTTP
	Signal  int                  `json:"signal,omitempty"`  // signal: by its Linux number
	Size    *sandbox.WindowSize  `json:"size,omitempty"`    // resize: the size

	At *Position `json:"at,omitempty"` // started: the position of the streams, if they can be rejoined

	Channel int `json:"channel,omitempty"` // eof and ack
	N       int `json:"n,omitempty"`       // ack: the number of bytes read
}

// Position is the position in the streams of a command, in bytes. A negative
// input position means that input cannot be resent.
type Position struct {
	Stdin  int64 `json:"stdin"`
	Stdout int64 `json:"stdout"`
	Stderr int64 `json:"stderr"`
}

// ErrClosed is returned by reads and writes after the link was closed.
var ErrClosed = errors.New("the stream is closed")

// errProtocol means that the peer violated the protocol.
var errProtocol = errors.New("the other side broke the protocol")

// Link is one end of a stream. It is safe for concurrent use, but each channel
// has one reader and one writer. The caller runs Run, and closes the Link.
type Link struct {
	ws  *websocket.Conn
	ctx context.Context // canceled when the link ends
	end context.CancelFunc
	in  [channels]inflow
	out [channels]outflow
}

// New returns a link over an open WebSocket, and takes ownership of it.
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

// Reader returns a reader of a channel.
func (l *Link) Reader(channel int) io.Reader { return &l.in[channel] }

// Writer returns a writer to a channel. Closing it closes the channel.
func (l *Link) Writer(channel int) io.WriteCloser { return &l.out[channel] }

// Arrived returns how many bytes of a channel have arrived. All of them can be
// read, even after the link has ended.
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

// Receive waits for one message. It may only be used before Run.
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

// Run receives until the link ends, and passes messages that are not about
// channels to handle, which must not block. After the end, reads and writes
// fail. The error is nil if the peer closed the link normally.
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

// keepAlive detects that the peer is gone.
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

// fail fails all reads and writes.
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

// Close closes the link normally, or after a few seconds without the peer.
func (l *Link) Close() error {
	err := l.ws.Close(websocket.StatusNormalClosure, "")
	l.fail(nil)
	l.end()
	return err
}

// Abort closes the link immediately.
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
	came   int64 // total number of bytes received
	read   int   // bytes read and not yet acknowledged
	err    error // set when no more data will arrive
	unread int   // bytes that are not acknowledged
}

// add appends received data. It returns false if the peer exceeded the window.
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

// Read returns received data in order, and the end only after all data.
func (f *inflow) Read(p []byte) (int, error) {
	f.mu.Lock()
	for len(f.buf) == 0 && f.err == nil && len(p) > 0 {
		f.wake.Wait()
	}
	n := copy(p, f.buf)
	f.buf = f.buf[n:]
	if len(f.buf) == 0 {
		f.buf = nil // free the memory of an idle channel
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
		// If this fails, the link has ended, and the next read reports it.
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

	sending sync.Mutex // held while frames are written, to keep their order

	mu     sync.Mutex
	wake   sync.Cond
	credit int
	closed bool
}

// grant allows n more bytes. It returns false if n exceeds the bytes in
// transit.
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

// take waits until bytes may be sent and returns how many, or 0 if the channel
// is closed.
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

// Write sends p. It blocks while the peer is too far behind in reading.
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

// Close closes the channel. A blocked Write returns ErrClosed.
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
