// Package wsexec implements guestkit.Program for a command that a service runs
// over a WebSocket. Usually, binary messages carry a byte that names a channel,
// and the channel's data, and text messages, or a channel, report how the command ended.
package wsexec

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// Protocol describes the differences between services.
type Protocol struct {
	Stdin          []byte // prefix of a message with input
	Stdout, Stderr byte   // the channels
	// Status, if it is not 0, is a channel whose messages count as text messages.
	Status byte
	// MaxInput is the largest number of input bytes in a message.
	MaxInput int
	// Ended parses a text message. It returns nil unless the command has ended;
	// then it returns a *guestkit.Exit or another error. Nil: text means nothing.
	Ended func(text, stderr []byte) error
	// Encode and Decode, if set, replace the channels. Encode returns a message with
	// input, and Decode the output in a message, and an error as that of Ended.
	Encode func(input []byte) []byte
	Decode func(message []byte, stderr *[]byte) (stdout []byte, err error)
	// Farewell, if set, is sent before the connection is closed after Close.
	Farewell []byte
	// Lost returns the error of a connection that ended before the command.
	Lost func() error
	// Release, if set, is called once when the connection has ended, with the
	// context of New.
	Release func(context.Context)
}

const (
	// maxMessage is the largest accepted message of the service, in bytes.
	maxMessage = 5 << 20
	// beat is the interval of pings to the service.
	beat = 50 * time.Second
	// parting is how long input can be sent after Close.
	parting = 6 * time.Second
	// maxText limits the bytes that are kept of a command's error output.
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
	end      error // what Decode found after output
}

type message struct {
	kind websocket.MessageType
	data []byte
	err  error
}

// New returns a program for a connection over which a command was started. It
// takes ownership of the connection, which is closed when ctx ends. work counts
// the program's goroutines.
func New(ctx context.Context, work *sync.WaitGroup, ws *websocket.Conn, protocol Protocol) *Program {
	ws.SetReadLimit(maxMessage)
	p := &Program{protocol: protocol, ws: ws, messages: make(chan message), closed: make(chan struct{})}
	work.Go(func() { p.receive(ctx) })
	work.Go(func() { p.beat(ctx) })
	return p
}

// receive passes on messages until the connection ends, or for a while after
// Close, so that the command can still receive its last input.
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

// beat pings the service periodically and reports answers as signs of life.
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
			return // without further signs of life the caller gives up
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
	if p.end != nil {
		return nil, p.end
	}
	var m message
	select {
	case m = <-p.messages:
	case <-p.closed:
		return nil, io.ErrUnexpectedEOF
	}
	switch {
	case m.err != nil:
		return nil, p.protocol.Lost()
	case m.kind == websocket.MessageText && p.protocol.Ended == nil:
		return nil, nil
	case m.kind == websocket.MessageText:
		return nil, p.protocol.Ended(m.data, p.stderr)
	case len(m.data) == 0:
		return nil, nil
	case p.protocol.Status != 0 && m.data[0] == p.protocol.Status:
		return nil, p.protocol.Ended(m.data[1:], p.stderr)
	case p.protocol.Decode != nil:
		out, err := p.protocol.Decode(m.data, &p.stderr)
		if p.end = err; len(out) > 0 {
			return out, nil
		}
		return nil, err
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
		message := slices.Concat(p.protocol.Stdin, chunk)
		if p.protocol.Encode != nil {
			message = p.protocol.Encode(chunk)
		}
		if err := p.ws.Write(ctx, websocket.MessageBinary, message); err != nil {
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
		time.AfterFunc(parting, func() {
			if p.protocol.Farewell != nil {
				ctx, cancel := context.WithTimeout(context.Background(), parting)
				defer cancel()
				_ = p.ws.Write(ctx, websocket.MessageBinary, p.protocol.Farewell)
			}
			_ = p.ws.CloseNow()
		})
	})
	return nil
}
