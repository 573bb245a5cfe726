package wsexec_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/wsexec"
)

var errLost = errors.New("lost")

// service is the service's end of a command.
type service struct {
	*websocket.Conn
	t *testing.T
}

func (s *service) send(kind websocket.MessageType, data string) {
	s.t.Helper()
	if err := s.Write(s.t.Context(), kind, []byte(data)); err != nil {
		s.t.Fatal(err)
	}
}

// start returns both ends of a command, and what ends the program's context and
// waits for its goroutines.
func start(t *testing.T, p wsexec.Protocol) (*wsexec.Program, *service, func()) {
	t.Helper()
	accepted := make(chan *websocket.Conn, 1)
	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err == nil {
			accepted <- ws
			<-over
			_ = ws.CloseNow()
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(sync.OnceFunc(func() { close(over) }))
	ws, _, err := websocket.Dial(t.Context(), server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p.MaxInput == 0 {
		p.MaxInput = 4
	}
	p.Lost = func() error { return errLost }
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	program := wsexec.New(ctx, &work, ws, p)
	end := func() { cancel(); work.Wait() }
	t.Cleanup(end)
	return program, &service{<-accepted, t}, end
}

// channels is a protocol with channels. A command ends with its code as text.
func channels() wsexec.Protocol {
	return wsexec.Protocol{Stdin: []byte{0}, Stdout: 1, Stderr: 2, Status: 3, Ended: func(text, stderr []byte) error {
		if string(text) == "running" {
			return nil
		}
		return &guestkit.Exit{Code: len(text), Stderr: stderr}
	}}
}

// Only output is returned, and the exit has the first part of the error output.
func TestReceive(t *testing.T) {
	text, binary := websocket.MessageText, websocket.MessageBinary
	long := strings.Repeat("e", 250)
	for _, c := range []struct {
		name     string
		kind     websocket.MessageType
		sent     []string
		end      string
		out, err string
	}{
		{"output", binary, []string{"\x01a", "\x01bc"}, "\x03x", "abc", ""},
		{"empty messages", binary, []string{"", "\x01", "\x02", "\x01a"}, "\x03x", "a", ""},
		{"errors between", binary, []string{"\x01a", "\x02oops", "\x01b"}, "\x03x", "ab", "oops"},
		{"channels that are not known", binary, []string{"\x00a", "\x04b", "\xffc", "\x01d"}, "\x03x", "d", ""},
		{"a status that is no end", binary, []string{"\x03running", "\x01a"}, "\x03x", "a", ""},
		{"many errors", binary, []string{"\x02" + long, "\x02" + long, "\x02" + long}, "\x03x", "", strings.Repeat("e", 300)},
		{"the end as text", text, []string{"running"}, "x", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			program, s, _ := start(t, channels())
			go func() {
				for _, m := range append(c.sent, c.end) {
					s.send(c.kind, m)
				}
			}()
			var out []byte
			for {
				data, err := program.Receive()
				out = append(out, data...)
				if exit := (*guestkit.Exit)(nil); errors.As(err, &exit) {
					if exit.Code != 1 || string(exit.Stderr) != c.err {
						t.Errorf("it ends with %d and errors %q, want 1 and %q", exit.Code, exit.Stderr, c.err)
					}
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if string(out) != c.out {
				t.Errorf("output %q, want %q", out, c.out)
			}
		})
	}
}

// Of a protocol with its own messages, output that came with the end is not
// lost, and what ended stays ended.
func TestDecode(t *testing.T) {
	program, s, _ := start(t, wsexec.Protocol{Decode: func(m []byte, stderr *[]byte) ([]byte, error) {
		out, end := bytes.CutSuffix(m, []byte("!"))
		if end {
			return out, &guestkit.Exit{Code: 7}
		}
		return out, nil
	}})
	s.send(websocket.MessageBinary, "a")
	s.send(websocket.MessageBinary, "b!")
	for _, want := range []string{"a", "b"} {
		if out, err := program.Receive(); string(out) != want || err != nil {
			t.Errorf("received %q, %v; want %q", out, err, want)
		}
	}
	for range 2 {
		if out, err := program.Receive(); len(out) > 0 || !errors.As(err, new(*guestkit.Exit)) {
			t.Errorf("received %q, %v; want the exit", out, err)
		}
	}
}

// A service that sends text although its protocol has none ends nothing.
func TestTextThatMeansNothing(t *testing.T) {
	program, s, _ := start(t, wsexec.Protocol{Decode: func(m []byte, _ *[]byte) ([]byte, error) { return m, nil }})
	s.send(websocket.MessageText, "hello")
	s.send(websocket.MessageBinary, "a")
	for _, want := range []string{"", "a"} {
		if out, err := program.Receive(); string(out) != want || err != nil {
			t.Errorf("received %q, %v; want %q", out, err, want)
		}
	}
}

// Input is sent in parts that are not too long, in its order, also after Close.
func TestSend(t *testing.T) {
	for name, test := range map[string]struct {
		protocol wsexec.Protocol
		want     []string
	}{
		"channels": {channels(), []string{"\x00abcd", "\x00efgh", "\x00i"}},
		"encoded": {
			wsexec.Protocol{Encode: func(in []byte) []byte { return slices.Concat([]byte("<"), in, []byte(">")) }},
			[]string{"<abcd>", "<efgh>", "<i>"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			program, s, _ := start(t, test.protocol)
			if err := program.Close(); err != nil {
				t.Fatal(err)
			}
			if err := program.Send(t.Context(), []byte("abcdefghi")); err != nil {
				t.Fatal(err)
			}
			for _, want := range test.want {
				if kind, got, err := s.Read(t.Context()); string(got) != want || kind != websocket.MessageBinary || err != nil {
					t.Errorf("the service got %q, %v; want %q", got, err, want)
				}
			}
		})
	}
}

// A connection that ends before the command is lost, for both directions. A
// message that is too large is no reason to keep it.
func TestLostConnection(t *testing.T) {
	for name, lose := range map[string]func(*service){
		"closed":       func(s *service) { _ = s.CloseNow() },
		"said goodbye": func(s *service) { go func() { _ = s.Close(websocket.StatusNormalClosure, "") }() },
		"large message": func(s *service) {
			go func() { _ = s.Write(s.t.Context(), websocket.MessageBinary, make([]byte, 5<<20+2)) }()
		},
	} {
		t.Run(name, func(t *testing.T) {
			released := make(chan struct{}, 2)
			p := channels()
			p.Release = func(context.Context) { released <- struct{}{} }
			program, s, end := start(t, p)
			lose(s)
			if out, err := program.Receive(); err != errLost {
				t.Errorf("received %d bytes, %v; want that the connection is lost", len(out), err)
			}
			<-released
			if err := program.Send(t.Context(), []byte("a")); err != errLost {
				t.Errorf("sent: %v; want that the connection is lost", err)
			}
			end()
			if len(released) > 0 {
				t.Error("released twice")
			}
		})
	}
}

// Close ends Receive at once, and can be called twice.
func TestClose(t *testing.T) {
	program, _, _ := start(t, channels())
	done := make(chan error, 1)
	go func() { _, err := program.Receive(); done <- err }()
	for range 2 {
		if err := program.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; err != io.ErrUnexpectedEOF {
		t.Errorf("received: %v", err)
	}
}

// The end of the provider ends the program, and leaves no goroutine, although
// nobody receives what the service sends.
func TestEndOfTheContext(t *testing.T) {
	for name, receives := range map[string]bool{"while it receives": true, "while output waits": false} {
		t.Run(name, func(t *testing.T) {
			released := make(chan struct{})
			p := channels()
			p.Release = func(context.Context) { close(released) }
			program, s, end := start(t, p)
			done := make(chan error, 1)
			if receives {
				go func() { _, err := program.Receive(); done <- err }()
			} else {
				s.send(websocket.MessageBinary, "\x01a")
				s.send(websocket.MessageBinary, "\x01b")
			}
			end()
			<-released
			if receives {
				if err := <-done; err == nil {
					t.Error("it goes on")
				}
			}
		})
	}
}

// The error of a caller that gave up is that of its context.
func TestSendIsCanceled(t *testing.T) {
	program, _, _ := start(t, channels())
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	var err error
	for err == nil { // what fits into the socket may still be sent
		err = program.Send(ctx, []byte("a"))
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("sent: %v", err)
	}
}
