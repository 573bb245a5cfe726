package bridgeapi

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	// linger is how long to wait for more output after a command has ended.
	// Processes that it left behind may hold its streams open forever.
	linger = time.Second
	// keepalive is the interval of comments on a silent stream. Some clients give
	// up after five minutes.
	keepalive = 30 * time.Second
	piece     = 32 << 10
)

// execRequest asks for a command.
type execRequest struct {
	Args    []string `json:"argv"`
	Timeout *float64 `json:"timeout_ms"`
	Dir     string   `json:"cwd"`

	session string // empty: none
}

// readExec reads the request for a command.
func readExec(r *http.Request) (req execRequest, cmd sandbox.Command, err error) {
	if err := read(r, &req); err != nil {
		return req, cmd, err
	}
	if len(req.Args) == 0 {
		return req, cmd, invalid("argv must be a non-empty array")
	}
	if req.session, err = sessionOf(r); err != nil {
		return req, cmd, err
	}
	cmd.Args = req.Args
	if req.Timeout != nil {
		if *req.Timeout < 0 || *req.Timeout > float64(24*time.Hour/time.Millisecond)*365 {
			return req, cmd, invalid("timeout_ms must be a number of milliseconds")
		}
		cmd.Timeout = max(time.Duration(*req.Timeout*float64(time.Millisecond)), time.Millisecond)
	}
	if err := cmd.Validate(); err != nil {
		return req, cmd, err
	}
	if req.Dir != "" {
		req.Dir, err = within(req.Dir, "cwd")
	}
	return req, cmd, err
}

// exec runs a command and sends its output as server-sent events.
func (h *Handler) exec(w http.ResponseWriter, r *http.Request, c *call) error {
	req, cmd, err := readExec(r)
	if err != nil {
		return err
	}
	sb, err := h.open(r.Context(), c)
	if err != nil {
		return err
	}
	ctx := r.Context()
	if req.session != "" {
		if changes[cmd.Args[0]] != nil {
			return h.change(w, r, c, sb, req.session, cmd.Args)
		}
		var done func()
		ctx, done = h.active.begin(ctx, c.key()+"/"+req.session)
		defer done()
		if err := inSession(ctx, sb, req.session, &cmd); err != nil {
			return err
		}
	}
	if req.Dir != "" {
		if cmd.Dir, err = follow(ctx, sb.Files(), req.Dir, "cwd"); err != nil {
			return err
		}
	}
	p, err := sb.Exec(ctx, cmd)
	if err != nil {
		return err
	}
	defer leave(r.Context(), p)
	_ = p.Stdin().Close()
	s := begin(w)
	exit, err := s.follow(ctx, p)
	if context.Cause(ctx) == errSessionDeleted {
		err = errSessionDeleted
	}
	if exit.Code == 126 || exit.Code == 127 {
		h.mendRoot(r.Context(), sb)
	}
	h.sayEnd(r.Context(), s, exit, err)
	return nil
}

// leave releases a process. It is hung up if its caller has disconnected, unless
// it runs in the background, and killed if something else ended ctx.
func leave(ctx context.Context, p driver.Process) {
	if d, ok := driver.As[driver.Detacher](p); ok && ctx.Err() != nil {
		_ = d.Detach()
		return
	}
	_ = p.Close()
}

// inSession applies the directory and the environment of a session to a
// command.
func inSession(ctx context.Context, sb Sandbox, id string, cmd *sandbox.Command) error {
	s, _, err := loadSession(ctx, sb.Files(), id)
	if err != nil {
		return err
	}
	if cmd.Dir, err = s.dir(ctx, sb.Files()); err != nil {
		return err
	}
	if cmd.Env == nil {
		cmd.Env = map[string]string{}
	}
	maps.Copy(cmd.Env, s.Env)
	return nil
}

// sayEnd sends the last event.
func (h *Handler) sayEnd(ctx context.Context, s *eventStream, exit sandbox.Exit, err error) {
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		s.send("error", answerOf(err, codeTransport))
	case exit.Reason == sandbox.ReasonTimeout:
		s.flush() // the output up to here
		select {
		case <-ctx.Done():
		case <-time.After(h.opts.quiet):
			s.send("error", &problem{Text: "the command took too long and was killed", Code: codeTimeout})
		}
	case lost(exit.Reason):
		s.send("error", &problem{Text: "the sandbox ended while the command ran: " + string(exit.Reason), Code: codeTransport})
	default:
		s.send("exit", map[string]int{"exit_code": exit.Code})
	}
	s.flush()
}

// lost reports whether a command ended because its sandbox ended.
func lost(r sandbox.Reason) bool {
	switch r {
	case sandbox.ReasonKilled, sandbox.ReasonLifetime, sandbox.ReasonCrashed, sandbox.ReasonLost:
		return true
	}
	return false
}

