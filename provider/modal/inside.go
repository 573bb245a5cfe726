package modal

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/internal/modalapi"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/provider/internal/rpc"
	"github.com/atoll-run/atoll/sandbox"
)

// worker is the way to the worker that runs a sandbox.
type worker struct {
	rpc.Route
	client *rpc.Client
	task   string // the run of the sandbox
}

// inside runs commands in one sandbox, through its worker.
type inside struct {
	p       *Provider
	sandbox string // its ID

	mu  sync.Mutex
	way *worker // nil: unknown
}

func (p *Provider) openInside(b hosted.Sandbox) hosted.Inside { return &inside{p: p, sandbox: b.ID} }

// Wake implements hosted.Inside. Sandboxes of the service do not sleep.
func (in *inside) Wake(ctx context.Context) error {
	_, err := in.p.Settled(ctx, "", in.sandbox)
	return err
}

// present returns the present way to the worker. stale is one that is refused.
func (in *inside) present(ctx context.Context, stale *worker) (*worker, error) {
	in.mu.Lock()
	way := in.way
	in.mu.Unlock()
	if way != nil && way != stale {
		return way, nil
	}
	a, ref := in.p.api, &modalapi.SandboxRef{ID: in.sandbox}
	var task modalapi.TaskID
	var access modalapi.Access
	err := call(ctx, a, "SandboxGetTaskIdV2", ref, &task)
	if err == nil {
		err = call(ctx, a, "SandboxGetCommandRouterAccess", ref, &access)
	}
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(access.URL)
	switch {
	case task.ID == nil || *task.ID == "" || access.JWT == "":
		return nil, a.ProtocolError("the service names no worker for the sandbox")
	case err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || a.Base.Scheme != "http"):
		return nil, a.ProtocolError("the service names no https address for the worker of the sandbox")
	}
	client := *a.Client.Client
	client.Base, client.Secrets = u, []string{access.JWT}
	way = &worker{task: *task.ID, client: &rpc.Client{Client: &client, RetryAfter: retryAfter}, Route: rpc.Route{
		URL: strings.TrimSuffix(access.URL, "/") + modalapi.Router, Sign: func(h http.Header) { h.Set("Authorization", "Bearer "+access.JWT) },
	}}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.way = way
	return way, nil
}

// through calls f with the way to the worker, and again with a new one if the
// worker refuses the token.
func (in *inside) through(ctx context.Context, f func(*worker) error) error {
	way, err := in.present(ctx, nil)
	if err != nil {
		return err
	}
	if err = f(way); rest.RefusalOf(err).Status == http.StatusUnauthorized {
		if way, err = in.present(ctx, way); err == nil {
			err = f(way)
		}
	}
	return err
}

// ask calls a method of the worker. All of them can be repeated.
func ask[Req, Res any](ctx context.Context, in *inside, method string, req func(task string) *Req, out *Res) error {
	return in.p.api.Insist(ctx, true, func() error {
		return in.through(ctx, func(w *worker) error { return rpc.Call(ctx, w.client, w.Route, method, req(w.task), out) })
	})
}

// Run implements hosted.Inside.
func (in *inside) Run(ctx context.Context, script string) (string, error) {
	return hosted.Script(ctx, in.Start, script, nil)
}

// Upload implements guestkit.Runner. The guest is the input of a command.
func (in *inside) Upload(ctx context.Context, file string, guest *program.Program) error {
	body, err := guest.Open()
	if err != nil {
		return err
	}
	defer body.Close()
	q := hosted.Quote([]string{file})
	script := "umask 022; mkdir -p " + hosted.Quote([]string{path.Dir(file)}) + " && cat >" + q + ".new && chmod 0755 " + q + ".new && mv " + q + ".new " + q
	p, err := in.start(ctx, []string{"/bin/sh", "-c", script}, nil)
	if err != nil {
		return err
	}
	defer p.Close()
	defer context.AfterFunc(ctx, p.cancel)()
	part := make([]byte, maxInput)
	for end := false; !end; {
		n, err := io.ReadFull(body, part)
		if end = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF); err != nil && !end {
			return err
		}
		if err := p.write(ctx, part[:n], end); err != nil {
			return err
		}
	}
	for {
		_, err := p.Receive()
		var exit *guestkit.Exit
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &exit) && exit.Code != 0:
			return in.p.api.ProtocolError("the sandbox does not take the guest: " + in.p.api.Clip(string(exit.Stderr)))
		case exit != nil:
			return nil
		case err != nil:
			return err
		}
	}
}

const (
	// maxInput is the largest input in a request.
	maxInput = 1 << 20
	// maxText limits the bytes that are kept of a program's error output.
	maxText = 300
	// beat is how often the worker is asked whether a silent command runs.
	beat = 50 * time.Second
	// parting is how long input can be sent after Close.
	parting = 6 * time.Second
)

// process is a command of a sandbox. It implements guestkit.Program.
type process struct {
	in     *inside
	id     string
	ctx    context.Context
	cancel context.CancelFunc // disconnects
	output chan received
	over   atomic.Bool // the command has ended

	mu   sync.Mutex
	sent uint64 // bytes of input
}

