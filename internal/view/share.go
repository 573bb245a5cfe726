package view

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/view/terminal"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
	"github.com/atoll-run/atoll/stream"
)

const (
	terminalKind = "terminal"
	// shellMark is the last argument of the login shell that viewers share. It names
	// the shell to later callers, and to later daemons.
	shellMark   = "atoll-terminal"
	shellScript = "[ -d " + sandbox.WorkspaceDir + " ] && cd " + sandbox.WorkspaceDir + "; if command -v bash >/dev/null; then exec bash -l; fi; exec sh -l"

	joinTime = 10 * time.Second
	lockTime = 30 * time.Second
	// linger is how long a terminal without viewers stays connected, so that one
	// whose connection was lost continues where it was.
	linger   = 30 * time.Second
	maxInput = 64 << 10
)

// errTaken means that another connection took over the command.
var errTaken = errors.New("taken-over")

// Commands runs commands of a sandbox.
type Commands interface {
	Exec(ctx context.Context, cmd sandbox.Command) (driver.Process, error)
	Reconnect(ctx context.Context, id string) (driver.Process, error)
	Rejoin(ctx context.Context, id string, from driver.Cursor, skip bool) (driver.Process, driver.Cursor, error)
	Processes(ctx context.Context) ([]sandbox.ProcessInfo, error)
}

// terminals are the shared terminals of a daemon.
type terminals struct {
	mu     sync.Mutex
	shared map[place]*shared
	making map[sandbox.ID]chan struct{} // locks: who makes a login shell
}

type place struct {
	sandbox sandbox.ID
	process string
}

// shared is a terminal with a number of users.
type shared struct {
	ready chan struct{} // closed when t or err is set
	t     *terminal.Terminal
	err   error
	leave context.CancelFunc
	users int
	last  *time.Timer // ends it
}

// ensureTerminal returns the id of the login shell that viewers share. One that
// ended is started again.
func (s *Service) ensureTerminal(ctx context.Context, id sandbox.ID, size sandbox.WindowSize) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, lockTime)
	defer cancel()
	unlock, err := s.terminals.lock(ctx, id)
	if err != nil {
		return "", err
	}
	defer unlock()
	sb, err := s.cfg.Open(ctx, string(id))
	if err != nil {
		return "", err
	}
	all, err := sb.Processes(ctx)
	if err != nil {
		return "", err
	}
	for _, p := range all {
		if p.Running && p.TTY && p.Background && len(p.Args) > 0 && p.Args[len(p.Args)-1] == shellMark {
			return p.ID, nil
		}
	}
	if size.Cols == 0 || size.Rows == 0 {
		size = sandbox.WindowSize{Cols: 80, Rows: 24}
	}
	p, err := sb.Exec(ctx, sandbox.Command{
		Args: []string{"/bin/sh", "-c", shellScript, shellMark}, TTY: &size, Stdin: true, Background: true, Env: map[string]string{"TERM": "xterm-256color"},
	})
	if err != nil {
		return "", err
	}
	detach(p)
	return p.Info().ID, nil
}

func (t *terminals) lock(ctx context.Context, id sandbox.ID) (unlock func(), err error) {
	for {
		t.mu.Lock()
		busy := t.making[id]
		if busy == nil {
			if t.making == nil {
				t.making = map[sandbox.ID]chan struct{}{}
			}
			mine := make(chan struct{})
			t.making[id] = mine
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				defer t.mu.Unlock()
				delete(t.making, id)
				close(mine)
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "stream.open", Subject: string(id), Message: "another request is starting the terminal", Cause: ctx.Err()}
		}
	}
}

func detach(p driver.Process) {
	if d, ok := driver.As[driver.Detacher](p); ok {
		_ = d.Detach()
		return
	}
	_ = p.Close()
}

// isTerminal checks that a background command has a terminal.
func (s *Service) isTerminal(ctx context.Context, id sandbox.ID, process string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sb, err := s.cfg.Open(ctx, string(id))
	if err != nil {
		return err
	}
	all, err := sb.Processes(ctx)
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.ID == process && p.TTY && p.Background {
			return nil
		}
	}
	return &sandbox.Error{
		Code: sandbox.CodeNotFound, Op: "stream.open", Subject: process, Message: "is not a background command on a terminal",
		Hint: "start one with: atoll run -d -i -t -- COMMAND",
	}
}

// EnsureTerminal returns the id of a background command on a terminal: of the
// one with that id or, if it is empty, of the login shell that viewers share,
// which is started with a size if it does not run.
func (s *Service) EnsureTerminal(ctx context.Context, id sandbox.ID, process string, size sandbox.WindowSize) (string, error) {
	if process != "" {
		return process, s.isTerminal(ctx, id, process)
	}
	return s.ensureTerminal(ctx, id, size)
}

