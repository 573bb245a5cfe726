package gateway_test

import (
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// talker is a program with a connection. On request it sends something and
// reports the answer.
const talker = `import os, socket, time
s = socket.create_connection(("good.test", %s), 30)
for i in range(1, 100):
    while not os.path.exists(f"/tmp/ask.{i}"): time.sleep(0.01)
    try:
        s.sendall(b"x")
        said = "echo" if s.recv(1) == b"x" else "closed"
    except Exception as e:
        said = type(e).__name__
    open("/tmp/new", "w").write(said)
    os.rename("/tmp/new", f"/tmp/answer.{i}")
`

// ask makes the talker of a sandbox send something.
func (s *rigSandbox) ask(number int) string {
	out, _ := s.sh(fmt.Sprintf("touch /tmp/ask.%[1]d; while ! [ -e /tmp/answer.%[1]d ]; do sleep 0.02; done; cat /tmp/answer.%[1]d", number))
	return out
}

// echo serves a listener that echoes all data.
func echo(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		}()
	}
}

// TestOpenConnections checks what becomes of connections when their sandbox is
// paused, written down and copied, and when the gateway is lost: some break, and
// no sandbox does.
func TestOpenConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go echo(l)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	// On the machine's own network, where the next gateway is, too.
	r := newRig(t, loopback("good.test"))
	policy := allow("good.test:" + port)
	b := r.sandbox("talker", policy)
	b.put("/tmp/p.py", fmt.Appendf(nil, talker, port))
	p, err := b.in.Exec(t.Context(), &sandbox.Command{Shell: "exec python3 /tmp/p.py", Background: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	holds := func(number int, after string) {
		t.Helper()
		if got := b.ask(number); got != "echo" {
			t.Errorf("after %s: %s", after, got)
		}
	}
	breaks := func(b *rigSandbox, number int, after string) {
		t.Helper()
		switch got := b.ask(number); got {
		case "ConnectionResetError", "ConnectionAbortedError", "BrokenPipeError", "closed":
		default:
			t.Errorf("after %s: %s", after, got)
		}
		if out, _ := b.sh(`python3 -c 'import socket; s = socket.create_connection(("good.test", ` + port + `), 30); s.sendall(b"new"); print(s.recv(3))'`); out != "b'new'\n" {
			t.Errorf("a new connection after %s: %s", after, out)
		}
	}
	holds(1, "nothing")

	pauser := b.in.(driver.Pauser)
	if err := pauser.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := pauser.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	holds(2, "a pause")

	ref := b.snapshot(driver.SnapshotOptions{Memory: true})
	holds(3, "a snapshot")
	in, how, err := r.provider.Restore(t.Context(), r.spec("talker-copy", policy), ref)
	if err != nil || !how.Memory {
		t.Fatalf("%+v, %v", how, err)
	}
	copied := r.own(in)
	breaks(copied, 3, "being copied")
	holds(4, "a copy was made")

	pid := gatewayProcess(t)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for gatewayProcess(t) == pid {
	}
	breaks(b, 5, "the gateway was lost")
}
