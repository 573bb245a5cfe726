package boxlite

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

// maxFrame is the largest WebSocket message that the server takes.
const maxFrame = 1 << 20

// execution is a command in a box.
type execution struct {
	id      string
	box     *servicetest.CloudSandbox
	p       driver.Process
	awake   context.Context // ends when the box stops
	started time.Time
	frames  chan []byte // output, each with its channel; closed at the end
	exited  chan struct{}
	exit    sandbox.Exit // once exited is closed
	killed  atomic.Bool
	client  sync.Mutex // held by the one that is attached
}

// signals are those that may be sent.
var signals = []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGABRT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGTERM, unix.SIGWINCH}

func (s *Server) execRoutes() {
	s.ofBox("POST", "/exec", s.exec)
	const one = "/executions/{exec}"
	s.ofBox("GET", one, s.withExecution(func(_ *http.Request, e *execution) (any, error) { return e.shown(), nil }))
	s.ofBox("DELETE", one, s.withExecution(s.kill))
	s.ofBox("POST", one+"/signal", s.withExecution(func(r *http.Request, e *execution) (any, error) {
		var c control
		if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
			return nil, invalid("%v", err)
		}
		return nil, e.send(r.Context(), c.Signal)
	}))
	s.ofBox("POST", one+"/resize", s.withExecution(func(r *http.Request, e *execution) (any, error) {
		var size sandbox.WindowSize
		if err := servicetest.ReadStrictly(r, &size); err != nil {
			return nil, err
		}
		return nil, e.p.Resize(r.Context(), size)
	}))
	s.ofBoxRaw("GET", one+"/attach", s.attach)
}

// exec starts a command, and the box if it is stopped. The environment of the
// box is not that of its commands.
func (s *Server) exec(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	var c struct {
		Command string            `json:"command"`
		Args    []string          `json:"args"`
		Env     map[string]string `json:"env"`
		Timeout *float64          `json:"timeout_seconds"`
		Dir     string            `json:"working_dir"`
		User    string            `json:"user"`
		TTY     bool              `json:"tty"`
	}
	if err := servicetest.ReadStrictly(r, &c); err != nil {
		return nil, err
	}
	if c.Command == "" {
		return nil, invalid("command is required")
	}
	if err := s.start(b); err != nil {
		return nil, err
	}
	in, awake, err := s.Machine(b)
	if err != nil {
		return nil, err
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
		return nil, err
	}
	e := &execution{id: "exec-" + servicetest.NewID(), box: b, p: p, awake: awake, started: time.Now().UTC(), frames: make(chan []byte), exited: make(chan struct{})}
	s.mu.Lock()
	s.of(b).executions[e.id] = e
	s.mu.Unlock()
	s.Work.Go(e.run)
	return map[string]string{"execution_id": e.id}, nil
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
	var err error
	if e.exit, err = e.p.Wait(e.awake); err != nil {
		_ = e.p.Close()
	}
	readers.Wait()
	close(e.exited)
	if err == nil {
		close(e.frames)
	}
}

// withExecution is a call about one command.
func (s *Server) withExecution(f func(*http.Request, *execution) (any, error)) func(*http.Request, *servicetest.CloudSandbox) (any, error) {
	return func(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
		s.mu.Lock()
		e := s.of(b).executions[r.PathValue("exec")]
		s.mu.Unlock()
		if e == nil {
			return nil, notFound("execution", r.PathValue("exec"))
		}
		return f(r, e)
	}
}

func (e *execution) shown() any {
	info := map[string]any{"execution_id": e.id, "status": "running", "exit_code": nil, "started_at": e.started, "duration_ms": nil, "error_message": nil}
	select {
	case <-e.exited:
	default:
		return info
	}
	info["status"], info["exit_code"] = "completed", e.exit.Code
	switch {
	case e.killed.Load():
		info["status"] = "killed"
	case e.exit.Reason == sandbox.ReasonTimeout:
		info["status"] = "timed_out"
	}
	return info
}

