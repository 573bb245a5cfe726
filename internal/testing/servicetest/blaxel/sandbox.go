package blaxel

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

// at is where the API of a sandbox is.
const at = "/sbx/{name}"

// machine returns the machine of a sandbox that a request names.
func (s *Server) machine(r *http.Request, owner string) (*servicetest.CloudSandbox, driver.Instance, context.Context, error) {
	b, err := s.Find(owner, r.PathValue("name"))
	if err != nil || s.Show(b).Status == terminated {
		return nil, nil, nil, servicetest.FailAs(http.StatusNotFound, "WORKLOAD_NOT_FOUND", "Workload not found")
	}
	in, awake, err := s.Machine(b)
	if err != nil {
		return nil, nil, nil, servicetest.FailAs(http.StatusNotFound, "WORKLOAD_UNAVAILABLE", "Workload is not available")
	}
	return b, in, awake, nil
}

func (s *Server) processRoutes() {
	s.HandleRaw("POST "+at+"/process", s.run)
	s.Handle("GET "+at+"/process", s.inSandbox(func(r *http.Request, _ driver.Instance) (any, error) {
		all := []any{}
		for _, p := range s.of(r.PathValue("name")) {
			all = append(all, p.shown())
		}
		return all, nil
	}))
	s.Handle("GET "+at+"/process/{process}", s.withProcess(func(_ *http.Request, p *process) any { return p.shown() }))
	s.Handle("GET "+at+"/process/{process}/wait", s.withProcess(func(r *http.Request, p *process) any {
		seconds, _ := strconv.Atoi(r.URL.Query().Get("timeout"))
		select {
		case <-p.Done:
		case <-time.After(time.Duration(seconds) * time.Second):
		case <-r.Context().Done():
		}
		return p.shown()
	}))
	s.Handle("GET "+at+"/process/{process}/logs", s.withProcess(func(_ *http.Request, p *process) any { return p.shown() }))
	end := s.withProcess(func(_ *http.Request, p *process) any {
		p.Kill()
		return map[string]string{"message": "done"}
	})
	s.Handle("DELETE "+at+"/process/{process}", end)
	s.Handle("DELETE "+at+"/process/{process}/kill", end)
}

// inSandbox is a call of the API of a sandbox.
func (s *Server) inSandbox(f func(r *http.Request, in driver.Instance) (any, error)) func(*http.Request, string) (any, error) {
	return func(r *http.Request, owner string) (any, error) {
		_, in, _, err := s.machine(r, owner)
		if err != nil {
			return nil, err
		}
		return f(r, in)
	}
}

func (s *Server) withProcess(f func(r *http.Request, p *process) any) func(*http.Request, string) (any, error) {
	return s.inSandbox(func(r *http.Request, _ driver.Instance) (any, error) {
		for _, p := range s.of(r.PathValue("name")) {
			if p.asked.Name == r.PathValue("process") || p.pid == r.PathValue("process") {
				return f(r, p), nil
			}
		}
		return nil, servicetest.Fail(http.StatusNotFound, "process not found")
	})
}

// request is the request for a command.
type request struct {
	Command string            `json:"command"`
	Name    string            `json:"name"`
	Dir     string            `json:"workingDir"`
	Env     map[string]string `json:"env"`
	Wait    bool              `json:"waitForCompletion"`
}

// process is a command of a sandbox.
type process struct {
	*servicetest.Log
	sandbox, pid string
	asked        request
	started      time.Time
}

// of returns the commands of a sandbox, the newest first.
func (s *Server) of(sb string) (all []*process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slices.Backward(s.processes) {
		if p.sandbox == sb {
			all = append(all, p)
		}
	}
	return all
}

// Commands returns how many commands run.
func (s *Server) Commands() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.processes {
		if p.Code() == nil {
			n++
		}
	}
	return n
}

// tail is the most output that is shown.
const tail = 64 << 10

