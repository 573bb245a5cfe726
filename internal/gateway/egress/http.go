package egress

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/atoll-run/atoll/internal/gateway/wire"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	headerTimeout = 30 * time.Second // for a request's headers
	idleTimeout   = 120 * time.Second
	maxHeader     = 256 << 10
)

// httpServer serves the connections of one sandbox that are decided request by
// request.
type httpServer struct {
	b        *box
	server   *http.Server
	conns    chan net.Conn
	closed   chan struct{}
	once     sync.Once
	sessions tls.ClientSessionCache // of this sandbox alone
}

func newHTTPServer(b *box) *httpServer {
	s := &httpServer{b: b, conns: make(chan net.Conn), closed: make(chan struct{}), sessions: tls.NewLRUClientSessionCache(64)}
	s.server = &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          log.New(io.Discard, "", 0), // it would quote what code inside sent
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, flowKey{}, flowOf(c))
		},
		ConnState: tellClosed,
	}
	go func() { _ = s.server.Serve(s) }()
	return s
}

type flowKey struct{}

// flowOf finds the flow behind the layers of its connection.
func flowOf(c net.Conn) *flow {
	for {
		switch l := c.(type) {
		case *countedConn:
			return l.f
		case *replayConn:
			c = l.Conn
		case *tls.Conn:
			c = l.NetConn()
		default:
			return nil
		}
	}
}

// tellClosed ends what a connection held on to.
func tellClosed(c net.Conn, state http.ConnState) {
	if f := flowOf(c); f != nil && state == http.StateClosed {
		f.end()
	}
}

// Accept, Close and Addr make it the listener of its own server.
func (s *httpServer) Accept() (net.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// Close is part of net.Listener.
func (s *httpServer) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// Addr is part of net.Listener.
func (s *httpServer) Addr() net.Addr { return &net.TCPAddr{} }

func (s *httpServer) close() {
	_ = s.Close()
	_ = s.server.Close()
}

// serveHTTP hands a connection to the server.
func (f *flow) serveHTTP(c net.Conn, secure bool) {
	f.kind = "http"
	f.upstream(secure)
	select {
	case f.b.http.conns <- c:
	case <-f.b.http.closed:
		f.end()
	}
}

// terminate ends TLS here, in the name of the host.
func (f *flow) terminate(in net.Conn) {
	host := f.target.host.String()
	c := tls.Server(in, &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.b.ca.certificate(host) },
	})
	ctx, cancel := context.WithTimeout(f.b.life, helloTimeout)
	defer cancel()
	if err := c.HandshakeContext(ctx); err != nil {
		d := f.d
		d.Detail = "the TLS client did not accept the gateway's certificate, which its programs are told to trust: does it pin another one?"
		e := f.event(wire.Failed, d)
		e.Reason = d.Detail
		f.b.tell(e)
		f.reset()
		return
	}
	f.serveHTTP(c, true)
}

// upstream prepares the way to the host for the requests of this connection,
// and of no other: what was decided for one is never used by another.
func (f *flow) upstream(secure bool) {
	var first sync.Once
	t := &http.Transport{
		DisableCompression:     true, // what the host sends is what the sandbox gets
		ForceAttemptHTTP2:      true,
		MaxIdleConnsPerHost:    4,
		IdleConnTimeout:        30 * time.Second,
		TLSHandshakeTimeout:    helloTimeout,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxHeader,
		DialContext: func(ctx context.Context, _, _ string) (c net.Conn, err error) {
			first.Do(func() { c = f.out })
			if c != nil {
				return c, nil
			}
			c, _, err = f.connect(ctx)
			return c, err
		},
	}
	if secure {
		t.TLSClientConfig = &tls.Config{
			MinVersion: tls.VersionTLS12, ServerName: f.target.host.String(), RootCAs: f.b.world.Load().roots, ClientSessionCache: f.b.http.sessions,
		}
	}
	f.proxy = &httputil.ReverseProxy{
		Transport:      t,
		Rewrite:        rewrite,
		ModifyResponse: func(r *http.Response) error { return requestOf(r.Request.Context()).answer(r) },
		ErrorHandler:   func(w http.ResponseWriter, r *http.Request, err error) { requestOf(r.Context()).failed(w, err) },
		FlushInterval:  -1,
		BufferPool:     copyBuffers{},
		ErrorLog:       log.New(io.Discard, "", 0),
	}
	f.stop = t.CloseIdleConnections
}

