package drivertest

import (
	"context"
	"net"
	"strings"
	"sync/atomic"

	"github.com/atoll-run/atoll/sandbox"
)

// connector implements Harness.Connect for images with python3.
const connector = `import socket, sys
try:
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)
    print(s.recv(64).decode())
except TimeoutError: print("late")
except OSError: print("refused")
`

// nowhere is an address reserved for documentation: a connection to it fails at
// once only if it is refused.
const nowhere = "192.0.2.1"

// server says hello to every client and counts them. It ends with the case.
func (t *caseT) server() (port string, met *atomic.Int64) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	t.ok("listening on this machine", err)
	t.Cleanup(func(context.Context) { l.Close() })
	met = new(atomic.Int64)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			met.Add(1)
			_, _ = c.Write([]byte("hello"))
			c.Close()
		}
	}()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port, met
}

// reach connects from a program inside and returns the outcome: "hello",
// "refused" or, after a while, "late".
func (sb *testSandbox) reach(host, port string) string {
	args := sb.h.Connect
	if args == nil {
		args = sb.python(connector)
	}
	got := sb.run(sandbox.Command{Args: append(args[:len(args):len(args)], host, port)})
	return strings.TrimSpace(got.stdout)
}

// online creates a sandbox that may reach only these hosts.
func (t *caseT) online(hosts ...string) *testSandbox {
	return t.fresh(func(s *sandbox.Spec) { s.Network.Egress = hosts })
}

func (sb *testSandbox) wantReach(host, port, want string) {
	if got := sb.reach(host, port); got != want {
		sb.Errorf("connecting to %s, port %s: %q, want %q", host, port, got, want)
	}
}

var networkCases = []testCase{
	{"network/denied", capNetwork, func(t *caseT) {
		b := t.online("drivertest.example")
		b.wantReach(nowhere, "80", "refused")
		b.wantReach("other.drivertest.example", "80", "refused")
		if t.h.Host == "" {
			return
		}
		port, met := t.server()
		b.wantReach(t.h.Host, port, "refused")
		if n := met.Load(); n != 0 {
			t.Errorf("%d connections arrived that no rule allows", n)
		}
	}},
	{"network/allowed", capNetwork, func(t *caseT) {
		if t.h.Host == "" {
			t.Logf("no server here is in reach of a sandbox: only refusals were tried")
			return
		}
		port, met := t.server()
		other, never := t.server()
		b := t.online(t.h.Host + ":" + port)
		b.wantReach(t.h.Host, port, "hello")
		b.wantReach(t.h.Host, other, "refused")
		if met.Load() != 1 || never.Load() != 0 {
			t.Errorf("%d connections arrived where a rule allows it and %d where none does, want 1 and 0", met.Load(), never.Load())
		}
	}},
}
