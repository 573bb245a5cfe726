package microsandbox

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/cbor"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	generation = 5 // of the agent's protocol
	terminal   = 1 // flag of the last message with an ID
	firstID    = 1 << 20
	lastID     = 2 << 20
)

// agent is the agent of a sandbox for one client. Commands continue without it.
type agent struct {
	s     *Server
	in    driver.Instance
	awake context.Context
	env   map[string]string
	conn  io.ReadWriter

	mu       sync.Mutex
	commands map[uint32]driver.Process
	files    map[uint64]*file
}

// file is an open file.
type file struct {
	path string
	done chan error
	w    *io.PipeWriter
}

// agent connects a client to the agent of a sandbox.
func (s *Server) agent(w http.ResponseWriter, r *http.Request) {
	owner, err := s.Owner(r)
	a := &agent{s: s, env: map[string]string{}, commands: map[uint32]driver.Process{}, files: map[uint64]*file{}}
	if err == nil {
		_, err = s.withSandbox(func(_ *http.Request, b *servicetest.CloudSandbox) (_ any, err error) {
			c, _ := s.Show(b).Request.(creation)
			for _, e := range c.Env {
				a.env[e.Key] = e.Value
			}
			a.in, a.awake, err = s.Machine(b)
			return nil, err
		})(r, owner)
	}
	if err != nil {
		s.Refuse(w, r, err)
		return
	}
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = ws.CloseNow() }()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(a.awake, cancel)()
	conn := websocket.NetConn(ctx, ws, websocket.MessageBinary)
	ws.SetReadLimit(8 << 20)
	a.conn = conn
	hello := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, firstID), lastID)
	if _, err := conn.Write(hello); err != nil {
		return
	}
	a.send(0, 0, "core.ready", map[string]any{"boot_time_ns": 1, "init_time_ns": 1, "ready_time_ns": uint64(1) << 40, "agent_version": "0.7.11"})
	in := bufio.NewReader(conn)
	for a.receive(in) == nil {
	}
}

// send sends a message.
func (a *agent) send(id uint32, flags byte, kind string, payload map[string]any) {
	body := cbor.Append(nil, map[string]any{"v": generation, "t": kind, "p": cbor.Append(nil, payload)})
	out := binary.BigEndian.AppendUint32(nil, uint32(5+len(body)))
	out = append(binary.BigEndian.AppendUint32(out, id), flags)
	a.mu.Lock()
	defer a.mu.Unlock()
	_, _ = a.conn.Write(append(out, body...))
}

// receive reads and handles a message.
func (a *agent) receive(in io.Reader) error {
	var head [9]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return err
	}
	n, id := binary.BigEndian.Uint32(head[:]), binary.BigEndian.Uint32(head[4:])
	if n < 5 || n > 4<<20 || id < firstID || id >= lastID {
		return errors.New("invalid frame")
	}
	body := make([]byte, n-5)
	if _, err := io.ReadFull(in, body); err != nil {
		return err
	}
	envelope, err := dictionary(body)
	if err != nil {
		return err
	}
	text, _ := envelope["p"].([]byte)
	payload, err := dictionary(text)
	if err != nil {
		return err
	}
	a.mu.Lock()
	p := a.commands[id]
	a.mu.Unlock()
	switch kind := envelope["t"]; {
	case kind == "core.exec.request":
		a.start(id, payload)
	case kind == "core.fs.request":
		a.request(id, payload)
	case kind == "core.fs.data":
		a.data(id, payload)
	case p == nil: // it has ended
	case kind == "core.exec.stdin":
		data, _ := payload["data"].([]byte)
		if len(data) == 0 {
			_ = p.Stdin().Close()
		} else {
			_, _ = p.Stdin().Write(data)
		}
	case kind == "core.exec.signal":
		_ = p.Signal(a.awake, 9)
	}
	return nil
}

func dictionary(data []byte) (map[string]any, error) {
	v, err := cbor.Decode(data)
	m, ok := v.(map[string]any)
	if err == nil && !ok {
		err = errors.New("not a map")
	}
	return m, err
}

