package boxlite

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	// reaping is how long a command without an attached client keeps running.
	reaping = 5 * time.Minute
	// beat is the interval of pings to a client.
	beat = 15 * time.Second
	// maxFrame is the largest WebSocket message that the server takes.
	maxFrame = 1 << 20
)

// execution is a command in a box.
type execution struct {
	id      string
	in      driver.Instance
	p       driver.Process
	awake   context.Context // ends when the box stops
	started time.Time
	frames  chan []byte // output, each with its channel; closed at the end
	exited  chan struct{}
	reaper  servicetest.Timer

	mu       sync.Mutex
	attached bool
	pending  []byte // a frame that was not sent
	exit     sandbox.Exit
	killed   bool
}

// signals are those that may be sent.
var signals = []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGABRT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGTERM, unix.SIGWINCH}

// exec starts a command, and the box if it is stopped. The environment of the
// box is not that of its commands.
func (s *Server) exec(r *http.Request, b *box) (int, any, error) {
	var c struct {
		Command string            `json:"command"`
		Args    []string          `json:"args"`
		Env     map[string]string `json:"env"`
		Timeout *float64          `json:"timeout_seconds"`
		Dir     string            `json:"working_dir"`
		User    string            `json:"user"`
		TTY     bool              `json:"tty"`
	}
	if err := read(r, &c); err != nil {
		return 0, nil, err
	}
	if c.Command == "" {
		return 0, nil, invalid("command is required")
	}
	if err := s.start(context.WithoutCancel(r.Context()), b); err != nil {
		return 0, nil, err
	}
	in, awake, err := s.running(b)
	if err != nil {
		return 0, nil, err
	}
	cmd := sandbox.Command{Args: append([]string{c.Command}, c.Args...), Env: c.Env, Dir: c.Dir, User: c.User, Stdin: true, Background: true}
	if c.Timeout != nil {
		cmd.Timeout = time.Duration(*c.Timeout * float64(time.Second))
	}
	if c.TTY {
		cmd.TTY = &sandbox.WindowSize{Cols: 80, Rows: 24}
	}
	p, err := in.Exec(awake, &cmd)
	if err != nil {
		return 0, nil, err
	}
	e := &execution{id: "exec-" + rand.Text(), in: in, p: p, awake: awake, started: time.Now().UTC(), frames: make(chan []byte), exited: make(chan struct{})}
	s.mu.Lock()
	b.executions[e.id] = e
	s.mu.Unlock()
	e.orphan()
	s.work.Go(e.run)
	return http.StatusCreated, map[string]string{"execution_id": e.id}, nil
}

// orphan ends a command some time after its last client has detached.
func (e *execution) orphan() {
	e.reaper.Set(reaping, func() { _ = e.p.Signal(context.Background(), int(unix.SIGHUP)) })
}

// run hands on what a command writes until it has ended.
func (e *execution) run() {
	defer e.p.Close()
	put := func(channel byte) func([]byte) error {
		return func(data []byte) error {
			select {
			case e.frames <- slices.Concat([]byte{channel}, data):
				return nil
			case <-e.awake.Done():
				return e.awake.Err()
			}
		}
	}
	var readers sync.WaitGroup
	readers.Go(func() { servicetest.Pump(e.p.Stdout(), put(1)) })
	readers.Go(func() { servicetest.Pump(e.p.Stderr(), put(2)) })
	exit, err := e.p.Wait(e.awake)
	if err != nil {
		_ = e.p.Close()
	}
	readers.Wait()
	e.mu.Lock()
	e.exit = exit
	e.mu.Unlock()
	e.reaper.Set(0, nil)
	close(e.exited)
	if err == nil {
		close(e.frames)
	}
}

func (s *Server) withExecution(f func(*http.Request, *execution) (int, any, error)) func(*http.Request, *box) (int, any, error) {
	return func(r *http.Request, b *box) (int, any, error) {
		s.mu.Lock()
		e := b.executions[r.PathValue("exec")]
		s.mu.Unlock()
		if e == nil {
			return 0, nil, notFound("execution", r.PathValue("exec"))
		}
		return f(r, e)
	}
}

func (s *Server) getExecution(_ *http.Request, e *execution) (int, any, error) {
	info := map[string]any{"execution_id": e.id, "status": "running", "exit_code": nil, "started_at": e.started, "duration_ms": nil, "error_message": nil}
	select {
	case <-e.exited:
		e.mu.Lock()
		defer e.mu.Unlock()
		info["status"], info["exit_code"] = "completed", e.exit.Code
		switch {
		case e.killed:
			info["status"] = "killed"
		case e.exit.Reason == sandbox.ReasonTimeout:
			info["status"] = "timed_out"
		}
	default:
	}
	return http.StatusOK, info, nil
}

