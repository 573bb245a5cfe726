package roundtrip_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/atoll-run/atoll/internal/roundtrip"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// place is a server on a socket, and a client of it.
type place struct {
	*http.Client
	dials atomic.Int64
	addr  string
}

func (p *place) dial(ctx context.Context) (net.Conn, error) {
	p.dials.Add(1)
	return new(net.Dialer).DialContext(ctx, "unix", p.addr)
}

// newPlace returns a place where nobody listens yet.
func newPlace(t *testing.T) *place {
	p := &place{addr: filepath.Join(t.TempDir(), "s")}
	p.Client = &http.Client{Transport: roundtrip.New(p.dial)}
	t.Cleanup(p.CloseIdleConnections)
	return p
}

func (p *place) listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("unix", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serve answers at a place until the test ends.
func serve(t *testing.T, h http.HandlerFunc) *place {
	t.Helper()
	p := newPlace(t)
	s := &httptest.Server{Listener: p.listen(t), Config: &http.Server{Handler: h}}
	s.Start()
	t.Cleanup(s.Close)
	return p
}

func text(t *testing.T, resp *http.Response, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

func echo(w http.ResponseWriter, r *http.Request) {
	in, _ := io.ReadAll(r.Body)
	switch r.URL.Path {
	case "/long":
		for range 100 {
			_, _ = w.Write(bytes.Repeat(in, 1000))
			w.(http.Flusher).Flush()
		}
	case "/none":
		w.WriteHeader(http.StatusNoContent)
	case "/early":
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = w.Write(in)
	case "/last":
		w.Header().Set("Connection", "close")
		_, _ = w.Write(in)
	default:
		_, _ = fmt.Fprintf(w, "%s %s %d %s", r.Method, r.Host, r.ContentLength, in)
	}
}

func TestOneConnectionServesAllKinds(t *testing.T) {
	p := serve(t, echo)
	for range 3 {
		resp, err := p.Get("http://here/")
		if got := text(t, resp, err); got != "GET here 0 " {
			t.Error(got)
		}
		resp, err = p.Post("http://here/", "text/plain", strings.NewReader("in"))
		if got := text(t, resp, err); got != "POST here 2 in" {
			t.Error(got)
		}
		resp, err = p.Post("http://here/long", "text/plain", strings.NewReader("0123456789"))
		if got := text(t, resp, err); got != strings.Repeat("0123456789", 100_000) {
			t.Error(len(got))
		}
		resp, err = p.Post("http://here/none", "text/plain", strings.NewReader("x"))
		if got := text(t, resp, err); got != "" || resp.StatusCode != http.StatusNoContent {
			t.Error(got, resp.StatusCode)
		}
		resp, err = p.Post("http://here/early", "text/plain", strings.NewReader("after"))
		if got := text(t, resp, err); got != "after" || resp.StatusCode != http.StatusOK {
			t.Error(got, resp.StatusCode)
		}
		resp, err = p.Head("http://here/")
		if got := text(t, resp, err); got != "" {
			t.Error(got)
		}
	}
	if n := p.dials.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
	resp, err := p.Post("http://here/last", "text/plain", strings.NewReader("bye"))
	if got := text(t, resp, err); got != "bye" {
		t.Error(got)
	}
	resp, err = p.Get("http://here/")
	if _ = text(t, resp, err); p.dials.Load() != 2 {
		t.Errorf("%d connections after one was to be closed", p.dials.Load())
	}
}

// Bodies that may have to be written while the answer is read, and upgrades.
func TestOthersGoElsewhere(t *testing.T) {
	p := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "echo")
			w.WriteHeader(http.StatusSwitchingProtocols)
			c, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			line, _ := rw.ReadString('\n')
			_, _ = c.Write([]byte(line))
			return
		}
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = io.Copy(w, r.Body) // answers before all has come
	})
	big := bytes.Repeat([]byte("b"), 3<<20)
	resp, err := p.Post("http://here/", "text/plain", io.MultiReader(bytes.NewReader(big)))
	if got := text(t, resp, err); got != string(big) {
		t.Error(len(got))
	}
	resp, err = p.Post("http://here/", "text/plain", bytes.NewReader(big))
	if got := text(t, resp, err); got != string(big) {
		t.Error(len(got))
	}
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://here/", nil)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "echo")
	resp, err = p.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = resp.Body.(io.Writer).Write([]byte("hello\n"))
	if got, _ := io.ReadAll(resp.Body); string(got) != "hello\n" {
		t.Errorf("%q", got)
	}
}

