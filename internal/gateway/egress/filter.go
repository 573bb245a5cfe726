package egress

import (
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/atoll-run/atoll/internal/gateway/messages"
)

// broadcast is the IPv4 broadcast address.
var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// screen checks a packet before the network stack gets it. The stack accepts
// every destination address, so it would answer pings to all of them; screen
// lets only pings to the gateway pass. Other packets that may not leave get an
// ICMP "prohibited" reply, so that the sender does not wait for a timeout.
func (att *attachment) screen(pkt []byte) bool {
	dst, proto, ok := destination(pkt)
	if !ok {
		return false
	}
	switch proto {
	case uint8(header.TCPProtocolNumber):
		if !dst.IsMulticast() && dst != broadcast {
			att.makeRoom(pkt)
			return true
		}
	case uint8(header.UDPProtocolNumber):
		att.noteUDP(pkt, dst)
		return true
	case control(pkt): // ICMP of the other IP version is treated as an unknown protocol
		if dst == messages.Gateway || dst == messages.Gateway6 || !echo(pkt) {
			return true
		}
	}
	att.tell(Event{Verdict: messages.Denied, Kind: kindOf(proto), Addr: dst, Reason: "only TCP leaves a sandbox"})
	if answer := prohibited(pkt); answer != nil {
		_ = att.link.send([][]byte{answer})
	}
	return false
}

// makeRoom removes an ended connection when a program in the sandbox reuses its
// port. Until the stack has removed the old connection, the new SYN would be
// delivered to it. The stack itself would then look for a listener, and drop
// the packet because there is none.
func (att *attachment) makeRoom(pkt []byte) {
	id, number, ok := beginning(pkt)
	if !ok {
		return
	}
	ep, ok := att.stack.FindTransportEndpoint(number, tcp.ProtocolNumber, id, nic).(*tcp.Endpoint)
	if !ok {
		return
	}
	// An acknowledged change may still be in progress: the goroutine that applies
	// it holds the lock.
	ep.LockUser()
	ended := ep.EndpointState() == tcp.StateTimeWait
	ep.UnlockUser()
	if ended {
		ep.Abort()
	}
}

// beginning returns the connection that a TCP SYN packet opens.
func beginning(pkt []byte) (id stack.TransportEndpointID, number tcpip.NetworkProtocolNumber, ok bool) {
	var segment header.TCP
	if header.IPVersion(pkt) == header.IPv4Version {
		ip := header.IPv4(pkt)
		number, segment = header.IPv4ProtocolNumber, pkt[ip.HeaderLength():]
		id.LocalAddress, id.RemoteAddress = ip.DestinationAddress(), ip.SourceAddress()
	} else {
		ip := header.IPv6(pkt)
		number, segment = header.IPv6ProtocolNumber, pkt[header.IPv6MinimumSize:]
		id.LocalAddress, id.RemoteAddress = ip.DestinationAddress(), ip.SourceAddress()
	}
	if len(segment) < header.TCPMinimumSize || segment.Flags()&(header.TCPFlagSyn|header.TCPFlagAck) != header.TCPFlagSyn {
		return id, number, false
	}
	id.LocalPort, id.RemotePort = segment.DestinationPort(), segment.SourcePort()
	return id, number, true
}

func kindOf(proto uint8) string {
	switch proto {
	case uint8(header.ICMPv4ProtocolNumber), uint8(header.ICMPv6ProtocolNumber):
		return "icmp"
	}
	return "ip"
}

// destination returns the destination and protocol of a packet. IPv6 packets
// with extension headers are left to the stack.
func destination(pkt []byte) (dst netip.Addr, proto uint8, ok bool) {
	switch header.IPVersion(pkt) {
	case header.IPv4Version:
		if ip := header.IPv4(pkt); ip.IsValid(len(pkt)) {
			return addrFrom(ip.DestinationAddress()), ip.Protocol(), true
		}
	case header.IPv6Version:
		if ip := header.IPv6(pkt); ip.IsValid(len(pkt)) {
			proto := ip.NextHeader()
			switch header.IPv6ExtensionHeaderIdentifier(proto) {
			case header.IPv6HopByHopOptionsExtHdrIdentifier, header.IPv6RoutingExtHdrIdentifier,
				header.IPv6FragmentExtHdrIdentifier, header.IPv6DestinationOptionsExtHdrIdentifier:
				// Fragments and options are not needed, and would hide the rest.
				return netip.Addr{}, 0, false
			}
			return addrFrom(ip.DestinationAddress()), proto, true
		}
	}
	return netip.Addr{}, 0, false
}

