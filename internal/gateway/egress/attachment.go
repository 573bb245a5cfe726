package egress

import (
	"context"
	"crypto/x509"
	"errors"
	"net/netip"
	"os"
	"reflect"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

// Limits of one sandbox.
const (
	maxOpening = 256  // connections being decided, dialled or accepted
	maxFlows   = 8192 // connections
)

// Limits in bytes of the data buffered for the connections of all sandboxes.
// Few connections get a full window each; many get less.
const (
	heldBack  = 64 << 20
	leastRoom = 16 << 10
)

// outgoing holds the settings for outgoing connections.
type outgoing struct {
	*dialer
	roots    *x509.CertPool // nil: the machine's
	operator policy.Operator
}

func newOutgoing(s messages.Settings, own func(netip.Addr) bool) (*outgoing, error) {
	d, err := newDialer(s)
	if err != nil {
		return nil, err
	}
	w := &outgoing{dialer: d, operator: policy.Operator{Allow: s.Private, HostPorts: s.HostPorts, Own: s.Own, Machine: own}}
	if len(s.Roots) > 0 {
		if w.roots, err = x509.SystemCertPool(); err != nil {
			w.roots = x509.NewCertPool()
		}
		if !w.roots.AppendCertsFromPEM(s.Roots) {
			return nil, errors.New("the additional roots contain no certificate")
		}
	}
	return w, nil
}

// attachment is the gateway's side of one sandbox: its link and connections.
type attachment struct {
	id       sandbox.ID
	link     *endpoint
	stack    *stack.Stack
	window   int // maximum bytes buffered per connection and direction
	names    *names
	outgoing atomic.Pointer[outgoing]
	policy   atomic.Pointer[activePolicy]
	ca       *authority
	http     *httpServer
	*eventReporter

	total *atomic.Int64 // number of connections of all sandboxes

	added messages.Add // as added, with the current policy

	life context.Context // ends when the sandbox is closed
	stop context.CancelFunc
	once sync.Once

	mu    sync.Mutex
	flows map[*flow]struct{}
	shut  bool
}

func (p *Links) newAttachment(id sandbox.ID, a messages.Add, link *os.File) (*attachment, error) {
	p.mu.Lock()
	w := p.outgoing
	p.mu.Unlock()
	r, err := newActivePolicy(a.Policy, w.operator)
	if err != nil {
		return nil, err
	}
	ca, err := newAuthority(a.CACert, a.CAKey)
	if err != nil {
		return nil, err
	}
	b := &attachment{id: id, ca: ca, added: a, total: &p.total, flows: map[*flow]struct{}{}}
	b.life, b.stop = context.WithCancel(context.Background())
	b.outgoing.Store(w)
	b.policy.Store(r)
	b.names = newNames(a.Names, func(name string, n uint16) { p.hooks.Named(id, name, n) })
	b.eventReporter = newEventReporter(func(e Event) { p.hooks.Event(id, e) })
	b.http = newHTTPServer(b)
	b.window = windowFor(link)
	if b.link, err = newEndpoint(link, a.Ethernet, b.screen); err != nil {
		return nil, err
	}
	if b.stack, err = newNetstack(b.link, b.window); err != nil {
		return nil, err
	}
	fwd := tcp.NewForwarder(b.stack, b.window, maxOpening, b.open)
	b.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, fwd.HandlePacket)
	return b, nil
}

// windowFor returns the TCP window of a sandbox: as much as always fits into
// the socket buffer, which the machine limits.
func windowFor(link *os.File) int {
	if n, err := unix.GetsockoptInt(int(link.Fd()), unix.SOL_SOCKET, unix.SO_SNDBUF); err == nil && n >= messages.SocketBuffer {
		return largeWindow
	}
	return smallWindow
}

// start starts receiving packets.
func (att *attachment) start() error {
	for _, a := range []netip.Addr{messages.Gateway, messages.Gateway6} {
		number := ipv4.ProtocolNumber
		if a.Is6() {
			number = ipv6.ProtocolNumber
		}
		conn, err := gonet.DialUDP(att.stack, fullAddress(a, dnsPort), nil, number)
		if err != nil {
			return err
		}
		go att.serveDNS(conn)
	}
	return asError(att.stack.EnableNIC(nic))
}

// setPolicy applies a new policy to all connections.
func (att *attachment) setPolicy(p messages.Policy) error {
	r, err := newActivePolicy(p, att.outgoing.Load().operator)
	if err != nil {
		return err
	}
	att.policy.Store(r)
	att.mu.Lock()
	otherwise := !reflect.DeepEqual(att.added.Policy.Profile.Proxy, p.Profile.Proxy)
	att.added.Policy = p
	var open []*flow
	for f := range att.flows {
		open = append(open, f)
	}
	att.mu.Unlock()
	for _, f := range open {
		switch d := r.decide(f.target, f.destination()); {
		case !d.allowed():
			f.cut(d.reason())
		case otherwise:
			f.cut("the sandbox's proxy has changed")
		case d.Inspect && !f.d.Inspect:
			f.cut("its requests must be inspected now")
		}
	}
	return nil
}

// handover returns the state that the next gateway process needs.
func (att *attachment) handover() messages.Add {
	att.mu.Lock()
	defer att.mu.Unlock()
	a := att.added
	a.Names = att.names.all()
	return a
}

// close closes the link and all connections.
func (att *attachment) close() {
	att.once.Do(func() {
		att.stop()
		att.mu.Lock()
		att.shut = true
		var open []*flow
		for f := range att.flows {
			open = append(open, f)
		}
		att.mu.Unlock()
		att.link.Close() // first, because writers that wait for the other end hold locks
		for _, f := range open {
			f.cut("")
		}
		att.http.close()
		att.link.Wait() // the reader delivers into the stack while the stack's lock is held
		att.stack.Destroy()
	})
}

// hold adds a flow, unless there are too many.
func (att *attachment) hold(f *flow) bool {
	att.mu.Lock()
	defer att.mu.Unlock()
	if att.shut || len(att.flows) >= maxFlows {
		return false
	}
	att.flows[f] = struct{}{}
	att.total.Add(1)
	return true
}

func (att *attachment) release(f *flow) {
	att.mu.Lock()
	defer att.mu.Unlock()
	if _, held := att.flows[f]; held {
		delete(att.flows, f)
		att.total.Add(-1)
	}
}

// room returns the number of bytes that one more connection may buffer per
// direction.
func (att *attachment) room() int64 {
	return max(leastRoom, heldBack/2/max(1, att.total.Load()))
}
