// Package atoll is the Go library of Atoll: sandboxes for AI agents.
//
// A [Client] talks to a daemon, which `atoll up` starts, over its local socket
// or over TCP with an API key. Package atolld starts one inside the program
// instead, and hands out a Client that reaches it in memory.
//
// Errors are of type *sandbox.Error. Its code tells the caller what to do; if
// no daemon answers, it is CodeUnavailable. A sandbox lives until it is
// destroyed or its lifetime ends. Dropping a handle or closing the Client does
// not end it.
package atoll

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/atoll-run/atoll/admin"
	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/client"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/sandbox"
)

// Options say how to reach a daemon. The zero value uses the address in
// $ATOLL_HOST, else the socket in the user's own state directory.
type Options struct {
	// Host is "unix:///path/of/atoll.sock", "https://host:port", or
	// "http://host:port" where the connection is safe by other means. Empty:
	// $ATOLL_HOST, else [DefaultSocket].
	Host string
	// Key is an API key, which the local socket does not need. Empty: $ATOLL_KEY
	// if Host is empty too, else none.
	Key string
	// Transport carries the requests, whatever Host is. Nil: a transport that suits
	// Host.
	Transport http.RoundTripper
	// Propagate adds the trace context to the header of each request. With
	// OpenTelemetry, it calls Inject of a TextMapPropagator. It may be called
	// concurrently. Nil: the trace context in $TRACEPARENT and $TRACESTATE, if they
	// are set.
	Propagate func(ctx context.Context, h http.Header)
}

// Client is a connection to a daemon. Its methods may be called concurrently.
type Client struct{ conn *client.Conn }

// New returns a Client. It connects when it is first used; see [Client.Ping].
// The caller closes it. Options that are not valid are CodeInvalid.
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
// Do not close it. It stops working when c is closed.
func (c *Client) WithKey(key string) *Client {
	conn := *c.conn
	conn.Key = key
	return &Client{&conn}
}

// WithTenant returns a Client that uses the connections of c and acts in a
// tenant. Only the owner of the machine may name a tenant other than their own;
// for others every request is CodeDenied. An unknown tenant is CodeNotFound. Do
// not close the Client. It stops working when c is closed.
func (c *Client) WithTenant(tenant string) *Client {
	conn := *c.conn
	conn.Tenant = tenant
	return &Client{&conn}
}

// localHost is the host name in requests to a daemon over its local socket.
const localHost = "atoll"

// Bounds of the connections that a Client keeps open for later requests.
const (
	maxIdleConns    = 64
	idleConnTimeout = time.Minute
)

// reach returns the base URL and the transport for requests to host.
func reach(host string) (base string, _ http.RoundTripper, err error) {
	const anywhere = "http://" + localHost
	if host == "" {
		return anywhere, nil, nil
	}
	if socket, ok := strings.CutPrefix(host, "unix://"); ok && filepath.IsAbs(socket) {
		return anywhere, &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			},
			DisableCompression: true, MaxIdleConnsPerHost: maxIdleConns, IdleConnTimeout: idleConnTimeout,
		}, nil
	}
	u, err := url.Parse(host)
	bad := &sandbox.Error{
		Code: sandbox.CodeInvalid, Op: "client.new", Subject: "host", Message: "is not the address of a daemon",
		Hint: "write unix:///path/of/atoll.sock or https://host:port",
	}
	if !strings.Contains(host, "://") {
		bad.Message = "is not the address of a daemon, which begins with https://, http:// or unix://"
		if u, err := url.Parse("https://" + host); err == nil && u.Host != "" && u.User == nil && !strings.HasPrefix(host, "/") {
			bad.Hint = "write https://" + u.Host + ", or http://" + u.Host + " if the daemon was started with --plain"
		}
	}
	if err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", nil, bad
	}
	if (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && strings.Trim(u.Path, "/") == "" {
		return u.Scheme + "://" + u.Host, &http.Transport{
			Proxy: http.ProxyFromEnvironment, DisableCompression: true, MaxIdleConnsPerHost: maxIdleConns, IdleConnTimeout: idleConnTimeout,
		}, nil
	}
	return "", nil, bad
}

// SocketName is the name of a daemon's socket in its state directory.
const SocketName = "atoll.sock"

// DefaultSocket returns the path of the socket in the user's own state
// directory. That directory is $ATOLL_STATE_DIR, else /var/lib/atoll for root,
// else $XDG_STATE_HOME/atoll or ~/.local/state/atoll.
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

// Close closes idle connections. Sandboxes keep running.
func (c *Client) Close() error {
	c.conn.HTTP.CloseIdleConnections()
	return nil
}

