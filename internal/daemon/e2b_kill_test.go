package daemon_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// byNameClient connects to a daemon under names of a domain, over TLS.
func byNameClient(t *testing.T, m *daemontest.Machine, d *daemon.Daemon, http2 bool) *http.Client {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(m.Dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", d.E2B().String())
		},
		Protocols: new(http.Protocols),
	}
	transport.Protocols.SetHTTP1(!http2)
	transport.Protocols.SetHTTP2(http2)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// TestE2BKilledUnderStreams kills sandboxes while commands are being followed.
// An SDK whose stream is cut asks whether the sandbox is running, and reports a
// timeout only if it is not.
func TestE2BKilledUnderStreams(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	d := m.Start(t, func(o *daemon.Options) { o.E2B.Listen, o.E2B.Domain = "127.0.0.1:0", "box.test" })
	k, err := daemontest.Client(t, d).Admin().CreateKey(t.Context(), operator.NewKey{Verbs: []string{"read", "exec", "write"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, http2 := range []bool{true, false} {
		name := map[bool]string{true: "HTTP 2", false: "HTTP 1"}[http2]
		t.Run(name, func(t *testing.T) {
			c := byNameClient(t, m, d, http2)
			for range 20 {
				killUnderStreams(t, e2bByName{t, c, envd.Key(k.Token)})
			}
		})
	}
}

// e2bByName calls the API of E2B under the names of a domain.
type e2bByName struct {
	t   *testing.T
	c   *http.Client
	key string
}

func (c e2bByName) do(method, host, path, body string, headers ...string) *http.Response {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, "https://"+host+".box.test"+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.c.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp
}

func killUnderStreams(t *testing.T, c e2bByName) {
	t.Helper()
	made := c.do("POST", "api", "/v2/sandboxes", `{"templateID":"base"}`, "X-API-Key", c.key)
	fields := decoded(t, made.Body)
	id, token := fields["sandboxID"].(string), fields["envdAccessToken"].(string)
	const followers = 4
	start := `{"process":{"cmd":"sleep","args":["1000"]},"stdin":false}`
	frame := string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(start)))) + start
	killed := make(chan struct{})
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	for range followers {
		resp := c.do("POST", "49983-"+id, "/process.Process/Start", frame, "X-Access-Token", token,
			"Authorization", "Basic cm9vdDo=", // the fake has no user but root
			"Content-Type", "application/connect+json", "Connect-Protocol-Version", "1")
		f := frames{t, resp.Body}
		f.until("start")
		wg.Go(func() {
			defer resp.Body.Close()
			if _, err := io.Copy(io.Discard, resp.Body); err == nil {
				t.Error("the stream came to its end")
			}
			for answered := false; !answered; { // until it is killed, and once more
				select {
				case <-killed:
					answered = true
				default:
				}
				health := c.do("GET", "49983-"+id, "/health", "")
				health.Body.Close()
				if health.StatusCode != http.StatusBadGateway {
					t.Errorf("after the stream was cut, GET /health answers %d", health.StatusCode)
					return
				}
			}
		})
	}
	gone := c.do("DELETE", "api", "/sandboxes/"+id, "", "X-API-Key", c.key)
	gone.Body.Close()
	close(killed)
	wg.Wait()
	if gone.StatusCode != http.StatusNoContent {
		t.Errorf("DELETE: %d", gone.StatusCode)
	}
}

// decoded reads a JSON object and closes its source.
func decoded(t *testing.T, body io.ReadCloser) (fields map[string]any) {
	t.Helper()
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&fields); err != nil {
		t.Fatal(err)
	}
	return fields
}