// copyBuffers lends the buffers of connections to the proxy.
type copyBuffers struct{}

func (copyBuffers) Get() []byte  { return *buffers.Get().(*[]byte) }
func (copyBuffers) Put(b []byte) { buffers.Put(&b) }

// request is one HTTP request on its way.
type request struct {
	f      *flow
	ruling *ruling
	d      policy.Decision
	secure bool
	method string
	path   string
	status int
	sent   countedBody
	got    countedBody
	why    string // why it failed on the way
}

type requestKey struct{}

func requestOf(ctx context.Context) *request { return ctx.Value(requestKey{}).(*request) }

// ServeHTTP decides about a request and carries it out.
func (s *httpServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := r.Context().Value(flowKey{}).(*flow)
	q := &request{f: f, ruling: s.b.policy.Load(), secure: r.TLS != nil, method: r.Method, path: r.URL.EscapedPath()}
	q.decide(r)
	if !q.d.Allow {
		q.deny(w, q.d)
		return
	}
	q.path = q.d.Path
	if u := q.ruling.used(q.d); !u.take() {
		q.limited(w, u)
		return
	}
	if err := q.prepare(r); err != nil {
		var no refusal
		if errors.As(err, &no) {
			q.deny(w, no.Decision)
			return
		}
		q.status = http.StatusBadRequest
		q.problem(w, problem{Code: "bad_request", Message: "the request's body could not be read"})
		return
	}
	f.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestKey{}, q)))
	q.tell(wire.Allowed, q.d, q.why)
}

// overrides are headers by which a client asks a server to take the request
// for another one. What they ask for is decided about, too.
var (
	methodOverrides = []string{"X-Http-Method", "X-Http-Method-Override", "X-Method-Override"}
	pathOverrides   = []string{"X-Original-Url", "X-Rewrite-Url"}
)

// decide decides about everything that the request may be taken for.
func (q *request) decide(r *http.Request) {
	in := policy.Request{
		Method: r.Method, TLS: q.secure, Host: r.Host, Path: q.path,
		WebSocket: httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade") &&
			httpguts.HeaderValuesContainsToken(r.Header["Upgrade"], "websocket"),
	}
	flow := q.f.decidedFlow()
	q.d = q.ruling.Request(flow, in)
	for _, h := range methodOverrides {
		for _, v := range r.Header[h] {
			other := in
			other.Method = strings.ToUpper(strings.TrimSpace(v))
			q.also(flow, other)
		}
	}
	for _, h := range pathOverrides {
		for _, v := range r.Header[h] {
			other := in
			other.Path, _, _ = strings.Cut(v, "?")
			q.also(flow, other)
		}
	}
	if !in.WebSocket {
		// Any other protocol on this connection would be one that nobody
		// decides about.
		r.Header.Del("Upgrade")
		r.Header.Del("Http2-Settings")
	}
}

func (q *request) also(flow policy.Flow, other policy.Request) {
	if d := q.ruling.Request(flow, other); q.d.Allow && !d.Allow {
		q.d = d
	}
}

// forwarded are headers that a proxy would replace. This one does not exist for
// either side.
var forwarded = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

