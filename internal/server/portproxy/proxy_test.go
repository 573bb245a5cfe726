package portproxy_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/atoll-run/atoll/internal/server/portproxy"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sandboxes are two sandboxes with a port each, and their tokens.
type sandboxes struct {
	ports map[string]net.Addr // "ID PORT" → what listens there
	dials atomic.Int32
	cut   chan context.CancelCauseFunc      // cancels an authenticated request; nil: not used
	body  func(io.ReadCloser) io.ReadCloser // wraps the body of a request; nil: not used

	mu    sync.Mutex
	actor []string // callers of DialPort
}

type actorKey struct{}

func (sb *sandboxes) EnterPort(ctx context.Context, token, ref string, port uint16) (context.Context, sandbox.ID, error) {
	if token != "token-"+ref && token != "second-"+ref {
		return nil, "", &sandbox.Error{Code: sandbox.CodeUnauthorized, Message: "no"}
	}
	ctx = context.WithValue(ctx, actorKey{}, token)
	if sb.cut != nil {
		var cut context.CancelCauseFunc
		ctx, cut = context.WithCancelCause(ctx)
		sb.cut <- cut
	}
	return ctx, sandbox.ID(ref), nil
}

func (sb *sandboxes) DialPort(ctx context.Context, ref string, port uint16) (net.Conn, error) {
	sb.dials.Add(1)
	sb.mu.Lock()
	sb.actor = append(sb.actor, fmt.Sprint(ctx.Value(actorKey{}), " ", ref, " ", port))
	sb.mu.Unlock()
	addr := sb.ports[fmt.Sprint(ref, " ", port)]
	if addr == nil {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "nothing listens"}
	}
	return new(net.Dialer).DialContext(ctx, "tcp", addr.String())
}

// serve starts a server inside a sandbox.
func (sb *sandboxes) serve(t *testing.T, id string, h http.HandlerFunc) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	sb.ports[id+" 8000"] = s.Listener.Addr()
}

// start starts a proxy and returns its address.
func start(t *testing.T) (*sandboxes, string) {
	t.Helper()
	b := &sandboxes{ports: map[string]net.Addr{}}
	p := portproxy.New(b, portproxy.Options{Domains: []string{"atoll.example"}})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.Match(r) {
			if b.body != nil {
				r.Body = b.body(r.Body)
			}
			p.ServeHTTP(w, r)
			return
		}
		w.WriteHeader(http.StatusTeapot) // the API
	}))
	t.Cleanup(func() {
		s.Close()
		p.Close()
	})
	return b, s.Listener.Addr().String()
}

// get sends a request with a host name and headers, given in pairs.
func get(t *testing.T, addr, host string, headers ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/a%2Fb?x=1;y", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// TestEndsWithItsKey: when the key that made a token ends, requests with the
// token are aborted, even in the middle of a stream. The stream must not look
// complete.
func TestEndsWithItsKey(t *testing.T) {
	b, addr := start(t)
	b.cut = make(chan context.CancelCauseFunc, 1)
	b.serve(t, "sb-a", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Quiet") == "" {
			_, _ = io.WriteString(w, "beginning")
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
	})
	revoked := &sandbox.Error{Code: sandbox.CodeUnauthorized, Message: "the key is not valid"}
	visit := func(quiet string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "8000-sb-a.localhost"
		r.Header.Set("Atoll-Token", "token-sb-a")
		r.Header.Set("Quiet", quiet)
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	resp := visit("")
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, len("beginning"))); err != nil {
		t.Fatal(err)
	}
	(<-b.cut)(revoked)
	if rest, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("the stream ends in good order, with %q", rest)
	}
	go func() { (<-b.cut)(revoked) }()
	if resp := visit("yes"); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("what waits for an answer gets %s", resp.Status)
	} else {
		resp.Body.Close()
	}
}

// lateEnd is a body whose end is not read before a channel is closed.
type lateEnd struct {
	io.ReadCloser
	left int // number of bytes before the end
	end  chan struct{}
}

func (b *lateEnd) Read(p []byte) (int, error) {
	if b.left == 0 {
		<-b.end
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), max(b.left, 1))])
	b.left -= n
	if b.left == 0 && n > 0 {
		err = nil // the end is read by itself
	}
	return n, err
}

