package proxy

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/internal/gateway/egress"
	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
)

// world has a server outside, the gateway and its proxy in this process. Each
// sandbox may reach the name in its policy.
type world struct {
	t       *testing.T
	links   *egress.Links
	proxy   *Proxy
	outside *httptest.Server
	port    string

	mu     sync.Mutex
	events []string
	got    []string // credentials that arrived outside
	made   int      // links
	from   netip.Addr
}

// address returns an address of this machine that rules can allow.
func address(t *testing.T) netip.Addr {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
			return p.Addr()
		}
	}
	need.Thing(t, "an address of this machine", "connect it to a network")
	return netip.Addr{}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	a := address(t)
	w := &world{t: t}
	w.outside = httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		w.got = append(w.got, r.Header.Get("Authorization"))
		w.mu.Unlock()
		fmt.Fprintf(rw, "%s %s %s", r.Host, r.Header.Get("Authorization"), r.Header.Get("Proxy-Authorization"))
	}))
	l, err := net.Listen("tcp", netip.AddrPortFrom(a, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	_ = w.outside.Listener.Close()
	w.outside.Listener = l
	w.outside.StartTLS()
	t.Cleanup(w.outside.Close)
	_, w.port, _ = net.SplitHostPort(l.Addr().String())
	w.links, err = egress.NewLinks(messages.Settings{
		Hosts: map[string][]netip.Addr{"example.com": {a}, "b.example.com": {a}}, Private: []netip.Prefix{netip.PrefixFrom(a, 32)},
		Roots: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.outside.Certificate().Raw}),
	}, egress.Hooks{
		Event: func(id sandbox.ID, e egress.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, fmt.Sprintf("%s %s %s %s", id, e.Verdict, e.Kind, e.Host))
		},
		Named: func(sandbox.ID, string, uint16) {}, Ended: func(sandbox.ID) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.links.Close)
	w.proxy, err = Open(Options{
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), Link: w.link,
		Admit: func(_ context.Context, id sandbox.ID, password string, from netip.Addr) ([]byte, error) {
			w.mu.Lock()
			w.from = from
			w.mu.Unlock()
			switch password {
			case "password of " + string(id):
				return nil, nil
			case "later":
				return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "a secret of the cluster"}
			}
			return nil, &sandbox.Error{Code: sandbox.CodeDenied, Message: "no"}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.proxy.Close() })
	return w
}

var authority = sync.OnceValues(func() (key, cert []byte) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	if cert, err = x509.CreateCertificate(rand.Reader, c, c, k.Public(), k); err == nil {
		key, err = x509.MarshalPKCS8PrivateKey(k)
	}
	if err != nil {
		panic(err)
	}
	return key, cert
})

// link lets sb-a reach example.com, and sb-b reach b.example.com.
func (w *world) link(_ context.Context, id sandbox.ID, _ gateway.Known) (*gateway.Link, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	host := "example.com"
	if id != "sb-a" {
		host = "b.example.com"
	}
	key, cert := authority()
	add := messages.Add{CACert: cert, CAKey: key, Policy: messages.Policy{
		Profile: sandbox.Profile{Rules: []sandbox.Rule{{
			Name: "r", Action: sandbox.Allow, Hosts: []string{host + ":" + w.port}, Methods: []string{"GET"},
			Inject: []sandbox.Injection{{Secret: "token", Mode: sandbox.InjectBearer}},
		}}},
		Secrets: []messages.Secret{{Name: "token", Value: []byte("injected")}},
	}}
	if err := w.links.Add(id, add, os.NewFile(uintptr(fds[0]), "link")); err != nil {
		return nil, err
	}
	w.mu.Lock()
	w.made++
	w.mu.Unlock()
	return &gateway.Link{File: os.NewFile(uintptr(fds[1]), "link"), CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})}, nil
}

// client is a program of a sandbox.
func (w *world) client(id sandbox.ID, password string) *http.Client {
	_, cert := authority()
	ca, err := x509.ParseCertificate(cert)
	if err != nil {
		w.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	t := &http.Transport{
		Proxy:           http.ProxyURL(&url.URL{Scheme: "http", Host: w.proxy.Addr().String(), User: url.UserPassword(string(id), password)}),
		TLSClientConfig: &tls.Config{RootCAs: roots},
	}
	w.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, Timeout: 20 * time.Second}
}

// get returns the status and the body, or the error.
func get(c *http.Client, target string) string {
	res, err := c.Get(target)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s", res.StatusCode, body)
}

func (w *world) decided() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.events, "\n")
}

