// Package ownaddr reports whether an address belongs to this machine. It
// queries the kernel's routing tables every time, so changes take effect
// immediately.
package ownaddr

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// Table queries the routing tables of the network namespace in which it was
// opened. It is safe for concurrent use.
type Table struct {
	mu  sync.Mutex
	fd  int
	seq uint32
}

// Open opens the routing tables for reading. The caller closes the Table.
func Open() (*Table, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening the routing tables: %w", err)
	}
	// The kernel normally responds immediately.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("opening the routing tables: %w", err)
	}
	return &Table{fd: fd}, nil
}

// Close closes the Table.
func (t *Table) Close() error { return unix.Close(t.fd) }

// Own reports whether packets to an address end on this machine. If the query
// fails, it reports true.
func (t *Table) Own(a netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	own, err := t.ask(a.Unmap().WithZone(""))
	return own || err != nil
}

var errAnswer = errors.New("the kernel's answer about a route is invalid")

// ask sends one RTM_GETROUTE request and reads the response.
func (t *Table) ask(a netip.Addr) (bool, error) {
	t.seq++
	if err := unix.Sendto(t.fd, request(a, t.seq), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return false, err
	}
	buf := make([]byte, 4096)
	for {
		n, _, err := unix.Recvfrom(t.fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return false, err
		}
		if n >= unix.SizeofNlMsghdr && binary.NativeEndian.Uint32(buf[8:]) != t.seq {
			continue // the response to an earlier request that timed out
		}
		return answer(buf[:n])
	}
}

// request builds a request for the route to an address.
func request(a netip.Addr, seq uint32) []byte {
	family, raw := byte(unix.AF_INET6), a.AsSlice()
	if a.Is4() {
		family = unix.AF_INET
	}
	size := unix.SizeofNlMsghdr + unix.SizeofRtMsg + unix.SizeofRtAttr + len(raw)
	b := make([]byte, 0, size)
	b = binary.NativeEndian.AppendUint32(b, uint32(size))
	b = binary.NativeEndian.AppendUint16(b, unix.RTM_GETROUTE)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = append(b, family, byte(len(raw)*8))
	b = append(b, make([]byte, unix.SizeofRtMsg-2)...)
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(raw)))
	b = binary.NativeEndian.AppendUint16(b, unix.RTA_DST)
	return append(b, raw...)
}

// answer returns whether the route in a response is local.
func answer(b []byte) (bool, error) {
	if len(b) < unix.SizeofNlMsghdr+4 {
		return false, errAnswer
	}
	body := b[unix.SizeofNlMsghdr:]
	switch binary.NativeEndian.Uint16(b[4:]) {
	case unix.NLMSG_ERROR:
		// There is no route, so the address does not belong to this machine.
		switch errno := unix.Errno(-int32(binary.NativeEndian.Uint32(body))); errno {
		case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.ENETDOWN, unix.ESRCH:
			return false, nil
		default:
			return false, errno
		}
	case unix.RTM_NEWROUTE:
		if len(body) < unix.SizeofRtMsg {
			return false, errAnswer
		}
		switch body[7] {
		case unix.RTN_LOCAL, unix.RTN_BROADCAST, unix.RTN_ANYCAST, unix.RTN_MULTICAST:
			return true, nil
		}
		return false, nil
	}
	return false, errAnswer
}