// TestResponseBeforeEndOfRequest: the response may begin before the proxy has
// read the end of the request's body. It is forwarded completely.
func TestResponseBeforeEndOfRequest(t *testing.T) {
	b, addr := start(t)
	began := make(chan struct{})
	const request, first, rest = "request", "first ", "rest"
	b.body = func(r io.ReadCloser) io.ReadCloser { return &lateEnd{r, len(request), began} }
	finish := make(chan struct{})
	b.serve(t, "one", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, first)
		_ = http.NewResponseController(w).Flush()
		<-finish
		_, _ = io.WriteString(w, rest)
	})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr, strings.NewReader(request))
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "8000-one.localhost"
	r.Header.Set("Atoll-Token", "token-one")
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got := make([]byte, len(first))
	if _, err := io.ReadFull(resp.Body, got); err != nil {
		t.Fatal(err)
	}
	close(began) // the proxy reads the end of the request now
	close(finish)
	more, err := io.ReadAll(resp.Body)
	if err != nil || string(got)+string(more) != first+rest {
		t.Errorf("the response is %q, %v, want %q", string(got)+string(more), err, first+rest)
	}
}

func TestRoutes(t *testing.T) {
	b, addr := start(t)
	b.serve(t, "one", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s", r.Host, r.RequestURI, r.Header.Get("X-Forwarded-Host"))
	})
	for _, tt := range []struct {
		name    string
		host    string
		headers []string
		status  int
		body    string
	}{
		{"host", "8000-one.localhost:7070", []string{"Atoll-Token", "token-one"}, 200, "8000-one.localhost:7070 /a%2Fb?x=1;y 8000-one.localhost:7070"},
		{"domain", "8000-ONE.Atoll.Example.", []string{"Authorization", "Bearer token-one"}, 200, "8000-ONE.Atoll.Example. /a%2Fb?x=1;y 8000-ONE.Atoll.Example."},
		{"headers", "api", []string{"Atoll-Token", "token-one", "Atoll-Sandbox", "one", "Atoll-Port", "8000"}, 200, "localhost:8000 /a%2Fb?x=1;y api"},
		{"api", "atoll.example", nil, 418, ""},
		{"other domain", "8000-one.evil.example", nil, 418, ""},
		{"no port", "web-one.atoll.example", nil, 418, ""},
		{"no token", "8000-one.localhost", nil, 401, ""},
		{"wrong token", "8000-one.localhost", []string{"Atoll-Token", "token-two"}, 401, ""},
		{"unknown sandbox", "8000-none.localhost", []string{"Atoll-Token", "token-one"}, 401, ""},
		{"nobody listens", "8001-one.localhost", []string{"Atoll-Token", "token-one"}, 502, ""},
		{"port 0", "0-one.localhost", []string{"Atoll-Token", "token-one"}, 400, ""},
		{"port too large", "65536-one.localhost", []string{"Atoll-Token", "token-one"}, 400, ""},
		{"half of the headers", "api", []string{"Atoll-Port", "8000"}, 400, ""},
		{"headers twice", "api", []string{"Atoll-Port", "8000", "Atoll-Sandbox", "one", "Atoll-Sandbox", "two"}, 400, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			resp, body := get(t, addr, tt.host, tt.headers...)
			if resp.StatusCode != tt.status || tt.body != "" && body != tt.body {
				t.Errorf("%d %q, want %d %q", resp.StatusCode, body, tt.status, tt.body)
			}
		})
	}
}

