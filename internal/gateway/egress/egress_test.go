package egress

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

// TestMain lets this program be a gateway process, too.
func TestMain(m *testing.M) {
	Main()
	// The benchmarks' own link is gVisor's, which leaves these behind.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("gvisor.dev/gvisor/pkg/tcpip/link/fdbased.(*processor).start"))
}

// testSandbox is a sandbox without a link. Its policy allows names below sub.test.
func testSandbox(tb testing.TB) *attachment {
	tb.Helper()
	p := messages.Policy{Profile: sandbox.Profile{Rules: []sandbox.Rule{{Action: sandbox.Allow, Hosts: []string{"good.test", "*.sub.test"}}}}}
	r, err := newActivePolicy(p, policy.Operator{})
	if err != nil {
		tb.Fatal(err)
	}
	b := &attachment{eventReporter: newEventReporter(func(Event) {})}
	b.names = newNames(nil, func(string, uint16) {})
	b.policy.Store(r)
	return b
}

func query(tb testing.TB, name string, kind dnsmessage.Type) []byte {
	tb.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}},
	}
	out, err := m.Pack()
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// FuzzDNS checks that no query makes trouble, and that an answer has an address
// only for a name that a rule names.
func FuzzDNS(f *testing.F) {
	f.Add(query(f, "good.test.", dnsmessage.TypeA))
	f.Add(query(f, "a.sub.test.", dnsmessage.TypeTXT))
	f.Add(query(f, "1.0.19.198.in-addr.arpa.", dnsmessage.TypePTR))
	f.Add([]byte("\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01"))
	b := testSandbox(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := b.answerDNS(in)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(out); err != nil {
			t.Fatalf("the answer cannot be read: %v", err)
		}
		if !m.Response || len(in) >= 2 && m.ID != uint16(in[0])<<8|uint16(in[1]) {
			t.Fatalf("not an answer to that: %+v", m.Header)
		}
		for _, a := range m.Answers {
			switch r := a.Body.(type) {
			case *dnsmessage.AResource:
				name := strings.TrimSuffix(strings.ToLower(a.Header.Name.String()), ".")
				if name != "good.test" && !strings.HasSuffix(name, ".sub.test") || !messages.Synthetic.Contains(netip.AddrFrom4(r.A)) {
					t.Fatalf("%q has %v", name, r.A)
				}
			case *dnsmessage.PTRResource:
			default:
				t.Fatalf("a record of type %T", r)
			}
		}
	})
}

// FuzzHello checks that no hello makes trouble, and that nothing of it is lost.
func FuzzHello(f *testing.F) {
	client, server := net.Pipe()
	go func() {
		_ = tls.Client(client, &tls.Config{ServerName: "good.test", MinVersion: tls.VersionTLS12}).Handshake()
	}()
	h, err := readHello(server)
	if err != nil || h.name != "good.test" || h.encrypted {
		f.Fatalf("%+v, %v", h, err)
	}
	client.Close()
	f.Add(h.raw)
	f.Add(h.raw[:20])
	f.Add([]byte("\x16\x03\x01\x00\x02\x01\x00"))
	f.Fuzz(func(t *testing.T, in []byte) {
		h, err := readHello(bytes.NewReader(in))
		if !bytes.HasPrefix(in, h.raw) {
			t.Fatal("what was read is not what was sent")
		}
		if err == nil && len(h.raw) < 40 {
			t.Fatalf("a hello of %d bytes", len(h.raw))
		}
		if len(h.raw) > maxHello {
			t.Fatalf("%d bytes were read", len(h.raw))
		}
	})
}

func packetPair(tb testing.TB) (a, b *os.File) {
	tb.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		tb.Fatal(err)
	}
	return os.NewFile(uintptr(fds[0]), "a"), os.NewFile(uintptr(fds[1]), "b")
}