// control returns the number of the ICMP protocol for a packet's IP version.
func control(pkt []byte) uint8 {
	if header.IPVersion(pkt) == header.IPv4Version {
		return uint8(header.ICMPv4ProtocolNumber)
	}
	return uint8(header.ICMPv6ProtocolNumber)
}

// echo reports whether an ICMP message is a request that the stack would
// answer.
func echo(pkt []byte) bool {
	if header.IPVersion(pkt) == header.IPv4Version {
		body := pkt[header.IPv4(pkt).HeaderLength():]
		return len(body) > 0 && header.ICMPv4Type(body[0]) == header.ICMPv4Echo
	}
	body := pkt[header.IPv6MinimumSize:]
	return len(body) > 0 && header.ICMPv6Type(body[0]) == header.ICMPv6EchoRequest
}

// prohibited builds the ICMP message "administratively prohibited".
func prohibited(pkt []byte) []byte {
	if header.IPVersion(pkt) == header.IPv4Version {
		return prohibited4(header.IPv4(pkt))
	}
	return prohibited6(header.IPv6(pkt))
}

func prohibited4(ip header.IPv4) []byte {
	const adminProhibited = 13
	quoted := ip[:min(len(ip), int(ip.HeaderLength())+8)]
	out := make([]byte, header.IPv4MinimumSize+header.ICMPv4MinimumSize+len(quoted))
	message := header.ICMPv4(out[header.IPv4MinimumSize:])
	message.SetType(header.ICMPv4DstUnreachable)
	message.SetCode(adminProhibited)
	copy(message.Payload(), quoted)
	message.SetChecksum(^checksum.Checksum(message, 0))
	h := header.IPv4(out)
	h.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(out)), TTL: 64, Protocol: uint8(header.ICMPv4ProtocolNumber),
		SrcAddr: tcpip.AddrFrom4(messages.Gateway.As4()), DstAddr: ip.SourceAddress(),
	})
	h.SetChecksum(^h.CalculateChecksum())
	return out
}

func prohibited6(ip header.IPv6) []byte {
	const adminProhibited = 1
	quoted := ip[:min(len(ip), header.IPv6MinimumMTU-header.IPv6MinimumSize-header.ICMPv6MinimumSize)]
	out := make([]byte, header.IPv6MinimumSize+header.ICMPv6MinimumSize+len(quoted))
	src, dst := tcpip.AddrFrom16(messages.Gateway6.As16()), ip.SourceAddress()
	message := header.ICMPv6(out[header.IPv6MinimumSize:])
	message.SetType(header.ICMPv6DstUnreachable)
	message.SetCode(adminProhibited)
	copy(message.Payload(), quoted)
	message.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: message, Src: src, Dst: dst}))
	header.IPv6(out).Encode(&header.IPv6Fields{
		PayloadLength: uint16(len(out) - header.IPv6MinimumSize), TransportProtocol: header.ICMPv6ProtocolNumber,
		HopLimit: 64, SrcAddr: src, DstAddr: dst,
	})
	return out
}

// noteUDP records a dropped datagram. The stack answers it with "port
// unreachable", so that QUIC clients fall back to TCP immediately.
func (att *attachment) noteUDP(pkt []byte, dst netip.Addr) {
	off := header.IPv6MinimumSize
	if header.IPVersion(pkt) == header.IPv4Version {
		off = int(header.IPv4(pkt).HeaderLength())
	}
	if len(pkt) < off+header.UDPMinimumSize {
		return
	}
	port := binary.BigEndian.Uint16(pkt[off+2:])
	if (dst == messages.Gateway || dst == messages.Gateway6) && port == dnsPort {
		return
	}
	host, _ := att.names.name(dst)
	att.tell(Event{Verdict: messages.Denied, Kind: "udp", Host: host, Addr: dst, Port: port, Reason: "only TCP leaves a sandbox"})
}

func addrFrom(a tcpip.Address) netip.Addr {
	ip, _ := netip.AddrFromSlice(a.AsSlice())
	return ip
}