// kill ends a command and its process group, but not processes that have left
// the group.
func (s *Server) kill(r *http.Request, e *execution) (any, error) {
	e.killed.Store(true)
	select {
	case <-e.exited:
	default:
		_ = e.p.Signal(r.Context(), int(unix.SIGKILL)) // it may have ended
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of(e.box).executions, e.id)
	return nil, nil
}

func (e *execution) send(ctx context.Context, sig int) error {
	if !slices.Contains(signals, unix.Signal(sig)) {
		return invalid("signal %d is not allowed", sig)
	}
	return e.p.Signal(ctx, sig)
}

// attach connects a client with a command: one at a time.
func (s *Server) attach(w http.ResponseWriter, r *http.Request, b *servicetest.CloudSandbox) error {
	_, err := s.withExecution(func(r *http.Request, e *execution) (any, error) {
		if !e.client.TryLock() {
			return nil, servicetest.Fail(http.StatusConflict, "another client is attached")
		}
		defer e.client.Unlock()
		s.serve(w, r, e)
		return nil, nil
	})(r, b)
	return err
}

// serve hands output to a client until the command ends or the client leaves.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, e *execution) {
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return
	}
	defer func() { _ = ws.CloseNow() }()
	ws.SetReadLimit(maxFrame)
	ctx, end := context.WithCancel(r.Context())
	defer end()
	defer context.AfterFunc(e.awake, end)()
	s.Work.Go(func() { e.receive(ctx, ws, end) })
	for {
		select {
		case frame, more := <-e.frames:
			if !more {
				_ = text(ctx, ws, map[string]any{"type": "exit", "exit_code": e.exit.Code})
				_ = ws.Close(websocket.StatusNormalClosure, "")
				return
			}
			if ws.Write(ctx, websocket.MessageBinary, frame) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

func text(ctx context.Context, ws *websocket.Conn, m map[string]any) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return ws.Write(ctx, websocket.MessageText, body)
}

// control is a message of a client.
type control struct {
	Type   string
	Sig    int
	Signal int
	sandbox.WindowSize
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
		var c control
		err = json.Unmarshal(data, &c)
		switch {
		case err != nil:
		case c.Type == "stdin_eof":
			err = e.p.Stdin().Close()
		case c.Type == "signal":
			err = e.send(ctx, c.Sig)
		case c.Type == "resize":
			err = e.p.Resize(ctx, c.WindowSize)
		default:
			err = io.ErrUnexpectedEOF
		}
		if err != nil && text(ctx, ws, map[string]any{"type": "error", "message": err.Error()}) != nil {
			return
		}
	}
}

// outOfReach reports whether a path is at or below a mount of a box.
func (s *Server) outOfReach(b *servicetest.CloudSandbox, name string) bool {
	mounts := []string{"/proc", "/sys", "/dev"}
	for _, m := range s.Show(b).Mounts {
		mounts = append(mounts, m.Target)
	}
	return slices.ContainsFunc(mounts, func(m string) bool { return name == m || strings.HasPrefix(name, m+"/") })
}

// files returns how to pack and unpack files of a box that runs, and the path in a
// request.
func (s *Server) files(r *http.Request, b *servicetest.CloudSandbox) (string, driver.Instance, driver.Archiver, error) {
	name := path.Clean(r.URL.Query().Get("path"))
	if !path.IsAbs(name) || s.outOfReach(b, name) {
		return "", nil, nil, invalid("path is at or under a mount, or not absolute")
	}
	in, err := s.machine(b)
	if err != nil {
		return "", nil, nil, err
	}
	a, ok := driver.As[driver.Archiver](in)
	if !ok {
		err = errors.New("the fake has no archives")
	}
	return name, in, a, err
}

// upload unpacks an archive in a box: a tree, or a single file for that path or
// below that directory.
func (s *Server) upload(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	if r.Header.Get("Content-Type") != "application/x-tar" {
		return nil, invalid("an archive is expected")
	}
	to, in, a, err := s.files(r, b)
	if err != nil {
		return nil, err
	}
	single, into := r.URL.Query().Get("source_is_dir") == "false", to
	if single {
		into = "/tmp/upload-" + servicetest.NewID()
	}
	err = a.Import(r.Context(), into, r.Body, driver.ImportOptions{Owner: s.of(b).User})
	if err == nil && single {
		const script = `if [ -d "$2" ]; then cp -a "$1"/. "$2"; else mkdir -p "$(dirname "$2")" && cp -a "$1"/* "$2"; fi; e=$?; rm -r "$1"; exit $e`
		_, err = servicetest.Run(r.Context(), in, sandbox.Command{Args: []string{"/bin/sh", "-c", script, "sh", into, to}}, 1<<10)
	}
	return nil, err
}

