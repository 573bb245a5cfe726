// Package atoll is the Go library of Atoll: sandboxes for AI agents.
//
// A [Client] talks to a daemon, which `atoll up` starts, over its local socket
// or over TCP with an API key. Package atolld starts one inside the program
// instead, and hands out a Client that reaches it in memory.
//
// Errors are of type *sandbox.Error, whose code tells what to do; no daemon to
// talk to is CodeUnavailable. A sandbox lives until it is destroyed: dropping a
// handle, or closing the Client, ends nothing.
package atoll

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/sandbox"
)

// Options say how to reach a daemon. The zero value reaches the one that the
// environment names, else the one of the user's own state directory.
type Options struct {
	// Host is "unix:///path/of/atoll.sock", "https://host:port", or
	// "http://host:port" where the connection is safe by other means. Empty:
	// $ATOLL_HOST, else [DefaultSocket].
	Host string
	// Key is an API key, which the local socket does not need. Empty: $ATOLL_KEY
	// if Host is empty too, else none.
	Key string
	// Transport carries the requests, wherever Host says they go. Nil: one
	// that Host needs.
	Transport http.RoundTripper
	// Propagate adds to the header of each request which trace it is part of:
	// with OpenTelemetry, what a TextMapPropagator injects. It may be called
	// concurrently. Nil: the trace that $TRACEPARENT and $TRACESTATE name, if
	// they name one.
	Propagate func(ctx context.Context, h http.Header)
}

// Client is a connection to a daemon. Its methods may be called concurrently.
type Client struct {
	http      *http.Client
	base      string
	key       string
	propagate func(context.Context, http.Header)
}

// New returns a Client. It connects when it is first used; see [Client.Ping].
// The caller closes it.
func New(opts Options) (*Client, error) {
	if opts.Host == "" && opts.Transport == nil {
		opts.Host = os.Getenv("ATOLL_HOST")
		if opts.Key == "" {
			opts.Key = os.Getenv("ATOLL_KEY")
		}
	}
	if opts.Host == "" && opts.Transport == nil {
		socket, err := DefaultSocket()
		if err != nil {
			return nil, err
		}
		opts.Host = "unix://" + socket
	}
	base, transport, err := reach(opts.Host)
	if err != nil {
		return nil, err
	}
	if opts.Transport != nil {
		transport = opts.Transport
	}
	if opts.Propagate == nil {
		opts.Propagate = propagator(os.Getenv("TRACEPARENT"), os.Getenv("TRACESTATE"))
	}
	return &Client{
		http: &http.Client{
			Transport: transport,
			// A redirect could carry the key elsewhere; the daemon sends none.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		base: base, key: opts.Key, propagate: opts.Propagate,
	}, nil
}

// localHost stands for a daemon that is reached without a network.
const localHost = "atoll"

// Bounds of the connections that a Client keeps open for later requests.
const (
	maxIdleConns    = 64
	idleConnTimeout = time.Minute
)

// reach returns where requests for a host go, and how.
func reach(host string) (base string, _ http.RoundTripper, err error) {
	const anywhere = "http://" + localHost
	if host == "" {
		return anywhere, nil, nil
	}
	u, err := url.Parse(host)
	bad := &sandbox.Error{
		Code: sandbox.CodeInvalid, Op: "client.new", Subject: "host", Message: "is not the address of a daemon",
		Hint: "write unix:///path/of/atoll.sock or https://host:port",
	}
	if err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", nil, bad
	}
	switch {
	case u.Scheme == "unix" && u.Host == "" && filepath.IsAbs(u.Path):
		return anywhere, &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", u.Path)
			},
			DisableCompression: true, MaxIdleConnsPerHost: maxIdleConns, IdleConnTimeout: idleConnTimeout,
		}, nil
	case (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && strings.Trim(u.Path, "/") == "":
		return u.Scheme + "://" + u.Host, &http.Transport{
			Proxy: http.ProxyFromEnvironment, DisableCompression: true, MaxIdleConnsPerHost: maxIdleConns, IdleConnTimeout: idleConnTimeout,
		}, nil
	}
	return "", nil, bad
}

