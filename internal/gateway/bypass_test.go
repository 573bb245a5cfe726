package gateway_test

import (
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// attempt is one try to get round the policy, made by a program inside.
type attempt struct {
	name string
	code string // Python; it prints what came of it
	want string // a regular expression that the output matches
	hits int    // requests that may reach the good server, and must; negative: any
}

// prelude is what attempts have in common.
const prelude = `
import socket, ssl, struct, sys, time, json
GOOD, EVIL = "@GOOD", "@EVIL"
socket.setdefaulttimeout(8)

def text(b): return b.decode("latin1")
def read(s):
    got = b""
    try:
        while len(got) < 1 << 20:
            b = s.recv(65536)
            if not b: break
            got += b
    except socket.timeout: got += b"<TIMEOUT>"
    except OSError as e: got += ("<" + type(e).__name__ + ">").encode()
    return text(got)
def tcp(host, port): return socket.create_connection((host, port))
def raw(host, port, data, pieces=False):
    s = tcp(host, port)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if isinstance(data, str): data = data.encode("latin1")
    try:
        if pieces:
            for i in range(len(data)): s.send(data[i:i+1])
        else: s.sendall(data)
    except OSError as e: return "<" + type(e).__name__ + ">"
    return read(s)
def get(host, path="/", port=80, hosthdr=None, extra="", method="GET", body=""):
    return raw(host, port, "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n%s\r\n%s" % (method, path, hosthdr or host, extra, body))
def tls(host, sni, port=443, verify=False, alpn=None):
    c = ssl.create_default_context()
    if not verify: c.check_hostname = False; c.verify_mode = ssl.CERT_NONE
    if alpn: c.set_alpn_protocols(alpn)
    return c.wrap_socket(tcp(host, port), server_hostname=sni)
def tget(host, path="/", sni=None, hosthdr=None, extra="", method="GET", body="", port=443):
    s = tls(host, sni or host, port=port, verify=host == "api.test")
    s.sendall(("%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n%s\r\n%s" % (method, path, hosthdr or host, extra, body)).encode("latin1"))
    return read(s)
def ext(kind, data): return struct.pack(">HH", kind, len(data)) + data
def names(*all):
    l = b"".join(b"\0" + struct.pack(">H", len(n)) + n for n in all)
    return ext(0, struct.pack(">H", len(l)) + l)
def hello(exts, version=b"\x03\x03", records=0):
    exts += ext(10, b"\0\2\0\x1d") + ext(13, b"\0\4\4\3\x08\4") + ext(43, b"\2\3\4") + ext(51, b"\0\x24\0\x1d\0\x20" + b"k" * 32)
    body = version + b"r" * 32 + b"\0" + b"\0\4\x13\1\xc0\x2f" + b"\1\0" + struct.pack(">H", len(exts)) + exts
    msg = b"\1" + struct.pack(">I", len(body))[1:] + body
    step = records or len(msg)
    return b"".join(b"\x16\x03\x01" + struct.pack(">H", len(msg[i:i+step])) + msg[i:i+step] for i in range(0, len(msg), step))
def dns(name, kind=1, cls=1, count=1, flags=0x0100, extra=b""):
    labels = name if isinstance(name, bytes) else b"".join(bytes([len(l)]) + l.encode("latin1") for l in name.split(".") if l) + b"\0"
    return struct.pack(">HHHHHH", 7, flags, count, 0, 0, 1 if extra else 0) + (labels + struct.pack(">HH", kind, cls)) * count + extra
def ask(query, server="198.18.0.1", port=53):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((server, port)); s.settimeout(4); s.send(query)
    b = s.recv(4096)
    return "rcode=%d answers=%d" % (b[3] & 15, struct.unpack(">H", b[6:8])[0])
def asktcp(query, server="198.18.0.1"):
    s = tcp(server, 53); s.sendall(struct.pack(">H", len(query)) + query)
    b = s.recv(4096)[2:]
    return "rcode=%d answers=%d" % (b[3] & 15, struct.unpack(">H", b[6:8])[0])
def udp(host, port, data=b"x" * 64):
    s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((host, port)); s.settimeout(4)
    s.send(data)
    return "got " + repr(s.recv(2048))
def show(f):
    try: print(f())
    except Exception as e: print(type(e).__name__, e)
def mapped(prefix): return prefix + ":".join("%02x%02x" % tuple(map(int, EVIL.split(".")[i:i+2])) for i in (0, 2))
`

// bypassRules are the policy that the attempts are up against.
func bypassRules(w *world) []sandbox.Rule {
	return []sandbox.Rule{
		{Action: sandbox.Deny, Hosts: []string{"*.bad.sub.test"}},
		{Action: sandbox.Allow, Hosts: []string{"good.test", "*.sub.test"}},
		{Action: sandbox.Allow, Hosts: []string{"api.test"}, Paths: []string{"/v1/**"}, Methods: []string{"GET", "POST"}},
		{Action: sandbox.Allow, Hosts: []string{"rebind.test", "loop.test", "private.test", "meta.test", "trap.test", "six.test", "nat.test", "own.test:8080"}},
		{Action: sandbox.Allow, Hosts: []string{w.good.String() + ":8443"}},
	}
}

// TestBypass makes every attempt from inside one sandbox. The forbidden server
// exists and notices every packet.
func TestBypass(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "good.test", "api.test", "own.test", "a.sub.test", "x.bad.sub.test", "evil.test", "sub.test")
	w.lead(w.evil, "trap.test")
	w.lead(netip.MustParseAddr("127.0.0.1"), "loop.test")
	w.lead(netip.MustParseAddr("10.0.0.1"), "private.test")
	w.lead(netip.MustParseAddr("169.254.169.254"), "meta.test")
	e := w.evil.As4()
	six := [16]byte{10: 0xff, 11: 0xff}
	copy(six[12:], e[:])
	w.lead(netip.AddrFrom16(six), "six.test")
	nat := [16]byte{0, 0x64, 0xff, 0x9b}
	copy(nat[12:], e[:])
	w.lead(netip.AddrFrom16(nat), "nat.test")
	w.mu.Lock()
	w.answers["rebind.test"] = []netip.Addr{w.good, w.evil}
	w.mu.Unlock()
	w.handle("redirect.sub.test", func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, r.URL.Query().Get("to"), http.StatusFound)
	})
	w.lead(w.good, "redirect.sub.test")
	r := w.rig()
	b := r.sandbox("bypass", profile(bypassRules(w)...))
	fill := strings.NewReplacer("@GOOD", w.good.String(), "@EVIL", w.evil.String())
	if out, code := b.sh("cat > /tmp/p.py <<'EOF'\n" + fill.Replace(prelude) + "\nEOF"); code != 0 {
		t.Fatal(out)
	}
	if len(attempts) < 80 {
		t.Errorf("%d attempts are too few", len(attempts))
	}
	for i, a := range attempts {
		t.Run(a.name, func(t *testing.T) {
			out, _ := b.sh("cd /tmp && python3 - <<'EOF'\nfrom p import *\n" + fill.Replace(a.code) + "\nEOF")
			if !regexp.MustCompile(a.want).MatchString(out) {
				t.Errorf("%d: got %.600q, want %s", i+1, out, a.want)
			}
			hits, violations, asked := w.taken()
			if len(violations) > 0 {
				t.Errorf("%d: let through: %s", i+1, violations)
			}
			if a.hits >= 0 && len(hits) != a.hits {
				t.Errorf("%d: %d requests arrived, want %d: %+v", i+1, len(hits), a.hits, hits)
			}
			for _, name := range asked {
				if strings.Contains(name, "evil") || strings.Contains(name, "secret") || strings.Contains(name, "bad.sub") {
					t.Errorf("%d: the name server was asked for %s", i+1, name)
				}
			}
		})
	}
}
