package api

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/offline"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	defaultOutput = 1 << 20
	// linger is how long to wait for more output after a command has ended.
	// Processes that it left behind may hold its streams open forever.
	linger = time.Second
)

type execInput struct {
	SandboxRef
	Body ExecRequest
}

type execOutput struct{ Body ExecResult }

// ProcessRef names a command of a sandbox.
type ProcessRef struct {
	SandboxRef
	ID string `path:"id" maxLength:"64" doc:"id of the command"`
}

type processesOutput struct {
	Body struct {
		Processes []sandbox.ProcessInfo `json:"processes" doc:"oldest first"`
	}
}

type killInput struct {
	ProcessRef
	Body struct {
		Signal int `json:"signal" minimum:"1" maximum:"64" doc:"number of the signal on Linux"`
	}
}

func (a *API) processes() {
	huma.Register(a.huma, operation("exec", http.MethodPost, "/v1/sandboxes/{ref}/exec", "Commands", "Run a command and wait for its end", ops.SandboxFind, ops.ProcessExec), a.exec)
	huma.Register(a.huma, operation("listProcesses", http.MethodGet, "/v1/sandboxes/{ref}/processes", "Commands", "List the commands that were started", ops.SandboxFind, ops.ProcessList),
		func(ctx context.Context, in *SandboxRef) (*processesOutput, error) {
			out := &processesOutput{}
			out.Body.Processes = []sandbox.ProcessInfo{}
			sb, err := a.services.Processes.Open(ctx, in.Ref)
			if err != nil {
				return nil, a.problem(ctx, err)
			}
			all, err := sb.Processes(ctx)
			out.Body.Processes = append(out.Body.Processes, all...)
			return out, a.problem(ctx, err)
		})
	kill := operation("signalProcess", http.MethodPost, "/v1/sandboxes/{ref}/processes/{id}/signal", "Commands", "Send a signal to the process group of a command", ops.SandboxFind, ops.ProcessKill)
	kill.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, kill, func(ctx context.Context, in *killInput) (*struct{}, error) {
		sb, err := a.services.Processes.Open(ctx, in.Ref)
		if err != nil {
			return nil, a.problem(ctx, err)
		}
		return nil, a.problem(ctx, sb.Kill(ctx, in.ID, in.Body.Signal))
	})
	a.raw(operation("logs", http.MethodGet, "/v1/sandboxes/{ref}/processes/{id}/logs", "Commands", "Read the log of a background command, as JSON lines", ops.SandboxFind, ops.ProcessLogs),
		map[string]string{"tail": "only the last so many lines", "follow": "true: go on until the command ends"}, "", "application/x-ndjson", a.logs)
	a.raw(operation("execStream", http.MethodGet, "/v1/sandboxes/{ref}/exec", "Commands", "Run a command connected to the caller", ops.SandboxFind, ops.ProcessExec), nil, "", "websocket", a.execStream)
	a.raw(operation("attachStream", http.MethodGet, "/v1/sandboxes/{ref}/processes/{id}/attach", "Commands", "Connect to a background command, or again to one with a hold", ops.SandboxFind, ops.ProcessReconnect),
		map[string]string{"stdout": "go on after so many bytes of output", "stderr": "of standard error", "skip": "true: where that is not kept, go on later"}, "", "websocket", a.attachStream)
}