// TestAttackWhatGetsInside: credentials are not forwarded, and the headers that
// name the client are set by the proxy.
func TestAttackWhatGetsInside(t *testing.T) {
	b, addr := start(t)
	var got http.Header
	b.serve(t, "one", func(_ http.ResponseWriter, r *http.Request) { got = r.Header })
	get(t, addr, "8000-one.localhost", "Atoll-Token", "token-one", "Authorization", "Bearer theirs",
		"Connection", "X-Secret, Atoll-Token", "X-Secret", "hop", "X-Forwarded-For", "6.6.6.6", "X-Forwarded-Host", "lie", "Forwarded", "for=6.6.6.6", "Proxy-Authorization", "hop")
	if got.Get("Authorization") != "Bearer theirs" {
		t.Errorf("the program's own credential: %q", got.Get("Authorization"))
	}
	get(t, addr, "8000-one.localhost", "Authorization", "Bearer token-one")
	if got.Get("Authorization") != "" {
		t.Errorf("the token got inside: %q", got)
	}
	get(t, addr, "8000-one.localhost", "Atoll-Token", "token-one", "Connection", "X-Secret", "X-Secret", "hop",
		"X-Forwarded-For", "6.6.6.6", "X-Forwarded-Host", "lie", "Forwarded", "for=6.6.6.6", "Proxy-Authorization", "hop")
	for _, name := range []string{"Atoll-Token", "X-Secret", "X-Forwarded-For", "Forwarded", "Proxy-Authorization"} {
		if v := got.Values(name); v != nil {
			t.Errorf("%s got inside: %q", name, v)
		}
	}
	if got.Get("X-Forwarded-Host") != "8000-one.localhost" {
		t.Errorf("X-Forwarded-Host: %q", got.Get("X-Forwarded-Host"))
	}
	// A client may send an API key instead of a token. It must not reach the
	// sandbox.
	before := b.dials.Load()
	for _, headers := range [][]string{
		{"Authorization", "Bearer atoll_secret"}, {"Atoll-Token", "atoll_secret"}, {"Atoll-Token", "token-one", "Authorization", "bearer  atoll_secret"},
	} {
		if resp, body := get(t, addr, "8000-one.localhost", headers...); resp.StatusCode != 401 || strings.Contains(body, "atoll_secret") {
			t.Errorf("%q: %d %s", headers, resp.StatusCode, body)
		}
	}
	if b.dials.Load() != before {
		t.Error("an API key was passed on")
	}
}

// TestCookiesStay: a program inside cannot set cookies for other sandboxes.
func TestCookiesStay(t *testing.T) {
	b, addr := start(t)
	b.serve(t, "one", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Set-Cookie", "a=1; DOMAIN=localhost; Path=/; Partitioned")
		w.Header().Add("Set-Cookie", "b=2;domain = .atoll.example;HttpOnly")
		w.Header().Add("Set-Cookie", "c=3")
	})
	resp, _ := get(t, addr, "8000-one.localhost", "Atoll-Token", "token-one")
	if got := strings.Join(resp.Header.Values("Set-Cookie"), " | "); got != "a=1; Path=/; Partitioned | b=2;HttpOnly | c=3" {
		t.Errorf("cookies %q", got)
	}
}

// TestAttackConnectionsAreNotShared: every token has separate connections, so
// that each is authorised and recorded.
func TestAttackConnectionsAreNotShared(t *testing.T) {
	b, addr := start(t)
	b.serve(t, "one", func(http.ResponseWriter, *http.Request) {})
	b.serve(t, "two", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "two") })
	for _, token := range []string{"token-one", "token-one", "second-one", "token-one"} {
		get(t, addr, "8000-one.localhost", "Atoll-Token", token)
	}
	if _, body := get(t, addr, "8000-two.localhost", "Atoll-Token", "token-two"); body != "two" {
		t.Errorf("two says %q", body)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if got := strings.Join(b.actor, ", "); got != "token-one one 8000, second-one one 8000, token-two two 8000" {
		t.Errorf("connections: %s", got)
	}
}

// raw sends raw bytes and returns the response.
func raw(t *testing.T, addr, request string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() {
		io.WriteString(conn, request)
		conn.(*net.TCPConn).CloseWrite()
	}()
	answer, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && len(answer) == 0 {
		t.Fatal(err)
	}
	return string(answer)
}

