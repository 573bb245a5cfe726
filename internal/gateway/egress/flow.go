package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http/httputil"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/atoll-run/atoll/internal/gateway/wire"
	"github.com/atoll-run/atoll/internal/policy"
)

const (
	helloTimeout = 15 * time.Second // for what a client says first
	keepIdle     = 60 * time.Second
	keepInterval = 15 * time.Second
	copyBuffer   = 64 << 10
)

// target is whom a connection is meant for.
type target struct {
	host policy.Host
	port uint16
}

func (t target) flow() policy.Flow {
	return policy.Flow{Name: t.host.Name, Addr: t.host.Addr, Port: t.port}
}

// flow is one connection out of a sandbox.
type flow struct {
	b      *box
	target target
	addr   netip.Addr // the real address; not known if a proxy looks names up
	kind   string
	ruling *ruling
	d      policy.Decision
	usage  *usage

	in  net.Conn // from the sandbox
	out net.Conn // to the world

	sent, got atomic.Int64
	ending    sync.Once
	why       atomic.Pointer[string] // why it was cut
	proxy     *httputil.ReverseProxy // of requests, if they are decided one by one
	stop      func()                 // of what else holds on to it
}

// open decides about a connection, dials, and only then accepts it: what is
// refused, or cannot be reached, is reset at once.
func (b *box) open(r *tcp.ForwarderRequest) {
	id := r.ID()
	dst := addrFrom(id.LocalAddress).Unmap()
	if dst == wire.Gateway || dst == wire.Gateway6 {
		b.openOwn(r, id.LocalPort)
		return
	}
	f := b.newFlow(dst, id.LocalPort)
	if f == nil {
		r.Complete(true)
		return
	}
	if !f.dial() {
		f.end()
		r.Complete(true)
		return
	}
	conn, err := accept(r)
	if err != nil {
		f.end()
		return
	}
	f.in = &countedConn{Conn: conn, f: f}
	f.run()
}

// openOwn serves what the gateway itself offers: DNS.
func (b *box) openOwn(r *tcp.ForwarderRequest, port uint16) {
	if port != dnsPort {
		b.tell(Event{Verdict: wire.Denied, Kind: "tcp", Addr: wire.Gateway, Port: port, Why: string(policy.OwnPort), Reason: "the gateway offers nothing but DNS"})
		r.Complete(true)
		return
	}
	conn, err := accept(r)
	if err != nil {
		return
	}
	stop := context.AfterFunc(b.life, func() { conn.Close() })
	defer stop()
	b.serveDNSTCP(conn)
}

// accept completes the handshake.
func accept(r *tcp.ForwarderRequest) (*sandboxConn, error) {
	var wq waiter.Queue
	ep, terr := r.CreateEndpoint(&wq)
	r.Complete(terr != nil)
	if terr != nil {
		return nil, asError(terr)
	}
	idle, interval := tcpip.KeepaliveIdleOption(keepIdle), tcpip.KeepaliveIntervalOption(keepInterval)
	_ = ep.SetSockOpt(&idle)
	_ = ep.SetSockOpt(&interval)
	ep.SocketOptions().SetKeepAlive(true)
	ep.SocketOptions().SetDelayOption(false)
	return &sandboxConn{gonet.NewTCPConn(&wq, ep), ep}, nil
}

// sandboxConn is a connection to a sandbox that can be reset.
type sandboxConn struct {
	*gonet.TCPConn
	ep tcpip.Endpoint
}

