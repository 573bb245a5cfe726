package drivertest

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// previewed is the answer of the server in these cases.
const previewed = "shown by a preview"

// previewServer is an HTTP server on a port that services do not reserve.
const previewServer = `import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"` + previewed + `")
    def log_message(self, *args): pass
s = http.server.ThreadingHTTPServer(("", 0), H)
print(s.server_address[1], flush=True)
s.serve_forever()
`

// previewer returns the sandbox's driver.Previewer.
func (sb *testSandbox) previewer() driver.Previewer {
	p, ok := driver.As[driver.Previewer](sb.inst)
	if !ok {
		sb.Fatalf("previews is declared, but the instance is no Previewer")
	}
	return p
}

// web starts an HTTP server that ends with the case, and returns its port.
func (sb *testSandbox) web() uint16 {
	p := sb.start(sandbox.Command{Args: sb.python(previewServer)})
	port, err := strconv.ParseUint(strings.TrimSpace(sb.readLines(p.Stdout()).next()), 10, 16)
	if err != nil {
		sb.Fatalf("the server inside does not say its port: %v", err)
	}
	return uint16(port)
}

// preview requests a preview and checks that it has the requested properties.
func (sb *testSandbox) preview(port uint16, public bool) sandbox.Preview {
	p, err := sb.previewer().Preview(sb.ctx, sandbox.PreviewRequest{Port: port, Public: public})
	if err != nil {
		sb.Fatalf("Preview: %v", sb.vet(err))
	}
	if p.Port != port || p.Public != public || p.URL == "" || (p.Token == "") != public || (p.Header == "") != public {
		sb.Errorf("Preview of port %d, public %v: port %d, public %v, address %q, header %q, token: %v", port, public, p.Port, p.Public, p.URL, p.Header, p.Token != "")
	}
	return p
}

// visitor resolves names below localhost like browsers.
var visitor = func() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DisableKeepAlives = true
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if host, port, err := net.SplitHostPort(address); err == nil && strings.HasSuffix(host, ".localhost") {
			address = net.JoinHostPort("localhost", port)
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	return &http.Client{Transport: t, Timeout: time.Minute}
}()

// shown reports whether the server inside answers at an address.
func (t *caseT) shown(p sandbox.Preview, token string) bool {
	r, err := http.NewRequestWithContext(t.ctx, http.MethodGet, p.URL, nil)
	if err != nil {
		t.Fatalf("the address %q: %v", p.URL, err)
	}
	if token != "" {
		r.Header.Set(p.Header, token)
	}
	resp, err := visitor.Do(r)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return err == nil && resp.StatusCode == http.StatusOK && string(text) == previewed
}

// wantShown checks whether the server inside answers.
func (t *caseT) wantShown(when string, want bool, p sandbox.Preview, token string) {
	if got := t.shown(p, token); got != want {
		t.Errorf("%s: the server inside answers: %v, want %v", when, got, want)
	}
}

// wantPreviews checks the list of previews.
func (sb *testSandbox) wantPreviews(want ...sandbox.Preview) {
	all, err := sb.previewer().Previews(sb.ctx)
	if err != nil {
		sb.Fatalf("Previews: %v", sb.vet(err))
	}
	ok := len(all) == len(want)
	for i := range want {
		ok = ok && all[i] == sandbox.Preview{Port: want[i].Port, URL: want[i].URL, Public: want[i].Public}
	}
	if !ok {
		sb.Errorf("Previews: %d, want %d, with addresses and without tokens", len(all), len(want))
	}
}

var previewCases = []testCase{
	{"previews/token", capPreviews, func(t *caseT) {
		b := t.fresh()
		port := b.web()
		b.wantPreviews()
		p := b.preview(port, false)
		t.wantShown("with the token", true, p, p.Token)
		t.wantShown("without a token", false, p, "")
		t.wantShown("with another token", false, p, p.Token+"x")
		b.wantPreviews(p)
		if again := b.preview(port, false); again.URL != p.URL {
			t.Errorf("the address is %s, and then %s", p.URL, again.URL)
		}
		for range 2 {
			t.ok("Unpreview", b.previewer().Unpreview(t.ctx, port))
		}
		t.wantShown("after Unpreview", false, p, p.Token)
		b.wantPreviews()
		p = b.preview(port, false)
		t.wantShown("with a new token", true, p, p.Token)
	}},
	{"previews/public", capPreviews, func(t *caseT) {
		b := t.fresh()
		port := b.web()
		p := b.preview(port, true)
		t.wantShown("of a public port", true, p, "")
		b.wantPreviews(p)
		p = b.preview(port, false)
		t.wantShown("of one that is not public any more", false, p, "")
		t.wantShown("with the token", true, p, p.Token)
	}},
	{"previews/destroyed", capPreviews, func(t *caseT) {
		b := t.fresh()
		port := b.web()
		p := b.preview(port, true)
		t.ok("Destroy", b.inst.Destroy(t.ctx))
		t.wantShown("of a sandbox that is destroyed", false, p, "")
		_, err := b.previewer().Preview(t.ctx, sandbox.PreviewRequest{Port: port})
		t.wantCode("Preview of a sandbox that is destroyed", err, sandbox.CodeGone)
		t.wantCode("Unpreview of a sandbox that is destroyed", b.previewer().Unpreview(t.ctx, port), sandbox.CodeGone)
	}},
}
