package daemon_test

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/coder/websocket"
)

// Messages of a VNC server and its viewer, up to the first that is no greeting.
const (
	rfbVersion, rfbKinds, rfbResult = "RFB 003.008\n", "\x01\x01", "\x00\x00\x00\x00"
	rfbHello                        = rfbVersion + "\x01\x01" // of the viewer: version, no password, shared
	rfbCopied, rfbBell              = "\x03\x00\x00\x00\x00\x00\x00\x06secret", "\x02"
)

// rfbAbout is what a server says about its display.
func rfbAbout(width, height uint16) string {
	size := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, width), height)
	return string(size) + "\x20\x18\x00\x01\x00\xff\x00\xff\x00\xff\x10\x08\x00\x00\x00\x00" + "\x00\x00\x00\x04name"
}

// vnc is a VNC server of a display. It tells every viewer the size and what was
// copied, and rings a bell.
type vnc struct {
	port          string
	mu            sync.Mutex
	width, height uint16
	viewers       map[net.Conn]bool
}

func newVNC(t *testing.T, width, height uint16) *vnc {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &vnc{width: width, height: height, viewers: map[net.Conn]bool{}}
	_, d.port, _ = net.SplitHostPort(l.Addr().String())
	t.Cleanup(func() {
		_ = l.Close()
		d.resize(width, height)
	})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go d.serve(c)
		}
	}()
	return d
}

func (d *vnc) serve(c net.Conn) {
	defer c.Close()
	d.mu.Lock()
	d.viewers[c] = true
	about := rfbAbout(d.width, d.height)
	d.mu.Unlock()
	for _, part := range []struct {
		say  string
		hear int64 // bytes, after that
	}{{rfbVersion, 12}, {rfbKinds, 1}, {rfbResult, 1}, {about + rfbCopied + rfbBell, 1 << 30}} {
		if _, err := io.WriteString(c, part.say); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, c, part.hear); err != nil {
			return
		}
	}
}

// resize ends the display, with its viewers, and starts one of another size.
func (d *vnc) resize(width, height uint16) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.width, d.height = width, height
	for c := range d.viewers {
		_ = c.Close()
	}
	clear(d.viewers)
}

// watches opens a desktop, and expects its size and, only for those in control,
// what was copied there.
func (v *viewers) watches(d *vnc, mode string, width, height uint16) *websocket.Conn {
	v.t.Helper()
	v.port = d.port
	s := v.open("acme", "desktop", mode)
	ws, err := v.socket(s.URL, s.Token, "")
	if err != nil {
		v.t.Fatal(err)
	}
	if err := ws.Write(v.t.Context(), websocket.MessageBinary, []byte(rfbHello)); err != nil {
		v.t.Fatal(err)
	}
	want := rfbVersion + rfbKinds + rfbResult + rfbAbout(width, height)
	if mode == "control" {
		want += rfbCopied
	}
	want += rfbBell
	var all []byte
	for len(all) < len(want) {
		_, part, err := ws.Read(v.t.Context())
		if err != nil {
			v.t.Fatalf("%s: received %q, %v; want %q", mode, all, err, want)
		}
		all = append(all, part...)
	}
	if string(all) != want {
		v.t.Errorf("%s: received %q, want %q", mode, all, want)
	}
	return ws
}

// Two desktops live at once, each with those who watch and one in control. Each
// viewer gets the size of its own, and what was copied only in control. Another
// size is down, then up: viewers are told the end, and the next see the new size.
// RB-69.
func TestLivingDesktops(t *testing.T) {
	v := newViewing(t)
	one, two := newVNC(t, 1280, 800), newVNC(t, 800, 600)
	first := v.watches(one, "view", 1280, 800)
	second := v.watches(two, "view", 800, 600)
	v.watches(one, "control", 1280, 800)
	v.watches(two, "control", 800, 600)
	one.resize(1920, 1080)
	if _, part, err := first.Read(t.Context()); err == nil {
		t.Errorf("after the end of its display, a viewer received %q", part)
	}
	v.watches(one, "view", 1920, 1080)
	v.watches(one, "control", 1920, 1080)
	v.watches(two, "view", 800, 600)
	two.resize(1024, 768)
	if _, part, err := second.Read(t.Context()); err == nil {
		t.Errorf("after the end of the other display, a viewer received %q", part)
	}
	v.watches(two, "control", 1024, 768)
}
