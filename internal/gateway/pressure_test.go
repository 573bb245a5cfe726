package gateway_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// flood serves a listener that sends endless data to every client.
func (w *world) flood(l net.Listener) {
	chunk := make([]byte, 1<<20)
	w.each(l, func(c net.Conn) {
		for {
			if _, err := c.Write(chunk); err != nil {
				return
			}
		}
	})
}

// hold serves a listener that reads nothing until the test ends.
func (w *world) hold(l net.Listener) {
	done := make(chan struct{})
	w.tb.Cleanup(func() { close(done) })
	w.each(l, func(net.Conn) { <-done })
}

// TestSlowReaders checks that the gateway buffers little when a sandbox or a
// server does not read, and that another sandbox is served meanwhile.
func TestSlowReaders(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "good.test")
	w.outside.do(func() {
		w.flood(w.listen(w.good, 9001))
		w.hold(w.listen(w.good, 9002))
	})
	r := w.rig()
	greedy := r.sandbox("greedy", allow("good.test:9001", "good.test:9002"))
	other := r.sandbox("other", allow("good.test"))
	pid := gatewayProcess(t)
	const flows = 400
	for _, tt := range []struct{ name, script string }{
		{"what is not read inside", fmt.Sprintf(slowScript, flows, 9001, "s.recv(1)")},
		{"what is not read outside", fmt.Sprintf(slowScript, flows, 9002, "fill(s)")},
	} {
		before := privateMemory(t, pid)
		p := greedy.background(tt.script)
		if grown := (privateMemory(t, pid) - before) / 1e6; grown > 200 {
			t.Errorf("%s: %d connections cost %.0f MB", tt.name, flows, grown)
		} else {
			t.Logf("%s: %.0f MB", tt.name, grown)
		}
		if out, _ := other.sh("curl -sS --max-time 20 http://good.test/meanwhile"); !strings.Contains(out, `"URI":"/meanwhile"`) {
			t.Errorf("%s: another sandbox got %s", tt.name, out)
		}
		p.Close()
	}
}

const slowScript = `python3 -c '
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
def fill(s):
    s.setblocking(False)
    try:
        while True: s.send(b"x" * 65536)
    except BlockingIOError: pass
host, all = socket.gethostbyname("good.test"), []
for i in range(%d):
    s = socket.create_connection((host, %d), 30)
    %s
    all.append(s)
print("ready", flush=True)
sys.stdin.read()
'`

// TestSlowRequests checks that clients that send a request byte by byte, or
// never complete one, do not affect others.
func TestSlowRequests(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "api.test")
	r := w.rig()
	b := r.sandbox("slow", profile(sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"api.test"}, Paths: []string{"/**"}}))
	p := b.background(`python3 -c '
import resource, socket, ssl, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
c, all = ssl.create_default_context(), []
for i in range(200):
    s = c.wrap_socket(socket.create_connection(("api.test", 443), 30), server_hostname="api.test")
    s.sendall(b"GET /slow HTTP/1.1\r\nHost: api.test\r\nX-Slow: " + b"x" * i)
    all.append(s)
for i in range(200):
    s = socket.create_connection(("api.test", 443), 30)
    s.sendall(b"\x16\x03\x01\x02\x00\x01"[:1 + i % 5])
    all.append(s)
print("ready", flush=True)
sys.stdin.read()
'`)
	defer p.Close()
	if out, _ := b.sh("curl -sS --max-time 20 https://api.test/quick"); !strings.Contains(out, `"URI":"/quick"`) {
		t.Error(out)
	}
	if hits, _, _ := w.taken(); len(hits) != 1 {
		t.Errorf("%d requests arrived, want 1", len(hits))
	}
}
