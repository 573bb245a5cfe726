package interpreter_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/server/e2bapi/interpreter"
)

// serve starts the server at a port of its own, on this machine.
func serve(t *testing.T) (address string) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range interpreter.Files() {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	python := exec.CommandContext(t.Context(), "python3", "-B", "-c", `
import server
s = server.Server(("127.0.0.1", 0), server.Handler)
print(s.server_port, flush=True)
s.serve_forever()`)
	python.Dir = dir
	python.Stderr = os.Stderr
	said, err := python.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := python.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = python.Process.Kill()
		_ = python.Wait() // it was killed
	})
	port, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return "127.0.0.1:" + strings.TrimSpace(port)
}

// TestNothingOfARequestIsLeft: a body that nobody wants is not taken for the
// next request on the connection, and what cannot be told apart ends it.
func TestNothingOfARequestIsLeft(t *testing.T) {
	address := serve(t)
	const smuggled = "GET /contexts HTTP/1.1\r\nHost: x\r\n\r\n"
	for _, tt := range []struct {
		name, request string
		status        int
		more          bool // the connection can be used again
	}{
		{"a body for nobody", fmt.Sprintf("POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(smuggled), smuggled), 404, true},
		{"in chunks", fmt.Sprintf("POST /nothing HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\nTrailer: x\r\n\r\n", len(smuggled), smuggled), 404, true},
		{"chunks that are read", "POST /execute HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", 400, true},
		{"no number", "POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n" + smuggled, 400, false},
		{"less than nothing", "POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n" + smuggled, 400, false},
		{"too much", "POST /execute HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n" + smuggled, 413, false},
		{"too much in chunks", "POST /execute HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n" + smuggled, 413, false},
		{"no chunks", "POST /execute HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + smuggled, 400, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, tt.request+"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			answers := bufio.NewReader(conn)
			status := func() (int, bool) {
				r, err := http.ReadResponse(answers, nil)
				if err != nil {
					return 0, false
				}
				defer r.Body.Close()
				_, err = io.Copy(io.Discard, r.Body)
				return r.StatusCode, err == nil && !r.Close
			}
			if got, more := status(); got != tt.status || more != tt.more {
				t.Errorf("status %d, more %t", got, more)
			}
			if got, _ := status(); tt.more != (got == 200) {
				t.Errorf("then %d", got)
			}
		})
	}
}
