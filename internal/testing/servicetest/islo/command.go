package islo

import (
	"cmp"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

func (s *Server) commandRoutes() {
	const at = "/sandboxes/{name}"
	s.inside("POST "+at+"/exec", command(s.exec))
	s.inside("POST "+at+"/exec/stream", command(s.execStream))
	s.inside("GET "+at+"/files", func(w http.ResponseWriter, r *http.Request, m *machine) error {
		return servicetest.SendFile(w, r, m.in, r.URL.Query().Get("path"))
	})
	s.inside("POST "+at+"/files", upload(func(r *http.Request, m *machine, body io.Reader) error {
		return servicetest.TakeFile(r, m.in, r.URL.Query().Get("path"), body)
	}))
	s.inside("GET "+at+"/files-archive", readArchive)
	s.inside("POST "+at+"/files-archive", upload(writeArchive))
	s.Handle("GET "+at+"/exec/{exec}", s.withSandbox(s.result))
	s.inside("POST "+at+"/sessions", s.createSession)
	s.Handle("GET "+at+"/sessions", s.withSandbox(func(_ *http.Request, b *servicetest.CloudSandbox) (any, error) {
		return map[string]any{"sessions": s.shownItems(b, "session")}, nil
	}))
	s.Handle("DELETE "+at+"/sessions/{item}", s.withSandbox(s.deleteItem))
	s.inside("POST "+at+"/shares", s.createShare)
	s.Handle("GET "+at+"/shares", s.withSandbox(func(_ *http.Request, b *servicetest.CloudSandbox) (any, error) { return s.shownItems(b, "share"), nil }))
	s.Handle("DELETE "+at+"/shares/{item}", s.withSandbox(s.deleteItem))
}

// machine is the inside of a sandbox that runs.
type machine struct {
	id    string
	asked creation
	in    driver.Instance
	awake context.Context
}

// inside sets a route inside a sandbox, which must run. Using one that is paused
// resumes it, if its client wants that.
func (s *Server) inside(pattern string, f func(w http.ResponseWriter, r *http.Request, m *machine) error) {
	s.HandleRaw(pattern, func(w http.ResponseWriter, r *http.Request, tenant string) error {
		_, err := s.withSandbox(func(r *http.Request, b *servicetest.CloudSandbox) (_ any, err error) {
			now := s.Show(b)
			m := &machine{id: now.ID}
			m.asked, _ = now.Request.(creation)
			if now.Status == Paused && m.asked.Lifecycle.AutoResume == "on_activity" {
				if err = s.Resume(b); err == nil {
					err = s.Wait(b)
				}
			}
			if err == nil {
				m.in, m.awake, err = s.Machine(b)
			}
			if err == nil {
				err = f(w, r, m)
			}
			return nil, err
		})(r, tenant)
		return err
	})
}

// run is what to run.
type run struct {
	Command []string          `json:"command"`
	Env     map[string]string `json:"env"`
	Workdir string            `json:"workdir"`
	User    string            `json:"user"`
	Timeout int               `json:"timeout_secs"` // nothing enforces it
}

// command is a call that runs a command.
func command(f func(http.ResponseWriter, *http.Request, *machine, sandbox.Command) error) func(http.ResponseWriter, *http.Request, *machine) error {
	return func(w http.ResponseWriter, r *http.Request, m *machine) error {
		var what run
		if err := read(r, &what); err != nil {
			return err
		}
		if len(what.Command) == 0 {
			return invalid("command")
		}
		env := map[string]string{}
		maps.Copy(env, m.asked.Env)
		maps.Copy(env, what.Env)
		return f(w, r, m, sandbox.Command{Args: what.Command, Env: env, Dir: cmp.Or(what.Workdir, m.asked.Workdir), User: what.User})
	}
}

// execution is a command with a pollable result.
type execution struct {
	ID        string `json:"exec_id"`
	Sandbox   string `json:"sandbox_id,omitempty"`
	Status    string `json:"status"`
	Code      *int   `json:"exit_code,omitempty"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	Truncated bool   `json:"truncated"`
}

// exec starts a command, which runs independently of its clients.
func (s *Server) exec(w http.ResponseWriter, _ *http.Request, m *machine, cmd sandbox.Command) error {
	e := &execution{ID: servicetest.UUID(), Sandbox: m.id, Status: "running"}
	s.mu.Lock()
	s.execs[e.ID] = e
	s.mu.Unlock()
	s.Work.Go(func() {
		out, err := servicetest.Run(m.awake, m.in, cmd, 1<<20)
		s.mu.Lock()
		defer s.mu.Unlock()
		e.Status = "failed"
		if err == nil {
			e.Code, e.Stdout, e.Stderr, e.Truncated = &out.Exit.Code, text(out.Stdout), text(out.Stderr), out.Truncated
			if out.Exit.Code == 0 {
				e.Status = "completed"
			}
		}
	})
	servicetest.Answer(w, http.StatusOK, map[string]string{"exec_id": e.ID, "sandbox_id": m.id, "status": "started"})
	return nil
}

func text(b []byte) string { return strings.ToValidUTF8(string(b), "\ufffd") }

func (s *Server) result(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	id := s.Show(b).ID
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.execs[r.PathValue("exec")]; e != nil && e.Sandbox == id {
		return *e, nil
	}
	return nil, servicetest.FailAs(http.StatusNotFound, "COMMAND_NOT_FOUND", "exec %s not found", r.PathValue("exec"))
}

// execStream sends a command's output as text events. The command continues
// when its client disconnects.
func (s *Server) execStream(w http.ResponseWriter, r *http.Request, m *machine, cmd sandbox.Command) error {
	events := servicetest.NewEvents(w)
	defer events.HangUp()
	done := make(chan struct{})
	s.Work.Go(func() {
		defer close(done)
		stream := func(event string) func([]byte) error {
			return func(data []byte) error {
				events.Send(event, text(data))
				return nil
			}
		}
		exit, err := servicetest.Stream(context.WithoutCancel(m.awake), m.in, cmd, stream("stdout"), stream("stderr"))
		if err != nil {
			events.Send("error", err.Error())
			return
		}
		events.Send("exit", fmt.Sprint(exit.Code))
	})
	select {
	case <-done:
	case <-r.Context().Done():
	case <-m.awake.Done():
		panic(http.ErrAbortHandler) // the stream has no end
	}
	return nil
}

// upload is a call with a form that has a file.
func upload(f func(r *http.Request, m *machine, body io.Reader) error) func(http.ResponseWriter, *http.Request, *machine) error {
	return func(w http.ResponseWriter, r *http.Request, m *machine) error {
		form, err := r.MultipartReader()
		if err != nil {
			return invalid("the form")
		}
		part, err := form.NextPart()
		if err != nil || part.FormName() != "file" || part.FileName() == "" {
			return invalid("the file of the form")
		}
		if err := f(r, m, part); err != nil {
			return err
		}
		servicetest.Answer(w, http.StatusOK, map[string]string{"status": "uploaded", "path": r.URL.Query().Get("path")})
		return nil
	}
}

// readArchive sends the files of a directory.
func readArchive(w http.ResponseWriter, r *http.Request, m *machine) error {
	a, ok := driver.As[driver.Archiver](m.in)
	if !ok {
		return invalid("the archive")
	}
	w.Header().Set("Content-Type", "application/gzip")
	packed := gzip.NewWriter(w)
	if err := a.Export(r.Context(), r.URL.Query().Get("path"), packed, driver.ExportOptions{}); err != nil {
		panic(http.ErrAbortHandler)
	}
	return packed.Close()
}

func writeArchive(r *http.Request, m *machine, body io.Reader) error {
	a, ok := driver.As[driver.Archiver](m.in)
	unpacked, err := gzip.NewReader(body)
	if err != nil || !ok {
		return invalid("the archive")
	}
	return a.Import(r.Context(), r.URL.Query().Get("path"), unpacked, driver.ImportOptions{})
}

// item is a session, which is a command that lives on its own, or a share of a
// sandbox. It ends with the sandbox.
type item struct {
	sandbox, kind, id string
	shown             map[string]any
	end               func() error
}

func (s *Server) add(w http.ResponseWriter, one item, answer map[string]any) error {
	s.mu.Lock()
	s.items = append(s.items, one)
	s.mu.Unlock()
	servicetest.Answer(w, http.StatusCreated, answer)
	return nil
}

func (s *Server) shownItems(b *servicetest.CloudSandbox, kind string) []map[string]any {
	id, shown := s.Show(b).ID, []map[string]any{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.items {
		if one.sandbox == id && one.kind == kind {
			shown = append(shown, one.shown)
		}
	}
	return shown
}

func (s *Server) deleteItem(r *http.Request, b *servicetest.CloudSandbox) (any, error) {
	id := s.Show(b).ID
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.items, func(o item) bool { return o.sandbox == id && o.id == r.PathValue("item") })
	if i < 0 {
		return nil, notFound("it", r.PathValue("item"))
	}
	end := s.items[i].end
	s.items = slices.Delete(s.items, i, i+1)
	return servicetest.Reply{Status: http.StatusNoContent}, end()
}

func (s *Server) createSession(w http.ResponseWriter, r *http.Request, m *machine) error {
	var in struct {
		run
		Name string `json:"name"`
	}
	if err := read(r, &in); err != nil {
		return err
	}
	p, err := m.in.Exec(context.WithoutCancel(r.Context()), &sandbox.Command{Args: in.Command, Env: in.Env, Dir: in.Workdir, User: in.User, Background: true})
	if err != nil {
		return err
	}
	shown := map[string]any{"name": in.Name, "status": "disconnected", "started_at_unix_ms": time.Now().UnixMilli()}
	return s.add(w, item{m.id, "session", in.Name, shown, p.Close}, map[string]any{"name": in.Name, "status": "created"})
}

func (s *Server) createShare(w http.ResponseWriter, r *http.Request, m *machine) error {
	in := struct {
		Port int   `json:"port"`
		TTL  int64 `json:"ttl_seconds"`
	}{TTL: 86400}
	if err := read(r, &in); err != nil {
		return err
	}
	if in.TTL < 60 || in.TTL > 604800 || in.Port < 1 || in.Port > 65535 {
		return invalid("port or ttl_seconds")
	}
	id, now := servicetest.NewID()[:8], time.Now().UTC()
	shown := map[string]any{
		"share_id": id, "url": "https://" + id + ".share.islo.test", "port": in.Port, "created_at": now, "expires_at": now.Add(time.Duration(in.TTL) * time.Second),
	}
	return s.add(w, item{m.id, "share", id, shown, func() error { return nil }}, shown)
}
