// Package client carries requests of the Go library to a daemon, over HTTP.
package client

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Conn sends requests to a daemon. Its methods may be called concurrently.
type Conn struct {
	HTTP *http.Client
	Base string // scheme and host of requests
	Key  string // an API key, which the local socket does not need
	// Tenant is the tenant that requests act in, which the owner of the machine
	// may choose. Empty: that of the caller.
	Tenant string
	// Address is Base as the user wrote it, for errors.
	Address string
	// Propagate adds the trace context to the header of each request.
	Propagate func(ctx context.Context, h http.Header)
}

// Request makes a request. Its body may be nil.
func (c *Conn) Request(ctx context.Context, method, path string, query url.Values, body io.Reader) (*http.Request, error) {
	target := c.Base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "client.request", Message: "cannot be sent", Cause: err}
	}
	c.sign(ctx, r.Header)
	return r, nil
}

// sign adds the API key, the tenant and the trace context to the header.
func (c *Conn) sign(ctx context.Context, h http.Header) {
	if c.Key != "" {
		h.Set("Authorization", "Bearer "+c.Key)
	}
	if c.Tenant != "" {
		h.Set(operator.TenantHeader, c.Tenant)
	}
	c.Propagate(ctx, h)
}

// How often, and for how long in total, Do repeats a request that a busy daemon
// refused.
const (
	maxRefused = 8
	maxWait    = 30 * time.Second
)

// Do sends a request. A response with an error status is returned as a
// *sandbox.Error. The caller closes the body. A request that a busy daemon
// refused is repeated after the time in Retry-After, for a bounded time.
func (c *Conn) Do(r *http.Request) (*http.Response, error) {
	waited := time.Duration(0)
	for try := 1; ; try++ {
		resp, after, err := c.send(r)
		if after == 0 || try == maxRefused || waited+after > maxWait || r.Body != nil && r.GetBody == nil {
			return resp, err
		}
		again := r.Clone(r.Context())
		if r.GetBody != nil {
			body, failed := r.GetBody()
			if failed != nil {
				return resp, err
			}
			again.Body = body
		}
		r, waited = again, waited+after
		select {
		case <-time.After(after/2 + rand.N(after/2)): // spread the repetitions of concurrent requests
		case <-r.Context().Done():
			return nil, err
		}
	}
}

// send sends a request once. If a busy daemon refused it, send returns how long
// to wait before repeating it.
func (c *Conn) send(r *http.Request) (_ *http.Response, after time.Duration, err error) {
	resp, err := c.try(r)
	if err == nil {
		return resp, 0, nil
	}
	if known, ok := errors.AsType[*sandbox.Error](err); ok && known.Code == sandbox.CodeExhausted && known.Subject == busy && resp != nil {
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		after = time.Duration(seconds) * time.Second
	}
	return nil, max(after, 0), err
}

// busy is the subject of an error that is about the machine as a whole.
const busy = "machine"

// try sends a request once. If it was refused, only the header of the response
// is returned.
func (c *Conn) try(r *http.Request) (*http.Response, error) {
	resp, err := c.HTTP.Do(r)
	if err != nil {
		return nil, c.unreachable(r.Context(), err)
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	return resp, problemOf(resp)
}

// TransportError classifies an error of the connection. Such an error says
// nothing about the state of a sandbox.
func TransportError(ctx context.Context, err error) error {
	e := &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "client.request", Message: "the daemon does not answer", Cause: err}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		e.Code, e.Message = sandbox.CodeCanceled, "canceled"
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		e.Code, e.Message = sandbox.CodeTimeout, "took too long"
	default:
		e.Hint = "start one with: atoll up"
	}
	return e
}

const maxProblem = 64 << 10

// problemOf reads the error in a response.
func problemOf(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err := ParseProblem(text); err != nil {
		return err
	}
	if resp.StatusCode == http.StatusBadRequest && bytes.Contains(text, []byte("HTTP request to an HTTPS server")) {
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "client.request", Message: "the daemon speaks TLS at this address", Hint: "write https:// instead of http://"}
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "client.request", Message: fmt.Sprintf("something that is not Atoll answered with status %d", resp.StatusCode),
	}
}

