// Package mcpserver serves sandboxes to clients of the Model Context Protocol.
//
// It is a client of the daemon: whatever a tool does goes through the Go
// library with the key of its caller, so keys, policies, quotas and the audit
// log apply. Nothing is remembered between calls; every tool takes the name or
// id of the sandbox that it works on.
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
	"github.com/atoll-run/atoll/sandbox"
)

// instructions are shown to the model by clients that do so.
const instructions = `Atoll runs commands in sandboxes: isolated machines with their own kernel, files and network rules.
For one command, use sandbox_run. For work in several steps, use sandbox_create, then sandbox_exec, sandbox_read and sandbox_write with the name it returned, and sandbox_remove at the end.
Sandboxes outlive this conversation. Nothing is selected between calls: pass the sandbox each time.
A sandbox has no network unless you ask for hosts in "egress". When a connection is refused, egress_explain says why.
A command that takes longer than its timeout belongs in the background: sandbox_exec with background, then sandbox_process.`

// Server is an MCP server. Its methods may be called concurrently.
type Server struct {
	mcp    *mcp.Server
	client *atoll.Client
	local  forwards // of ports, for the only caller
}

// New returns a server that reaches the daemon through a client, which stays
// the caller's to close.
func New(client *atoll.Client, version string) *Server {
	s := &Server{client: client}
	s.mcp = mcp.NewServer(&mcp.Implementation{Name: "atoll", Title: "Atoll", Version: version}, &mcp.ServerOptions{
		Instructions: instructions,
		// What there is does not change while the server runs, and there is no log
		// for clients.
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}, Resources: &mcp.ResourceCapabilities{}},
		SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) { c.CacheScope = "private" },
	})
	s.sandboxTools()
	s.stateTools()
	s.execTools()
	s.fileTools()
	s.networkTools()
	s.resources()
	return s
}

// ServeStdio serves the one client at the other end of in and out, until it
// goes away or ctx ends. The client acts with the key of the server's own.
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

// maxRequest bounds the body of a request, which holds the contents of a file
// that is written.
const maxRequest = 8 << 20

// clientKey is where a verified request has the client of its caller.
const clientKey = "atoll"

// verify asks the daemon whose key a token is.
func (s *Server) verify(ctx context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
	if token == "" { // would be the server itself
		return nil, auth.ErrInvalidToken
	}
	c := s.client.WithKey(token)
	for _, err := range c.List(ctx, atoll.ListOptions{Page: 1}) {
		switch sandbox.CodeOf(err) {
		case "", sandbox.CodeDenied: // a key that may not list is one
		case sandbox.CodeUnauthorized:
			return nil, fmt.Errorf("%w: not a key of this daemon", auth.ErrInvalidToken)
		default:
			return nil, errors.New("the daemon could not be asked about the key")
		}
		break
	}
	return &auth.TokenInfo{Extra: map[string]any{clientKey: c}}, nil
}

// clientOf returns the client that acts for whoever made a request.
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

// seconds converts what a caller gave, bounded by most.
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
