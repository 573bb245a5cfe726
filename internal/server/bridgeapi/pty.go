package bridgeapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	defaultCols, defaultRows = 80, 24
	maxWindow                = 4096
	defaultShell             = "bash"
	// maxFrame bounds a message of a client, and maxInput the input that is
	// buffered for a program that does not read.
	maxFrame = 1 << 20
	maxInput = 4 << 20
)

// control is a message other than terminal bytes.
type control struct {
	Type    string `json:"type"`
	Cols    int    `json:"cols,omitempty"`
	Rows    int    `json:"rows,omitempty"`
	Code    *int   `json:"code,omitempty"`
	Signal  string `json:"signal,omitempty"`
	Message string `json:"message,omitempty"`
}

// terminal is a connection to a terminal: the terminal of a session, or a new
// one.
type terminal struct {
	ws    *websocket.Conn
	size  sandbox.WindowSize
	shell string
	// session is the session of the terminal, whose program keeps running without
	// the client. Empty: no session. lock is held to find or to start the program.
	session string
	lock    func(context.Context) (release func(), err error)
}

// pty runs a program on a terminal. If the first input is a line with a plain
// command, that command is run, without an echo. Any other input is typed into
// a shell.
func (h *Handler) pty(w http.ResponseWriter, r *http.Request, c *call) error {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return invalid("WebSocket upgrade required")
	}
	q := r.URL.Query()
	session, err := sessionOf(r)
	if err != nil {
		return err
	}
	cols, errCols := number(q.Get("cols"), defaultCols)
	rows, errRows := number(q.Get("rows"), defaultRows)
	if errCols != nil || errRows != nil {
		return invalid("cols and rows must be valid numbers")
	}
	sb, err := h.open(r.Context(), c)
	if err != nil {
		return err
	}
	ws, err := api.Upgrade(w, r)
	if refused, ok := errors.AsType[*api.Problem](err); ok {
		return &problem{refused.Status, refused.Detail, codeInvalid}
	}
	if ws == nil {
		return err // the connection was lost
	}
	defer func() { _ = ws.CloseNow() }()
	ws.SetReadLimit(maxFrame)
	t := &terminal{ws: ws, size: sandbox.WindowSize{Cols: uint16(cols), Rows: uint16(rows)}, shell: q.Get("shell"), session: session}
	t.lock = func(ctx context.Context) (func(), error) { return h.locks.Take(ctx, c.key()) }
	if t.shell == "" {
		t.shell = defaultShell
	}
	if err := t.run(r.Context(), sb); err != nil && r.Context().Err() == nil {
		t.send(r.Context(), control{Type: "error", Message: answerOf(err, codeTransport).Text})
		_ = ws.Close(websocket.StatusInternalError, "")
	}
	return nil
}

func number(text string, otherwise int) (int, error) {
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err == nil && (n < 1 || n > maxWindow) {
		err = strconv.ErrRange
	}
	return n, err
}

func (t *terminal) send(ctx context.Context, m control) {
	_ = t.ws.Write(ctx, websocket.MessageText, ascii(m)) // the client may be gone
}

// run serves the connection until the program has ended or the client is gone.
func (t *terminal) run(ctx context.Context, sb Sandbox) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, err := t.running(ctx, sb)
	if err != nil {
		return err
	}
	t.send(ctx, control{Type: "ready"})
	if p != nil {
		_ = p.Resize(ctx, t.size) // it may just have ended
		return t.attach(ctx, cancel, p, nil)
	}
	first, err := t.first(ctx)
	if err != nil {
		return nil // it was closed again
	}
	cmd, typed := t.command(first)
	p, mine, err := t.start(ctx, sb, cmd)
	switch {
	case err != nil:
		return err
	case mine && !typed:
		first = nil
	}
	return t.attach(ctx, cancel, p, first)
}

// command returns the command for the first input. typed says that the input
// must be sent to the program.
func (t *terminal) command(first []byte) (cmd sandbox.Command, typed bool) {
	cmd = sandbox.Command{TTY: &t.size, Stdin: true, Env: map[string]string{"TERM": "xterm-256color"}}
	line, ok := strings.CutSuffix(string(first), "\n")
	if ok {
		cmd.Args, ok = words(line)
	}
	if !ok {
		cmd.Args = []string{t.shell}
	}
	return cmd, !ok
}

// running connects to the program that runs on the terminal of the session. It
// returns nil if there is none.
func (t *terminal) running(ctx context.Context, sb Sandbox) (driver.Process, error) {
	if t.session == "" {
		return nil, nil
	}
	s, _, err := loadSession(ctx, sb.Files(), t.session)
	if err != nil || s.Terminal == "" {
		return nil, err
	}
	all, err := sb.Processes(ctx)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(all, func(p sandbox.ProcessInfo) bool { return p.ID == s.Terminal && p.Running && p.TTY }) {
		return nil, nil
	}
	return sb.Reconnect(ctx, s.Terminal)
}

