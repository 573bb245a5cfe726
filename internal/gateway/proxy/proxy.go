// Package proxy lets sandboxes on other machines use the egress gateway: they
// reach it as an HTTP proxy. For each sandbox it has the end of a link that a
// kernel would have, and makes the connections that the sandbox asks for, so the
// gateway decides about them with the same code and rules as about all others.
//
// A sandbox proves who it is with a password and with its address.
package proxy

import (
	"bufio"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/internal/gateway/egress"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	headerTime = 30 * time.Second // for the headers of a request
	idleTime   = 2 * time.Minute  // of a connection without a request
	dialTime   = 45 * time.Second
	maxHeader  = 64 << 10 // bytes
	// maxEach is the maximum number of connections from one address. Several
	// sandboxes may have the same, if their node translates addresses.
	maxEach = 8192
)

// Admit returns the certificate of the authority that a sandbox trusts, in PEM, if
// the password is that of the sandbox and from is its address. Another error than
// CodeDenied means that this is not known now.
type Admit func(ctx context.Context, id sandbox.ID, password string, from netip.Addr) (ca []byte, err error)

// Options configure a Proxy.
type Options struct {
	// Listen is the address with the port to listen at. If it is no address of this
	// machine, the proxy listens at that port of all addresses.
	Listen netip.AddrPort
	Admit  Admit
	// Link makes the link of a sandbox. known is what its programs know.
	Link func(ctx context.Context, id sandbox.ID, known gateway.Known) (*gateway.Link, error)
}

// Proxy is an HTTP proxy for sandboxes. It is safe for concurrent use. The caller
// closes it.
type Proxy struct {
	opts   Options
	listen net.Listener
	server *http.Server
	served sync.WaitGroup

	mu        sync.Mutex
	sandboxes map[sandbox.ID]*sandboxLink
	from      map[netip.Addr]int // the number of connections
	closed    bool
}

// sandboxLink is the link of one sandbox.
type sandboxLink struct {
	connecting sync.Mutex // held while the link is made

	mu      sync.Mutex
	client  *egress.Client // nil: there is no link
	forward *http.Transport
	over    bool // it was disconnected
}

// Open starts to listen.
func Open(o Options) (*Proxy, error) {
	l, err := net.Listen("tcp", o.Listen.String())
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		l, err = net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(int(o.Listen.Port()))))
	}
	if err != nil {
		return nil, err
	}
	p := &Proxy{opts: o, listen: l, sandboxes: map[sandbox.ID]*sandboxLink{}, from: map[netip.Addr]int{}}
	p.server = &http.Server{
		Handler: p, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader, ErrorLog: silent,
		Protocols: new(http.Protocols),
	}
	p.server.Protocols.SetHTTP1(true)
	p.served.Go(func() { _ = p.server.Serve(limited{l, p}) })
	return p, nil
}

// silent discards the log of net/http, which quotes input of sandboxes.
var silent = log.New(io.Discard, "", 0) //nolint:forbidigo // the type that net/http wants

// Addr returns the address at which the proxy listens.
func (p *Proxy) Addr() net.Addr { return p.listen.Addr() }

// Connect makes the link of a sandbox, and returns the certificate of the
// authority that its programs must trust, in PEM. ca is the one that they trust
// already. Nil: none.
func (p *Proxy) Connect(ctx context.Context, id sandbox.ID, ca []byte) ([]byte, error) {
	b, err := p.sandbox(id)
	if err != nil {
		return nil, err
	}
	return b.connect(ctx, p, id, ca)
}

// Disconnect ends the link of a sandbox and all of its connections.
func (p *Proxy) Disconnect(id sandbox.ID) {
	p.mu.Lock()
	b := p.sandboxes[id]
	delete(p.sandboxes, id)
	p.mu.Unlock()
	if b != nil {
		b.close()
	}
}

// Close ends all links and connections.
func (p *Proxy) Close() error {
	p.mu.Lock()
	sandboxes := p.sandboxes
	p.sandboxes, p.closed = nil, true
	p.mu.Unlock()
	err := p.server.Close()
	for _, b := range sandboxes {
		b.close()
	}
	p.served.Wait()
	return err
}

