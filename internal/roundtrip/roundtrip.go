// Package roundtrip carries HTTP requests over connections that stay on this
// machine, on the goroutine that asks.
//
// [http.Transport] has two goroutines for each connection, and a request is
// handed over to them and back five times. Between machines that is nothing; to
// a daemon that answers within a fraction of a millisecond it is much of the
// wait, since most times a thread has to be woken. Here a request is written and
// its answer read by who wants it. What that is no good for goes through an
// http.Transport all the same: upgrades, and bodies of unknown or great length,
// which may have to be written while the answer is read.
package roundtrip

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"time"
)

const (
	// maxBody is the longest body that is written before the answer is read. It
	// fits the buffers of a socket together with the largest of headers.
	maxBody = 64 << 10
	// maxHeader is the longest header of an answer.
	maxHeader = 1 << 20
	// maxIdle is how many connections are kept for later, and idleTime how long.
	maxIdle  = 64
	idleTime = time.Minute
	// maxInformational is how many answers may come before the real one.
	maxInformational = 5
)

// Dialer makes a connection of the kind that [syscall.Conn] can look into: that
// of a socket.
type Dialer func(ctx context.Context) (net.Conn, error)

// Transport is an http.RoundTripper whose every connection Dialer makes,
// whatever the host of a request. It may be used concurrently.
type Transport struct {
	dial  Dialer
	other *http.Transport
	idle  idle
}

// New returns a Transport. Its owner calls CloseIdleConnections in the end.
func New(dial Dialer) *Transport {
	return &Transport{dial: dial, other: &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableCompression: true, MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: idleTime,
	}}
}

// CloseIdleConnections closes connections that nobody uses. http.Client calls
// it.
func (t *Transport) CloseIdleConnections() {
	t.idle.close()
	t.other.CloseIdleConnections()
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !simple(r) {
		return t.other.RoundTrip(r)
	}
	for {
		c, kept, err := t.conn(r.Context())
		if err != nil {
			closeBody(r)
			return nil, err
		}
		resp, err := c.roundTrip(r)
		if err == nil {
			return resp, nil
		}
		c.discard()
		if ended := r.Context().Err(); ended != nil {
			return nil, ended
		}
		if !kept || !c.mayRepeat(r) {
			return nil, err
		}
		// It was closed in the moment in which it was taken out.
		if r, err = again(r); err != nil {
			return nil, err
		}
	}
}

// simple reports whether a request can be written whole before its answer is
// read.
func simple(r *http.Request) bool {
	switch {
	case r.URL == nil || r.URL.Scheme != "http" || r.Header.Get("Upgrade") != "" || r.Header.Get("Expect") != "" || len(r.TransferEncoding) > 0:
		return false
	case r.Body == nil || r.Body == http.NoBody:
		return true
	}
	return r.GetBody != nil && r.ContentLength > 0 && r.ContentLength <= maxBody
}

// again returns a request with its body from the beginning.
func again(r *http.Request) (*http.Request, error) {
	if r.GetBody == nil {
		return r, nil
	}
	body, err := r.GetBody()
	if err != nil {
		return nil, err
	}
	fresh := *r
	fresh.Body = body
	return &fresh, nil
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// conn returns a connection that was kept, or a new one.
func (t *Transport) conn(ctx context.Context) (c *conn, kept bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	if c := t.idle.take(); c != nil {
		return c, true, nil
	}
	raw, err := t.dial(ctx)
	if err != nil {
		return nil, false, err
	}
	c = &conn{Conn: raw, idle: &t.idle}
	c.in.R = raw
	c.r, c.w = bufio.NewReader(&c.in), bufio.NewWriter(counter{c})
	return c, false, nil
}

// conn is a connection. It belongs to one request at a time.
type conn struct {
	net.Conn
	idle *idle
	in   io.LimitedReader
	r    *bufio.Reader
	w    *bufio.Writer
	sent int64       // bytes of the present request
	came bool        // something of its answer
	stop func() bool // ends the watch over the context of the request
	kept time.Time   // when it became idle
}

// counter counts what is sent.
type counter struct{ c *conn }

func (n counter) Write(p []byte) (int, error) {
	m, err := n.c.Conn.Write(p)
	n.c.sent += int64(m)
	return m, err
}

// roundTrip sends a request and reads the beginning of its answer. After an
// error the connection is of no use.
func (c *conn) roundTrip(r *http.Request) (*http.Response, error) {
	c.sent, c.came, c.stop = 0, false, nil
	if r.Context().Done() != nil {
		c.stop = context.AfterFunc(r.Context(), func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	}
	err := r.Write(c.w)
	if err == nil {
		err = c.w.Flush()
	}
	if err != nil && c.sent == 0 {
		return nil, err
	}
	// An answer may say why not all was taken.
	resp, readErr := c.answer(r)
	if readErr != nil {
		return nil, errors.Join(err, readErr)
	}
	reusable := err == nil && !resp.Close && !r.Close
	switch {
	case resp.Body != http.NoBody:
		resp.Body = &body{text: resp.Body, c: c, ctx: r.Context(), reusable: reusable}
	case reusable:
		c.release()
	default:
		c.discard()
	}
	return resp, nil
}

var errAnswer = errors.New("the answer makes no sense")

// answer reads the header of an answer.
func (c *conn) answer(r *http.Request) (*http.Response, error) {
	c.in.N = maxHeader
	_, err := c.r.Peek(1)
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	c.came = true
	for range maxInformational {
		resp, err := http.ReadResponse(c.r, r)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode >= http.StatusOK {
			c.in.N = math.MaxInt64
			return resp, nil
		}
		if resp.StatusCode == http.StatusSwitchingProtocols {
			break // to what nobody asked for
		}
	}
	return nil, errAnswer
}

// mayRepeat reports whether a request whose answer did not begin did nothing,
// or does no harm when it is done twice.
func (c *conn) mayRepeat(r *http.Request) bool {
	if c.came {
		return false
	}
	if c.sent == 0 {
		return true
	}
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return r.Header.Get("Idempotency-Key") != ""
}

// release ends the use of a connection by a request whose answer was read to
// its end.
func (c *conn) release() {
	if c.stop != nil && !c.stop() || c.r.Buffered() > 0 {
		c.discard() // the deadline is passing, or something came that nobody asked for
		return
	}
	c.idle.put(c)
}

// discard closes a connection.
func (c *conn) discard() {
	if c.stop != nil {
		c.stop()
	}
	_ = c.Close() // nothing is lost by it
}
