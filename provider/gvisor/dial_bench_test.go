package gvisor_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

const echoScript = `import socket, threading
s = socket.create_server(("127.0.0.1", 0), backlog=128)
print(s.getsockname()[1], flush=True)
def serve(c):
    with c:
        while b := c.recv(1 << 20):
            c.sendall(b)
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
`

// BenchmarkPort compares a server inside a sandbox, reached through the driver,
// with the same server on this machine. It measures a new connection with one
// byte in each direction, and one byte in each direction on an open connection.
func BenchmarkPort(b *testing.B) {
	in := create(b, newProvider(b, nil), sandbox.Spec{Image: "host"})
	cmd, err := in.Exec(b.Context(), &sandbox.Command{Args: []string{"python3", "-c", echoScript}})
	if err != nil {
		b.Fatal(err)
	}
	defer cmd.Close()
	here := exec.Command("python3", "-c", echoScript)
	out, err := here.StdoutPipe()
	if err == nil {
		err = here.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = here.Process.Kill()
		_ = here.Wait()
	}()
	var inside, outside uint16
	if _, err := fmt.Fscan(cmd.Stdout(), &inside); err != nil {
		b.Fatal(err)
	}
	if _, err := fmt.Fscan(out, &outside); err != nil {
		b.Fatal(err)
	}
	for name, dial := range map[string]func(context.Context) (net.Conn, error){
		"sandbox": func(ctx context.Context) (net.Conn, error) { return in.(driver.Dialer).Dial(ctx, inside) },
		"direct": func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", outside))
		},
	} {
		connect := func() net.Conn {
			conn, err := dial(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			return conn
		}
		ping := func(conn net.Conn) {
			if _, err := conn.Write([]byte{1}); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
				b.Fatal(err)
			}
		}
		b.Run("connect/"+name, func(b *testing.B) {
			for b.Loop() {
				conn := connect()
				ping(conn)
				conn.Close()
			}
		})
		b.Run("ping/"+name, func(b *testing.B) {
			conn := connect()
			defer conn.Close()
			for b.Loop() {
				ping(conn)
			}
		})
	}
}
