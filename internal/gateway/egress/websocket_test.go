package egress

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"testing"

	"github.com/coder/websocket"
)

// TestFrames checks what passes for a WebSocket, in pieces of every size.
func TestFrames(t *testing.T) {
	long := append([]byte{0x82, 126, 0x01, 0x00}, make([]byte, 256)...)
	huge := append([]byte{0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0}, make([]byte, 1<<16)...)
	for _, tt := range []struct {
		name   string
		frames frames
		in     []byte
		ok     bool
	}{
		{"text", frames{}, []byte("\x81\x02hi"), true},
		{"empty", frames{}, []byte("\x81\x00\x81\x00"), true},
		{"two bytes of length", frames{}, long, true},
		{"eight bytes of length", frames{}, huge, true},
		{"fragments around a ping", frames{}, []byte("\x01\x01a\x89\x00\x80\x01b"), true},
		{"masked", frames{masked: true}, []byte("\x81\x82abcdhi\x88\x80abcd"), true},
		{"compressed", frames{extended: true}, []byte("\xc1\x02hi"), true},
		{"compressed, not agreed upon", frames{}, []byte("\xc1\x02hi"), false},
		{"masked by a server", frames{}, []byte("\x81\x82abcdhi"), false},
		{"not masked by a client", frames{masked: true}, []byte("\x81\x02hi"), false},
		{"an unknown kind", frames{}, []byte("\x83\x00"), false},
		{"an unknown kind of control", frames{}, []byte("\x8b\x00"), false},
		{"a control frame in fragments", frames{}, []byte("\x09\x00"), false},
		{"a control frame with a long length", frames{}, []byte("\x89\x7e\x00\x80"), false},
		{"a continuation of nothing", frames{}, []byte("\x80\x00"), false},
		{"a message inside another", frames{}, []byte("\x01\x01a\x81\x01b"), false},
		{"something behind the close", frames{}, []byte("\x88\x00\x81\x00"), false},
		{"a length beyond all bounds", frames{}, []byte("\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff"), false},
		{"HTTP", frames{extended: true, masked: true}, []byte("GET / HTTP/1.1\r\n\r\n"), false},
		{"HTTP/2", frames{extended: true, masked: true}, []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), false},
		{"HTTP/2 of a server", frames{extended: true}, []byte("\x00\x00\x12\x04\x00\x00\x00\x00\x00"), false},
	} {
		for size := 1; size <= len(tt.in); size = size*2 + 1 {
			f := tt.frames
			var err error
			for in := bytes.NewBuffer(tt.in); in.Len() > 0 && err == nil; {
				err = f.check(in.Next(size))
			}
			if (err == nil) != tt.ok {
				t.Errorf("%s in pieces of %d: %v", tt.name, size, err)
			}
		}
	}
}

// TestFramesOfALibrary checks that what a library sends passes in both
// directions, compressed messages of any length included.
func TestFramesOfALibrary(t *testing.T) {
	there, here := net.Pipe()
	l := &oneConn{c: make(chan net.Conn, 1), done: make(chan struct{})}
	l.c <- there
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionContextTakeover})
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, b) != nil {
				return
			}
		}
	})}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	checked := &webSocket{}
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return here, nil }}
	defer transport.CloseIdleConnections()
	through := roundTripper(func(r *http.Request) (*http.Response, error) {
		if !asksForWebSocket(r) {
			t.Error("the library's handshake is not taken for one")
		}
		q := &request{}
		q.offer(r, true)
		resp, err := transport.RoundTrip(r)
		if err == nil {
			err = q.upgrade(resp)
			checked, _ = resp.Body.(*webSocket)
		}
		return resp, err
	})
	c, _, err := websocket.Dial(t.Context(), "ws://good.test/", &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: through}, CompressionMode: websocket.CompressionContextTakeover,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	for _, n := range []int{0, 1, 125, 126, 1000, 30000} {
		want := bytes.Repeat([]byte("x"), n)
		if err := c.Write(t.Context(), websocket.MessageBinary, want); err != nil {
			t.Fatal(err)
		}
		if _, got, err := c.Read(t.Context()); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes: got %d, %v", n, len(got), err)
		}
	}
	if !checked.toHost.extended {
		t.Error("nothing was compressed")
	}
	if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// FuzzFrames checks that the result does not depend on how bytes are split, and
// that little of a header is buffered.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x81\x82abcdhi\x88\x80abcd"), true, false)
	f.Add([]byte("\x82\x7e\x01\x00"), false, true)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), true, true)
	f.Fuzz(func(t *testing.T, in []byte, masked, extended bool) {
		whole := frames{masked: masked, extended: extended}
		pieces := whole
		want := whole.check(in)
		var got error
		for i := 0; i < len(in) && got == nil; i++ {
			if got = pieces.check(in[i : i+1]); len(pieces.head) > 14 {
				t.Fatalf("%d bytes of a header are kept", len(pieces.head))
			}
		}
		if got != want {
			t.Errorf("in one piece %v, byte by byte %v", want, got)
		}
	})
}