var errClosed = &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: "network", Message: "the gateway's proxy is closed"}

func (p *Proxy) sandbox(id sandbox.ID) (*sandboxLink, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	b := p.sandboxes[id]
	if b == nil {
		b = &sandboxLink{}
		p.sandboxes[id] = b
	}
	return b, nil
}

// connect replaces the link.
func (sl *sandboxLink) connect(ctx context.Context, p *Proxy, id sandbox.ID, ca []byte) ([]byte, error) {
	sl.connecting.Lock()
	defer sl.connecting.Unlock()
	return sl.link(ctx, p, id, ca)
}

func (sl *sandboxLink) link(ctx context.Context, p *Proxy, id sandbox.ID, ca []byte) ([]byte, error) {
	known := gateway.Known{}
	if block, _ := pem.Decode(ca); block != nil {
		known.CA = block.Bytes
	}
	l, err := p.opts.Link(ctx, id, known)
	if err != nil {
		return nil, err
	}
	c, err := egress.NewClient(l.File)
	if err != nil {
		return nil, err
	}
	sl.mu.Lock()
	old, over := sl.client, sl.over
	if !over {
		sl.client = c
		sl.forward = &http.Transport{DialContext: dialer(c), DisableCompression: true, MaxIdleConnsPerHost: 2, IdleConnTimeout: idleTime, MaxResponseHeaderBytes: 256 << 10}
	}
	sl.mu.Unlock()
	if over {
		c.Close()
		return nil, errClosed
	}
	if old != nil {
		old.Close()
	}
	return l.CA, nil
}

// dialer returns the function with which a transport makes connections.
func dialer(c *egress.Client) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, target string) (net.Conn, error) {
		host, text, err := net.SplitHostPort(target)
		if err != nil {
			return nil, err
		}
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, dialTime)
		defer cancel()
		return c.Dial(ctx, host, uint16(port))
	}
}

// ready returns the link, and makes it if there is none any more: another process
// may have begun to serve the sandbox.
func (sl *sandboxLink) ready(ctx context.Context, p *Proxy, id sandbox.ID, ca []byte) (*egress.Client, *http.Transport, error) {
	sl.connecting.Lock()
	defer sl.connecting.Unlock()
	if c, t := sl.present(); c != nil {
		return c, t, nil
	}
	if _, err := sl.link(ctx, p, id, ca); err != nil {
		return nil, nil, err
	}
	c, t := sl.present()
	if c == nil {
		return nil, nil, errClosed
	}
	return c, t, nil
}

func (sl *sandboxLink) present() (*egress.Client, *http.Transport) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if sl.client == nil {
		return nil, nil
	}
	select {
	case <-sl.client.Ended():
		return nil, nil
	default:
		return sl.client, sl.forward
	}
}

func (sl *sandboxLink) close() {
	sl.mu.Lock()
	c, t := sl.client, sl.forward
	sl.client, sl.over = nil, true
	sl.mu.Unlock()
	if c != nil {
		c.Close()
		t.CloseIdleConnections()
	}
}

// ServeHTTP connects a sandbox with the requested host.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, ca, err := p.admit(r)
	if sandbox.CodeOf(err) == sandbox.CodeDenied {
		w.Header().Set("Proxy-Authenticate", `Basic realm="Atoll"`)
		refuse(w, http.StatusProxyAuthRequired, "Atoll's gateway does not know this sandbox.")
		return
	}
	var c *egress.Client
	var forward *http.Transport
	if err == nil {
		var b *sandboxLink
		if b, err = p.sandbox(id); err == nil {
			c, forward, err = b.ready(r.Context(), p, id, ca)
		}
	}
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, "Atoll's gateway is not ready.") // the reason may be about the cluster
		return
	}
	switch {
	case r.Method == http.MethodConnect:
		tunnel(w, r, c)
	case r.URL.IsAbs() && r.URL.Scheme == "http" && r.URL.Host != "":
		(&httputil.ReverseProxy{Transport: forward, Rewrite: rewrite, ErrorHandler: failed, FlushInterval: -1, ErrorLog: silent}).ServeHTTP(w, r)
	default:
		refuse(w, http.StatusBadRequest, "This is Atoll's gateway, an HTTP proxy.")
	}
}

