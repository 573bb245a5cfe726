package drivertest

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// echoServer implements Harness.Echo for images with python3.
const echoServer = `import socket, threading
s = socket.create_server(("127.0.0.1", 0), backlog=128)
print(s.getsockname()[1], flush=True)
def serve(c):
    with c:
        while b := c.recv(65536):
            c.sendall(b)
        c.shutdown(socket.SHUT_WR)
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
`

// dialer returns the sandbox's driver.Dialer.
func (sb *testSandbox) dialer() driver.Dialer {
	d, ok := driver.As[driver.Dialer](sb.inst)
	if !ok {
		sb.Fatalf("ports is declared, but the instance is no Dialer")
	}
	return d
}

// echo starts a server that ends with the case, and returns its port.
func (sb *testSandbox) echo() (uint16, driver.Process) {
	args := sb.h.Echo
	if args == nil {
		args = sb.python(echoServer)
	}
	p := sb.start(sandbox.Command{Args: args})
	port, err := strconv.ParseUint(strings.TrimSpace(sb.readLines(p.Stdout()).next()), 10, 16)
	if err != nil {
		sb.Fatalf("the server inside does not say its port: %v", err)
	}
	return uint16(port), p
}

// dial connects to a port; the connection is closed with the case.
func (sb *testSandbox) dial(port uint16) net.Conn {
	conn, err := sb.dialer().Dial(sb.ctx, port)
	if err != nil {
		sb.Fatalf("Dial: %v", sb.vet(err))
	}
	sb.Cleanup(func(context.Context) { conn.Close() })
	return conn
}

// roundTrip sends data, closes the sending side, and reads the answer.
func roundTrip(ctx context.Context, conn net.Conn, data []byte) ([]byte, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok {
		return nil, errors.New("the connection has no CloseWrite")
	}
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(data)
		sent <- errors.Join(err, half.CloseWrite())
	}()
	got, err := readAll(conn)
	if err != nil {
		return got, err
	}
	return got, <-sent
}

var portCases = []testCase{
	{"ports/echo", capPorts, func(t *caseT) {
		b := t.sandbox()
		port, _ := b.echo()
		for _, data := range [][]byte{[]byte("hello"), nil, pattern(size(t.suite, 4<<20, 64<<10))} {
			got, err := roundTrip(t.ctx, b.dial(port), data)
			t.ok("talking to a port", err)
			t.sameBytes("what came back", got, data)
		}
	}},
	{"ports/refused", capPorts, func(t *caseT) {
		b := t.sandbox()
		port, server := b.echo()
		t.ok("Signal", server.Signal(t.ctx, 9))
		b.wait(server)
		conn, err := b.dialer().Dial(t.ctx, port)
		if err == nil {
			conn.Close()
		}
		t.wantCode("Dial to a port without a listener", err, sandbox.CodeUnavailable)
	}},
	{"ports/canceled", capPorts, func(t *caseT) {
		b := t.sandbox()
		port, _ := b.echo()
		ctx, cancel := context.WithCancel(t.ctx)
		cancel()
		conn, err := b.dialer().Dial(ctx, port)
		if err == nil {
			conn.Close()
		}
		t.wantCode("Dial with a canceled context", err, sandbox.CodeCanceled)
	}},
	{"ports/outlives-context", capPorts, func(t *caseT) {
		b := t.sandbox()
		port, _ := b.echo()
		ctx, cancel := context.WithCancel(t.ctx)
		conn, err := b.dialer().Dial(ctx, port)
		t.ok("Dial", err)
		defer conn.Close()
		cancel()
		got, err := roundTrip(t.ctx, conn, []byte("still here"))
		t.ok("talking after the context of Dial ended", err)
		t.sameBytes("what came back", got, []byte("still here"))
	}},
	{"ports/many", capPorts, func(t *caseT) {
		b := t.sandbox()
		port, _ := b.echo()
		n := size(t.suite, 32, 4)
		failed := make(chan error, n)
		for i := range n {
			conn, data := b.dial(port), pattern(10_000+i)
			go func() {
				got, err := roundTrip(t.ctx, conn, data)
				if err == nil && string(got) != string(data) {
					err = errors.New("got the bytes of another connection")
				}
				failed <- err
			}()
		}
		for range n {
			t.ok("one of many connections", <-failed)
		}
	}},
	{"ports/stalled", capPorts, stalledConnection},
	{"ports/deadline", capPorts, func(t *caseT) {
		b := t.sandbox()
		port, _ := b.echo()
		conn := b.dial(port)
		t.ok("SetReadDeadline", conn.SetReadDeadline(time.Now().Add(time.Millisecond)))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("reading past the deadline: %v", err)
		}
		t.ok("SetReadDeadline", conn.SetReadDeadline(time.Time{}))
		got, err := roundTrip(t.ctx, conn, []byte("later"))
		t.ok("talking after a deadline was lifted", err)
		t.sameBytes("what came back", got, []byte("later"))
	}},
	{"ports/destroyed", capPorts, func(t *caseT) {
		b := t.fresh()
		port, _ := b.echo()
		conn := b.dial(port)
		t.ok("Destroy", b.inst.Destroy(t.ctx))
		if n, _ := conn.Read(make([]byte, 1)); n != 0 {
			t.Errorf("a destroyed sandbox sends data")
		}
		_, err := b.dialer().Dial(t.ctx, port)
		t.wantCode("Dial into a destroyed sandbox", err, sandbox.CodeGone)
	}},
}

// stalledConnection checks that without a reader the writer blocks, other
// connections work, and Close unblocks the writer.
func stalledConnection(t *caseT) {
	b := t.sandbox()
	port, _ := b.echo()
	conn := b.dial(port)
	wrote := make(chan int64, 1)
	go func() {
		n, _ := io.Copy(conn, io.LimitReader(endless{}, 1<<30))
		wrote <- n
	}()
	got, err := roundTrip(t.ctx, b.dial(port), pattern(size(t.suite, 1<<20, 4<<10)))
	t.ok("talking beside a stalled connection", err)
	if len(got) == 0 {
		t.Errorf("nothing came back beside a stalled connection")
	}
	t.want(b.argv("echo", "alive"), "alive\n")
	t.ok("Close", conn.Close())
	select {
	case n := <-wrote:
		if n >= 1<<30 {
			t.Errorf("%d bytes were taken although the answer is not read", n)
		}
	case <-t.ctx.Done():
		t.Errorf("the writer of a closed connection still blocks")
	}
}

// endless reads as zeros.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
