package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair connects a client to a guest that answers with accept.
func pair(t testing.TB, accept func(*Op)) *Conn {
	t.Helper()
	a, b := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = Serve(b, Peer{bulk: true}, accept)
	}()
	c := NewClient(a, Peer{bulk: true})
	t.Cleanup(func() {
		c.Close()
		<-served
	})
	return c
}

func open(t testing.TB, c *Conn, m Method, req string) *Op {
	t.Helper()
	op, err := c.Open(context.Background(), m, []byte(req))
	if err != nil {
		t.Fatal(err)
	}
	return op
}

// echo sends lane 0 back on both lanes.
func echo(op *Op) {
	for {
		b, err := op.in[0].peek()
		if err != nil {
			break
		}
		for lane := range Lanes {
			if _, err := op.Write(lane, b); err != nil {
				op.Fail(&RemoteError{Code: sandbox.CodeInternal, Message: err.Error()})
				return
			}
		}
		op.in[0].take(len(b))
	}
	op.End(op.Request)
}

func TestLanesCarryEverything(t *testing.T) {
	c := pair(t, echo)
	op := open(t, c, Exec, "request")
	data := bytes.Repeat([]byte("0123456789abcdef!"), 300_000) // several windows
	go func() {
		for rest := data; len(rest) > 0; {
			n := min(len(rest), 70_001)
			if _, err := op.Write(0, rest[:n]); err != nil {
				t.Error(err)
			}
			rest = rest[n:]
		}
		op.CloseWrite(0)
	}()
	var wg sync.WaitGroup
	for lane := range Lanes {
		wg.Go(func() {
			got, err := io.ReadAll(op.In(lane))
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("lane %d: %d of %d bytes, %v", lane, len(got), len(data), err)
			}
		})
	}
	wg.Wait()
	<-op.Over()
	if b, err := op.Result(); string(b) != "request" || err != nil {
		t.Errorf("%q %v", b, err)
	}
}

// TestUnreadLaneBlocksNobody fills one lane and uses everything else.
func TestUnreadLaneBlocksNobody(t *testing.T) {
	full := make(chan struct{})
	c := pair(t, func(op *Op) {
		switch op.Method {
		case Exec:
			n := 0
			for n < 2*Window { // blocks when the window is full
				if n == Window {
					close(full)
				}
				k, err := op.Write(0, make([]byte, MaxData))
				n += k
				if err != nil {
					break
				}
			}
			if n != Window {
				t.Errorf("%d bytes without a reader, want the window", n)
			}
			op.End(nil)
		default:
			op.Message([]byte("said"))
			op.End(nil)
		}
	})
	op := open(t, c, Exec, "")
	<-full
	other := open(t, c, Stat, "")
	if string(<-other.Messages()) != "said" {
		t.Error("no message")
	}
	<-other.Over()
	op.Abandon()
	if _, err := op.In(0).Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("reading an abandoned lane: %v", err)
	}
}

func TestCancelReachesTheGuest(t *testing.T) {
	canceled := make(chan struct{})
	c := pair(t, func(op *Op) {
		<-op.Over()
		close(canceled)
		op.End([]byte("late"))
	})
	op := open(t, c, Exec, "")
	op.Cancel()
	<-canceled
	<-op.Over()
	if b, err := op.Result(); string(b) != "late" || err != nil {
		t.Errorf("%q %v", b, err)
	}
}

func TestLostConnectionEndsEverything(t *testing.T) {
	a, b := net.Pipe()
	c := NewClient(a, Peer{})
	defer c.Close()
	go io.Copy(io.Discard, b)
	op := open(t, c, Exec, "")
	b.Close()
	<-op.Over()
	if _, err := op.Result(); err == nil {
		t.Error("no error")
	}
	if _, err := op.In(0).Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("a broken stream ends with %v", err)
	}
	if _, err := op.Write(0, []byte("x")); err == nil {
		t.Error("written")
	}
	if _, err := c.Open(context.Background(), Exec, nil); err == nil {
		t.Error("opened")
	}
}

