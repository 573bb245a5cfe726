// Package mcpserver serves sandboxes to clients of the Model Context Protocol.
//
// It is a client of the daemon: tools use the Go library with the key of their
// caller, so keys, policies, quotas and the audit log apply. It has no state
// between calls; every tool takes the name or id of the sandbox that it works
// on.
package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// instructions are shown to the model by clients that do so.
const instructions = `Atoll runs commands in sandboxes: isolated machines with their own kernel, files and network rules.
For one command, use sandbox_run. For work in several steps, use sandbox_create, then sandbox_exec, sandbox_read and sandbox_write with the name it returned, and sandbox_remove at the end.
Sandboxes outlive this conversation. Nothing is selected between calls: pass the name or id of the sandbox each time.
A sandbox has no network unless you ask for hosts in "egress". When a connection is refused, egress_explain says why.
A command that takes longer than its timeout belongs in the background: sandbox_exec with background, then sandbox_process.`

// Server is an MCP server. Its methods may be called concurrently.
type Server struct {
	mcp    *mcp.Server
	client *atoll.Client
	local  forwards // forwarded ports, for the client of ServeStdio
	routes []ops.Route
}

// New returns a server that uses a client of the daemon. The caller closes the
// client.
func New(client *atoll.Client, version string) *Server {
	s := &Server{client: client}
	s.mcp = mcp.NewServer(&mcp.Implementation{Name: "atoll", Title: "Atoll", Version: version}, &mcp.ServerOptions{
		Instructions: instructions,
		// The tools do not change while the server runs, and clients get no log.
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}, Resources: &mcp.ResourceCapabilities{}},
		SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) { c.CacheScope = "private" },
	})
	s.sandboxTools()
	s.stateTools()
	s.savedTools()
	s.execTools()
	s.codeTools()
	s.sourceTools()
	s.fileTools()
	s.networkTools()
	s.computerTools()
	s.resources()
	return s
}

// Routes returns the tools and the resources with what they need from the daemon.
func (s *Server) Routes() []ops.Route { return s.routes }

// ServeStdio serves one client over in and out, until the client disconnects or
// ctx ends. Tools use the server's own key.
func (s *Server) ServeStdio(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	s.local.open(ctx)
	defer s.local.close()
	err := s.mcp.Run(ctx, &mcp.IOTransport{Reader: in, Writer: out})
	if ctx.Err() != nil || errors.Is(err, io.EOF) || errors.Is(err, mcp.ErrConnectionClosed) {
		return nil
	}
	return err
}

// Handler serves clients over HTTP, each with the API key that it sends as a
// bearer token. It keeps no session.
func (s *Server) Handler() http.Handler {
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s.mcp }, &mcp.StreamableHTTPOptions{
		Stateless: true, PropagateRequestCancellation: true, MaxRequestBodyBytes: maxRequest,
	})
	checked := auth.RequireBearerToken(s.verify, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(h)
	return http.NewCrossOriginProtection().Handler(checked)
}

// maxRequest bounds the body of a request. A request to write a file contains
// the content of the file.
const maxRequest = 8 << 20

// clientKey is the context key of the client for a verified request.
const clientKey = "atoll"

// verify checks an API key with the daemon.
func (s *Server) verify(ctx context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
	if token == "" { // would use the server's own key
		return nil, auth.ErrInvalidToken
	}
	c := s.client.WithKey(token)
	for _, err := range c.List(ctx, atoll.ListOptions{Page: 1}) {
		switch sandbox.CodeOf(err) {
		case "", sandbox.CodeDenied: // a key without the permission to list is valid too
		case sandbox.CodeUnauthorized:
			return nil, fmt.Errorf("%w: not a key of this daemon", auth.ErrInvalidToken)
		default:
			return nil, errors.New("the daemon could not be asked about the key")
		}
		break
	}
	return &auth.TokenInfo{Extra: map[string]any{clientKey: c}}, nil
}

// clientOf returns the client with the key of the request's caller.
func (s *Server) clientOf(extra *mcp.RequestExtra) (*atoll.Client, error) {
	if extra == nil || extra.Header == nil { // not over HTTP
		return s.client, nil
	}
	if extra.TokenInfo != nil {
		if c, ok := extra.TokenInfo.Extra[clientKey].(*atoll.Client); ok {
			return c, nil
		}
	}
	return nil, &sandbox.Error{Code: sandbox.CodeUnauthorized, Message: "missing API key"}
}

// seconds converts a number of seconds from a caller to a duration of at most
// most.
func seconds(n, otherwise, most float64) (time.Duration, error) {
	switch {
	case n == 0:
		n = otherwise
	case n < 0 || n > most:
		return 0, &sandbox.Error{
			Code: sandbox.CodeInvalid, Subject: "timeout_seconds", Message: fmt.Sprintf("must be between 0 and %g", most),
			Hint: "for longer commands, use sandbox_exec with background",
		}
	}
	return time.Duration(n * float64(time.Second)), nil
}
