// Package view opens streams of sandboxes for viewers: it checks their tokens,
// copies bytes, and enforces what they may do.
package view

import (
	"encoding/binary"
	"errors"
	"io"
)

// errRFB means that a client does not speak RFB 3.7 or 3.8, or sends a message
// of an unknown type.
var errRFB = errors.New("the viewer sends what the protocol of desktops (RFB 3.8) does not have")

// maxClipboard is the maximum size of a clipboard message that is dropped.
const maxClipboard = 16 << 20

// watchOnly copies what an RFB client sends, without keyboard, pointer,
// clipboard, power and size messages. A message of an unknown type is an error,
// because its length is unknown.
func watchOnly(to io.Writer, from io.Reader) error {
	if err := greeting(to, from); err != nil {
		return err
	}
	for {
		if err := clientMessage(to, from); err != nil {
			return err
		}
	}
}

// greeting copies version, security type, the response to a password challenge
// and ClientInit.
func greeting(to io.Writer, from io.Reader) error {
	version := make([]byte, 12)
	if _, err := io.ReadFull(from, version); err != nil {
		return err
	}
	if v := string(version); v != "RFB 003.007\n" && v != "RFB 003.008\n" {
		return errRFB
	}
	if _, err := to.Write(version); err != nil {
		return err
	}
	kind := make([]byte, 1)
	if _, err := io.ReadFull(from, kind); err != nil {
		return err
	}
	rest := 1 // ClientInit
	switch kind[0] {
	case 1: // none
	case 2: // a password
		rest += 16
	default:
		return errRFB
	}
	if _, err := to.Write(kind); err != nil {
		return err
	}
	_, err := io.CopyN(to, from, int64(rest))
	return err
}

// head are the lengths of the fixed parts of client messages, and whether they
// are for viewers.
var head = map[byte]struct {
	size int
	pass bool
}{
	0: {20, true}, 2: {4, true}, 3: {10, true}, 4: {8, false}, 5: {6, false}, 6: {8, false},
	150: {10, true}, 248: {9, true}, 250: {4, false}, 251: {8, false}, 255: {12, false},
}

func clientMessage(to io.Writer, from io.Reader) error {
	var buf [20]byte
	if _, err := io.ReadFull(from, buf[:1]); err != nil {
		return err
	}
	h, ok := head[buf[0]]
	if !ok {
		return errRFB
	}
	m := buf[:h.size]
	if _, err := io.ReadFull(from, m[1:]); err != nil {
		return err
	}
	var more int64
	switch m[0] {
	case 2:
		more = 4 * int64(binary.BigEndian.Uint16(m[2:]))
	case 6:
		more = int64(int32(binary.BigEndian.Uint32(m[4:])))
		more = max(more, -more) // negative: the extended clipboard
	case 248:
		more = int64(m[8])
	case 251:
		more = 16 * int64(m[6])
	case 255:
		if m[1] != 0 {
			return errRFB
		}
	}
	if more > maxClipboard {
		return errRFB
	}
	if !h.pass {
		to = io.Discard
	}
	if _, err := to.Write(m); err != nil {
		return err
	}
	_, err := io.CopyN(to, from, more)
	return err
}
