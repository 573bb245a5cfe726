package gateway_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// rememberer is a program that looks names up once and connects whenever a line
// comes in.
const rememberer = `import os, socket, sys, time
first = socket.gethostbyname("first.test")
good = socket.gethostbyname("good.test")
open("/tmp/known", "w").write(good)
while not os.path.exists("/tmp/go"): time.sleep(0.01)
s = socket.create_connection((good, 80), 10)
s.sendall(b"GET /remembered HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n")
got = b""
while True:
    b = s.recv(65536)
    if not b: break
    got += b
open("/tmp/got.new", "wb").write(got)
os.rename("/tmp/got.new", "/tmp/got")
`

// TestNamesGoAlong checks that a program which has looked up a name reaches it
// in a copy of its sandbox, and in a restored one, and that no other name gets
// that address.
func TestNamesGoAlong(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "first.test", "good.test", "third.test")
	r := w.rig()
	policy := allow("first.test", "good.test", "third.test")
	b := r.sandbox("original", policy)
	b.put("/tmp/p.py", []byte(rememberer))
	p, err := b.in.Exec(t.Context(), &sandbox.Command{Shell: "exec python3 /tmp/p.py", Background: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if out, code := b.sh("while ! [ -s /tmp/known ]; do sleep 0.05; done"); code != 0 {
		t.Fatal(out)
	}
	ref := b.snapshot(driver.SnapshotOptions{Memory: true})
	again := b.snapshot(driver.SnapshotOptions{Memory: true, Stop: true})
	for _, tt := range []struct {
		id  sandbox.ID
		ref driver.SnapshotRef
	}{{"copy", ref}, {"restored", again}} {
		in, how, err := r.provider.Restore(t.Context(), r.spec(tt.id, policy), tt.ref)
		if err != nil || !how.Memory {
			t.Fatalf("%s: %+v, %v", tt.id, how, err)
		}
		copied := r.own(in)
		if out, _ := copied.sh("getent hosts third.test"); !strings.HasPrefix(out, "198.19.0.3 ") {
			t.Errorf("%s: a name got the address %s", tt.id, out)
		}
		if out, _ := copied.sh("touch /tmp/go; while ! [ -e /tmp/got ]; do sleep 0.05; done; cat /tmp/got"); !strings.Contains(out, `"Host":"good.test","URI":"/remembered"`) {
			t.Errorf("%s: %s", tt.id, out)
		}
	}
}

// TestWarm checks that a sandbox of the pool becomes one with a network: it
// reaches what it may, keeps its loopback, and can be copied.
func TestWarm(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "good.test")
	r := w.rig()
	policy := allow("good.test")
	spec := r.spec("warm", policy)
	if err := r.provider.Warm(t.Context(), spec, 1); err != nil {
		t.Fatal(err)
	}
	b := r.sandbox("warm", policy)
	if record, err := os.ReadFile(filepath.Join(r.state, "boxes", "warm", "record.json")); err != nil || !strings.Contains(string(record), `"inside": "0-`) {
		t.Errorf("it is not the one that waited: %s, %v", record, err)
	}
	check := func(b *rigSandbox) {
		t.Helper()
		if out, _ := b.sh("curl -sS http://good.test/warm; curl -sS --max-time 5 http://evil.test/"); !strings.Contains(out, `"URI":"/warm"`) || !strings.Contains(out, "Could not resolve host: evil.test") {
			t.Error(out)
		}
		if out, _ := b.sh(loopbackScript); strings.TrimSpace(out) != "echo 127.0.0.1 echo 127.7.7.7 echo ::1" {
			t.Errorf("the loopback: %s", out)
		}
	}
	check(b)
	ref := b.snapshot(driver.SnapshotOptions{Memory: true})
	in, how, err := r.provider.Restore(t.Context(), r.spec("copied", policy), ref)
	if err != nil || !how.Memory {
		t.Fatalf("%+v, %v", how, err)
	}
	check(r.own(in))
}

const loopbackScript = `python3 - <<'EOF'
import socket
for a in ("127.0.0.1", "127.7.7.7", "::1"):
    family = socket.AF_INET6 if ":" in a else socket.AF_INET
    server = socket.socket(family)
    server.bind((a, 0)); server.listen(1)
    c = socket.socket(family); c.settimeout(10); c.connect(server.getsockname()[:2])
    s, _ = server.accept()
    c.sendall(b"echo"); print(s.recv(4).decode(), a, end=" ")
EOF`
