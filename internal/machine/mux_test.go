package machine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// pair are two sides whose messages go through deliver, which may lose them or
// deliver them twice.
type pair struct {
	near, far *Mux
	accepted  chan *Stream
}

func newPair(t *testing.T, deliver func(toFar bool, send func())) *pair {
	t.Helper()
	p := &pair{accepted: make(chan *Stream, 300)}
	type message struct {
		id   string
		data []byte
	}
	toFar, toNear := make(chan message, 1<<14), make(chan message, 1<<14)
	payload := func() int64 { return 64 << 10 }
	put := func(far bool, to chan message) func(string, []byte) error {
		return func(subject string, data []byte) error {
			_, id, _ := strings.Cut(subject, ".")
			m := message{id, bytes.Clone(data)}
			deliver(far, func() { to <- m })
			return nil
		}
	}
	p.near = NewMux(MuxConfig{Send: put(true, toFar), Payload: payload})
	p.far = NewMux(MuxConfig{Send: put(false, toNear), Payload: payload, Max: 8, Accept: func(s *Stream) { p.accepted <- s }})
	stop := make(chan struct{})
	pump := func(m *Mux, from chan message, reply string) {
		for {
			select {
			case msg := <-from:
				m.Receive(msg.id, reply+msg.id, msg.data)
			case <-stop:
				return
			}
		}
	}
	go pump(p.far, toFar, "near.")
	go pump(p.near, toNear, "far.")
	t.Cleanup(func() {
		p.near.Close()
		p.far.Close()
		close(stop)
	})
	return p
}

func (p *pair) open(t *testing.T) (near, far *Stream) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	near, err := p.near.Open(ctx, "far.")
	if err != nil {
		t.Fatal(err)
	}
	return near, <-p.accepted
}

// exchange sends data in both directions at once, and checks what arrives.
func exchange(t *testing.T, a, b *Stream, size int) {
	t.Helper()
	one, two := make([]byte, size), make([]byte, size+1)
	for i := range one {
		one[i], two[i] = byte(rand.Int()), byte(rand.Int())
	}
	write := func(s *Stream, data []byte) {
		for len(data) > 0 {
			n := min(len(data), 1+rand.IntN(200<<10))
			if _, err := s.Write(data[:n]); err != nil {
				t.Errorf("write: %v", err)
				return
			}
			data = data[n:]
		}
		_ = s.CloseWrite()
	}
	go write(a, one)
	go write(b, two)
	type result struct {
		sum [32]byte
		err error
	}
	results := make(chan result, 1)
	go func() {
		got, err := io.ReadAll(a)
		results <- result{sha256.Sum256(got), err}
	}()
	got, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(got, one) {
		t.Errorf("%d of %d bytes arrived: %v", len(got), len(one), err)
	}
	if r := <-results; r.err != nil || r.sum != sha256.Sum256(two) {
		t.Errorf("the other direction differs: %v", r.err)
	}
	_, _ = a.Close(), b.Close()
}

func empty(t *testing.T, p *pair) {
	t.Helper()
	for range 400 {
		if p.near.Len() == 0 && p.far.Len() == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("%d and %d streams are left", p.near.Len(), p.far.Len())
}

func TestStreams(t *testing.T) {
	p := newPair(t, func(_ bool, send func()) { send() })
	a, b := p.open(t)
	exchange(t, a, b, 10<<20)
	empty(t, p)
}

// Messages are lost and delivered twice. Every byte arrives once.
func TestStreamsOverABadTransport(t *testing.T) {
	p := newPair(t, func(_ bool, send func()) {
		switch rand.IntN(20) {
		case 0:
		case 1:
			send()
			send()
		default:
			send()
		}
	})
	a, b := p.open(t)
	exchange(t, a, b, 3<<20)
	empty(t, p)
}

// The transport is gone for a while. What was written meanwhile arrives.
func TestStreamsOverAGap(t *testing.T) {
	var down atomic.Bool
	p := newPair(t, func(_ bool, send func()) {
		if !down.Load() {
			send()
		}
	})
	a, b := p.open(t)
	if _, err := a.Write([]byte("before ")); err != nil {
		t.Fatal(err)
	}
	down.Store(true)
	if _, err := a.Write([]byte("meanwhile ")); err != nil {
		t.Fatal(err)
	}
	down.Store(false)
	p.near.Reconnected()
	p.far.Reconnected()
	if _, err := a.Write([]byte("after")); err != nil {
		t.Fatal(err)
	}
	_ = a.CloseWrite()
	got, err := io.ReadAll(b)
	if string(got) != "before meanwhile after" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// A side that reads nothing stops the other one at the window, and does not
// stop another stream.
func TestStreamsHaveCredit(t *testing.T) {
	p := newPair(t, func(_ bool, send func()) { send() })
	a, b := p.open(t)
	if err := a.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	n, err := a.Write(make([]byte, window+1))
	var late net.Error
	if n != window || !errors.As(err, &late) || !late.Timeout() {
		t.Errorf("%d bytes were taken, %v", n, err)
	}
	c, d := p.open(t)
	exchange(t, c, d, 1<<20)
	if n, err := io.CopyN(io.Discard, b, window); n != window || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

func TestStreamsAreRefused(t *testing.T) {
	p := newPair(t, func(_ bool, send func()) { send() })
	for range 8 {
		p.open(t)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := p.near.Open(ctx, "far.")
	var refused *Error
	if !errors.As(err, &refused) || refused.Code != CodeDraining {
		t.Errorf("%v", err)
	}
	p.far.Receive("unknown", "near.unknown", []byte{0xff})
	p.near.Receive("nobody", "far.nobody", (&frame{kind: kindOpen}).encode())
}

// A stream that ended is not opened again by a message that comes late.
func TestStreamsEndOnce(t *testing.T) {
	p := newPair(t, func(_ bool, send func()) { send() })
	a, b := p.open(t)
	_, _ = a.Close(), b.Close()
	empty(t, p)
	p.far.Receive(a.id, "near."+a.id, (&frame{kind: kindOpen, generation: 1}).encode())
	select {
	case <-p.accepted:
		t.Error("it was opened again")
	default:
	}
}

// A peer that fails says why, and a closed reader stops the writer.
func TestStreamsEnd(t *testing.T) {
	p := newPair(t, func(_ bool, send func()) { send() })
	a, b := p.open(t)
	_ = b.Close()
	<-a.Over()
	if _, err := a.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("write to a closed reader: %v", err)
	}
	c, d := p.open(t)
	p.far.Fail(func(string) bool { return true }, true, &Error{CodeFenced, "replaced"})
	_, err := c.Read(make([]byte, 1))
	var failed *Error
	if !errors.As(err, &failed) || failed.Code != CodeFenced {
		t.Errorf("%v", err)
	}
	if _, err := d.Write([]byte("x")); err == nil {
		t.Error("the failed side writes")
	}
}

func FuzzFrame(f *testing.F) {
	f.Add((&frame{kind: kindData, generation: 3, offset: 7, consumed: 1, upto: 2, fin: true, closed: true, code: 6, text: "t", data: []byte("d")}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		one, err := decode(b)
		if err != nil {
			return
		}
		two, err := decode(one.encode())
		if err != nil || two.kind != one.kind || two.offset != one.offset || !bytes.Equal(two.data, one.data) || two.text != one.text {
			t.Errorf("%+v, %+v, %v", one, two, err)
		}
	})
}
