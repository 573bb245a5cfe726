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

	"github.com/atoll-run/atoll/internal/gateway/wire"
)

// smallPacket is up to where copying a packet is cheaper than handing on the
// large buffer that it was received into.
const smallPacket = 4096

// endpoint is the gateway's end of a sandbox's link: bare IP packets, one a
// message. Unlike gVisor's own, it waits when the other side does not read,
// because a packet that is dropped here costs a flow a fifth of a second; what
// waits is the stack of one sandbox and nobody else's.
type endpoint struct {
	f   *os.File
	raw syscall.RawConn
	// filter sees every packet before the stack does and says whether it may
	// pass.
	filter func(pkt []byte) bool

	mu         sync.RWMutex
	dispatcher stack.NetworkDispatcher
	mtu        uint32
	reading    sync.WaitGroup
	ended      chan struct{} // closed when nothing can be read any more

	write struct {
		sync.Mutex
		iovs [][]byte
	}
}

var _ stack.LinkEndpoint = (*endpoint)(nil)

// newEndpoint takes over f.
func newEndpoint(f *os.File, filter func([]byte) bool) (*endpoint, error) {
	if err := unix.SetNonblock(int(f.Fd()), true); err != nil {
		return nil, err
	}
	// A descriptor that was made blocking by Fd is not polled: wrap it anew.
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
	return &endpoint{f: polled, raw: raw, filter: filter, mtu: wire.MTU, ended: make(chan struct{})}, nil
}

// Attach says who gets the packets, once they are read. Nil ends that.
func (e *endpoint) Attach(d stack.NetworkDispatcher) {
	e.mu.Lock()
	e.dispatcher = d
	e.mu.Unlock()
	if d == nil {
		e.f.Close()
		e.reading.Wait()
	}
}

// begin begins to read. It is called once, when whoever gets the packets is
// ready for them: some may be waiting.
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

// read delivers packets until the other end, or this one, is closed.
func (e *endpoint) read(d stack.NetworkDispatcher) {
	defer close(e.ended)
	view := buffer.NewViewSize(wire.MTU)
	defer func() { view.Release() }()
	for {
		n, err := e.receive(view.AsSlice())
		if err != nil {
			return
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
			view = buffer.NewViewSize(wire.MTU)
		}
		p := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithView(payload)})
		// The other side leaves checksums out: nothing can go wrong on the way.
		p.RXChecksumValidated = true
		d.DeliverNetworkPacket(proto, p)
		p.DecRef()
	}
}

// receive reads one packet.
func (e *endpoint) receive(b []byte) (n int, err error) {
	rerr := e.raw.Read(func(fd uintptr) bool {
		n, _, err = unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT)
		return !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
	})
	if rerr != nil {
		return 0, rerr
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	return n, err
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

// WritePackets sends packets, waiting for room.
func (e *endpoint) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	e.write.Lock()
	defer e.write.Unlock()
	sent := 0
	for _, p := range pkts.AsSlice() {
		e.write.iovs = append(e.write.iovs[:0], p.AsSlices()...)
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

// MTU returns the largest packet.
func (e *endpoint) MTU() uint32 { return wire.MTU }

// SetMTU does nothing: the other side knows the size, too.
func (e *endpoint) SetMTU(uint32) {}

// Capabilities says that checksums are neither wanted nor made.
func (e *endpoint) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload | stack.CapabilityTXChecksumOffload
}

// IsAttached reports whether packets are delivered.
func (e *endpoint) IsAttached() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.dispatcher != nil
}

// Wait waits until nothing is delivered any more.
func (e *endpoint) Wait() { e.reading.Wait() }

// Close closes this end.
func (e *endpoint) Close() { e.f.Close() }

// There is no link layer.

func (*endpoint) MaxHeaderLength() uint16                 { return 0 }
func (*endpoint) LinkAddress() tcpip.LinkAddress          { return "" }
func (*endpoint) SetLinkAddress(tcpip.LinkAddress)        {}
func (*endpoint) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }
func (*endpoint) AddHeader(*stack.PacketBuffer)           {}
func (*endpoint) ParseHeader(*stack.PacketBuffer) bool    { return true }
func (*endpoint) SetOnCloseAction(func())                 {}