// SocketName is the name of a daemon's socket in its state directory.
const SocketName = "atoll.sock"

// DefaultSocket is where the daemon of the user's own state directory listens:
// $ATOLL_STATE_DIR, /var/lib/atoll for root, else as the XDG base directories
// say.
func DefaultSocket() (string, error) {
	dir := os.Getenv("ATOLL_STATE_DIR")
	switch home, state := os.Getenv("HOME"), os.Getenv("XDG_STATE_HOME"); {
	case dir != "":
	case os.Geteuid() == 0:
		dir = "/var/lib/atoll"
	case filepath.IsAbs(state):
		dir = filepath.Join(state, "atoll")
	case filepath.IsAbs(home):
		dir = filepath.Join(home, ".local", "state", "atoll")
	default:
		return "", &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "client.new", Message: "there is no home directory to look for a daemon in", Hint: "set ATOLL_HOST"}
	}
	dir, err := filepath.Abs(dir)
	return filepath.Join(dir, SocketName), err
}

// Close closes idle connections. It ends no sandbox.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// Ping reports whether a daemon answers. None is CodeUnavailable.
func (c *Client) Ping(ctx context.Context) error {
	return c.call(ctx, http.MethodGet, "/healthz", nil, nil, nil)
}

// request makes a request. Its body may be nil.
func (c *Client) request(ctx context.Context, method, path string, query url.Values, body io.Reader) (*http.Request, error) {
	target := c.base + path
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

// sign says in a header who is asking and in which trace.
func (c *Client) sign(ctx context.Context, h http.Header) {
	if c.key != "" {
		h.Set("Authorization", "Bearer "+c.key)
	}
	c.propagate(ctx, h)
}

// propagator names one trace in every request. One that is not as it should be
// is none.
func propagator(parent, state string) func(context.Context, http.Header) {
	if _, ok := span.ParseParent(parent); !ok {
		return func(context.Context, http.Header) {}
	}
	return func(_ context.Context, h http.Header) {
		h.Set("Traceparent", parent)
		if state != "" && len(state) <= maxTraceState && !strings.ContainsAny(state, "\r\n\x00") {
			h.Set("Tracestate", state)
		}
	}
}

// maxTraceState is what every daemon must be able to take (W3C Trace Context).
const maxTraceState = 512

// do sends a request. Any answer but success is returned as the error that it
// describes. The caller closes the body.
func (c *Client) do(r *http.Request) (*http.Response, error) {
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, transportError(r.Context(), err)
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, problemOf(resp)
}

// transportError classifies what went wrong on the way. It never says anything
// about a sandbox.
func transportError(ctx context.Context, err error) error {
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

// problemOf reads the error that an answer describes.
func problemOf(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err := parseProblem(text); err != nil {
		return err
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "client.request", Message: fmt.Sprintf("something that is not Atoll answered with status %d", resp.StatusCode),
	}
}

func parseProblem(text []byte) error {
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
		e.Hint = "the daemon's log tells more, under the request " + p.Request
	}
	if len(p.Faults) > 0 {
		e.Subject, e.Message = p.Faults[0].Field, p.Faults[0].Message
	}
	return e
}

// call makes a request whose body and answer are JSON. in and out may be nil.
func (c *Client) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "client.request", Message: "cannot be sent", Cause: err}
		}
		body = bytes.NewReader(text)
	}
	r, err := c.request(ctx, method, path, query, body)
	if err != nil {
		return err
	}
	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return c.receive(r, out)
}

// receive sends a request and reads its answer into out, if there is one.
func (c *Client) receive(r *http.Request, out any) error {
	resp, err := c.do(r)
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
		return transportError(r.Context(), err)
	}
	return nil
}

// utf8Map refuses what JSON would change without a word.
func utf8Map(subject string, m map[string]string) error {
	for k, v := range m {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: subject, Message: "holds what is not UTF-8"}
		}
	}
	return nil
}