// newFlow decides about a connection before anything is looked up. It returns
// nil if it is refused.
func (b *box) newFlow(dst netip.Addr, port uint16) *flow {
	f := &flow{b: b, target: target{host: policy.Host{Addr: dst}, port: port}, kind: "tcp", ruling: b.policy.Load()}
	if wire.Synthetic.Contains(dst) {
		name, ok := b.names.name(dst)
		if !ok {
			f.addr = dst
			f.refused(policy.Decision{Reason: policy.BadAddress, Detail: "the address stands for no name"})
			return nil
		}
		f.target.host = policy.Host{Name: name}
	} else {
		f.addr = dst
	}
	f.d = f.ruling.decide(f.target, f.addr).Decision
	if !f.d.Allow {
		f.refused(f.d)
		return nil
	}
	f.usage = f.ruling.used(f.d)
	if !f.usage.enter() {
		f.usage = nil
		f.limited("the rule's limit of connections is reached")
		return nil
	}
	if !b.hold(f) {
		f.usage.leave()
		f.limited("the sandbox has too many connections")
		return nil
	}
	// Where requests can be seen, it is they that are counted.
	if !f.byRequest() && !f.usage.take() {
		f.limited("the rule's limit of connections per minute is reached")
		f.end()
		return nil
	}
	return f
}

// dial connects to the target, each of whose addresses is decided about.
func (f *flow) dial() bool {
	conn, addr, err := f.connect(f.b.life)
	if addr.IsValid() {
		f.addr = addr
	}
	if err != nil {
		f.unreachable(err)
		return false
	}
	f.out = conn
	return true
}

// refusal is a decision as an error.
type refusal struct{ policy.Decision }

func (r refusal) Error() string { return r.Message() }

func (f *flow) connect(ctx context.Context) (net.Conn, netip.Addr, error) {
	return f.b.world.Load().dial(ctx, f.target.host, f.target.port, func(a netip.Addr) error {
		if d := f.b.policy.Load().decide(f.target, a); !d.allowed() {
			return refusal{d.Decision}
		}
		return nil
	})
}

// unreachable tells why a connection that was allowed did not come about.
func (f *flow) unreachable(err error) {
	var no refusal
	if errors.As(err, &no) {
		f.refused(no.Decision)
		return
	}
	e := f.event(wire.Failed, f.d)
	e.Reason = dialReason(err)
	f.b.tell(e)
}

// dialReason is what a sandbox's owner may know of a failure: nothing about the
// machine's own network.
func dialReason(err error) string {
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return "the name does not exist"
	case errors.As(err, &dns):
		return "the name could not be looked up"
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer"
	case errors.Is(err, errNoAddress):
		return err.Error()
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		if op.Timeout() {
			return "no answer"
		}
		return "the connection failed: " + unwrapAll(op.Err).Error()
	}
	return "the connection failed"
}

func unwrapAll(err error) error {
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return err
}

// byRequest reports whether HTTP requests of the flow are decided one by one.
func (f *flow) byRequest() bool { return f.d.Inspect || f.target.port == 80 }

// run moves bytes until the connection ends.
func (f *flow) run() {
	switch {
	case f.target.port == 443 || f.d.Inspect:
		f.runWeb()
	case f.target.port == 80:
		f.serveHTTP(f.in, false)
	default:
		f.splice(f.in)
	}
}

// runWeb looks at what the client says first. Port 443 is for TLS, and what has
// to be inspected is either TLS or HTTP.
func (f *flow) runWeb() {
	_ = f.in.SetReadDeadline(time.Now().Add(helloTimeout))
	first := make([]byte, 1)
	if _, err := io.ReadFull(f.in, first); err != nil {
		f.cut("the client said nothing that could be decided about")
		return
	}
	in := &replayConn{f.in, first}
	const handshake = 22
	switch {
	case first[0] == handshake:
		f.runTLS(in)
	case f.target.port == 443:
		f.kind = "tls"
		f.deny(policy.Decision{Reason: policy.NoName, Detail: "it is not TLS"})
	default:
		_ = f.in.SetReadDeadline(time.Time{})
		f.serveHTTP(in, false)
	}
}

// runTLS decides by the name in the hello, and passes TLS through or ends it
// here.
func (f *flow) runTLS(in net.Conn) {
	f.kind = "tls"
	h, err := readHello(in)
	if err != nil {
		f.deny(policy.Decision{Reason: policy.NoName, Detail: "the TLS hello cannot be understood"})
		return
	}
	_ = f.in.SetReadDeadline(time.Time{})
	d := f.ruling.Hello(f.decidedFlow(), f.d, policy.Hello{ServerName: h.name, Encrypted: h.encrypted})
	if !d.Allow {
		f.deny(d)
		return
	}
	replay := &replayConn{f.in, h.raw}
	if f.d.Inspect {
		f.terminate(replay)
		return
	}
	f.splice(replay)
}

