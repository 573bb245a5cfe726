package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

// noEndpoint is an endpoint that can only be reset.
type noEndpoint struct {
	tcpip.Endpoint
	conn net.Conn
}

func (e noEndpoint) Abort() { e.conn.Close() }

// helloFor is what a TLS client says first.
func helloFor(t *testing.T, name string) []byte {
	t.Helper()
	client, server := net.Pipe()
	go func() {
		_ = tls.Client(client, &tls.Config{ServerName: name, MinVersion: tls.VersionTLS12}).Handshake()
	}()
	defer client.Close()
	h, err := readHello(server)
	if err != nil {
		t.Fatal(err)
	}
	return h.raw
}

// TestAttackDeniedNameOnAnyPort says, on ports for TLS and on others, the name
// of a host that is denied to the address that it has. Nothing of that arrives.
func TestAttackDeniedNameOnAnyPort(t *testing.T) {
	denied, other := helloFor(t, "denied.test"), helloFor(t, "other.test")
	for _, tt := range []struct {
		name string
		port uint16
		say  []byte
		pass bool
	}{
		{"TLS", 443, denied, false},
		{"TLS on another port", 8443, denied, false},
		{"TLS for another host", 8443, other, true},
		{"a broken hello", 8443, []byte("\x16\x03\x01\x00\x04\x63\x00\x00\x00"), false},
		{"no TLS", 2222, []byte("SSH-2.0-x\r\n"), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := newActivePolicy(messages.Policy{Profile: sandbox.Profile{
				Default: sandbox.Allow, Rules: []sandbox.Rule{{Action: sandbox.Deny, Hosts: []string{"denied.test:*"}}},
			}}, policy.Operator{})
			if err != nil {
				t.Fatal(err)
			}
			b := testSandbox(t)
			events := make(chan Event, 8)
			b.flows, b.eventReporter = map[*flow]struct{}{}, newEventReporter(func(e Event) { events <- e })
			b.policy.Store(r)
			b.life, b.stop = context.WithCancel(t.Context())
			defer b.stop()
			inside, in := net.Pipe()
			there, here := net.Pipe()
			f := &flow{b: b, kind: "tcp", target: target{policy.Host{Addr: netip.MustParseAddr("93.184.216.34")}, tt.port}, addr: netip.MustParseAddr("93.184.216.34"), ruling: r, out: here}
			f.d = r.decide(f.target, f.addr).Decision
			f.in = &countedConn{Conn: in, ep: noEndpoint{conn: in}, f: f}
			ran := make(chan struct{})
			go func() { defer close(ran); f.run() }()
			arrived := make(chan []byte)
			go func() {
				all, _ := io.ReadAll(there)
				arrived <- all
			}()
			go func() {
				_, _ = inside.Write(tt.say)
				if tt.pass {
					inside.Close()
				}
			}()
			select {
			case all := <-arrived:
				if tt.pass != bytes.Equal(all, tt.say) || !tt.pass && len(all) > 0 {
					t.Errorf("%d of %d bytes arrived", len(all), len(tt.say))
				}
			case <-time.After(20 * time.Second):
				t.Fatal("it never ends")
			}
			<-ran
			if e := <-events; (e.Verdict == messages.Allowed) != tt.pass || !tt.pass && strings.Contains(string(tt.say), "denied") && !strings.Contains(e.Reason, "denied by rule 1") {
				t.Errorf("the event is %+v", e)
			}
		})
	}
}