// download packs the files at a path of a box.
func (s *Server) download(w http.ResponseWriter, r *http.Request, b *servicetest.CloudSandbox) error {
	from, _, a, err := s.files(r, b)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-tar")
	return a.Export(r.Context(), from, w, driver.ExportOptions{})
}

// setFlow replaces what may pass in a direction.
func (s *Server) setFlow(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	var f Flow
	if err := servicetest.ReadStrictly(r, &f); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.of(b)
	n := c.normal()
	if r.PathValue("way") == "outbound" {
		n.Outbound = &f
	} else {
		n.Inbound = &f
	}
	c.Network = &n
	return nil, nil
}

// tunnel returns an address for a port of a box: for HTTP as it is, and for
// anything else with CONNECT.
func (s *Server) tunnel(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	port, err := strconv.ParseUint(r.URL.Query().Get("port"), 10, 16)
	if err != nil || port == 0 {
		return nil, invalid("port is invalid")
	}
	in, err := s.machine(b)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.of(b)
	if c.normal().Inbound.Mode != "enabled" {
		return nil, servicetest.Fail(http.StatusConflict, "inbound traffic of the box is disabled")
	}
	t := c.tunnels[int(port)]
	if t == nil {
		t = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodConnect {
				s.connected.Add(1)
			}
			if err := servicetest.Forward(w, r, in, uint16(port)); err != nil {
				s.Refuse(w, r, err)
			}
		}))
		c.tunnels[int(port)] = t
	}
	return map[string]string{"uri": t.URL}, nil
}

func (s *Server) untunnel(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	port, _ := strconv.Atoi(r.URL.Query().Get("port"))
	s.mu.Lock()
	c := s.of(b)
	t := c.tunnels[port]
	delete(c.tunnels, port)
	s.mu.Unlock()
	if t != nil {
		t.Close()
	}
	return nil, nil
}

// Connected returns how many connections through tunnels were asked for, but for
// HTTP.
func (s *Server) Connected() int { return int(s.connected.Load()) }

// volume finds a volume by its ID or its name.
func (s *Server) volume(id, owner string) *volume {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.volumes {
		if v.owner == owner && (v.ID == id || v.Name == id) {
			return v
		}
	}
	return nil
}

func (s *Server) volumeRoutes() {
	s.route("POST", "/volumes", func(r *http.Request, owner string) (any, error) {
		var in struct {
			Name string `json:"name"`
		}
		if err := servicetest.ReadStrictly(r, &in); err != nil {
			return nil, err
		}
		id := "vol_" + servicetest.NewID()
		v := &volume{ID: id, Name: cmp.Or(in.Name, id), State: "ready", Created: time.Now().UTC(), Updated: time.Now().UTC(), owner: owner, dir: filepath.Join(s.dir, id)}
		if s.volume(v.Name, owner) != nil {
			return nil, servicetest.FailAs(http.StatusConflict, "already_exists", "volume already exists: %s", v.Name)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.volumes[id] = v
		return v, os.MkdirAll(v.dir, 0o755)
	})
	s.route("GET", "/volumes", func(_ *http.Request, owner string) (any, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		all := []*volume{}
		for _, v := range s.volumes {
			if v.owner == owner {
				all = append(all, v)
			}
		}
		return map[string]any{"volumes": all}, nil
	})
	s.route("DELETE", "/volumes/{volume}", func(r *http.Request, owner string) (any, error) {
		v := s.volume(r.PathValue("volume"), owner)
		if v == nil {
			return nil, notFound("volume", r.PathValue("volume"))
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.volumes, v.ID)
		return nil, os.RemoveAll(v.dir)
	})
}
