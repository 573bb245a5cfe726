package superserve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/provider/internal/wsexec"
	"github.com/atoll-run/atoll/sandbox"
)

// inside is the data plane of one sandbox.
type inside struct {
	p    *Provider
	id   string // the service's
	name sandbox.ID

	single chan struct{} // held while a token is requested
	mu     sync.Mutex
	access
}

// access is what the data plane of a sandbox accepts, and the hint for its
// route.
type access struct{ token, hint string }

func (p *Provider) enter(b hosted.Box) hosted.Inside {
	in := &inside{p: p, id: b.ID, name: b.Sandbox, single: make(chan struct{}, 1)}
	in.access, _ = b.Access.(access)
	return in
}

// Wake implements hosted.Inside.
func (in *inside) Wake(ctx context.Context) error {
	b, err := in.p.awake(ctx, in.name, in.id, true)
	if err == nil {
		in.set(b)
	}
	return err
}

func (in *inside) set(b box) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.access = access{b.Token, b.Hint}
}

func (in *inside) current(stale string) (a access, ok bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.access, in.token != "" && in.token != stale && !expired(in.hint)
}

// expired reports whether a hint has expired. A hint is a route, not a
// credential: the service checks it.
func expired(hint string) bool {
	parts := strings.Split(hint, ".")
	if len(parts) < 2 {
		return false
	}
	text, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	var payload struct {
		Expires float64 `json:"e"`
	}
	return err == nil && json.Unmarshal(text, &payload) == nil && payload.Expires > 0 && payload.Expires <= float64(time.Now().Unix())
}

// credentials returns a token that is not the stale one, and the hint that
// belongs to it. Of many callers, one requests it. A paused sandbox stays
// paused.
func (in *inside) credentials(ctx context.Context, stale string) (access, error) {
	if a, ok := in.current(stale); ok {
		return a, nil
	}
	select {
	case in.single <- struct{}{}:
		defer func() { <-in.single }()
	case <-ctx.Done():
		return access{}, ctx.Err()
	}
	if a, ok := in.current(stale); ok {
		return a, nil
	}
	b, err := in.p.awake(ctx, in.name, in.id, false)
	if err == nil {
		in.set(b)
	}
	return access{b.Token, b.Hint}, err
}

// tries is the number of attempts while other clients invalidate the token.
const tries = 3

// try makes a request, and repeats it with a new token if the service refused
// it without an effect.
func (in *inside) try(ctx context.Context, f func(c *rest.Client) error) error {
	for n, stale := 1, ""; ; n++ {
		a, err := in.credentials(ctx, stale)
		if err != nil {
			return err
		}
		c := in.p.api.Client // a copy that signs with the token
		c.Fresh = nil
		c.Secrets = append(slices.Clone(c.Secrets), a.token, a.hint)
		c.Base = in.base()
		c.Sign = func(h http.Header) {
			h.Set("X-Access-Token", a.token)
			h.Set("X-Superserve-Sandbox-Id", in.id)
			if a.hint != "" {
				h.Set("X-Superserve-Routing-Hint", a.hint)
			}
		}
		if err = f(&c); err == nil || n == tries || !rerouted(rest.RefusalOf(err), a.hint != "") {
			return err
		}
		stale = a.token
	}
}

// rerouted reports whether a refusal means that the token or the route is not
// valid any more, and that the request had no effect.
func rerouted(r *rest.Refusal, hinted bool) bool {
	switch r.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return true
	case http.StatusNotFound:
		return r.Code == "sandbox_route_stale"
	case http.StatusServiceUnavailable:
		plain := strings.HasPrefix(r.Header.Get("Content-Type"), "text/plain") && r.Header.Get("X-Content-Type-Options") == "nosniff" &&
			(r.Text == "sandbox is paused\n" || r.Text == "sandbox is stopped\n")
		return !hinted || r.Code == "sandbox_unavailable" || plain
	}
	return false
}

// base is the address of the sandbox.
func (in *inside) base() *url.URL {
	u := *in.p.api.data
	u.Host, u.Path = strings.ReplaceAll(u.Host, placeholder, in.id), strings.ReplaceAll(u.Path, placeholder, in.id)
	return &u
}

// start is the message that starts a command.
type start struct {
	Command string            `json:"command"`
	Env     map[string]string `json:"env,omitempty"`
}

// Upload implements guestkit.Runner.
func (in *inside) Upload(ctx context.Context, path string, guest *program.Program) error {
	return in.try(ctx, func(c *rest.Client) error {
		body, err := guest.Open() // closed by the transport, which may outlive the request
		if err != nil {
			return err
		}
		return c.Upload(ctx, http.MethodPost, "/files?"+url.Values{"path": {path}}.Encode(), "application/octet-stream", body)
	})
}

