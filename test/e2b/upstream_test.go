//go:build e2b

package e2b

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// outsides numbers the addresses of the tests in this process.
var outsides atomic.Int32

// outside starts the servers that sandboxes use: a name server that knows one
// name, the web server of that name, and a SOCKS5 proxy that requires the
// password. Each uses its standard port, on an address of the loopback network.
// outside returns the environment in which programs find them.
func outside(t *testing.T) []string {
	t.Helper()
	at := fmt.Sprintf("127.77.%d.%d", os.Getpid()%250, outsides.Add(1))
	proxy := net.ParseIP(strings.Replace(at, "127.77.", "127.78.", 1)) // the client address that the web server sees
	names, err := net.ListenPacket("udp", at+":53")
	if err != nil {
		t.Fatalf("%v: these tests need to be run by root", err)
	}
	t.Cleanup(func() { names.Close() })
	go nameServer(names, net.ParseIP(at))
	web, err := net.Listen("tcp", at+":80")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintf(w, "%s by proxy: %v", r.Host, from == proxy.String())
	})}
	go func() { _ = server.Serve(web) }()
	t.Cleanup(func() { server.Close() })
	socks, err := net.Listen("tcp", at+":1080")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socks.Close() })
	go func() {
		for {
			c, err := socks.Accept()
			if err != nil {
				return
			}
			go serveSOCKS(c, proxy)
		}
	}()
	return []string{"E2B_TEST_OUTSIDE=" + at}
}

// resolving returns a command that runs another one with a different
// resolv.conf. Its name server resolves every name below domain to this
// machine, also for programs that do not resolve names themselves.
func resolving(t *testing.T) []string {
	t.Helper()
	at := fmt.Sprintf("127.77.%d.%d", os.Getpid()%250, outsides.Add(1))
	names, err := net.ListenPacket("udp", at+":53")
	if err != nil {
		t.Fatalf("%v: these tests need to be run by root", err)
	}
	t.Cleanup(func() { names.Close() })
	go nameServer(names, net.IPv4(127, 0, 0, 1))
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver "+at+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{"unshare", "--mount", "sh", "-c", `mount --bind "$0" /etc/resolv.conf && exec "$@"`, conf}
}

// nameServer knows named.test, all names below domain, and private.test, which
// is never allowed.
func nameServer(c net.PacketConn, a net.IP) {
	known := map[string]net.IP{"named.test.": a, "private.test.": net.IPv4(10, 1, 2, 3)}
	buf := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		m.Response, m.Additionals = true, nil
		q := m.Questions[0]
		ip, ok := known[strings.ToLower(q.Name.String())]
		if below := strings.HasSuffix(strings.ToLower(q.Name.String()), "."+domain+"."); below {
			ip, ok = a, true
		}
		switch {
		case !ok:
			m.RCode = dnsmessage.RCodeNameError
		case q.Type == dnsmessage.TypeA:
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}, Body: &dnsmessage.AResource{A: [4]byte(ip.To4())},
			}}
		}
		if out, err := m.Pack(); err == nil {
			_, _ = c.WriteTo(out, from)
		}
	}
}

// serveSOCKS serves one connection of a SOCKS5 client (RFC 1928, RFC 1929) with
// a password and an address. It connects from its own address.
func serveSOCKS(c net.Conn, own net.IP) {
	defer c.Close()
	in := bufio.NewReader(c)
	take := func(n int) []byte {
		b := make([]byte, n)
		_, _ = io.ReadFull(in, b)
		return b
	}
	say := func(b ...byte) { _, _ = c.Write(b) }
	if head := take(2); head[0] != 5 || !strings.Contains(string(take(int(head[1]))), "\x02") {
		return
	}
	say(5, 2)
	user := string(take(int(take(2)[1])))
	if given := string(take(int(take(1)[0]))); user != "me" || given != password {
		say(1, 1)
		return
	}
	say(1, 0)
	if request := take(4); request[1] != 1 || request[3] != 1 {
		say(5, 8, 0, 1, 0, 0, 0, 0, 0, 0)
		return
	}
	to := &net.TCPAddr{IP: take(net.IPv4len)}
	to.Port = int(binary.BigEndian.Uint16(take(2)))
	out, err := net.DialTCP("tcp", &net.TCPAddr{IP: own}, to)
	if err != nil {
		say(5, 5, 0, 1, 0, 0, 0, 0, 0, 0)
		return
	}
	defer out.Close()
	say(5, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	go func() {
		_, _ = io.Copy(out, in)
		_ = out.CloseWrite()
	}()
	_, _ = io.Copy(c, out)
}
