package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/need"
)

// mcpHost is a state directory with a daemon, for MCP clients.
type mcpHost struct{ env []string }

func newMCPHost(t *testing.T) *mcpHost {
	t.Helper()
	h := &mcpHost{env: append(os.Environ(), "ATOLL_STATE_DIR="+filepath.Join(t.TempDir(), "state"), "ATOLL_NO_DAEMON=", "ATOLL_KEY=", "ATOLL_HOST=")}
	h.atoll(t, "up", "--detach", "--pool=0")
	t.Cleanup(func() {
		h.atoll(t, "rm", "--force", "--all")
		h.atoll(t, "down")
	})
	return h
}

func (h *mcpHost) atoll(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(built.atoll, args...)
	cmd.Env = h.env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("atoll %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// stdio connects the official client to atoll mcp.
func (h *mcpHost) stdio(t *testing.T, opts *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	cmd := exec.Command(built.atoll, "mcp")
	cmd.Env = h.env
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, opts)
	session, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := session.Close(); err != nil {
			t.Errorf("atoll mcp ended with: %v", err)
		}
	})
	return session
}

// serve starts atoll mcp over HTTP and returns its address.
func (h *mcpHost) serve(t *testing.T) string {
	t.Helper()
	cmd := exec.Command(built.atoll, "mcp", "--listen", "127.0.0.1:0", "--plain")
	cmd.Env = h.env
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stderr).ReadString('\n')
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("atoll mcp ended with: %v", err)
		}
	})
	m := regexp.MustCompile(`serving MCP on (\S+)`).FindStringSubmatch(line)
	if err != nil || m == nil {
		t.Fatalf("atoll mcp said %q: %v", line, err)
	}
	return "http://" + m[1]
}

// bearer sends a key with every request.
type bearer struct {
	key string
	by  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if b.key != "" {
		r.Header.Set("Authorization", "Bearer "+b.key)
	}
	return b.by.RoundTrip(r)
}

func httpSession(t *testing.T, address, key string) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: address, HTTPClient: &http.Client{Transport: bearer{key, http.DefaultTransport}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

type args map[string]any

// use calls a tool and requires success.
func use(t *testing.T, s *mcp.ClientSession, tool string, in args) map[string]any {
	t.Helper()
	res, text := try(t, s, tool, in)
	if res.IsError {
		t.Fatalf("%s %v: %s", tool, in, text)
	}
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("the result of %s is %q, want a JSON object: %v", tool, text, err)
	}
	if res.StructuredContent != nil {
		t.Errorf("%s returned its result twice: %v", tool, res.StructuredContent)
	}
	return out
}

// refused calls a tool that must fail with a code and say what to do.
func refused(t *testing.T, s *mcp.ClientSession, tool, code string, in args) {
	t.Helper()
	res, text := try(t, s, tool, in)
	if !res.IsError || !strings.HasPrefix(text, code+": ") || !strings.Contains(text, "\nNext: ") {
		t.Errorf("%s %v: got %q, want an error %s that names the next step", tool, in, text, code)
	}
}

func try(t *testing.T, s *mcp.ClientSession, tool string, in args) (*mcp.CallToolResult, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: in})
	if err != nil {
		t.Fatalf("%s %v: %v", tool, in, err)
	}
	text := ""
	for _, c := range res.Content {
		if c, ok := c.(*mcp.TextContent); ok {
			text += c.Text
		}
	}
	return res, text
}

func want(t *testing.T, out map[string]any, field string, value any) {
	t.Helper()
	if fmt.Sprint(out[field]) != fmt.Sprint(value) {
		t.Errorf("%s is %v, want %v, of %v", field, out[field], value, out)
	}
}

