package superserve

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

const protocol = "superserve.exec.v1"

func (s *Server) dataRoutes() {
	s.HandleFunc("POST /exec", s.inside(s.exec))
	s.HandleFunc("POST /exec/stream", s.inside(s.execStream))
	s.HandleFunc("GET /exec/connect", s.inside(s.execConnect))
	s.HandleFunc("GET /files", s.inside(func(w http.ResponseWriter, r *http.Request, m *machine) error {
		return servicetest.SendFile(w, r, m.in, r.URL.Query().Get("path"))
	}))
	s.HandleFunc("POST /files", s.inside(func(w http.ResponseWriter, r *http.Request, m *machine) error {
		name := r.URL.Query().Get("path")
		err := servicetest.TakeFile(r, m.in, name, r.Body)
		if err == nil {
			servicetest.Answer(w, http.StatusOK, map[string]string{"path": name})
		}
		return err
	}))
}

// machine is the inside of a sandbox that is active.
type machine struct {
	in  driver.Instance
	env map[string]string
}

// inside lets those in who have the token of a sandbox that is active. The
// context of the request ends when that is paused.
func (s *Server) inside(f func(http.ResponseWriter, *http.Request, *machine) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := strings.Cut(r.Host, ".")
		id, token := r.Header.Get("X-Superserve-Sandbox-Id"), r.Header.Get("X-Access-Token")
		if id == "" {
			id = strings.TrimPrefix(host, "boxd-")
		}
		for _, p := range protocols(r) {
			if t, ok := strings.CutPrefix(p, "token."); ok {
				token = t
			}
		}
		b := s.sandbox(id)
		if b == nil {
			s.Refuse(w, r, servicetest.FailAs(http.StatusNotFound, "sandbox_route_stale", "no route"))
			return
		}
		in, awake, err := s.Machine(b.CloudSandbox)
		if err != nil {
			http.Error(w, "sandbox is paused", http.StatusServiceUnavailable)
			return
		}
		s.mu.Lock()
		good, m := token == b.token, &machine{in, maps.Clone(b.Env)}
		s.mu.Unlock()
		if !good {
			s.Refuse(w, r, servicetest.Fail(http.StatusUnauthorized, "invalid access token"))
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(awake, cancel)()
		if err := f(w, r.WithContext(ctx), m); err != nil {
			s.Refuse(w, r, err)
		}
	}
}

func protocols(r *http.Request) (all []string) {
	for p := range strings.SplitSeq(strings.Join(r.Header.Values("Sec-WebSocket-Protocol"), ","), ",") {
		all = append(all, strings.TrimSpace(p))
	}
	return all
}

// run is what to run.
type run struct {
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
	Dir     string            `json:"working_dir"`
	Timeout int64             `json:"timeout_s"`
}

func (m *machine) command(r run) sandbox.Command {
	maps.Copy(m.env, r.Env)
	args := []string{"/bin/sh", "-c", r.Command}
	if len(r.Args) > 0 {
		args = append([]string{r.Command}, r.Args...)
	}
	return sandbox.Command{Args: args, Env: m.env, Dir: r.Dir, Timeout: time.Duration(r.Timeout) * time.Second}
}

// asked returns the command of a request.
func (m *machine) asked(r *http.Request) (sandbox.Command, error) {
	var what run
	err := servicetest.Read(r, &what)
	if err == nil && what.Command == "" {
		err = invalid("command")
	}
	return m.command(what), err
}

// status is the exit status in the service's format.
func status(x sandbox.Exit) int {
	if x.Reason == sandbox.ReasonTimeout {
		return 124
	}
	return x.Code
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request, m *machine) error {
	cmd, err := m.asked(r)
	if err != nil {
		return err
	}
	out, err := servicetest.Run(r.Context(), m.in, cmd, 1<<20)
	if err != nil {
		return err
	}
	if out.Truncated {
		out.Stderr = append(out.Stderr, "\n[output truncated]\n"...)
	}
	servicetest.Answer(w, http.StatusOK, map[string]any{
		"stdout": string(out.Stdout), "stderr": string(out.Stderr), "exit_code": status(out.Exit), "truncated": out.Truncated,
	})
	return nil
}

// execStream sends output as text events.
func (s *Server) execStream(w http.ResponseWriter, r *http.Request, m *machine) error {
	cmd, err := m.asked(r)
	if err != nil {
		return err
	}
	events := servicetest.NewEvents(w)
	send := func(event map[string]any) {
		text, _ := json.Marshal(event)
		events.Send("", string(text))
	}
	stream := func(name string) func([]byte) error {
		return func(data []byte) error {
			send(map[string]any{"timestamp": time.Now().UTC(), name: strings.ToValidUTF8(string(data), "\ufffd")})
			return nil
		}
	}
	exit, err := servicetest.Stream(r.Context(), m.in, cmd, stream("stdout"), stream("stderr"))
	switch {
	case r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // it was paused: the stream has no end
	case err != nil:
		send(map[string]any{"error": err.Error(), "code": "exec_failed", "finished": true})
	default:
		send(map[string]any{"exit_code": status(exit), "finished": true})
	}
	return nil
}

func (s *Server) execConnect(w http.ResponseWriter, r *http.Request, m *machine) error {
	if !slices.Contains(protocols(r), protocol) {
		return servicetest.Fail(http.StatusBadRequest, "subprotocol is required")
	}
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{protocol}, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return nil //nolint:nilerr // it has answered
	}
	defer func() { _ = ws.CloseNow() }()
	ws.SetReadLimit(64 << 10)
	kind, text, err := ws.Read(r.Context())
	var what run
	if err != nil || kind != websocket.MessageText || json.Unmarshal(text, &what) != nil || what.Command == "" {
		_ = ws.Close(websocket.StatusPolicyViolation, "start frame expected")
		return nil
	}
	var mu sync.Mutex
	output := func(channel byte) func([]byte) error {
		return func(data []byte) error {
			mu.Lock()
			defer mu.Unlock()
			return ws.Write(r.Context(), websocket.MessageBinary, append([]byte{channel}, data...))
		}
	}
	exit, err := s.Interact(r.Context(), m.in, m.command(what), output(1), output(2), func(p driver.Process) { receive(r.Context(), ws, p) })
	end := map[string]any{"finished": true, "exit_code": status(exit)}
	if err != nil {
		end = map[string]any{"finished": true, "error": err.Error()}
	}
	if r.Context().Err() == nil {
		text, _ = json.Marshal(end)
		_ = ws.Write(r.Context(), websocket.MessageText, text)
		_ = ws.Close(websocket.StatusNormalClosure, "")
	}
	return nil
}

// receive takes input and signals until the client hangs up.
func receive(ctx context.Context, ws *websocket.Conn, p driver.Process) {
	for {
		kind, data, err := ws.Read(ctx)
		if err != nil {
			return
		}
		if kind == websocket.MessageBinary {
			if len(data) > 0 && data[0] == 0 {
				_, _ = p.Stdin().Write(data[1:]) // the command may have closed it
			}
			continue
		}
		var control struct{ Type, Name string }
		switch _ = json.Unmarshal(data, &control); control.Type {
		case "stdin_close":
			_ = p.Stdin().Close()
		case "signal":
			_ = p.Signal(ctx, int(unix.SignalNum(control.Name)))
		}
	}
}