// mendRoot creates the directory in which commands start, if a command has
// removed it. Without it no command can start.
func (h *Handler) mendRoot(ctx context.Context, sb Sandbox) {
	if _, err := sb.Files().Stat(ctx, root); sandbox.CodeOf(err) == sandbox.CodeNotFound {
		if err := sb.Files().Mkdir(ctx, root, driver.MkdirOptions{Parents: true}); err != nil {
			h.opts.Logger.WarnContext(ctx, "making "+root, "error", err)
		}
	}
}

// eventStream sends events to one caller.
type eventStream struct {
	w  io.Writer
	rc *http.ResponseController
}

// begin sends the header of the stream.
func begin(w http.ResponseWriter) *eventStream {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	return &eventStream{w: w, rc: http.NewResponseController(w)}
}

// output sends a piece of output.
func (s *eventStream) output(name string, data []byte) {
	s.raw(name, []byte(base64.StdEncoding.EncodeToString(data)))
}

func (s *eventStream) send(name string, v any) { s.raw(name, ascii(v)) }

func (s *eventStream) raw(name string, data []byte) {
	_, _ = fmt.Fprintf(s.w, "event: %s\ndata: %s\n\n", name, data) // the caller may be gone
}

func (s *eventStream) flush() { _ = s.rc.Flush() }

// chunk is a piece of output; without data, the end of a stream.
type chunk struct {
	name string
	data []byte
}

// follow sends the output of a command until the command has ended.
func (s *eventStream) follow(ctx context.Context, p driver.Process) (sandbox.Exit, error) {
	over := make(chan struct{}) // closed when nothing receives from the channel any more
	defer close(over)
	chunks := make(chan chunk)
	for name, from := range map[string]io.Reader{"stdout": p.Stdout(), "stderr": p.Stderr()} {
		go pump(name, from, chunks, over)
	}
	ended := make(chan struct{})
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	var exit sandbox.Exit
	var err error
	go func() {
		defer close(ended)
		exit, err = p.Wait(waiting)
	}()
	beat := time.NewTicker(keepalive)
	defer beat.Stop()
	for open := 2; open > 0; {
		select {
		case c := <-chunks:
			if c.data == nil {
				open--
				continue
			}
			s.output(c.name, c.data)
			if finished, ok := driver.As[driver.Finisher](p); !ok || !finished.Finished() {
				s.flush() // otherwise more output is ready
			}
		case <-beat.C:
			_, _ = io.WriteString(s.w, ": keepalive\n\n")
			s.flush()
		case <-ctx.Done():
			return sandbox.Exit{}, ctx.Err()
		case <-ended:
			if err != nil {
				return exit, err
			}
			s.drain(ctx, p, chunks, open)
			return exit, nil
		}
	}
	select {
	case <-ended:
		return exit, err
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

// drain sends the rest of the output of a command that has ended. It returns
// when both streams end, or when no output has arrived for a while although no
// quota delays it.
func (s *eventStream) drain(ctx context.Context, p driver.Process, chunks <-chan chunk, open int) {
	throttled := func() (bool, int64) { return false, 0 }
	if t, ok := p.(interface{ Throttled() (bool, int64) }); ok {
		throttled = t.Throttled
	}
	_, before := throttled()
	quiet := time.NewTimer(linger)
	defer quiet.Stop()
	for open > 0 {
		select {
		case c := <-chunks:
			if c.data == nil {
				open--
				continue
			}
			s.output(c.name, c.data)
		case <-ctx.Done():
			return
		case <-quiet.C:
			now, changes := throttled()
			if !now && changes == before {
				return
			}
			before = changes
		}
		quiet.Reset(linger)
	}
}

// pump reads a stream to its end. It splits output only between characters,
// because clients decode each piece separately.
func pump(name string, from io.Reader, to chan<- chunk, over <-chan struct{}) {
	send := func(data []byte) bool {
		select {
		case to <- chunk{name, data}:
			return true
		case <-over:
			return false
		}
	}
	buf, held := make([]byte, piece), 0
	for {
		n, err := from.Read(buf[held:])
		n += held
		held = 0
		if err == nil {
			held = cutOff(buf[:n])
		}
		if n > held && !send(bytes.Clone(buf[:n-held])) {
			return
		}
		if err != nil {
			send(nil)
			return
		}
		copy(buf, buf[n-held:n])
	}
}

// cutOff returns the number of bytes at the end that belong to an incomplete
// character.
func cutOff(b []byte) int {
	for back := 1; back < utf8.UTFMax && back <= len(b); back++ {
		if tail := b[len(b)-back:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return back
			}
			break
		}
	}
	return 0
}
