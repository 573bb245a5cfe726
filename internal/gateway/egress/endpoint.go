package egress

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/atoll-run/atoll/internal/gateway/messages"
)

// smallPacket is the size up to which copying a packet is cheaper than passing
// on its large receive buffer.
const smallPacket = 4096

// endpoint is the gateway's end of a sandbox's link, which carries one IP
// packet per message. Unlike gVisor's own endpoints, it waits when the other
// side does not read: a dropped packet would delay a connection by about 200
// ms. Only the stack of that sandbox waits.
type endpoint struct {
	f   *os.File
	raw syscall.RawConn
	// filter is called for every packet before the stack, and reports whether it
	// may pass.
	filter   func(pkt []byte) bool
	ethernet bool // messages are Ethernet frames

	mu         sync.RWMutex
	dispatcher stack.NetworkDispatcher
	mtu        uint32
	reading    sync.WaitGroup
	ended      chan struct{} // closed when reading has ended

	write struct {
		sync.Mutex
		iovs [][]byte
	}
}

var _ stack.LinkEndpoint = (*endpoint)(nil)

// newEndpoint takes ownership of f.
func newEndpoint(f *os.File, ethernet bool, filter func([]byte) bool) (*endpoint, error) {
	if err := unix.SetNonblock(int(f.Fd()), true); err != nil {
		return nil, err
	}
	// Fd may have made the descriptor blocking, and os.File does not poll those:
	// open a duplicate.
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	f.Close()
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	polled := os.NewFile(uintptr(fd), "link")
	raw, err := polled.SyscallConn()
	if err != nil {
		polled.Close()
		return nil, err
	}
	return &endpoint{f: polled, raw: raw, filter: filter, ethernet: ethernet, mtu: messages.MTU, ended: make(chan struct{})}, nil
}

// Attach sets the receiver of packets. Nil removes it.
func (e *endpoint) Attach(d stack.NetworkDispatcher) {
	e.mu.Lock()
	e.dispatcher = d
	e.mu.Unlock()
	if d == nil {
		e.f.Close()
		e.reading.Wait()
	}
}

// begin starts reading. It is called once, when the receiver is ready, because
// packets may already be waiting.
func (e *endpoint) begin() {
	e.mu.RLock()
	d := e.dispatcher
	e.mu.RUnlock()
	if d == nil {
		close(e.ended)
		return
	}
	e.reading.Go(func() { e.read(d) })
}

// read delivers packets until one of the ends is closed.
func (e *endpoint) read(d stack.NetworkDispatcher) {
	defer close(e.ended)
	view := buffer.NewViewSize(messages.MTU)
	defer func() { view.Release() }()
	for {
		n, err := e.receive(view.AsSlice())
		if err != nil {
			return
		}
		if n < 0 {
			continue // not a packet
		}
		pkt := view.AsSlice()[:n]
		proto := protocol(pkt)
		if proto == 0 || !e.filter(pkt) {
			continue
		}
		payload := view
		if n <= smallPacket {
			payload = buffer.NewViewWithData(pkt)
		} else {
			payload.CapLength(n)
			view = buffer.NewViewSize(messages.MTU)
		}
		p := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithView(payload)})
		// The other side sends no checksums, since a local socket cannot corrupt
		// packets.
		p.RXChecksumValidated = !e.ethernet
		d.DeliverNetworkPacket(proto, p)
		p.DecRef()
	}
}

// receive reads one packet. The length is negative if the other side sent
// something else.
func (e *endpoint) receive(b []byte) (n int, err error) {
	var head []byte
	parts := [][]byte{b}
	if e.ethernet {
		head = make([]byte, header.EthernetMinimumSize)
		parts = [][]byte{head, b}
	}
	rerr := e.raw.Read(func(fd uintptr) bool {
		n, _, _, _, err = unix.RecvmsgBuffers(int(fd), parts, nil, unix.MSG_DONTWAIT)
		return !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
	})
	if rerr != nil {
		return 0, rerr
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err == nil && e.ethernet {
		if n -= len(head); n < 0 || header.Ethernet(head).Type() != protocol(b[:max(n, 0)]) {
			n = -1
		}
	}
	return n, err
}

// frameHead is the beginning of every frame to a sandbox, by its protocol.
func frameHead(proto tcpip.NetworkProtocolNumber) []byte {
	b := make([]byte, header.EthernetMinimumSize)
	header.Ethernet(b).Encode(&header.EthernetFields{
		SrcAddr: tcpip.LinkAddress(messages.EthernetGateway[:]), DstAddr: tcpip.LinkAddress(messages.EthernetAddress[:]), Type: proto,
	})
	return b
}

var frameHeads = map[tcpip.NetworkProtocolNumber][]byte{
	header.IPv4ProtocolNumber: frameHead(header.IPv4ProtocolNumber), header.IPv6ProtocolNumber: frameHead(header.IPv6ProtocolNumber),
}

func protocol(pkt []byte) tcpip.NetworkProtocolNumber {
	switch header.IPVersion(pkt) {
	case header.IPv4Version:
		return header.IPv4ProtocolNumber
	case header.IPv6Version:
		return header.IPv6ProtocolNumber
	}
	return 0
}

// WritePackets sends packets and waits while the socket is full.
func (e *endpoint) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	e.write.Lock()
	defer e.write.Unlock()
	sent := 0
	for _, p := range pkts.AsSlice() {
		e.write.iovs = e.write.iovs[:0]
		if e.ethernet {
			head := frameHeads[p.NetworkProtocolNumber]
			if head == nil {
				continue
			}
			e.write.iovs = append(e.write.iovs, head)
		}
		e.write.iovs = append(e.write.iovs, p.AsSlices()...)
		if err := e.send(e.write.iovs); err != nil {
			return sent, &tcpip.ErrClosedForSend{}
		}
		sent++
	}
	return sent, nil
}

func (e *endpoint) send(iovs [][]byte) (err error) {
	werr := e.raw.Write(func(fd uintptr) bool {
		_, err = unix.SendmsgBuffers(int(fd), iovs, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
	})
	return errors.Join(werr, err)
}

// MTU returns the maximum packet size.
func (e *endpoint) MTU() uint32 { return messages.MTU }

// SetMTU does nothing: the MTU is fixed.
func (e *endpoint) SetMTU(uint32) {}

// Capabilities says that checksums of bare packets are neither checked nor
// computed.
func (e *endpoint) Capabilities() stack.LinkEndpointCapabilities {
	if e.ethernet {
		return 0
	}
	return stack.CapabilityRXChecksumOffload | stack.CapabilityTXChecksumOffload
}

// IsAttached reports whether packets are delivered.
func (e *endpoint) IsAttached() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.dispatcher != nil
}

// Wait waits until the last packet has been delivered.
func (e *endpoint) Wait() { e.reading.Wait() }

// Close closes this end.
func (e *endpoint) Close() { e.f.Close() }

// The stack sees no link-layer headers.

func (*endpoint) MaxHeaderLength() uint16                 { return 0 }
func (*endpoint) LinkAddress() tcpip.LinkAddress          { return "" }
func (*endpoint) SetLinkAddress(tcpip.LinkAddress)        {}
func (*endpoint) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }
func (*endpoint) AddHeader(*stack.PacketBuffer)           {}
func (*endpoint) ParseHeader(*stack.PacketBuffer) bool    { return true }
func (*endpoint) SetOnCloseAction(func())                 {}
