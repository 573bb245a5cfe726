//go:build e2b

package e2b

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// echoServer answers HTTP requests with a description of them, and echoes
// WebSocket messages. It uses only Python's standard library.
const echoServer = `
import base64, hashlib, http.server, struct
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        key = self.headers.get('Sec-WebSocket-Key')
        if key is None:
            body = '|'.join(str(x) for x in (self.path, self.headers['Host'], self.headers.get('e2b-traffic-access-token'), self.headers.get('x-api-key'))).encode()
            self.send_response(200)
            self.send_header('Content-Length', str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        accept = base64.b64encode(hashlib.sha1((key + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11').encode()).digest()).decode()
        self.send_response(101)
        for k, v in (('Upgrade', 'websocket'), ('Connection', 'Upgrade'), ('Sec-WebSocket-Accept', accept), ('Sec-WebSocket-Protocol', 'echo')):
            self.send_header(k, v)
        self.end_headers()
        self.close_connection = True
        while True:
            head = self.rfile.read(2)
            if len(head) < 2: return
            n = head[1] & 127
            if n == 126: n, = struct.unpack('>H', self.rfile.read(2))
            elif n == 127: n, = struct.unpack('>Q', self.rfile.read(8))
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(n)))
            size = bytes([n]) if n < 126 else b'\x7e' + struct.pack('>H', n) if n < 65536 else b'\x7f' + struct.pack('>Q', n)
            self.wfile.write(head[:1] + size + data)
            if head[0] & 15 == 8: return
http.server.ThreadingHTTPServer(('127.0.0.1', 9000), H).serve_forever()
`

// byName is a client that reaches sandboxes by host name, over TLS.
type byName struct {
	*http.Client
	t    *testing.T
	key  string
	host string // of the domain, with the port
}

func newByName(t *testing.T, a *atoll) *byName {
	t.Helper()
	env := map[string]string{}
	for _, pair := range a.env {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	ca, err := os.ReadFile(env["NODE_EXTRA_CA_CERTS"])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	_, port, _ := net.SplitHostPort(env["E2B_DOMAIN"])
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, "127.0.0.1:"+port)
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &byName{&http.Client{Transport: transport, Timeout: 2 * time.Minute}, t, env["E2B_API_KEY"], env["E2B_DOMAIN"]}
}

// call sends a request to a host below the domain and checks the status.
func (c *byName) call(want int, method, host, path, body string, headers ...string) *http.Response {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, "https://"+host+"."+c.host+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || want != 0 && resp.StatusCode != want {
		c.t.Fatalf("%s %s%s: status %d, want %d: %s %v", method, host, path, resp.StatusCode, want, text, err)
	}
	resp.Body = io.NopCloser(bytes.NewReader(text))
	return resp
}

func text(r *http.Response) string {
	all, _ := io.ReadAll(r.Body)
	return string(all)
}

// serving creates a sandbox with the echo server, and returns its ID and the
// token for its ports.
func (c *byName) serving(a *atoll, spec string) (id, token string) {
	c.t.Helper()
	var made struct{ SandboxID, TrafficAccessToken string }
	r := c.call(201, "POST", "api", "/v2/sandboxes", spec, "X-API-Key", c.key)
	if err := json.NewDecoder(r.Body).Decode(&made); err != nil {
		c.t.Fatal(err)
	}
	a.run(c.t, "exec", "-d", "sb-"+strings.TrimPrefix(made.SandboxID, "sb"), "--", "python3", "-c", echoServer)
	for r.StatusCode != 200 { // wait until it listens
		r = c.call(0, "GET", "9000-"+made.SandboxID, "/", "", "E2b-Traffic-Access-Token", made.TrafficAccessToken)
	}
	return made.SandboxID, made.TrafficAccessToken
}

func TestPorts(t *testing.T) {
	a := start(t, "--e2b-domain="+domain)
	c := newByName(t, a)
	id, token := c.serving(a, `{"templateID":"base","timeout":300,"autoPause":true,"autoResume":{"enabled":true},
		"network":{"allowPublicTraffic":false,"maskRequestHost":"inside:${PORT}"}}`)
	defer c.call(204, "DELETE", "api", "/sandboxes/"+id, "", "X-API-Key", c.key)
	port := "9000-" + id

	r := c.call(200, "GET", port, "/a%2Fb?x=1", "", "E2b-Traffic-Access-Token", token, "X-API-Key", c.key)
	if got := text(r); r.ProtoMajor != 2 || got != "/a%2Fb?x=1|inside:9000|None|None" {
		t.Errorf("over HTTP/%d: %s", r.ProtoMajor, got)
	}
	c.call(403, "GET", port, "/", "")
	c.call(403, "GET", port, "/", "", "E2b-Traffic-Access-Token", "x"+token)
	c.call(502, "GET", "9001-"+id, "/", "", "E2b-Traffic-Access-Token", token)
	c.call(502, "GET", "9000-sb0000000000000", "/", "")

	t.Run("WebSocket", func(t *testing.T) { c.echo(t, port, token) })
	t.Run("wake on traffic", func(t *testing.T) {
		c.call(204, "POST", "api", "/sandboxes/"+id+"/pause", "", "X-API-Key", c.key)
		if r := c.call(200, "GET", "api", "/sandboxes/"+id, "", "X-API-Key", c.key); !strings.Contains(text(r), `"state":"paused"`) {
			t.Error("it is not paused")
		}
		c.call(403, "GET", port, "/", "") // a request without access does not resume the sandbox
		if r := c.call(200, "GET", "api", "/sandboxes/"+id, "", "X-API-Key", c.key); !strings.Contains(text(r), `"state":"paused"`) {
			t.Error("a request without access resumed it")
		}
		r := c.call(200, "GET", port, "/awake", "", "E2b-Traffic-Access-Token", token)
		if got := text(r); !strings.HasPrefix(got, "/awake|") {
			t.Errorf("it answered %s", got)
		}
	})
	t.Run("WebSocket after that", func(t *testing.T) { c.echo(t, port, token) })
}