func (a *API) exec(ctx context.Context, in *execInput) (*execOutput, error) {
	if in.Body.TTY != nil || in.Body.Stdin || in.Body.HoldMS != 0 {
		return nil, a.problem(ctx, invalid("command", "a terminal, a stream of input or a hold needs a WebSocket"))
	}
	sb, err := a.services.Processes.Open(ctx, in.Ref)
	if err != nil {
		return nil, a.problem(ctx, err)
	}
	cmd := in.Body.command()
	input := in.Body.InputBase64
	if in.Body.Input != "" {
		input = []byte(in.Body.Input)
	}
	cmd.Stdin = len(input) > 0
	p, err := sb.Exec(ctx, cmd)
	if err != nil {
		return nil, a.problem(ctx, err)
	}
	defer func() {
		if ctx.Err() != nil {
			detach(p) // the caller is gone
			return
		}
		_ = p.Close()
	}()
	if cmd.Background {
		// Input that the command does not read is dropped when the caller stops
		// waiting.
		defer context.AfterFunc(ctx, func() { _ = p.Close() })()
		_, _ = p.Stdin().Write(input)
		_ = p.Stdin().Close()
		return &execOutput{ExecResult{Process: p.Info()}}, nil
	}
	limit := in.Body.OutputLimit
	if limit == 0 {
		limit = defaultOutput
	}
	out, err := collect(ctx, p, input, limit)
	if err == nil {
		out.Body.Hint = hint(sb, &out.Body)
	}
	return out, a.problem(ctx, err)
}

// hint returns how to allow hosts if a command says that it could not reach one.
func hint(sb Sandbox, r *ExecResult) string {
	if r.Exit.Code == 0 {
		return ""
	}
	for _, o := range []*Output{r.Stderr, r.Stdout} {
		if s := new(offline.Scanner); o != nil && o.Encoding == "utf-8" {
			_, _ = io.WriteString(s, o.Data)
			if s.Found() {
				return offline.Hint(sb.HasNetwork(), "network.egress of the sandbox, such as [\"files.example.com\"]")
			}
		}
	}
	return ""
}

// collect runs a command to its end.
func collect(ctx context.Context, p driver.Process, input []byte, limit int64) (*execOutput, error) {
	if len(input) == 0 {
		_ = p.Stdin().Close()
	} else {
		go func() {
			_, _ = p.Stdin().Write(input) // a command may end before it has read all input
			_ = p.Stdin().Close()
		}()
	}
	stdout, stderr := &capture{limit: limit, alive: make(chan struct{}, 1)}, &capture{limit: limit, alive: make(chan struct{}, 1)}
	read := follow
	if f, ok := driver.As[driver.Finisher](p); ok && f.Finished() {
		read = readFinished
	}
	exit, err := read(ctx, p, stdout, stderr)
	if err != nil {
		return nil, err
	}
	info, e := p.Info(), exit
	info.Running, info.Exit = false, &exit
	return &execOutput{ExecResult{Process: info, Exit: &e, Stdout: stdout.output(), Stderr: stderr.output()}}, nil
}

// readFinished reads the output of a command that has already ended, as most
// have at this point. It uses no goroutines, because only a quota can delay the
// output.
func readFinished(ctx context.Context, p driver.Process, stdout, stderr *capture) (sandbox.Exit, error) {
	defer context.AfterFunc(ctx, func() { _ = p.Close() })()
	_, _ = io.Copy(stdout, p.Stdout())
	_, _ = io.Copy(stderr, p.Stderr())
	if err := ctx.Err(); err != nil {
		return sandbox.Exit{}, err
	}
	return p.Wait(ctx)
}

// follow reads the output of a command until the command ends.
func follow(ctx context.Context, p driver.Process, stdout, stderr *capture) (sandbox.Exit, error) {
	copied := make(chan struct{}, 2)
	for to, from := range map[*capture]io.Reader{stdout: p.Stdout(), stderr: p.Stderr()} {
		go func() {
			_, _ = io.Copy(to, from)
			copied <- struct{}{}
		}()
	}
	exit, err := p.Wait(ctx)
	if err != nil {
		return exit, err
	}
	return exit, drain(ctx, p, copied, stdout.alive, stderr.alive)
}

