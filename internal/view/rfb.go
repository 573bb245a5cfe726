// Package view opens streams of sandboxes for viewers: it checks their tokens,
// copies bytes, and enforces what they may do.
package view

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"sync/atomic"
)

// errRFB means that a side does not speak RFB 3.7 or 3.8, or sends a message of an
// unknown type.
var errRFB = errors.New("the viewer sends what the protocol of desktops (RFB 3.8) does not have")

// maxClipboard is the maximum size of a clipboard message that is dropped.
const maxClipboard = 16 << 20

// The security types of RFB that viewers may choose.
const (
	securityNone     = 1
	securityPassword = 2
)

// Messages of RFB with the same number in both directions.
const (
	cutText = 3 // of the server; a request for pictures of the viewer
	fence   = 248
	power   = 250
)

// watchOnly is an RFB connection that only shows. The keyboard, the pointer and
// the clipboard pass in no direction: a clipboard may have a password.
type watchOnly struct {
	chosen   chan struct{} // closed when the viewer has chosen, or has left
	once     sync.Once
	security byte // chosen
	old      bool // RFB 3.7

	pixel atomic.Int32 // bytes
	asked atomic.Bool  // for pictures
}

func newWatchOnly() *watchOnly { return &watchOnly{chosen: make(chan struct{})} }

func (w *watchOnly) choose(old bool, security byte) {
	w.once.Do(func() {
		w.old, w.security = old, security
		close(w.chosen)
	})
}

// up copies what an RFB client sends, without keyboard, pointer, clipboard, power
// and size messages. A message of an unknown type is an error, because its length
// is unknown.
func (w *watchOnly) up(to io.Writer, from io.Reader) error {
	defer w.choose(false, 0)
	if err := w.greeting(to, from); err != nil {
		return err
	}
	for {
		if err := w.clientMessage(to, from); err != nil {
			return err
		}
	}
}

// greeting copies version, security type, the response to a password challenge
// and ClientInit.
func (w *watchOnly) greeting(to io.Writer, from io.Reader) error {
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
	case securityNone:
	case securityPassword:
		rest += 16
	default:
		return errRFB
	}
	w.choose(string(version) == "RFB 003.007\n", kind[0])
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
	150: {10, true}, fence: {9, true}, power: {4, false}, 251: {8, false}, 255: {12, false},
}