// decidedFlow is the flow with its real address, as far as it is known.
func (f *flow) decidedFlow() policy.Flow {
	p := f.target.flow()
	if f.addr.IsValid() {
		p.Addr = f.addr
	}
	return p
}

// splice copies both ways until both have ended.
func (f *flow) splice(in net.Conn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.copy(f.out, in, f.d.Limits.RequestBytes)
	}()
	f.copy(in, f.out, f.d.Limits.ResponseBytes)
	<-done
	f.finish()
}

var buffers = sync.Pool{New: func() any { b := make([]byte, copyBuffer); return &b }}

// copy copies one way, at most so many bytes if there is a limit, and ends the
// direction.
func (f *flow) copy(dst, src net.Conn, limit int64) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	var r io.Reader = onlyReader{src}
	if limit > 0 {
		r = io.LimitReader(r, limit)
	}
	n, err := io.CopyBuffer(onlyWriter{dst}, r, *buf)
	switch {
	case err != nil:
		f.end() // one side is gone, and so is the connection
	case limit > 0 && n == limit:
		f.cut(bytesReached)
	default:
		_ = closeWrite(dst)
	}
}

// onlyReader and onlyWriter keep io.Copy from going ways of its own, on which
// nobody counts.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

// countedConn is the sandbox's side of a flow. Closing it ends the flow.
type countedConn struct {
	net.Conn
	f *flow
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.f.sent.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.f.got.Add(int64(n))
	return n, err
}

func (c *countedConn) CloseWrite() error { return closeWrite(c.Conn) }

func (c *countedConn) Close() error {
	c.f.end()
	return nil
}

// end closes both sides. It may be called again.
func (f *flow) end() {
	f.ending.Do(func() {
		if f.stop != nil {
			f.stop()
		}
		if c, ok := f.in.(*countedConn); ok {
			c.Conn.Close()
		}
		if f.out != nil {
			f.out.Close()
		}
		f.usage.leave()
		f.b.release(f)
	})
}

// finish tells about a flow that has ended.
func (f *flow) finish() {
	f.end()
	e := f.event(wire.Allowed, f.d)
	if why := f.why.Load(); why != nil {
		e.Verdict, e.Reason = wire.Denied, *why
	}
	f.b.tell(e)
}

// cut ends a flow by force: nothing that waits to be sent is sent any more.
func (f *flow) cut(why string) {
	if why != "" {
		f.why.CompareAndSwap(nil, &why)
	}
	f.reset()
}

// reset ends a flow so that its client sees a reset.
func (f *flow) reset() {
	if c, ok := f.in.(*countedConn); ok {
		if s, ok := c.Conn.(*sandboxConn); ok {
			s.ep.Abort()
		}
	}
	f.end()
}

// deny tells of a refusal that came after the connection was accepted, and
// resets it.
func (f *flow) deny(d policy.Decision) {
	f.refused(d)
	f.reset()
}

// refused tells of a refusal.
func (f *flow) refused(d policy.Decision) {
	f.b.tell(f.event(wire.Denied, d))
}

func (f *flow) limited(reason string) {
	e := f.event(wire.Limited, f.d)
	e.Why, e.Reason = string(policy.Limited), reason
	f.b.tell(e)
}

func (f *flow) event(v wire.Verdict, d policy.Decision) Event {
	e := Event{
		Verdict: v, Kind: f.kind, Rule: d.Rule, Why: string(d.Reason), Host: f.target.host.Name,
		Addr: f.addr, Port: f.target.port, Sent: f.sent.Load(), Got: f.got.Load(),
	}
	if v == wire.Denied {
		e.Reason = d.Message()
	}
	return e
}
