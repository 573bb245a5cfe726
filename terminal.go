package atoll

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/internal/client"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// OpenStream opens the sandbox to viewers. Whoever has the token, until it
// expires, may connect to the URL. A stream of a session shows the sandbox that
// serves the session; RenewStream follows it.
func (s *Sandbox) OpenStream(ctx context.Context, n viewing.NewStream) (a viewing.StreamAccess, err error) {
	return a, s.client.conn.Call(ctx, http.MethodPost, s.path("/streams"), nil, n, &a)
}

// WebAddress returns the address of the daemon for a browser, which is empty if
// the Client does not reach it over TCP. The page of a stream that was opened with
// Link is at /console/ below it, with the fragment [viewing.StreamAccess.Fragment].
func (c *Client) WebAddress() string {
	if strings.TrimPrefix(c.conn.Base, "http://") == localHost {
		return ""
	}
	return c.conn.Base
}

// RenewStream returns a new token for a stream, valid for ttl; zero means two
// minutes.
func (s *Sandbox) RenewStream(ctx context.Context, id string, ttl time.Duration) (a viewing.StreamAccess, err error) {
	body := map[string]int64{"ttl": int64(ttl / time.Second)}
	return a, s.client.conn.Call(ctx, http.MethodPost, s.path("/streams/"+id+"/token"), nil, body, &a)
}

// Streams returns the streams of the sandbox, with their numbers of viewers.
func (s *Sandbox) Streams(ctx context.Context) ([]viewing.Stream, error) {
	var out struct{ Streams []viewing.Stream }
	err := s.client.conn.Call(ctx, http.MethodGet, s.path("/streams"), nil, nil, &out)
	return out.Streams, err
}

// RevokeStream ends a stream and disconnects its viewers.
func (s *Sandbox) RevokeStream(ctx context.Context, id string) error {
	return s.client.conn.Call(ctx, http.MethodDelete, s.path("/streams/"+id), nil, nil, nil)
}

// TerminalOptions are options of [Sandbox.Terminal]. The zero value is usable.
type TerminalOptions struct {
	// Process is a background command on a terminal. Empty: a login shell in the
	// workspace, which is started if it does not run.
	Process string
	// Watch shows the terminal without the right to type.
	Watch bool
	Size  sandbox.WindowSize // of the viewer's window; zero: 80 by 24
}

// Terminal is one viewer of a terminal that others may view too. Its methods
// may be called concurrently, but Stdin and Stdout may each have only one user
// at a time.
//
// Stdout begins with what draws the current screen. When the connection is
// lost, the Terminal reconnects for a minute, and no byte is lost or repeated
// in either direction; after a longer time the screen is drawn anew.
type Terminal struct {
	sandbox *Sandbox
	opts    TerminalOptions
	client  string // names this viewer
	out     *io.PipeReader
	screen  *io.PipeWriter
	life    context.Context
	quit    context.CancelFunc
	ended   chan struct{}
	once    sync.Once
	exit    sandbox.Exit
	err     error

	writing sync.Mutex // orders input; taken before mu

	mu       sync.Mutex
	access   viewing.StreamAccess
	ws       *websocket.Conn // nil: it is being reconnected
	size     sandbox.WindowSize
	terminal string // counts offset
	offset   int64  // of output that has arrived
	typed    []byte // input that has not arrived
	arrived  int64  // bytes of input before it
	room     chan struct{}
}

const (
	maxTyped        = 256 << 10 // bytes of input that wait for the daemon
	maxTypedMessage = 16 << 10
	maxShown        = 16 << 20 // a screen with all its colours
	reconnectPause  = 200 * time.Millisecond
)

// Terminal opens a terminal of the sandbox that viewers share. Its size is that
// of the smallest window of those who may type. The context bounds the opening
// only. The caller closes the Terminal; what runs in it goes on.
func (s *Sandbox) Terminal(ctx context.Context, opts TerminalOptions) (*Terminal, error) {
	t := &Terminal{sandbox: s, opts: opts, client: rand.Text(), ended: make(chan struct{}), size: opts.Size, room: make(chan struct{}, 1)}
	if t.size == (sandbox.WindowSize{}) {
		t.size = sandbox.WindowSize{Cols: 80, Rows: 24}
	}
	t.out, t.screen = io.Pipe()
	if err := t.open(ctx); err != nil {
		return nil, err
	}
	ws, err := t.connect(ctx)
	if err != nil {
		return nil, err
	}
	t.life, t.quit = context.WithCancel(context.Background())
	go t.run(ws)
	return t, nil
}

func (t *Terminal) open(ctx context.Context) error {
	mode := "control"
	if t.opts.Watch {
		mode = "view"
	}
	t.mu.Lock()
	n := viewing.NewStream{Kind: "terminal", Mode: mode, Process: t.opts.Process, Size: t.size}
	t.mu.Unlock()
	a, err := t.sandbox.OpenStream(ctx, n)
	if err == nil {
		t.enter(a)
	}
	return err
}

