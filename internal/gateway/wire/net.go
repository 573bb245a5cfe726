package wire

import "net/netip"

// The network as seen from inside a sandbox. It is the same in all, since each
// has a network stack of its own on the other end of its link; a sandbox that
// is restored or forked finds everything where it was.
var (
	Address  = netip.MustParseAddr("198.18.0.2")
	Gateway  = netip.MustParseAddr("198.18.0.1") // answers DNS
	Address6 = netip.MustParseAddr("fd61:746f:6c6c::2")
	Gateway6 = netip.MustParseAddr("fd61:746f:6c6c::1")
	// Synthetic addresses stand for names.
	Synthetic = netip.MustParsePrefix("198.19.0.0/16")
)

// MTU of the link, in bytes. It is as large as an IP packet can be: every
// packet costs a system call on both sides.
const MTU = 65520

// SocketBuffer is what a link may hold in each direction, in bytes, where the
// machine permits it.
const SocketBuffer = 4 << 20

// SyntheticAddr is the address with that number.
func SyntheticAddr(n uint16) netip.Addr {
	a := Synthetic.Addr().As4()
	a[2], a[3] = byte(n>>8), byte(n)
	return netip.AddrFrom4(a)
}

// SyntheticNumber is the number of an address.
func SyntheticNumber(a netip.Addr) (uint16, bool) {
	if !Synthetic.Contains(a) {
		return 0, false
	}
	b := a.As4()
	return uint16(b[2])<<8 | uint16(b[3]), true
}
