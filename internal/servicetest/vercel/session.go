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
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
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
			case <-c.done:
			case <-r.Context().Done():
			}
		}
		return map[string]any{"command": c.shown(one)}, nil
	}))
	s.Handle("POST "+at+"/cmd/{command}/kill", s.withCommand(func(_ *http.Request, one *session, c *command) (any, error) {
		c.kill()
		return map[string]any{"command": c.shown(one)}, nil
	}))
	s.HandleFunc("POST "+at+"/cmd", s.run)
	s.HandleFunc("GET "+at+"/cmd/{command}/logs", s.logs)
	s.Handle("POST "+at+"/fs/write", s.withSession(s.write))
	s.HandleFunc("POST "+at+"/fs/read", s.readFile)
}

// session finds a session of the team in a request.
func (s *Server) session(r *http.Request, owner string) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.sessions {
		if one.id == r.PathValue("session") && s.Show(one.box).Owner == owner {
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
		s.mu.Lock()
		var found *command
		for _, c := range one.commands {
			if c.id == r.PathValue("command") {
				found = c
			}
		}
		s.mu.Unlock()
		if found == nil {
			return nil, servicetest.Fail(http.StatusNotFound, "Command not found")
		}
		return f(r, one, found)
	})
}

// machine returns the machine of a session that runs.
func (s *Server) machine(one *session) (driver.Instance, context.Context, error) {
	box, awake, err := s.Machine(one.box)
	switch {
	case err == nil && s.current(one.box) == one:
		return box, awake, nil
	case s.Show(one.box).Status == stopping:
		return nil, nil, servicetest.FailAs(http.StatusUnprocessableEntity, "sandbox_stopping", "Sandbox is stopping")
	}
	return nil, nil, servicetest.FailAs(http.StatusGone, "sandbox_stopped", "Sandbox is stopped")
}

func (s *Server) stop(_ *http.Request, one *session) (any, error) {
	if _, _, err := s.machine(one); err != nil {
		return nil, err
	}
	err := s.Stop(one.box)
	return map[string]any{"session": s.shownSession(one), "sandbox": s.summary(one.box)}, err
}

// command is a command of a session.
type command struct {
	id      string
	name    string
	args    []string
	started time.Time
	kill    context.CancelFunc
	done    chan struct{} // closed when it has ended

	mu      sync.Mutex
	changed sync.Cond
	out     []map[string]string // records
	code    *int
	ended   bool
}

func (c *command) add(stream string) func([]byte) error {
	return func(data []byte) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.out = append(c.out, map[string]string{"stream": stream, "data": strings.ToValidUTF8(string(data), "\ufffd")})
		c.changed.Broadcast()
		return nil
	}
}

func (c *command) shown(one *session) map[string]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	return map[string]any{
		"id": c.id, "name": c.name, "args": c.args, "cwd": "/", "sessionId": one.id, "exitCode": c.code, "startedAt": c.started.UnixMilli(),
	}
}

// Commands returns how many commands run.
func (s *Server) Commands() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.sessions {
		for _, c := range one.commands {
			select {
			case <-c.done:
			default:
				n++
			}
		}
	}
	return n
}

// killed is the exit code of a command that was killed.
const killed = 137

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
	box, awake, err := s.machine(one)
	if err != nil {
		return nil, err
	}
	made, _ := s.Show(one.box).Request.(creation)
	env := maps.Clone(made.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, in.Env)
	c := &command{id: "cmd_" + servicetest.NewID(), name: in.Command, args: in.Args, started: time.Now(), done: make(chan struct{})}
	c.changed.L = &c.mu
	ctx, kill := context.WithCancel(awake)
	c.kill = kill
	s.mu.Lock()
	one.commands = append(one.commands, c)
	s.mu.Unlock()
	s.Work.Go(func() {
		defer kill()
		exit, err := servicetest.Stream(ctx, box, sandbox.Command{Args: append([]string{in.Command}, in.Args...), Dir: in.Cwd, Env: env}, c.add("stdout"), c.add("stderr"))
		if err != nil {
			exit.Code = killed
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ended, c.code = true, &exit.Code
		close(c.done)
		c.changed.Broadcast()
	})
	return c, nil
}

// run starts a command, and with wait it answers with all of its output.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	owner, err := s.Owner(r)
	var one *session
	var c *command
	if err == nil {
		one, err = s.session(r, owner)
	}
	if err == nil {
		c, err = s.start(r, one)
	}
	switch {
	case err != nil:
		s.Refuse(w, r, err)
	case r.URL.Query().Get("wait") != "true":
		servicetest.Answer(w, http.StatusOK, map[string]any{"command": c.shown(one)})
	default:
		lines := stream(w)
		lines(map[string]any{"command": c.shown(one)})
		if c.follow(r.Context(), lines) {
			lines(map[string]any{"command": c.shown(one)})
		}
	}
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
	defer context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed.Broadcast()
	})()
	for n := 0; ; n++ {
		c.mu.Lock()
		for n >= len(c.out) && !c.ended && ctx.Err() == nil {
			c.changed.Wait()
		}
		var next map[string]string
		if n < len(c.out) {
			next = c.out[n]
		}
		c.mu.Unlock()
		if next == nil || ctx.Err() != nil {
			return ctx.Err() == nil
		}
		write(next)
	}
}

func (s *Server) logs(w http.ResponseWriter, r *http.Request) {
	owner, err := s.Owner(r)
	var c *command
	if err == nil {
		_, err = s.withCommand(func(_ *http.Request, _ *session, found *command) (any, error) {
			c = found
			return nil, nil
		})(r, owner)
	}
	if err != nil {
		s.Refuse(w, r, err)
		return
	}
	c.follow(r.Context(), stream(w))
}

// write unpacks a compressed archive.
func (s *Server) write(r *http.Request, one *session) (any, error) {
	box, _, err := s.machine(one)
	if err != nil {
		return nil, err
	}
	fs, err := servicetest.Files(box)
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

func (s *Server) readFile(w http.ResponseWriter, r *http.Request) {
	var in struct{ Path, Cwd string }
	owner, err := s.Owner(r)
	var body io.ReadCloser
	if err == nil {
		err = servicetest.Read(r, &in)
	}
	if err == nil {
		_, err = s.withSession(func(r *http.Request, one *session) (any, error) {
			box, _, err := s.machine(one)
			if err != nil {
				return nil, err
			}
			fs, err := servicetest.Files(box)
			if err == nil {
				if !path.IsAbs(in.Path) {
					in.Path = path.Join("/", in.Cwd, in.Path)
				}
				body, _, err = fs.Read(r.Context(), in.Path, driver.ReadOptions{})
			}
			return nil, err
		})(r, owner)
	}
	if err != nil {
		s.Refuse(w, r, err)
		return
	}
	defer body.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = io.Copy(w, body)
}
