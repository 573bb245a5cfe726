package superserve

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/provider/internal/wsexec"
	"github.com/atoll-run/atoll/sandbox"
)

// inside is the data plane of one sandbox.
type inside struct {
	p      *Provider
	id     string // the service's
	name   sandbox.ID
	tokens *credential.Cached[access]
}

// access is what the data plane of a sandbox accepts, and the hint for its
// route.
type access struct{ token, hint string }

func (p *Provider) openInside(b hosted.Sandbox) hosted.Inside {
	known, _ := b.Access.(access)
	return &inside{p: p, id: b.ID, name: b.Sandbox, tokens: credential.NewCached(known)}
}

// Wake implements hosted.Inside.
func (in *inside) Wake(ctx context.Context) error {
	b, err := in.p.awake(ctx, in.name, in.id, true)
	if err == nil {
		in.tokens.Set(access{b.Token, b.Hint})
	}
	return err
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

// tries is the number of attempts while other clients invalidate the token.
const tries = 3

// try makes a request, and repeats it with a new token if the service refused
// it without an effect. A paused sandbox stays paused.
func (in *inside) try(ctx context.Context, f func(c *rest.Client, a access) error) error {
	for n, stale := 1, ""; ; n++ {
		good := func(a access) bool { return a.token != "" && a.token != stale && !expired(a.hint) }
		a, err := in.tokens.Get(ctx, good, func(ctx context.Context) (access, error) {
			b, err := in.p.awake(ctx, in.name, in.id, false)
			return access{b.Token, b.Hint}, err
		})
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
		if err = f(&c, a); err == nil || n == tries || !rerouted(rest.RefusalOf(err), a.hint != "") {
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

// Upload implements guestkit.Runner.
func (in *inside) Upload(ctx context.Context, path string, guest *program.Program) error {
	return in.try(ctx, func(c *rest.Client, _ access) error {
		body, err := guest.Open() // closed by the transport, which may outlive the request
		if err != nil {
			return err
		}
		return c.Upload(ctx, http.MethodPost, "/files?"+url.Values{"path": {path}}.Encode(), "application/octet-stream", body)
	})
}

// Run implements hosted.Inside.
func (in *inside) Run(ctx context.Context, script string) (string, error) {
	return hosted.Script(ctx, in.Start, script, nil)
}

func (in *inside) broken(message string) error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: string(in.name), Message: message}
}

// protocol is the name of the service's protocol for commands.
const protocol = "superserve.exec.v1"

// Start implements guestkit.Runner. The token is sent as a subprotocol, as
// browsers must, which the service documents.
func (in *inside) Start(ctx context.Context, argv, env []string) (guestkit.Program, error) {
	text, err := json.Marshal(map[string]any{"command": "exec " + hosted.Quote(argv), "env": hosted.Env(env)})
	if err != nil {
		return nil, err
	}
	var ws *websocket.Conn
	err = in.try(ctx, func(c *rest.Client, a access) (err error) {
		protocols := []string{protocol, "token." + a.token}
		if a.hint != "" {
			protocols = append(protocols, "route."+a.hint)
		}
		for _, r := range regions {
			if "https://"+c.Base.Host == r.data { // it serves all sandboxes
				c.Base.Host = "boxd-" + in.id + "." + c.Base.Host // as the service's own clients do
			}
		}
		ws, err = c.Dial(ctx, c.Base.String()+"/exec/connect", protocols...)
		return err
	})
	if err != nil {
		return nil, err
	}
	if ws.Subprotocol() != protocol {
		_ = ws.CloseNow()
		return nil, in.broken("the service speaks another protocol")
	}
	if err := ws.Write(ctx, websocket.MessageText, text); err != nil {
		_ = ws.CloseNow()
		return nil, in.p.api.Unreachable(ctx, err)
	}
	lost := func() error { return in.broken("the connection to the sandbox was lost") }
	return wsexec.New(in.p.Open, &in.p.Conns, ws, wsexec.Protocol{Stdin: []byte{0}, Stdout: 1, Stderr: 2, MaxInput: 32 << 10, Ended: in.ended, Lost: lost}), nil
}

// ended parses a text message. It returns nil unless the command has ended.
func (in *inside) ended(text, stderr []byte) error {
	var e struct {
		Finished bool   `json:"finished"`
		Code     *int   `json:"exit_code"`
		Error    string `json:"error"`
	}
	switch err := json.Unmarshal(text, &e); {
	case err != nil:
		return in.broken("the service's message is invalid")
	case e.Finished && e.Code != nil && e.Error == "":
		return &guestkit.Exit{Code: *e.Code, Status: "exited", Stderr: stderr}
	case e.Finished || e.Error != "":
		return in.broken("the service did not run the command")
	}
	return nil
}
