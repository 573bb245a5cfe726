package messages

import "net/netip"

// The network as seen from inside a sandbox. It is the same in all sandboxes,
// because each has its own network stack at the other end of its link. So a
// restored or forked sandbox finds the same addresses.
var (
	Address  = netip.MustParseAddr("198.18.0.2")
	Gateway  = netip.MustParseAddr("198.18.0.1") // answers DNS
	Address6 = netip.MustParseAddr("fd61:746f:6c6c::2")
	Gateway6 = netip.MustParseAddr("fd61:746f:6c6c::1")
	// Synthetic addresses represent names.
	Synthetic = netip.MustParsePrefix("198.19.0.0/16")
)

// MTU is the MTU of a link in bytes. It is the maximum size of an IP packet,
// because every packet costs a system call on both sides.
const MTU = 65520

// The Ethernet addresses of a link with frames. The gateway answers no requests
// for addresses: a sandbox may send its frames to any.
var (
	EthernetAddress = [6]byte{0x02, 0x61, 0x74, 0x6f, 0x6c, 2} // of the sandbox
	EthernetGateway = [6]byte{0x02, 0x61, 0x74, 0x6f, 0x6c, 1}
)

// SocketBuffer is the size of a link's buffer per direction in bytes, if the
// machine permits it.
const SocketBuffer = 4 << 20

// SyntheticAddr returns the synthetic address with a number.
func SyntheticAddr(n uint16) netip.Addr {
	a := Synthetic.Addr().As4()
	a[2], a[3] = byte(n>>8), byte(n)
	return netip.AddrFrom4(a)
}

// SyntheticNumber returns the number of a synthetic address.
func SyntheticNumber(a netip.Addr) (uint16, bool) {
	if !Synthetic.Contains(a) {
		return 0, false
	}
	b := a.As4()
	return uint16(b[2])<<8 | uint16(b[3]), true
}
