package e2b

import (
	"context"
	"encoding/base64"
	"encoding/json"
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
	"github.com/atoll-run/atoll/sandbox"
)

// envdPort is the port of the data plane.
const envdPort = "49983"

// inside is the data plane of one sandbox.
type inside struct {
	*api
	id, token, domain string
}

func (a *api) inside(b box) *inside {
	in := &inside{a, b.ID, b.Token, b.Domain}
	if in.domain == "" {
		in.domain = a.domain
	}
	return in
}

// base is the address of the data plane.
func (in *inside) base() string {
	switch {
	case in.sandboxURL != nil:
		return strings.TrimSuffix(in.sandboxURL.String(), "/")
	case hosted[in.domain]:
		return "https://sandbox." + in.domain
	}
	return "https://" + envdPort + "-" + in.id + "." + in.domain
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

// request makes a request that is not an RPC. The caller closes the body.
func (in *inside) request(ctx context.Context, method, path string, body io.Reader, change func(http.Header)) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, in.base()+path, body)
	if err != nil {
		return nil, err
	}
	in.sign(req.Header)
	if change != nil {
		change(req.Header)
	}
	res, err := in.client.Do(req)
	if err != nil {
		return nil, in.explain(ctx, err)
	}
	if res.StatusCode/100 != 2 {
		defer res.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
		err := in.refused(res.StatusCode, text)
		return nil, &sandbox.Error{Code: sandbox.CodeOf(err), Subject: in.id, Message: in.hide(err.Error())}
	}
	return res, nil
}

// hide removes the sandbox's token, because a service may repeat it.
func (in *inside) hide(text string) string {
	if text = in.scrub(text); in.token == "" {
		return text
	}
	return strings.ReplaceAll(text, in.token, "[token]")
}

// explain converts an error of the transport or of Connect to an *sandbox.Error.
func (in *inside) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var rpc *connect.Error
	if !errors.As(err, &rpc) {
		return in.unreachable(ctx, err)
	}
	code, ok := rpcCodes[rpc.Code()]
	if !ok {
		code = sandbox.CodeUnavailable
	}
	return &sandbox.Error{Code: code, Subject: in.id, Message: "the sandbox answers: " + clip(in.hide(rpc.Message())), Cause: err}
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
	res, err := in.request(ctx, http.MethodGet, "/health", nil, nil)
	if err != nil {
		return false
	}
	res.Body.Close()
	return true
}

// Upload implements guestkit.Runner. Over a network the guest is compressed.
func (in *inside) Upload(ctx context.Context, path string, guest *program.Program) error {
	base, err := url.Parse(in.base())
	if err != nil {
		return err
	}
	open, zip := guest.Open, !loopback(base.Hostname())
	if zip {
		open = guest.OpenGzip
	}
	body, err := open() // closed by the transport, which may outlive the request
	if err != nil {
		return err
	}
	q := url.Values{"path": {path}, "username": {"root"}}
	res, err := in.request(ctx, http.MethodPost, "/files?"+q.Encode(), body, func(h http.Header) {
		h.Set("Content-Type", "application/octet-stream")
		if zip {
			h.Set("Content-Encoding", "gzip")
		}
	})
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// measures is the resource usage reported by the data plane.
type measures struct {
	At       int64   `json:"ts"`
	MemUsed  float64 `json:"mem_used"`
	DiskUsed float64 `json:"disk_used"`
}

func (in *inside) metrics(ctx context.Context) (m measures, err error) {
	res, err := in.request(ctx, http.MethodGet, "/metrics", nil, nil)
	if err != nil {
		return m, err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(io.LimitReader(res.Body, 64<<10)).Decode(&m); err != nil {
		return m, &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: in.id, Message: "the sandbox's metrics are invalid", Cause: err}
	}
	return m, nil
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

// Start implements guestkit.Runner.
func (in *inside) Start(ctx context.Context, argv, env []string) (guestkit.Program, error) {
	root, piped := "/", true
	req := connect.NewRequest(&envd.StartRequest{
		Process: &envd.ProcessConfig{Cmd: argv[0], Args: argv[1:], Envs: map[string]string{}, Cwd: &root}, Stdin: &piped,
	})
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		req.Msg.Process.Envs[name] = value
	}
	in.sign(req.Header())
	req.Header().Set("Keepalive-Ping-Interval", strconv.Itoa(int(keepalive/time.Second)))
	p := &process{in: in}
	p.ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
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
	c := connect.NewClient[envd.StartRequest, envd.ProcessResponse](p.in.client, p.in.base()+envd.ProcessStart, envd.ClientCodec(true))
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
		p.stderr = append(p.stderr, ev.Data.Stderr[:min(len(ev.Data.Stderr), maxMessage-len(p.stderr))]...)
		return ev.Data.Stdout, nil
	}
	return nil, nil
}

// hangUp ends the processes that connect clients with the guest.
func (in *inside) hangUp(ctx context.Context) error {
	all := connect.NewClient[envd.Empty, envd.ListResponse](in.client, in.base()+envd.ProcessList, envd.ClientCodec(true))
	req := connect.NewRequest(&envd.Empty{})
	in.sign(req.Header())
	res, err := all.CallUnary(ctx, req)
	if err != nil {
		return in.explain(ctx, err)
	}
	end := connect.NewClient[envd.CloseStdinRequest, envd.Empty](in.client, in.base()+envd.ProcessCloseStdin, envd.ClientCodec(true))
	for _, p := range res.Msg.Processes {
		if p.Config == nil || !guestkit.Joins(append([]string{p.Config.Cmd}, p.Config.Args...)) {
			continue
		}
		// A signal would also reach the guest, because the first of them started it.
		req := connect.NewRequest(&envd.CloseStdinRequest{Process: &envd.ProcessSelector{PID: &p.PID}})
		in.sign(req.Header())
		if _, err := end.CallUnary(ctx, req); err != nil && connect.CodeOf(err) != connect.CodeNotFound {
			return in.explain(ctx, err)
		}
	}
	return nil
}

// Send implements guestkit.Program.
func (p *process) Send(ctx context.Context, data []byte) error {
	c := connect.NewClient[envd.SendInputRequest, envd.Empty](p.in.client, p.in.base()+envd.ProcessSendInput, envd.ClientCodec(true))
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
