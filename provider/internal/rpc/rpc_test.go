package rpc_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/atoll-run/atoll/internal/plainproto"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/provider/internal/rpc"
	"github.com/atoll-run/atoll/sandbox"
)

type word struct {
	Text string `pb:"1"`
}

// start starts a server for HTTP/2 without TLS.
func start(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// serve returns a client of a service whose method answers as a test says.
func serve(t *testing.T, answer func(http.Header, *word) (*word, error)) (*rpc.Client, rpc.Route) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/service/Say", connect.NewUnaryHandler("/service/Say", func(_ context.Context, req *connect.Request[word]) (*connect.Response[word], error) {
		out, err := answer(req.Header(), req.Msg)
		if err != nil {
			return nil, err
		}
		return connect.NewResponse(out), nil
	}, connect.WithCodec(plainproto.Codec{})))
	mux.Handle("/service/Count", connect.NewServerStreamHandler("/service/Count", func(_ context.Context, req *connect.Request[word], out *connect.ServerStream[word]) error {
		for _, text := range strings.Fields(req.Msg.Text) {
			if err := out.Send(&word{Text: text}); err != nil {
				return err
			}
		}
		_, err := answer(req.Header(), req.Msg)
		return err
	}, connect.WithCodec(plainproto.Codec{})))
	s := start(t, mux)
	base, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := rpc.Transport(nil)
	transport.Protocols.SetHTTP2(false)
	t.Cleanup(transport.CloseIdleConnections)
	c := &rpc.Client{
		Client:     &rest.Client{HTTP: rest.NewHTTP(transport), Base: base, ParseError: rpc.ParseError, Secrets: []string{"hunter2"}, Hint: "log in"},
		RetryAfter: func(string, []byte) int { return 0 },
	}
	return c, rpc.Route{URL: s.URL + "/service/", Sign: func(h http.Header) { h.Set("Authorization", "Bearer hunter2") }}
}

// What errors of a service mean, of a call and of a stream. Only its own "not found" says
// that something is missing, and no error has a secret.
func TestErrors(t *testing.T) {
	for _, tt := range []struct {
		code connect.Code
		want sandbox.Code
	}{
		{connect.CodeInvalidArgument, sandbox.CodeInvalid},
		{connect.CodeOutOfRange, sandbox.CodeInvalid},
		{connect.CodeUnauthenticated, sandbox.CodeUnauthorized},
		{connect.CodePermissionDenied, sandbox.CodeDenied},
		{connect.CodeNotFound, sandbox.CodeNotFound},
		{connect.CodeAlreadyExists, sandbox.CodeConflict},
		{connect.CodeAborted, sandbox.CodeConflict},
		{connect.CodeFailedPrecondition, sandbox.CodeConflict},
		{connect.CodeResourceExhausted, sandbox.CodeExhausted},
		{connect.CodeUnimplemented, sandbox.CodeUnsupported},
		{connect.CodeUnavailable, sandbox.CodeUnavailable},
		{connect.CodeInternal, sandbox.CodeUnavailable},
		{connect.CodeUnknown, sandbox.CodeUnavailable},
		{connect.CodeDataLoss, sandbox.CodeUnavailable},
	} {
		t.Run(tt.code.String(), func(t *testing.T) {
			c, route := serve(t, func(http.Header, *word) (*word, error) {
				return nil, connect.NewError(tt.code, errors.New("the token hunter2 is no good"))
			})
			var seen []string
			for how, err := range map[string]error{
				"call": rpc.Call(t.Context(), c, route, "Say", &word{}, &word{}),
				"stream": rpc.Stream(t.Context(), c, route, "Count", &word{Text: "one two"}, func(w *word) bool {
					seen = append(seen, w.Text)
					return true
				}),
			} {
				if got := sandbox.CodeOf(err); got != tt.want {
					t.Errorf("%s: the error is %v with the code %q, want %q", how, err, got, tt.want)
				}
				if err != nil && (strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "is no good")) {
					t.Errorf("%s: the error is %v, want the text of the service without the secret", how, err)
				}
				if missing := rpc.Missing(err); missing != (tt.code == connect.CodeNotFound) {
					t.Errorf("%s: it says that something is missing: %v, want %v", how, missing, tt.code == connect.CodeNotFound)
				}
			}
			if got := strings.Join(seen, " "); got != "one two" {
				t.Errorf("before its error the stream has %q, want %q", got, "one two")
			}
		})
	}
}

