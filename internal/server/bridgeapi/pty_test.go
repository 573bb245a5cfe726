package bridgeapi

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// stub is a sandbox whose commands are controlled by the test. Closing a command
// ends it as if it was killed.
type stub struct {
	Sandbox
	started chan *stubProcess
}

func (b *stub) Exec(_ context.Context, cmd sandbox.Command) (driver.Process, error) {
	p := &stubProcess{cmd: cmd, ended: make(chan struct{}), sizes: make(chan sandbox.WindowSize, 8)}
	p.inR, p.inW = io.Pipe()
	p.outR, p.outW = io.Pipe()
	b.started <- p
	return p, nil
}

type stubProcess struct {
	driver.Process
	cmd       sandbox.Command
	inR, outR *io.PipeReader
	inW, outW *io.PipeWriter
	sizes     chan sandbox.WindowSize
	once      sync.Once
	ended     chan struct{}
	exit      sandbox.Exit
}

func (p *stubProcess) Stdin() io.WriteCloser { return p.inW }
func (p *stubProcess) Stdout() io.Reader     { return p.outR }
func (p *stubProcess) Stderr() io.Reader     { return strings.NewReader("") }

func (p *stubProcess) Resize(_ context.Context, s sandbox.WindowSize) error {
	p.sizes <- s
	return nil
}

func (p *stubProcess) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-p.ended:
		return p.exit, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

func (p *stubProcess) end(exit sandbox.Exit) {
	p.once.Do(func() {
		p.exit = exit
		close(p.ended)
	})
}

func (p *stubProcess) Close() error {
	p.end(sandbox.Exit{Code: 137, Signal: 9, Reason: sandbox.ReasonSignaled})
	_ = p.inR.Close()
	_ = p.outW.Close()
	return nil
}

// serve serves a sandbox to clients with the key "key", and returns the address of
// its routes.
func serve(t *testing.T, sb Sandbox, opts Options) string {
	opts.Logger = slog.New(slog.DiscardHandler)
	h := New(Services{
		Allow: func(context.Context, ops.Op) error { return nil },
		Authenticate: func(ctx context.Context, key string) (context.Context, string, error) {
			if key != "key" {
				return nil, "", &sandbox.Error{Code: sandbox.CodeUnauthorized, Message: "missing API key"}
			}
			return ctx, "tenant", nil
		},
		Open: func(context.Context, string) (Sandbox, error) { return sb, nil },
	}, opts)
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL + "/v1/sandbox/box"
}

type terminalClient struct {
	t  *testing.T
	ws *websocket.Conn
}

// dial opens a terminal and waits until it is ready.
func dial(t *testing.T, url string) terminalClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ws, resp, err := websocket.Dial(ctx, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body != nil {
		_ = resp.Body.Close()
	}
	t.Cleanup(func() { _ = ws.CloseNow() })
	c := terminalClient{t, ws}
	c.wantText(`{"type":"ready"}`)
	return c
}

