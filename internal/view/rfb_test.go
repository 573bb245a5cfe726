package view

import (
	"bytes"
	"errors"
	"io"
	"testing"
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
		err := watchOnly(&got, bytes.NewReader(in))
		if want := hello + string(update) + string(update); !errors.Is(err, io.EOF) || got.String() != want {
			t.Errorf("%s: passed %q, %v", name, got.String(), err)
		}
	}
	for name, in := range map[string]string{
		"version 3.3": "RFB 003.003\n\x01", "another protocol": "GET / HTTP/1.1\r\n\r\n", "security type": "RFB 003.008\n\x13\x01",
		"type 7": hello + "\x07\x00", "qemu audio": hello + "\xff\x01" + "0123456789", "huge clipboard": hello + "\x06\x00\x00\x00\x7f\xff\xff\xff",
	} {
		var got bytes.Buffer
		if err := watchOnly(&got, bytes.NewReader([]byte(in))); !errors.Is(err, errRFB) {
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
		_ = watchOnly(&once, bytes.NewReader(in))
		_ = watchOnly(&twice, bytes.NewReader(once.Bytes()))
		if !bytes.Equal(once.Bytes(), twice.Bytes()) {
			t.Errorf("passed %q, then %q", once.Bytes(), twice.Bytes())
		}
	})
}
