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
	"context"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/atoll-run/atoll/admin"
	"github.com/atoll-run/atoll/internal/client"
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
type Client struct{ conn *client.Conn }

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
	return &Client{&client.Conn{
		HTTP: &http.Client{
			Transport: transport,
			// A redirect could carry the key elsewhere; the daemon sends none.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		Base: base, Address: opts.Host, Key: opts.Key, Propagate: opts.Propagate,
	}}, nil
}

// WithKey returns a Client that uses the connections of c with another API key.
// It must not be closed, and is useless once c is.
func (c *Client) WithKey(key string) *Client {
	conn := *c.conn
	conn.Key = key
	return &Client{&conn}
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

// Admin administers the daemon: keys, tenants, policies, the audit log.
func (c *Client) Admin() *admin.Client { return admin.New(c.conn) }

// Close closes idle connections. It ends no sandbox.
func (c *Client) Close() error {
	c.conn.HTTP.CloseIdleConnections()
	return nil
}

// Ping reports whether a daemon answers. None is CodeUnavailable.
func (c *Client) Ping(ctx context.Context) error {
	return c.conn.Call(ctx, http.MethodGet, "/healthz", nil, nil, nil)
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

// utf8Map refuses what JSON would change without a word.
func utf8Map(subject string, m map[string]string) error {
	for k, v := range m {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: subject, Message: "holds what is not UTF-8"}
		}
	}
	return nil
}
