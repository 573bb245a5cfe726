package interpreter_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/interpreter"
	"github.com/atoll-run/atoll/internal/need"
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
	need.Program(t, "python3")
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

// python runs a program that knows the server's module, and fails with it.
func python(t *testing.T, program string) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range interpreter.Files() {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	need.Program(t, "python3")
	cmd := exec.CommandContext(t.Context(), "python3", "-B", "-c", program)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestKernelIsClosedOnce: what was the pipe of a kernel may be the connection of
// a caller by the time when the kernel is closed again, or something is sent.
func TestKernelIsClosedOnce(t *testing.T) {
	python(t, `
import os, server
kernel = server.Kernel("bash", "/")
number = kernel.requests
kernel.close()
reads, writes = os.pipe()
os.dup2(writes, number)
kernel.close()
kernel.send({"code": "true"})
os.fstat(number)  # still open
os.set_blocking(reads, False)
try:
    raise SystemExit("sent to another: %r" % os.read(reads, 100))
except BlockingIOError:
    pass
`)
}

// TestRefusedInTheMiddle: what waits in a context that is removed gets an error
// as part of the answer that has begun.
func TestRefusedInTheMiddle(t *testing.T) {
	address := serve(t)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	call := func(method, path, body string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s %s: status %d", method, path, resp.StatusCode)
		}
		return resp
	}
	var made struct{ ID string }
	if err := json.NewDecoder(call("POST", "/contexts", `{"language":"bash"}`).Body).Decode(&made); err != nil {
		t.Fatal(err)
	}
	execute := fmt.Sprintf(`{"context_id":%q,"code":"sleep 1000"}`, made.ID)
	first := call("POST", "/execute", execute)
	if _, err := bufio.NewReader(first.Body).ReadString('\n'); err != nil { // it has the context
		t.Fatal(err)
	}
	second := call("POST", "/execute", execute) // its answer begins while it waits for the first
	call("DELETE", "/contexts/"+made.ID, "")
	said, err := io.ReadAll(second.Body)
	if err != nil || !strings.Contains(string(said), "not found") {
		t.Errorf("%q %v", said, err)
	}
}

// TestKernels runs code in the languages whose kernels this machine can have.
func TestKernels(t *testing.T) {
	address := serve(t)
	for _, tt := range []struct{ language, pkg, code, want, wrong string }{
		{"java", "default-jdk-headless", "int x = 20;\nString s = \"a\";\ns + (x + 1)", `"text": "a21"`, "int y = s;"},
		{"r", "r-base-core", "x <- 20\nx + 1", `"text": "[1] 21"`, "stop('bad')"},
		{"typescript", "node-typescript", "const x: number = 20\nx + 1", `"text": "21"`, "let y: = 3"},
	} {
		t.Run(tt.language, func(t *testing.T) {
			t.Parallel()
			run := func(code string) string {
				body, err := json.Marshal(map[string]string{"language": tt.language, "code": code})
				if err != nil {
					t.Fatal(err)
				}
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/execute", strings.NewReader(string(body)))
				if err != nil {
					t.Fatal(err)
				}
				resp, err := http.DefaultTransport.RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				said, err := io.ReadAll(resp.Body)
				if resp.StatusCode == http.StatusBadRequest {
					need.Thing(t, tt.pkg, string(said))
				}
				if err != nil {
					t.Fatal(err)
				}
				return string(said)
			}
			if said := run(tt.code); !strings.Contains(said, tt.want) {
				t.Errorf("%q, want %s", said, tt.want)
			}
			if said := run(tt.wrong); !strings.Contains(said, `"type": "error"`) {
				t.Errorf("%q, want an error", said)
			}
		})
	}
}
