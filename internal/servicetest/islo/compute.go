package islo

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
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

// maxOutput is how much of each stream the result of a command has.
const maxOutput = 1 << 20

func (s *Server) computePlane() {
	s.handle("POST /sandboxes", s.create)
	s.handle("GET /sandboxes", s.list)
	s.handle("GET /sandboxes/-/by-id/{id}", s.byID)
	s.handle("GET /sandboxes/{name}", s.withBox(func(_ *http.Request, b *box) (int, any, error) { return http.StatusOK, s.shown(b), nil }))
	s.handle("DELETE /sandboxes/{name}", s.withBox(s.deleteCall))
	s.handle("POST /sandboxes/{name}/pause", s.withBox(s.pause))
	s.handle("POST /sandboxes/{name}/resume", s.withBox(s.resume))
	s.handle("POST /sandboxes/{name}/stop", s.withBox(s.stop))
	s.handle("POST /sandboxes/{name}/exec", s.inside(s.exec))
	s.handle("GET /sandboxes/{name}/exec/{exec}", s.withBox(s.result))
	s.handle("GET /sandboxes/{name}/sessions", s.withBox(s.listSessions))
	s.handle("POST /sandboxes/{name}/sessions", s.inside(s.createSession))
	s.handle("DELETE /sandboxes/{name}/sessions/{session}", s.withBox(s.killSession))
	s.handle("GET /sandboxes/{name}/shares", s.withBox(s.listShares))
	s.handle("POST /sandboxes/{name}/shares", s.withBox(s.createShare))
	s.handle("DELETE /sandboxes/{name}/shares/{share}", s.withBox(s.deleteShare))
	s.handle("POST /snapshots/", s.createSnapshot)
	s.handle("GET /snapshots/{$}", s.listSnapshots)
	s.handle("GET /snapshots/{name}", s.getSnapshot)
	s.handle("DELETE /snapshots/{name}", s.deleteSnapshot)
	for pattern, f := range map[string]func(http.ResponseWriter, *http.Request, *box){
		"POST /sandboxes/{name}/exec/stream": s.execStream, "GET /sandboxes/{name}/files": s.readFile, "POST /sandboxes/{name}/files": s.writeFile,
		"GET /sandboxes/{name}/files-archive": s.readArchive, "POST /sandboxes/{name}/files-archive": s.writeArchive,
	} {
		s.mux.HandleFunc(pattern, s.raw(f))
	}
}

// inside is a call inside a sandbox, which must run.
func (s *Server) inside(f func(r *http.Request, b *box) (int, any, error)) call {
	return s.withBox(func(r *http.Request, b *box) (int, any, error) {
		if now := s.shown(b); now.Status == Paused && now.Lifecycle.AutoResume == "on_activity" {
			if _, _, err := s.resume(r, b); err != nil {
				return 0, nil, err
			}
		}
		if now := s.shown(b); now.Status != Running {
			return 0, nil, wrongState(now)
		}
		return f(r, b)
	})
}

// raw is inside for answers that are not JSON.
func (s *Server) raw(f func(http.ResponseWriter, *http.Request, *box)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		tenant, err := s.tenant(r)
		if err == nil {
			_, _, err = s.inside(func(r *http.Request, b *box) (int, any, error) {
				f(w, r, b)
				return 0, nil, nil
			})(r, tenant)
		}
		if err != nil {
			refuse(w, err)
		}
	}
}

// run is what to run.
type run struct {
	Command []string          `json:"command"`
	Env     map[string]string `json:"env"`
	Workdir string            `json:"workdir"`
	User    string            `json:"user"`
	Timeout int               `json:"timeout_secs"` // nothing enforces it
}

