package gateway_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestPortChosenAgain checks that a program may connect from the port of a
// connection that has just ended. That happens by chance to programs that open
// hundreds of connections to one host per minute.
func TestPortChosenAgain(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "good.test")
	b := w.rig().sandbox("again", allow("good.test"))
	out, _ := b.sh(`python3 - <<'EOF'
import errno, socket
host = socket.gethostbyname("good.test")
def connect():
    while True:
        s = socket.socket()
        s.settimeout(10)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("", 40000))
            s.connect((host, 80))
            return s
        except OSError as e:
            s.close()
            if e.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL): raise
for i in range(50):
    s = connect()
    s.sendall(b"GET / HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n")
    while s.recv(4096): pass
    s.close()
print("done")
EOF`)
	if strings.TrimSpace(out) != "done" {
		t.Error(out)
	}
}

// TestManyOpenConnections checks that idle connections cost the gateway process
// little: 100 MB for 2,000 of them.
func TestManyOpenConnections(t *testing.T) {
	const flows, most = 2000, 100e6
	w := newWorld(t)
	w.lead(w.good, "good.test")
	w.outside.do(func() { w.echo(w.listen(w.good, 9001)) })
	r := w.rig()
	b := r.sandbox("flows", allow("good.test:9001"))
	pid := gatewayProcess(t)
	b.background(fmt.Sprintf(flowsScript, flows))
	// Temporary memory is returned to the machine over time.
	var held float64
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); time.Sleep(100 * time.Millisecond) {
		if held = privateMemory(t, pid); held <= most {
			return
		}
	}
	t.Errorf("%d open connections take %.0f MB", flows, held/1e6)
}
