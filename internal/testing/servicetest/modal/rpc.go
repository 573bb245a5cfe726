package modal

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/atoll-run/atoll/internal/modalapi"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
)

// views are how faults see the methods for sandboxes.
var views = map[string]servicetest.View{
	"SandboxCreateV2": {Method: http.MethodPost, Path: "/boxes"}, "SandboxListV2": {Method: http.MethodGet, Path: "/boxes"},
	"SandboxGetFromNameV2": {Method: http.MethodGet, Path: "/boxes/one"}, "SandboxWaitV2": {Method: http.MethodGet, Path: "/boxes/one"},
	"SandboxTagsGetV2": {Method: http.MethodGet, Path: "/tags"}, "SandboxTerminateV2": {Method: http.MethodDelete, Path: "/boxes/one"},
}

var fail = servicetest.Refusal

// handle sets a method of the control plane.
func handle[Req, Res any](s *Server, name string, f func(ctx context.Context, owner string, in *Req) (*Res, error)) {
	servicetest.Handle(s.GRPC, modalapi.Client+name, func(ctx context.Context, h http.Header, in *Req) (*Res, error) {
		owner, err := s.owner(h, strings.HasSuffix(name, "V2") || name == "SandboxGetCommandRouterAccess")
		if err != nil {
			return nil, err
		}
		return f(ctx, owner, in)
	})
}

// routed sets a method of the workers. find returns the task and the command of
// a request; without an ID there is no command yet.
func routed[Req, Res any](s *Server, name string, find func(*Req) (task, id string), f func(ctx context.Context, b *servicetest.CloudSandbox, e *execution, in *Req) (*Res, error)) {
	servicetest.Handle(s.GRPC, modalapi.Router+name, func(ctx context.Context, h http.Header, in *Req) (*Res, error) {
		task, id := find(in)
		b, e, err := s.worker(h, task, id)
		if err != nil {
			return nil, err
		}
		return f(ctx, b, e, in)
	})
}

// issue returns a token for something, in the form of a JWT.
func (s *Server) issue(of string) string {
	encode := base64.RawURLEncoding.EncodeToString
	claims, _ := json.Marshal(map[string]any{"exp": time.Now().Add(20 * time.Minute).Unix(), "id": servicetest.NewID()})
	token := encode([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + encode(claims) + "." + encode([]byte("signature"))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens[token] = of
	return token
}

// Expire makes all short-lived tokens invalid.
func (s *Server) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.tokens)
}

// owner returns the account of a request.
func (s *Server) owner(h http.Header, proven bool) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	owner := s.keys[h.Get("X-Modal-Token-Id")+"\n"+h.Get("X-Modal-Token-Secret")]
	switch {
	case h.Get("X-Modal-Client-Type") == "" || h.Get("X-Modal-Client-Version") == "":
		return "", fail(connect.CodeFailedPrecondition, "The client must say what it is")
	case owner == "":
		return "", fail(connect.CodeUnauthenticated, "Token ID or secret is invalid")
	case proven && s.tokens[h.Get("X-Modal-Auth-Token")] != owner:
		return "", fail(connect.CodeUnauthenticated, "The auth token is invalid or expired")
	}
	return owner, nil
}
