package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/atoll-run/atoll/internal/server"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type whoKey struct{}

// start serves a handler that reports the authenticated caller.
func start(t *testing.T, l net.Listener, handler http.HandlerFunc) *server.Server {
	t.Helper()
	if handler == nil {
		handler = func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, r.Context().Value(whoKey{}))
		}
	}
	s := server.New(server.Config{
		Handler: handler, Hosts: []string{"box.test"}, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Authenticate: func(ctx context.Context, c server.Caller) (context.Context, error) {
			switch {
			case c.Token == "good", c.Token == "better":
				return context.WithValue(ctx, whoKey{}, "key"), nil
			case c.Token != "" || c.UID == nil:
				return nil, &sandbox.Error{Code: sandbox.CodeUnauthorized, Message: "no"}
			}
			return context.WithValue(ctx, whoKey{}, fmt.Sprint("uid ", *c.UID)), nil
		},
	})
	serve(t, l, s)
	return s
}

// serve serves until the test ends.
func serve(t *testing.T, l net.Listener, s *server.Server) {
	t.Helper()
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

func tcp(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func get(t *testing.T, c *http.Client, url string, header map[string]string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		if k == "Host" {
			r.Host = v
			continue
		}
		r.Header.Set(k, v)
	}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	defer c.CloseIdleConnections()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// A web page must not be able to use the API through its visitor's browser.
func TestBrowsersAreKeptOut(t *testing.T) {
	l := tcp(t)
	start(t, l, nil)
	host := l.Addr().String()
	_, port, _ := net.SplitHostPort(host)
	tests := []struct {
		name   string
		header map[string]string
		want   int
	}{
		{"a program", nil, 200},
		{"by a name that was given", map[string]string{"Host": "BOX.test.:" + port}, 200},
		{"by localhost", map[string]string{"Host": "localhost:" + port}, 200},
		{"by another name", map[string]string{"Host": "evil.test:" + port}, 403},
		{"by no name", map[string]string{"Host": "localhost.evil.test"}, 403},
		{"a page from elsewhere", map[string]string{"Origin": "https://evil.test"}, 403},
		{"a page without an origin", map[string]string{"Origin": "null"}, 403},
		{"a page of the same origin", map[string]string{"Origin": "http://" + host}, 200},
		{"a page on another port", map[string]string{"Origin": "http://127.0.0.1:1"}, 403},
		{"an image tag", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
		{"a sibling site", map[string]string{"Sec-Fetch-Site": "same-site"}, 403},
		{"typed by hand", map[string]string{"Sec-Fetch-Site": "none"}, 200},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			header := map[string]string{"Authorization": "Bearer good"}
			for k, v := range tt.header {
				header[k] = v
			}
			if code, text := get(t, new(http.Client), "http://"+host, header); code != tt.want {
				t.Errorf("%d: %s", code, text)
			}
		})
	}
}

func TestWhoIsCalling(t *testing.T) {
	l := tcp(t)
	start(t, l, nil)
	memory := server.NewMemory()
	start(t, memory, nil)
	path := filepath.Join(t.TempDir(), "s.sock")
	u, err := server.ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	start(t, u, nil)
	over := map[string]*http.Client{
		"tcp":    {Transport: new(http.Transport)},
		"memory": {Transport: memory.Transport()},
		"unix": {Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}}},
	}
	me := fmt.Sprint("uid ", os.Geteuid())
	tests := []struct{ over, token, want string }{
		{"tcp", "", "unauthorized"},
		{"tcp", "Bearer good", "key"},
		{"tcp", "bearer  good", "key"},
		{"tcp", "Bearer bad", "unauthorized"},
		{"tcp", "Basic good", "unauthorized"},
		{"unix", "", me},
		{"unix", "Bearer good", "key"},
		{"unix", "Bearer bad", "unauthorized"},
		{"memory", "", me},
		{"memory", "Bearer good", "key"},
	}
	for _, tt := range tests {
		header := map[string]string{}
		if tt.token != "" {
			header["Authorization"] = tt.token
		}
		if _, text := get(t, over[tt.over], "http://"+l.Addr().String(), header); !strings.Contains(text, tt.want) {
			t.Errorf("over %s with %q: %s", tt.over, tt.token, text)
		}
	}
	if code, _ := get(t, over["tcp"], "http://"+l.Addr().String()+"/healthz", nil); code != 200 {
		t.Errorf("the health of the daemon is a secret: %d", code)
	}
}