// EnterTerminal returns the shared terminal of a background command of a
// tenant's sandbox. Only if nobody uses the terminal yet, it gets the size,
// unless that is zero. leave is called once, when its user has left.
func (s *Service) EnterTerminal(tenant string, id sandbox.ID, process string, size sandbox.WindowSize) (t *terminal.Terminal, leave func(), err error) {
	at := place{id, process}
	all := &s.terminals
	all.mu.Lock()
	h := all.shared[at]
	if h != nil && h.t != nil && h.t.Lost() {
		h = nil
	}
	if h == nil {
		if all.shared == nil {
			all.shared = map[place]*shared{}
		}
		h = &shared{ready: make(chan struct{})}
		all.shared[at] = h
		go s.connect(tenant, at, size, h)
	}
	if h.users++; h.last != nil {
		h.last.Stop()
		h.last = nil
	}
	all.mu.Unlock()
	<-h.ready
	leave = func() {
		all.mu.Lock()
		defer all.mu.Unlock()
		if h.users--; h.users == 0 {
			h.last = time.AfterFunc(linger, func() { all.end(at, h) })
		}
	}
	if h.err != nil {
		leave()
		return nil, nil, h.err
	}
	return h.t, leave, nil
}

// end closes a terminal that nobody uses.
func (t *terminals) end(at place, h *shared) {
	t.mu.Lock()
	if h.users > 0 {
		t.mu.Unlock()
		return
	}
	if t.shared[at] == h {
		delete(t.shared, at)
	}
	t.mu.Unlock()
	if h.t != nil {
		h.t.Close()
	}
	if h.leave != nil {
		h.leave()
	}
}

// connect connects to the command of a terminal. Each viewer has the rights of
// its stream; the connection that they share is the daemon's.
func (s *Service) connect(tenant string, at place, size sandbox.WindowSize, h *shared) {
	defer close(h.ready)
	ctx, cancel := context.WithCancel(guard.WithPrincipal(s.cfg.Life, key.Principal{Tenant: tenant, Verbs: []key.Verb{key.Read, key.Exec}}))
	p, offset, err := s.rejoin(ctx, at)
	if err != nil {
		cancel()
		h.err = err
		s.terminals.mu.Lock()
		defer s.terminals.mu.Unlock()
		if s.terminals.shared[at] == h {
			delete(s.terminals.shared, at)
		}
		return
	}
	if size == (sandbox.WindowSize{}) {
		size = terminal.DefaultSize // until its user tells it
	} else {
		_ = p.Resize(ctx, size)
	}
	h.t = terminal.New(p, offset, size)
	h.t.Settle()
	stop := context.AfterFunc(s.cfg.Life, h.t.Close)
	h.leave = func() {
		stop()
		cancel()
	}
}

func (s *Service) rejoin(ctx context.Context, at place) (driver.Process, int64, error) {
	sb, err := s.cfg.Open(ctx, string(at.sandbox))
	if err != nil {
		return nil, 0, err
	}
	p, from, err := sb.Rejoin(ctx, at.process, driver.Cursor{}, true)
	if sandbox.CodeOf(err) == sandbox.CodeUnsupported {
		p, err = sb.Reconnect(ctx, at.process)
	}
	return p, from.Stdout, err
}

// showTerminal connects a viewer to a terminal until one of them ends or ctx
// does.
func (s *Service) showTerminal(ctx context.Context, ws *pacedSocket, o *opened, finish func(error)) {
	ws.SetReadLimit(maxInput)
	// A context that ends closes its socket before the reason can be sent.
	open := context.WithoutCancel(ctx)
	join, err := receive(open, ws)
	if err != nil || join.Type != "join" {
		goodbye(ws, errors.New("join-expected"))
		return
	}
	var size sandbox.WindowSize
	if o.Mode == string(stream.View) { // nobody tells the size, and nothing else knows it
		size = terminal.DefaultSize
	}
	t, leave, err := s.EnterTerminal(o.who.Tenant, o.Sandbox, o.Process, size)
	if err != nil {
		if err := s.lost(ctx, o); err != nil {
			finish(err)
			return
		}
		goodbye(ws, errors.New("terminal-unavailable"))
		return
	}
	defer leave()
	wanted := terminal.Join{Client: join.Client, Terminal: join.Terminal, From: join.Offset}
	if join.Size != nil {
		wanted.Size = *join.Size
	}
	if wanted.Client != "" {
		wanted.Client = o.ID + " " + wanted.Client // of another stream's viewers nobody takes anything over
	}
	v, w := t.View(o.Mode == string(stream.Control), wanted)
	defer v.Close()
	defer context.AfterFunc(ctx, v.Close)()
	sock := &viewerSocket{ctx: open, ws: ws}
	go func() {
		defer v.Close()
		sock.listen(v)
	}()
	if err := sock.welcome(v, w); err != nil {
		return
	}
	for {
		c, err := v.Next()
		if err != nil {
			return // the viewer left, or finish has told it why
		}
		if o.goesOn(c.Exit) {
			finish(errReaped)
			return
		}
		if last, err := sock.show(c); err != nil || last {
			if last && c.Exit == nil {
				s.broken(ctx, ws, o, c.Err, finish)
			}
			return
		}
	}
}

