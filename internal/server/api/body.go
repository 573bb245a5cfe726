package api

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// bodyRest bounds each read of a streamed request body. Processing the data may
// take any time.
const bodyRest = 2 * time.Minute

// entryTime is how long a request may take with which a caller signs in.
const entryTime = 10 * time.Second

// ReadEntry reads at most limit bytes of the body of a request with which a
// caller signs in. Anybody may send such a request, so its time is bounded. The
// bound stays, because the server reads the rest of the body when the handler
// returns.
func ReadEntry(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(entryTime))
	return io.ReadAll(io.LimitReader(r.Body, limit))
}

// BoundBody ends a request whose client stops sending the body but keeps the
// connection open. Otherwise its handler would block forever. The deadline
// applies only while the body is being read. The handler calls done when it
// returns. After that, a goroutine that still reads the body sets no more
// deadlines, because the connection serves other requests.
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

// boundedBody sets a deadline before each read. It removes the deadline after
// the last read, so that it does not end the request while the response is
// made.
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

// wait sets the deadline of the next read. If the request has ended, the
// deadline is in the past.
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
