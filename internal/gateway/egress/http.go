package egress

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/gateway/messages"
)

const (
	headerTimeout = 30 * time.Second // for a request's headers
	idleTimeout   = 120 * time.Second
	maxHeader     = 256 << 10
)

// silent discards the log of net/http, which quotes input of the sandbox.
var silent = log.New(io.Discard, "", 0) //nolint:forbidigo // the type that net/http wants

// httpServer serves the connections of one sandbox for which each request is
// decided.
type httpServer struct {
	b        *attachment
	server   *http.Server
	conns    chan net.Conn
	closed   chan struct{}
	once     sync.Once
	tls      *tls.Config            // for the sandbox's side, with its own session ticket keys
	sessions tls.ClientSessionCache // of this sandbox only
}

func newHTTPServer(b *attachment) *httpServer {
	s := &httpServer{b: b, conns: make(chan net.Conn), closed: make(chan struct{}), sessions: tls.NewLRUClientSessionCache(64)}
	s.tls = &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		// The connection determines the host, not the client's server name.
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			return b.ca.certificate(flowOf(h.Conn).target.host.String())
		},
		// The link loses no packets, so small records have no advantage.
		DynamicRecordSizingDisabled: true,
	}
	s.server = &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          silent,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, flowKey{}, flowOf(c))
		},
		ConnState: tellClosed,
	}
	go func() { _ = s.server.Serve(s) }()
	return s
}

type flowKey struct{}

// flowOf returns the flow below the layers of a connection.
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

// tellClosed releases what belongs to a closed connection.
func tellClosed(c net.Conn, state http.ConnState) {
	if f := flowOf(c); f != nil && state == http.StateClosed {
		f.end()
	}
}

// Accept is part of net.Listener: an httpServer is the listener of its own
// server.
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

// terminate terminates TLS with a certificate for the host.
func (f *flow) terminate(in net.Conn) {
	c := tls.Server(in, f.b.http.tls)
	ctx, cancel := context.WithTimeout(f.b.life, helloTimeout)
	defer cancel()
	if err := c.HandshakeContext(ctx); err != nil {
		d := f.d
		d.Detail = "the TLS client did not accept the gateway's certificate, which is installed as trusted in the sandbox: does the client pin certificates?"
		e := f.event(messages.Failed, d)
		e.Reason = d.Detail
		f.b.tell(e)
		f.reset()
		return
	}
	f.serveHTTP(c, true)
}

// upstream prepares the outgoing HTTP transport of this connection. It is not
// shared, because decisions hold for one connection only.
func (f *flow) upstream(secure bool) {
	var first sync.Once
	t := &http.Transport{
		DisableCompression:     true, // the sandbox gets the host's bytes unchanged
		ForceAttemptHTTP2:      secure,
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
			MinVersion: tls.VersionTLS12, ServerName: f.target.host.String(), RootCAs: f.b.outgoing.Load().roots, ClientSessionCache: f.b.http.sessions,
		}
	}
	f.proxy = &httputil.ReverseProxy{
		Transport:      credentialed{t},
		Rewrite:        rewrite,
		ModifyResponse: func(r *http.Response) error { return requestOf(r.Request.Context()).answer(r) },
		ErrorHandler:   func(w http.ResponseWriter, r *http.Request, err error) { requestOf(r.Context()).failed(w, err) },
		FlushInterval:  -1,
		BufferPool:     copyBuffers{},
		ErrorLog:       silent,
	}
	f.whenEnded(t.CloseIdleConnections)
}