func (s *Server) command(r *http.Request, b *box) (sandbox.Command, error) {
	var what run
	if err := read(r, &what); err != nil {
		return sandbox.Command{}, err
	}
	if len(what.Command) == 0 {
		return sandbox.Command{}, invalid("command is required")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	env := maps.Clone(b.env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, what.Env)
	dir := what.Workdir
	if dir == "" {
		dir = b.Workdir
	}
	return sandbox.Command{Args: what.Command, Env: env, Dir: dir, User: what.User}, nil
}

// execution is a command with a pollable result.
type execution struct {
	ID        string `json:"exec_id"`
	Box       string `json:"sandbox_id,omitempty"`
	Status    string `json:"status"`
	Code      *int   `json:"exit_code,omitempty"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	Truncated bool   `json:"truncated"`
}

// exec starts a command, which runs independently of its clients.
func (s *Server) exec(r *http.Request, b *box) (int, any, error) {
	cmd, err := s.command(r, b)
	if err != nil {
		return 0, nil, err
	}
	e := &execution{ID: newID(), Box: b.ID, Status: "running"}
	s.mu.Lock()
	b.execs[e.ID] = e
	awake := b.awake
	s.mu.Unlock()
	s.work.Go(func() {
		out, err := servicetest.Run(awake, b.in, cmd, maxOutput)
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
	return http.StatusOK, map[string]string{"exec_id": e.ID, "sandbox_id": b.ID, "status": "started"}, nil
}

func text(b []byte) string { return strings.ToValidUTF8(string(b), "\ufffd") }

func (s *Server) result(r *http.Request, b *box) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := b.execs[r.PathValue("exec")]
	if e == nil {
		return 0, nil, fail(http.StatusNotFound, "COMMAND_NOT_FOUND", "exec %s not found", r.PathValue("exec"))
	}
	return http.StatusOK, *e, nil
}

// listener is a client that receives events until it disconnects.
type listener struct {
	mu   sync.Mutex
	w    http.ResponseWriter
	gone bool
}

// send sends an event. Each line of its data is a line of the stream.
func (l *listener) send(event, data string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return
	}
	_, err := fmt.Fprintf(l.w, "event: %s\ndata: %s\n\n", event, strings.ReplaceAll(data, "\n", "\ndata: "))
	if err == nil {
		err = http.NewResponseController(l.w).Flush()
	}
	l.gone = err != nil
}

func (l *listener) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = true
}

// execStream sends a command's output as text events. The command continues
// when its client disconnects.
func (s *Server) execStream(w http.ResponseWriter, r *http.Request, b *box) {
	cmd, err := s.command(r, b)
	if err != nil {
		refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	l := &listener{w: w}
	defer l.hangUp()
	s.mu.Lock()
	awake := b.awake
	s.mu.Unlock()
	done := make(chan struct{})
	s.work.Go(func() {
		defer close(done)
		stream := func(event string) func([]byte) error {
			return func(data []byte) error {
				l.send(event, text(data))
				return nil
			}
		}
		exit, err := follow(awake, b.in, cmd, stream("stdout"), stream("stderr"))
		if err != nil {
			l.send("error", err.Error())
			return
		}
		l.send("exit", fmt.Sprint(exit.Code))
	})
	select {
	case <-done:
	case <-r.Context().Done():
	case <-awake.Done():
		panic(http.ErrAbortHandler) // the stream has no end
	}
}

// follow runs a command and forwards its output. When the context ends, it
// disconnects and the command continues.
func follow(ctx context.Context, in driver.Instance, cmd sandbox.Command, stdout, stderr func([]byte) error) (sandbox.Exit, error) {
	p, err := in.Exec(ctx, &cmd)
	if err != nil {
		return sandbox.Exit{}, err
	}
	var readers sync.WaitGroup
	readers.Go(func() { servicetest.Pump(p.Stdout(), stdout) })
	readers.Go(func() { servicetest.Pump(p.Stderr(), stderr) })
	exit, err := p.Wait(ctx)
	if err == nil {
		readers.Wait()
	}
	return exit, err
}

func (s *Server) filesOf(r *http.Request, b *box) (driver.FileSystem, string, error) {
	name := r.URL.Query().Get("path")
	if !path.IsAbs(name) {
		return nil, "", invalid("path must be absolute")
	}
	fs, err := servicetest.Files(b.in)
	return fs, path.Clean(name), err
}

func (s *Server) readFile(w http.ResponseWriter, r *http.Request, b *box) {
	fs, name, err := s.filesOf(r, b)
	var body io.ReadCloser
	if err == nil {
		body, _, err = fs.Read(r.Context(), name, driver.ReadOptions{})
	}
	if err != nil {
		refuse(w, err)
		return
	}
	defer body.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	if _, err := io.Copy(w, body); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// part returns the file of a form.
func part(r *http.Request) (io.Reader, error) {
	form, err := r.MultipartReader()
	if err != nil {
		return nil, invalid("%v", err)
	}
	p, err := form.NextPart()
	if err != nil || p.FormName() != "file" || p.FileName() == "" {
		return nil, invalid("the form has no file")
	}
	return p, nil
}

func (s *Server) writeFile(w http.ResponseWriter, r *http.Request, b *box) {
	fs, name, err := s.filesOf(r, b)
	var body io.Reader
	if err == nil {
		body, err = part(r)
	}
	if err == nil {
		_, err = fs.Write(r.Context(), name, body, driver.WriteOptions{})
	}
	if err != nil {
		refuse(w, err)
		return
	}
	answer(w, http.StatusOK, map[string]string{"status": "uploaded", "path": name})
}

// readArchive sends the files of a directory.
func (s *Server) readArchive(w http.ResponseWriter, r *http.Request, b *box) {
	_, name, err := s.filesOf(r, b)
	archiver, ok := driver.As[driver.Archiver](b.in)
	if err == nil && !ok {
		err = fail(http.StatusServiceUnavailable, "RESOURCE_UNAVAILABLE", "no archives")
	}
	if err != nil {
		refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/gzip")
	packed := gzip.NewWriter(w)
	if err := archiver.Export(r.Context(), name, packed, driver.ExportOptions{}); err != nil {
		panic(http.ErrAbortHandler)
	}
	_ = packed.Close()
}

func (s *Server) writeArchive(w http.ResponseWriter, r *http.Request, b *box) {
	_, name, err := s.filesOf(r, b)
	archiver, ok := driver.As[driver.Archiver](b.in)
	if err == nil && !ok {
		err = fail(http.StatusServiceUnavailable, "RESOURCE_UNAVAILABLE", "no archives")
	}
	var body io.Reader
	if err == nil {
		body, err = part(r)
	}
	if err == nil {
		body, err = gzip.NewReader(body)
	}
	if err == nil {
		err = archiver.Import(r.Context(), name, body, driver.ImportOptions{})
	}
	if err != nil {
		refuse(w, err)
		return
	}
	answer(w, http.StatusOK, map[string]string{"status": "uploaded", "path": name})
}

// session is a command that lives on its own.
type session struct {
	Name    string `json:"name"`
	Status  string `json:"status"`
	Started int64  `json:"started_at_unix_ms,omitempty"`
	p       driver.Process
}

func (s *Server) createSession(r *http.Request, b *box) (int, any, error) {
	var in struct {
		run
		Name string `json:"name"`
		TTL  string `json:"ttl"`
	}
	if err := read(r, &in); err != nil {
		return 0, nil, err
	}
	args := in.Command
	if len(args) == 0 {
		args = []string{"sleep", "1000000"} // a shell without input
	}
	p, err := b.in.Exec(context.WithoutCancel(r.Context()), &sandbox.Command{Args: args, Env: in.Env, Dir: in.Workdir, User: in.User, Background: true})
	if err != nil {
		return 0, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b.sessions = append(b.sessions, &session{Name: in.Name, Status: "disconnected", Started: time.Now().UnixMilli(), p: p})
	return http.StatusCreated, map[string]string{"name": in.Name, "status": "created"}, nil
}

func (s *Server) listSessions(_ *http.Request, b *box) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return http.StatusOK, map[string]any{"sessions": append([]*session{}, b.sessions...)}, nil
}

func (s *Server) killSession(r *http.Request, b *box) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, one := range b.sessions {
		if one.Name == r.PathValue("session") {
			b.sessions = slices.Delete(b.sessions, i, i+1)
			return http.StatusNoContent, nil, one.p.Close()
		}
	}
	return 0, nil, fail(http.StatusNotFound, "RESOURCE_NOT_FOUND", "session not found")
}

type share struct {
	ID      string    `json:"share_id"`
	URL     string    `json:"url"`
	Port    int       `json:"port"`
	Created time.Time `json:"created_at"`
	Expires time.Time `json:"expires_at"`
}

func (s *Server) createShare(r *http.Request, b *box) (int, any, error) {
	in := struct {
		Port int   `json:"port"`
		TTL  int64 `json:"ttl_seconds"`
	}{TTL: 86400}
	if err := read(r, &in); err != nil {
		return 0, nil, err
	}
	if in.TTL < 60 || in.TTL > 604800 || in.Port < 1 || in.Port > 65535 {
		return 0, nil, invalid("port or ttl_seconds is invalid")
	}
	id := newID()[:8]
	one := &share{ID: id, URL: "https://" + id + ".share.islo.test", Port: in.Port, Created: time.Now().UTC(), Expires: time.Now().UTC().Add(time.Duration(in.TTL) * time.Second)}
	s.mu.Lock()
	defer s.mu.Unlock()
	b.shares = append(b.shares, one)
	return http.StatusCreated, one, nil
}

func (s *Server) listShares(_ *http.Request, b *box) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return http.StatusOK, append([]*share{}, b.shares...), nil
}

func (s *Server) deleteShare(r *http.Request, b *box) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(b.shares)
	if b.shares = slices.DeleteFunc(b.shares, func(o *share) bool { return o.ID == r.PathValue("share") }); len(b.shares) == n {
		return 0, nil, fail(http.StatusNotFound, "RESOURCE_NOT_FOUND", "share not found")
	}
	return http.StatusNoContent, nil, nil
}