// TestAttackSmuggling: a second request hidden in the first reaches neither the
// program inside nor another sandbox.
func TestAttackSmuggling(t *testing.T) {
	b, addr := start(t)
	var seen []string
	var mu sync.Mutex
	note := func(id string) http.HandlerFunc {
		return func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, fmt.Sprintf("%s %s %q", id, r.URL.Path, body))
		}
	}
	b.serve(t, "one", note("one"))
	b.serve(t, "two", note("two"))
	const head = "POST /first HTTP/1.1\r\nHost: 8000-one.localhost\r\nAtoll-Token: token-one\r\n"
	const hidden = "GET /hidden HTTP/1.1\r\nHost: 8000-two.localhost\r\nAtoll-Token: token-one\r\n\r\n"
	for name, request := range map[string]string{
		"both lengths":      head + fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 5+len(hidden)) + hidden,
		"two lengths":       head + "Content-Length: 0\r\nContent-Length: 10\r\n\r\n" + hidden,
		"odd encoding":      head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + hidden,
		"encoding twice":    head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + hidden,
		"space before":      head + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + hidden,
		"two hosts":         strings.Replace(head, "Host", "Host: 8000-two.localhost\r\nHost", 1) + "\r\n",
		"line in a header":  head + "X: a\nAtoll-Token: token-two\r\n\r\n",
		"other in the line": strings.Replace(head, "/first", "http://8000-two.localhost/first", 1) + "\r\n",
		"connect":           "CONNECT 8000-one.localhost:80 HTTP/1.1\r\nHost: 8000-one.localhost\r\nAtoll-Token: token-one\r\n\r\n",
	} {
		raw(t, addr, request)
		mu.Lock()
		for _, s := range seen {
			if strings.Contains(s, "hidden") || strings.HasPrefix(s, "two") {
				t.Errorf("%s: %s", name, s)
			}
		}
		seen = nil
		mu.Unlock()
	}
}

// TestWebSocket: messages pass both ways, through a server that hijacks its
// connection.
func TestWebSocket(t *testing.T) {
	b, addr := start(t)
	b.serve(t, "one", func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow()
		for {
			kind, data, err := ws.Read(r.Context())
			if err != nil || ws.Write(r.Context(), kind, bytes.ToUpper(data)) != nil {
				return
			}
		}
	})
	transport := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	dial := func(token string) (*websocket.Conn, error) {
		ws, _, err := websocket.Dial(ctx, "ws://8000-one.localhost/", &websocket.DialOptions{
			HTTPClient: &http.Client{Transport: transport}, HTTPHeader: http.Header{"Atoll-Token": {token}, "Origin": {"http://8000-one.localhost"}},
		})
		return ws, err
	}
	if _, err := dial("token-two"); err == nil {
		t.Error("a foreign token opens a WebSocket")
	}
	ws, err := dial("token-one")
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	for _, text := range []string{"hello", strings.Repeat("x", 20_000)} {
		if err := ws.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, got, err := ws.Read(ctx); err != nil || string(got) != strings.ToUpper(text) {
			t.Fatalf("%.20q %v", got, err)
		}
	}
	ws.Close(websocket.StatusNormalClosure, "")
}

// TestStreams: output of a program arrives at once, and a client that does not
// read blocks the program.
func TestStreams(t *testing.T) {
	b, addr := start(t)
	next := make(chan struct{})
	stuck := make(chan int64, 1)
	b.serve(t, "one", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/flood" {
			n, _ := io.Copy(w, io.LimitReader(zeros{}, 1<<32))
			stuck <- n
			return
		}
		for i := range 3 {
			fmt.Fprintf(w, "event %d\n", i)
			w.(http.Flusher).Flush()
			<-next
		}
	})
	open := func(path string) (net.Conn, *bufio.Reader) {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: 8000-one.localhost\r\nAtoll-Token: token-one\r\n\r\n", path)
		return conn, bufio.NewReader(conn)
	}
	_, events := open("/events")
	resp, err := http.ReadResponse(events, nil)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(resp.Body)
	for i := range 3 {
		if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("event %d\n", i) {
			t.Fatalf("%q, %v", line, err)
		}
		next <- struct{}{} // continue after the client has received the output
	}
	flood, _ := open("/flood")
	flood.Read(make([]byte, 1))
	select {
	case n := <-stuck:
		t.Errorf("%d bytes went to a client that does not read", n)
	default:
	}
	flood.Close()
	if n := <-stuck; n >= 1<<32 {
		t.Errorf("%d bytes went to a client that did not read", n)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestNonsenseInside: if a program does not send valid HTTP, the caller gets an
// error without its output.
func TestNonsenseInside(t *testing.T) {
	b, addr := start(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b.ports["one 8000"] = l.Addr()
	go func() {
		for _, answer := range []string{"SSH-2.0-secret\r\n", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n", ""} {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			bufio.NewReader(conn).ReadString('\n')
			io.WriteString(conn, answer)
			conn.Close()
		}
	}()
	for range 3 {
		if resp, body := get(t, addr, "8000-one.localhost", "Atoll-Token", "token-one"); resp.StatusCode != 502 || strings.Contains(body, "secret") || strings.Contains(body, "127.0.0.1") {
			t.Errorf("%d %.300s", resp.StatusCode, body)
		}
	}
}

// TestShow: Show is called by an API that has authenticated the caller.
func TestShow(t *testing.T) {
	b := &sandboxes{ports: map[string]net.Addr{}}
	b.serve(t, "one", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Host) })
	p := portproxy.New(b, portproxy.Options{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := r.Header.Get("X-Who")
		p.Show(w, r.WithContext(context.WithValue(r.Context(), actorKey{}, who)), portproxy.Port{Sandbox: "one", Number: 8000, Bearer: who})
	}))
	t.Cleanup(func() {
		s.Close()
		p.Close()
	})
	for _, who := range []string{"a", "b", "a"} {
		if resp, body := get(t, s.Listener.Addr().String(), "any.name", "X-Who", who); resp.StatusCode != 200 || body != "any.name" {
			t.Errorf("%s: %d %s", who, resp.StatusCode, body)
		}
	}
	if got := strings.Join(b.actor, ", "); got != "a one 8000, b one 8000" {
		t.Errorf("connections: %s", got)
	}
}