// start starts a program. mine is false if another client of the session has
// started one meanwhile.
func (t *terminal) start(ctx context.Context, sb Sandbox, cmd sandbox.Command) (p driver.Process, mine bool, err error) {
	if t.session == "" {
		p, err = sb.Exec(ctx, cmd)
		return p, true, err
	}
	release, err := t.lock(ctx)
	if err != nil {
		return nil, false, err
	}
	defer release()
	if p, err := t.running(ctx, sb); p != nil || err != nil {
		return p, false, err
	}
	if err := inSession(ctx, sb, t.session, &cmd); err != nil {
		return nil, false, err
	}
	cmd.Background = true
	if p, err = sb.Exec(ctx, cmd); err != nil {
		return nil, false, err
	}
	s, found, err := loadSession(ctx, sb.Files(), t.session)
	if err == nil && !found {
		err = roomForSession(ctx, sb.Files())
	}
	if s.Terminal = p.Info().ID; err == nil {
		err = s.save(ctx, sb.Files(), t.session)
	}
	if err != nil {
		late, cancel := late(ctx)
		defer cancel()
		_ = p.Signal(late, int(unix.SIGKILL)) // no client could attach to it
		return nil, false, errors.Join(err, p.Close())
	}
	return p, true, nil
}

// attach connects the client with a program until it has ended or the client is
// gone.
func (t *terminal) attach(ctx context.Context, cancel func(), p driver.Process, first []byte) error {
	defer leave(ctx, p) // but for that of a session, which runs in the background
	in := newInput(p.Stdin())
	defer in.close()
	if len(first) > 0 {
		in.add(first)
	}
	go func() {
		defer cancel()
		t.receive(ctx, p, in)
	}()
	return t.follow(ctx, p)
}

// first returns the first input. It stores window sizes that arrive before.
func (t *terminal) first(ctx context.Context) ([]byte, error) {
	for {
		kind, data, err := t.ws.Read(ctx)
		switch {
		case err != nil:
			return nil, err
		case kind == websocket.MessageBinary && len(data) > 0:
			return data, nil
		case kind == websocket.MessageText:
			if size, ok := t.resized(ctx, data); ok {
				t.size = size
			}
		}
	}
}

// resized returns the window size in a message.
func (t *terminal) resized(ctx context.Context, data []byte) (sandbox.WindowSize, bool) {
	var m control
	if json.Unmarshal(data, &m) != nil || m.Type != "resize" || m.Cols < 1 || m.Rows < 1 || m.Cols > maxWindow || m.Rows > maxWindow {
		t.send(ctx, control{Type: "error", Message: "not a resize message with positive cols and rows"})
		return sandbox.WindowSize{}, false
	}
	return sandbox.WindowSize{Cols: uint16(m.Cols), Rows: uint16(m.Rows)}, true
}

// receive forwards input from the client until the client closes the
// connection.
func (t *terminal) receive(ctx context.Context, p driver.Process, in *input) {
	for {
		kind, data, err := t.ws.Read(ctx)
		if err != nil {
			return
		}
		if kind == websocket.MessageText {
			if size, ok := t.resized(ctx, data); ok {
				_ = p.Resize(ctx, size) // it may just have ended
			}
			continue
		}
		if !in.add(data) {
			t.send(ctx, control{Type: "error", Message: "the program does not read its input"})
			return
		}
	}
}

// follow sends the output of the program and, when it has ended, its exit.
func (t *terminal) follow(ctx context.Context, p driver.Process) error {
	alive, copied := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.CopyBuffer(writerFunc(func(b []byte) (int, error) {
			select {
			case alive <- struct{}{}:
			default:
			}
			return len(b), t.ws.Write(ctx, websocket.MessageBinary, b)
		}), readerOnly{p.Stdout()}, make([]byte, piece))
	}()
	exit, err := p.Wait(ctx)
	if err != nil {
		return err
	}
	for quiet := true; quiet; {
		select {
		case <-copied:
			quiet = false
		case <-ctx.Done():
			return ctx.Err()
		case <-alive:
		case <-time.After(linger): // processes that it left behind may hold the terminal open
			quiet = false
		}
	}
	if lost(exit.Reason) {
		return &problem{Text: "the sandbox ended while the program ran: " + string(exit.Reason), Code: codeTransport}
	}
	m := control{Type: "exit", Code: &exit.Code}
	if exit.Signal != 0 {
		m.Signal = unix.SignalName(syscall.Signal(exit.Signal))
	}
	t.send(ctx, m)
	_ = t.ws.Close(websocket.StatusNormalClosure, "")
	return nil
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// readerOnly hides the WriterTo of a reader, which would write chunks of any
// size.
type readerOnly struct{ io.Reader }

// input buffers bytes for a program that may not read them, so that the sender
// does not block.
type input struct {
	to io.WriteCloser

	mu      sync.Mutex
	more    *sync.Cond
	data    []byte
	writing int // bytes that were taken from data and are being written
	closed  bool
}

func newInput(to io.WriteCloser) *input {
	in := &input{to: to}
	in.more = sync.NewCond(&in.mu)
	go in.pass()
	return in
}

// add reports whether there was room.
func (in *input) add(data []byte) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.writing+len(in.data)+len(data) > maxInput {
		return false
	}
	in.data = append(in.data, data...)
	in.more.Signal()
	return true
}

func (in *input) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.more.Signal()
}

// pass copies input to the program. It ends when the input is closed or the
// program stops reading.
func (in *input) pass() {
	for {
		data, ok := in.take()
		if !ok {
			return
		}
		if _, err := in.to.Write(data); err != nil && !errors.Is(err, io.ErrShortWrite) {
			return
		}
	}
}

// take waits for input. The input that it returned before has been written.
func (in *input) take() (data []byte, ok bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.writing = 0
	for len(in.data) == 0 && !in.closed {
		in.more.Wait()
	}
	data, in.data = in.data, nil
	in.writing = len(data)
	return data, !in.closed
}
