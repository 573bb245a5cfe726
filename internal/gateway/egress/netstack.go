package egress

import (
	"errors"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/atoll-run/atoll/internal/gateway/messages"
)

const nic tcpip.NICID = 1

// TCP windows towards a sandbox, in bytes. What a sandbox may send at once must
// fit into the socket buffer, or its kernel drops packets.
const (
	smallWindow = 64 << 10
	largeWindow = 512 << 10
)

// newNetstack creates the network stack of one sandbox. It accepts packets for
// every address.
func newNetstack(link stack.LinkEndpoint, window int) (*stack.Stack, error) {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
	})
	failed := setTCP(s, window)
	// Set promiscuous mode before enabling the interface: the first packet may be
	// waiting.
	failed = append(failed,
		asError(s.CreateNICWithOptions(nic, link, stack.NICOptions{Disabled: true})),
		asError(s.SetPromiscuousMode(nic, true)),
		asError(s.SetSpoofing(nic, true)),
		asError(s.AddProtocolAddress(nic, protocolAddress(messages.Gateway), stack.AddressProperties{})),
		asError(s.AddProtocolAddress(nic, protocolAddress(messages.Gateway6), stack.AddressProperties{})),
	)
	s.SetRouteTable([]tcpip.Route{
		{Destination: header.IPv4EmptySubnet, NIC: nic},
		{Destination: header.IPv6EmptySubnet, NIC: nic},
	})
	if err := errors.Join(failed...); err != nil {
		s.Destroy()
		return nil, err
	}
	return s, nil
}

// setTCP sets the options of TCP.
func setTCP(s *stack.Stack, window int) []error {
	sack, moderate := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(false)
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: window, Max: window}
	snd := tcpip.TCPSendBufferSizeRangeOption{Min: 4 << 10, Default: window, Max: window}
	// Packets on a link arrive, and in order, so TIME_WAIT is not needed. See
	// makeRoom.
	forget := tcpip.TCPTimeWaitTimeoutOption(0)
	var failed []error
	for _, o := range []tcpip.SettableTransportProtocolOption{&sack, &moderate, &rcv, &snd, &forget} {
		failed = append(failed, asError(s.SetTransportProtocolOption(tcp.ProtocolNumber, o)))
	}
	return failed
}

func protocolAddress(a netip.Addr) tcpip.ProtocolAddress {
	number := ipv4.ProtocolNumber
	if a.Is6() {
		number = ipv6.ProtocolNumber
	}
	return tcpip.ProtocolAddress{Protocol: number, AddressWithPrefix: tcpip.AddrFromSlice(a.AsSlice()).WithPrefix()}
}

func fullAddress(a netip.Addr, port uint16) *tcpip.FullAddress {
	return &tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(a.AsSlice()), Port: port}
}

func asError(err tcpip.Error) error {
	if err == nil {
		return nil
	}
	return errors.New(err.String())
}
