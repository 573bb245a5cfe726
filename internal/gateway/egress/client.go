package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/internal/policy"
)

// ErrNoName means that no rule of the sandbox allows a name.
var ErrNoName = errors.New("no rule allows this name")

// Client is the sandbox's end of a link, for a sandbox whose kernel is not on
// this machine: it makes the connections that the sandbox asks for. The gateway
// at the other end decides about them as about those of any kernel. A Client is
// safe for concurrent use.
type Client struct {
	link  *endpoint
	stack *stack.Stack
}

// NewClient returns a Client with an end of a link that carries bare packets. It
// takes ownership of file. The caller closes the Client.
func NewClient(file *os.File) (*Client, error) {
	window := windowFor(file)
	link, err := newEndpoint(file, false, func([]byte) bool { return true })
	if err != nil {
		return nil, err
	}
	c := &Client{link: link}
	c.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	failed := setTCP(c.stack, window)
	failed = append(failed, asError(c.stack.CreateNIC(nic, link)))
	for _, a := range []netip.Addr{messages.Address, messages.Address6} {
		failed = append(failed, asError(c.stack.AddProtocolAddress(nic, protocolAddress(a), stack.AddressProperties{})))
	}
	c.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nic}, {Destination: header.IPv6EmptySubnet, NIC: nic}})
	link.begin()
	if err := errors.Join(failed...); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Ended is closed when the gateway has closed its end.
func (c *Client) Ended() <-chan struct{} { return c.link.ended }

// Close closes this end and all connections.
func (c *Client) Close() {
	c.link.Close()
	c.link.Wait() // the reader delivers into the stack while the stack's lock is held
	c.stack.Destroy()
}

// Dial connects to a TCP port of a name or an address. ErrNoName is a name that no
// rule allows; the gateway resets other connections that it refuses.
func (c *Client) Dial(ctx context.Context, host string, port uint16) (net.Conn, error) {
	to, err := policy.ParseHost(host)
	if err != nil {
		return nil, err
	}
	addr := to.Addr
	if to.Name != "" {
		if addr, err = c.lookup(ctx, to.Name); err != nil {
			return nil, err
		}
	}
	if addr.IsLoopback() || addr.IsUnspecified() || addr.IsMulticast() {
		return nil, errOwn
	}
	number := ipv4.ProtocolNumber
	if addr.Is6() {
		number = ipv6.ProtocolNumber
	}
	conn, err := gonet.DialContextTCP(ctx, c.stack, *fullAddress(addr, port), number)
	if err != nil {
		return nil, err // not a nil connection of that type
	}
	return conn, nil
}

// errOwn is returned for addresses that never leave a kernel.
var errOwn = errors.New("the address leads to the sandbox itself")

// The gateway answers at once, unless its process is being replaced.
const (
	lookups    = 4
	lookupTime = 3 * time.Second
)

// lookup asks the gateway for the address of a name.
func (c *Client) lookup(ctx context.Context, name string) (netip.Addr, error) {
	asked, err := dnsmessage.NewName(name + ".")
	if err != nil {
		return netip.Addr{}, err
	}
	query, err := buildDNS(dnsmessage.Header{RecursionDesired: true}, &dnsmessage.Question{Name: asked, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}, nil)
	if err != nil {
		return netip.Addr{}, err
	}
	conn, err := gonet.DialUDP(c.stack, nil, fullAddress(messages.Gateway, dnsPort), ipv4.ProtocolNumber)
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	buf := make([]byte, maxDNS)
	for range lookups {
		if _, err = conn.Write(query); err == nil {
			_ = conn.SetReadDeadline(time.Now().Add(lookupTime))
			var n int
			if n, err = conn.Read(buf); err == nil {
				return answered(buf[:n])
			}
		}
		if ctx.Err() != nil {
			return netip.Addr{}, ctx.Err()
		}
	}
	return netip.Addr{}, err
}

// answered returns the address in an answer.
func answered(text []byte) (netip.Addr, error) {
	var m dnsmessage.Message
	if err := m.Unpack(text); err != nil {
		return netip.Addr{}, err
	}
	if len(m.Answers) == 1 && m.RCode == dnsmessage.RCodeSuccess {
		if a, ok := m.Answers[0].Body.(*dnsmessage.AResource); ok {
			return netip.AddrFrom4(a.A), nil
		}
	}
	if m.RCode == dnsmessage.RCodeNameError {
		return netip.Addr{}, ErrNoName
	}
	return netip.Addr{}, errors.New("the gateway does not resolve the name: " + m.RCode.String())
}
