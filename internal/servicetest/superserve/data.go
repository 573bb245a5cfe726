package superserve

import (
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	protocol = "superserve.exec.v1"
	// maxOutput is how much of each stream POST /exec answers.
	maxOutput = 1 << 20
	// maxFrame is the largest WebSocket message that the service takes.
	maxFrame = 64 << 10
	// timedOut is the exit status of a command after its timeout.
	timedOut = 124
)

func (s *Server) dataPlane() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /exec", s.inside(s.exec))
	mux.HandleFunc("POST /exec/stream", s.inside(s.execStream))
	mux.HandleFunc("GET /exec/connect", s.inside(s.execConnect))
	mux.HandleFunc("GET /files", s.inside(s.readFile))
	mux.HandleFunc("POST /files", s.inside(s.writeFile))
	return mux
}

func refuse(w http.ResponseWriter, status int, message string) {
	answer(w, status, map[string]string{"error": message})
}

// inside lets those in who have the token of a sandbox that is active. The
// context of the request ends when that is paused.
func (s *Server) inside(f func(http.ResponseWriter, *http.Request, *box)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		token := r.Header.Get("X-Access-Token")
		for _, p := range protocols(r) {
			if t, ok := strings.CutPrefix(p, "token."); ok {
				token = t
			}
		}
		s.mu.Lock()
		b := s.boxes[r.PathValue("id")]
		var status, good string
		var awake context.Context
		if b != nil {
			status, good, awake = cmp.Or(b.forced, b.Status), b.token, b.awake
		}
		s.mu.Unlock()
		switch {
		case b == nil:
			answer(w, http.StatusNotFound, map[string]any{"error": map[string]string{"code": "sandbox_route_stale", "message": "no route"}})
		case status != Active:
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, "sandbox is paused\n")
		case token == "" || token != good:
			refuse(w, http.StatusUnauthorized, "invalid access token")
		default:
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			defer context.AfterFunc(awake, cancel)()
			f(w, r.WithContext(ctx), b)
		}
	}
}

func protocols(r *http.Request) (all []string) {
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for p := range strings.SplitSeq(line, ",") {
			all = append(all, strings.TrimSpace(p))
		}
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

func (s *Server) command(b *box, r run, stdin bool) sandbox.Command {
	s.mu.Lock()
	defer s.mu.Unlock()
	env := maps.Clone(b.env)
	maps.Copy(env, r.Env)
	args := []string{"/bin/sh", "-c", r.Command}
	if len(r.Args) > 0 {
		args = append([]string{r.Command}, r.Args...)
	}
	return sandbox.Command{Args: args, Env: env, Dir: r.Dir, Stdin: stdin, Timeout: time.Duration(r.Timeout) * time.Second}
}

// status is the exit status in the service's format.
func status(x sandbox.Exit) int {
	if x.Reason == sandbox.ReasonTimeout {
		return timedOut
	}
	return x.Code
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request, b *box) {
	var what run
	if err := json.NewDecoder(r.Body).Decode(&what); err != nil || what.Command == "" {
		refuse(w, http.StatusBadRequest, "command is required")
		return
	}
	out, err := servicetest.Run(r.Context(), b.in, s.command(b, what, false), maxOutput)
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	if out.Truncated {
		out.Stderr = append(out.Stderr, "\n[output truncated]\n"...)
	}
	answer(w, http.StatusOK, map[string]any{
		"stdout": string(out.Stdout), "stderr": string(out.Stderr), "exit_code": status(out.Exit), "truncated": out.Truncated,
	})
}

// execStream sends output as text events.
func (s *Server) execStream(w http.ResponseWriter, r *http.Request, b *box) {
	var what run
	if err := json.NewDecoder(r.Body).Decode(&what); err != nil || what.Command == "" {
		refuse(w, http.StatusBadRequest, "command is required")
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, ": keepalive\n\n")
	var mu sync.Mutex
	send := func(event map[string]any) error {
		mu.Lock()
		defer mu.Unlock()
		text, err := json.Marshal(event)
		if err == nil {
			_, err = fmt.Fprintf(w, "data: %s\n\n", text)
		}
		return errors.Join(err, http.NewResponseController(w).Flush())
	}
	stream := func(name string) func([]byte) error {
		return func(data []byte) error {
			return send(map[string]any{"timestamp": time.Now().UTC(), name: strings.ToValidUTF8(string(data), "\ufffd")})
		}
	}
	exit, err := servicetest.Stream(r.Context(), b.in, s.command(b, what, false), stream("stdout"), stream("stderr"))
	switch {
	case r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // it was paused: the stream has no end
	case err != nil:
		_ = send(map[string]any{"error": err.Error(), "code": "exec_failed", "finished": true})
	default:
		_ = send(map[string]any{"exit_code": status(exit), "finished": true})
	}
}

// session is a command over a WebSocket.
type session struct {
	ws *websocket.Conn
	p  driver.Process
	mu sync.Mutex
}

func (s *Server) execConnect(w http.ResponseWriter, r *http.Request, b *box) {
	if !slices.Contains(protocols(r), protocol) {
		refuse(w, http.StatusBadRequest, "subprotocol is required")
		return
	}
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{protocol}, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return
	}
	defer func() { _ = ws.CloseNow() }()
	ws.SetReadLimit(maxFrame)
	ctx, end := context.WithCancel(r.Context())
	defer end()
	kind, text, err := ws.Read(ctx)
	var what run
	if err != nil || kind != websocket.MessageText || json.Unmarshal(text, &what) != nil || what.Command == "" {
		_ = ws.Close(websocket.StatusPolicyViolation, "start frame expected")
		return
	}
	// It is an ordinary process of the machine: snapshots contain it, and it
	// continues in their copies.
	cmd := s.command(b, what, true)
	cmd.Background = true
	p, err := b.in.Exec(ctx, &cmd)
	if err != nil {
		_ = wsEvent(ctx, ws, map[string]any{"finished": true, "error": err.Error()})
		return
	}
	// If the client disconnects or the sandbox is paused, the command ends when
	// the sandbox continues, but not processes that have left its group.
	defer s.work.Go(func() {
		_ = p.Signal(context.WithoutCancel(ctx), int(unix.SIGTERM)) // it may have ended
		_ = p.Close()
	})
	c := &session{ws: ws, p: p}
	s.work.Go(func() { c.receive(ctx, end) })
	var readers sync.WaitGroup
	readers.Go(func() { servicetest.Pump(p.Stdout(), c.output(ctx, 1)) })
	readers.Go(func() { servicetest.Pump(p.Stderr(), c.output(ctx, 2)) })
	done := make(chan sandbox.Exit, 1)
	s.work.Go(func() {
		readers.Wait()
		if exit, err := p.Wait(ctx); err == nil {
			done <- exit
		}
	})
	select {
	case exit := <-done:
		_ = wsEvent(ctx, ws, map[string]any{"finished": true, "exit_code": status(exit)})
		_ = ws.Close(websocket.StatusNormalClosure, "")
	case <-ctx.Done():
	}
}