// TestDeafGuest uses a guest that reads nothing. Callers must still be able to
// leave.
func TestDeafGuest(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	c := NewClient(a, Peer{})
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	var err error
	for err == nil {
		_, err = c.Open(ctx, Exec, make([]byte, 1<<20))
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// TestHostileGuest sends frames that no correct guest sends.
func TestHostileGuest(t *testing.T) {
	frame := func(size uint32, op uint32, kind, lane byte, payload ...byte) []byte {
		b := make([]byte, HeaderLen)
		header{size: size, op: op, kind: kind, lane: lane}.put(b)
		return append(b, payload...)
	}
	big := func(n int) []byte { return bytes.Repeat([]byte{0}, n) }
	overrun := bytes.Repeat(frame(MaxData, 1, kindData, 0, big(MaxData)...), Window/MaxData+1)
	for name, hostile := range map[string][]byte{
		"huge frame":        frame(1<<31, 1, kindData, 0),
		"huge result":       frame(MaxReply+1, 1, kindEnd, 0),
		"unknown kind":      frame(0, 1, 99, 0),
		"unknown lane":      frame(0, 1, kindEOF, Lanes),
		"opens":             frame(1, 1, kindOpen, 0, 1),
		"cancels":           frame(0, 1, kindCancel, 0),
		"too much credit":   frame(4, 1, kindCredit, 0, 1, 0, 0, 0),
		"odd credit":        frame(1, 1, kindCredit, 0, 1),
		"overrun":           overrun,
		"too many messages": bytes.Repeat(frame(1, 1, kindMsg, 0, 1), maxMessages+1),
		"cut short":         frame(100, 1, kindData, 0, 1)[:HeaderLen+1],
	} {
		t.Run(name, func(t *testing.T) {
			a, b := net.Pipe()
			c := NewClient(a, Peer{})
			defer c.Close()
			op := open(t, c, Exec, "")
			go io.Copy(io.Discard, b)
			if _, err := b.Write(hostile); err == nil && name == "cut short" {
				b.Close()
			}
			<-op.Over()
			if _, err := op.Result(); err == nil {
				t.Error("no error")
			} else if name != "cut short" && !errors.Is(err, ErrProtocol) {
				t.Error(err)
			}
			b.Close()
		})
	}
}

func TestOutcome(t *testing.T) {
	for name, tt := range map[string]struct {
		payload []byte
		code    sandbox.Code // of a remote error, or "" for a violation
	}{
		"no status":   {nil, ""},
		"bad status":  {[]byte{2}, ""},
		"bad error":   {[]byte{1, 0xff}, ""},
		"error":       {(&RemoteError{Code: sandbox.CodeNotFound, Message: "m"}).append([]byte{1}), sandbox.CodeNotFound},
		"claims gone": {(&RemoteError{Code: sandbox.CodeGone}).append([]byte{1}), sandbox.CodeInternal},
		"nonsense":    {(&RemoteError{Code: "xyz"}).append([]byte{1}), sandbox.CodeInternal},
	} {
		t.Run(name, func(t *testing.T) {
			op := newOp(&Conn{}, 1, Exec)
			op.ended(tt.payload)
			_, err := op.Result()
			var re *RemoteError
			switch {
			case tt.code == "" && !errors.Is(err, ErrProtocol):
				t.Error(err)
			case tt.code != "" && (!errors.As(err, &re) || re.Code != tt.code):
				t.Error(err)
			}
		})
	}
}

func TestPreface(t *testing.T) {
	var b bytes.Buffer
	WritePreface(&b)
	good := b.String()
	if peer, err := ReadPreface(strings.NewReader(good)); err != nil || !peer.bulk {
		t.Error(peer, err)
	}
	earlier := good[:12] + "\x00\x00\x00\x00"
	if peer, err := ReadPreface(strings.NewReader(earlier)); err != nil || peer.bulk {
		t.Errorf("an earlier version: %v %v", peer, err)
	}
	var version *VersionError
	other := good[:8] + "\x63" + good[9:]
	if _, err := ReadPreface(strings.NewReader(other)); !errors.As(err, &version) || version.Theirs != 0x63 {
		t.Error(err)
	}
	if _, err := ReadPreface(strings.NewReader("HTTP/1.1 400 Bad request")); !errors.Is(err, ErrProtocol) {
		t.Error(err)
	}
	if _, err := ReadPreface(strings.NewReader(good[:5])); err == nil {
		t.Error("a cut preface is accepted")
	}
}

func TestMessagesComeBack(t *testing.T) {
	cmd := &sandbox.Command{
		Args: []string{"a\xff", "", "\n"}, Env: map[string]string{"K": "v\xfe"}, Dir: "/d", User: "u:g",
		TTY: &sandbox.WindowSize{Cols: 1, Rows: 2}, Stdin: true, Timeout: time.Minute, Background: true,
	}
	var e Encoder
	PutCommand(&e, cmd)
	d := Decoder{B: e.B}
	if got := TakeCommand(&d); !reflect.DeepEqual(got, cmd) || d.End() != nil {
		t.Errorf("%+v %v", got, d.Err())
	}
	file := sandbox.FileInfo{
		Path: "a/b\xff", Type: sandbox.TypeSymlink, Size: 3, Mode: 0o4755, UID: 1, GID: 2,
		ModTime: time.Unix(-5, 7), Target: "/t", Nlink: 2, Identity: 1 << 63,
	}
	e = Encoder{}
	PutFile(&e, &file)
	d = Decoder{B: e.B}
	if got := TakeFile(&d); !reflect.DeepEqual(got, file) || d.End() != nil {
		t.Errorf("%+v %v", got, d.Err())
	}
	info := sandbox.ProcessInfo{
		ID: "p1", PID: 7, Args: []string{"x"}, Started: time.Unix(1, 2), Background: true, TTY: true,
		Exit: &sandbox.Exit{Code: 137, Signal: 9, Reason: sandbox.ReasonTimeout, Detail: "d"},
	}
	e = Encoder{}
	PutProcess(&e, &info)
	d = Decoder{B: e.B}
	if got := TakeProcess(&d); !reflect.DeepEqual(got, info) || d.End() != nil {
		t.Errorf("%+v %v", got, d.Err())
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain ü": "plain ü", "\x1b[31m": "\uFFFD[31m", "a\nb": "a\uFFFDb", "\xff": "\uFFFD", "\u202e": "\uFFFD", "\u009b": "\uFFFD",
	} {
		if got := Printable(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
	if len(Printable(strings.Repeat("x", 1<<20))) > 4<<10 {
		t.Error("not clipped")
	}
}

func TestLocalPath(t *testing.T) {
	for p, want := range map[string]bool{
		".": true, "a": true, "a/b": true, "..a": true, "": false, "/": false, "/a": false, "..": false, "../a": false,
		"a/../..": false, "a/": false, "a//b": false, "./a": false, "a\x00": false,
	} {
		if LocalPath(p) != want {
			t.Errorf("%q", p)
		}
	}
}

// FuzzClient sends arbitrary bytes to a client with open operations.
func FuzzClient(f *testing.F) {
	frame := make([]byte, HeaderLen)
	header{size: 0, op: 1, kind: kindEnd}.put(frame)
	f.Add(frame)
	header{size: 3, op: 2, kind: kindData}.put(frame)
	f.Add(append(frame, "abc"...))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, b := net.Pipe()
		c := NewClient(a, Peer{bulk: true})
		go io.Copy(io.Discard, b)
		for _, m := range []Method{Exec, Read, Exec} {
			op := open(t, c, m, "")
			go io.Copy(io.Discard, op.In(0))
		}
		b.SetWriteDeadline(time.Now().Add(10 * time.Second))
		b.Write(data)
		b.Close()
		<-c.Done()
		c.Close()
	})
}

// FuzzGuest sends arbitrary bytes to a guest.
func FuzzGuest(f *testing.F) {
	frame := make([]byte, HeaderLen)
	header{size: 1, op: 1, kind: kindOpen}.put(frame)
	f.Add(append(frame, 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		rw := struct {
			io.Reader
			io.Writer
			io.Closer
		}{bytes.NewReader(data), io.Discard, io.NopCloser(nil)}
		_ = Serve(rw, Peer{bulk: true}, func(op *Op) {
			io.Copy(io.Discard, op.In(0))
			op.End(nil)
		})
	})
}

// FuzzDecode decodes every message from arbitrary bytes.
func FuzzDecode(f *testing.F) {
	var e Encoder
	PutCommand(&e, &sandbox.Command{Args: []string{"a"}, Env: map[string]string{"a": "b"}})
	f.Add(e.B)
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, take := range []func(*Decoder){
			func(d *Decoder) { TakeCommand(d) },
			func(d *Decoder) { new(Defaults).Decode(d) },
			func(d *Decoder) { TakeProcess(d) },
			func(d *Decoder) {
				if x := TakeExit(d); x.Code < 0 || x.Code > 255 {
					t.Error(x)
				}
			},
			func(d *Decoder) {
				if f := TakeFile(d); f.Size < 0 || f.Mode > 0o7777 {
					t.Error(f)
				}
			},
			func(d *Decoder) {
				if ev := TakeEvent(d); d.Err() == nil && !LocalPath(ev.Path) {
					t.Error(ev)
				}
			},
		} {
			d := Decoder{B: b}
			take(&d)
			_ = d.End()
		}
		_ = decodeRemoteError(b)
		if len(b) >= LogHeaderLen {
			if _, dropped, n, err := ParseLogHeader(b); err == nil && (dropped < 0 || n > MaxData || n < 0) {
				t.Error(dropped, n)
			}
		}
	})
}
