package api

import (
	"io"
	"net/http"
	"time"
)

// bodyRest is how long a body that is a stream may say nothing. What is done
// with it may take any time.
const bodyRest = 2 * time.Minute

// BoundBody ends a request whose body does not go on: whoever sends part of one
// and keeps the connection would hold up a handler for good. A handler that
// does not read the body is not held up by it either.
func BoundBody(w http.ResponseWriter, r *http.Request) { boundBody(w, r, bodyRest) }

func boundBody(w http.ResponseWriter, r *http.Request, rest time.Duration) {
	if r.Body == nil || r.Body == http.NoBody || r.Header.Get("Upgrade") != "" {
		return
	}
	b := &boundedBody{ReadCloser: r.Body, request: r, rc: http.NewResponseController(w), rest: rest}
	b.wait()
	r.Body = b
}

// boundedBody sets a deadline before each read. The last one is taken back: it
// would end the request while its answer is made.
type boundedBody struct {
	io.ReadCloser
	request *http.Request
	rc      *http.ResponseController
	rest    time.Duration
}

func (b *boundedBody) Read(p []byte) (int, error) {
	b.wait()
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		_ = b.rc.SetReadDeadline(time.Time{})
	}
	return n, err
}

// wait gives the next read its time, which is over if the request is.
func (b *boundedBody) wait() {
	_ = b.rc.SetReadDeadline(time.Now().Add(b.rest))
	if b.request.Context().Err() != nil {
		_ = b.rc.SetReadDeadline(time.Now())
	}
}
