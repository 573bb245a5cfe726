package vercel

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"path"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

func (s *Server) sessionRoutes() {
	const at = "/api/v2/sandboxes/sessions/{session}"
	s.Handle("GET "+at, s.withSession(func(_ *http.Request, one *session) (any, error) {
		return map[string]any{"session": s.shownSession(one)}, nil
	}))
	s.Handle("POST "+at+"/stop", s.withSession(s.stop))
	s.Handle("GET "+at+"/cmd/{command}", s.withCommand(func(r *http.Request, one *session, c *command) (any, error) {
		if r.URL.Query().Get("wait") == "true" {
			select {
			case <-c.Done:
			case <-r.Context().Done():
			}
		}
		return map[string]any{"command": c.shown(one)}, nil
	}))
	s.Handle("POST "+at+"/cmd/{command}/kill", s.withCommand(func(_ *http.Request, one *session, c *command) (any, error) {
		c.Kill()
		return map[string]any{"command": c.shown(one)}, nil
	}))
	s.HandleRaw("POST "+at+"/cmd", s.run)
	s.HandleRaw("GET "+at+"/cmd/{command}/logs", func(w http.ResponseWriter, r *http.Request, owner string) error {
		one, err := s.session(r, owner)
		if err != nil {
			return err
		}
		c, err := s.find(r, one)
		if err == nil {
			c.follow(r.Context(), stream(w))
		}
		return err
	})
	s.Handle("POST "+at+"/fs/write", s.withSession(s.write))
	s.HandleRaw("POST "+at+"/fs/read", s.read)
}

// session finds a session of the team in a request.
func (s *Server) session(r *http.Request, owner string) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.sessions {
		if one.id == r.PathValue("session") && s.Show(one.sandbox).Owner == owner {
			return one, nil
		}
	}
	return nil, servicetest.Fail(http.StatusNotFound, "Session not found")
}

func (s *Server) withSession(f func(r *http.Request, one *session) (any, error)) func(*http.Request, string) (any, error) {
	return func(r *http.Request, owner string) (any, error) {
		one, err := s.session(r, owner)
		if err != nil {
			return nil, err
		}
		return f(r, one)
	}
}

func (s *Server) withCommand(f func(r *http.Request, one *session, c *command) (any, error)) func(*http.Request, string) (any, error) {
	return s.withSession(func(r *http.Request, one *session) (any, error) {
		c, err := s.find(r, one)
		if err != nil {
			return nil, err
		}
		return f(r, one, c)
	})
}

// find finds the command of a session in a request.
func (s *Server) find(r *http.Request, one *session) (*command, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range one.commands {
		if c.id == r.PathValue("command") {
			return c, nil
		}
	}
	return nil, servicetest.Fail(http.StatusNotFound, "Command not found")
}

// machine returns the machine of a session that runs.
func (s *Server) machine(one *session) (driver.Instance, context.Context, error) {
	sb, awake, err := s.Machine(one.sandbox)
	switch {
	case err == nil && s.current(one.sandbox) == one:
		return sb, awake, nil
	case s.Show(one.sandbox).Status == stopping:
		return nil, nil, servicetest.FailAs(http.StatusUnprocessableEntity, "sandbox_stopping", "Sandbox is stopping")
	}
	return nil, nil, servicetest.FailAs(http.StatusGone, "sandbox_stopped", "Sandbox is stopped")
}

func (s *Server) stop(_ *http.Request, one *session) (any, error) {
	if _, _, err := s.machine(one); err != nil {
		return nil, err
	}
	err := s.Stop(one.sandbox)
	return map[string]any{"session": s.shownSession(one), "sandbox": s.summary(one.sandbox)}, err
}

// command is a command of a session.
type command struct {
	*servicetest.Log
	id      string
	name    string
	args    []string
	started time.Time
}

