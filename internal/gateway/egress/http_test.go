package egress

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

// upstreamSeen is what a server reads of what the gateway sends it.
type upstreamSeen struct {
	mu  sync.Mutex
	all []*http.Request
}

func (s *upstreamSeen) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	s.mu.Lock()
	s.all = append(s.all, r)
	s.mu.Unlock()
	_, _ = io.WriteString(w, "answer")
}

// oneConn is a listener with one connection.
type oneConn struct {
	c    chan net.Conn
	done chan struct{}
	once sync.Once
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.c:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *oneConn) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// scripted is a connection. Its other end sends a script, then garbage until
// the connection is closed.
type scripted struct {
	in     io.Reader
	closed chan struct{}
	once   sync.Once
	mu     sync.Mutex
	out    bytes.Buffer
}

func newScripted(in []byte) *scripted {
	junk := strings.NewReader("\r\n\r\n0\r\n\r\n" + strings.Repeat("\x00\r\n\r\n", 4096))
	return &scripted{in: io.MultiReader(bytes.NewReader(in), junk), closed: make(chan struct{})}
}

func (c *scripted) Read(p []byte) (int, error) { return c.in.Read(p) }

func (c *scripted) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Write(p)
}

func (c *scripted) written() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.out.Bytes())
}

func (c *scripted) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

func (c *scripted) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *scripted) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *scripted) SetDeadline(time.Time) error      { return nil }
func (c *scripted) SetReadDeadline(time.Time) error  { return nil }
func (c *scripted) SetWriteDeadline(time.Time) error { return nil }

// through sends bytes through a gateway that allows GET and POST below /ok/ of
// good.test, and returns what came back, what the server read, and what the
// gateway said that it let through.
func through(tb testing.TB, in []byte) (answer []byte, seen []*http.Request, allowed int) {
	tb.Helper()
	var mu sync.Mutex
	up := &upstreamSeen{}
	inside := newScripted(in)
	stop := connect(tb, inside, up, func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Kind == "http" && (e.Verdict == messages.Allowed || e.Verdict == messages.Failed) && e.Method != "" {
			allowed++
		}
	})
	defer stop()
	select {
	case <-inside.closed:
	case <-time.After(20 * time.Second):
		tb.Fatalf("it never ends: %q", in)
	}
	stop()
	up.mu.Lock()
	defer up.mu.Unlock()
	mu.Lock()
	defer mu.Unlock()
	return inside.written(), up.all, allowed
}

// connect serves a connection of a sandbox to good.test, whose server is
// handler. tell gets the events. The caller calls stop, once or more.
func connect(tb testing.TB, inside net.Conn, handler http.Handler, tell func(Event)) (stop func()) {
	tb.Helper()
	r, err := newActivePolicy(messages.Policy{Profile: sandbox.Profile{Rules: []sandbox.Rule{{
		Action: sandbox.Allow, Hosts: []string{"good.test"}, Paths: []string{"/ok/**"}, Methods: []string{"GET", "POST"},
	}}}}, policy.Operator{})
	if err != nil {
		tb.Fatal(err)
	}
	b := testSandbox(tb)
	b.flows = map[*flow]struct{}{}
	b.eventReporter = newEventReporter(tell)
	b.policy.Store(r)
	w, err := newOutgoing(messages.Settings{}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	b.outgoing.Store(w)
	b.life, b.stop = context.WithCancel(context.Background())
	b.http = newHTTPServer(b)
	server := &http.Server{Handler: handler}
	there, here := net.Pipe()
	l := &oneConn{c: make(chan net.Conn, 1), done: make(chan struct{})}
	l.c <- there
	go func() { _ = server.Serve(l) }()

	f := &flow{b: b, target: target{policy.Host{Name: "good.test"}, 80}, addr: netip.MustParseAddr("8.8.8.8"), ruling: r, out: here}
	f.d = r.decide(f.target, f.addr).Decision
	f.in = &countedConn{Conn: inside, f: f}
	f.serveHTTP(f.in, false)
	return sync.OnceFunc(func() {
		b.http.close()
		server.Close()
		b.stop()
	})
}

// FuzzHTTP checks that for any input, an allowed server only gets requests that
// the gateway has allowed.
func FuzzHTTP(f *testing.F) {
	for _, s := range []string{
		"GET /ok/a HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n",
		"POST /ok/a HTTP/1.1\r\nHost: good.test\r\nContent-Length: 5\r\n\r\nhelloGET /ok/b HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n",
		"POST /ok/a HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\nGET /bad HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n",
		"POST /ok/a HTTP/1.1\r\nHost: good.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n2e\r\nGET /bad HTTP/1.1\r\nHost: evil.test\r\n\r\n\r\n0\r\n\r\n",
		"GET http://evil.test/ok/a HTTP/1.1\r\nHost: good.test\r\n\r\n",
		"GET /ok/../bad HTTP/1.1\r\nHost: good.test\r\n\r\nGET /ok/%2e%2e/bad HTTP/1.1\r\nHost: good.test\r\n\r\nGET /ok/..%2fbad HTTP/1.1\r\nHost: good.test\r\n\r\n",
		"GET /ok/a HTTP/1.1\r\nHost: good.test\r\nHost: evil.test\r\n\r\n",
		"GET /ok/a HTTP/1.0\r\n\r\n", "DELETE /ok/a HTTP/1.1\r\nHost: good.test\r\n\r\n", "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test\r\n\r\n",
		"GET /ok/a HTTP/1.1\r\nHost: good.test\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET /ok/a HTTP/1.1\r\nHost: good.test\r\nX-HTTP-Method-Override: DELETE\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if bytes.Contains(in, []byte("100-continue")) {
			return // it waits for a second, which is a long time here
		}
		answer, seen, allowed := through(t, in)
		if len(seen) > allowed {
			t.Errorf("the server read %d requests, and the gateway let %d through", len(seen), allowed)
		}
		for _, r := range seen {
			raw, _, _ := strings.Cut(r.RequestURI, "?")
			if r.Method != "GET" && r.Method != "POST" || r.Host != "good.test" || raw != "/ok" && !strings.HasPrefix(raw, "/ok/") || strings.Contains(strings.ToLower(raw), "%2e") {
				t.Errorf("the server read %s %s of %s", r.Method, r.RequestURI, r.Host)
			}
			for range 3 { // however often servers undo escapes
				if read := path.Clean(raw); read != "/ok" && !strings.HasPrefix(read, "/ok/") {
					t.Errorf("the server may read %s as %s", r.RequestURI, read)
				}
				undone, err := url.PathUnescape(raw)
				if err != nil {
					break
				}
				raw = undone
			}
		}
		for read := bufio.NewReader(bytes.NewReader(answer)); ; {
			a, err := http.ReadResponse(read, nil)
			if err != nil {
				break
			}
			if _, err := io.Copy(io.Discard, a.Body); err != nil {
				break
			}
		}
	})
}