func (c terminalClient) send(kind websocket.MessageType, text string) {
	c.t.Helper()
	if err := c.ws.Write(c.t.Context(), kind, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

func (c terminalClient) read() (websocket.MessageType, string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	kind, data, err := c.ws.Read(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	return kind, string(data)
}

func (c terminalClient) wantText(want string) {
	c.t.Helper()
	if kind, got := c.read(); kind != websocket.MessageText || got != want {
		c.t.Fatalf("%v %q, want the text %q", kind, got, want)
	}
}

func TestTerminalRunsACommandLine(t *testing.T) {
	t.Parallel()
	sb := &stub{started: make(chan *stubProcess, 1)}
	c := dial(t, serve(t, sb, Options{})+"/pty?cols=100&rows=30&authorization=Bearer%20key")
	c.send(websocket.MessageText, `{"type":"resize","cols":0,"rows":5}`)
	c.wantText(`{"type":"error","message":"not a resize message with positive cols and rows"}`)
	c.send(websocket.MessageBinary, "sh -lc 'cd /workspace &&\nmake'\n")
	p := <-sb.started
	if got := strings.Join(p.cmd.Args, "|"); got != "sh|-lc|cd /workspace &&\nmake" || *p.cmd.TTY != (sandbox.WindowSize{Cols: 100, Rows: 30}) {
		t.Errorf("it ran %q on %v", got, p.cmd.TTY)
	}
	c.send(websocket.MessageText, `{"type":"resize","cols":90,"rows":20}`)
	if got := <-p.sizes; got != (sandbox.WindowSize{Cols: 90, Rows: 20}) {
		t.Errorf("it was resized to %v", got)
	}
	c.send(websocket.MessageBinary, "input\n")
	buf := make([]byte, 100)
	if n, _ := p.inR.Read(buf); string(buf[:n]) != "input\n" {
		t.Errorf("it read %q", buf[:n])
	}
	go func() {
		p.end(sandbox.Exit{Code: 137, Signal: 9, Reason: sandbox.ReasonSignaled})
		_, _ = io.WriteString(p.outW, "last words") // must arrive before the exit
		_ = p.outW.Close()
	}()
	if kind, got := c.read(); kind != websocket.MessageBinary || got != "last words" {
		t.Errorf("%v %q", kind, got)
	}
	c.wantText(`{"type":"exit","code":137,"signal":"SIGKILL"}`)
	if _, _, err := c.ws.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("it ends with %v", err)
	}
}

func TestTerminalTypesIntoAShell(t *testing.T) {
	t.Parallel()
	for first, shell := range map[string]string{"l": "", "ls | wc\n": "zsh", "cd /tmp\n": ""} {
		sb := &stub{started: make(chan *stubProcess, 1)}
		c := dial(t, serve(t, sb, Options{})+"/pty?authorization=bearer%20key&shell="+shell)
		c.send(websocket.MessageBinary, first)
		p := <-sb.started
		want := shell
		if want == "" {
			want = "bash"
		}
		if len(p.cmd.Args) != 1 || p.cmd.Args[0] != want {
			t.Errorf("%q runs %q, want %s", first, p.cmd.Args, want)
		}
		buf := make([]byte, len(first))
		if _, err := io.ReadFull(p.inR, buf); err != nil || string(buf) != first {
			t.Errorf("the shell reads %q, %v", buf, err)
		}
		_ = c.ws.CloseNow()
		<-p.ended // it is killed when its connection ends
	}
}

func TestTerminalWhoseProgramDoesNotRead(t *testing.T) {
	t.Parallel()
	sb := &stub{started: make(chan *stubProcess, 1)}
	c := dial(t, serve(t, sb, Options{})+"/pty?authorization=Bearer%20key")
	c.send(websocket.MessageBinary, "cat\n")
	p := <-sb.started
	for range 2 + maxInput/maxFrame {
		if c.ws.Write(t.Context(), websocket.MessageBinary, make([]byte, maxFrame-1)) != nil {
			break
		}
	}
	select {
	case <-p.ended:
	case <-time.After(30 * time.Second):
		t.Fatal("the program still runs, although its input is full")
	}
}

// blockedWriter is the standard input of a program that does not read.
type blockedWriter struct{ begun, release chan struct{} }

func (w blockedWriter) Write(b []byte) (int, error) {
	w.begun <- struct{}{}
	<-w.release
	return len(b), nil
}

func (blockedWriter) Close() error { return nil }

// TestInputIsLimited: input that is being written counts towards the limit, and
// no longer when it has been written.
func TestInputIsLimited(t *testing.T) {
	t.Parallel()
	to := blockedWriter{make(chan struct{}), make(chan struct{})}
	in := newInput(to)
	defer in.close()
	if !in.add(make([]byte, maxInput/2)) {
		t.Fatal("half of the limit was refused")
	}
	<-to.begun
	if !in.add(make([]byte, maxInput/2)) {
		t.Fatal("the other half was refused")
	}
	if in.add(make([]byte, 1)) {
		t.Fatal("it holds more than its limit")
	}
	to.release <- struct{}{}
	<-to.begun
	if !in.add(make([]byte, maxInput/2)) {
		t.Error("there is no room, although half was written")
	}
	to.release <- struct{}{}
	<-to.begun
	to.release <- struct{}{}
}

func TestTerminalRefuses(t *testing.T) {
	t.Parallel()
	url := serve(t, &stub{}, Options{})
	for query, want := range map[string]int{
		"":                                   401,
		"?authorization=Bearer%20x":          401,
		"?authorization=Bearer%20key&cols=x": 400,
		"?authorization=Bearer%20key&rows=0": 400,
		"?authorization=Bearer%20key&session=a..b": 400,
	} {
		_, resp, err := websocket.Dial(t.Context(), url+"/pty"+query, nil)
		if err == nil || resp == nil || resp.StatusCode != want || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %v %v, want %d", query, err, resp, want)
		}
	}
}

func TestExecEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	sb := &stub{started: make(chan *stubProcess, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, serve(t, sb, Options{})+"/exec", strings.NewReader(`{"argv":["sleep","100"]}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer key")
	go func() {
		p := <-sb.started
		sb.started <- p
		_, _ = io.WriteString(p.outW, "h\xc3") // half a character is held back until the other half arrives
		_, _ = io.WriteString(p.outW, "\xa9")
	}()
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	want := "event: stdout\ndata: aA==\n\nevent: stdout\ndata: w6k=\n\n"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
		t.Fatalf("%q, %v", got, err)
	}
	cancel()
	<-(<-sb.started).ended
}

func TestExecOfALostSandbox(t *testing.T) {
	t.Parallel()
	for reason, want := range map[sandbox.Reason]string{
		sandbox.ReasonCrashed: `event: error` + "\n" + `data: {"error":"the sandbox ended while the command ran: crashed","code":"exec_transport_error"}` + "\n\n",
		sandbox.ReasonTimeout: `event: error` + "\n" + `data: {"error":"the command took too long and was killed","code":"exec_timeout"}` + "\n\n",
		sandbox.ReasonMemory:  `event: exit` + "\n" + `data: {"exit_code":137}` + "\n\n",
	} {
		sb := &stub{started: make(chan *stubProcess, 1)}
		go func() {
			p := <-sb.started
			p.end(sandbox.Exit{Code: 137, Signal: 9, Reason: reason})
			_ = p.outW.Close()
		}()
		r := httptest.NewRequest(http.MethodPost, serve(t, sb, Options{quiet: time.Millisecond})+"/exec", strings.NewReader(`{"argv":["x"]}`))
		r.RequestURI = ""
		r.Header.Set("Authorization", "Bearer key")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || !bytes.Equal(got, []byte(want)) {
			t.Errorf("%s: %q, %v", reason, got, err)
		}
	}
}
