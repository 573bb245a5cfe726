package roundtrip

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
)

// body is that of an answer. Its end gives the connection back. Close may be
// called while another goroutine reads, which it wakes.
type body struct {
	text     io.ReadCloser // as HTTP frames it; its Close would read on, and is not called
	c        *conn
	ctx      context.Context
	reusable bool // the connection, when all was read
	state    atomic.Int32
}

// The states of a body: the connection is its own, all was read, or it was let
// go of before that.
const (
	bodyOpen = iota
	bodyRead
	bodyClosed
)

func (b *body) Read(p []byte) (int, error) {
	switch b.state.Load() {
	case bodyRead:
		return 0, io.EOF
	case bodyClosed:
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.text.Read(p)
	switch {
	case err == nil:
	case err == io.EOF:
		if b.state.CompareAndSwap(bodyOpen, bodyRead) {
			b.letGo()
		}
	default:
		_ = b.Close()
		if ended := b.ctx.Err(); ended != nil {
			err = ended
		}
	}
	return n, err
}

func (b *body) letGo() {
	if b.reusable {
		b.c.release()
	} else {
		b.c.discard()
	}
}

// Close implements io.Closer. What was not read to its end costs the connection.
func (b *body) Close() error {
	if b.state.CompareAndSwap(bodyOpen, bodyClosed) {
		b.c.discard()
	}
	return nil
}
