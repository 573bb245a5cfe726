package api

import (
	"context"
	"io"
	"sync"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/stream"
	"github.com/atoll-run/atoll/sandbox"
)

// maxRequests is the maximum number of signals and window sizes that wait.
const maxRequests = 256

// request is a signal or a window size for a process.
type request struct {
	stream.Message
	after int64 // bytes of input that arrived before it
}

// inbox passes requests of a client to a process in order. Input does not
// overtake requests that arrived before it: a program that is started with a
// line of input sees the size that its terminal was given before. The zero
// value is ready to use.
type inbox struct {
	mu      sync.Mutex
	changed *sync.Cond
	waiting []request // including the one in progress
	closed  bool
}

// lock locks the inbox.
func (q *inbox) lock() {
	q.mu.Lock()
	if q.changed == nil {
		q.changed = sync.NewCond(&q.mu)
	}
}

// add appends a request. It drops the request if too many wait.
func (q *inbox) add(r request) {
	q.lock()
	defer q.mu.Unlock()
	if len(q.waiting) < maxRequests {
		q.waiting = append(q.waiting, r)
		q.changed.Broadcast()
	}
}

// close ends the requests: no more will be added.
func (q *inbox) close() {
	q.lock()
	defer q.mu.Unlock()
	q.closed = true
	q.changed.Broadcast()
}

// obey passes requests to a process until the inbox is closed and empty. ctx
// ends calls of the process. answer is given the result of a background.
func (q *inbox) obey(ctx context.Context, p driver.Process, answer func(error)) {
	for {
		m, ok := q.first()
		if !ok {
			return
		}
		switch {
		case m.Type == "signal":
			_ = p.Signal(ctx, m.Signal) // it may just have ended
		case m.Type == "resize" && m.Size != nil:
			_ = p.Resize(ctx, sandbox.WindowSize{Cols: m.Size.Cols, Rows: m.Size.Rows})
		case m.Type == "background":
			answer(background(ctx, p))
		}
		q.drop()
	}
}

func background(ctx context.Context, p driver.Process) error {
	b, ok := driver.As[driver.Backgrounder](p)
	if !ok {
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "process.background", Subject: p.Info().ID, Message: "this provider cannot let a command go on"}
	}
	return b.Background(ctx)
}

// first waits for a request. It returns false if the inbox is closed and empty.
func (q *inbox) first() (r request, ok bool) {
	q.lock()
	defer q.mu.Unlock()
	for len(q.waiting) == 0 && !q.closed {
		q.changed.Wait()
	}
	if len(q.waiting) == 0 {
		return r, false
	}
	return q.waiting[0], true
}

// drop removes the first request.
func (q *inbox) drop() {
	q.lock()
	defer q.mu.Unlock()
	q.waiting = q.waiting[1:]
	q.changed.Broadcast()
}

// feed copies input to a process and reports whether it reached the end.
func (q *inbox) feed(to io.Writer, from io.Reader) (end bool) {
	buf := make([]byte, 32<<10)
	var passed int64
	for {
		n, err := from.Read(buf)
		for data := buf[:n]; len(data) > 0; {
			k := q.await(passed, len(data))
			if _, err := to.Write(data[:k]); err != nil {
				return false
			}
			passed += int64(k)
			data = data[k:]
		}
		if err != nil {
			q.await(passed, 0)
			return err == io.EOF
		}
	}
}

// await waits for the requests that arrived before the input at an offset. It
// returns how many of the next n bytes arrived before the request after them.
func (q *inbox) await(offset int64, n int) int {
	q.lock()
	defer q.mu.Unlock()
	for len(q.waiting) > 0 && q.waiting[0].after <= offset {
		q.changed.Wait()
	}
	if len(q.waiting) > 0 {
		n = int(min(int64(n), q.waiting[0].after-offset))
	}
	return n
}
