package gateway

import (
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/gateway/messages"
)

// Link is a sandbox's network card and network configuration.
type Link struct {
	File      *os.File       // a connected SOCK_SEQPACKET socket; each message is one IP packet or, after ConnectEthernet, one frame
	MTU       int            // bytes
	Addresses []netip.Prefix // of the sandbox
	Gateways  []netip.Addr   // one of each family; the default routes
	DNS       netip.Addr     // the DNS server
	CA        []byte         // PEM; programs in the sandbox must trust it
}

func newLink(f *os.File, ca []byte) *Link {
	return &Link{
		File: f, MTU: messages.MTU, DNS: messages.Gateway, CA: ca,
		Addresses: []netip.Prefix{netip.PrefixFrom(messages.Address, 32), netip.PrefixFrom(messages.Address6, 128)},
		Gateways:  []netip.Addr{messages.Gateway, messages.Gateway6},
	}
}

// linkPair creates the two ends of a link, with buffers as large as the machine
// permits.
func linkPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	for _, fd := range fds {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, messages.SocketBuffer) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, messages.SocketBuffer)
		}
	}
	return os.NewFile(uintptr(fds[0]), "link"), os.NewFile(uintptr(fds[1]), "link"), nil
}
