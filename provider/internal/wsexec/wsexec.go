// Package wsexec makes a guestkit.Program of a command that a service runs over a
// WebSocket: binary messages carry a byte that names a channel, and what was
// written to it; text messages say how the command ended.
package wsexec

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// Protocol is what differs from service to service.
type Protocol struct {
	Stdin          []byte // what begins a message with input
	Stdout, Stderr byte   // the channels
	// MaxInput is the most input that a message carries.
	MaxInput int
	// Ended reads a text message. It returns nil unless the command has ended:
	// then a *guestkit.Exit, or another error.
	Ended func(text, stderr []byte) error
	// Lost is the error of a connection that has ended before the command.
	Lost func() error
	// Release, if it is set, is called once when the connection has ended, with
	// the context of New.
	Release func(context.Context)
}

const (
	// maxMessage is the largest message that is taken from the service.
	maxMessage = 4 << 20
	// beat is how often the service is asked whether it is there.
	beat = 50 * time.Second
	// parting is how long input can be sent after Close.
	parting = 6 * time.Second
	// maxText bounds what is kept of what a command says of its failure.
	maxText = 300
)

// Program is a command over a WebSocket. It implements guestkit.Program.
type Program struct {
	protocol Protocol
	ws       *websocket.Conn
	messages chan message
	closed   chan struct{}
	once     sync.Once
	stderr   []byte
}

type message struct {
	kind websocket.MessageType
	data []byte
	err  error
}

// New makes a program of a connection over which a command was started. The
// connection belongs to it, and ends with the context. What goes on until then
// is counted in work.
func New(ctx context.Context, work *sync.WaitGroup, ws *websocket.Conn, protocol Protocol) *Program {
	ws.SetReadLimit(maxMessage)
	p := &Program{protocol: protocol, ws: ws, messages: make(chan message), closed: make(chan struct{})}
	work.Go(func() { p.receive(ctx) })
	work.Go(func() { p.beat(ctx) })
	return p
}

// receive hands on what comes until the connection ends, or for a while after
// Close, so that the command hears the last word.
func (p *Program) receive(ctx context.Context) {
	defer func() {
		_ = p.ws.CloseNow()
		if p.protocol.Release != nil {
			p.protocol.Release(ctx)
		}
	}()
	for {
		kind, data, err := p.ws.Read(ctx)
		select {
		case p.messages <- message{kind, data, err}:
		case <-p.closed:
		case <-ctx.Done():
			_ = p.Close()
		}
		if err != nil {
			return
		}
	}
}

// beat asks now and then whether the service is there, and says so.
func (p *Program) beat(ctx context.Context) {
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	for {
		select {
		case <-p.closed:
			return
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		pinging, cancel := context.WithTimeout(ctx, beat)
		err := p.ws.Ping(pinging)
		cancel()
		if err != nil {
			return // receive notices
		}
		select {
		case p.messages <- message{kind: websocket.MessageBinary}:
		case <-p.closed:
			return
		case <-ctx.Done():
			return
		}
	}
}

// Receive implements guestkit.Program.
func (p *Program) Receive() ([]byte, error) {
	var m message
	select {
	case m = <-p.messages:
	case <-p.closed:
		return nil, io.ErrUnexpectedEOF
	}
	switch {
	case m.err != nil:
		return nil, p.protocol.Lost()
	case m.kind == websocket.MessageText:
		return nil, p.protocol.Ended(m.data, p.stderr)
	case len(m.data) == 0:
		return nil, nil
	case m.data[0] == p.protocol.Stdout:
		return m.data[1:], nil
	case m.data[0] == p.protocol.Stderr:
		p.stderr = append(p.stderr, m.data[1:min(len(m.data), 1+maxText-len(p.stderr))]...)
	}
	return nil, nil
}

// Send implements guestkit.Program.
func (p *Program) Send(ctx context.Context, data []byte) error {
	for chunk := range slices.Chunk(data, p.protocol.MaxInput) {
		if err := p.ws.Write(ctx, websocket.MessageBinary, slices.Concat(p.protocol.Stdin, chunk)); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return p.protocol.Lost()
		}
	}
	return nil
}

// Close implements guestkit.Program.
func (p *Program) Close() error {
	p.once.Do(func() {
		close(p.closed)
		time.AfterFunc(parting, func() { _ = p.ws.CloseNow() })
	})
	return nil
}