// TestNames checks that names keep their addresses, also in another gateway,
// and are bounded.
func TestNames(t *testing.T) {
	told := map[string]uint16{}
	n := newNames(nil, func(name string, number uint16) { told[name] = number })
	first, _ := n.addr("a.test")
	second, _ := n.addr("b.test")
	again, _ := n.addr("a.test")
	if first != again || first == second {
		t.Errorf("%v, %v, %v", first, second, again)
	}
	next := newNames(told, func(string, uint16) { t.Error("told again") })
	if a, _ := next.addr("b.test"); a != second {
		t.Errorf("got %v, had %v", a, second)
	}
	if name, ok := next.name(first); !ok || name != "a.test" {
		t.Errorf("%q, %v", name, ok)
	}
	// A snapshot may say anything.
	odd := newNames(map[string]uint16{"good.test": 65535, "zero.test": 0, "Not A Name": 7, "10.0.0.1": 8}, func(string, uint16) {})
	if len(odd.byName) != 1 || odd.byName["good.test"] != 65535 {
		t.Errorf("believed %v", odd.byName)
	}
	for range 3 {
		odd.next = 65535
		if a, _ := odd.addr("next" + itoa(len(odd.byName)) + ".test"); a == messages.SyntheticAddr(65535) || a == messages.SyntheticAddr(0) {
			t.Errorf("%v was given twice", a)
		}
	}
	full := newNames(nil, func(string, uint16) {})
	for i := range maxNames {
		if _, ok := full.addr(strings.Repeat("x", i%60+1) + string(rune('a'+i%26)) + "." + itoa(i)); !ok {
			t.Fatal(i)
		}
	}
	if _, ok := full.addr("one.more"); ok {
		t.Error("there is no bound")
	}
}

func itoa(n int) string {
	var b []byte
	for ; n > 0 || b == nil; n /= 10 {
		b = append(b, byte('0'+n%10))
	}
	slices.Reverse(b)
	return string(b)
}

// TestEventsAreBounded checks that dropped events are counted.
func TestEventsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []Event
		tell := newEventReporter(func(e Event) { got = append(got, e) })
		for range 10 * eventBurst {
			tell.tell(Event{})
		}
		if len(got) != eventBurst || tell.missed != 9*eventBurst {
			t.Errorf("%d told and %d missed", len(got), tell.missed)
		}
		time.Sleep(time.Second)
		for range eventBurst {
			tell.tell(Event{})
		}
		if len(got) != eventBurst+eventsPerSecond || got[eventBurst].Missed != 9*eventBurst || tell.missed != eventBurst-eventsPerSecond {
			t.Errorf("a second later, %d told, the first with %d missed, and %d missed", len(got), got[eventBurst].Missed, tell.missed)
		}
	})
}

// TestProxyTunnel checks that nothing behind the head of a proxy's answer gets
// lost, and that a refusal is one.
func TestProxyTunnel(t *testing.T) {
	for answer, want := range map[string]int{
		"HTTP/1.1 200 OK\r\nX: y\r\n\r\nrest": 200,
		"HTTP/1.0 407 no\r\n\r\n":             407,
	} {
		client, server := net.Pipe()
		go func() {
			_, _ = io.WriteString(server, answer)
			server.Close()
		}()
		head, err := readHead(client)
		if err != nil || head.status != want || head.ok != (want == 200) {
			t.Errorf("%+v, %v", head, err)
		}
		rest, _ := io.ReadAll(client)
		if want == 200 && string(rest) != "rest" {
			t.Errorf("left %q", rest)
		}
	}
	for _, answer := range []string{"", "SSH-2.0\r\n\r\n", strings.Repeat("x", 20000)} {
		client, server := net.Pipe()
		go func() {
			_, _ = io.WriteString(server, answer)
			server.Close()
		}()
		if _, err := readHead(client); err == nil {
			t.Errorf("%.20q was taken", answer)
		}
		client.Close()
	}
}
