package egress

import (
	"errors"
	"io"
	"sync/atomic"
)

// errTooMuch is the error of a body that is longer than its rule allows.
var errTooMuch = errors.New("the body is too long")

// countedBody counts the bytes of a body, and fails at its limit.
type countedBody struct {
	io.ReadCloser
	limit int64 // 0: no limit
	n     atomic.Int64
	over  atomic.Bool // the limit was reached
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if total := b.n.Add(int64(n)); b.limit > 0 && total > b.limit {
		b.over.Store(true)
		return 0, errTooMuch
	}
	return n, err
}
