package runloop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

func (s *Server) commandRoutes() {
	const at, one = "/v1/devboxes/{box}", "/v1/devboxes/{box}/executions/{command}"
	s.Handle("POST "+at+"/execute", s.withBox(func(r *http.Request, b *servicetest.CloudBox) (any, error) {
		c, err := s.start(r, b)
		if err != nil {
			return nil, err
		}
		select {
		case <-c.done:
		case <-time.After(c.optimistic):
		case <-r.Context().Done():
		}
		return c.shown(), nil
	}))
	s.Handle("POST "+at+"/execute_async", s.withBox(func(r *http.Request, b *servicetest.CloudBox) (any, error) {
		c, err := s.start(r, b)
		if err != nil {
			return nil, err
		}
		return c.shown(), nil
	}))
	shown := s.withCommand(func(c *command) any { return c.shown() })
	s.Handle("GET "+at+"/{kind}/{command}", func(r *http.Request, owner string) (any, error) { // two routes that overlap
		switch box, kind := r.PathValue("box"), r.PathValue("kind"); {
		case box == snapshots && r.PathValue("command") == "status":
			return s.snapshotStatus(owner, kind)
		case kind == "executions":
			return shown(r, owner)
		}
		return nil, servicetest.Fail(http.StatusNotFound, "Not found")
	})
	s.Handle("POST "+at+"/executions/{command}/wait_for_status", s.withCommand(func(c *command) any {
		select {
		case <-c.done:
		case <-time.After(20 * time.Second):
		}
		return c.shown()
	}))
	s.Handle("POST "+one+"/kill", s.withCommand(func(c *command) any {
		c.kill()
		return c.shown()
	}))
	s.HandleFunc("GET "+one+"/stream_stdout_updates", s.stream(func(c *command) *[]byte { return &c.stdout }))
	s.HandleFunc("GET "+one+"/stream_stderr_updates", s.stream(func(c *command) *[]byte { return &c.stderr }))
	s.Handle("POST "+at+"/upload_file", s.withBox(s.upload))
	s.HandleFunc("POST "+at+"/download_file", s.download)
}

// command is a command of a sandbox.
type command struct {
	id, key, box string
	optimistic   time.Duration // how long to wait for its end
	kill         context.CancelFunc
	done         chan struct{} // closed when it has ended

	mu             sync.Mutex
	changed        sync.Cond
	stdout, stderr []byte
	code           *int
}

func (c *command) add(to *[]byte) func([]byte) error {
	return func(data []byte) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		*to = append(*to, data...)
		c.changed.Broadcast()
		return nil
	}
}

func (c *command) shown() map[string]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := map[string]any{"devbox_id": c.box, "execution_id": c.id, "status": "running"}
	if c.code != nil {
		m["status"], m["exit_status"] = "completed", *c.code
		m["stdout"], m["stderr"] = strings.ToValidUTF8(string(c.stdout), "\ufffd"), strings.ToValidUTF8(string(c.stderr), "\ufffd")
	}
	return m
}

// Commands returns how many commands run.
func (s *Server) Commands() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.commands {
		select {
		case <-c.done:
		default:
			n++
		}
	}
	return n
}

// killed is the exit code of a command that was killed.
const killed = 137

// start starts a command, once for each ID that the client gives.
func (s *Server) start(r *http.Request, b *servicetest.CloudBox) (*command, error) {
	var in struct {
		Command    string `json:"command"`
		ID         string `json:"command_id"`
		Optimistic *int   `json:"optimistic_timeout"`
	}
	if err := servicetest.Read(r, &in); err != nil {
		return nil, err
	}
	box, awake, err := s.Machine(b)
	if err != nil {
		return nil, servicetest.Fail(http.StatusBadRequest, "Devbox is not running")
	}
	now := s.Show(b)
	made, _ := now.Request.(creation)
	c := &command{id: "exec_" + servicetest.NewID(), key: in.ID, box: now.ID, optimistic: 25 * time.Second, done: make(chan struct{})}
	if in.Optimistic != nil {
		c.optimistic = time.Duration(*in.Optimistic) * time.Second
	}
	c.changed.L = &c.mu
	ctx, kill := context.WithCancel(awake)
	c.kill = kill
	s.mu.Lock()
	i := slices.IndexFunc(s.commands, func(o *command) bool { return in.ID != "" && o.key == in.ID && o.box == c.box })
	if i >= 0 {
		c = s.commands[i]
	} else {
		s.commands = append(s.commands, c)
	}
	s.mu.Unlock()
	if i >= 0 {
		kill()
		return c, nil
	}
	s.Work.Go(func() {
		defer kill()
		exit, err := servicetest.Stream(ctx, box, sandbox.Command{Args: []string{"/bin/sh", "-c", in.Command}, Env: made.Env}, c.add(&c.stdout), c.add(&c.stderr))
		if err != nil {
			exit.Code = killed
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.code = &exit.Code
		close(c.done)
		c.changed.Broadcast()
	})
	return c, nil
}

// find finds a command of a sandbox.
func (s *Server) find(r *http.Request, b *servicetest.CloudBox) (*command, error) {
	id := s.Show(b).ID
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.commands {
		if c.box == id && c.id == r.PathValue("command") {
			return c, nil
		}
	}
	return nil, servicetest.Fail(http.StatusNotFound, "Execution not found")
}

func (s *Server) withCommand(f func(c *command) any) func(*http.Request, string) (any, error) {
	return s.withBox(func(r *http.Request, b *servicetest.CloudBox) (any, error) {
		c, err := s.find(r, b)
		if err != nil {
			return nil, err
		}
		return f(c), nil
	})
}

// stream sends the output of a command from an offset to its end as events.
func (s *Server) stream(output func(*command) *[]byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		owner, err := s.Owner(r)
		var c *command
		if err == nil {
			_, err = s.withBox(func(r *http.Request, b *servicetest.CloudBox) (_ any, err error) {
				c, err = s.find(r, b)
				return nil, err
			})(r, owner)
		}
		if err != nil {
			s.Refuse(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		ctx, sent := r.Context(), 0
		_, _ = fmt.Sscan(r.URL.Query().Get("offset"), &sent)
		defer context.AfterFunc(ctx, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.changed.Broadcast()
		})()
		for {
			c.mu.Lock()
			for sent >= len(*output(c)) && c.code == nil && ctx.Err() == nil {
				c.changed.Wait()
			}
			next := slices.Clone((*output(c))[min(sent, len(*output(c))):])
			c.mu.Unlock()
			if len(next) == 0 || ctx.Err() != nil {
				return
			}
			text, _ := json.Marshal(map[string]any{"output": string(next), "offset": sent})
			sent += len(next)
			_, _ = fmt.Fprintf(w, "data: %s\n\n", text)
			_ = http.NewResponseController(w).Flush()
		}
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
func (s *Server) upload(r *http.Request, b *servicetest.CloudBox) (any, error) {
	box, _, err := s.Machine(b)
	if err != nil {
		return nil, servicetest.Fail(http.StatusBadRequest, "Devbox is not running")
	}
	fs, err := servicetest.Files(box)
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

func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	var in struct{ Path string }
	owner, err := s.Owner(r)
	var body io.ReadCloser
	if err == nil {
		err = servicetest.Read(r, &in)
	}
	if err == nil {
		_, err = s.withBox(func(r *http.Request, b *servicetest.CloudBox) (any, error) {
			box, _, err := s.Machine(b)
			if err != nil {
				return nil, err
			}
			fs, err := servicetest.Files(box)
			if err == nil {
				body, _, err = fs.Read(r.Context(), absolute(in.Path), driver.ReadOptions{})
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