func TestMCPOverStdio(t *testing.T) {
	t.Parallel()
	var told atomic.Int32
	h := newMCPHost(t)
	s := h.stdio(t, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, p *mcp.ProgressNotificationClientRequest) {
		if strings.Contains(p.Params.Message, "tick") {
			told.Add(1)
		}
	}})
	t.Run("commands", func(t *testing.T) {
		out := use(t, s, "sandbox_run", args{"command": "cat; echo no >&2; exit 3", "stdin": "yes"})
		want(t, out, "exit_code", 3)
		want(t, out, "stdout", "yes")
		want(t, out, "stderr", "no\n")
		want(t, use(t, s, "sandbox_create", args{"name": "demo", "labels": args{"a": "b"}, "egress": []string{}}), "sandbox", "demo")
		want(t, use(t, s, "sandbox_exec", args{"sandbox": "demo", "args": []string{"pwd"}, "dir": "/tmp"}), "stdout", "/tmp\n")
		want(t, use(t, s, "sandbox_exec", args{"sandbox": "demo", "command": "sleep 60", "timeout_seconds": 0.5}), "reason", "timeout")
		long := use(t, s, "sandbox_exec", args{"sandbox": "demo", "command": "seq 100000"})
		want(t, long, "stdout_bytes", 588895)
		want(t, long, "truncated", true)
		if text := long["stdout"].(string); len(text) > 33<<10 || !strings.HasPrefix(text, "1\n2\n") || !strings.HasSuffix(text, "\n100000\n") {
			t.Errorf("a long output is shown as %d bytes, %.20q…", len(text), text)
		}
		// A background server must not delay the answer of its shell.
		want(t, use(t, s, "sandbox_exec", args{"sandbox": "demo", "command": "sleep 50 & echo done"}), "stdout", "done\n")
	})
	t.Run("progress", func(t *testing.T) {
		params := &mcp.CallToolParams{Name: "sandbox_exec", Arguments: args{"sandbox": "demo", "command": "for i in 1 2 3 4 5; do echo tick; sleep 0.3; done"}}
		params.SetProgressToken("p")
		if res, err := s.CallTool(t.Context(), params); err != nil || res.IsError {
			t.Fatal(res, err)
		}
		if told.Load() < 2 {
			t.Errorf("the client got %d progress messages for a command of 1.5 s, want at least 2", told.Load())
		}
	})
	t.Run("background", func(t *testing.T) {
		p := use(t, s, "sandbox_exec", args{"sandbox": "demo", "command": "read a; echo got $a; sleep 600", "stdin": "it\n", "background": true})["process"]
		deadline := time.Now().Add(20 * time.Second)
		for {
			out := use(t, s, "sandbox_process", args{"sandbox": "demo", "action": "logs", "process": p})
			want(t, out, "running", true)
			if strings.Contains(fmt.Sprint(out["output"]), "got it") {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the log lacks the command's output: %v", out)
			}
		}
		log, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: fmt.Sprintf("atoll://sandboxes/demo/processes/%s/log", p)})
		if err != nil || log.Contents[0].Text != "got it\n" {
			t.Errorf("the resource of the log is %v, %v", log, err)
		}
		use(t, s, "sandbox_process", args{"sandbox": "demo", "action": "signal", "process": p, "signal": "KILL"})
		out := use(t, s, "sandbox_process", args{"sandbox": "demo", "action": "wait", "process": p})
		want(t, out, "running", false)
		want(t, out["output"].(map[string]any), "reason", "signaled")
	})
	t.Run("files", func(t *testing.T) { mcpFiles(t, s) })
	t.Run("ports", func(t *testing.T) { mcpPorts(t, s) })
	t.Run("states", func(t *testing.T) { mcpStates(t, s) })
	t.Run("egress", func(t *testing.T) {
		use(t, s, "sandbox_exec", args{"sandbox": "demo", "command": "exec 3<>/dev/tcp/192.0.2.1/443 || getent hosts denied.example; true"})
		if out := use(t, s, "egress_explain", args{"sandbox": "demo"}); out["message"] == "" {
			t.Errorf("egress_explain says nothing: %v", out)
		}
		refused(t, s, "egress_explain", "not_found", args{"profile": "none", "url": "https://a.example"})
		refused(t, s, "egress_explain", "invalid", args{})
	})
	t.Run("hostile", func(t *testing.T) { mcpHostile(t, s) })
}

