package opensandbox

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

// Machine is where an Execd runs commands and stores files.
type Machine interface {
	// Run runs a command to its end. It kills it when the context ends.
	Run(ctx context.Context, argv []string, dir string, env map[string]string, stdout, stderr func([]byte) error) (code int, err error)
	Write(ctx context.Context, path string, content io.Reader) error
	Read(ctx context.Context, path string) (io.ReadCloser, error)
}

// machine is a sandbox of the fake.
type machine struct {
	s   *Server
	b   *servicetest.CloudSandbox
	env map[string]string
}

func (m machine) Run(ctx context.Context, argv []string, dir string, env map[string]string, stdout, stderr func([]byte) error) (int, error) {
	in, awake, err := m.s.Machine(m.b)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(awake, cancel)()
	cmd := sandbox.Command{Args: argv, Dir: dir, Env: map[string]string{}}
	for _, vars := range []map[string]string{m.env, env} {
		for k, v := range vars {
			cmd.Env[k] = v
		}
	}
	exit, err := servicetest.Stream(ctx, in, cmd, stdout, stderr)
	return exit.Code, err
}

func (m machine) files() (driver.FileSystem, error) {
	in, _, err := m.s.Machine(m.b)
	if err != nil {
		return nil, err
	}
	return servicetest.Files(in)
}

func (m machine) Write(ctx context.Context, path string, content io.Reader) error {
	fs, err := m.files()
	if err == nil {
		_, err = fs.Write(ctx, path, content, driver.WriteOptions{})
	}
	return err
}

func (m machine) Read(ctx context.Context, path string) (io.ReadCloser, error) {
	fs, err := m.files()
	if err != nil {
		return nil, err
	}
	body, _, err := fs.Read(ctx, path, driver.ReadOptions{})
	return body, err
}

// Execd is the API of the daemon in a sandbox, as far as Atoll and the SDK's
// test use it. Make one with NewExecd.
type Execd struct {
	machine Machine
	mux     http.ServeMux

	mu       sync.Mutex
	commands map[string]context.CancelFunc
}

// NewExecd returns a daemon.
func NewExecd(m Machine) *Execd {
	e := &Execd{machine: m, commands: map[string]context.CancelFunc{}}
	e.mux.HandleFunc("GET /ping", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	e.mux.HandleFunc("POST /command", e.run)
	e.mux.HandleFunc("DELETE /command", e.interrupt)
	e.mux.HandleFunc("POST /files/upload", e.upload)
	e.mux.HandleFunc("GET /files/download", e.download)
	return e
}

// ServeHTTP serves the API.
func (e *Execd) ServeHTTP(w http.ResponseWriter, r *http.Request) { e.mux.ServeHTTP(w, r) }

// Running returns how many commands run.
func (e *Execd) Running() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.commands)
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	servicetest.Answer(w, status, map[string]string{"code": code, "message": message})
}

// killed is the exit code of a command that was killed.
const killed = -1

// beat is the time between two pings.
const beat = 3 * time.Second

// run runs a command, and sends its output as events. It is killed when the
// client goes.
func (e *Execd) run(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Command string            `json:"command"`
		Argv    []string          `json:"argv"`
		Dir     string            `json:"cwd"`
		Env     map[string]string `json:"envs"`
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(body, &in) != nil || (in.Command == "") == (len(in.Argv) == 0) {
		refuse(w, http.StatusBadRequest, "INVALID_REQUEST_BODY", "one of command and argv is required")
		return
	}
	argv := in.Argv
	if in.Command != "" {
		argv = []string{"/bin/sh", "-c", in.Command}
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	id := servicetest.NewID()
	e.mu.Lock()
	e.commands[id] = cancel
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.commands, id)
	}()
	s := &stream{w: w, began: time.Now()}
	w.Header().Set("Content-Type", "text/event-stream")
	s.send(map[string]any{"type": "init", "text": id})
	pings := time.NewTicker(beat)
	defer pings.Stop()
	var pinging sync.WaitGroup
	defer pinging.Wait()
	defer cancel()
	pinging.Go(func() {
		for {
			select {
			case <-pings.C:
				s.send(map[string]any{"type": "ping", "text": "pong"})
			case <-ctx.Done():
				return
			}
		}
	})
	stdout, stderr := lines{s: s, kind: "stdout"}, lines{s: s, kind: "stderr"}
	code, err := e.machine.Run(ctx, argv, in.Dir, in.Env, stdout.add, stderr.add)
	if err != nil {
		code = killed
	}
	stdout.end()
	stderr.end()
	if code != 0 {
		s.send(map[string]any{"type": "error", "error": map[string]any{"ename": "CommandExecError", "evalue": strconv.Itoa(code), "traceback": []string{}}})
		return
	}
	s.send(map[string]any{"type": "execution_complete", "execution_time": time.Since(s.began).Milliseconds()})
}

// stream sends events.
type stream struct {
	w     http.ResponseWriter
	began time.Time
	mu    sync.Mutex
}

// send sends an event: JSON without the name of a field, and an empty line.
func (s *stream) send(event map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	event["timestamp"] = time.Now().UnixMilli()
	text, _ := json.Marshal(event)
	_, _ = s.w.Write(append(text, "\n\n"...))
	_ = http.NewResponseController(s.w).Flush()
}

// lines sends output line by line, without the ends of lines.
type lines struct {
	s    *stream
	kind string
	part []byte
}

func (l *lines) add(data []byte) error {
	l.part = append(l.part, data...)
	for {
		line, rest, found := strings.Cut(string(l.part), "\n")
		if !found {
			return nil
		}
		if l.part = []byte(rest); line == "" {
			line = "\n"
		}
		l.s.send(map[string]any{"type": l.kind, "text": line})
	}
}

func (l *lines) end() {
	if len(l.part) > 0 {
		l.s.send(map[string]any{"type": l.kind, "text": string(l.part)})
	}
}

func (e *Execd) interrupt(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	cancel := e.commands[r.URL.Query().Get("id")]
	e.mu.Unlock()
	if cancel == nil {
		refuse(w, http.StatusInternalServerError, "RUNTIME_ERROR", "no such command")
		return
	}
	cancel()
}

// upload stores the files of a form. A description comes before each.
func (e *Execd) upload(w http.ResponseWriter, r *http.Request) {
	form, err := r.MultipartReader()
	if err != nil {
		refuse(w, http.StatusBadRequest, "INVALID_FILE", err.Error())
		return
	}
	var about struct{ Path string }
	for {
		var part *multipart.Part
		if part, err = form.NextPart(); err != nil {
			break
		}
		switch part.FormName() {
		case "metadata":
			err = json.NewDecoder(part).Decode(&about)
		case "file":
			err = e.machine.Write(r.Context(), about.Path, part)
		}
		if err != nil {
			break
		}
	}
	if !errors.Is(err, io.EOF) {
		refuse(w, http.StatusInternalServerError, "RUNTIME_ERROR", err.Error())
	}
}

func (e *Execd) download(w http.ResponseWriter, r *http.Request) {
	body, err := e.machine.Read(r.Context(), r.URL.Query().Get("path"))
	if err != nil {
		refuse(w, http.StatusNotFound, "FILE_NOT_FOUND", err.Error())
		return
	}
	defer body.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = io.Copy(w, body)
}
