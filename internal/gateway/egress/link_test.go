package egress

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/x509"
	"encoding/binary"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/sandbox"
)

// wireEnd is the kernel's end of a link. A test can send packets on it that no
// kernel would.
type wireEnd struct {
	tb testing.TB
	f  *os.File
	id uint16
}

// testLink serves a sandbox that may reach good.test, and returns the kernel's
// end of its link.
func testLink(tb testing.TB, p *Links, id sandbox.ID) *wireEnd {
	tb.Helper()
	ours, theirs := packetPair(tb)
	key, cert := testAuthority(tb)
	err := p.Add(id, messages.Add{
		Policy: messages.Policy{Profile: sandbox.Profile{Rules: []sandbox.Rule{{Action: sandbox.Allow, Hosts: []string{"good.test"}}}}},
		CACert: cert, CAKey: key,
	}, ours)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { theirs.Close() })
	return &wireEnd{tb: tb, f: theirs}
}

func testLinks(tb testing.TB) *Links {
	tb.Helper()
	p, err := NewLinks(messages.Settings{}, Hooks{Event: func(sandbox.ID, Event) {}, Named: func(sandbox.ID, string, uint16) {}, Ended: func(sandbox.ID) {}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	return p
}

// send sends a packet, and discards received packets when there is no room.
func (e *wireEnd) send(pkt []byte) {
	e.tb.Helper()
	for {
		_, err := e.f.Write(pkt)
		switch {
		case err == nil, len(pkt) == 0:
			return
		case len(pkt) > messages.MTU:
			return // it does not fit into the socket
		}
		e.tb.Fatal(err)
	}
}

// alive looks up a name, and returns when there is an answer.
func (e *wireEnd) alive() {
	e.tb.Helper()
	e.id++
	q := query(e.tb, "good.test.", dnsmessage.TypeA)
	binary.BigEndian.PutUint16(q, e.id)
	e.send(datagram(messages.Address, messages.Gateway, 40000, dnsPort, q))
	buf := make([]byte, messages.MTU)
	for {
		n, err := e.f.Read(buf)
		if err != nil {
			e.tb.Fatalf("there is no answer: %v", err)
		}
		ip := header.IPv4(buf[:n])
		if header.IPVersion(ip) != 4 || !ip.IsValid(n) || ip.Protocol() != uint8(header.UDPProtocolNumber) {
			continue
		}
		udp := header.UDP(ip.Payload())
		if udp.SourcePort() != dnsPort || len(udp.Payload()) < 12 || binary.BigEndian.Uint16(udp.Payload()) != e.id {
			continue
		}
		var m dnsmessage.Message
		if err := m.Unpack(udp.Payload()); err != nil || len(m.Answers) != 1 {
			e.tb.Fatalf("answered %+v, %v", m, err)
		}
		return
	}
}

func datagram(src, dst netip.Addr, from, to uint16, payload []byte) []byte {
	out := make([]byte, header.IPv4MinimumSize+header.UDPMinimumSize+len(payload))
	udp := header.UDP(out[header.IPv4MinimumSize:])
	udp.Encode(&header.UDPFields{SrcPort: from, DstPort: to, Length: uint16(header.UDPMinimumSize + len(payload))})
	copy(udp.Payload(), payload)
	encode4(out, src, dst, uint8(header.UDPProtocolNumber))
	return out
}

// syn begins a connection.
func syn(dst netip.Addr, from, to uint16, options []byte) []byte {
	out := make([]byte, header.IPv4MinimumSize+header.TCPMinimumSize+len(options))
	tcp := header.TCP(out[header.IPv4MinimumSize:])
	tcp.Encode(&header.TCPFields{SrcPort: from, DstPort: to, SeqNum: rand.Uint32(), DataOffset: uint8(header.TCPMinimumSize + len(options)), Flags: header.TCPFlagSyn, WindowSize: 65535})
	copy(tcp[header.TCPMinimumSize:], options)
	encode4(out, messages.Address, dst, uint8(header.TCPProtocolNumber))
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, tcpip.AddrFrom4(messages.Address.As4()), tcpip.AddrFrom4(dst.As4()), uint16(len(tcp)))
	tcp.SetChecksum(^checksum.Checksum(tcp, sum))
	return out
}

func encode4(out []byte, src, dst netip.Addr, proto uint8) {
	h := header.IPv4(out)
	h.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(out)), TTL: 64, Protocol: proto, SrcAddr: tcpip.AddrFrom4(src.As4()), DstAddr: tcpip.AddrFrom4(dst.As4()),
	})
	h.SetChecksum(^h.CalculateChecksum())
}

// otherControl is a packet with only a header (IPv4 if short) and the control
// protocol of the other IP version.
func otherControl(size int, proto uint8) []byte {
	out := make([]byte, size)
	if size == header.IPv4MinimumSize {
		encode4(out, messages.Address, netip.MustParseAddr("8.8.8.8"), proto)
		return out
	}
	header.IPv6(out).Encode(&header.IPv6Fields{
		TransportProtocol: tcpip.TransportProtocolNumber(proto), HopLimit: 64, SrcAddr: tcpip.AddrFrom16(messages.Address6.As16()), DstAddr: tcpip.AddrFrom16(netip.MustParseAddr("2001:db8::1").As16()),
	})
	out[0] |= 0xf // the header length of IPv4
	return out
}

