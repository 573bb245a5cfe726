package daytona

import (
	"context"
	"errors"
	"io"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

func (s *Server) toolboxRoutes() {
	const at = "/toolbox/{sandbox}"
	s.Handle("POST "+at+"/process/execute", s.withSandbox(s.execute))
	s.Handle("POST "+at+"/process/session", s.withSandbox(s.createSession))
	s.Handle("DELETE "+at+"/process/session/{session}", s.withSandbox(s.deleteSession))
	s.Handle("POST "+at+"/process/session/{session}/exec", s.withSandbox(s.sessionExec))
	s.Handle("GET "+at+"/process/session/{session}/command/{command}", s.withSandbox(s.command))
	s.HandleRaw("GET "+at+"/process/session/{session}/command/{command}/logs", s.logs)
	s.Handle("POST "+at+"/files/bulk-upload", s.withSandbox(s.upload))
	s.HandleRaw("GET "+at+"/files/download", func(w http.ResponseWriter, r *http.Request, owner string) error {
		b, err := s.sandbox(r, owner)
		if err != nil {
			return err
		}
		sb, _, err := s.Machine(b)
		if err != nil {
			return err
		}
		return servicetest.SendFile(w, r, sb, r.URL.Query().Get("path"))
	})
}

// shell is a command for the sandbox's shell.
func shell(text, dir string, env map[string]string) sandbox.Command {
	return sandbox.Command{Args: []string{"/bin/sh", "-c", text}, Dir: dir, Env: env}
}

const maxOutput = 1 << 20

// execute runs a command to its end.
func (s *Server) execute(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	var in struct {
		Command string            `json:"command"`
		Dir     string            `json:"cwd"`
		Env     map[string]string `json:"envs"`
		Timeout *int              `json:"timeout"`
	}
	if err := servicetest.Read(r, &in); err != nil {
		return nil, err
	}
	sb, awake, err := s.Machine(b)
	if err != nil {
		return nil, err
	}
	limit := 10 * time.Second
	if in.Timeout != nil && *in.Timeout > 0 {
		limit = time.Duration(*in.Timeout) * time.Second
	}
	ctx, cancel := context.WithTimeout(awake, limit)
	defer cancel()
	out, err := servicetest.Run(ctx, sb, shell(in.Command, in.Dir, in.Env), maxOutput)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, servicetest.Fail(http.StatusRequestTimeout, "command execution timeout")
	}
	if err != nil {
		return nil, err
	}
	text := strings.ToValidUTF8(string(out.Stdout)+string(out.Stderr), "\ufffd")
	return map[string]any{"exitCode": out.Exit.Code, "result": text}, nil
}

// session is a shell that lives until it is deleted, with what it runs.
type session struct {
	sandbox  string
	ctx      context.Context
	cancel   context.CancelFunc
	commands map[string]*command
}

// command is a command of a session.
type command struct {
	*servicetest.Log
	text string
}

func (s *Server) createSession(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	var in struct {
		ID string `json:"sessionId"`
	}
	if err := servicetest.Read(r, &in); err != nil {
		return nil, err
	}
	_, awake, err := s.Machine(b)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[in.ID] != nil {
		return nil, servicetest.Fail(http.StatusConflict, "session %s already exists", in.ID)
	}
	one := &session{sandbox: s.Show(b).ID, commands: map[string]*command{}}
	one.ctx, one.cancel = context.WithCancel(awake)
	s.sessions[in.ID] = one
	return struct{}{}, nil
}

// session finds a session of a sandbox.
func (s *Server) session(r *http.Request, b *servicetest.CloudSandbox) (*session, error) {
	id := s.Show(b).ID
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.sessions[r.PathValue("session")]
	if one == nil || one.sandbox != id {
		return nil, servicetest.Fail(http.StatusNotFound, "session not found")
	}
	return one, nil
}

// Sessions returns how many there are in sandboxes that run.
func (s *Server) Sessions() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.sessions {
		if one.ctx.Err() == nil {
			n++
		}
	}
	return n
}

func (s *Server) deleteSession(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	one, err := s.session(r, b)
	if err != nil {
		return nil, err
	}
	one.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, r.PathValue("session"))
	return struct{}{}, nil
}