// start starts a command.
func (a *agent) start(id uint32, asked map[string]any) {
	cmd := sandbox.Command{Args: []string{fmt.Sprint(asked["cmd"])}, Env: map[string]string{}, Stdin: true}
	cmd.Dir, _ = asked["cwd"].(string)
	args, _ := asked["args"].([]any)
	for _, arg := range args {
		cmd.Args = append(cmd.Args, fmt.Sprint(arg))
	}
	for k, v := range a.env {
		cmd.Env[k] = v
	}
	vars, _ := asked["env"].([]any)
	for _, v := range vars {
		name, value, _ := strings.Cut(fmt.Sprint(v), "=")
		cmd.Env[name] = value
	}
	p, err := a.in.Exec(a.awake, &cmd)
	if err != nil {
		a.send(id, terminal, "core.exec.failed", map[string]any{"kind": "not_found", "message": err.Error(), "errno": nil, "errno_name": nil, "stage": nil})
		return
	}
	a.mu.Lock()
	a.commands[id] = p
	a.mu.Unlock()
	a.send(id, 0, "core.exec.started", map[string]any{"pid": 7})
	a.s.commands.Add(1)
	a.s.Work.Go(func() {
		defer a.s.commands.Add(-1)
		defer p.Close()
		defer context.AfterFunc(a.awake, func() { p.Close() })()
		output := func(kind string) func([]byte) error {
			return func(data []byte) error {
				a.send(id, 0, kind, map[string]any{"data": data})
				return nil
			}
		}
		var readers sync.WaitGroup
		readers.Go(func() { servicetest.Pump(p.Stdout(), output("core.exec.stdout")) })
		readers.Go(func() { servicetest.Pump(p.Stderr(), output("core.exec.stderr")) })
		readers.Wait()
		exit, err := p.Wait(a.awake)
		if err != nil {
			exit.Code = 137
		}
		a.mu.Lock()
		delete(a.commands, id)
		a.mu.Unlock()
		a.send(id, terminal, "core.exec.exited", map[string]any{"code": exit.Code})
	})
}

// respond ends a request about files.
func (a *agent) respond(id uint32, data any, err error) {
	m := map[string]any{"ok": err == nil, "error": nil, "data": data}
	if err != nil {
		m["error"] = err.Error()
	}
	a.send(id, terminal, "core.fs.response", m)
}

// request does what a request about files asks for.
func (a *agent) request(id uint32, asked map[string]any) {
	op, _ := asked["op"].(map[string]any)
	fs, err := servicetest.Files(a.in)
	for name, about := range op {
		args, _ := about.(map[string]any)
		handle, _ := args["handle"].(int64)
		a.mu.Lock()
		f := a.files[uint64(handle)]
		a.mu.Unlock()
		switch {
		case err != nil:
			a.respond(id, nil, err)
		case name == "OpenFile":
			f := &file{path: fmt.Sprint(args["path"]), done: make(chan error, 1)}
			a.mu.Lock()
			a.files[uint64(id)] = f
			a.mu.Unlock()
			a.respond(id, map[string]any{"Handle": uint64(id)}, nil)
		case f == nil:
			a.respond(id, nil, errors.New("the fake has no "+name))
		case name == "Write":
			r, w := io.Pipe()
			f.w = w
			a.mu.Lock()
			a.files[uint64(id)] = f // its data has the ID of the request
			a.mu.Unlock()
			a.s.Work.Go(func() {
				_, err := fs.Write(a.awake, f.path, r, driver.WriteOptions{})
				_ = r.CloseWithError(errors.New("the file cannot be written"))
				f.done <- err
			})
		case name == "Read":
			body, _, err := fs.Read(a.awake, f.path, driver.ReadOptions{})
			if err == nil {
				servicetest.Pump(body, func(data []byte) error {
					a.send(id, 0, "core.fs.data", map[string]any{"data": data})
					return nil
				})
				err = body.Close()
			}
			a.respond(id, nil, err)
		case name == "CloseHandle":
			a.respond(id, nil, nil)
		default:
			a.respond(id, nil, errors.New("the fake has no "+name))
		}
	}
}

// data is content of a file. An empty one is its end.
func (a *agent) data(id uint32, payload map[string]any) {
	a.mu.Lock()
	f := a.files[uint64(id)]
	a.mu.Unlock()
	if f == nil || f.w == nil {
		return
	}
	data, _ := payload["data"].([]byte)
	if len(data) > 0 {
		_, _ = f.w.Write(data)
		return
	}
	_ = f.w.Close()
	a.respond(id, nil, <-f.done)
}