func wsEvent(ctx context.Context, ws *websocket.Conn, event map[string]any) error {
	text, err := json.Marshal(event)
	if err != nil {
		return err
	}
	return ws.Write(ctx, websocket.MessageText, text)
}

func (c *session) output(ctx context.Context, channel byte) func([]byte) error {
	return func(data []byte) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.ws.Write(ctx, websocket.MessageBinary, append([]byte{channel}, data...))
	}
}

// receive takes input and signals until the client hangs up, and ends the
// context then.
func (c *session) receive(ctx context.Context, end context.CancelFunc) {
	defer end()
	for {
		kind, data, err := c.ws.Read(ctx)
		if err != nil {
			return
		}
		if kind == websocket.MessageBinary {
			if len(data) > 0 && data[0] == 0 {
				_, _ = c.p.Stdin().Write(data[1:]) // the command may have closed it
			}
			continue
		}
		var control struct{ Type, Name string }
		switch _ = json.Unmarshal(data, &control); control.Type {
		case "stdin_close":
			_ = c.p.Stdin().Close()
		case "signal":
			_ = c.p.Signal(ctx, int(unix.SignalNum(control.Name)))
		}
	}
}

// fileFailure answers like the data API. CodeNotFound means a missing file.
func fileFailure(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	switch sandbox.CodeOf(err) {
	case sandbox.CodeNotFound:
		status = http.StatusNotFound
	case sandbox.CodeInvalid:
		status = http.StatusBadRequest
	}
	refuse(w, status, err.Error())
}

func (s *Server) readFile(w http.ResponseWriter, r *http.Request, b *box) {
	name := r.URL.Query().Get("path")
	fs, err := servicetest.Files(b.in)
	if err == nil && !path.IsAbs(name) {
		err = &sandbox.Error{Code: sandbox.CodeInvalid, Message: "path must be absolute"}
	}
	var info sandbox.FileInfo
	if err == nil {
		info, err = fs.Stat(r.Context(), path.Clean(name))
	}
	if err != nil {
		fileFailure(w, err)
		return
	}
	if info.Type == sandbox.TypeDir && r.URL.Query().Get("format") == "zip" {
		s.zipped(w, r, fs, path.Clean(name))
		return
	}
	body, _, err := fs.Read(r.Context(), path.Clean(name), driver.ReadOptions{})
	if err != nil {
		fileFailure(w, err)
		return
	}
	defer body.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	if _, err := io.Copy(w, body); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// zipped answers a directory, without its links.
func (s *Server) zipped(w http.ResponseWriter, r *http.Request, fs driver.FileSystem, root string) {
	var packed bytes.Buffer
	out := zip.NewWriter(&packed)
	for info, err := range fs.List(r.Context(), root, driver.ListOptions{Depth: -1}) {
		if err == nil && info.Type == sandbox.TypeFile {
			err = addTo(r.Context(), out, fs, info.Path, path.Base(root)+strings.TrimPrefix(info.Path, root))
		}
		if err != nil {
			fileFailure(w, err)
			return
		}
	}
	_ = out.Close() // it is in memory
	w.Header().Set("Content-Type", "application/zip")
	_, _ = w.Write(packed.Bytes())
}

func addTo(ctx context.Context, out *zip.Writer, fs driver.FileSystem, from, name string) error {
	entry, err := out.Create(name)
	if err != nil {
		return err
	}
	body, _, err := fs.Read(ctx, from, driver.ReadOptions{})
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(entry, body)
	return err
}

func (s *Server) writeFile(w http.ResponseWriter, r *http.Request, b *box) {
	name := r.URL.Query().Get("path")
	fs, err := servicetest.Files(b.in)
	if err == nil && !path.IsAbs(name) {
		err = &sandbox.Error{Code: sandbox.CodeInvalid, Message: "path must be absolute"}
	}
	if err == nil {
		_, err = fs.Write(r.Context(), path.Clean(name), r.Body, driver.WriteOptions{})
	}
	if err != nil {
		fileFailure(w, err)
		return
	}
	answer(w, http.StatusOK, map[string]string{"path": name})
}