func (t *Terminal) enter(a viewing.StreamAccess) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.access = a
}

func (t *Terminal) entered() viewing.StreamAccess {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.access
}

// connect opens a socket, and joins the terminal.
func (t *Terminal) connect(ctx context.Context) (*websocket.Conn, error) {
	a := t.entered()
	ws, err := t.sandbox.client.conn.WebSocket(ctx, a.URL)
	if err != nil {
		return nil, err
	}
	ws.SetReadLimit(maxShown)
	t.mu.Lock()
	join := viewing.TerminalMessage{Type: "join", Size: &t.size, Client: t.client, Terminal: t.terminal, Offset: t.offset}
	t.mu.Unlock()
	for _, m := range []any{map[string]string{"token": a.Token}, join} {
		text, err := json.Marshal(m)
		if err == nil {
			err = ws.Write(ctx, websocket.MessageText, text)
		}
		if err != nil {
			_ = ws.CloseNow()
			return nil, client.TransportError(ctx, err)
		}
	}
	return ws, nil
}

// run reads from successive connections.
func (t *Terminal) run(ws *websocket.Conn) {
	for {
		err := t.receive(ws)
		_ = ws.CloseNow()
		t.mu.Lock()
		t.ws = nil
		t.mu.Unlock()
		select {
		case <-t.ended:
			return
		default:
		}
		if why := terminalEnd(err); why != nil {
			t.finish(sandbox.Exit{}, why)
			return
		}
		if ws, err = t.reconnect(); err != nil {
			t.finish(sandbox.Exit{}, err)
			return
		}
	}
}

// terminalEnd returns the error for a reason that the daemon gave for closing
// the socket; nil if it gave none.
func terminalEnd(err error) error {
	var closed websocket.CloseError
	if !errors.As(err, &closed) || closed.Code != websocket.StatusPolicyViolation {
		return nil
	}
	e := &sandbox.Error{Code: sandbox.CodeGone, Op: "stream.view", Message: "the terminal was closed: " + closed.Reason}
	switch closed.Reason {
	case "unauthorized", "grant-revoked", "revoked":
		e.Code = sandbox.CodeUnauthorized
	case "taken-over":
		e.Code, e.Message, e.Hint = sandbox.CodeConflict, "another connection has taken over the command", "attach with --shared everywhere"
	case "box-rollover":
		e.Code, e.Message = sandbox.CodeStale, "another sandbox serves the session now"
	case "terminal-unavailable":
		e.Code, e.Message = sandbox.CodeUnavailable, "the terminal cannot be reached"
	case "too-many-viewers":
		e.Code, e.Message = sandbox.CodeExhausted, "the terminal has too many viewers"
	}
	return e
}

func (t *Terminal) reconnect() (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(t.life, reconnectSearch)
	defer cancel()
	for {
		ws, err := t.again(ctx)
		if err == nil || sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			return ws, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(reconnectPause):
		}
	}
}

func (t *Terminal) again(ctx context.Context) (*websocket.Conn, error) {
	a, err := t.sandbox.RenewStream(ctx, t.entered().ID, 0)
	switch {
	case err == nil:
		t.enter(a)
	case sandbox.CodeOf(err) == sandbox.CodeNotFound: // another daemon, or another sandbox
		t.opts.Process = t.entered().Process
		if err := t.open(ctx); err != nil {
			return nil, err
		}
	default:
		return nil, err
	}
	return t.connect(ctx)
}

func (t *Terminal) receive(ws *websocket.Conn) error {
	for {
		kind, data, err := ws.Read(t.life)
		if err != nil {
			return err
		}
		if kind == websocket.MessageBinary {
			if _, err := t.screen.Write(data); err != nil {
				return err
			}
			t.mu.Lock()
			t.offset += int64(len(data))
			t.mu.Unlock()
			continue
		}
		var m viewing.TerminalMessage
		if err := json.Unmarshal(data, &m); err != nil {
			return err
		}
		switch m.Type {
		case "screen":
			if err := t.draw(ws, m); err != nil {
				return err
			}
		case "resume":
			t.begin(ws, m)
		case "input":
			t.acknowledge(m.Input)
		case "exit":
			if m.Exit != nil {
				t.finish(*m.Exit, nil)
			}
		}
	}
}

// draw passes on the screen, which is no part of the output.
func (t *Terminal) draw(ws *websocket.Conn, m viewing.TerminalMessage) error {
	_, picture, err := ws.Read(t.life)
	if err == nil {
		_, err = t.screen.Write(picture)
	}
	if err == nil && m.Terminal == "" { // output was too fast for this viewer
		t.mu.Lock()
		t.offset = m.Offset
		t.mu.Unlock()
	} else if err == nil {
		t.begin(ws, m)
	}
	return err
}

