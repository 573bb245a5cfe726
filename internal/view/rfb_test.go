package view

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

const hello = "RFB 003.008\n\x01\x01"

func TestViewersCannotAct(t *testing.T) {
	update := []byte{3, 1, 0, 0, 0, 0, 1, 0, 1, 0}
	acts := map[string][]byte{
		"key": {4, 1, 0, 0, 0, 0, 0, 65}, "pointer": {5, 1, 0, 1, 0, 1}, "clipboard": append([]byte{6, 0, 0, 0, 0, 0, 0, 2}, "hi"...),
		"extended clipboard": append([]byte{6, 0, 0, 0, 255, 255, 255, 252}, "abcd"...), "power": {250, 0, 1, 2},
		"size": append([]byte{251, 0, 3, 0, 3, 0, 1, 0}, make([]byte, 16)...), "qemu key": {255, 0, 0, 1, 0, 0, 0, 65, 0, 0, 0, 30},
	}
	for name, act := range acts {
		var got bytes.Buffer
		in := append(append(append([]byte(hello), update...), act...), update...)
		err := newWatchOnly().up(&got, bytes.NewReader(in))
		if want := hello + string(update) + string(update); !errors.Is(err, io.EOF) || got.String() != want {
			t.Errorf("%s: passed %q, %v", name, got.String(), err)
		}
	}
	for name, in := range map[string]string{
		"version 3.3": "RFB 003.003\n\x01", "another protocol": "GET / HTTP/1.1\r\n\r\n", "security type": "RFB 003.008\n\x13\x01",
		"type 7": hello + "\x07\x00", "qemu audio": hello + "\xff\x01" + "0123456789", "huge clipboard": hello + "\x06\x00\x00\x00\x7f\xff\xff\xff",
	} {
		var got bytes.Buffer
		if err := newWatchOnly().up(&got, bytes.NewReader([]byte(in))); !errors.Is(err, errRFB) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzWatchOnly checks that whatever a viewer sends, only messages of permitted
// types pass: what passed passes again unchanged.
func FuzzWatchOnly(f *testing.F) {
	f.Add([]byte(hello + "\x05\x01\x00\x01\x00\x01\x03\x00\x00\x00\x00\x00\x00\x01\x00\x01"))
	f.Add([]byte(hello + "\x02\x00\x00\x01\x00\x00\x00\x07\x06\x00\x00\x00\x80\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var once, twice bytes.Buffer
		_ = newWatchOnly().up(&once, bytes.NewReader(in))
		_ = newWatchOnly().up(&twice, bytes.NewReader(once.Bytes()))
		if !bytes.Equal(once.Bytes(), twice.Bytes()) {
			t.Errorf("passed %q, then %q", once.Bytes(), twice.Bytes())
		}
	})
}

// served is what a server sends: its greeting, and then messages.
func served(messages ...string) string {
	all := "RFB 003.008\n\x01\x01" + "\x00\x00\x00\x00" + "\x05\x00\x03\x20" + "\x20\x18\x00\x01\x00\xff\x00\xff\x00\xff\x10\x08\x00\x00\x00\x00" + "\x00\x00\x00\x04name"
	for _, m := range messages {
		all += m
	}
	return all
}

// shows returns what a viewer receives that has chosen no password.
func shows(sent string) (string, error) {
	var got bytes.Buffer
	w := newWatchOnly()
	w.choose(false, securityNone)
	err := w.down(&got, iotest.OneByteReader(strings.NewReader(sent)))
	return got.String(), err
}

// A clipboard may have a password that the agent, or a person in control, copied.
func TestAttackViewersDoNotReadTheClipboard(t *testing.T) {
	const (
		copied   = "\x03\x00\x00\x00\x00\x00\x00\x06secret"
		extended = "\x03\x00\x00\x00\xff\xff\xff\xf8\x10\x00\x00\x01abcd"
	)
	rects := func(n string, all ...string) string { return "\x00\x00" + n + strings.Join(all, "") }
	const at = "\x00\x00\x00\x00" // and then width, height and encoding
	pictures := map[string]string{
		"raw": rects("\x00\x01", at+"\x00\x02\x00\x01\x00\x00\x00\x00"+"\x03\x00\x00\x00\x00\x00\x00\x06"), "copy": rects("\x00\x01", at+"\x00\x02\x00\x01\x00\x00\x00\x01"+"\x03\x00\x00\x00"),
		"ZRLE": rects("\x00\x01", at+"\x00\x02\x00\x01\x00\x00\x00\x10"+"\x00\x00\x00\x03"+"\x03\x00\x00"), "zlib": rects("\x00\x01", at+"\x00\x02\x00\x01\x00\x00\x00\x06"+"\x00\x00\x00\x01"+"\x03"),
		"cursor": rects("\x00\x01", at+"\x00\x01\x00\x02\xff\xff\xff\x11"+"\x03\x03\x03\x03\x03\x03\x03\x03"+"\x03\x03"), "size": rects("\x00\x01", at+"\x00\x02\x00\x01\xff\xff\xff\x21"),
		"sizes": rects("\x00\x01", at+"\x00\x02\x00\x01\xff\xff\xfe\xcc"+"\x01\x00\x00\x00"+strings.Repeat("\x03", 16)), "name": rects("\x00\x01", at+"\x00\x00\x00\x00\xff\xff\xfe\xcd"+"\x00\x00\x00\x02\x03\x03"),
		"last": rects("\xff\xff", at+"\x00\x00\x00\x00\xff\xff\xff\x20"), "bell": "\x02", "end of updates": "\x96", "fence": "\xf8\x00\x00\x00\x00\x00\x00\x00\x02\x03\x03", "power": "\xfa\x00\x01\x01",
		"colours": "\x01\x00\x00\x00\x00\x01\x03\x03\x03\x03\x03\x03",
	}
	for name, picture := range pictures {
		got, err := shows(served(copied, picture, extended, picture, copied))
		if want := served(picture, picture); !errors.Is(err, io.EOF) || got != want {
			t.Errorf("%s: the viewer received %q, %v; want %q", name, got, err, want)
		}
	}
	for name, m := range map[string]string{
		"a message of another type": "\x07secret", "an encoding nobody asked for": rects("\x00\x01", at+"\x00\x02\x00\x01\x00\x00\x00\x07"+"secret"), "a huge clipboard": "\x03\x00\x00\x00\x7f\xff\xff\xffsecret",
	} {
		if got, err := shows(served(m)); !errors.Is(err, errRFB) || strings.Contains(got, "secret") {
			t.Errorf("%s: the viewer received %q, %v", name, got, err)
		}
	}
	for name, refused := range map[string]string{"no security type": "RFB 003.008\n\x00\x00\x00\x00\x02no", "refused": "RFB 003.008\n\x01\x01\x00\x00\x00\x01\x00\x00\x00\x02no"} {
		if got, err := shows(refused + copied); !errors.Is(err, io.EOF) || got != refused {
			t.Errorf("%s: the viewer received %q, %v", name, got, err)
		}
	}
}

// Viewers ask for encodings whose length is known, and for one size of pixels.
func TestEncodingsOfViewers(t *testing.T) {
	var got bytes.Buffer
	asked := "\x02\x00\x00\x07" + "\x00\x00\x00\x01" + "\x00\x00\x00\x07" + "\x00\x00\x00\x10" + "\xc0\xa1\xe5\xce" + "\xff\xff\xff\x02" + "\xff\xff\xfe\xfe" + "\xff\xff\xff\x11"
	want := "\x02\x00\x00\x04" + "\x00\x00\x00\x01" + "\x00\x00\x00\x10" + "\xff\xff\xff\x02" + "\xff\xff\xff\x11"
	if err := newWatchOnly().up(&got, strings.NewReader(hello+asked)); !errors.Is(err, io.EOF) || got.String() != hello+want {
		t.Errorf("passed %q, %v; want %q", got.String(), err, hello+want)
	}
	pixel := func(bits byte) string { return "\x00\x00\x00\x00" + string(bits) + strings.Repeat("\x00", 15) }
	const request = "\x03\x00\x00\x00\x00\x00\x00\x01\x00\x01"
	for name, c := range map[string]struct {
		sent string
		err  error
	}{
		"before a picture": {pixel(16) + pixel(32) + request + pixel(32), io.EOF}, "after one": {pixel(32) + request + pixel(16), errRFB}, "of no size": {pixel(24), errRFB},
	} {
		if err := newWatchOnly().up(io.Discard, strings.NewReader(hello+c.sent)); !errors.Is(err, c.err) {
			t.Errorf("pixels %s: %v, want %v", name, err, c.err)
		}
	}
}

// FuzzShow checks that whatever a server sends, only messages of permitted types
// pass: what passed passes again unchanged.
func FuzzShow(f *testing.F) {
	f.Add([]byte(served("\x03\x00\x00\x00\x00\x00\x00\x02hi", "\x02")))
	f.Fuzz(func(t *testing.T, in []byte) {
		once, _ := shows(string(in))
		if twice, _ := shows(once); once != twice {
			t.Errorf("passed %q, then %q", once, twice)
		}
	})
}