// echo talks to the server over a WebSocket.
func (c *byName) echo(t *testing.T, port, token string) {
	plain := c.Transport.(*http.Transport).Clone()
	plain.ForceAttemptHTTP2, plain.TLSNextProto = false, map[string]func(string, *tls.Conn) http.RoundTripper{}
	plain.TLSClientConfig.NextProtos = []string{"http/1.1"}
	defer plain.CloseIdleConnections()
	address := "wss://" + port + "." + c.host + "/socket"
	opts := &websocket.DialOptions{HTTPClient: &http.Client{Transport: plain}, Subprotocols: []string{"echo"}, HTTPHeader: http.Header{}}
	if _, r, err := websocket.Dial(t.Context(), address, opts); err == nil || r == nil || r.StatusCode != 403 {
		t.Fatalf("without a token: %v, %v", r, err)
	}
	opts.HTTPHeader.Set("E2b-Traffic-Access-Token", token)
	ws, _, err := websocket.Dial(t.Context(), address, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	if ws.Subprotocol() != "echo" {
		t.Errorf("the protocol is %q", ws.Subprotocol())
	}
	ws.SetReadLimit(1 << 20)
	for _, size := range []int{0, 5, 126, 70_000} {
		said := bytes.Repeat([]byte("x"), size)
		if err := ws.Write(t.Context(), websocket.MessageBinary, said); err != nil {
			t.Fatal(err)
		}
		if _, heard, err := ws.Read(t.Context()); err != nil || !bytes.Equal(heard, said) {
			t.Fatalf("%d bytes came back as %d: %v", size, len(heard), err)
		}
	}
	if err := ws.Close(websocket.StatusNormalClosure, "done"); err != nil {
		t.Errorf("closing: %v", err)
	}
}

// securedServer serves HTTPS with a given certificate and key.
const securedServer = `
import http.server, ssl, sys
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = (self.path + '|' + self.headers['Host'] + '|' + self.connection.version()).encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
open('/tmp/pair.pem', 'w').write(sys.argv[1])
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('/tmp/pair.pem')
server = http.server.ThreadingHTTPServer(('127.0.0.1', 9443), H)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
`

// TestHTTPSPorts reaches a server that serves HTTPS with a self-signed
// certificate, at a port declared for it and at no other.
func TestHTTPSPorts(t *testing.T) {
	a := start(t, "--e2b-domain="+domain)
	c := newByName(t, a)
	id, _ := c.serving(a, `{"templateID":"base","timeout":300,"network":{"httpsPorts":[9443]}}`)
	defer c.call(204, "DELETE", "api", "/sandboxes/"+id, "", "X-API-Key", c.key)
	a.run(t, "exec", "-d", "sb-"+strings.TrimPrefix(id, "sb"), "--", "python3", "-c", securedServer, selfSigned(t))
	port := "9443-" + id
	r := c.call(0, "GET", port, "/x", "")
	for r.StatusCode == 502 { // wait until it listens
		r = c.call(0, "GET", port, "/x", "")
	}
	if got := text(r); !strings.HasPrefix(got, "/x|"+port+"."+c.host+"|TLSv1.") {
		t.Errorf("status %d: %s", r.StatusCode, got)
	}
	if got := text(c.call(200, "GET", "9000-"+id, "/plain", "")); !strings.HasPrefix(got, "/plain|") {
		t.Errorf("the other port says %s", got)
	}
}

// selfSigned returns a self-signed certificate and its key.
func selfSigned(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "inside"}, NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})) + string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
}

// TestInterpreterIsAskedOnce checks that running code opens one connection, and
// so writes one record.
func TestInterpreterIsAskedOnce(t *testing.T) {
	a := start(t, "--e2b-domain="+domain)
	c := newByName(t, a)
	var made struct{ SandboxID, EnvdAccessToken string }
	r := c.call(201, "POST", "api", "/v2/sandboxes", `{"templateID":"base","timeout":300}`, "X-API-Key", c.key)
	if err := json.NewDecoder(r.Body).Decode(&made); err != nil {
		t.Fatal(err)
	}
	own := "sb-" + strings.TrimPrefix(made.SandboxID, "sb")
	opened := func() int {
		return strings.Count(a.run(t, "events", "--op", "port.open", "--type", "attempted", "--sandbox", own, "--json"), "\n")
	}
	run := func(code string) string {
		t.Helper()
		return text(c.call(200, "POST", "49999-"+made.SandboxID, "/execute", `{"code":"`+code+`"}`, "X-Access-Token", made.EnvdAccessToken))
	}
	run("x = 41") // starts the server
	before := opened()
	for n := 1; n <= 3; n++ {
		if said := run("x + 1"); !strings.Contains(said, `"42"`) {
			t.Fatalf("it said %s", said)
		}
		if got := opened() - before; got != n {
			t.Errorf("%d connections were made by %d calls", got, n)
		}
	}
	c.call(204, "DELETE", "api", "/sandboxes/"+made.SandboxID, "", "X-API-Key", c.key)
}