// maxEvent limits a line of an event stream.
const maxEvent = 1 << 20

// Run implements hosted.Inside. It reads events; only the last one says how the
// command ended.
func (in *inside) Run(ctx context.Context, script string) (out string, err error) {
	text, err := json.Marshal(start{Command: script})
	if err != nil {
		return "", err
	}
	err = in.try(ctx, func(c *rest.Client) error {
		res, err := c.Send(ctx, http.MethodPost, "/exec/stream", http.Header{"Content-Type": {"application/json"}}, bytes.NewReader(text))
		if err != nil {
			return err
		}
		defer res.Body.Close()
		out, err = in.events(ctx, io.LimitReader(res.Body, maxEvent))
		return err
	})
	return out, err
}

// event is part of a command's output, or its end.
type event struct {
	Stdout   string `json:"stdout"`
	Finished bool   `json:"finished"`
	Code     *int   `json:"exit_code"`
	Error    string `json:"error"`
}

// events reads a stream to its end. A stream that stops early, or an end
// without an exit code, is an error.
func (in *inside) events(ctx context.Context, r io.Reader) (string, error) {
	var out strings.Builder
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEvent)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data:")
		if !ok {
			continue
		}
		var e event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return "", in.broken("the service's events are invalid")
		}
		out.WriteString(e.Stdout)
		switch {
		case e.Error != "" || e.Finished && e.Code == nil:
			return "", in.broken("the command was not run")
		case e.Finished && *e.Code != 0:
			return "", in.broken("the command failed")
		case e.Finished:
			return out.String(), nil
		}
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	return "", in.broken("the service's events ended before the command did")
}

func (in *inside) broken(message string) error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: string(in.name), Message: message}
}

// protocol is the name of the service's id protocol for commands.
const protocol = "superserve.exec.v1"

// Start implements guestkit.Runner.
func (in *inside) Start(ctx context.Context, argv, env []string) (guestkit.Program, error) {
	text, err := json.Marshal(start{Command: "exec " + hosted.Quote(argv), Env: hosted.Env(env)})
	if err != nil {
		return nil, err
	}
	var ws *websocket.Conn
	err = in.try(ctx, func(c *rest.Client) (err error) {
		ws, err = in.dial(ctx, c)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := ws.Write(ctx, websocket.MessageText, text); err != nil {
		_ = ws.CloseNow()
		return nil, in.p.api.Unreachable(ctx, err)
	}
	lost := func() error { return in.broken("the connection to the sandbox was lost") }
	return wsexec.New(in.p.Open, &in.p.Conns, ws, wsexec.Protocol{Stdin: []byte{0}, Stdout: 1, Stderr: 2, MaxInput: 32 << 10, Ended: in.ended, Lost: lost}), nil
}

// dial opens the connection. The token is sent as a subprotocol, as browsers
// must, which the service documents.
func (in *inside) dial(ctx context.Context, c *rest.Client) (*websocket.Conn, error) {
	header := http.Header{}
	c.Sign(header)
	protocols := []string{protocol, "token." + header.Get("X-Access-Token")}
	if hint := header.Get("X-Superserve-Routing-Hint"); hint != "" {
		protocols = append(protocols, "route."+hint)
	}
	base := *c.Base
	if shared[base.Host] {
		base.Host = "boxd-" + in.id + "." + base.Host // as the service's own clients do
	}
	ws, err := c.Dial(ctx, base.String()+"/exec/connect", protocols...)
	if err != nil {
		return nil, err
	}
	if ws.Subprotocol() != protocol {
		_ = ws.CloseNow()
		return nil, in.broken("the service speaks another protocol")
	}
	return ws, nil
}

// shared lists the service's hosts that serve all sandboxes.
var shared = map[string]bool{"sandbox.superserve.ai": true, "usw-sandbox.superserve.ai": true, "staging-sandbox.superserve.ai": true}

// ended parses a text message. It returns nil unless the command has ended.
func (in *inside) ended(text, stderr []byte) error {
	var e event
	switch err := json.Unmarshal(text, &e); {
	case err != nil:
		return in.broken("the service's message is invalid")
	case e.Finished && e.Code != nil:
		return &guestkit.Exit{Code: *e.Code, Status: "exited", Stderr: stderr}
	case e.Finished || e.Error != "":
		return in.broken("the service did not run the command")
	}
	return nil
}