// admit returns who sends a request.
func (p *Proxy) admit(r *http.Request) (id sandbox.ID, ca []byte, err error) {
	as := http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
	name, password, ok := as.BasicAuth()
	from, bad := netip.ParseAddrPort(r.RemoteAddr)
	if !ok || bad != nil || sandbox.ValidateName(name) != nil {
		return "", nil, &sandbox.Error{Code: sandbox.CodeDenied, Message: "no password"}
	}
	id = sandbox.ID(name)
	ca, err = p.opts.Admit(r.Context(), id, password, from.Addr().Unmap())
	return id, ca, err
}

func refuse(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprintln(w, message)
}

// forwarded are headers of proxies. This one is transparent to both sides.
var forwarded = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

func rewrite(r *httputil.ProxyRequest) {
	for _, h := range forwarded {
		if v, ok := r.In.Header[h]; ok {
			r.Out.Header[h] = v
		}
	}
}

func failed(w http.ResponseWriter, r *http.Request, err error) { unreached(w, r.URL.Host, err) }

// unreached says that there is no connection. The gateway does not say whether it
// refused one or it failed; the events of the sandbox do.
func unreached(w http.ResponseWriter, host string, err error) {
	if errors.Is(err, egress.ErrNoName) {
		refuse(w, http.StatusForbidden, "Atoll's gateway refused "+host+": "+err.Error()+".")
		return
	}
	refuse(w, http.StatusBadGateway, "Atoll's gateway did not connect to "+host+": no rule allows it, or it does not answer. The events of the sandbox say which.")
}

// tunnel serves a request for a connection.
func tunnel(w http.ResponseWriter, r *http.Request, c *egress.Client) {
	if _, _, err := net.SplitHostPort(r.Host); err != nil {
		refuse(w, http.StatusBadRequest, "CONNECT needs a host and a port.")
		return
	}
	out, err := dialer(c)(r.Context(), "tcp", r.Host)
	if err != nil {
		unreached(w, r.Host, err)
		return
	}
	defer out.Close()
	in, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer in.Close()
	_ = in.SetDeadline(time.Time{})
	if _, err := io.WriteString(in, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	splice(in, buffered.Reader, out)
}

// splice copies both directions until both have ended or one has failed.
func splice(in net.Conn, head *bufio.Reader, out net.Conn) {
	done := make(chan error, 2)
	go func() { done <- pass(out, head) }()
	go func() { done <- pass(in, out) }()
	for range cap(done) {
		if err := <-done; err != nil {
			return
		}
	}
}

// pass copies one direction, and then closes it.
func pass(to net.Conn, from io.Reader) error {
	_, err := io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok && err == nil {
		err = half.CloseWrite()
	}
	return err
}

// limited is a listener that closes connections from addresses that have too many.
type limited struct {
	net.Listener
	p *Proxy
}

// Accept is part of net.Listener.
func (l limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from, err := netip.ParseAddrPort(c.RemoteAddr().String())
		if err == nil && l.p.enter(from.Addr()) {
			return &counted{TCPConn: c.(*net.TCPConn), leave: sync.OnceFunc(func() { l.p.leave(from.Addr()) })}, nil
		}
		c.Close()
	}
}

func (p *Proxy) enter(from netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.from[from] >= maxEach {
		return false
	}
	p.from[from]++
	return true
}

func (p *Proxy) leave(from netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.from[from]--; p.from[from] <= 0 {
		delete(p.from, from)
	}
}

// counted is a connection of an address.
type counted struct {
	*net.TCPConn
	leave func()
}

// Close closes the connection.
func (c *counted) Close() error {
	c.leave()
	return c.TCPConn.Close()
}
