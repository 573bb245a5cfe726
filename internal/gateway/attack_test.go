package gateway_test

import (
	"bufio"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/sandbox"
)

// withToken is a policy that sends a secret to hosts.
func withToken(rule sandbox.Rule) gateway.Policy {
	rule.Action, rule.Inject = sandbox.Allow, []sandbox.Injection{{Secret: "token", Mode: sandbox.InjectBearer}}
	p := profile(rule)
	p.Secrets = secrets()
	return p
}

// TestAttackReflectedSecrets has a server send the secret it was given back in
// every part of a response other than its body.
func TestAttackReflectedSecrets(t *testing.T) {
	w := newWorld(t)
	places := map[string]http.HandlerFunc{
		"early-hints.test": func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Link", r.Header.Get("Authorization"))
			rw.WriteHeader(http.StatusEarlyHints)
		},
		"processing.test": func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("X-Echo", r.Header.Get("Authorization"))
			rw.WriteHeader(http.StatusProcessing)
		},
		"interim-name.test": func(rw http.ResponseWriter, r *http.Request) {
			rw.Header()[bearer(r)] = []string{"here"}
			rw.WriteHeader(http.StatusEarlyHints)
		},
		"name.test": func(rw http.ResponseWriter, r *http.Request) { rw.Header()[bearer(r)] = []string{"here"} },
		"part-of-name.test": func(rw http.ResponseWriter, r *http.Request) {
			rw.Header()["X-"+strings.ToUpper(bearer(r))+"-Y"] = []string{"here"}
		},
		"trailer.test": func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set(http.TrailerPrefix+"X-Echo", bearer(r))
		},
		"trailer-name.test": func(rw http.ResponseWriter, r *http.Request) {
			rw.Header()[http.TrailerPrefix+bearer(r)] = []string{"here"}
		},
		"announced-trailer.test": func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Trailer", bearer(r))
			rw.WriteHeader(http.StatusOK)
			rw.Header()[http.CanonicalHeaderKey(bearer(r))] = []string{"here"}
		},
	}
	var hosts []string
	for host, reflect := range places {
		hosts = append(hosts, host)
		w.handle(host, func(rw http.ResponseWriter, r *http.Request) {
			if bearer(r) == "" {
				w.violate("the secret did not reach " + host)
			}
			reflect(rw, r)
			_, _ = io.WriteString(rw, "the end")
		})
	}
	w.lead(w.good, hosts...)
	b := w.rig().sandbox("reflected", withToken(sandbox.Rule{Hosts: hosts}))
	for _, host := range hosts {
		for _, version := range []string{"--http1.1", "--http2"} {
			t.Run(host+version, func(t *testing.T) {
				out, code := b.sh("curl -sSi --raw " + version + " https://" + host + "/ 2>&1")
				if low := strings.ToLower(out); code != 0 || strings.Contains(low, canary) || !strings.Contains(out, "the end") {
					t.Errorf("the sandbox got %s", out)
				}
				if strings.Contains(out, " 103") || strings.Contains(out, " 102") {
					t.Errorf("an interim response was passed on: %s", out)
				}
			})
		}
	}
	if _, violations, _ := w.taken(); len(violations) > 0 {
		t.Error(violations)
	}
}

func bearer(r *http.Request) string {
	return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
}

