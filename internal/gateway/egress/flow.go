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

	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/internal/policy"
)

const (
	helloTimeout = 15 * time.Second // for the first bytes of a client
	keepIdle     = 60 * time.Second
	keepInterval = 15 * time.Second
)

// target is the intended destination of a connection.
type target struct {
	host policy.Host
	port uint16
}

func (t target) flow() policy.Flow {
	return policy.Flow{Name: t.host.Name, Addr: t.host.Addr, Port: t.port}
}

// flow is one connection from a sandbox.
type flow struct {
	b      *attachment
	target target
	addr   netip.Addr // the real address; unknown if a proxy looks up names
	kind   string
	ruling *activePolicy
	d      policy.Decision
	usage  *usage

	// Set by the goroutine that opens the flow, which also reads them without the
	// lock until run. Others need mu.
	in  *countedConn // the sandbox's side
	out net.Conn     // the outgoing side

	mu    sync.Mutex
	ended bool
	stop  func() // releases what else belongs to the flow

	sent, got atomic.Int64
	why       atomic.Pointer[string] // why it was cut
	proxy     *httputil.ReverseProxy // for requests, if they are decided one by one
}

// open decides about a connection, dials, and only then accepts it. A
// connection that is refused or fails is reset immediately.
func (att *attachment) open(r *tcp.ForwarderRequest) {
	id := r.ID()
	dst := addrFrom(id.LocalAddress).Unmap()
	if dst == messages.Gateway || dst == messages.Gateway6 {
		att.openOwn(r, id.LocalPort)
		return
	}
	f := att.newFlow(dst, id.LocalPort)
	if f == nil {
		r.Complete(true)
		return
	}
	if !f.dial() {
		f.end()
		r.Complete(true)
		return
	}
	conn, err := att.accept(r)
	if err != nil {
		f.end()
		return
	}
	if !f.accepted(conn) {
		f.finish()
		return
	}
	f.run()
}

// openOwn serves the gateway's own address, which offers DNS.
func (att *attachment) openOwn(r *tcp.ForwarderRequest, port uint16) {
	if port != dnsPort {
		att.tell(Event{Verdict: messages.Denied, Kind: "tcp", Addr: messages.Gateway, Port: port, Why: string(policy.OwnPort), Reason: "the gateway offers nothing but DNS"})
		r.Complete(true)
		return
	}
	conn, err := att.accept(r)
	if err != nil {
		return
	}
	stop := context.AfterFunc(att.life, func() { conn.Close() })
	defer stop()
	att.serveDNSTCP(conn)
}

// accept completes the handshake.
func (att *attachment) accept(r *tcp.ForwarderRequest) (*sandboxConn, error) {
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
	if n := att.room(); n < int64(att.window) {
		ep.SocketOptions().SetSendBufferSize(n, true)
		ep.SocketOptions().SetReceiveBufferSize(n, true)
	}
	return &sandboxConn{gonet.NewTCPConn(&wq, ep), ep}, nil
}

// sandboxConn is a connection from a sandbox that can be reset.
type sandboxConn struct {
	*gonet.TCPConn
	ep tcpip.Endpoint
}

// newFlow decides about a connection before any lookup. It returns nil if the
// connection is refused.
func (att *attachment) newFlow(dst netip.Addr, port uint16) *flow {
	f := &flow{b: att, target: target{host: policy.Host{Addr: dst}, port: port}, kind: "tcp", ruling: att.policy.Load()}
	if messages.Synthetic.Contains(dst) {
		name, ok := att.names.name(dst)
		if !ok {
			f.addr = dst
			f.refused(policy.Decision{Reason: policy.BadAddress, Detail: "no name has this synthetic address"})
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
	if !att.hold(f) {
		f.usage.leave()
		f.limited("the sandbox has too many connections")
		return nil
	}
	if att.policy.Load() != f.ruling {
		// The policy changed meanwhile. Later changes will find the flow.
		f.end()
		return att.newFlow(dst, port)
	}
	// If requests can be inspected, the limits count requests instead.
	if !f.byRequest() && !f.usage.take() {
		f.limited("the rule's limit of connections per minute is reached")
		f.end()
		return nil
	}
	return f
}

// dial connects to the target and decides about each of its addresses.
func (f *flow) dial() bool {
	conn, addr, err := f.connect(f.b.life)
	if addr.IsValid() {
		f.mu.Lock()
		f.addr = addr
		f.mu.Unlock()
	}
	if err != nil {
		f.unreachable(err)
		return false
	}
	if !f.dialled(conn) {
		f.finish()
		return false
	}
	return true
}

// dialled stores the outgoing connection, unless the flow has ended.
func (f *flow) dialled(conn net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		conn.Close()
		return false
	}
	f.out = conn
	return true
}

// accepted stores the sandbox's connection, unless the flow has ended.
func (f *flow) accepted(conn *sandboxConn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		conn.ep.Abort()
		conn.Close()
		return false
	}
	f.in = &countedConn{Conn: conn, ep: conn.ep, f: f}
	return true
}

// refusal is a refusing decision as an error.
type refusal struct{ policy.Decision }

func (r refusal) Error() string { return r.Message() }

func (f *flow) connect(ctx context.Context) (net.Conn, netip.Addr, error) {
	return f.b.dial(ctx, f.target.host, f.target.port, func(a netip.Addr) error {
		if d := f.b.policy.Load().decide(f.target, a); !d.allowed() {
			return refusal(d)
		}
		return nil
	})
}