func TestProxy(t *testing.T) {
	w := newWorld(t)
	a, b := w.client("sb-a", "password of sb-a"), w.client("sb-b", "password of sb-b")
	good, other := "https://example.com:"+w.port+"/", "https://b.example.com:"+w.port+"/"
	for _, tt := range []struct {
		name   string
		client *http.Client
		target string
		want   string
	}{
		{"its name", a, good, "200 example.com:" + w.port + " Bearer ******** "},
		{"the other's own", b, other, "200 b.example.com:" + w.port + " Bearer ******** "},
		{"the other's name", a, other, "Forbidden"},
		{"a name that nobody may", b, "https://other.example:" + w.port + "/", "Forbidden"},
		{"an address", a, "https://" + w.outside.Listener.Addr().String() + "/", "Bad Gateway"},
		{"another port", a, "https://example.com:1/", "Bad Gateway"},
		{"without TLS", a, "http://b.example.com/", "403 Atoll's gateway refused b.example.com: no rule allows this name."},
		{"the proxy itself", a, "https://" + w.proxy.Addr().String() + "/", "Bad Gateway"},
		{"another's password", w.client("sb-a", "password of sb-b"), good, "Proxy Authentication Required"},
		{"another's name", w.client("sb-b", "password of sb-a"), good, "Proxy Authentication Required"},
		{"no password", w.client("sb-a", ""), "http://example.com:" + w.port + "/", "407 Atoll's gateway does not know this sandbox."},
		{"no sandbox", w.client("../sb-a", "password of ../sb-a"), good, "Proxy Authentication Required"},
		{"it cannot be asked", w.client("sb-a", "later"), "http://example.com:" + w.port + "/", "503 Atoll's gateway is not ready.\n"},
	} {
		if got := get(tt.client, tt.target); !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	if len(w.got) != 2 || w.got[0] != "Bearer injected" || w.got[1] != "Bearer injected" { // the answers were redacted
		t.Errorf("the server saw %q", w.got)
	}
	w.proxy.Disconnect("sb-b")
	if got := w.decided(); !strings.Contains(got, "sb-a allowed http example.com") || !strings.Contains(got, "sb-a denied dns b.example.com") || strings.Contains(got, "sb-b allowed http example.com") {
		t.Errorf("the gateway decided:\n%s", got)
	}
	if w.from != netip.MustParseAddr("127.0.0.1") || w.made != 2 {
		t.Errorf("it came from %v, and there were %d links", w.from, w.made)
	}
}

// A link that has ended is made again, and one of a sandbox that has ended serves
// nothing any more.
func TestProxyLinks(t *testing.T) {
	w := newWorld(t)
	a, good := w.client("sb-a", "password of sb-a"), "https://example.com:"+w.port+"/"
	if ca, err := w.proxy.Connect(t.Context(), "sb-a", nil); err != nil || !strings.Contains(string(ca), "CERTIFICATE") {
		t.Fatalf("%s, %v", ca, err)
	}
	if got := get(a, good); !strings.HasPrefix(got, "200") || w.made != 1 {
		t.Errorf("%s, with %d links", got, w.made)
	}
	w.links.Remove("sb-a")
	a.CloseIdleConnections()
	got := ""
	for deadline := time.Now().Add(20 * time.Second); !strings.HasPrefix(got, "200") && time.Now().Before(deadline); { // it learns of the end a moment later
		got = get(a, good)
	}
	if !strings.HasPrefix(got, "200") || w.made != 2 {
		t.Errorf("after the end of the link: %s, with %d links", got, w.made)
	}
	if err := w.proxy.Close(); err != nil {
		t.Error(err)
	}
	a.CloseIdleConnections()
	if got := get(a, good); strings.HasPrefix(got, "200") {
		t.Errorf("after the end of the proxy: %s", got)
	}
	for deadline := time.Now().Add(20 * time.Second); w.links.Len() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the proxy has left %d links", w.links.Len())
		}
	}
	if _, err := w.proxy.Connect(t.Context(), "sb-a", nil); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("Connect after Close: %v", err)
	}
}

// What is no request of a proxy is refused, and no connection stays open for it.
func TestProxyRefuses(t *testing.T) {
	w := newWorld(t)
	authorized := "Proxy-Authorization: Basic c2ItYTpwYXNzd29yZCBvZiBzYi1h\r\n"
	for name, tt := range map[string]struct{ text, want string }{
		"a page":          {"GET / HTTP/1.1\r\nHost: x\r\n" + authorized + "\r\n", "HTTP/1.1 400"},
		"a file":          {"GET file:///etc/passwd HTTP/1.1\r\nHost: x\r\n" + authorized + "\r\n", "HTTP/1.1 400"},
		"no port":         {"CONNECT example.com HTTP/1.1\r\nHost: example.com\r\n" + authorized + "\r\n", "HTTP/1.1 400"},
		"a strange port":  {"CONNECT example.com:x HTTP/1.1\r\nHost: example.com\r\n" + authorized + "\r\n", "HTTP/1.1 400"},
		"an invalid name": {"CONNECT exa_mple..com:443 HTTP/1.1\r\nHost: x\r\n" + authorized + "\r\n", "HTTP/1.1 502"},
		"two passwords":   {"CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic eDp5\r\n" + authorized + "\r\n", "HTTP/1.1 407"},
		"no HTTP":         {"\x16\x03\x01\x00\x05hello\r\n\r\n", "HTTP/1.1 400"},
	} {
		c, err := net.Dial("tcp", w.proxy.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = io.WriteString(c, tt.text)
		line, err := bufio.NewReader(c).ReadString('\n')
		c.Close()
		if !strings.HasPrefix(line, tt.want) {
			t.Errorf("%s: %q, %v, want %q", name, line, err, tt.want)
		}
	}
}

// Connections end with the link of their sandbox, and when its rules no longer
// allow them.
func TestProxyCuts(t *testing.T) {
	w := newWorld(t)
	for name, end := range map[string]func(){
		"disconnected": func() { w.proxy.Disconnect("sb-a") },
		"other rules": func() {
			if err := w.links.SetPolicy("sb-a", messages.Policy{}); err != nil {
				t.Error(err)
			}
		},
	} {
		if _, err := w.proxy.Connect(t.Context(), "sb-a", nil); err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", w.proxy.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprintf(c, "CONNECT example.com:%s HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic c2ItYTpwYXNzd29yZCBvZiBzYi1h\r\n\r\n", w.port)
		r := bufio.NewReader(c)
		if line, err := r.ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 200") {
			t.Fatalf("%s: %q, %v", name, line, err)
		}
		end()
		if _, err := io.Copy(io.Discard, r); os.IsTimeout(err) {
			t.Errorf("%s: the connection is still open", name)
		}
		c.Close()
	}
}
