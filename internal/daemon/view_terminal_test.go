package daemon_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// seat is a viewer of a terminal.
type seat struct {
	v    *viewers
	ws   *websocket.Conn
	seen bytes.Buffer // the screen and all output
	last viewing.TerminalMessage
}

// sit joins a terminal as a viewer.
func (v *viewers) sit(s viewing.StreamAccess, join viewing.TerminalMessage) *seat {
	v.t.Helper()
	ws, err := v.socket(s.URL, s.Token, "")
	if err != nil {
		v.t.Fatal(err)
	}
	ws.SetReadLimit(1 << 20)
	c := &seat{v: v, ws: ws}
	join.Type = "join"
	c.say(join)
	return c
}

func (c *seat) say(m viewing.TerminalMessage) {
	c.v.t.Helper()
	text, _ := json.Marshal(m)
	if err := c.ws.Write(c.v.t.Context(), websocket.MessageText, text); err != nil {
		c.v.t.Fatal(err)
	}
}

func (c *seat) types(text string) {
	c.v.t.Helper()
	if err := c.ws.Write(c.v.t.Context(), websocket.MessageBinary, []byte(text)); err != nil {
		c.v.t.Fatal(err)
	}
}

// until reads until done.
func (c *seat) until(what string, done func() bool) {
	c.v.t.Helper()
	ctx, cancel := context.WithTimeout(c.v.t.Context(), time.Minute)
	defer cancel()
	for !done() {
		kind, data, err := c.ws.Read(ctx)
		if err != nil {
			c.v.t.Fatalf("waiting for %s: %v; the viewer saw %q", what, err, c.seen.String())
		}
		if kind == websocket.MessageBinary {
			c.seen.Write(data)
		} else if err := json.Unmarshal(data, &c.last); err != nil {
			c.v.t.Fatal(err)
		}
	}
}

// over reads until the socket is closed for a reason.
func (c *seat) over(reason string) {
	c.v.t.Helper()
	ctx, cancel := context.WithTimeout(c.v.t.Context(), time.Minute)
	defer cancel()
	for {
		_, data, err := c.ws.Read(ctx)
		if err == nil {
			c.seen.Write(data)
			continue
		}
		if websocket.CloseStatus(err) != websocket.StatusPolicyViolation || !strings.Contains(err.Error(), reason) {
			c.v.t.Errorf("the viewer was closed with %v, want %s; it saw %q", err, reason, c.seen.String())
		}
		return
	}
}

func (c *seat) sees(text string) {
	c.v.t.Helper()
	c.until(text, func() bool { return strings.Contains(c.seen.String(), text) })
}

func (v *viewers) terminal(key, mode string) (s viewing.StreamAccess) {
	v.t.Helper()
	if code := v.call(key, http.MethodPost, "/v1/sandboxes/box/streams", `{"kind":"terminal","mode":"`+mode+`"}`, &s); code != http.StatusCreated {
		v.t.Fatalf("%s opens the terminal to %s: %d", key, mode, code)
	}
	return s
}

// RB-70.
func TestViewersShareATerminal(t *testing.T) {
	v := newViewing(t)
	if code := v.call("reader", http.MethodPost, "/v1/sandboxes/box/streams", `{"kind":"terminal"}`, nil); code != http.StatusForbidden {
		t.Errorf("a key that may only read starts a shell: %d", code)
	}
	var ids sync.Map
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			var s viewing.StreamAccess
			v.call("acme", http.MethodPost, "/v1/sandboxes/box/streams", `{"kind":"terminal","mode":"control"}`, &s)
			ids.Store(s.Process, true)
		})
	}
	all.Wait()
	count := 0
	ids.Range(func(id, _ any) bool {
		count++
		return id != ""
	})
	if count != 1 {
		t.Errorf("%d login shells run, want one", count)
	}
	driving := v.sit(v.terminal("acme", "control"), viewing.TerminalMessage{Size: &sandbox.WindowSize{Cols: 101, Rows: 33}})
	driving.until("the size", func() bool { return driving.last.Size != nil && driving.last.Size.Cols == 101 })
	driving.types("stty size; echo a$((40+2))b\n")
	driving.sees("33 101")
	driving.sees("a42b")

	watching := v.sit(v.terminal("reader", "view"), viewing.TerminalMessage{Size: &sandbox.WindowSize{Cols: 20, Rows: 5}})
	watching.sees("a42b") // at once, without new output
	watching.types("echo c$((1+1))d\n")
	driving.types("echo e$((1+2))f\n")
	watching.sees("e3f")
	driving.sees("e3f")
	if strings.Contains(watching.seen.String(), "c2d") || strings.Contains(driving.seen.String(), "c2d") {
		t.Error("a viewer without control typed")
	}

	driving.types("exit 7\n")
	for _, c := range []*seat{driving, watching} {
		c.until("the exit", func() bool { return c.last.Exit != nil })
		if c.last.Exit.Code != 7 {
			t.Errorf("exit %+v", c.last.Exit)
		}
	}
	if next := v.terminal("acme", "control"); next.Process == "" {
		t.Error("no new shell")
	}
}