// begin sends the input that has not arrived over a new connection.
func (t *Terminal) begin(ws *websocket.Conn, m viewing.TerminalMessage) {
	t.writing.Lock()
	t.mu.Lock()
	if m.Terminal != t.terminal && t.terminal != "" {
		t.arrived = 0 // another daemon counts from 0; input that it did not confirm is sent again
	} else if n := m.Input - t.arrived; n > 0 {
		n = min(n, int64(len(t.typed)))
		t.typed, t.arrived = t.typed[n:], t.arrived+n
	}
	t.terminal, t.offset, t.ws = m.Terminal, m.Offset, ws
	rest := append([]byte(nil), t.typed...)
	t.mu.Unlock()
	t.roomy()
	go func() {
		defer t.writing.Unlock()
		for len(rest) > 0 && ws.Write(t.life, websocket.MessageBinary, rest[:min(len(rest), maxTypedMessage)]) == nil {
			rest = rest[min(len(rest), maxTypedMessage):]
		}
	}()
}

func (t *Terminal) roomy() {
	select {
	case t.room <- struct{}{}:
	default:
	}
}

func (t *Terminal) acknowledge(n int64) {
	t.mu.Lock()
	if more := n - t.arrived; more > 0 && more <= int64(len(t.typed)) {
		t.typed, t.arrived = t.typed[more:], n
	}
	t.mu.Unlock()
	t.roomy()
}

func (t *Terminal) finish(exit sandbox.Exit, err error) {
	t.once.Do(func() {
		t.exit, t.err = exit, err
		close(t.ended)
		_ = t.screen.Close()
	})
}

// Stream returns the stream of this viewer.
func (t *Terminal) Stream() viewing.Stream { return t.entered().Stream }

// Info returns the command in the terminal.
func (t *Terminal) Info() sandbox.ProcessInfo {
	return sandbox.ProcessInfo{ID: t.entered().Process, Background: true, TTY: true, Running: true}
}

// Stdin is the keyboard. Without the right to type, input is dropped. Closing
// it does nothing.
func (t *Terminal) Stdin() io.WriteCloser { return keyboard{t} }

// Stdout is what the terminal shows. It ends when the command has ended.
func (t *Terminal) Stdout() io.Reader { return t.out }

// Stderr is empty.
func (t *Terminal) Stderr() io.Reader { return strings.NewReader("") }

// Signal sends a signal, by its Linux number, to the command. A viewer without
// the right to type leaves instead.
func (t *Terminal) Signal(ctx context.Context, sig int) error {
	if t.opts.Watch {
		t.finish(sandbox.Exit{}, nil)
		return nil
	}
	return t.sandbox.Kill(ctx, t.entered().Process, sig)
}

// Resize changes the size of the viewer's window.
func (t *Terminal) Resize(ctx context.Context, size sandbox.WindowSize) error {
	t.mu.Lock()
	t.size = size
	ws := t.ws
	t.mu.Unlock()
	if ws == nil {
		return nil // the join says it
	}
	text, err := json.Marshal(viewing.TerminalMessage{Type: "size", Size: &size})
	if err != nil {
		return err
	}
	return client.TransportError(ctx, ws.Write(ctx, websocket.MessageText, text))
}

// Wait waits for the end of the command.
func (t *Terminal) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-t.ended:
		return t.exit, t.err
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

// Close leaves the terminal.
func (t *Terminal) Close() error {
	t.finish(sandbox.Exit{}, &sandbox.Error{Code: sandbox.CodeGone, Op: "stream.view", Message: "the terminal was closed"})
	t.quit()
	_ = t.out.Close()
	return nil
}

type keyboard struct{ t *Terminal }

func (keyboard) Close() error { return nil }

// Write waits while much input has not arrived.
func (k keyboard) Write(p []byte) (int, error) {
	t := k.t
	if t.opts.Watch {
		return len(p), nil
	}
	sent := 0
	for sent < len(p) {
		n, wait := t.typePart(p[sent:min(len(p), sent+maxTypedMessage)])
		if sent += n; !wait {
			continue
		}
		select {
		case <-t.room:
		case <-t.ended:
			return sent, io.ErrClosedPipe
		}
	}
	return sent, nil
}

// typePart sends a part of the input, unless too much waits already. What a
// connection loses, the next one sends again.
func (t *Terminal) typePart(part []byte) (n int, wait bool) {
	t.writing.Lock()
	defer t.writing.Unlock()
	t.mu.Lock()
	if len(t.typed)+len(part) > maxTyped {
		t.mu.Unlock()
		return 0, true
	}
	t.typed = append(t.typed, part...)
	ws := t.ws
	t.mu.Unlock()
	if ws != nil {
		_ = ws.Write(t.life, websocket.MessageBinary, part)
	}
	return len(part), false
}
