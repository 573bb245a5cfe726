package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"testing"

	"github.com/atoll-run/atoll/internal/server"
)

// TestEitherListener serves HTTP and HTTPS, both versions of HTTP, on one
// address, and disconnects silent clients.
func TestEitherListener(t *testing.T) {
	ca, err := openCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(ca.file)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := ca.config("box.test", "*.box.test")
	config.NextProtos = []string{"h2", "http/1.1"}
	l := newEitherListener(server.Limit(tcp, 100), config)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto)
	})}
	ended := make(chan error)
	go func() { ended <- srv.Serve(l) }()
	silent, err := net.Dial("tcp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, tcp.Addr().String())
	}
	for _, c := range []struct {
		url, want string
		h2        bool
	}{
		{"http://" + tcp.Addr().String(), "HTTP/1.1", false},
		{"https://api.box.test", "HTTP/1.1", false},
		{"https://api.box.test", "HTTP/2.0", true},
		{"https://" + tcp.Addr().String(), "HTTP/2.0", true},
	} {
		transport := &http.Transport{DialContext: dial, ForceAttemptHTTP2: c.h2, TLSClientConfig: &tls.Config{RootCAs: roots}}
		r, err := (&http.Client{Transport: transport}).Get(c.url)
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
			continue
		}
		got, _ := io.ReadAll(r.Body)
		_ = r.Body.Close()
		transport.CloseIdleConnections()
		if string(got) != c.want {
			t.Errorf("%s was served by %s, want %s", c.url, got, c.want)
		}
	}
	if err := srv.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != http.ErrServerClosed {
		t.Errorf("the server ended with %v", err)
	}
	if _, err := silent.Read(make([]byte, 1)); err == nil {
		t.Error("a client that says nothing is still there")
	}
}
