package gateway_test

import (
	"bufio"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// proxyPassword must be visible only to the proxy.
const proxyPassword = "canary-of-the-proxy"

// aProxy is an operator's proxy, which looks names up itself.
type aProxy struct {
	w  *world
	mu sync.Mutex
	to []string // requested hosts
}

func (p *aProxy) dial(host string, port uint16) (net.Conn, error) {
	p.mu.Lock()
	p.to = append(p.to, net.JoinHostPort(host, strconv.Itoa(int(port))))
	p.mu.Unlock()
	var c net.Conn
	var err error
	p.w.outside.do(func() { c, err = net.Dial("tcp", net.JoinHostPort(p.w.good.String(), strconv.Itoa(int(port)))) })
	return c, err
}

func (p *aProxy) asked() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.to, " ")
}

func join(a net.Conn, ar io.Reader, b net.Conn) {
	defer b.Close()
	go func() {
		_, _ = io.Copy(b, ar)
		_ = b.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(a, b)
}

// connect speaks HTTP.
func (p *aProxy) connect(c net.Conn) {
	in := bufio.NewReader(c)
	r, err := http.ReadRequest(in)
	if err != nil {
		return
	}
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+proxyPassword))
	if r.Method != http.MethodConnect || r.Header.Get("Proxy-Authorization") != want {
		_, _ = io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
		return
	}
	host, port, _ := net.SplitHostPort(r.Host)
	n, _ := strconv.ParseUint(port, 10, 16)
	out, err := p.dial(host, uint16(n))
	if err != nil {
		return
	}
	_, _ = io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
	join(c, in, out)
}

// socks speaks SOCKS5 (RFC 1928) with a name and a password (RFC 1929).
func (p *aProxy) socks(c net.Conn) {
	in := bufio.NewReader(c)
	take := func(n int) []byte {
		b := make([]byte, n)
		_, _ = io.ReadFull(in, b)
		return b
	}
	head := take(2)
	if head[0] != 5 || !strings.Contains(string(take(int(head[1]))), "\x02") {
		return
	}
	_, _ = c.Write([]byte{5, 2})
	user := string(take(int(take(2)[1])))
	if password := string(take(int(take(1)[0]))); user != "user" || password != proxyPassword {
		_, _ = c.Write([]byte{1, 1})
		return
	}
	_, _ = c.Write([]byte{1, 0})
	var host string
	switch request := take(4); { // connect to a name or to an IPv4 address
	case request[1] == 1 && request[3] == 3:
		host = string(take(int(take(1)[0])))
	case request[1] == 1 && request[3] == 1:
		host = net.IP(take(net.IPv4len)).String()
	default:
		_, _ = c.Write([]byte{5, 8, 0, 1, 0, 0, 0, 0, 0, 0})
		return
	}
	out, err := p.dial(host, binary.BigEndian.Uint16(take(2)))
	if err != nil {
		return
	}
	_, _ = c.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
	join(c, in, out)
}

// TestProxies connects through the operator's proxy. The proxy gets names, not
// addresses, and its password is not revealed.
func TestProxies(t *testing.T) {
	for _, scheme := range []string{"http", "socks5"} {
		t.Run(scheme, func(t *testing.T) {
			w := newWorld(t) // its name server knows no names
			p := &aProxy{w: w}
			w.outside.do(func() {
				l := w.listen(w.good, 3128)
				if scheme == "http" {
					w.each(l, p.connect)
				} else {
					w.each(l, p.socks)
				}
			})
			settings := w.settings()
			settings.Proxy = fmt.Sprintf("%s://user:%s@%s:3128", scheme, proxyPassword, w.good)
			r := newRigIn(t, settings, w.outside.do)
			id := sandbox.ID("behind-" + scheme)
			b := r.sandbox(id, profile(
				sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"plain.test:8080", "passed.test"}},
				sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"api.test"}, Paths: []string{"/ok/**"}},
			))
			for script, want := range map[string]string{
				"curl -sS http://plain.test:8080/a":      `"URI":"/a"`,
				"curl -sSk https://passed.test/b":        `"URI":"/b"`,
				"curl -sS https://api.test/ok/c":         `"URI":"/ok/c"`,
				"curl -sS https://api.test/forbidden":    "egress_denied",
				"curl -sS --max-time 9 http://evil.test": "Could not resolve host",
				"curl -sS --max-time 9 http://10.0.0.1":  "Couldn't connect",
			} {
				if out, _ := b.sh(script); !strings.Contains(out, want) {
					t.Errorf("%s: %s", script, out)
				}
			}
			if _, violations, asked := w.taken(); len(violations)+len(asked) > 0 {
				t.Errorf("%s; the name server was asked for %s", violations, asked)
			}
			for _, host := range []string{"plain.test:8080", "passed.test:443", "api.test:443"} {
				if !strings.Contains(p.asked(), host) {
					t.Errorf("the proxy was asked for %s, and not for %s", p.asked(), host)
				}
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			if said := fmt.Sprintf("%+v", r.events[id]); strings.Contains(said, proxyPassword) {
				t.Errorf("an event has the password: %s", said)
			}
		})
	}
}