// received is output of a command, or its end. Nothing is a sign of life.
type received struct {
	data []byte
	err  error
}

// Start implements guestkit.Runner.
func (in *inside) Start(ctx context.Context, argv, env []string) (guestkit.Program, error) {
	p, err := in.start(ctx, argv, env)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (in *inside) start(ctx context.Context, argv, env []string) (*process, error) {
	p := &process{in: in, id: hosted.NewKey(), output: make(chan received)}
	root := "/"
	err := ask(ctx, in, "TaskExecStart", func(task string) *modalapi.ExecStart {
		return &modalapi.ExecStart{
			Task: task, ID: p.id, Args: hosted.Rooted(argv, hosted.Env(env)), Stdout: modalapi.Pipe, Stderr: modalapi.Pipe, Workdir: &root,
		}
	}, &modalapi.Empty{})
	if err != nil {
		return nil, err
	}
	p.ctx, p.cancel = context.WithCancel(in.p.Open)
	for _, f := range []func(){p.receive, p.watch, p.sweep} {
		in.p.Conns.Go(f)
	}
	return p, nil
}

// tell passes something on, unless nobody listens any more.
func (p *process) tell(r received) {
	select {
	case p.output <- r:
	case <-p.ctx.Done():
	}
}

// receive passes on the output and the end of the command.
func (p *process) receive() {
	var end modalapi.ExecEnd
	var text []byte
	err := p.read(modalapi.Stdout, func(data []byte) { p.tell(received{data: data}) })
	if err == nil {
		err = ask(p.ctx, p.in, "TaskExecWait", p.ref, &end)
	}
	if err == nil && (end.Code == nil || *end.Code != 0) {
		err = p.read(modalapi.Stderr, func(data []byte) { text = append(text, data[:min(len(data), maxText-len(text))]...) })
	}
	switch {
	case err != nil:
	case end.Code != nil:
		err = &guestkit.Exit{Code: int(*end.Code), Status: "exited", Stderr: text}
	case end.Signal != nil:
		err = &guestkit.Exit{Code: 128 + int(*end.Signal), Status: "killed by signal " + strconv.Itoa(int(*end.Signal)), Stderr: text}
	default:
		err = p.in.p.api.ProtocolError("the service does not tell how the command ended")
	}
	var exit *guestkit.Exit
	p.over.Store(errors.As(err, &exit))
	p.tell(received{err: err})
}

func (p *process) ref(task string) *modalapi.ExecRef {
	return &modalapi.ExecRef{Task: task, ID: p.id}
}

// read passes on all that the command writes. If the connection breaks, it
// continues where it ended.
func (p *process) read(from int32, pass func([]byte)) error {
	req := modalapi.ExecRead{ID: p.id, From: from}
	for try := 1; ; try++ {
		before := req.Offset
		err := p.in.through(p.ctx, func(w *worker) error {
			req.Task = w.task
			return rpc.Stream(p.ctx, w.client, w.Route, "TaskExecStdioRead", &req, func(m *modalapi.Output) bool {
				req.Offset += uint64(len(m.Data))
				pass(m.Data)
				return true
			})
		})
		if req.Offset > before {
			try = 1
		}
		if sandbox.CodeOf(err) != sandbox.CodeUnavailable || try == rpc.Attempts {
			return err
		}
		if err := rpc.Pause(p.ctx, try); err != nil {
			return err
		}
	}
}

// watch asks periodically whether the command runs, and reports answers as signs
// of life.
func (p *process) watch() {
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-ticker.C:
		}
		if ask(p.ctx, p.in, "TaskExecPoll", p.ref, &modalapi.ExecEnd{}) == nil {
			p.tell(received{})
		}
	}
}

// sweep ends the input of the command a while after Close, because the service
// cannot end a command.
func (p *process) sweep() {
	<-p.ctx.Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), 2*parting)
	defer cancel()
	if !p.over.Load() && p.in.p.Open.Err() == nil {
		timer := time.NewTimer(parting)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-p.in.p.Open.Done():
		}
	}
	if !p.over.Load() {
		_ = p.write(ctx, nil, true) // the guest also notices the silence
	}
}

// Receive implements guestkit.Program.
func (p *process) Receive() ([]byte, error) {
	select {
	case r := <-p.output:
		return r.data, r.err
	case <-p.ctx.Done():
		return nil, io.ErrUnexpectedEOF
	}
}

// Send implements guestkit.Program.
func (p *process) Send(ctx context.Context, data []byte) error {
	for part := range slices.Chunk(data, maxInput) {
		if err := p.write(ctx, part, false); err != nil {
			return err
		}
	}
	return nil
}

// write sends input, with its offset, so that none is repeated.
func (p *process) write(ctx context.Context, data []byte, end bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := ask(ctx, p.in, "TaskExecStdinWrite", func(task string) *modalapi.ExecWrite {
		return &modalapi.ExecWrite{Task: task, ID: p.id, Offset: p.sent, Data: data, EOF: end}
	}, &modalapi.Empty{})
	if err == nil {
		p.sent += uint64(len(data))
	}
	return err
}

// Close implements guestkit.Program.
func (p *process) Close() error {
	p.cancel()
	return nil
}

var _ hosted.Inside = (*inside)(nil)