func (c *command) shown(one *session) map[string]any {
	return map[string]any{
		"id": c.id, "name": c.name, "args": c.args, "cwd": "/", "sessionId": one.id, "exitCode": c.Code(), "startedAt": c.started.UnixMilli(),
	}
}

// Commands returns how many commands run.
func (s *Server) Commands() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.sessions {
		for _, c := range one.commands {
			if c.Code() == nil {
				n++
			}
		}
	}
	return n
}

// start starts a command.
func (s *Server) start(r *http.Request, one *session) (*command, error) {
	var in struct {
		Command string            `json:"command"`
		Args    []string          `json:"args"`
		Cwd     string            `json:"cwd"`
		Env     map[string]string `json:"env"`
	}
	if err := servicetest.Read(r, &in); err != nil {
		return nil, err
	}
	sb, awake, err := s.machine(one)
	if err != nil {
		return nil, err
	}
	made, _ := s.Show(one.sandbox).Request.(creation)
	env := maps.Clone(made.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, in.Env)
	c := &command{id: "cmd_" + servicetest.NewID(), name: in.Command, args: in.Args, started: time.Now()}
	c.Log = s.Logged(awake, sb, sandbox.Command{Args: append([]string{in.Command}, in.Args...), Dir: in.Cwd, Env: env})
	s.mu.Lock()
	defer s.mu.Unlock()
	one.commands = append(one.commands, c)
	return c, nil
}

// run starts a command, and with wait it answers with all of its output.
func (s *Server) run(w http.ResponseWriter, r *http.Request, owner string) error {
	one, err := s.session(r, owner)
	if err != nil {
		return err
	}
	c, err := s.start(r, one)
	if err != nil {
		return err
	}
	if r.URL.Query().Get("wait") != "true" {
		servicetest.Answer(w, http.StatusOK, map[string]any{"command": c.shown(one)})
		return nil
	}
	lines := stream(w)
	lines(map[string]any{"command": c.shown(one)})
	if c.follow(r.Context(), lines) {
		lines(map[string]any{"command": c.shown(one)})
	}
	return nil
}

// stream returns a function that writes a record.
func stream(w http.ResponseWriter) func(any) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	return func(v any) {
		_ = json.NewEncoder(w).Encode(v)
		_ = http.NewResponseController(w).Flush()
	}
}

// follow writes the output of a command from its beginning to its end.
func (c *command) follow(ctx context.Context, write func(any)) bool {
	return c.Follow(ctx, func(k servicetest.Chunk) error {
		write(map[string]string{"stream": k.Stream, "data": k.Text()})
		return nil
	})
}

// write unpacks a compressed archive.
func (s *Server) write(r *http.Request, one *session) (any, error) {
	sb, _, err := s.machine(one)
	if err != nil {
		return nil, err
	}
	fs, err := servicetest.Files(sb)
	if err != nil {
		return nil, err
	}
	invalid := func(err error) error { return servicetest.Fail(http.StatusBadRequest, "Invalid archive: %v", err) }
	zip, err := gzip.NewReader(r.Body)
	if err != nil {
		return nil, invalid(err)
	}
	archive := tar.NewReader(zip)
	for {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return struct{}{}, nil
		}
		if err != nil {
			return nil, invalid(err)
		}
		if _, err := fs.Write(r.Context(), path.Join("/", r.Header.Get("X-Cwd"), head.Name), archive, driver.WriteOptions{}); err != nil {
			return nil, err
		}
	}
}

func (s *Server) read(w http.ResponseWriter, r *http.Request, owner string) error {
	var in struct{ Path, Cwd string }
	one, err := s.session(r, owner)
	if err == nil {
		err = servicetest.Read(r, &in)
	}
	if err != nil {
		return err
	}
	sb, _, err := s.machine(one)
	if err != nil {
		return err
	}
	if !path.IsAbs(in.Path) {
		in.Path = path.Join("/", in.Cwd, in.Path)
	}
	return servicetest.SendFile(w, r, sb, in.Path)
}
