package gateway_test

import (
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/sandbox"
)

// profile is a policy made of rules.
func profile(rules ...sandbox.Rule) gateway.Policy {
	return gateway.Policy{Profile: sandbox.Profile{Rules: rules}}
}

func TestTLS(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "good.test", "api.test", "wrong.test")
	r := w.rig()
	b := r.sandbox("tls", profile(
		sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"good.test"}},
		sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"api.test", "wrong.test"}, Paths: []string{"/v1/**"}, Methods: []string{"GET"}},
	))
	for _, tt := range []struct{ name, script, want string }{
		{"passed through", "curl -sSk https://good.test/x?y", `"Host":"good.test","URI":"/x?y"`},
		{"what is passed through has its own certificate", "curl -sS https://good.test/", "unable to get local issuer"},
		{"terminated, HTTP/2", "curl -sS https://api.test/v1/a/b?c", `"Proto":"HTTP/2.0","Method":"GET","Host":"api.test","URI":"/v1/a/b?c"`},
		{"terminated, HTTP/1.1", "curl -sS --http1.1 https://api.test/v1/a", `"URI":"/v1/a"`},
		{"another path", "curl -sS https://api.test/v2/forbidden", `"code":"egress_denied","reason":"default"`},
		{"another method", "curl -sS -XPOST -d x https://api.test/v1/a?forbidden", `"code":"egress_denied"`},
		{"a certificate that is not the host's", "curl -sS https://wrong.test/v1/x", "the host's certificate is not trusted"},
		{"plain HTTP is decided about, too", "curl -sS http://api.test/v2/forbidden; curl -sS http://api.test/v1/ok", `"URI":"/v1/ok"`},
		{"Python", `python3 -c 'import urllib.request as u; print(u.urlopen("https://api.test/v1/py").read())'`, `"URI":"/v1/py"`},
		{"without the environment", "env -i /usr/bin/curl -sS https://api.test/v1/bare", `"URI":"/v1/bare"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, _ := b.sh(tt.script)
			if !strings.Contains(out, tt.want) {
				t.Errorf("got %s, want %s", out, tt.want)
			}
			if _, violations, _ := w.taken(); len(violations) > 0 {
				t.Error(violations)
			}
		})
	}
	r.awaitEvent("tls", func(e gateway.Event) bool {
		return e.Kind == "http" && e.Verdict == "denied" && e.Method == "POST" && e.Path == "/v1/a"
	})
}

// TestPinned checks that a client that trusts only another authority fails
// immediately, and that the owner of the sandbox learns the reason.
func TestPinned(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "api.test")
	r := w.rig()
	b := r.sandbox("pinned", terminated())
	b.put("/tmp/own.pem", w.rootPEM)
	for name, script := range map[string]string{
		"curl":   "curl -sS --max-time 30 --cacert /tmp/own.pem https://api.test/v1/x",
		"Python": `python3 -c 'import ssl, urllib.request as u; u.urlopen("https://api.test/v1/x", context=ssl.create_default_context(cafile="/tmp/own.pem"), timeout=30)'`,
		"1.2":    "curl -sS --max-time 30 --tls-max 1.2 --cacert /tmp/own.pem https://api.test/v1/x",
	} {
		if out, code := b.sh(script); code == 0 || !strings.Contains(out, "certificate") {
			t.Errorf("%s: %d: %s", name, code, out)
		}
		r.awaitEvent("pinned", func(e gateway.Event) bool {
			return e.Verdict == "failed" && e.Host == "api.test" && strings.Contains(e.Reason, "does the client pin certificates?")
		})
		r.forget("pinned")
	}
	if hits, violations, _ := w.taken(); len(hits)+len(violations) > 0 {
		t.Errorf("%v %v", hits, violations)
	}
}

// TestResumedSessions checks that a client may resume a TLS session on another
// connection, and that the actual host decides about its requests.
func TestResumedSessions(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "api.test", "other.test")
	b := w.rig().sandbox("resumed", profile(
		sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"api.test"}, Paths: []string{"/v1/**"}},
		sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"other.test"}, Paths: []string{"/v2/**"}},
	))
	out, _ := b.sh(`python3 - <<'EOF'
import socket, ssl
context, session = ssl.create_default_context(), None
for host, path in ("api.test", "/v1/a"), ("api.test", "/v1/b"), ("api.test", "/v2/forbidden"), ("other.test", "/v1/forbidden"), ("other.test", "/v2/c"):
    s = context.wrap_socket(socket.create_connection((host, 443), 20), server_hostname=host, session=session)
    s.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    answer = b""
    while piece := s.recv(65536): answer += piece
    print(host, path, s.session_reused, answer.split()[1].decode())
    session = s.session
    s.close()
EOF`)
	const want = "api.test /v1/a False 200\napi.test /v1/b True 200\napi.test /v2/forbidden True 403\nother.test /v1/forbidden True 403\nother.test /v2/c True 200\n"
	if out != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
	hits, violations, _ := w.taken()
	if len(hits) != 3 || len(violations) > 0 {
		t.Errorf("%d requests arrived, %v", len(hits), violations)
	}
}

// TestUnwantedAnswers checks that DNS works for clients that wait when others
// have given up.
func TestUnwantedAnswers(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "good.test")
	b := w.rig().sandbox("unwanted", allow("good.test"))
	out, _ := b.sh(`python3 - <<'EOF'
import socket
query = b"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04good\x04test\x00\x00\x01\x00\x01"
for i in range(500):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.sendto(query, ("198.18.0.1", 53))
    s.close()
print(socket.gethostbyname("good.test"))
EOF`)
	if !strings.HasPrefix(out, "198.19.") {
		t.Error(out)
	}
}
