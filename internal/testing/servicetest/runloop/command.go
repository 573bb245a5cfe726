package runloop

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

func (s *Server) commandRoutes() {
	const at, one = "/v1/devboxes/{sandbox}", "/v1/devboxes/{sandbox}/executions/{command}"
	s.Handle("POST "+at+"/execute", s.withSandbox(func(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
		c, err := s.start(r, b)
		if err != nil {
			return nil, err
		}
		select {
		case <-c.Done:
		case <-time.After(c.optimistic):
		case <-r.Context().Done():
		}
		return c.shown(), nil
	}))
	s.Handle("POST "+at+"/execute_async", s.withSandbox(func(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
		c, err := s.start(r, b)
		if err != nil {
			return nil, err
		}
		return c.shown(), nil
	}))
	shown := s.withCommand(func(c *command) any { return c.shown() })
	s.Handle("GET "+at+"/{kind}/{command}", func(r *http.Request, owner string) (any, error) { // two routes that overlap
		switch sb, kind := r.PathValue("sandbox"), r.PathValue("kind"); {
		case sb == snapshots && r.PathValue("command") == "status":
			return s.snapshotStatus(owner, kind)
		case kind == "executions":
			return shown(r, owner)
		}
		return nil, servicetest.Fail(http.StatusNotFound, "Not found")
	})
	s.Handle("POST "+at+"/executions/{command}/wait_for_status", s.withCommand(func(c *command) any {
		select {
		case <-c.Done:
		case <-time.After(20 * time.Second):
		}
		return c.shown()
	}))
	s.Handle("POST "+one+"/kill", s.withCommand(func(c *command) any {
		c.Kill()
		return c.shown()
	}))
	s.HandleRaw("GET "+one+"/stream_stdout_updates", s.stream(servicetest.Stdout))
	s.HandleRaw("GET "+one+"/stream_stderr_updates", s.stream(servicetest.Stderr))
	s.Handle("POST "+at+"/upload_file", s.withSandbox(s.upload))
	s.HandleRaw("POST "+at+"/download_file", s.download)
}

// command is a command of a sandbox.
type command struct {
	*servicetest.Log
	id, key, sandbox string
	optimistic       time.Duration // how long to wait for its end
}

func (c *command) shown() map[string]any {
	m := map[string]any{"devbox_id": c.sandbox, "execution_id": c.id, "status": "running"}
	if code := c.Code(); code != nil {
		m["status"], m["exit_status"] = "completed", *code
		m["stdout"], m["stderr"] = c.Text(servicetest.Stdout), c.Text(servicetest.Stderr)
	}
	return m
}

// Commands returns how many commands run.
func (s *Server) Commands() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.commands {
		if c.Code() == nil {
			n++
		}
	}
	return n
}

// start starts a command, once for each ID that the client gives.
func (s *Server) start(r *http.Request, b *servicetest.CloudSandbox) (*command, error) {
	var in struct {
		Command    string `json:"command"`
		ID         string `json:"command_id"`
		Optimistic *int   `json:"optimistic_timeout"`
	}
	if err := servicetest.Read(r, &in); err != nil {
		return nil, err
	}
	sb, awake, err := s.Machine(b)
	if err != nil {
		return nil, servicetest.Fail(http.StatusBadRequest, "Devbox is not running")
	}
	now := s.Show(b)
	made, _ := now.Request.(creation)
	c := &command{id: "exec_" + servicetest.NewID(), key: in.ID, sandbox: now.ID, optimistic: 25 * time.Second}
	if in.Optimistic != nil {
		c.optimistic = time.Duration(*in.Optimistic) * time.Second
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.IndexFunc(s.commands, func(o *command) bool { return in.ID != "" && o.key == in.ID && o.sandbox == c.sandbox }); i >= 0 {
		return s.commands[i], nil
	}
	c.Log = s.Logged(awake, sb, sandbox.Command{Args: []string{"/bin/sh", "-c", in.Command}, Env: made.Env})
	s.commands = append(s.commands, c)
	return c, nil
}

// find finds a command of a sandbox.
func (s *Server) find(r *http.Request, b *servicetest.CloudSandbox) (*command, error) {
	id := s.Show(b).ID
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.commands {
		if c.sandbox == id && c.id == r.PathValue("command") {
			return c, nil
		}
	}
	return nil, servicetest.Fail(http.StatusNotFound, "Execution not found")
}

func (s *Server) withCommand(f func(c *command) any) func(*http.Request, string) (any, error) {
	return s.withSandbox(func(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
		c, err := s.find(r, b)
		if err != nil {
			return nil, err
		}
		return f(c), nil
	})
}

// stream sends the output of a command from an offset to its end as events.
func (s *Server) stream(name string) func(http.ResponseWriter, *http.Request, string) error {
	return func(w http.ResponseWriter, r *http.Request, owner string) error {
		b, err := s.sandbox(r, owner)
		if err != nil {
			return err
		}
		c, err := s.find(r, b)
		if err != nil {
			return err
		}
		offset, at := 0, 0
		_, _ = fmt.Sscan(r.URL.Query().Get("offset"), &offset)
		events := servicetest.NewEvents(w)
		c.Follow(r.Context(), func(k servicetest.Chunk) error {
			if k.Stream != name {
				return nil
			}
			was := at
			if at += len(k.Data); at > offset {
				from := max(was, offset)
				text, _ := json.Marshal(map[string]any{"output": string(k.Data[from-was:]), "offset": from})
				events.Send("", string(text))
			}
			return nil
		})
		events.HangUp()
		return nil
	}
}

// home is where relative paths begin.
const home = "/home/user"

func absolute(name string) string {
	if path.IsAbs(name) {
		return name
	}
	return path.Join(home, name)
}

// upload writes the file of a form: fields path and file, in this order or the
// other.
func (s *Server) upload(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	sb, _, err := s.Machine(b)
	if err != nil {
		return nil, servicetest.Fail(http.StatusBadRequest, "Devbox is not running")
	}
	fs, err := servicetest.Files(sb)
	if err != nil {
		return nil, err
	}
	form, err := r.MultipartReader()
	if err != nil {
		return nil, servicetest.Fail(http.StatusBadRequest, "%v", err)
	}
	to := ""
	for {
		p, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			return struct{}{}, nil
		}
		if err != nil {
			return nil, servicetest.Fail(http.StatusBadRequest, "%v", err)
		}
		if p.FormName() == "path" {
			text, err := io.ReadAll(io.LimitReader(p, 4096))
			if err != nil {
				return nil, err
			}
			to = string(text)
			continue
		}
		if to == "" {
			return nil, servicetest.Fail(http.StatusBadRequest, "the path must come before the file")
		}
		if _, err := fs.Write(r.Context(), absolute(to), p, driver.WriteOptions{}); err != nil {
			return nil, err
		}
	}
}

func (s *Server) download(w http.ResponseWriter, r *http.Request, owner string) error {
	var in struct{ Path string }
	b, err := s.sandbox(r, owner)
	if err == nil {
		err = servicetest.Read(r, &in)
	}
	if err != nil {
		return err
	}
	sb, _, err := s.Machine(b)
	if err != nil {
		return err
	}
	return servicetest.SendFile(w, r, sb, absolute(in.Path))
}
