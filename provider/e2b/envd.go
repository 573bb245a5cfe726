package e2b

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// envdPort is the port of the data plane.
const envdPort = "49983"

// shared are the domains that serve all sandboxes under one host name.
var shared = map[string]bool{"e2b.app": true, "e2b.dev": true, "e2b.pro": true, "e2b-staging.dev": true}

// access is how the data plane of a sandbox is reached.
type access struct{ token, domain string }

// inside is the data plane of one sandbox.
type inside struct {
	rest.Client
	p    *Provider
	id   string // the service's
	name sandbox.ID
	access
}

func (p *Provider) openInside(b hosted.Sandbox) hosted.Inside {
	in := &inside{Client: p.api.Client, p: p, id: b.ID, name: b.Sandbox}
	in.access, _ = b.Access.(access)
	in.domain = cmp.Or(in.domain, p.api.domain)
	switch {
	case p.api.sandboxURL != nil:
		in.Base = p.api.sandboxURL
	case shared[in.domain]:
		in.Base = &url.URL{Scheme: "https", Host: "sandbox." + in.domain}
	default:
		in.Base = &url.URL{Scheme: "https", Host: envdPort + "-" + in.id + "." + in.domain}
	}
	in.Sign, in.Fresh, in.Hint, in.Secrets = in.sign, nil, "", []string{in.token}
	return in
}

// asRoot is the credential for acting as root in the data plane.
var asRoot = "Basic " + base64.StdEncoding.EncodeToString([]byte("root:"))

// sign adds the headers of every request to the data plane.
func (in *inside) sign(h http.Header) {
	h.Set("E2b-Sandbox-Id", in.id)
	h.Set("E2b-Sandbox-Port", envdPort)
	h.Set("Authorization", asRoot)
	if in.token != "" {
		h.Set("X-Access-Token", in.token)
	}
}

// explain converts an error of the transport or of Connect to an *sandbox.Error.
func (in *inside) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var rpc *connect.Error
	if !errors.As(err, &rpc) {
		return in.Unreachable(ctx, err)
	}
	code, ok := rpcCodes[rpc.Code()]
	if !ok {
		code = sandbox.CodeUnavailable
	}
	return &sandbox.Error{Code: code, Subject: in.id, Message: "the sandbox answers: " + in.Clip(rpc.Message()), Cause: err}
}

// rpcCodes maps Connect codes that say something about the request. All others
// say nothing about the sandbox.
var rpcCodes = map[connect.Code]sandbox.Code{
	connect.CodeInvalidArgument:   sandbox.CodeInvalid,
	connect.CodeNotFound:          sandbox.CodeNotFound,
	connect.CodePermissionDenied:  sandbox.CodeDenied,
	connect.CodeUnauthenticated:   sandbox.CodeUnauthorized,
	connect.CodeResourceExhausted: sandbox.CodeExhausted,
	connect.CodeUnimplemented:     sandbox.CodeUnsupported,
}

// Answers implements guestkit.Machine.
func (in *inside) Answers(ctx context.Context) bool {
	return in.Call(ctx, http.MethodGet, "/health", nil, nil) == nil
}

