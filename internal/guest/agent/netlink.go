package agent

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
)

// bringUp configures the loopback and the network card of a virtual machine. The
// card does not resolve addresses: everything it sends reaches the gateway.
func bringUp(m *wire.Machine) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := setLink(fd, "lo", 0, 0); err != nil || !m.Link {
		return err
	}
	if err := setLink(fd, "eth0", unix.IFF_NOARP, m.MTU); err != nil {
		return err
	}
	card, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	for _, text := range m.Address {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return err
		}
		family := byte(unix.AF_INET)
		if a.Is6() {
			family = unix.AF_INET6
		}
		address := []byte{family, byte(a.BitLen()), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE}
		address = binary.NativeEndian.AppendUint32(address, uint32(card.Index))
		address = attribute(address, unix.IFA_LOCAL, a.AsSlice())
		address = attribute(address, unix.IFA_ADDRESS, a.AsSlice())
		if err := request(fd, unix.RTM_NEWADDR, unix.NLM_F_CREATE, address); err != nil {
			return err
		}
		scope := byte(unix.RT_SCOPE_LINK)
		if a.Is6() {
			scope = unix.RT_SCOPE_UNIVERSE
		}
		route := []byte{family, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, scope, unix.RTN_UNICAST, 0, 0, 0, 0}
		route = attribute(route, unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(card.Index)))
		if err := request(fd, unix.RTM_NEWROUTE, unix.NLM_F_CREATE, route); err != nil {
			return err
		}
	}
	return nil
}

// setLink starts an interface, with more flags and, if it is not 0, an MTU.
func setLink(fd int, name string, flags uint32, mtu int) error {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	flags |= unix.IFF_UP
	b := []byte{unix.AF_UNSPEC, 0, 0, 0}
	b = binary.NativeEndian.AppendUint32(b, uint32(i.Index))
	b = binary.NativeEndian.AppendUint32(b, flags)
	b = binary.NativeEndian.AppendUint32(b, flags)
	if mtu > 0 {
		b = attribute(b, unix.IFLA_MTU, binary.NativeEndian.AppendUint32(nil, uint32(mtu)))
	}
	return request(fd, unix.RTM_NEWLINK, 0, b)
}

func attribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, -len(b)&3)...)
}

// request makes a netlink call and waits for its result.
func request(fd int, kind, flags uint16, body []byte) error {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	b = append(b, make([]byte, 8)...)
	b = append(b, body...)
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n < unix.NLMSG_HDRLEN+4 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return unix.EPROTO
	}
	if code := int32(binary.NativeEndian.Uint32(answer[unix.NLMSG_HDRLEN:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}
