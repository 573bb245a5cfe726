// Package rpc calls methods of a service over gRPC. The messages are plain
// structs, as for package plainproto, and the errors those of package rest.
package rpc

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/atoll-run/atoll/internal/plainproto"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// Client calls methods of a service. Its methods may be called concurrently.
type Client struct {
	*rest.Client
	// RetryAfter returns the seconds to wait according to a detail of the error
	// RESOURCE_EXHAUSTED, or 0.
	RetryAfter func(kind string, detail []byte) int
}

const (
	// maxAnswer limits a message.
	maxAnswer = 16 << 20
	// idle is how long an unused connection is kept.
	idle = 10 * time.Second
	// Attempts is how often a call is made at most.
	Attempts = 3
)

// ParseError is the ParseError of rest.Client for services whose errors have a
// text and nothing else.
func ParseError(_ int, body []byte) (code, message string, ok bool) { return "", string(body), true }

// Transport returns a transport that uses HTTP/2, also without TLS, and notices
// connections that broke. Nil: it is like the default.
func Transport(like *http.Transport) *http.Transport {
	if like == nil {
		like = http.DefaultTransport.(*http.Transport)
	}
	t := like.Clone()
	t.IdleConnTimeout, t.Protocols = min(cmp.Or(like.IdleConnTimeout, idle), idle), new(http.Protocols)
	t.Protocols.SetHTTP2(true)
	t.Protocols.SetUnencryptedHTTP2(true)
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second}
	return t
}

// Route is the address of a service, and what signs requests to it.
type Route struct {
	URL  string // before the name of a method
	Sign func(http.Header)
}

func dial[Req, Res any](c *Client, r Route, method string) *connect.Client[Req, Res] {
	return connect.NewClient[Req, Res](c.HTTP, r.URL+method, connect.WithGRPC(), connect.WithCodec(plainproto.Codec{}), connect.WithReadMaxBytes(maxAnswer))
}

// Call calls a method once.
func Call[Req, Res any](ctx context.Context, c *Client, r Route, method string, in *Req, out *Res) error {
	req := connect.NewRequest(in)
	r.Sign(req.Header())
	res, err := dial[Req, Res](c, r, method).CallUnary(ctx, req)
	if err != nil {
		return c.explain(ctx, err)
	}
	*out = *res.Msg
	return nil
}

// Stream calls a method that answers with any number of messages, and passes them
// to each until that returns false.
func Stream[Req, Res any](ctx context.Context, c *Client, r Route, method string, in *Req, each func(*Res) bool) error {
	req := connect.NewRequest(in)
	r.Sign(req.Header())
	s, err := dial[Req, Res](c, r, method).CallServerStream(ctx, req)
	if err != nil {
		return c.explain(ctx, err)
	}
	defer s.Close()
	for s.Receive() {
		if !each(s.Msg()) {
			return nil
		}
	}
	if err := s.Err(); err != nil {
		return c.explain(ctx, err)
	}
	return nil
}

// Insist calls f again while requests are rate-limited, and with repeat also
// after a failure of the service.
func (c *Client) Insist(ctx context.Context, repeat bool, f func() error) error {
	for try := 1; ; try++ {
		err := c.Patient(ctx, f)
		if !repeat || sandbox.CodeOf(err) != sandbox.CodeUnavailable || try == Attempts {
			return err
		}
		if err := Pause(ctx, try); err != nil {
			return err
		}
	}
}

// Pause waits after a number of failures.
func Pause(ctx context.Context, failures int) error {
	return rest.Sleep(ctx, 50*time.Millisecond<<failures)
}

// Missing reports that the service itself says that there is no such thing.
func Missing(err error) bool { return rest.RefusalOf(err).Status == http.StatusNotFound }

// statuses are the HTTP statuses that mean the same as codes of gRPC. All others
// say nothing about the request.
var statuses = map[connect.Code]int{
	connect.CodeInvalidArgument: http.StatusBadRequest, connect.CodeOutOfRange: http.StatusBadRequest,
	connect.CodeUnauthenticated: http.StatusUnauthorized, connect.CodePermissionDenied: http.StatusForbidden, connect.CodeNotFound: http.StatusNotFound,
	connect.CodeAlreadyExists: http.StatusConflict, connect.CodeAborted: http.StatusConflict, connect.CodeFailedPrecondition: http.StatusConflict,
	connect.CodeResourceExhausted: http.StatusTooManyRequests, connect.CodeUnimplemented: http.StatusNotImplemented,
}

// explain converts an error of a call. One that the service did not send only
// means that it is unreachable.
func (c *Client) explain(ctx context.Context, err error) error {
	var rpc *connect.Error
	if ctx.Err() != nil || !errors.As(err, &rpc) || !connect.IsWireError(err) {
		return c.Unreachable(ctx, err)
	}
	res := &http.Response{StatusCode: cmp.Or(statuses[rpc.Code()], http.StatusServiceUnavailable), Header: http.Header{}}
	for _, d := range rpc.Details() {
		if s := c.RetryAfter(d.Type(), d.Bytes()); s > 0 {
			res.Header.Set("Retry-After", strconv.Itoa(s))
		}
	}
	res.Body = io.NopCloser(strings.NewReader(rpc.Message()))
	return c.Refused(res)
}