// A viewer that lost its connection gets the rest of the output, and the daemon
// tells it how much of its input arrived. RB-70.
func TestReconnectedViewersContinue(t *testing.T) {
	v := newViewing(t)
	s := v.terminal("acme", "control")
	c := v.sit(s, viewing.TerminalMessage{Client: "me"})
	c.until("the screen", func() bool { return c.last.Type == "screen" && c.seen.Len() > 0 })
	at, terminal := c.last.Offset, c.last.Terminal
	c.seen.Reset()
	c.types("echo o$((1+1))o\n")
	c.sees("o2o")
	at += int64(c.seen.Len())
	before := c.last.Input
	_ = c.ws.CloseNow()

	other := v.sit(s, viewing.TerminalMessage{})
	other.types("echo p$((1+1))p\n")
	other.sees("p2p")

	again := v.sit(s, viewing.TerminalMessage{Client: "me", Terminal: terminal, Offset: at})
	again.sees("p2p")
	if again.last.Type == "screen" || strings.Contains(again.seen.String(), "o2o") || again.last.Input != int64(len("echo o$((1+1))o\n")) || before > again.last.Input {
		t.Errorf("resumed as %+v with %q", again.last, again.seen.String())
	}
}

func TestTerminalsOfOtherTenants(t *testing.T) {
	v := newViewing(t)
	s := v.terminal("acme", "control")
	if code := v.call("rival", http.MethodPost, "/v1/sandboxes/box/streams", `{"kind":"terminal","process":"`+s.Process+`"}`, nil); code != http.StatusNotFound {
		t.Errorf("another tenant opens the terminal: %d", code)
	}
	if code := v.call("acme", http.MethodPost, "/v1/sandboxes/box/streams", `{"kind":"terminal","process":"nothing"}`, nil); code != http.StatusNotFound {
		t.Errorf("a process that does not exist: %d", code)
	}
	desktop := v.open("acme", "desktop", "view")
	ws, err := v.socket(s.URL, desktop.Token, "")
	if err != nil {
		t.Fatal(err)
	}
	v.closed("token of a desktop", ws, "unauthorized")
	c := v.sit(s, viewing.TerminalMessage{})
	c.until("the screen", func() bool { return c.last.Type == "screen" && c.seen.Len() > 0 })
	if code := v.call("acme", http.MethodDelete, "/v1/sandboxes/box/streams/"+s.ID, "", nil); code != http.StatusNoContent {
		t.Errorf("revoking: %d", code)
	}
	for {
		if _, _, err := c.ws.Read(t.Context()); err != nil {
			if !strings.Contains(err.Error(), "revoked") {
				t.Errorf("ended by %v", err)
			}
			return
		}
	}
}

// cutter passes connections on to a daemon, and can cut them.
type cutter struct {
	net.Listener
	to    string
	mu    sync.Mutex
	conns []net.Conn
}

func newCutter(t *testing.T, to string) *cutter {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{Listener: l, to: to}
	t.Cleanup(func() {
		_ = l.Close()
		c.cut()
	})
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp4", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			c.mu.Lock()
			c.conns = append(c.conns, in, out)
			c.mu.Unlock()
			for a, b := range map[net.Conn]net.Conn{in: out, out: in} {
				go func() {
					_, _ = io.Copy(a, b)
					_ = a.Close()
				}()
			}
		}
	}()
	return c
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

// The library's terminal reconnects when its connection is cut, again and again.
// RB-70.
func TestTerminalsOfTheLibraryReconnect(t *testing.T) {
	v := newViewing(t)
	way := newCutter(t, v.at)
	c, err := atoll.New(atoll.Options{Host: "http://" + way.Addr().String(), Key: v.key["acme"]})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sb, err := c.Get(t.Context(), "box")
	if err != nil {
		t.Fatal(err)
	}
	term, err := sb.Terminal(t.Context(), atoll.TerminalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer term.Close()
	stop := make(chan struct{})
	var cutting sync.WaitGroup
	cutting.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
				way.cut()
			}
		}
	})
	const lines = 300
	go func() {
		_, _ = io.WriteString(term.Stdin(), "stty -echo; PS1=; echo rea''dy\n")
		for i := range lines {
			_, _ = fmt.Fprintf(term.Stdin(), "echo line-%d; sleep 0.005\n", i)
		}
		_, _ = io.WriteString(term.Stdin(), "exit 5\n")
	}()
	out, err := io.ReadAll(term.Stdout())
	close(stop)
	cutting.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := term.Wait(t.Context()); err != nil || exit.Code != 5 {
		t.Fatalf("%+v, %v; output %q", exit, err, out)
	}
	_, after, found := strings.Cut(string(out), "ready\r\n")
	if !found {
		t.Fatalf("no start: %q", out)
	}
	if !ordered(after, lines) {
		t.Errorf("lines were lost or repeated: %q", after)
	}
}

// ordered reports whether each line comes once, in order.
func ordered(text string, lines int) bool {
	for i := range lines {
		line := fmt.Sprintf("line-%d\r\n", i)
		if strings.Count(text, line) != 1 {
			return false
		}
		_, text, _ = strings.Cut(text, line)
	}
	return true
}
