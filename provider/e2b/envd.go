package e2b

import (
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/sandbox"
)

// envdPort is the port at which the data plane is.
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

// base is where the data plane is reached.
func (in *inside) base() string {
	switch {
	case in.sandboxURL != nil:
		return strings.TrimSuffix(in.sandboxURL.String(), "/")
	case hosted[in.domain]:
		return "https://sandbox." + in.domain
	}
	return "https://" + envdPort + "-" + in.id + "." + in.domain
}

// asRoot is how the data plane is told who acts.
var asRoot = "Basic " + base64.StdEncoding.EncodeToString([]byte("root:"))

// sign adds what every request to the data plane bears.
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

// hide removes the sandbox's token, which a service may repeat.
func (in *inside) hide(text string) string {
	if text = in.scrub(text); in.token == "" {
		return text
	}
	return strings.ReplaceAll(text, in.token, "[token]")
}

// explain makes an *sandbox.Error of an error of the transport or of Connect.
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

// rpcCodes are the codes of the vocabulary for those of Connect which say
// something about the request. All others are evidence of nothing.
var rpcCodes = map[connect.Code]sandbox.Code{
	connect.CodeInvalidArgument:   sandbox.CodeInvalid,
	connect.CodeNotFound:          sandbox.CodeNotFound,
	connect.CodePermissionDenied:  sandbox.CodeDenied,
	connect.CodeUnauthenticated:   sandbox.CodeUnauthorized,
	connect.CodeResourceExhausted: sandbox.CodeExhausted,
	connect.CodeUnimplemented:     sandbox.CodeUnsupported,
}

// healthy reports whether the sandbox runs; an error says nothing.
func (in *inside) healthy(ctx context.Context) bool {
	res, err := in.request(ctx, http.MethodGet, "/health", nil, nil)
	if err != nil {
		return false
	}
	res.Body.Close()
	return true
}

// upload writes a file of root's. Over a network it is compressed.
func (in *inside) upload(ctx context.Context, file, path string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	base, err := url.Parse(in.base())
	if err != nil {
		return err
	}
	var body io.Reader = f
	zip := !loopback(base.Hostname())
	if zip {
		r, w := io.Pipe()
		defer r.Close() // ends the goroutine
		go func() {
			z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // the level is valid
			_, err := io.Copy(z, f)
			w.CloseWithError(errors.Join(err, z.Close()))
		}()
		body = r
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

// measures is what the data plane says that its sandbox consumes.
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
		return m, &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: in.id, Message: "the sandbox's metrics make no sense", Cause: err}
	}
	return m, nil
}

// Streams say that they live so often, and are dead when they have not.
const (
	keepalive = 50 * time.Second
	deadline  = 150 * time.Second
)

// start starts a process as root and follows it.
func (in *inside) start(ctx context.Context, req *envd.StartRequest) (*connect.ServerStreamForClient[envd.ProcessResponse], error) {
	c := connect.NewClient[envd.StartRequest, envd.ProcessResponse](in.client, in.base()+envd.ProcessStart, envd.ClientCodec(true))
	msg := connect.NewRequest(req)
	in.sign(msg.Header())
	msg.Header().Set("Keepalive-Ping-Interval", strconv.Itoa(int(keepalive/time.Second)))
	return c.CallServerStream(ctx, msg)
}

// input returns what writes to the input of a process.
func (in *inside) input(pid uint32) func(ctx context.Context, data []byte) error {
	c := connect.NewClient[envd.SendInputRequest, envd.Empty](in.client, in.base()+envd.ProcessSendInput, envd.ClientCodec(true))
	return func(ctx context.Context, data []byte) error {
		msg := connect.NewRequest(&envd.SendInputRequest{
			Process: &envd.ProcessSelector{PID: &pid}, Input: &envd.ProcessInput{Stdin: data},
		})
		in.sign(msg.Header())
		_, err := c.CallUnary(ctx, msg)
		return err
	}
}