func (p *process) shown() map[string]any {
	last := func(stream string) string {
		text := p.Text(stream)
		return strings.ToValidUTF8(text[max(0, len(text)-tail):], "\ufffd")
	}
	stdout, stderr := last(servicetest.Stdout), last(servicetest.Stderr)
	m := map[string]any{
		"pid": p.pid, "name": p.asked.Name, "command": p.asked.Command, "workingDir": p.asked.Dir, "startedAt": p.started.Format(http.TimeFormat), "completedAt": "",
		"status": "running", "exitCode": 0, "stdout": stdout, "stderr": stderr, "logs": stdout + stderr,
	}
	if code := p.Code(); code != nil {
		m["status"], m["exitCode"], m["completedAt"] = "completed", *code, time.Now().Format(http.TimeFormat)
		if *code != 0 {
			m["status"] = "failed"
		}
	}
	return m
}

// run starts a command. With waitForCompletion it answers when the command has
// ended, or sends its output as lines of JSON.
func (s *Server) run(w http.ResponseWriter, r *http.Request, owner string) error {
	p, err := s.start(r, owner)
	if err != nil {
		return err
	}
	if !p.asked.Wait {
		servicetest.Answer(w, http.StatusOK, p.shown())
		return nil
	}
	if r.Header.Get("Accept") != "text/event-stream" {
		select {
		case <-p.Done:
		case <-r.Context().Done():
		}
		servicetest.Answer(w, http.StatusOK, p.shown())
		return nil
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	line := func(kind, data string) {
		_ = json.NewEncoder(w).Encode(map[string]string{"type": kind, "data": data})
		_ = http.NewResponseController(w).Flush()
	}
	p.Follow(r.Context(), func(k servicetest.Chunk) error {
		line(k.Stream, string(k.Data))
		return nil
	})
	text, _ := json.Marshal(p.shown())
	line("result", string(text))
	return nil
}

func (s *Server) start(r *http.Request, owner string) (*process, error) {
	b, in, awake, err := s.machine(r, owner)
	p := &process{sandbox: r.PathValue("name"), pid: servicetest.NewID(), started: time.Now()}
	if err == nil {
		err = servicetest.Read(r, &p.asked)
	}
	if err != nil {
		return nil, err
	}
	if p.asked.Name == "" {
		p.asked.Name = "proc-" + p.pid[:8]
	}
	for _, o := range s.of(p.sandbox) {
		if o.asked.Name == p.asked.Name && o.Code() == nil {
			return nil, servicetest.Fail(http.StatusBadRequest, "process with name %s already exists and is running", o.asked.Name)
		}
	}
	cmd := sandbox.Command{Args: []string{"/bin/sh", "-c", p.asked.Command}, Dir: p.asked.Dir, Env: map[string]string{}}
	spec, _ := s.Show(b).Request.(map[string]any)
	envs, _ := (&description{Spec: spec}).runtime("envs").([]any)
	for _, e := range envs {
		if one, ok := e.(map[string]any); ok {
			cmd.Env[fmt.Sprint(one["name"])] = fmt.Sprint(one["value"])
		}
	}
	maps.Copy(cmd.Env, p.asked.Env)
	p.Log = s.Logged(awake, in, cmd)
	s.mu.Lock()
	s.processes = append(s.processes, p)
	s.mu.Unlock()
	return p, nil
}

// upload is a file that arrives in parts.
type upload struct {
	path  string
	parts map[int][]byte
}

func (s *Server) fileRoutes() {
	write := func(r *http.Request, in driver.Instance, path string, content io.Reader) (any, error) {
		fs, err := servicetest.Files(in)
		if err == nil {
			_, err = fs.Write(r.Context(), "/"+path, content, driver.WriteOptions{})
		}
		return map[string]string{"path": "/" + path, "message": "File written"}, err
	}
	s.Handle("PUT "+at+"/filesystem/{path...}", s.inSandbox(func(r *http.Request, in driver.Instance) (any, error) {
		content, err := content(r)
		if err != nil {
			return nil, err
		}
		return write(r, in, r.PathValue("path"), bytes.NewReader(content))
	}))
	s.HandleRaw("GET "+at+"/filesystem/{path...}", s.read)
	s.Handle("POST "+at+"/filesystem-initiate/{path...}", s.inSandbox(func(r *http.Request, _ driver.Instance) (any, error) {
		id := servicetest.NewID()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.uploads[id] = &upload{path: r.PathValue("path"), parts: map[int][]byte{}}
		return map[string]string{"uploadId": id, "path": "/" + r.PathValue("path")}, nil
	}))
	s.Handle("PUT "+at+"/filesystem-multipart/{upload}/part", s.inSandbox(func(r *http.Request, _ driver.Instance) (any, error) {
		n, _ := strconv.Atoi(r.URL.Query().Get("partNumber"))
		part, err := content(r)
		s.mu.Lock()
		defer s.mu.Unlock()
		u := s.uploads[r.PathValue("upload")]
		if err != nil || u == nil || n < 1 {
			return nil, servicetest.Fail(http.StatusBadRequest, "invalid part: %v", err)
		}
		u.parts[n] = part
		return map[string]any{"partNumber": n, "etag": fmt.Sprintf("%s-%d", r.PathValue("upload"), n), "size": len(part)}, nil
	}))
	s.Handle("POST "+at+"/filesystem-multipart/{upload}/complete", s.inSandbox(func(r *http.Request, in driver.Instance) (any, error) {
		var asked struct {
			Parts []struct {
				Number int    `json:"partNumber"`
				Tag    string `json:"etag"`
			} `json:"parts"`
		}
		if err := servicetest.Read(r, &asked); err != nil {
			return nil, err
		}
		id := r.PathValue("upload")
		s.mu.Lock()
		u := s.uploads[id]
		delete(s.uploads, id)
		s.mu.Unlock()
		if u == nil || len(u.parts) != len(asked.Parts) {
			return nil, servicetest.Fail(http.StatusBadRequest, "parts are missing")
		}
		var all bytes.Buffer
		for _, p := range asked.Parts {
			if p.Tag != fmt.Sprintf("%s-%d", id, p.Number) {
				return nil, servicetest.Fail(http.StatusBadRequest, "part %d has another etag", p.Number)
			}
			all.Write(u.parts[p.Number])
		}
		return write(r, in, u.path, &all)
	}))
	s.Handle("DELETE "+at+"/filesystem-multipart/{upload}/abort", s.inSandbox(func(r *http.Request, _ driver.Instance) (any, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.uploads, r.PathValue("upload"))
		return map[string]string{"message": "aborted"}, nil
	}))
}

// content returns the content of a file in a request: of a form, or of JSON.
func content(r *http.Request) ([]byte, error) {
	if !strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/") {
		var in struct{ Content string }
		err := servicetest.Read(r, &in)
		return []byte(in.Content), err
	}
	const most = 5 << 20
	file, about, err := r.FormFile("file")
	if err != nil || about.Size > most {
		return nil, servicetest.Fail(http.StatusBadRequest, "no file of at most 5 MB: %v", err)
	}
	defer file.Close()
	return io.ReadAll(file)
}

// read sends a file, as it is or in JSON.
func (s *Server) read(w http.ResponseWriter, r *http.Request, owner string) error {
	_, in, _, err := s.machine(r, owner)
	if err != nil {
		return err
	}
	name := "/" + r.PathValue("path")
	if r.Header.Get("Accept") == "application/octet-stream" {
		return servicetest.SendFile(w, r, in, name)
	}
	fs, err := servicetest.Files(in)
	if err != nil {
		return err
	}
	body, _, err := fs.Read(r.Context(), name, driver.ReadOptions{})
	if err != nil {
		return err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err == nil {
		servicetest.Answer(w, http.StatusOK, map[string]string{"path": name, "content": string(text)})
	}
	return err
}