func (s *Server) sessionExec(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	var in struct {
		Command string `json:"command"`
		Async   bool   `json:"runAsync"`
	}
	if err := servicetest.Read(r, &in); err != nil {
		return nil, err
	}
	one, err := s.session(r, b)
	if err != nil {
		return nil, err
	}
	sb, _, err := s.Machine(b)
	if err != nil {
		return nil, err
	}
	c, id := &command{s.Logged(one.ctx, sb, shell(in.Command, "", nil)), in.Command}, newID()
	s.mu.Lock()
	one.commands[id] = c
	s.mu.Unlock()
	if in.Async {
		return map[string]any{"cmdId": id}, nil
	}
	<-c.Done
	stdout, stderr := c.Text(servicetest.Stdout), c.Text(servicetest.Stderr)
	return map[string]any{"cmdId": id, "exitCode": c.Code(), "stdout": stdout, "stderr": stderr, "output": stdout + stderr}, nil
}

// find finds a command of a session.
func (s *Server) find(r *http.Request, b *servicetest.CloudSandbox) (*command, error) {
	one, err := s.session(r, b)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := one.commands[r.PathValue("command")]; c != nil {
		return c, nil
	}
	return nil, servicetest.Fail(http.StatusNotFound, "command not found")
}

func (s *Server) command(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	c, err := s.find(r, b)
	if err != nil {
		return nil, err
	}
	m := map[string]any{"id": r.PathValue("command"), "command": c.text}
	if code := c.Code(); code != nil {
		m["exitCode"] = *code
	}
	return m, nil
}

// logs answers with the output so far, or over a WebSocket with all of it.
func (s *Server) logs(w http.ResponseWriter, r *http.Request, owner string) error {
	b, err := s.sandbox(r, owner)
	if err != nil {
		return err
	}
	c, err := s.find(r, b)
	if err != nil {
		return err
	}
	if r.URL.Query().Get("follow") != "true" {
		stdout, stderr := c.Text(servicetest.Stdout), c.Text(servicetest.Stderr)
		servicetest.Answer(w, http.StatusOK, map[string]string{"stdout": stdout, "stderr": stderr, "output": stdout + stderr})
		return nil
	}
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return nil //nolint:nilerr // it was answered
	}
	defer func() { _ = ws.CloseNow() }()
	ctx := ws.CloseRead(r.Context())
	prefixes := map[string]string{servicetest.Stdout: "\x01\x01\x01", servicetest.Stderr: "\x02\x02\x02"}
	if c.Follow(ctx, func(k servicetest.Chunk) error {
		return ws.Write(ctx, websocket.MessageBinary, append([]byte(prefixes[k.Stream]), k.Data...))
	}) {
		_ = ws.Close(websocket.StatusNormalClosure, "")
	}
	return nil
}

// upload writes the files of a form: fields files[0].path and files[0].file, in
// this order.
func (s *Server) upload(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	sb, _, err := s.Machine(b)
	if err != nil {
		return nil, err
	}
	fs, err := servicetest.Files(sb)
	if err != nil {
		return nil, err
	}
	form, err := r.MultipartReader()
	if err != nil {
		return nil, servicetest.Fail(http.StatusBadRequest, "%v", err)
	}
	paths := map[string]string{}
	for {
		p, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			return struct{}{}, nil
		}
		if err != nil {
			return nil, servicetest.Fail(http.StatusBadRequest, "%v", err)
		}
		name, field, _ := strings.Cut(p.FormName(), ".")
		if field == "path" {
			text, err := io.ReadAll(io.LimitReader(p, 4096))
			if err != nil {
				return nil, err
			}
			paths[name] = string(text)
			continue
		}
		to := paths[name]
		if to == "" {
			return nil, servicetest.Fail(http.StatusBadRequest, "no path for %s", name)
		}
		if !path.IsAbs(to) {
			to = "/home/daytona/" + to
		}
		if _, err := fs.Write(r.Context(), to, p, driver.WriteOptions{}); err != nil {
			return nil, err
		}
	}
}