func ParseProblem(text []byte) error {
	var p struct {
		Code                      sandbox.Code
		Op, Subject, Detail, Hint string
		Request                   string
		Rule                      string
		Faults                    []struct{ Field, Message string }
	}
	if json.Unmarshal(text, &p) != nil || p.Code == "" {
		return nil
	}
	e := &sandbox.Error{Code: p.Code, Op: p.Op, Subject: p.Subject, Message: p.Detail, Hint: p.Hint, Rule: p.Rule}
	if p.Request != "" && e.Hint == "" {
		e.Hint = "see the daemon's log for request " + p.Request
	}
	if len(p.Faults) > 0 {
		e.Subject, e.Message = p.Faults[0].Field, p.Faults[0].Message
	}
	return e
}

// Call makes a request with JSON bodies. in and out may be nil.
func (c *Conn) Call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "client.request", Message: "cannot be sent", Cause: err}
		}
		body = bytes.NewReader(text)
	}
	r, err := c.Request(ctx, method, path, query, body)
	if err != nil {
		return err
	}
	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return c.Receive(r, out)
}

// Receive sends a request and decodes the JSON response into out, if out is not
// nil.
func (c *Conn) Receive(r *http.Request, out any) error {
	resp, err := c.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	} else {
		err = json.NewDecoder(resp.Body).Decode(out)
	}
	if err != nil {
		return TransportError(r.Context(), err)
	}
	return nil
}

// WebSocket opens a WebSocket of the API.
func (c *Conn) WebSocket(ctx context.Context, path string) (*websocket.Conn, error) {
	header := http.Header{}
	c.sign(ctx, header)
	ws, resp, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(c.Base, "http")+path, &websocket.DialOptions{
		HTTPClient: c.HTTP, HTTPHeader: header, CompressionMode: websocket.CompressionDisabled,
	})
	if err == nil {
		return ws, nil
	}
	if resp != nil && resp.Body != nil && resp.StatusCode >= 300 {
		defer resp.Body.Close()
		return nil, problemOf(resp)
	}
	return nil, c.unreachable(ctx, err)
}

// unreachable is TransportError for a request without a response. The error
// names the daemon.
func (c *Conn) unreachable(ctx context.Context, err error) error {
	failed := TransportError(ctx, err)
	var e *sandbox.Error
	if c.Address == "" || !errors.As(failed, &e) || e.Code != sandbox.CodeUnavailable {
		return failed
	}
	e.Subject = c.Address
	var verify *tls.CertificateVerificationError
	switch {
	case errors.As(err, &verify):
		e.Message, e.Hint = "the certificate of the daemon is not trusted: "+verify.Err.Error(), "have the system trust its authority, or set SSL_CERT_FILE to a file with it"
	case !strings.HasPrefix(c.Address, "unix://"):
		e.Hint = "check the address, and that a daemon listens there: atoll up --listen"
	}
	return e
}

const maxEvent = 1 << 20

// ServerSent yields the data of server-sent events, and io.EOF after the event
// that ends the stream.
func ServerSent(ctx context.Context, body io.Reader) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		lines := bufio.NewScanner(body)
		lines.Buffer(nil, maxEvent)
		kind := ""
		for lines.Scan() {
			line := lines.Bytes()
			if k, ok := bytes.CutPrefix(line, []byte("event: ")); ok {
				kind = string(k)
				continue
			}
			data, ok := bytes.CutPrefix(line, []byte("data: "))
			if !ok {
				continue
			}
			switch kind {
			case "error":
				yield(nil, ParseProblem(data))
				return
			case "end":
				yield(nil, io.EOF)
				return
			}
			if !yield(data, nil) {
				return
			}
		}
		if err := lines.Err(); err != nil && ctx.Err() == nil {
			yield(nil, TransportError(ctx, err))
		}
	}
}

// Milliseconds rounds up, so that a short time does not become 0.
func Milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// EventQuery returns the query parameters for q.
func EventQuery(q sandbox.EventQuery) url.Values {
	out := url.Values{"type": q.Types, "op": q.Ops}
	if q.After > 0 {
		out.Set("after", strconv.FormatInt(q.After, 10))
	}
	if q.Page > 0 {
		out.Set("limit", strconv.Itoa(q.Page))
	}
	if q.Sandbox != "" {
		out.Set("sandbox", string(q.Sandbox))
	}
	for name, t := range map[string]time.Time{"since": q.Since, "until": q.Until} {
		if !t.IsZero() {
			out.Set(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	return out
}
