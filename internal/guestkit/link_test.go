package guestkit

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// pipeProgram is a program with output and end chosen by the test.
type pipeProgram struct {
	output chan []byte
	closed chan struct{}
	once   sync.Once
	end    error // once output is closed

	mu    sync.Mutex
	sent  []byte
	fails error // of Send
	block chan struct{}
}

func newPipeProgram() *pipeProgram {
	return &pipeProgram{output: make(chan []byte, 16), closed: make(chan struct{})}
}

func (p *pipeProgram) Receive() ([]byte, error) {
	select {
	case data, ok := <-p.output:
		if !ok {
			return nil, p.end
		}
		return data, nil
	case <-p.closed:
		return nil, context.Canceled
	}
}

func (p *pipeProgram) Send(ctx context.Context, data []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.block != nil {
		select {
		case <-p.block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	p.sent = append(p.sent, data...)
	return p.fails
}

func (p *pipeProgram) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// frames splits sent bytes into frames. It stops at an invalid frame.
func (p *pipeProgram) frames(t *testing.T) (frames [][]byte, bye bool) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for rest := p.sent; len(rest) > 0; {
		n := binary.BigEndian.Uint32(rest)
		if n > guest.MaxJoin {
			return frames, true
		}
		frames, rest = append(frames, rest[4:4+n]), rest[4+n:]
	}
	return frames, false
}

func TestLinkSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipeProgram()
		l := newLink(p)
		want := bytes.Repeat([]byte("0123456789"), guest.MaxJoin/4)
		if n, err := l.Write(want); n != len(want) || err != nil {
			t.Fatalf("Write: %d, %v", n, err)
		}
		synctest.Wait()
		frames, _ := p.frames(t)
		if got := bytes.Join(frames, nil); !bytes.Equal(got, want) || len(frames) < 2 {
			t.Errorf("%d bytes in %d frames arrived, want %d in several", len(got), len(frames), len(want))
		}
		time.Sleep(guest.JoinSilence) // longer than the guest waits for
		frames, _ = p.frames(t)
		if last := frames[len(frames)-1]; len(last) != 0 {
			t.Error("nothing was said for as long as the guest waits; want empty frames")
		}
		l.Close()
		synctest.Wait()
		if _, bye := p.frames(t); !bye {
			t.Error("the process was not told that it is over")
		}
		if _, err := l.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("Write after Close: %v", err)
		}
		if _, err := l.Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("Read after Close: %v", err)
		}
	})
}

func TestLinkReceives(t *testing.T) {
	p := newPipeProgram()
	l := newLink(p)
	defer l.Close()
	p.output <- []byte("one ")
	p.output <- nil // a sign of life
	p.output <- []byte("two")
	p.end = &Exit{Code: 3, Status: "exit status 3"}
	close(p.output)
	var got bytes.Buffer
	_, err := io.CopyBuffer(struct{ io.Writer }{&got}, struct{ io.Reader }{l}, make([]byte, 2))
	var exit *Exit
	if got.String() != "one two" || !errors.As(err, &exit) || exit.Code != 3 {
		t.Errorf("%q, %v; want all the output and then the exit", got.String(), err)
	}
}

// A lost link is distinguished from a canceled call.
func TestLinkIsLost(t *testing.T) {
	t.Run("silence", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newLink(newPipeProgram())
			defer l.Close()
			_, err := l.Read(make([]byte, 1))
			if sandbox.CodeOf(err) != sandbox.CodeUnavailable {
				t.Errorf("%v, want unavailable", err)
			}
		})
	})
	t.Run("input refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPipeProgram()
			p.fails = &sandbox.Error{Code: sandbox.CodeNotFound, Message: "no such process"}
			l := newLink(p)
			defer l.Close()
			_, _ = l.Write([]byte("x"))
			start := time.Now()
			if _, err := l.Read(make([]byte, 1)); sandbox.CodeOf(err) != sandbox.CodeNotFound || time.Since(start) > lastWords {
				t.Errorf("%v after %v, want the error of the input within %v", err, time.Since(start), lastWords)
			}
			if _, err := l.Write([]byte("x")); sandbox.CodeOf(err) != sandbox.CodeNotFound {
				t.Errorf("Write: %v", err)
			}
		})
	})
	t.Run("broken", func(t *testing.T) {
		p := newPipeProgram()
		p.end = io.ErrUnexpectedEOF
		close(p.output)
		l := newLink(p)
		defer l.Close()
		if _, err := l.Read(make([]byte, 1)); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("%v, want unavailable", err)
		}
	})
}

// A writer that is faster than the service waits.
func TestLinkHoldsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipeProgram()
		p.block = make(chan struct{})
		l := newLink(p)
		wrote := make(chan error, 1)
		go func() {
			_, err := l.Write(make([]byte, 4*maxPending))
			wrote <- err
		}()
		synctest.Wait()
		select {
		case err := <-wrote:
			t.Errorf("Write of more than is kept returned: %v", err)
		default:
		}
		l.Close()
		if err := <-wrote; !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("Write: %v", err)
		}
		close(p.block)
	})
}