// goesOn reports whether the end of a command is that of its sandbox, while the
// page of a link continues in the next one of the session.
func (o *opened) goesOn(e *sandbox.Exit) bool {
	if e == nil || !o.linked || o.session == "" {
		return false
	}
	switch e.Reason {
	case sandbox.ReasonKilled, sandbox.ReasonLifetime, sandbox.ReasonCrashed, sandbox.ReasonLost:
		return true
	}
	return false
}

// broken tells a viewer why the connection to its terminal ended.
func (s *Service) broken(ctx context.Context, ws *pacedSocket, o *opened, err error, finish func(error)) {
	if sandbox.CodeOf(err) == sandbox.CodeConflict {
		goodbye(ws, errTaken)
		return
	}
	if err := s.lost(ctx, o); err != nil {
		finish(err)
		return
	}
	goodbye(ws, errors.New("terminal-unavailable"))
}

func receive(ctx context.Context, ws *pacedSocket) (m viewing.TerminalMessage, err error) {
	ctx, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	kind, text, err := ws.Read(ctx)
	if err == nil && kind != websocket.MessageText {
		err = errors.New("not a text")
	}
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	return m, err
}

// viewerSocket is the socket of a viewer of a terminal.
type viewerSocket struct {
	ctx context.Context
	ws  *pacedSocket
}

func (s *viewerSocket) send(m viewing.TerminalMessage) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return s.ws.Write(s.ctx, websocket.MessageText, text)
}

func (s *viewerSocket) welcome(v *terminal.Viewer, w terminal.Welcome) error {
	m := viewing.TerminalMessage{Type: "resume", Size: &w.Size, Terminal: w.Terminal, Offset: w.Offset, Input: w.Input}
	if w.Resumed {
		return s.send(m)
	}
	c := v.Screen()
	m.Type, m.Size, m.Offset = "screen", &c.Size, c.Offset
	if err := s.send(m); err != nil {
		return err
	}
	return s.ws.Write(s.ctx, websocket.MessageBinary, c.Screen)
}

// show sends a change, and reports whether it is the last one.
func (s *viewerSocket) show(c terminal.Change) (last bool, err error) {
	switch {
	case c.Screen != nil:
		if err := s.send(viewing.TerminalMessage{Type: "screen", Size: &c.Size, Offset: c.Offset}); err != nil {
			return false, err
		}
		return false, s.ws.Write(s.ctx, websocket.MessageBinary, c.Screen)
	case c.Output != nil:
		return false, s.ws.Write(s.ctx, websocket.MessageBinary, c.Output)
	case c.Exit != nil:
		if err := s.send(viewing.TerminalMessage{Type: "exit", Exit: c.Exit}); err != nil {
			return true, err
		}
		late := time.AfterFunc(farewell, func() { _ = s.ws.CloseNow() })
		defer late.Stop()
		return true, s.ws.Close(websocket.StatusNormalClosure, "exit")
	case c.Size != sandbox.WindowSize{}:
		return false, s.send(viewing.TerminalMessage{Type: "size", Size: &c.Size})
	}
	return true, nil
}

// listen handles what a viewer sends, until it leaves.
func (s *viewerSocket) listen(v *terminal.Viewer) {
	for {
		kind, r, err := s.ws.Reader(s.ctx)
		if err != nil {
			return
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return
		}
		if kind == websocket.MessageBinary {
			n, err := v.Type(data)
			if err != nil || n > 0 && s.send(viewing.TerminalMessage{Type: "input", Input: n}) != nil {
				return
			}
			continue
		}
		var m viewing.TerminalMessage
		if json.Unmarshal(data, &m) != nil {
			return
		}
		if m.Type == "size" && m.Size != nil {
			v.Resize(*m.Size)
		}
	}
}