// Ping returns nil if a daemon answers, and CodeUnavailable if none does.
func (c *Client) Ping(ctx context.Context) error {
	return c.conn.Call(ctx, http.MethodGet, "/healthz", nil, nil, nil)
}

// propagator adds one trace context to every request. A malformed parent is
// ignored.
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

// maxTraceState is the length in bytes that every server must accept (W3C Trace
// Context).
const maxTraceState = 512

// utf8Map refuses strings that are not UTF-8, because encoding/json would
// replace bytes of them silently.
func utf8Map(subject string, m map[string]string) error {
	for k, v := range m {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: subject, Message: "is not valid UTF-8"}
		}
	}
	return nil
}

// CreateOptions are options of [Client.Create]. The zero value is usable.
type CreateOptions struct {
	Pull     string // when to fetch the image: missing (as if empty), always or never
	Platform string // of the image, "os/arch[/variant]"; empty: the daemon's own
	// IdempotencyKey makes a repeated call return the sandbox that the first call
	// made. Use a new random key for every sandbox. If it is empty and ctx ends,
	// Create removes the sandbox.
	IdempotencyKey string
}

// Create makes a sandbox, which lives until it is destroyed or its lifetime
// ends. If ctx ends before the daemon answers, Create has the daemon give up, and
// removes the sandbox that it may have made, which takes at most 30 seconds and
// does not wait for an image. With an idempotency
// key, Create leaves the sandbox, and the caller can repeat the call. The
// options may be left out.
func (c *Client) Create(ctx context.Context, spec sandbox.Spec, options ...CreateOptions) (*Sandbox, error) {
	opts := optional(options)
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := utf8Map("env", spec.Env); err != nil {
		return nil, err
	}
	text, err := createBody(spec, opts)
	if err != nil {
		return nil, err
	}
	if opts.IdempotencyKey != "" {
		return c.create(ctx, text, opts.IdempotencyKey, false)
	}
	key := rand.Text()
	s, err := c.create(ctx, text, key, false)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, c.uncreate(ctx, text, key))
	}
	return s, err
}

// createBody returns the body of a request for a sandbox.
func createBody(spec sandbox.Spec, opts CreateOptions) ([]byte, error) {
	text, err := json.Marshal(struct {
		sandbox.Spec
		Pull     string `json:"pull,omitempty"`
		Platform string `json:"platform,omitempty"`
	}{spec, opts.Pull, opts.Platform})
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "sandbox.create", Message: "cannot be sent", Cause: err}
	}
	return text, nil
}

// create sends a request for a sandbox. With abandon, it ends the earlier request
// with that key, and returns the sandbox which that one made.
func (c *Client) create(ctx context.Context, text []byte, key string, abandon bool) (*Sandbox, error) {
	s := &Sandbox{client: c}
	header := http.Header{}
	if abandon {
		header.Set("Atoll-Abandon", "true")
	}
	return s, c.once(ctx, "/v1/sandboxes", text, key, header, &s.info)
}

// once sends a request with an idempotency key: repeating it with the same key
// has no further effect.
func (c *Client) once(ctx context.Context, path string, text []byte, key string, header http.Header, out any) error {
	r, err := c.conn.Request(ctx, http.MethodPost, path, nil, bytes.NewReader(text))
	if err != nil {
		return err
	}
	maps.Copy(r.Header, header)
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	return c.conn.Receive(r, out)
}

// teardown bounds the removal of a sandbox that the caller of Create no longer
// waits for.
const teardown = 30 * time.Second

// uncreate ends a request whose context ended, if the daemon still serves it, and
// removes the sandbox that it may have made. A daemon of an earlier version takes
// this for a repetition of the request, and waits for its image.
func (c *Client) uncreate(ctx context.Context, text []byte, key string) error {
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardown)
	defer cancel()
	s, err := c.create(late, text, key, true)
	switch code := sandbox.CodeOf(err); {
	case code == sandbox.CodeGone || code == sandbox.CodeNotFound:
		return nil
	case err != nil:
		return err
	}
	return s.Destroy(late)
}

// Get returns the sandbox of that name or id, whatever its state.
func (c *Client) Get(ctx context.Context, ref string) (*Sandbox, error) {
	s := &Sandbox{client: c}
	if err := sandbox.ValidateName(ref); err != nil {
		return nil, err
	}
	return s, c.conn.Call(ctx, http.MethodGet, "/v1/sandboxes/"+ref, nil, nil, &s.info)
}

