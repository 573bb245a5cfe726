package egress

import (
	"crypto/sha1" //nolint:gosec // what RFC 6455 uses to tell WebSocket servers from others
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// asksForWebSocket reports whether a request is a WebSocket handshake (RFC
// 6455) that offers no other protocol.
func asksForWebSocket(r *http.Request) bool {
	key, err := base64.StdEncoding.DecodeString(only(r.Header, "Sec-Websocket-Key"))
	return r.Method == http.MethodGet && r.ProtoMajor == 1 && r.ProtoAtLeast(1, 1) && r.ContentLength == 0 &&
		httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade") &&
		strings.EqualFold(only(r.Header, "Upgrade"), "websocket") &&
		only(r.Header, "Sec-Websocket-Version") == "13" && err == nil && len(key) == 16
}

// only returns the value of a header that occurs exactly once, and otherwise
// "".
func only(h http.Header, name string) string {
	if all := h[name]; len(all) == 1 {
		return strings.TrimSpace(all[0])
	}
	return ""
}

// offer removes from a request all upgrade protocols except the allowed one.
func (q *request) offer(r *http.Request, webSocket bool) {
	r.Header.Del("Http2-Settings")
	r.Header.Del("Upgrade")
	if webSocket {
		r.Header.Set("Upgrade", "websocket")
		q.key = only(r.Header, "Sec-Websocket-Key")
	}
}

// errUpgrade means that a host switched to a protocol other than WebSocket.
var errUpgrade = errors.New("the host switched to a protocol that the request did not ask for")

// upgrade verifies that the host completed a WebSocket handshake.
func (q *request) upgrade(r *http.Response) error {
	sum := sha1.Sum([]byte(q.key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // see above
	conn, ok := r.Body.(io.ReadWriteCloser)
	if q.key == "" || !ok || !strings.EqualFold(only(r.Header, "Upgrade"), "websocket") ||
		only(r.Header, "Sec-Websocket-Accept") != base64.StdEncoding.EncodeToString(sum[:]) {
		return errUpgrade
	}
	r.Header.Set("Connection", "Upgrade")
	// Extensions may change the reserved bits of frames.
	extended := len(r.Header["Sec-Websocket-Extensions"]) > 0
	r.Body = &webSocket{
		ReadWriteCloser: conn,
		fromHost:        frames{extended: extended},
		toHost:          frames{extended: extended, masked: true},
	}
	return nil
}

// webSocket is a connection that carries WebSocket frames in both directions
// and fails on other data.
type webSocket struct {
	io.ReadWriteCloser
	fromHost, toHost frames
}

func (w *webSocket) Read(p []byte) (int, error) {
	n, err := w.ReadWriteCloser.Read(p)
	if bad := w.fromHost.check(p[:n]); bad != nil {
		return 0, bad
	}
	return n, err
}

func (w *webSocket) Write(p []byte) (int, error) {
	if err := w.toHost.check(p); err != nil {
		return 0, err
	}
	return w.ReadWriteCloser.Write(p)
}

// errNoWebSocket is the error of a connection that does not carry frames.
var errNoWebSocket = errors.New("the connection does not speak WebSocket")

// frames validates one direction of a WebSocket (RFC 6455, section 5.2).
type frames struct {
	extended bool   // an extension may use the reserved bits
	masked   bool   // as client frames are
	begun    bool   // a message has not ended
	closed   bool   // a close frame was seen
	head     []byte // of the current frame
	left     uint64 // remaining bytes of its payload
}

// check validates the next bytes.
func (f *frames) check(b []byte) error {
	for len(b) > 0 {
		if f.left > 0 {
			n := min(f.left, uint64(len(b)))
			f.left -= n
			b = b[n:]
			continue
		}
		f.head = append(f.head, b[0])
		b = b[1:]
		if err := f.header(); err != nil {
			return err
		}
	}
	return nil
}

const (
	opText, opBinary, opClose, opPong = 1, 2, 8, 10

	bitFinal, bitsReserved, bitsOpcode, bitMask = 0x80, 0x70, 0x0f, 0x80
)

// header parses the header of a frame once all of it has arrived.
func (f *frames) header() error {
	first, op := f.head[0], f.head[0]&bitsOpcode
	control, last := op >= opClose, first&bitFinal != 0
	switch {
	case f.closed, op > opBinary && op < opClose, op > opPong, control && !last,
		op == 0 && !f.begun, (op == opText || op == opBinary) && f.begun, !f.extended && first&bitsReserved != 0:
		return errNoWebSocket
	case len(f.head) < 2:
		return nil
	}
	second, size := f.head[1], 2
	length := uint64(second &^ bitMask)
	if second&bitMask != 0 != f.masked || control && length > 125 {
		return errNoWebSocket
	}
	switch length {
	case 126:
		size += 2
	case 127:
		size += 8
	}
	whole := size
	if f.masked {
		whole += 4
	}
	if len(f.head) < whole {
		return nil
	}
	switch size {
	case 4:
		length = uint64(binary.BigEndian.Uint16(f.head[2:]))
	case 10:
		if length = binary.BigEndian.Uint64(f.head[2:]); length>>63 != 0 {
			return errNoWebSocket
		}
	}
	if !control {
		f.begun = !last
	}
	f.closed = op == opClose
	f.head, f.left = f.head[:0], length
	return nil
}