// TestThrough checks that the fuzzed way is one on which requests get through.
func TestThrough(t *testing.T) {
	answer, seen, allowed := through(t, []byte("GET /ok/a HTTP/1.1\r\nHost: good.test\r\n\r\nGET /bad HTTP/1.1\r\nHost: good.test\r\n\r\nPOST /ok/b HTTP/1.1\r\nHost: good.test\r\nContent-Length: 1\r\n\r\nx"))
	if len(seen) != 2 || allowed != 2 || seen[0].RequestURI != "/ok/a" || seen[1].RequestURI != "/ok/b" || !bytes.Contains(answer, []byte("egress_denied")) {
		t.Errorf("%d requests, %d allowed: %s", len(seen), allowed, answer)
	}
}

// TestResponseBeforeEndOfRequest: a server may respond while it still reads the
// request. The sandbox gets the beginning of the response at once, and all of it.
func TestResponseBeforeEndOfRequest(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer connect(t, far, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		_ = c.EnableFullDuplex()
		_, _ = io.WriteString(w, "first ")
		_ = c.Flush()
		_, _ = io.Copy(w, r.Body)
	}), func(Event) {})()
	send := func(part string) {
		if _, err := io.WriteString(near, part); err != nil {
			t.Error(err)
		}
	}
	_ = near.SetDeadline(time.Now().Add(time.Minute))
	send("POST /ok/a HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(near), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	first := make([]byte, len("first "))
	if _, err := io.ReadFull(resp.Body, first); err != nil {
		t.Fatal(err)
	}
	go send("4\r\nrest\r\n0\r\n\r\n")
	rest, err := io.ReadAll(resp.Body)
	if got := string(first) + string(rest); err != nil || got != "first rest" {
		t.Errorf("the response is %q, %v, want %q", got, err, "first rest")
	}
}

// TestLargeBuffersAreFew checks that the number of buffers is limited, and that
// returned ones are reused.
func TestLargeBuffersAreFew(t *testing.T) {
	var lent []*[]byte
	for range maxLarge {
		lent = append(lent, take())
	}
	for _, b := range lent {
		if len(*b) != largeBuffer {
			t.Fatalf("a buffer of %d bytes, want %d", len(*b), largeBuffer)
		}
	}
	late := copyBuffers{}.Get()
	if len(late) != mediumBuffer {
		t.Errorf("a buffer of %d bytes although all large ones are lent, want %d", len(late), mediumBuffer)
	}
	copyBuffers{}.Put(late)
	for _, b := range lent {
		giveBack(b)
	}
	if b := take(); len(*b) != largeBuffer {
		t.Errorf("a buffer of %d bytes after all were given back", len(*b))
	} else {
		giveBack(b)
	}
	if n := lentLarge.Load(); n != 0 {
		t.Errorf("%d are lent at the end", n)
	}
}