// TestControlMessagesOfTheOtherVersion checks that one packet does not end the
// gateway of all sandboxes.
func TestControlMessagesOfTheOtherVersion(t *testing.T) {
	p := testLinks(t)
	bad, good := testLink(t, p, "bad"), testLink(t, p, "good")
	for range 3 {
		bad.send(otherControl(header.IPv4MinimumSize, uint8(header.ICMPv6ProtocolNumber)))
		bad.send(otherControl(header.IPv6MinimumSize, uint8(header.ICMPv4ProtocolNumber)))
		bad.alive()
		good.alive()
	}
}

// FuzzLink sends packets that no kernel would, cut out of the input, and checks
// that the gateway still answers.
func FuzzLink(f *testing.F) {
	cut := func(pkts ...[]byte) (in []byte) {
		for _, p := range pkts {
			in = append(binary.BigEndian.AppendUint16(in, uint16(len(p))), p...)
		}
		return in
	}
	f.Add(cut([]byte("\x45\x00\x00\x1c\x00\x00\x00\x00\x40\x01\x00\x00\xc6\x12\x00\x02\x08\x08\x08\x08\x08\x00\x00\x00\x00\x00\x00\x00")))
	f.Add(cut(append([]byte("\x60\x00\x00\x00\x00\x08\x3a\x40"), make([]byte, 40)...)))
	s := syn(messages.SyntheticAddr(1), 50000, 443, []byte("\x02\x04\xff\xcc\x01\x03\x03\x0e\x04\x02\x08\x0a"))
	f.Add(cut(s, s, datagram(messages.Address, messages.SyntheticAddr(1), 1, 443, []byte("quic"))))
	fragment := datagram(messages.Address, messages.Gateway, 1, 53, make([]byte, 64))
	fragment[6] = 0x20
	f.Add(cut(fragment, fragment))
	f.Add(cut(otherControl(20, 58), otherControl(40, 1)))
	e := testLink(f, testLinks(f), "fuzzed")
	f.Fuzz(func(t *testing.T, in []byte) {
		e.tb = t
		for len(in) >= 2 {
			n := min(int(binary.BigEndian.Uint16(in)), len(in)-2)
			if in = in[2:]; n > 0 {
				e.send(in[:n])
			}
			in = in[n:]
		}
		e.alive()
	})
}

// TestFlood checks that a kernel that sends as fast as possible does not affect
// other sandboxes, and that its connections are limited.
func TestFlood(t *testing.T) {
	p := testLinks(t)
	bad, good := testLink(t, p, "bad"), testLink(t, p, "good")
	good.alive()
	stop, flooding := make(chan struct{}), make(chan struct{})
	defer func() { close(stop); <-flooding }()
	go func() { // what comes back is not looked at
		buf := make([]byte, messages.MTU)
		for {
			if _, err := bad.f.Read(buf); err != nil {
				return
			}
		}
	}()
	go func() {
		defer close(flooding)
		junk := make([]byte, 1400)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			dst := messages.SyntheticAddr(uint16(i))
			fragment := datagram(messages.Address, dst, 1, 2, junk)
			fragment[5], fragment[6] = byte(i), 0x20
			for _, pkt := range [][]byte{
				syn(dst, uint16(i), 443, nil), syn(netip.AddrFrom4([4]byte{8, 8, byte(i >> 8), byte(i)}), uint16(i), 80, nil),
				datagram(messages.Address, dst, uint16(i), 443, junk), fragment,
				{0x45, byte(i)},
				{0x60},
				{0x00, byte(i), 1},
			} {
				if _, err := bad.f.Write(pkt); err != nil {
					return
				}
			}
		}
	}()
	for range 500 {
		good.alive()
	}
	p.mu.Lock()
	b := p.sandboxes["bad"]
	p.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.flows) > maxOpening || len(b.names.byName) > 0 {
		t.Errorf("%d connections and %d names of what cannot be reached", len(b.flows), len(b.names.byName))
	}
}

// TestKernelThatReadsNothing checks that a kernel which reads no packets does
// not block policy changes or the removal of its link, even while the stack is
// about to send another packet.
func TestKernelThatReadsNothing(t *testing.T) {
	p := testLinks(t)
	for range 100 {
		e := testLink(t, p, "deaf")
		fill(t, e.f)
		if err := p.SetPolicy("deaf", messages.Policy{}); err != nil {
			t.Error(err)
		}
		p.Remove("deaf")
	}
}

// fill sends packets that are all answered, until there is no room.
func fill(t *testing.T, link *os.File) {
	t.Helper()
	raw, err := link.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for full := 0; full < 1000; {
		err := raw.Write(func(fd uintptr) bool {
			if _, err := unix.Write(int(fd), datagram(messages.Address, messages.SyntheticAddr(1), 1, 443, nil)); err != nil {
				full++
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// testAuthority makes a key and its certificate.
func testAuthority(tb testing.TB) (key, cert []byte) {
	tb.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	if cert, err = x509.CreateCertificate(crand.Reader, t, t, k.Public(), k); err != nil {
		tb.Fatal(err)
	}
	if key, err = x509.MarshalPKCS8PrivateKey(k); err != nil {
		tb.Fatal(err)
	}
	return key, cert
}