func mcpFiles(t *testing.T, s *mcp.ClientSession) {
	use(t, s, "sandbox_write", args{"sandbox": "demo", "path": "/files/é.txt", "content": "grüße"})
	out := use(t, s, "sandbox_read", args{"sandbox": "demo", "path": "/files/é.txt", "limit": 3})
	want(t, out, "content", "gr") // the ü would be cut
	want(t, out, "next_offset", 2)
	want(t, out, "total_bytes", 7)
	want(t, use(t, s, "sandbox_read", args{"sandbox": "demo", "path": "/files/é.txt", "offset": 2}), "content", "üße")
	use(t, s, "sandbox_write", args{"sandbox": "demo", "path": "/files/bin", "content": "AP8=", "encoding": "base64", "mode": "700"})
	want(t, use(t, s, "sandbox_read", args{"sandbox": "demo", "path": "/files/bin"}), "content", "AP8=")
	if text := fmt.Sprint(use(t, s, "sandbox_files", args{"sandbox": "demo", "path": "/files"})["entries"]); !strings.Contains(text, "mode:0700") || !strings.Contains(text, "é.txt") {
		t.Errorf("the listing is %s", text)
	}
	refused(t, s, "sandbox_write", "already_exists", args{"sandbox": "demo", "path": "/files/bin", "content": "", "no_replace": true})
	refused(t, s, "sandbox_read", "not_found", args{"sandbox": "demo", "path": "/files/none"})
	png := "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
	use(t, s, "sandbox_write", args{"sandbox": "demo", "path": "/files/a.png", "content": png, "encoding": "base64"})
	res, _ := try(t, s, "sandbox_read", args{"sandbox": "demo", "path": "/files/a.png"})
	if img, ok := res.Content[len(res.Content)-1].(*mcp.ImageContent); !ok || img.MIMEType != "image/png" {
		t.Errorf("an image is read as %v", res.Content)
	}
	r, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "atoll://sandboxes/demo/files/files/%C3%A9.txt"})
	if err != nil || r.Contents[0].Text != "grüße" {
		t.Errorf("the resource of a file is %v, %v", r, err)
	}
	if r, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "atoll://sandboxes"}); err != nil || !strings.Contains(r.Contents[0].Text, `"demo"`) {
		t.Errorf("the resource of sandboxes is %v, %v", r, err)
	}
}