func (w *watchOnly) clientMessage(to io.Writer, from io.Reader) error {
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
	case 0:
		if err := w.setPixel(m[4]); err != nil {
			return err
		}
	case 2:
		return setEncodings(to, from, int(binary.BigEndian.Uint16(m[2:])))
	case 3, 150:
		w.asked.Store(true)
	case 6:
		more = cutLength(m[4:])
	case fence:
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

// cutLength is the length of a clipboard; that of the extended one is negative.
func cutLength(b []byte) int64 {
	n := int64(int32(binary.BigEndian.Uint32(b)))
	return max(n, -n)
}

// setPixel sets the size of a pixel. After the first picture was asked for, it is
// not known which of its sizes a picture has.
func (w *watchOnly) setPixel(bits byte) error {
	n := int32(bits / 8)
	if n != 1 && n != 2 && n != 4 || w.asked.Load() && n != w.pixel.Load() {
		return errRFB
	}
	w.pixel.Store(n)
	return nil
}

// Encodings of rectangles, and what is sent as one.
const (
	raw                 = 0
	copyRect            = 1
	zlib                = 6
	zrle                = 16
	desktopSize         = -223
	lastRect            = -224
	cursor              = -239
	desktopName         = -307
	extendedDesktopSize = -308
	fences              = -312
	continuousUpdates   = -313
	fastest, smallest   = -256, -247 // levels of compression
)

// setEncodings copies the encodings that viewers may ask for: those whose
// length is known without decoding them. Raw is always possible.
func setEncodings(to io.Writer, from io.Reader, n int) error {
	m := []byte{2, 0, 0, 0}
	var one [4]byte
	for range n {
		if _, err := io.ReadFull(from, one[:]); err != nil {
			return err
		}
		e := int32(binary.BigEndian.Uint32(one[:]))
		switch e {
		case raw, copyRect, zlib, zrle, desktopSize, lastRect, cursor, desktopName, extendedDesktopSize, fences, continuousUpdates:
		default:
			if e < fastest || e > smallest {
				continue
			}
		}
		m = append(m, one[:]...)
	}
	binary.BigEndian.PutUint16(m[2:], uint16(len(m)/4-1))
	_, err := to.Write(m)
	return err
}

// down copies what an RFB server sends, without the clipboard.
func (w *watchOnly) down(to io.Writer, from io.Reader) error {
	s := shower{w: w, to: bufio.NewWriterSize(to, 64<<10)}
	s.from = bufio.NewReaderSize(flushing{s.to, from}, 64<<10)
	err := s.greeting()
	for err == nil {
		err = s.message()
	}
	return errors.Join(err, s.to.Flush())
}

// flushing shows everything before it waits for more.
type flushing struct {
	to   *bufio.Writer
	from io.Reader
}

func (f flushing) Read(p []byte) (int, error) {
	if err := f.to.Flush(); err != nil {
		return 0, err
	}
	return f.from.Read(p)
}

// shower copies what a server sends.
type shower struct {
	w    *watchOnly
	to   *bufio.Writer
	from *bufio.Reader
	buf  [24]byte
}

// pass copies bytes, and take returns them, too. Nothing may read while it
// writes, because reading flushes what was written.
func (s *shower) pass(n int64) error {
	for n > 0 {
		if _, err := s.from.Peek(1); err != nil {
			return err
		}
		b, err := s.from.Peek(int(min(n, int64(s.from.Buffered()))))
		if err == nil {
			_, err = s.to.Write(b)
		}
		if err != nil {
			return err
		}
		n -= int64(len(b))
		_, _ = s.from.Discard(len(b)) // it is there
	}
	return nil
}

func (s *shower) take(n int) ([]byte, error) {
	b := s.buf[:n]
	if _, err := io.ReadFull(s.from, b); err != nil {
		return nil, err
	}
	_, err := s.to.Write(b)
	return b, err
}

// text copies what begins with its length.
func (s *shower) text() error {
	b, err := s.take(4)
	if err != nil {
		return err
	}
	return s.pass(int64(binary.BigEndian.Uint32(b)))
}

// last copies the reason why a connection ends.
func (s *shower) last() error {
	if err := s.text(); err != nil {
		return err
	}
	return io.EOF
}

// greeting copies what a server says until a viewer has been let in.
func (s *shower) greeting() error {
	if err := s.pass(12); err != nil {
		return err
	}
	kinds, err := s.take(1)
	if err != nil {
		return err
	}
	if kinds[0] == 0 {
		return s.last()
	}
	if err := s.pass(int64(kinds[0])); err != nil {
		return err
	}
	if err := s.to.Flush(); err != nil {
		return err
	}
	<-s.w.chosen
	switch s.w.security {
	case 0:
		return io.EOF
	case securityPassword:
		if err := s.pass(16); err != nil {
			return err
		}
	}
	if !s.w.old || s.w.security != securityNone {
		result, err := s.take(4)
		if err != nil {
			return err
		}
		if binary.BigEndian.Uint32(result) != 0 {
			if s.w.old {
				return io.EOF
			}
			return s.last()
		}
	}
	about, err := s.take(20)
	if err != nil {
		return err
	}
	s.w.pixel.CompareAndSwap(0, int32(about[4]/8)) // unless the viewer has chosen
	return s.text()
}

// message copies a message, unless it is for those who use the desktop.
func (s *shower) message() error {
	kind, err := s.from.ReadByte()
	if err != nil {
		return err
	}
	if kind == cutText {
		var m [7]byte
		if _, err := io.ReadFull(s.from, m[:]); err != nil {
			return err
		}
		n := cutLength(m[3:])
		if n > maxClipboard {
			return errRFB
		}
		_, err := io.CopyN(io.Discard, s.from, n)
		return err
	}
	if err := s.to.WriteByte(kind); err != nil {
		return err
	}
	switch kind {
	case 0:
		return s.update()
	case 1: // colours
		b, err := s.take(5)
		if err != nil {
			return err
		}
		return s.pass(6 * int64(binary.BigEndian.Uint16(b[3:])))
	case 2, 150: // a bell, and the end of continuous updates
		return nil
	case fence:
		b, err := s.take(8)
		if err != nil {
			return err
		}
		return s.pass(int64(b[7]))
	case power:
		return s.pass(3)
	}
	return errRFB
}

// update copies a picture, or parts of it.
func (s *shower) update() error {
	b, err := s.take(3)
	if err != nil {
		return err
	}
	n := int(binary.BigEndian.Uint16(b[1:]))
	for i := 0; i < n || n == 0xffff; i++ {
		last, err := s.rectangle()
		if err != nil || last {
			return err
		}
	}
	return nil
}

func (s *shower) rectangle() (last bool, err error) {
	b, err := s.take(12)
	if err != nil {
		return false, err
	}
	width, height := int64(binary.BigEndian.Uint16(b[4:])), int64(binary.BigEndian.Uint16(b[6:]))
	pixels := width * height * int64(s.w.pixel.Load())
	switch int32(binary.BigEndian.Uint32(b[8:])) {
	case raw:
		return false, s.pass(pixels)
	case copyRect:
		return false, s.pass(4)
	case zlib, zrle, desktopName:
		return false, s.text()
	case cursor:
		return false, s.pass(pixels + (width+7)/8*height)
	case desktopSize:
		return false, nil
	case extendedDesktopSize:
		b, err := s.take(4)
		if err != nil {
			return false, err
		}
		return false, s.pass(16 * int64(b[0]))
	case lastRect:
		return true, nil
	}
	return false, errRFB
}