func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	if err := os.WriteFile(path, []byte("left behind"), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := server.ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Type() != os.ModeSocket || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 0 {
		t.Errorf("left: %v", entries)
	}
	if _, err := server.ListenUnix(filepath.Join(t.TempDir(), strings.Repeat("x", 200))); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("got %v", err)
	}
}

// If a socket cannot be moved to its path, ListenUnix returns an error and
// leaves nothing behind.
func TestSocketThatCannotBePlaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "api.sock")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if l, err := server.ListenUnix(path); err == nil {
		_ = l.Close()
		t.Error("a socket took the place of a directory")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v is left, %v", left, err)
	}
}

func TestHugeHeaders(t *testing.T) {
	l := tcp(t)
	start(t, l, nil)
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() {
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x", 200<<10)+"\r\n\r\n")
	}()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return // disconnected before a response: that is fine too
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("%d", resp.StatusCode)
	}
}

// Which of two keys counts would be a guess, and a proxy may guess differently.
func TestTwoKeysAreNone(t *testing.T) {
	l := tcp(t)
	start(t, l, nil)
	for keys, want := range map[string]int{"good": http.StatusOK, "good good": http.StatusUnauthorized, "good bad": http.StatusUnauthorized} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range strings.Fields(keys) {
			r.Header.Add("Authorization", "Bearer "+key)
		}
		resp, err := new(http.Client).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("keys %s: %d, want %d", keys, resp.StatusCode, want)
		}
	}
}

func TestPanicIsAnAnswer(t *testing.T) {
	l := tcp(t)
	start(t, l, func(http.ResponseWriter, *http.Request) { panic("secret detail") })
	code, text := get(t, new(http.Client), "http://"+l.Addr().String(), map[string]string{"Authorization": "Bearer good"})
	if code != 500 || strings.Contains(text, "secret") {
		t.Errorf("%d %s", code, text)
	}
}

// Shutdown waits for running requests, and cancels those that do not end.
func TestShutdown(t *testing.T) {
	l := tcp(t)
	begun, ended := make(chan struct{}), make(chan error, 1)
	s := start(t, l, func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
		ended <- r.Context().Err()
	})
	go func() {
		r, _ := http.NewRequest(http.MethodGet, "http://"+l.Addr().String(), nil)
		r.Header.Set("Authorization", "Bearer good")
		if resp, err := new(http.Transport).RoundTrip(r); err == nil {
			_ = resp.Body.Close()
		}
	}()
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // do not wait
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestMemoryCloses(t *testing.T) {
	m := server.NewMemory()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Dial(canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody accepts: %v", err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if _, err := m.Dial(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
	if _, err := m.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// While the daemon starts, it is alive but not ready, and requests wait.
func TestStarting(t *testing.T) {
	ready := make(chan struct{})
	s := server.New(server.Config{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") }),
		Ready:   ready, Logger: slog.New(slog.DiscardHandler),
	})
	l := tcp(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	base, c := "http://"+l.Addr().String(), &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	if code, _ := get(t, c, base+"/healthz", nil); code != http.StatusOK {
		t.Errorf("/healthz: %d", code)
	}
	if code, _ := get(t, c, base+"/readyz", nil); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz: %d", code)
	}
	answer := make(chan string, 1)
	go func() {
		res, err := c.Get(base + "/v1/sandboxes")
		if err != nil {
			answer <- err.Error()
			return
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		answer <- string(text)
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	select {
	case text := <-answer:
		t.Errorf("an answer before the daemon was ready: %q", text)
	case <-ctx.Done():
	}
	close(ready)
	if text := <-answer; text != "served" {
		t.Errorf("the answer is %q", text)
	}
	if code, _ := get(t, c, base+"/readyz", nil); code != http.StatusOK {
		t.Errorf("/readyz: %d", code)
	}
	if err := errors.Join(s.Shutdown(context.Background()), <-served); err != nil {
		t.Error(err)
	}
}
