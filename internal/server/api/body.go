package api

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// bodyRest is how long a body that is a stream may say nothing. What is done
// with it may take any time.
const bodyRest = 2 * time.Minute

// BoundBody ends a request whose body does not go on: whoever sends part of one
// and keeps the connection would hold up a handler for good. A handler that
// does not read the body is not held up by it either. The handler calls done when
// it returns: whoever still reads the body must leave the connection alone, which
// serves other requests from then on.
func BoundBody(w http.ResponseWriter, r *http.Request) (done func()) {
	return boundBody(w, r, bodyRest)
}

func boundBody(w http.ResponseWriter, r *http.Request, rest time.Duration) (done func()) {
	if r.Body == nil || r.Body == http.NoBody || r.Header.Get("Upgrade") != "" {
		return func() {}
	}
	b := &boundedBody{ReadCloser: r.Body, request: r, rc: http.NewResponseController(w), rest: rest}
	b.wait()
	r.Body = b
	return b.done
}

// boundedBody sets a deadline before each read. The last one is taken back: it
// would end the request while its answer is made.
type boundedBody struct {
	io.ReadCloser
	request *http.Request
	rc      *http.ResponseController
	rest    time.Duration

	mu   sync.Mutex
	over bool // the handler has returned
}

func (b *boundedBody) Read(p []byte) (int, error) {
	b.wait()
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.deadline(time.Time{})
	}
	return n, err
}

// wait gives the next read its time, which is over if the request is.
func (b *boundedBody) wait() {
	b.deadline(time.Now().Add(b.rest))
	if b.request.Context().Err() != nil {
		b.deadline(time.Now())
	}
}

func (b *boundedBody) deadline(t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over {
		_ = b.rc.SetReadDeadline(t)
	}
}

func (b *boundedBody) done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
}
