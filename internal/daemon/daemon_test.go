package daemon_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

func TestOnePerStateDirectory(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	first := m.Start(t, func(o *daemon.Options) { o.Socket = true })
	_, err := daemon.Start(t.Context(), m.Options())
	wantCode(t, err, sandbox.CodeConflict)
	if !strings.Contains(err.Error(), "as process") {
		t.Errorf("who? %v", err)
	}
	c, err := atoll.New(atoll.Options{Host: "unix://" + first.Socket()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Ping(t.Context()); err != nil {
		t.Errorf("the second harmed the first: %v", err)
	}
	create(t, c, sandbox.Spec{Name: "one"})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	wantCode(t, c.Ping(t.Context()), sandbox.CodeUnavailable)
	if _, err := os.Stat(first.Socket()); !os.IsNotExist(err) {
		t.Errorf("the socket was left: %v", err)
	}
}

// certificate is what a test server of the standard library uses.
func certificate(t *testing.T) (*tls.Config, *x509.CertPool) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return &tls.Config{Certificates: s.TLS.Certificates}, pool
}

// TestAttackOldCiphers offers only ciphers that are open to padding attacks, or
// TLS versions before 1.2.
func TestAttackOldCiphers(t *testing.T) {
	config, pool := certificate(t)
	d := daemontest.New(t).Start(t, func(o *daemon.Options) { o.Listen, o.TLS = "127.0.0.1:0", config })
	var old, good []uint16
	for _, s := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
		if strings.Contains(s.Name, "_CBC_") || s.Insecure {
			old = append(old, s.ID)
		} else {
			good = append(good, s.ID)
		}
	}
	for name, tt := range map[string]struct {
		offer *tls.Config
		ok    bool
	}{
		"CBC":     {&tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, CipherSuites: old}, false},
		"TLS 1.1": {&tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, false},
		"AEAD":    {&tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, CipherSuites: good}, true},
		"TLS 1.3": {&tls.Config{MinVersion: tls.VersionTLS13}, true},
	} {
		tt.offer.RootCAs, tt.offer.ServerName = pool, "example.com"
		c, err := tls.Dial("tcp", d.TCP().String(), tt.offer)
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			c.Close()
		}
	}
}