// Remove destroys the sandbox of that name or id. A sandbox that is already
// gone is success. One that never existed is CodeNotFound.
func (c *Client) Remove(ctx context.Context, ref string) error {
	if err := sandbox.ValidateName(ref); err != nil {
		return err
	}
	return c.conn.Call(ctx, http.MethodDelete, "/v1/sandboxes/"+ref, nil, nil, nil)
}

// ListOptions select sandboxes. The zero value selects all that are not gone.
type ListOptions struct {
	States []sandbox.State
	Labels map[string]string
	Page   int // sandboxes per request; zero: the daemon's default
}

func (o *ListOptions) query() url.Values {
	query := url.Values{}
	for _, s := range o.States {
		query.Add("state", string(s))
	}
	for k, v := range o.Labels {
		query.Add("label", k+"="+v)
	}
	if o.Page > 0 {
		query.Set("limit", strconv.Itoa(o.Page))
	}
	return query
}

// List yields the sandboxes that match, newest first, and requests them page by
// page. It ends with the first error.
func (c *Client) List(ctx context.Context, options ...ListOptions) iter.Seq2[sandbox.Sandbox, error] {
	opts := optional(options)
	return func(yield func(sandbox.Sandbox, error) bool) {
		query := opts.query()
		for {
			var page struct {
				Sandboxes []sandbox.Sandbox
				Next      string
			}
			if err := c.conn.Call(ctx, http.MethodGet, "/v1/sandboxes", query, nil, &page); err != nil {
				yield(sandbox.Sandbox{}, err)
				return
			}
			for _, s := range page.Sandboxes {
				if !yield(s, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			query.Set("cursor", page.Next)
		}
	}
}

// Providers returns the providers of the daemon.
func (c *Client) Providers(ctx context.Context) ([]catalog.Provider, error) {
	var out struct{ Providers []catalog.Provider }
	return out.Providers, c.conn.Call(ctx, http.MethodGet, "/v1/providers", nil, nil, &out)
}

// ChooseProvider returns the provider that fits the needs of a sandbox. It
// creates nothing.
func (c *Client) ChooseProvider(ctx context.Context, n catalog.Needs) (choice catalog.Choice, err error) {
	return choice, c.conn.Call(ctx, http.MethodPost, "/v1/providers/choose", nil, n, &choice)
}

// Events yields the events that match q, oldest first, and ends with the first
// error. To continue later, set EventQuery.After to the Seq of the last event.
func (c *Client) Events(ctx context.Context, q sandbox.EventQuery) iter.Seq2[sandbox.Event, error] {
	return func(yield func(sandbox.Event, error) bool) {
		for {
			var page struct{ Events []sandbox.Event }
			if err := c.conn.Call(ctx, http.MethodGet, "/v1/events", client.EventQuery(q), nil, &page); err != nil {
				yield(sandbox.Event{}, err)
				return
			}
			if len(page.Events) == 0 {
				return
			}
			before := q.After
			for _, e := range page.Events {
				q.After = e.Seq
				if !yield(e, nil) {
					return
				}
			}
			if q.After <= before {
				yield(sandbox.Event{}, &sandbox.Error{Code: sandbox.CodeInternal, Op: "event.list", Message: "the daemon answered with events that are not in order"})
				return
			}
		}
	}
}

// FollowEvents is like Events, but then waits for new events. It ends when ctx
// ends or the time EventQuery.Until is reached.
func (c *Client) FollowEvents(ctx context.Context, q sandbox.EventQuery) iter.Seq2[sandbox.Event, error] {
	return func(yield func(sandbox.Event, error) bool) { c.follow(ctx, q, yield) }
}

func (c *Client) follow(ctx context.Context, q sandbox.EventQuery, yield func(sandbox.Event, error) bool) {
	r, err := c.conn.Request(ctx, http.MethodGet, "/v1/events/stream", client.EventQuery(q), nil)
	if err != nil {
		yield(sandbox.Event{}, err)
		return
	}
	resp, err := c.conn.Do(r)
	if err != nil {
		if ctx.Err() == nil {
			yield(sandbox.Event{}, err)
		}
		return
	}
	defer resp.Body.Close()
	for data, err := range client.ServerSent(ctx, resp.Body) {
		if errors.Is(err, io.EOF) {
			return // EventQuery.Until is reached
		}
		var e sandbox.Event
		if err == nil && json.Unmarshal(data, &e) != nil {
			continue
		}
		if !yield(e, err) {
			return
		}
	}
	if ctx.Err() == nil {
		yield(sandbox.Event{}, client.TransportError(ctx, io.ErrUnexpectedEOF))
	}
}