// webSocketAttacks are requests that try to send another protocol, or unchecked
// requests, to a server.
var webSocketAttacks = []struct{ name, head, then string }{
	{"h2c next to it", "Upgrade: h2c\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n", rawRequest},
	{"h2c behind it", "Upgrade: websocket\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n", rawRequest},
	{"a list that begins with h2c", "Upgrade: h2c, websocket\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n", rawRequest},
	{"a list that ends with h2c", "Upgrade: websocket, h2c\r\nConnection: Upgrade\r\n", rawRequest},
	{"another protocol", "Upgrade: foo/1, websocket\r\nConnection: Upgrade\r\n", rawRequest},
	{"a version of it", "Upgrade: websocket/1\r\nConnection: Upgrade\r\n", rawRequest},
	{"settings of HTTP/2", "Upgrade: websocket\r\nConnection: Upgrade\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n", rawRequest},
	{"no key", "Upgrade: websocket\r\nConnection: Upgrade\r\nNo-Key: 1\r\n", rawRequest},
	{"a request in place of frames", "Upgrade: websocket\r\nConnection: Upgrade\r\n", rawRequest},
	{"HTTP/2 in place of frames", "Upgrade: websocket\r\nConnection: Upgrade\r\n", "PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n/forbidden"},
	{"a frame that is not masked", "Upgrade: websocket\r\nConnection: Upgrade\r\n", "\\x81\\x0a/forbidden"},
	{"a request after the close", "Upgrade: websocket\r\nConnection: Upgrade\r\n", "\\x88\\x80abcd" + rawRequest},
}

const rawRequest = "GET /forbidden HTTP/1.1\\r\\nHost: evil.test\\r\\n\\r\\n"

// TestAttackWebSocketUpgrade lets a program and a server cooperate to use
// another protocol where WebSockets are allowed.
func TestAttackWebSocketUpgrade(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "ws.test", "plain.test")
	w.handle("ws.test", w.eager)
	w.handle("plain.test", w.eager)
	p := withToken(sandbox.Rule{Hosts: []string{"ws.test"}, WebSocket: true})
	p.Profile.Rules = append(p.Profile.Rules, sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"plain.test"}, WebSocket: true})
	b := w.rig().sandbox("upgrade", p)
	t.Run("attacks", func(t *testing.T) {
		for _, a := range webSocketAttacks {
			t.Run(a.name, func(t *testing.T) {
				t.Parallel()
				key := "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
				if strings.Contains(a.head, "No-Key") {
					key = ""
				}
				out, _ := b.sh(fmt.Sprintf(`python3 - <<'EOF'
import ssl, socket
s = ssl.create_default_context().wrap_socket(socket.create_connection(("ws.test", 443), 20), server_hostname="ws.test")
s.sendall(%q.encode())
try:
    print(s.recv(65536))
    s.sendall(b"%s")
    s.settimeout(5)
    while piece := s.recv(65536): print(piece)
except (ConnectionError, ssl.SSLError) as e: print(e)
EOF`, "GET / HTTP/1.1\r\nHost: ws.test\r\nSec-WebSocket-Version: 13\r\n"+key+a.head+"\r\n", a.then))
				if strings.Contains(strings.ToLower(out), canary) {
					t.Errorf("the sandbox got the secret: %s", out)
				}
				if strings.Contains(out, " 101 ") && strings.Contains(out, "TimeoutError") {
					t.Errorf("the connection stays open: %s", out)
				}
			})
		}
	})
	if _, violations, _ := w.taken(); len(violations) > 0 {
		t.Errorf("the server got %s", violations)
	}
	t.Run("no upgrade asked for", func(t *testing.T) {
		out, _ := b.sh(fmt.Sprintf(`python3 - <<'EOF'
import socket
s = socket.create_connection(("plain.test", 80), 20)
s.sendall(b"GET / HTTP/1.1\r\nHost: plain.test\r\n\r\n")
try:
    print(s.recv(65536))
    s.sendall(b"%s")
    print(s.recv(65536))
except ConnectionError as e: print(e)
EOF`, rawRequest))
		if _, violations, _ := w.taken(); len(violations) > 0 || !strings.Contains(out, "egress_failed") {
			t.Errorf("the server got %s; the sandbox got %s", violations, out)
		}
	})
	t.Run("frames pass", func(t *testing.T) {
		if out, _ := b.sh(websocketScript); !strings.Contains(out, "hello") {
			t.Error(out)
		}
	})
}