// TestShowSecured: a server inside uses HTTPS with a self-signed certificate. A
// server without HTTPS gets no unencrypted request.
func TestShowSecured(t *testing.T) {
	b := &sandboxes{ports: map[string]net.Addr{}}
	asked := atomic.Int32{}
	answer := func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		fmt.Fprintf(w, "%s tls=%t", r.Host, r.TLS != nil)
	}
	secured := httptest.NewTLSServer(http.HandlerFunc(answer))
	t.Cleanup(secured.Close)
	b.ports["one 8443"] = secured.Listener.Addr()
	b.serve(t, "one", answer)
	p := portproxy.New(b, portproxy.Options{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		port, _ := strconv.Atoi(r.Header.Get("X-Port"))
		p.Show(w, r, portproxy.Port{Sandbox: "one", Number: uint16(port), TLS: r.Header.Get("X-Tls") != ""})
	}))
	t.Cleanup(func() {
		s.Close()
		p.Close()
	})
	for range 2 {
		if resp, body := get(t, s.Listener.Addr().String(), "any.name", "X-Port", "8443", "X-Tls", "yes"); resp.StatusCode != 200 || body != "any.name tls=true" {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	}
	asked.Store(0)
	if resp, body := get(t, s.Listener.Addr().String(), "any.name", "X-Port", "8000", "X-Tls", "yes"); resp.StatusCode != 502 || asked.Load() != 0 {
		t.Errorf("without TLS inside: %d %s", resp.StatusCode, body)
	}
}

// TestConnectionsThatWaitAreNotTrusted: a program closes each connection at its
// second request, as a server may close an idle connection. Requests that can
// be repeated are repeated; others never use such a connection.
func TestConnectionsThatWaitAreNotTrusted(t *testing.T) {
	b, addr := start(t)
	var acted atomic.Int32
	used := sync.Map{}
	b.serve(t, "sb-one", func(w http.ResponseWriter, r *http.Request) {
		if _, again := used.LoadOrStore(r.RemoteAddr, true); again {
			panic(http.ErrAbortHandler)
		}
		if r.Method == http.MethodPost {
			acted.Add(1)
		}
		_, _ = io.Copy(w, r.Body)
	})
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	const rounds = 5
	for i := range rounds {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			body := io.Reader(http.NoBody)
			if method == http.MethodPost {
				body = strings.NewReader("once")
			}
			r, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+"/", body)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = "8000-sb-one.atoll.example"
			r.Header.Set(portproxy.HeaderToken, "token-sb-one")
			resp, err := transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			_, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK || err != nil {
				t.Errorf("%s %d: status %d, %v", method, i, resp.StatusCode, err)
			}
		}
	}
	if n := acted.Load(); n != rounds {
		t.Errorf("%d of %d requests were acted on", n, rounds)
	}
}