// unreachable reports why an allowed connection failed.
func (f *flow) unreachable(err error) {
	var no refusal
	if errors.As(err, &no) {
		f.refused(no.Decision)
		return
	}
	e := f.event(messages.Failed, f.d)
	e.Reason = dialReason(err)
	f.b.tell(e)
}

// dialReason describes a failure to the sandbox's owner without revealing
// anything about the machine's network.
func dialReason(err error) string {
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return "the name does not exist"
	case errors.As(err, &dns):
		return "the name could not be looked up"
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer"
	case errors.Is(err, errNoAddress), errors.Is(err, errProxied), errors.Is(err, errProxyTLS):
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

// byRequest reports whether the flow's HTTP requests are decided one by one.
func (f *flow) byRequest() bool { return f.d.Inspect || f.target.port == 80 }

// run copies bytes until the connection ends.
func (f *flow) run() {
	switch {
	case f.target.port == 443 || f.d.Inspect:
		f.runWeb()
	case f.target.port == 80:
		f.serveHTTP(f.in, false)
	case f.ruling.Guards(f.decidedFlow()):
		f.splice(&guardedConn{Conn: f.in, f: f})
	default:
		f.splice(f.in)
	}
}

// runWeb looks at the client's first bytes. Port 443 must carry TLS, and an
// inspected connection must carry TLS or HTTP.
func (f *flow) runWeb() {
	_ = f.in.SetReadDeadline(time.Now().Add(helloTimeout))
	first := make([]byte, 1)
	if _, err := io.ReadFull(f.in, first); err != nil {
		f.cut("the client did not send enough to decide")
		return
	}
	in := &replayConn{f.in, first}
	switch {
	case first[0] == handshakeRecord:
		f.runTLS(in)
	case f.target.port == 443:
		f.kind = "tls"
		f.deny(policy.Decision{Reason: policy.NoName, Detail: "it is not TLS"})
	default:
		_ = f.in.SetReadDeadline(time.Time{})
		f.serveHTTP(in, false)
	}
}

// runTLS decides by the server name in the hello, and then passes TLS through
// or terminates it.
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

// decidedFlow returns the flow with its real address, if known.
func (f *flow) decidedFlow() policy.Flow {
	p := f.target.flow()
	if f.addr.IsValid() {
		p.Addr = f.addr
	}
	return p
}

// countedConn is the sandbox's side of a flow. Closing it ends the flow.
type countedConn struct {
	net.Conn
	ep tcpip.Endpoint
	f  *flow
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

// end closes both sides. It is idempotent.
func (f *flow) end() {
	f.mu.Lock()
	first, in, out, stop := !f.ended, f.in, f.out, f.stop
	f.ended = true
	f.mu.Unlock()
	if !first {
		return
	}
	if stop != nil {
		stop()
	}
	if out != nil {
		out.Close()
	}
	if in != nil {
		in.Conn.Close()
	}
	f.usage.leave()
	f.b.release(f)
}

// destination returns the address that the flow is known to lead to.
func (f *flow) destination() netip.Addr {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.addr
}

// whenEnded calls stop when the flow ends, or immediately if it has ended.
func (f *flow) whenEnded(stop func()) {
	f.mu.Lock()
	ended := f.ended
	f.stop = stop
	f.mu.Unlock()
	if ended {
		stop()
	}
}

// finish reports a flow that has ended.
func (f *flow) finish() {
	f.end()
	e := f.event(messages.Allowed, f.d)
	if why := f.why.Load(); why != nil {
		e.Verdict, e.Reason = messages.Denied, *why
	}
	f.b.tell(e)
}

// cut ends a flow immediately: unsent data is dropped, and nothing is sent to
// the outside after cut returns. It does not wait until the sandbox is
// notified, because a kernel that does not read packets must not delay policy
// changes for other sandboxes.
func (f *flow) cut(why string) {
	if why != "" {
		f.why.CompareAndSwap(nil, &why)
	}
	f.mu.Lock()
	out := f.out
	f.mu.Unlock()
	if out != nil {
		out.Close()
	}
	go f.reset()
}

// reset ends a flow with a TCP reset to the client.
func (f *flow) reset() {
	f.mu.Lock()
	in := f.in
	f.mu.Unlock()
	if in != nil {
		in.ep.Abort()
	}
	f.end()
}

// deny reports a refusal after the connection was accepted, and resets it.
func (f *flow) deny(d policy.Decision) {
	f.refused(d)
	f.reset()
}

// refused reports a refusal.
func (f *flow) refused(d policy.Decision) {
	f.b.tell(f.event(messages.Denied, d))
}

func (f *flow) limited(reason string) {
	e := f.event(messages.Limited, f.d)
	e.Why, e.Reason = string(policy.Limited), reason
	f.b.tell(e)
}

func (f *flow) event(v messages.Verdict, d policy.Decision) Event {
	e := Event{
		Verdict: v, Kind: f.kind, Rule: d.Rule, Why: string(d.Reason), Host: f.target.host.Name,
		Addr: f.addr, Port: f.target.port, Sent: f.sent.Load(), Got: f.got.Load(),
	}
	if v == messages.Denied {
		e.Reason = d.Message()
	}
	return e
}