// eager is a server that switches to any offered protocol, even if none is
// offered. It echoes one frame and records other requests.
func (w *world) eager(rw http.ResponseWriter, r *http.Request) {
	offered := strings.Join(r.Header["Upgrade"], ", ")
	if offered != "" && offered != "websocket" || r.Header.Get("Http2-Settings") != "" {
		w.violate(fmt.Sprintf("an offer of %q, settings %q", offered, r.Header.Get("Http2-Settings")))
	}
	conn, in, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	sum := sha1.Sum([]byte(r.Header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	fmt.Fprintf(conn, "HTTP/1.1 101 %s\r\nConnection: Upgrade\r\n", bearer(r))
	if offered != "" {
		fmt.Fprintf(conn, "Upgrade: %s\r\nSec-WebSocket-Accept: %s\r\n", offered, base64.StdEncoding.EncodeToString(sum[:]))
	}
	fmt.Fprint(conn, "\r\n")
	w.noticing(conn, in.Reader)
}

// noticing answers a frame of five bytes, and reads to the end.
func (w *world) noticing(conn net.Conn, in *bufio.Reader) {
	all := make([]byte, 0, 4096)
	for len(all) < cap(all) {
		n, err := in.Read(all[len(all):cap(all)])
		all = all[:len(all)+n]
		if len(all) == 11 && all[1] == 0x80|5 {
			text := all[6:11]
			for i := range text {
				text[i] ^= all[2+i%4]
			}
			_, _ = conn.Write(append([]byte{0x81, 5}, text...))
			return
		}
		if strings.Contains(string(all), "forbidden") {
			w.violate(fmt.Sprintf("%q behind a 101", all))
			return
		}
		if err != nil {
			return
		}
	}
}

// TestAttackPublicAddressOfTheMachine lets a sandbox that may reach all public
// addresses try services of the machine at public addresses that it got while
// the gateway was running.
func TestAttackPublicAddressOfTheMachine(t *testing.T) {
	w := newWorld(t)
	public, allowed := netip.MustParseAddr("9.9.9.10"), netip.MustParseAddr("9.9.9.11")
	w.lead(public, "host.test")
	settings := w.settings()
	settings.Private = append(settings.Private, netip.PrefixFrom(allowed, 32))
	r := newRigIn(t, settings, w.outside.do)
	p := profile(sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"host.test", "9.9.9.0/24"}})
	everything := gateway.Policy{Profile: sandbox.Profile{Default: sandbox.Allow}}
	sandboxes := map[string]*rigSandbox{"by-rule": r.sandbox("by-rule", p), "by-default": r.sandbox("by-default", everything)}
	w.outside.do(func() {
		for i, a := range []netip.Addr{public, allowed} {
			if err := addAddress(3+i, a); err != nil {
				t.Fatal(err)
			}
			l := w.listen(a, 8080)
			if a == public {
				w.trap(l)
				w.trap(w.listen(a, 80))
			} else {
				w.web(w.listen(a, 80), nil)
			}
		}
	})
	for id, b := range sandboxes {
		for _, url := range []string{"http://9.9.9.10/", "http://9.9.9.10:8080/", "http://host.test/", "http://host.test:8080/", "http://[::ffff:9.9.9.10]/"} {
			if out, code := b.sh("curl -sSg --max-time 20 " + url); code == 0 && !strings.Contains(out, "egress_") {
				t.Errorf("%s, %s: %s", id, url, out)
			}
		}
		r.awaitEvent(sandbox.ID(id), func(e gateway.Event) bool {
			return e.Verdict == "denied" && e.Addr == public && e.Reason == "9.9.9.10 is a public address of this machine, which the operator of this machine does not allow"
		})
	}
	if _, violations, _ := w.taken(); len(violations) > 0 {
		t.Error(violations)
	}
	if out, _ := sandboxes["by-rule"].sh("curl -sS --max-time 20 http://9.9.9.11/ok"); !strings.Contains(out, `"URI":"/ok"`) {
		t.Errorf("what the operator allows cannot be reached: %s", out)
	}
	if out, _ := sandboxes["by-default"].sh("curl -sS --max-time 20 http://9.9.9.11/forbidden"); strings.Contains(out, "URI") {
		t.Errorf("without a rule: %s", out)
	}
}