func mcpPorts(t *testing.T, s *mcp.ClientSession) {
	use(t, s, "sandbox_write", args{"sandbox": "demo", "path": "/www/index.html", "content": "served"})
	need.Program(t, "python3")
	use(t, s, "sandbox_exec", args{"sandbox": "demo", "args": []string{"python3", "-m", "http.server", "8000", "-d", "/www"}, "background": true})
	url := fmt.Sprint(use(t, s, "port_url", args{"sandbox": "demo", "port": 8000})["url"])
	want(t, use(t, s, "port_url", args{"sandbox": "demo", "port": 8000}), "url", url)
	err := eventually(func() error {
		resp, err := http.Get(url + "/index.html")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && string(text) != "served" {
			err = fmt.Errorf("the server answered %q", text)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func mcpStates(t *testing.T, s *mcp.ClientSession) {
	copies := use(t, s, "sandbox_fork", args{"sandbox": "demo", "prefix": "try"})["sandboxes"].([]any)
	want(t, copies[0].(map[string]any), "sandbox", "try-1")
	want(t, use(t, s, "sandbox_read", args{"sandbox": "try-1", "path": "/www/index.html"}), "content", "served")
	want(t, use(t, s, "sandbox_pause", args{"sandbox": "try-1"}), "state", "paused")
	refused(t, s, "sandbox_exec", "conflict", args{"sandbox": "try-1", "command": "true"})
	want(t, use(t, s, "sandbox_resume", args{"sandbox": "try-1"}), "state", "running")
	want(t, use(t, s, "sandbox_snapshot", args{"sandbox": "try-1", "name": "kept"}), "snapshot", "kept")
	use(t, s, "sandbox_remove", args{"sandbox": "try-1"})
	refused(t, s, "sandbox_inspect", "not_found", args{"sandbox": "try-1"})
	want(t, use(t, s, "sandbox_run", args{"snapshot": "kept", "command": "cat /www/index.html"}), "stdout", "served")
	if saved := fmt.Sprint(use(t, s, "saved_list", args{"kind": "snapshots"})["saved"]); !strings.Contains(saved, "name:kept") {
		t.Errorf("the snapshots are %s, want kept among them", saved)
	}
	want(t, use(t, s, "saved_remove", args{"snapshot": "kept"}), "removed", "kept")
	if saved := use(t, s, "saved_list", args{"kind": "snapshots"})["saved"].([]any); len(saved) != 0 {
		t.Errorf("after the removal, the snapshots are %v, want none", saved)
	}
	refused(t, s, "saved_remove", "not_found", args{"template": "kept:1"})
	if n := len(use(t, s, "sandbox_list", args{})["sandboxes"].([]any)); n != 1 {
		t.Errorf("%d sandboxes are left, want 1", n)
	}
	if out := use(t, s, "sandbox_inspect", args{"sandbox": "demo"}); len(out["processes"].([]any)) == 0 {
		t.Errorf("a sandbox with processes is shown as %v", out)
	}
}

// mcpHostile sends requests of a misled model.
func mcpHostile(t *testing.T, s *mcp.ClientSession) {
	for _, ref := range []string{"", ".", "..", "../keys", "demo/files", "demo%2ffiles", "Demo", "demo\n", strings.Repeat("a", 5000)} {
		refused(t, s, "sandbox_inspect", "invalid", args{"sandbox": ref})
		refused(t, s, "sandbox_remove", "invalid", args{"sandbox": ref})
	}
	for _, id := range []string{"", "..", "../../x", "a/b", "a?b"} {
		refused(t, s, "sandbox_process", "invalid", args{"sandbox": "demo", "action": "signal", "process": id})
	}
	refused(t, s, "sandbox_process", "not_found", args{"sandbox": "demo", "action": "logs", "process": "nosuch"})
	for _, ref := range []string{".", "..", "../sandboxes/demo", "a/b"} {
		refused(t, s, "saved_remove", "invalid", args{"snapshot": ref})
		refused(t, s, "saved_remove", "invalid", args{"template": ref})
	}
	for _, path := range []string{"", "etc/passwd", "../etc/passwd", "/etc/\x00passwd"} {
		refused(t, s, "sandbox_read", "invalid", args{"sandbox": "demo", "path": path})
		refused(t, s, "sandbox_write", "invalid", args{"sandbox": "demo", "path": path, "content": "x"})
	}
	// Paths with dots and links stay within the sandbox's own files.
	use(t, s, "sandbox_exec", args{"sandbox": "demo", "command": "echo inside >/etc/mark; ln -s /../../../../etc/mark /files/out"})
	for _, path := range []string{"/../../../etc/mark", "/files/out"} {
		want(t, use(t, s, "sandbox_read", args{"sandbox": "demo", "path": path}), "content", "inside\n")
	}
	for _, uri := range []string{"atoll://sandboxes/../v1/keys", "atoll://sandboxes/demo/files/none", "atoll://sandboxes/%2e%2e/files/etc/passwd", "file:///etc/passwd", "atoll://sandboxes/demo/processes/..%2f..%2fx/log"} {
		if r, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err == nil {
			t.Errorf("%s was read: %v", uri, r.Contents)
		}
	}
	for _, in := range []args{{"sandbox": "demo", "command": "true", "timeout_seconds": 1e12}, {"sandbox": "demo", "command": "true", "timeout_seconds": -1}, {"sandbox": "demo"}, {"sandbox": "demo", "command": "true", "args": []string{"true"}}} {
		refused(t, s, "sandbox_exec", "invalid", in)
	}
	refused(t, s, "sandbox_exec", "invalid", args{"sandbox": "demo", "command": "true", "mounts": []string{"/"}})
	refused(t, s, "sandbox_create", "already_exists", args{"name": "demo"})
}

func TestMCPOverHTTP(t *testing.T) {
	t.Parallel()
	h := newMCPHost(t)
	address := h.serve(t)
	full := h.atoll(t, "key", "create")
	reader := h.atoll(t, "key", "create", "--allow", "read")
	s := httpSession(t, address, full)
	if v := s.InitializeResult().ProtocolVersion; v != "2026-07-28" {
		t.Errorf("the revision is %s, want 2026-07-28", v)
	}
	want(t, use(t, s, "sandbox_create", args{"name": "demo"}), "sandbox", "demo")
	want(t, use(t, s, "sandbox_exec", args{"sandbox": "demo", "command": "echo hi"}), "stdout", "hi\n")
	refused(t, s, "port_url", "unsupported", args{"sandbox": "demo", "port": 80}) // this server forwards no ports

	weak := httpSession(t, address, reader)
	want(t, use(t, weak, "sandbox_inspect", args{"sandbox": "demo"}), "state", "running")
	refused(t, weak, "sandbox_exec", "denied", args{"sandbox": "demo", "command": "true"})
	refused(t, weak, "sandbox_remove", "denied", args{"sandbox": "demo"})

	for _, revision := range []string{"2025-11-25", "2025-06-18", "2025-03-26"} {
		status, text := post(t, address, full, "", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"old","version":"1"}}}`, revision))
		if status != http.StatusOK || !strings.Contains(text, `"protocolVersion":"`+revision+`"`) {
			t.Errorf("revision %s: %d %s", revision, status, text)
		}
	}
	mcpStrangers(t, h, address, full)
}

// mcpStrangers makes requests that must be rejected.
func mcpStrangers(t *testing.T, h *mcpHost, address, key string) {
	const request = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"sandbox_remove","arguments":{"sandbox":"demo"}}}`
	for _, bad := range []string{"", "x", "atoll_0000_0000", strings.Repeat("k", 100)} {
		if status, text := post(t, address, bad, "", request); status != http.StatusUnauthorized {
			t.Errorf("the key %.10q was answered with %d %s, want 401", bad, status, text)
		}
	}
	if status, _ := post(t, address, key, "rebound.example", request); status != http.StatusForbidden {
		t.Errorf("a request for another host was answered with %d, want 403", status)
	}
	var keys []struct{ ID string }
	if err := json.Unmarshal([]byte(h.atoll(t, "key", "ls", "--json")), &keys); err != nil || len(keys) == 0 {
		t.Fatal(keys, err)
	}
	for _, k := range keys {
		h.atoll(t, "key", "revoke", k.ID)
	}
	if status, _ := post(t, address, key, "", request); status != http.StatusUnauthorized {
		t.Errorf("a revoked key was answered with %d, want 401", status)
	}
	c, err := atoll.New(atoll.Options{Host: "unix://" + filepath.Join(strings.TrimPrefix(h.env[len(h.env)-4], "ATOLL_STATE_DIR="), atoll.SocketName)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Get(t.Context(), "demo"); err != nil {
		t.Errorf("a request without access removed the sandbox: %v", err)
	}
}

// post sends a message like a generic HTTP client.
func post(t *testing.T, address, key, host, message string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader(message))
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := bearer{key, http.DefaultTransport}.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}