func TestTLS(t *testing.T) {
	config, pool := certificate(t)
	d := daemontest.New(t).Start(t, func(o *daemon.Options) { o.Listen, o.TLS = "127.0.0.1:0", config })
	k, err := daemontest.Client(t, d).Admin().CreateKey(t.Context(), operator.NewKey{Verbs: []string{"admin"}})
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "example.com"}}
	defer transport.CloseIdleConnections()
	dial := func(key string) *atoll.Client {
		c, err := atoll.New(atoll.Options{Host: "https://" + d.TCP().String(), Key: key, Transport: transport})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	s := create(t, dial(k.Token), sandbox.Spec{Name: "one"})
	p, err := s.Exec(t.Context(), sandbox.Command{Args: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_, _ = io.WriteString(p.Stdin(), "over TLS")
	_ = p.Stdin().Close()
	if out, err := io.ReadAll(p.Stdout()); err != nil || string(out) != "over TLS" {
		t.Errorf("%q %v", out, err)
	}
	for _, key := range []string{"", "nonsense"} {
		_, err := dial(key).Get(t.Context(), "one")
		wantCode(t, err, sandbox.CodeUnauthorized)
	}
	plain, err := atoll.New(atoll.Options{Host: "http://" + d.TCP().String(), Key: k.Token})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := plain.Get(t.Context(), "one"); err == nil {
		t.Error("it answers in the clear")
	}
}

func TestListenIsSafe(t *testing.T) {
	m := daemontest.New(t)
	for _, o := range []daemon.Options{{Listen: "127.0.0.1:0"}, {Listen: "0.0.0.0:0", Plain: true}, {Listen: ":0", Plain: true}, {Listen: "nonsense"}} {
		opts := m.Options()
		opts.Listen, opts.Plain = o.Listen, o.Plain
		_, err := daemon.Start(t.Context(), opts)
		wantCode(t, err, sandbox.CodeInvalid)
	}
	m.Start(t, nil) // the attempts left nothing that is in the way
}

// Requests that no library of ours would send.
func TestHostileRequests(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	create(t, daemontest.Client(t, d), sandbox.Spec{Name: "one"})
	transport := d.Memory().Transport()
	defer transport.CloseIdleConnections()
	const sb = "/v1/sandboxes/one"
	deep := strings.Repeat(`{"labels":`, 20_000)
	tests := []struct {
		name, method, path, body string
		want                     int
	}{
		{"no such resource", "GET", "/v2", "", 404},
		{"a path that climbs", "GET", "/v1/sandboxes/..%2f..%2fetc", "", 400},
		{"a long name", "GET", "/v1/sandboxes/" + strings.Repeat("a", 5000), "", 400},
		{"no body", "POST", "/v1/sandboxes", "", 400},
		{"not JSON", "POST", "/v1/sandboxes", "{", 400},
		{"deep JSON", "POST", "/v1/sandboxes", deep, 400},
		{"a huge body", "POST", "/v1/sandboxes", `{"name":"` + strings.Repeat("x", 5<<20) + `"}`, 413},
		{"an unknown field", "POST", "/v1/sandboxes", `{"privileged":true}`, 400},
		{"a wrong type", "POST", "/v1/sandboxes", `{"name":7}`, 400},
		{"an id of its own", "POST", "/v1/sandboxes", `{"id":"sb-mine"}`, 400},
		{"a negative limit", "GET", "/v1/sandboxes?limit=-1", "", 400},
		{"a made-up cursor", "GET", "/v1/sandboxes?cursor=xyz", "", 400},
		{"a label without a value", "GET", "/v1/sandboxes?label=x", "", 400},
		{"no command", "POST", sb + "/exec", `{}`, 400},
		{"a NUL", "POST", sb + "/exec", `{"args":["a\u0000b"]}`, 400},
		{"two commands", "POST", sb + "/exec", `{"args":["a"],"shell":"b"}`, 400},
		{"a terminal without a stream", "POST", sb + "/exec", `{"shell":"a","tty":{"cols":1,"rows":1}}`, 400},
		{"a stream without a WebSocket", "GET", sb + "/exec", "", 426},
		{"a relative path", "GET", sb + "/files?path=etc", "", 400},
		{"no path", "GET", sb + "/files", "", 400},
		{"a directory", "GET", sb + "/files?path=/", "", 400},
		{"beyond the end", "GET", sb + "/files/list?path=/&depth=x", "", 400},
		{"a mode that is none", "PUT", sb + "/files?path=/x&mode=99999", "x", 400},
		{"a signal that is none", "POST", sb + "/processes/p1/signal", `{"signal":900}`, 400},
		{"a signal to nobody", "POST", sb + "/processes/p9/signal", `{"signal":9}`, 404},
		{"the whole tree", "DELETE", sb + "/files?path=/&recursive=true", "", 400},
		{"a wrong method", "PROPFIND", sb, "", 405},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(context.Background(), tt.method, "http://atoll"+tt.path, strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			resp, err := transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			text, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != tt.want {
				t.Errorf("%d: %.300s", resp.StatusCode, text)
			}
			if resp.Header.Get("Content-Type") != "application/problem+json" || !bytes.Contains(text, []byte(`"code":"`)) {
				t.Errorf("no problem: %s %.300s", resp.Header.Get("Content-Type"), text)
			}
		})
	}
}

// A refused handshake gets an error like other requests.
func TestBadHandshakes(t *testing.T) {
	d := daemontest.New(t).Start(t, nil)
	create(t, daemontest.Client(t, d), sandbox.Spec{Name: "one"})
	transport := d.Memory().Transport()
	defer transport.CloseIdleConnections()
	good := map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
	}
	for header, bad := range map[string]string{"Connection": "close", "Sec-WebSocket-Version": "12", "Sec-WebSocket-Key": "short"} {
		for _, path := range []string{"/exec", "/processes/p1/attach"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://atoll/v1/sandboxes/one"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range good {
				r.Header.Set(k, v)
			}
			r.Header.Set(header, bad)
			resp, err := transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			var told struct {
				Status             int
				Code, Detail, Hint string
			}
			err = json.NewDecoder(resp.Body).Decode(&told)
			_ = resp.Body.Close()
			if err != nil || resp.Header.Get("Content-Type") != "application/problem+json" || resp.StatusCode/100 != 4 {
				t.Errorf("%s: %s: %d %s, %v", path, header, resp.StatusCode, resp.Header, err)
			}
			if told.Status != resp.StatusCode || told.Code != "invalid" || !strings.Contains(told.Detail, "WebSocket") || told.Hint == "" {
				t.Errorf("%s: %s: %+v", path, header, told)
			}
		}
	}
}

// Secret values are in no response and no file of the daemon.
func TestSecretsStayOut(t *testing.T) {
	m := daemontest.New(t)
	var logged bytes.Buffer
	d := m.Start(t, func(o *daemon.Options) { o.Logger = logTo(&logged) })
	c := daemontest.Client(t, d)
	const canary = "canary-5c1f2a"
	s := create(t, c, sandbox.Spec{Name: "one", Env: map[string]string{"TOKEN": canary}})
	env := map[string]string{"TOKEN": canary}
	_, _ = s.Run(t.Context(), sandbox.Command{Shell: "exit 1", Env: env}, atoll.RunOptions{Input: []byte(canary)})
	_, err := s.Run(t.Context(), sandbox.Command{Args: []string{"x"}, Env: map[string]string{"BAD=NAME": canary}}, atoll.RunOptions{})
	if err == nil || strings.Contains(err.Error(), canary) {
		t.Errorf("got %v", err)
	}
	_, _ = s.Files().Write(t.Context(), "/file", strings.NewReader(canary), atoll.WriteOptions{})
	k, err := c.Admin().CreateKey(t.Context(), operator.NewKey{Verbs: []string{"read"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	found := logged.String()
	entries, err := os.ReadDir(m.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if text, err := os.ReadFile(m.Dir + "/" + e.Name()); err == nil {
			found += string(text)
		}
	}
	if len(found) < 10_000 {
		t.Fatalf("only %d bytes were looked at", len(found))
	}
	if strings.Contains(found, canary) || strings.Contains(found, k.Token) {
		t.Error("a secret was written down")
	}
}