// killExecution ends a command and its process group, but not processes that
// have left the group.
func (s *Server) killExecution(r *http.Request, e *execution) (int, any, error) {
	e.mu.Lock()
	e.killed = true
	e.mu.Unlock()
	select {
	case <-e.exited:
	default:
		pid := strconv.Itoa(e.p.Info().PID)
		_, err := servicetest.Run(r.Context(), e.in, sandbox.Command{Shell: "kill -KILL -" + pid + " || kill -KILL " + pid}, 1<<10)
		if err != nil {
			return 0, nil, err
		}
	}
	b, err := s.find(r)
	if err == nil {
		s.mu.Lock()
		delete(b.executions, e.id)
		s.mu.Unlock()
	}
	return http.StatusNoContent, nil, nil
}

func (e *execution) send(ctx context.Context, sig int) error {
	if !slices.Contains(signals, unix.Signal(sig)) {
		return invalid("signal %d is not allowed", sig)
	}
	return e.p.Signal(ctx, sig)
}

func (s *Server) signal(r *http.Request, e *execution) (int, any, error) {
	var c struct {
		Signal int `json:"signal"`
	}
	if err := read(r, &c); err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, e.send(r.Context(), c.Signal)
}

type size struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

func (s *Server) resize(r *http.Request, e *execution) (int, any, error) {
	var c size
	if err := read(r, &c); err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, e.p.Resize(r.Context(), sandbox.WindowSize{Cols: c.Cols, Rows: c.Rows})
}

// attach connects a client with a command: one at a time, and any number one
// after the other.
func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	_, _, err := s.withBox(s.withExecution(func(r *http.Request, e *execution) (int, any, error) {
		e.mu.Lock()
		taken := e.attached
		e.attached = true
		e.mu.Unlock()
		if taken {
			return 0, nil, fail(http.StatusConflict, "invalid_state", "another client is attached")
		}
		e.reaper.Set(0, nil)
		defer func() {
			e.mu.Lock()
			e.attached = false
			e.mu.Unlock()
			select {
			case <-e.exited:
			default:
				e.orphan()
			}
		}()
		s.serveExecution(w, r, e)
		return 0, nil, nil
	}))(r)
	if err != nil {
		refuse(w, err)
	}
}

func (s *Server) serveExecution(w http.ResponseWriter, r *http.Request, e *execution) {
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return
	}
	defer func() { _ = ws.CloseNow() }()
	ws.SetReadLimit(maxFrame)
	ctx, end := context.WithCancel(r.Context())
	defer end()
	defer context.AfterFunc(e.awake, end)()
	s.work.Go(func() { e.receive(ctx, ws, end) })
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	for {
		e.mu.Lock()
		frame := e.pending
		e.mu.Unlock()
		var more bool
		if frame == nil {
			select {
			case frame, more = <-e.frames:
				if !more {
					e.mu.Lock()
					code := e.exit.Code
					e.mu.Unlock()
					_ = wsText(ctx, ws, map[string]any{"type": "exit", "exit_code": code})
					_ = ws.Close(websocket.StatusNormalClosure, "")
					return
				}
			case <-ticker.C:
				pinging, cancel := context.WithTimeout(ctx, beat)
				err := ws.Ping(pinging)
				cancel()
				if err != nil {
					return
				}
				continue
			case <-ctx.Done():
				return
			}
		}
		err := ws.Write(ctx, websocket.MessageBinary, frame)
		e.mu.Lock()
		if e.pending = frame; err == nil {
			e.pending = nil
		}
		e.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func wsText(ctx context.Context, ws *websocket.Conn, m map[string]any) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return ws.Write(ctx, websocket.MessageText, text)
}

// receive handles input and control messages until the client disconnects.
// Errors are reported and do not end the command.
func (e *execution) receive(ctx context.Context, ws *websocket.Conn, end context.CancelFunc) {
	defer end()
	for {
		kind, data, err := ws.Read(ctx)
		if err != nil {
			return
		}
		if kind == websocket.MessageBinary {
			_, _ = e.p.Stdin().Write(data) // the command may have closed it
			continue
		}
		var c struct {
			Type string
			Sig  int
			size
		}
		err = json.Unmarshal(data, &c)
		switch {
		case err != nil:
		case c.Type == "stdin_eof":
			err = e.p.Stdin().Close()
		case c.Type == "signal":
			err = e.send(ctx, c.Sig)
		case c.Type == "resize":
			err = e.p.Resize(ctx, sandbox.WindowSize{Cols: c.Cols, Rows: c.Rows})
		default:
			err = io.ErrUnexpectedEOF
		}
		if err != nil && wsText(ctx, ws, map[string]any{"type": "error", "message": err.Error()}) != nil {
			return
		}
	}
}