// Upload implements guestkit.Runner. Over a network the guest is compressed.
func (in *inside) Upload(ctx context.Context, path string, guest *program.Program) error {
	open, header := guest.Open, http.Header{"Content-Type": {"application/octet-stream"}}
	if !rest.Loopback(in.Base.Hostname()) {
		open = guest.OpenGzip
		header.Set("Content-Encoding", "gzip")
	}
	body, err := open() // closed by the transport, which may outlive the request
	if err != nil {
		return err
	}
	res, err := in.Send(ctx, http.MethodPost, "/files?"+url.Values{"path": {path}, "username": {"root"}}.Encode(), header, body)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// Run implements hosted.Inside.
func (in *inside) Run(ctx context.Context, script string) (string, error) {
	return hosted.Script(ctx, in.Start, script, nil)
}

// Wake implements hosted.Inside. The service requires a new lifetime.
func (in *inside) Wake(ctx context.Context) error {
	life := in.p.Of(in.name, in.id).Life
	if life <= 0 {
		life = in.p.opts.Lifetime
	}
	if err := in.p.api.post(ctx, in.id, "resume", timeout(life)); err != nil && sandbox.CodeOf(err) != sandbox.CodeConflict {
		return err // a conflict means that it runs
	}
	return in.p.Change(ctx, in.name, in.id, func(r *hosted.Record) { r.Ends = time.Now().Add(life) })
}

// measures is the resource usage reported by the data plane.
type measures struct {
	At       int64   `json:"ts"`
	MemUsed  float64 `json:"mem_used"`
	DiskUsed float64 `json:"disk_used"`
}

func (in *inside) metrics(ctx context.Context) (m measures, err error) {
	return m, in.Call(ctx, http.MethodGet, "/metrics", nil, &m)
}

// keepalive is the interval of keepalives on a stream.
const keepalive = 50 * time.Second

// process is a process of the sandbox, as guestkit.Program.
type process struct {
	in     *inside
	stream *connect.ServerStreamForClient[envd.ProcessResponse]
	pid    uint32
	ctx    context.Context
	cancel context.CancelFunc
	stderr []byte
}

// address returns the address of an RPC.
func (in *inside) address(method string) string {
	return strings.TrimSuffix(in.Base.String(), "/") + method
}

// maxText limits the bytes that are kept of a program's error output.
const maxText = 300

// Start implements guestkit.Runner.
func (in *inside) Start(ctx context.Context, argv, env []string) (guestkit.Program, error) {
	root, piped := "/", true
	req := connect.NewRequest(&envd.StartRequest{
		Process: &envd.ProcessConfig{Cmd: argv[0], Args: argv[1:], Envs: hosted.Env(env), Cwd: &root}, Stdin: &piped,
	})
	in.sign(req.Header())
	req.Header().Set("Keepalive-Ping-Interval", strconv.Itoa(int(keepalive/time.Second)))
	p := &process{in: in}
	p.ctx, p.cancel = context.WithCancel(in.p.Open)
	stop := context.AfterFunc(ctx, p.cancel)
	err := p.open(req)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		p.cancel()
		return nil, in.explain(ctx, err)
	}
	return p, nil
}

// open waits for the first message, which names the process.
func (p *process) open(req *connect.Request[envd.StartRequest]) (err error) {
	c := connect.NewClient[envd.StartRequest, envd.ProcessResponse](p.in.HTTP, p.in.address(envd.ProcessStart), envd.ClientCodec(true))
	if p.stream, err = c.CallServerStream(p.ctx, req); err != nil {
		return err
	}
	for p.stream.Receive() {
		if ev := p.stream.Msg().Event; ev != nil && ev.Start != nil {
			p.pid = ev.Start.PID
			return nil
		}
	}
	if err := p.stream.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}

// Receive implements guestkit.Program.
func (p *process) Receive() ([]byte, error) {
	if !p.stream.Receive() {
		if err := p.stream.Err(); err != nil && p.ctx.Err() == nil {
			return nil, p.in.explain(p.ctx, err)
		}
		return nil, io.ErrUnexpectedEOF
	}
	switch ev := p.stream.Msg().Event; {
	case ev == nil:
	case ev.End != nil:
		return nil, &guestkit.Exit{Code: int(ev.End.ExitCode), Status: ev.End.Status, Stderr: p.stderr}
	case ev.Data != nil:
		p.stderr = append(p.stderr, ev.Data.Stderr[:min(len(ev.Data.Stderr), maxText-len(p.stderr))]...)
		return ev.Data.Stdout, nil
	}
	return nil, nil
}

// Send implements guestkit.Program.
func (p *process) Send(ctx context.Context, data []byte) error {
	c := connect.NewClient[envd.SendInputRequest, envd.Empty](p.in.HTTP, p.in.address(envd.ProcessSendInput), envd.ClientCodec(true))
	msg := connect.NewRequest(&envd.SendInputRequest{
		Process: &envd.ProcessSelector{PID: &p.pid}, Input: &envd.ProcessInput{Stdin: data},
	})
	p.in.sign(msg.Header())
	if _, err := c.CallUnary(ctx, msg); err != nil {
		return p.in.explain(ctx, err)
	}
	return nil
}

// Close implements guestkit.Program.
func (p *process) Close() error {
	p.cancel()
	return nil
}
