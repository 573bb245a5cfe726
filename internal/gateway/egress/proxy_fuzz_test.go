package egress

import (
	"bytes"
	"net"
	"testing"
)

// proxyAnswer is a connection that reads what a proxy said.
type proxyAnswer struct {
	net.Conn
	*bytes.Reader
}

func (p proxyAnswer) Read(b []byte) (int, error) { return p.Reader.Read(b) }

// FuzzProxyAnswer: of what a proxy answers to CONNECT, nothing behind the head is
// read, and only a final success lets the tunnel begin.
func FuzzProxyAnswer(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\n\r\nTLS", "HTTP/1.0 200\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 407 No\r\nContent-Length: 9\r\n\r\n",
		"HTTP/1.1 -200 x\r\n\r\n", "HTTP/1.1 99999999999999999999 x\r\n\r\n", "\r\n\r\n", "ICY 200 OK\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		conn := proxyAnswer{Reader: bytes.NewReader(in)}
		head, err := readHead(conn)
		end := bytes.Index(in, []byte("\r\n\r\n"))
		if read := len(in) - conn.Len(); end >= 0 && read > end+4 || read > 16<<10 {
			t.Errorf("%d bytes were read of a head of %d", read, end+4)
		}
		if err != nil || !head.ok {
			return
		}
		if end < 0 || head.status < 200 || head.status > 299 || !bytes.HasPrefix(in, []byte("HTTP/")) {
			t.Errorf("%q is %+v", in, head)
		}
	})
}
