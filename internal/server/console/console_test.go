package console

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// keys accepts one code and one key.
type keys struct{ ended []string }

func (k *keys) Redeem(_ context.Context, code string) (string, error) {
	if code != "good" {
		return "", &sandbox.Error{Code: sandbox.CodeUnauthorized, Message: "no"}
	}
	return "atoll_of-a-link", nil
}

func (k *keys) Check(_ context.Context, token string) error {
	if token != "atoll_key" {
		return &sandbox.Error{Code: sandbox.CodeUnauthorized, Message: "no"}
	}
	return nil
}

func (k *keys) End(_ context.Context, token string) error {
	k.ended = append(k.ended, token)
	return nil
}

func get(h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestFiles(t *testing.T) {
	h := New(&keys{})
	page := get(h, Root, "Accept-Encoding", "gzip")
	if page.Code != 200 || page.Header().Get("Content-Encoding") != "gzip" {
		t.Fatalf("the page: %d, encoding %q", page.Code, page.Header().Get("Content-Encoding"))
	}
	plain := get(h, Root).Body.String()
	if !strings.Contains(plain, "<title>Atoll</title>") {
		t.Fatalf("without gzip: %.100s", plain)
	}
	for name, want := range map[string]string{
		"X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
		"Cross-Origin-Opener-Policy": "same-origin", "Cache-Control": "no-cache",
	} {
		if got := page.Header().Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	csp := page.Header().Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'self' 'wasm-unsafe-eval';", "frame-ancestors 'none'", "connect-src 'self';", "base-uri 'none'"} {
		if !strings.Contains(csp, want) {
			t.Errorf("the policy %q lacks %q", csp, want)
		}
	}
	if got := get(h, Root, "If-None-Match", page.Header().Get("ETag")); got.Code != http.StatusNotModified {
		t.Errorf("a page that the browser has: %d, want 304", got.Code)
	}
	found := regexp.MustCompile(`(?:src|href)="\./(assets/[^"]+)"`).FindAllStringSubmatch(plain, -1)
	if len(found) < 2 {
		t.Fatalf("the page names no scripts: %s", plain)
	}
	first := page.Body.Len()
	for _, m := range found {
		f := get(h, Root+m[1], "Accept-Encoding", "gzip")
		if f.Code != 200 || !strings.Contains(f.Header().Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %d, caching %q", m[1], f.Code, f.Header().Get("Cache-Control"))
		}
		first += f.Body.Len()
	}
	if first > 300<<10 {
		t.Errorf("the first load has %d bytes, want at most 300 KiB", first)
	}
	if got := get(h, Root+"../secret"); got.Code != http.StatusNotFound {
		t.Errorf("a file outside: %d", got.Code)
	}
	if got := get(h, Root+"nothing.js"); got.Code != http.StatusNotFound {
		t.Errorf("a missing file: %d", got.Code)
	}
	if browser := httptest.NewRequest(http.MethodGet, "/", nil); h.Match(browser) {
		t.Error("a program's request for the root is taken for a browser's")
	}
	if got := get(h, "/", "Accept", "text/html"); got.Code != http.StatusTemporaryRedirect || got.Header().Get("Location") != Root {
		t.Errorf("the root leads to %q with %d", got.Header().Get("Location"), got.Code)
	}
}

// The pages make no request to another origin and have no scripts of their own.
func TestFilesAreOurs(t *testing.T) {
	total := int64(0)
	err := fs.WalkDir(dist, "dist", func(name string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			info, err := e.Info()
			if err != nil {
				return err
			}
			total += info.Size()
		}
		if err != nil || e.IsDir() || !strings.HasSuffix(name, ".html.gz") {
			return err
		}
		f, err := dist.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		z, err := gzip.NewReader(f)
		if err != nil {
			return err
		}
		text, err := io.ReadAll(z)
		if regexp.MustCompile(`<script[^>]*>[^<]`).Match(text) || strings.Contains(string(text), "http") {
			t.Errorf("%s has an inline script or another origin: %s", name, text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if total > 1500<<10 {
		t.Errorf("all files have %d bytes, want at most 1.5 MB", total)
	}
}

// The committed build was made from the sources in this checkout.
func TestBuildIsCurrent(t *testing.T) {
	const home = "../../../console"
	text, err := dist.ReadFile("dist/sources.json")
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]string
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	have := 0
	for _, dir := range []string{"src", "public"} {
		err := filepath.WalkDir(filepath.Join(home, dir), func(name string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				have++
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if have += 3; have != len(want) {
		t.Errorf("there are %d sources, and the build is of %d; run: make console", have, len(want))
	}
	for name, sum := range want {
		source, err := os.ReadFile(filepath.Join(home, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := sha256.Sum256(source); hex.EncodeToString(got[:]) != sum {
			t.Errorf("console/%s was changed since the console was built; run: make console", name)
		}
	}
}

func sign(h http.Handler, body string) (*httptest.ResponseRecorder, *http.Cookie, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, Root+"session", strings.NewReader(body)))
	var out struct{ Half string }
	_ = json.Unmarshal(w.Body.Bytes(), &out)
	for _, c := range w.Result().Cookies() {
		return w, c, out.Half
	}
	return w, nil, out.Half
}

func TestSignIn(t *testing.T) {
	for body, want := range map[string]string{
		`{"code":"good"}`: "atoll_of-a-link", `{"key":" atoll_key "}`: "atoll_key",
		`{"code":"bad"}`: "", `{"key":"bad"}`: "", `{}`: "", `{"code":"good","key":"atoll_key"}`: "", `nonsense`: "",
	} {
		k := &keys{}
		h := New(k)
		w, c, half := sign(h, body)
		if want == "" {
			if w.Code < 400 || c != nil || half != "" {
				t.Errorf("%s: %d, cookie %v", body, w.Code, c)
			}
			continue
		}
		if c == nil || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Domain != "" {
			t.Fatalf("%s: the cookie is %v", body, c)
		}
		if strings.Contains(c.Value, want) || strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: the key is readable", body)
		}
		r := httptest.NewRequest(http.MethodDelete, Root+"session", nil)
		r.AddCookie(c)
		r.Header.Set(headerName, half)
		if got := Token(r); got != want {
			t.Errorf("%s: the token is %q, want %q", body, got, want)
		}
		h.ServeHTTP(httptest.NewRecorder(), r)
		if len(k.ended) != 1 || k.ended[0] != want {
			t.Errorf("%s: signing out ended %q", body, k.ended)
		}
	}
}

// TestAttackSlowSignIn sends a key byte by byte. Nobody has signed in yet, so
// the connection must not stay open.
func TestAttackSlowSignIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		l := &oneConn{conn: far, done: make(chan struct{})}
		s := &http.Server{Handler: New(&keys{})}
		served := make(chan error)
		go func() { served <- s.Serve(l) }()
		began := time.Now()
		var writer sync.WaitGroup
		defer writer.Wait()
		writer.Go(func() {
			fmt.Fprintf(near, "POST %ssession HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n\r\n", Root)
			for {
				if _, err := near.Write([]byte("x")); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		})
		resp, err := http.ReadResponse(bufio.NewReader(near), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if took := time.Since(began); resp.StatusCode != http.StatusBadRequest || took > time.Minute {
			t.Errorf("%s after %s", resp.Status, took)
		}
		_ = near.Close()
		_ = s.Close()
		<-served
	})
}

// oneConn is a listener for one connection.
type oneConn struct {
	conn net.Conn
	once sync.Once
	done chan struct{}
}

func (l *oneConn) Accept() (c net.Conn, err error) {
	if c, l.conn = l.conn, nil; c != nil {
		return c, nil
	}
	<-l.done
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

// Neither half of the credentials is of use without the other.
func TestAttackHalves(t *testing.T) {
	cookie, half := seal("atoll_key")
	other, otherHalf := seal("atoll_key")
	request := func(cookie, half, protocol string) string {
		r := httptest.NewRequest(http.MethodGet, "/v1/sandboxes", nil)
		if cookie != "" {
			r.AddCookie(&http.Cookie{Name: cookieName, Value: cookie})
		}
		if half != "" {
			r.Header.Set(headerName, half)
		}
		if protocol != "" {
			r.Header.Set("Sec-WebSocket-Protocol", protocol)
		}
		return Token(r)
	}
	if request(cookie, half, "") != "atoll_key" || request(cookie, "", "atoll, "+protocolPrefix+half) != "atoll_key" {
		t.Fatal("both halves together are refused")
	}
	for name, got := range map[string]string{
		"the cookie alone": request(cookie, "", ""), "the half alone": request("", half, ""),
		"another page's half": request(cookie, otherHalf, ""), "another page's cookie": request(other, half, ""),
		"the cookie as a half": request(cookie, cookie, ""), "an empty half": request(cookie, "", "atoll, "+protocolPrefix),
		"a long half": request(cookie, strings.Repeat("A", 1<<20), ""), "a changed cookie": request("A"+cookie[1:]+"A", half, ""),
	} {
		if got != "" {
			t.Errorf("%s gives %q", name, got)
		}
	}
}

func FuzzUnseal(f *testing.F) {
	cookie, half := seal("atoll_key")
	f.Add(cookie, half)
	f.Add("", "")
	f.Fuzz(func(t *testing.T, c, h string) {
		token, err := unseal(c, h)
		if (err == nil) != (c == cookie && h == half) && err == nil && token != "atoll_key" {
			t.Errorf("%q and %q give %q", c, h, token)
		}
	})
}
