package egress

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/atoll-run/atoll/internal/gateway/messages"
)

// received passes on the packets of an endpoint.
type received struct {
	stack.NetworkDispatcher
	packets chan string
}

func (r received) DeliverNetworkPacket(_ tcpip.NetworkProtocolNumber, p *stack.PacketBuffer) {
	b := p.ToBuffer()
	r.packets <- string(b.Flatten())
}

// TestEthernet checks the link of a virtual machine: only frames whose type fits
// their packet pass, and packets to the machine become frames.
func TestEthernet(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	machine := os.NewFile(uintptr(fds[1]), "machine")
	defer machine.Close()
	e, err := newEndpoint(os.NewFile(uintptr(fds[0]), "link"), true, func([]byte) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	to := received{packets: make(chan string, 16)}
	e.Attach(to)
	e.begin()
	defer e.Attach(nil)
	head := make([]byte, header.EthernetMinimumSize)
	frame := func(typ tcpip.NetworkProtocolNumber, packet string) []byte {
		header.Ethernet(head).Encode(&header.EthernetFields{
			SrcAddr: tcpip.LinkAddress(messages.EthernetAddress[:]), DstAddr: tcpip.LinkAddress(messages.EthernetGateway[:]), Type: typ,
		})
		return append(head[:len(head):len(head)], packet...)
	}
	four, six := "\x45 a packet", "\x60 a packet"
	for _, f := range [][]byte{
		[]byte("x"), head[:13], frame(header.IPv4ProtocolNumber, ""), frame(header.IPv4ProtocolNumber, six), frame(header.IPv6ProtocolNumber, four),
		frame(header.ARPProtocolNumber, four), frame(0, "\x00"), make([]byte, 1514), frame(header.IPv4ProtocolNumber, four), frame(header.IPv6ProtocolNumber, six),
	} {
		if _, err := unix.Write(fds[1], f); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{four, six} {
		if got := <-to.packets; got != want {
			t.Errorf("the stack got %q, want %q", got, want)
		}
	}
	p := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData([]byte(four))})
	p.NetworkProtocolNumber = header.IPv4ProtocolNumber
	defer p.DecRef()
	var list stack.PacketBufferList
	list.PushBack(p)
	if n, err := e.WritePackets(list); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	b := make([]byte, 100)
	n, err := unix.Read(fds[1], b)
	if err != nil || n < len(head) {
		t.Fatal(n, err)
	}
	got := header.Ethernet(b[:n])
	if string(b[len(head):n]) != four || got.Type() != header.IPv4ProtocolNumber || got.DestinationAddress() != tcpip.LinkAddress(messages.EthernetAddress[:]) {
		t.Errorf("the machine got %q", b[:n])
	}
}