// rewrite addresses a request to its host. What is forwarded is the path that
// was decided about, byte for byte.
func rewrite(p *httputil.ProxyRequest) {
	q := requestOf(p.In.Context())
	out := p.Out
	for _, h := range forwarded {
		if v, ok := p.In.Header[h]; ok {
			out.Header[h] = v
		}
	}
	host, scheme, usual := q.f.target.host.String(), "http", uint16(80)
	if q.secure {
		scheme, usual = "https", 443
	}
	if q.f.target.port != usual {
		host = net.JoinHostPort(host, strconv.Itoa(int(q.f.target.port)))
	} else if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	u := *p.In.URL
	u.Scheme, u.Host, u.User, u.Opaque, u.Path, u.RawPath = scheme, host, nil, q.d.Path, "", ""
	out.URL, out.Host = &u, host
}

// prepare readies a request for the host.
func (q *request) prepare(r *http.Request) error {
	q.sent.limit = q.d.Limits.RequestBytes
	if r.Body != nil && r.Body != http.NoBody {
		q.sent.ReadCloser = r.Body
		r.Body = &q.sent
	}
	return nil
}

// answer readies an answer for the sandbox.
func (q *request) answer(r *http.Response) error {
	q.status = r.StatusCode
	if r.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	q.got.limit = q.d.Limits.ResponseBytes
	q.got.ReadCloser = r.Body
	r.Body = &q.got
	return nil
}

// failed answers for a host that could not.
func (q *request) failed(w http.ResponseWriter, err error) {
	var no refusal
	switch {
	case errors.As(err, &no):
		q.d = no.Decision
		q.status = http.StatusForbidden
		q.why = no.Message()
		q.problem(w, problem{Code: "egress_denied", Reason: string(no.Reason), Message: no.Message(), Rule: no.Rule})
		return
	case errors.Is(err, errTooMuch):
		q.status = http.StatusForbidden
		q.why = "the rule's limit of bytes is reached"
	default:
		q.status = http.StatusBadGateway
		q.why = upstreamReason(err)
	}
	q.problem(w, problem{Code: "egress_failed", Message: q.why})
}

// upstreamReason says what is wrong with the host's side.
func upstreamReason(err error) string {
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		return "the host's certificate is not to be trusted: " + cert.Err.Error()
	}
	return dialReason(err)
}

func (q *request) deny(w http.ResponseWriter, d policy.Decision) {
	q.status = http.StatusForbidden
	q.problem(w, problem{Code: "egress_denied", Reason: string(d.Reason), Message: d.Message(), Rule: d.Rule})
	q.tell(wire.Denied, d, d.Message())
}

func (q *request) limited(w http.ResponseWriter, u *usage) {
	q.status = http.StatusTooManyRequests
	wait := max(1, int(math.Ceil(60/float64(max(1, u.limits.PerMinute)))))
	w.Header().Set("Retry-After", strconv.Itoa(wait))
	const why = "the rule's limit of requests per minute is reached"
	q.problem(w, problem{Code: "egress_limited", Reason: string(policy.Limited), Message: why, Rule: q.d.Rule})
	q.tell(wire.Limited, q.d, why)
}

// problem is what a client is told in place of an answer.
type problem struct {
	Code    string `json:"code"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message"`
	Rule    string `json:"rule,omitempty"`
	Host    string `json:"host"`
	Method  string `json:"method"`
	Path    string `json:"path"`
}

func (q *request) problem(w http.ResponseWriter, p problem) {
	p.Host, p.Method, p.Path = q.f.target.host.String(), printable(q.method), printable(q.path)
	body, _ := json.Marshal(map[string]problem{"error": p})
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Atoll-Gateway", p.Code)
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(q.status)
	_, _ = w.Write(append(body, '\n'))
}

func (q *request) tell(v wire.Verdict, d policy.Decision, reason string) {
	e := q.f.event(v, d)
	if v == wire.Allowed && reason != "" {
		e.Verdict = wire.Failed
	}
	e.Kind, e.Method, e.Path, e.Status, e.Reason = "http", printable(q.method), printable(q.path), q.status, reason
	e.Sent, e.Got = q.sent.n.Load(), q.got.n.Load()
	q.f.b.tell(e)
}

var _ = sandbox.DirRequest