// drain waits until both streams have ended, or until no output has arrived
// for a while although no quota delays it.
func drain(ctx context.Context, p driver.Process, copied, alive1, alive2 <-chan struct{}) error {
	open := 2
	throttled := func() (now bool, changes int64) {
		if t, ok := p.(interface{ Throttled() (bool, int64) }); ok {
			return t.Throttled()
		}
		return false, 0
	}
	_, before := throttled()
	quiet := time.NewTimer(linger)
	defer quiet.Stop()
	for {
		select {
		case <-copied:
			if open--; open == 0 {
				return nil
			}
			continue
		case <-ctx.Done():
			return ctx.Err()
		case <-quiet.C:
			now, changes := throttled()
			if !now && changes == before {
				return nil
			}
			before = changes
		case <-alive1:
		case <-alive2:
		}
		quiet.Reset(linger)
	}
}

// capture keeps the beginning of a stream and discards the rest, so that a
// command never blocks.
type capture struct {
	limit int64
	alive chan struct{} // receives a value when output arrives

	mu      sync.Mutex
	data    []byte
	dropped int64
}

func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	room := min(int64(len(p)), c.limit-int64(len(c.data)))
	c.data = append(c.data, p[:room]...)
	c.dropped += int64(len(p)) - room
	c.mu.Unlock()
	select {
	case c.alive <- struct{}{}:
	default:
	}
	return len(p), nil
}

// buffers is a pool of read buffers. io.Copy would allocate one for each stream
// of each command, though most commands write little.
var buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// ReadFrom implements io.ReaderFrom.
func (c *capture) ReadFrom(r io.Reader) (n int64, err error) {
	buffer := buffers.Get().(*[32 << 10]byte)
	defer buffers.Put(buffer)
	for {
		m, err := r.Read(buffer[:])
		if m > 0 {
			_, _ = c.Write(buffer[:m])
			n += int64(m)
		}
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

func (c *capture) output() *Output {
	c.mu.Lock()
	defer c.mu.Unlock()
	data, dropped := c.data, c.dropped
	if dropped > 0 { // a truncated UTF-8 character must not turn text into base64
		for back := 1; back < utf8.UTFMax && back <= len(data); back++ {
			if tail := data[len(data)-back:]; utf8.RuneStart(tail[0]) {
				if !utf8.FullRune(tail) {
					data, dropped = data[:len(data)-back], dropped+int64(back)
				}
				break
			}
		}
	}
	if utf8.Valid(data) {
		return &Output{Data: string(data), Encoding: "utf-8", Truncated: dropped > 0, Dropped: dropped}
	}
	return &Output{Data: base64.StdEncoding.EncodeToString(c.data), Encoding: "base64", Truncated: c.dropped > 0, Dropped: c.dropped}
}

// logs streams a command's log. An error after the first line is sent as the
// last line.
func (a *API) logs(w http.ResponseWriter, r *http.Request) error {
	q := query{r: r}
	opts := driver.LogOptions{Tail: int(q.int("tail", 10, 32)), Follow: q.bool("follow")}
	if q.err != nil {
		return q.err
	}
	sb, err := a.services.Processes.Open(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	logs, err := sb.Logs(r.Context(), r.PathValue("id"), opts)
	if err != nil {
		return err
	}
	defer logs.Close()
	// Closing the reader unblocks a Read that waits for more output.
	defer context.AfterFunc(r.Context(), func() { _ = logs.Close() })()
	out := newLines(w)
	for {
		chunk, err := logs.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			if r.Context().Err() == nil {
				out.write(map[string]any{"error": a.problem(r.Context(), err)})
			}
			return nil
		}
		if !out.write(sandbox.LogChunk(chunk)) {
			return nil
		}
	}
}

// isWebSocket refuses a GET request that does not upgrade to a WebSocket.
func isWebSocket(r *http.Request) error {
	if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return nil
	}
	return &Problem{
		Status: http.StatusUpgradeRequired, Title: http.StatusText(http.StatusUpgradeRequired), Code: sandbox.CodeInvalid,
		Detail: "this path is a WebSocket", Hint: "connect with a WebSocket, or use POST to run a command in one request",
	}
}
