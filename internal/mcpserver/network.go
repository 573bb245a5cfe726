package mcpserver

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

type portArgs struct {
	sandboxArgs
	Port           uint16 `json:"port"`
	ExpiresSeconds int64  `json:"expires_seconds,omitempty" jsonschema:"of the token; a day if left out"`
}

type portOut struct {
	URL     string     `json:"url"`
	Header  string     `json:"header,omitempty" jsonschema:"header that a request must carry the token in"`
	Token   string     `json:"token,omitempty" jsonschema:"left out if none is needed"`
	Expires *time.Time `json:"expires,omitempty"`
}

type explainArgs struct {
	Sandbox string `json:"sandbox,omitempty" jsonschema:"show what this sandbox was denied; this or profile is needed"`
	Profile string `json:"profile,omitempty" jsonschema:"stored egress profile to check url against; no request is sent"`
	URL     string `json:"url,omitempty" jsonschema:"for profile: such as https://api.example.com/v1"`
	Method  string `json:"method,omitempty" jsonschema:"for profile: GET if left out"`
}

type explainOut struct {
	Allowed *bool                  `json:"allowed,omitempty" jsonschema:"for profile"`
	Rule    string                 `json:"rule,omitempty" jsonschema:"for profile: the rule that decides"`
	Message string                 `json:"message"`
	Denied  []deniedOut            `json:"denied,omitempty" jsonschema:"for sandbox: the last refusals, oldest first"`
	Steps   []operator.ExplainStep `json:"steps,omitempty" jsonschema:"for profile: the rules about the host, in order"`
}

type deniedOut struct {
	Time   time.Time `json:"time"`
	Target string    `json:"target"`
	Rule   string    `json:"rule,omitempty"`
}

// maxDenied is how many refusals are shown.
const maxDenied = 50

func (s *Server) networkTools() {
	add(s, "port_url", "Get the URL of a port",
		"Return the URL of an HTTP server, with a token if it needs one.", idempotent, does(ops.SandboxGet, ops.SandboxFind, ops.PortShare), portURL)
	add(s, "egress_explain", "Explain refused connections",
		"Show which connections were refused and by which rule, or check a URL against a profile.", looks, does(ops.SandboxGet, ops.EventList).sometimes(ops.ProfileTest), explain)
}

func portURL(ctx context.Context, c *call, in portArgs) (portOut, error) {
	b, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return portOut{}, err
	}
	url, err := b.PortURL(in.Port)
	if sandbox.CodeOf(err) == sandbox.CodeUnsupported && in.Port != 0 && c.server.local.ready() {
		url, err := c.server.local.url(b, in.Port)
		return portOut{URL: url}, err
	}
	if err != nil {
		return portOut{}, err
	}
	token, err := b.PortToken(ctx, atoll.PortTokenOptions{Ports: []uint16{in.Port}, Expires: time.Duration(in.ExpiresSeconds) * time.Second})
	if err != nil {
		return portOut{}, err
	}
	return portOut{URL: url, Header: atoll.TokenHeader, Token: token.Token, Expires: &token.Expires}, nil
}

func explain(ctx context.Context, c *call, in explainArgs) (explainOut, error) {
	switch {
	case (in.Sandbox == "") == (in.Profile == ""):
		return explainOut{}, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "sandbox", Message: "give either sandbox or profile"}
	case in.Profile != "":
		return tryProfile(ctx, c, in)
	}
	b, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return explainOut{}, err
	}
	var out explainOut
	for e, err := range c.Events(ctx, sandbox.EventQuery{Sandbox: b.ID(), Types: []string{"egress.denied"}}) {
		if err != nil {
			return explainOut{}, err
		}
		out.Denied = append(out.Denied, deniedOut{e.Time, e.Subject, e.Policy})
		out.Denied = out.Denied[max(0, len(out.Denied)-maxDenied):]
	}
	out.Message = "no connection of this sandbox was refused; without egress or profile it has no network at all"
	if len(out.Denied) > 0 {
		out.Message = "to allow a host, create a sandbox with it in egress, or ask the user to add it to the profile"
	}
	return out, nil
}

func tryProfile(ctx context.Context, c *call, in explainArgs) (explainOut, error) {
	if err := sandbox.ValidateName(in.Profile); err != nil {
		return explainOut{}, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "profile", Message: "is not the name of a profile"}
	}
	if in.Method == "" {
		in.Method = "GET"
	}
	x, err := c.TestProfile(ctx, in.Profile, in.Method, in.URL)
	if err != nil {
		return explainOut{}, err
	}
	return explainOut{Allowed: &x.Allow, Rule: x.Rule, Message: x.Message, Steps: x.Steps}, nil
}

// forwards are ports of this machine that are forwarded to ports of sandboxes,
// for a daemon that does not listen on TCP. The zero value has none.
type forwards struct {
	mu    sync.Mutex
	ctx   context.Context
	ports map[string]net.Listener
	conns sync.WaitGroup
}

// open makes forwards usable until ctx ends. The caller closes them.
func (f *forwards) open(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ctx, f.ports = ctx, map[string]net.Listener{}
}

func (f *forwards) ready() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ports != nil
}

// close closes all forwards and their connections.
func (f *forwards) close() {
	f.mu.Lock()
	for _, l := range f.ports {
		_ = l.Close()
	}
	f.ports = nil
	f.mu.Unlock()
	f.conns.Wait()
}

// url returns the URL on this machine of a port of a sandbox.
func (f *forwards) url(b *atoll.Sandbox, port uint16) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := string(b.ID()) + ":" + strconv.Itoa(int(port))
	l := f.ports[name]
	if l == nil {
		if f.ports == nil || len(f.ports) >= maxForwards {
			return "", &sandbox.Error{Code: sandbox.CodeExhausted, Subject: "port", Message: "too many ports are forwarded"}
		}
		var err error
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return "", &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: "port", Message: "cannot listen on this machine", Cause: err}
		}
		f.ports[name] = l
		ctx, conns := f.ctx, &f.conns
		f.conns.Go(func() { forward(ctx, conns, l, b, port) })
	}
	return "http://" + l.Addr().String(), nil
}

// maxForwards is the maximum number of forwarded ports.
const maxForwards = 64

// forward connects clients of a listener to a port of a sandbox, until the
// listener is closed.
func forward(ctx context.Context, conns *sync.WaitGroup, l net.Listener, b *atoll.Sandbox, port uint16) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		conns.Go(func() { join(ctx, conn, b, port) })
	}
}

func join(ctx context.Context, conn net.Conn, b *atoll.Sandbox, port uint16) {
	defer conn.Close()
	inside, err := b.Dial(ctx, port)
	if err != nil {
		return
	}
	defer inside.Close()
	defer context.AfterFunc(ctx, func() { _ = errors.Join(conn.Close(), inside.Close()) })()
	var both sync.WaitGroup
	both.Go(func() { pass(inside, conn) })
	both.Go(func() { pass(conn, inside) })
	both.Wait()
}

// pass copies one direction of a connection, its end included.
func pass(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}