func TestContextEnds(t *testing.T) {
	began, ended := make(chan struct{}, 1), make(chan struct{}, 1)
	p := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // until then the server does not look
		if r.URL.Path == "/body" {
			_, _ = w.Write([]byte("a"))
			w.(http.Flusher).Flush()
		}
		began <- struct{}{}
		<-r.Context().Done() // the server sees that nobody waits
		ended <- struct{}{}
	})
	for _, path := range []string{"/header", "/body"} {
		ctx, cancel := context.WithCancel(t.Context())
		r, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://here"+path, strings.NewReader("x"))
		go func() {
			<-began
			cancel()
		}()
		resp, err := p.Do(r)
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
		if !errors.Is(err, context.Canceled) {
			t.Error(path, err)
		}
		<-ended
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://here/", nil)
	if _, err := p.Do(r); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A context that ends after the answer was read does no harm to who uses the
// connection next.
func TestLateEndOfContext(t *testing.T) {
	p := serve(t, echo)
	for range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://here/", nil)
		resp, err := p.Do(r)
		_ = text(t, resp, err)
		cancel()
		resp, err = p.Get("http://here/")
		_ = text(t, resp, err)
	}
	if n := p.dials.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

func TestCloseWakesReader(t *testing.T) {
	ended := make(chan struct{})
	p := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("a"))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(ended)
	})
	resp, err := p.Get("http://here/")
	if err != nil {
		t.Fatal(err)
	}
	var one [1]byte
	if _, err := io.ReadFull(resp.Body, one[:]); err != nil {
		t.Fatal(err)
	}
	read := make(chan error)
	go func() {
		_, err := resp.Body.Read(one[:])
		read <- err
	}()
	_ = resp.Body.Close()
	if err := <-read; err == nil || err == io.EOF {
		t.Error(err)
	}
	<-ended
	if _, err := resp.Body.Read(one[:]); !errors.Is(err, http.ErrBodyReadAfterClose) {
		t.Error(err)
	}
}

// once answers one request per connection and closes it, without having said
// so, when told to.
func once(l net.Listener, closeNow <-chan struct{}, closed chan<- struct{}) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		buf := make([]byte, 4096)
		_, _ = c.Read(buf)
		_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
		<-closeNow
		_ = c.Close()
		closed <- struct{}{}
	}
}

// A daemon that is replaced by another has closed what is kept. That is noticed
// before anything is sent, so that even what must not be repeated is done.
func TestClosedMeanwhile(t *testing.T) {
	p := newPlace(t)
	l := p.listen(t)
	defer l.Close()
	closeNow, closed := make(chan struct{}), make(chan struct{})
	go once(l, closeNow, closed)
	for i := range 3 {
		resp, err := p.Post("http://here/", "text/plain", strings.NewReader("x"))
		if got := text(t, resp, err); got != "ok" {
			t.Error(got)
		}
		closeNow <- struct{}{}
		<-closed
		if n := p.dials.Load(); n != int64(i+1) {
			t.Errorf("%d connections", n)
		}
	}
}

// What breaks off after it was sent is repeated only if it may be.
func TestNotRepeated(t *testing.T) {
	p := newPlace(t)
	l := p.listen(t)
	defer l.Close()
	var asked atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 4096)
			_, _ = c.Read(buf)
			asked.Add(1)
			_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
			if n, _ := c.Read(buf); n > 0 { // the next one gets no answer
				asked.Add(1)
			}
			_ = c.Close()
		}
	}()
	send := func(method string, key string) error {
		r, _ := http.NewRequestWithContext(t.Context(), method, "http://here/", strings.NewReader("x"))
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		resp, err := p.Do(r)
		if err == nil {
			_ = text(t, resp, nil)
		}
		return err
	}
	if err := send(http.MethodPost, ""); err != nil || asked.Load() != 1 {
		t.Fatal(err, asked.Load())
	}
	if err := send(http.MethodPost, ""); !errors.Is(err, io.ErrUnexpectedEOF) || asked.Load() != 2 {
		t.Error(err, asked.Load())
	}
	if err := send(http.MethodPost, ""); err != nil || asked.Load() != 3 {
		t.Error(err, asked.Load())
	}
	if err := send(http.MethodPost, "key"); err != nil || asked.Load() != 5 {
		t.Error(err, asked.Load())
	}
	if err := send(http.MethodGet, ""); err != nil || asked.Load() != 7 {
		t.Error(err, asked.Load())
	}
}

// Answers that no server should give.
func TestHostileAnswers(t *testing.T) {
	for name, answer := range map[string]string{
		"nothing":      "",
		"noise":        "hello\r\n\r\n",
		"endless head": "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: "+strings.Repeat("b", 1000)+"\r\n", 2000),
		"many heads":   strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 10),
		"upgrade":      "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
	} {
		p := newPlace(t)
		l := p.listen(t)
		var done sync.WaitGroup
		done.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Read(make([]byte, 4096))
				_, _ = io.WriteString(c, answer) // the other end may not want it
				_ = c.Close()
			}
		})
		if _, err := p.Post("http://here/", "text/plain", strings.NewReader("x")); err == nil {
			t.Error(name)
		}
		if n := p.dials.Load(); n != 1 {
			t.Errorf("%s: %d connections", name, n)
		}
		_ = l.Close()
		done.Wait()
	}
}

// What comes after an answer is not taken for the next one.
func TestUnaskedAnswer(t *testing.T) {
	p := newPlace(t)
	l := p.listen(t)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 4096))
			_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"))
		}
	}()
	for range 3 {
		resp, err := p.Get("http://here/")
		if got := text(t, resp, err); got != "ok" {
			t.Error(got)
		}
	}
	if n := p.dials.Load(); n != 3 {
		t.Errorf("%d connections", n)
	}
}

func TestTogether(t *testing.T) {
	p := serve(t, echo)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			for j := range 20 {
				word := fmt.Sprint(i, "-", j)
				resp, err := p.Post("http://here/", "text/plain", strings.NewReader(word))
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err != nil || !strings.HasSuffix(string(got), " "+word) {
					t.Error(string(got), err)
				}
			}
		})
	}
	wg.Wait()
}