// A service that is not there, or a proxy in its place, says nothing about a sandbox.
func TestUnreachable(t *testing.T) {
	c, route := serve(t, nil)
	proxy := start(t, http.NotFoundHandler())
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name string
		ctx  context.Context
		url  string
		want sandbox.Code
	}{
		{"nothing listens", t.Context(), "http://127.0.0.1:1/service/", sandbox.CodeUnavailable},
		{"a proxy answers", t.Context(), proxy.URL + "/", sandbox.CodeUnavailable},
		{"the caller is gone", canceled, route.URL, sandbox.CodeCanceled},
	} {
		err := rpc.Call(tt.ctx, c, rpc.Route{URL: tt.url, Sign: route.Sign}, "Say", &word{}, &word{})
		if got := sandbox.CodeOf(err); got != tt.want || rpc.Missing(err) {
			t.Errorf("%s: the error is %v with the code %q, want %q, and nothing that is missing", tt.name, err, got, tt.want)
		}
	}
}

// Requests are signed, and answers arrive. A stream ends when its reader has enough.
func TestAnswers(t *testing.T) {
	c, route := serve(t, func(h http.Header, in *word) (*word, error) {
		if h.Get("Authorization") != "Bearer hunter2" {
			return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("not signed"))
		}
		return &word{Text: in.Text + "!"}, nil
	})
	var out word
	if err := rpc.Call(t.Context(), c, route, "Say", &word{Text: "hello"}, &out); err != nil || out.Text != "hello!" {
		t.Errorf("the answer is %q, %v; want %q", out.Text, err, "hello!")
	}
	var seen []string
	err := rpc.Stream(t.Context(), c, route, "Count", &word{Text: "one two three"}, func(w *word) bool {
		seen = append(seen, w.Text)
		return len(seen) < 2
	})
	if got := strings.Join(seen, " "); err != nil || got != "one two" {
		t.Errorf("the stream has %q, %v; want %q", got, err, "one two")
	}
}

// Which failures are tried again, and how often.
func TestInsist(t *testing.T) {
	away, full, wrong := &sandbox.Error{Code: sandbox.CodeUnavailable}, &sandbox.Error{Code: sandbox.CodeExhausted}, &sandbox.Error{Code: sandbox.CodeInvalid}
	for _, tt := range []struct {
		name   string
		repeat bool
		errs   []error // of the calls; after them all succeed
		calls  int
		want   sandbox.Code
	}{
		{"a success", true, nil, 1, ""},
		{"a failure of the service", true, []error{away}, 2, ""},
		{"a failure of a call that may not be repeated", false, []error{away}, 1, sandbox.CodeUnavailable},
		{"a service that is away", true, []error{away, away, away, away}, rpc.Attempts, sandbox.CodeUnavailable},
		{"a refusal", true, []error{wrong}, 1, sandbox.CodeInvalid},
		{"a limit that says no time", true, []error{full}, 1, sandbox.CodeExhausted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, calls := &rpc.Client{Client: &rest.Client{}}, 0
			err := c.Insist(t.Context(), tt.repeat, func() error {
				calls++
				if calls <= len(tt.errs) {
					return tt.errs[calls-1]
				}
				return nil
			})
			if got := sandbox.CodeOf(err); got != tt.want || calls != tt.calls {
				t.Errorf("after %d calls the error is %v, want the code %q after %d", calls, err, tt.want, tt.calls)
			}
		})
	}
}
