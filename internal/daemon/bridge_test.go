package daemon_test

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// bridgeClient calls the API of Cloudflare's bridge.
type bridgeClient struct {
	e2bClient
	key string
}

func startBridge(t *testing.T) (owner *atoll.Client, mine, other bridgeClient) {
	d := daemontest.New(t).Start(t, func(o *daemon.Options) { o.Bridge.Listen = "127.0.0.1:0" })
	owner = daemontest.Client(t, d)
	var all []bridgeClient
	for _, tenant := range []string{"", "rival"} {
		k, err := owner.Admin().CreateKey(t.Context(), operator.NewKey{Tenant: tenant, Verbs: []string{"read", "exec", "write"}})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, bridgeClient{e2bClient{t, d.Bridge().String()}, k.Token})
	}
	return owner, all[0], all[1]
}

func (c bridgeClient) do(method, path, body string, headers ...string) answer {
	c.t.Helper()
	return c.call(method, path, body, append([]string{"Authorization", "bearer " + c.key}, headers...)...)
}

// want checks the status and, of an error, its code.
func (c bridgeClient) want(status int, code string, a answer) answer {
	c.t.Helper()
	if got, _ := a.fields["code"].(string); a.status != status || got != code {
		c.t.Fatalf("status %d with code %q, want %d with %q: %s", a.status, got, status, code, a.body)
	}
	for _, b := range a.body {
		if status >= 400 && b >= 0x80 {
			c.t.Fatalf("an error is not ASCII: %q", a.body)
		}
	}
	return a
}

func (c bridgeClient) create() string {
	c.t.Helper()
	return "/v1/sandbox/" + c.want(200, "", c.do("POST", "/v1/sandbox", "")).fields["id"].(string)
}

// exec runs a command, and returns its output and the name and data of the last
// event.
func (c bridgeClient) exec(sb string, args ...string) (stdout, stderr, last, data string) {
	c.t.Helper()
	body, _ := json.Marshal(map[string]any{"argv": args, "timeout_ms": 30000})
	a := c.want(200, "", c.do("POST", sb+"/exec", string(body)))
	if kind := a.header.Get("Content-Type"); kind != "text/event-stream" {
		c.t.Fatalf("content type %q", kind)
	}
	return c.events(a.body)
}

func (c bridgeClient) events(stream []byte) (stdout, stderr, last, data string) {
	c.t.Helper()
	for event := range strings.SplitSeq(strings.TrimSuffix(string(stream), "\n\n"), "\n\n") {
		name, rest, ok := strings.Cut(strings.TrimPrefix(event, "event: "), "\ndata: ")
		if !ok || last != "" {
			c.t.Fatalf("event %q in %q", event, stream)
		}
		piece, err := base64.StdEncoding.DecodeString(rest)
		switch name {
		case "stdout":
			stdout += string(piece)
		case "stderr":
			stderr += string(piece)
		default:
			last, data, err = name, rest, nil
		}
		if err != nil {
			c.t.Fatal(err)
		}
	}
	return stdout, stderr, last, data
}

func TestAttackBridgeWantsKeys(t *testing.T) {
	_, c, other := startBridge(t)
	sb := c.create()
	c.want(200, "", c.call("GET", "/health", ""))
	for _, route := range []string{
		"POST /v1/sandbox", "GET /v1/openapi.json", "GET /nowhere", "DELETE " + sb, "GET " + sb + "/running", "POST " + sb + "/exec", "GET " + sb + "/file/workspace/x", "PUT " + sb + "/file/workspace/x",
		"POST " + sb + "/persist", "POST " + sb + "/hydrate", "GET " + sb + "/pty", "POST " + sb + "/mount", "POST " + sb + "/unmount", "POST " + sb + "/session", "POST " + sb + "/tunnel/8080", "GET " + sb + "/nowhere",
	} {
		method, path, _ := strings.Cut(route, " ")
		for _, headers := range [][]string{nil, {"Authorization", ""}, {"Authorization", "Bearer " + c.key + "0"}, {"Authorization", "Basic " + c.key}, {"X-API-Key", c.key}} {
			a := c.want(401, "unauthorized", c.call(method, path, `{"argv":["true"]}`, headers...))
			if strings.Contains(string(a.body), c.key) {
				t.Errorf("%s tells the key: %s", route, a.body)
			}
		}
	}
	c.want(401, "unauthorized", c.call("GET", sb+"/running?authorization=Bearer%20"+c.key, "")) // but for terminals
	// Another tenant's sandbox with the same id is another one.
	c.want(200, "", c.do("PUT", sb+"/file/workspace/x", "mine"))
	if a := c.want(200, "", other.do("GET", sb+"/running", "")); a.fields["running"] != false {
		t.Errorf("another tenant's sandbox: %s", a.body)
	}
	other.want(404, "workspace_read_not_found", other.do("GET", sb+"/file/workspace/x", ""))
	other.want(204, "", other.do("DELETE", sb, ""))
	if a := c.want(200, "", c.do("GET", sb+"/file/workspace/x", "")); string(a.body) != "mine" {
		t.Errorf("the file holds %q", a.body)
	}
}

// TestAttackBridgeTerminal: a terminal is refused before the upgrade, for a key
// that may not run commands and for pages of other origins.
func TestAttackBridgeTerminal(t *testing.T) {
	owner, c, _ := startBridge(t)
	sb := c.create()
	upgrade := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="}
	for what, verbs := range map[string][]string{"reads": {"read"}, "reads and writes": {"read", "write"}} {
		k, err := owner.Admin().CreateKey(t.Context(), operator.NewKey{Verbs: verbs})
		if err != nil {
			t.Fatal(err)
		}
		few := bridgeClient{c.e2bClient, k.Token}
		a := few.want(403, "forbidden", few.do("GET", sb+"/pty", "", upgrade...))
		if strings.Contains(string(a.body), k.Token) {
			t.Errorf("a key that %s: the answer has the key", what)
		}
	}
	for _, headers := range [][]string{{"Origin", "https://evil.example"}, {"Origin", "null"}, {"Sec-Fetch-Site", "cross-site"}} {
		c.want(403, "forbidden", c.do("GET", sb+"/pty", "", append(headers, upgrade...)...))
		c.want(403, "forbidden", c.do("POST", sb+"/exec", `{"argv":["true"]}`, headers...))
	}
}

func TestBridgeRefuses(t *testing.T) {
	_, c, _ := startBridge(t)
	sb := c.create()
	if _, _, last, _ := c.exec(sb, "ln", "-s", "/etc", "/workspace/out"); last != "exit" {
		t.Fatal(last)
	}
	for _, r := range []struct {
		route, body string
		status      int
		code        string
	}{
		{"GET /v1/sandbox/no%20id/running", "", 400, "invalid_request"},
		{"GET /v1/sandbox/" + strings.Repeat("a", 129) + "/running", "", 400, "invalid_request"},
		{"GET /v1/sandbox/", "", 400, "invalid_request"},
		{"GET " + sb, "", 404, "invalid_request"},
		{"POST " + sb + "/running", "", 404, "invalid_request"},
		{"GET " + sb + "/running/x", "", 404, "invalid_request"},
		{"GET /v1/nowhere", "", 404, "invalid_request"},
		{"POST /v1/sandbox", `{`, 400, "invalid_request"},
		{"POST /v1/sandbox", `{"mounts":[{"bucket":"b","mountPath":"/workspace/d","options":{"endpoint":"https://s3.example"}}]}`, 502, "mount_error"},
		{"POST " + sb + "/exec", ``, 400, "invalid_request"},
		{"POST " + sb + "/exec", `{"argv":`, 400, "invalid_request"},
		{"POST " + sb + "/exec", `{"argv":[]}`, 400, "invalid_request"},
		{"POST " + sb + "/exec", `{"argv":"ls"}`, 400, "invalid_request"},
		{"POST " + sb + "/exec", `{"argv":[""]}`, 400, "invalid_request"},
		{"POST " + sb + "/exec", `{"argv":["a\u0000"]}`, 400, "invalid_request"},
		{"POST " + sb + "/exec", `{"argv":["ls"],"timeout_ms":-1}`, 400, "invalid_request"},
		{"POST " + sb + "/exec", `{"argv":["ls"],"timeout_ms":"1"}`, 400, "invalid_request"},
		{"POST " + sb + "/exec", `{"argv":["ls"],"cwd":"/etc"}`, 403, "invalid_request"},
		{"POST " + sb + "/exec", `{"argv":["ls"],"cwd":"out"}`, 403, "invalid_request"},
		{"POST " + sb + "/exec", `{"argv":["` + strings.Repeat("x", 9<<20) + `"]}`, 413, "payload_too_large"},
		{"GET " + sb + "/file/", "", 400, "invalid_request"},
		{"GET " + sb + "/file/workspace/missing", "", 404, "workspace_read_not_found"},
		{"GET " + sb + "/file/workspace/../etc/hostname", "", 403, "invalid_request"},
		{"GET " + sb + "/file/etc/hostname", "", 403, "invalid_request"},
		{"GET " + sb + "/file/workspace/out/hostname", "", 403, "invalid_request"},
		{"GET " + sb + "/file/workspace", "", 400, "invalid_request"},
		{"PUT " + sb + "/file/workspace/out/x", "x", 403, "invalid_request"},
		{"PUT " + sb + "/file/tmp/x", "x", 403, "invalid_request"},
		{"POST " + sb + "/persist?excludes=a,../b", "", 400, "invalid_request"},
		{"POST " + sb + "/hydrate", "", 400, "invalid_request"},
		{"POST " + sb + "/hydrate", "this is no archive", 400, "invalid_request"},
		{"GET " + sb + "/pty", "", 400, "invalid_request"},
		{"POST " + sb + "/mount", `{"mountPath":"data","binding":"b"}`, 400, "invalid_request"},
		{"POST " + sb + "/mount", `{"mountPath":"/workspace/d"}`, 400, "invalid_request"},
		{"POST " + sb + "/mount", `{"mountPath":"/workspace/d","options":{"endpoint":"https://s3.example"}}`, 400, "invalid_request"},
		{"POST " + sb + "/mount", `{"mountPath":"/workspace/d","bucket":"b","options":{"endpoint":"https://s3.example","credentials":{"accessKeyId":"canary","secretAccessKey":"canary"}}}`, 502, "mount_error"},
		{"POST " + sb + "/mount", `{"mountPath":"/workspace/d","binding":"b"}`, 502, "mount_error"},
		{"POST " + sb + "/unmount", `{"mountPath":"/"}`, 400, "invalid_request"},
		{"POST " + sb + "/unmount", `{"mountPath":"/workspace/d"}`, 502, "unmount_error"},
		{"POST " + sb + "/session", `{`, 400, "invalid_request"},
		{"POST " + sb + "/session", `{"id":"a/b"}`, 400, "invalid_request"},
		{"POST " + sb + "/session", `{"id":".."}`, 400, "invalid_request"},
		{"POST " + sb + "/session", `{"id":"` + strings.Repeat("a", 129) + `"}`, 400, "invalid_request"},
		{"POST " + sb + "/session", `{"id":7}`, 400, "invalid_request"},
		{"POST " + sb + "/session", `{"cwd":"/etc"}`, 403, "invalid_request"},
		{"POST " + sb + "/session", `{"cwd":"out"}`, 403, "invalid_request"},
		{"POST " + sb + "/session", `{"env":{"A=B":"canary"}}`, 400, "invalid_request"},
		{"POST " + sb + "/session", `{"env":{"A":"canary\u0000"}}`, 400, "invalid_request"},
		{"POST " + sb + "/session", `{"env":{"A":"` + strings.Repeat("x", 65<<10) + `"}}`, 400, "invalid_request"},
		{"POST " + sb + "/session", `{"id":"default"}`, 502, "session_error"},
		{"POST " + sb + "/session/x", `{}`, 404, "invalid_request"},
		{"DELETE " + sb + "/session/default", "", 502, "session_error"},
		{"DELETE " + sb + "/session/unknown", "", 502, "session_error"},
		{"DELETE " + sb + "/session/", "", 400, "invalid_request"},
		{"DELETE " + sb + "/session/..%2f..%2fetc", "", 400, "invalid_request"},
		{"DELETE /v1/sandbox/never/session/x", "", 502, "session_error"},
		{"POST " + sb + "/tunnel/8080", `{`, 400, "invalid_request"},
		{"POST " + sb + "/tunnel/8080", `{"name":"No Label"}`, 400, "invalid_request"},
		{"POST " + sb + "/tunnel/8080", `{"name":""}`, 400, "invalid_request"},
		{"POST " + sb + "/tunnel/80", "", 400, "invalid_request"},
		{"POST " + sb + "/tunnel/3000", "", 400, "invalid_request"},
		{"POST " + sb + "/tunnel/65536", "", 400, "invalid_request"},
		{"POST " + sb + "/tunnel/08080", "", 400, "invalid_request"},
		{"POST " + sb + "/tunnel/", "", 400, "invalid_request"},
		{"DELETE " + sb + "/tunnel/x", "", 400, "invalid_request"},
		{"DELETE " + sb + "/tunnel/8080", "", 204, ""},
		{"DELETE /v1/sandbox/never/tunnel/8080", "", 204, ""},
	} {
		method, path, _ := strings.Cut(r.route, " ")
		a := c.do(method, path, r.body)
		if got, _ := a.fields["code"].(string); a.status != r.status || got != r.code || strings.Contains(string(a.body), "canary") {
			t.Errorf("%s %.80s: %d %s; want %d with code %q", r.route, r.body, a.status, a.body, r.status, r.code)
		}
	}
}

func TestBridgeRunsCommands(t *testing.T) {
	_, c, _ := startBridge(t)
	sb := c.create()
	for _, r := range []struct {
		args           []string
		stdout, stderr string
		end            string
	}{
		{[]string{"sh", "-c", "pwd; echo é >&2; exit 3"}, "/workspace\n", "é\n", `{"exit_code":3}`},
		{[]string{"printf", "%s|%s|%s", "a\nb", "", "it's"}, "a\nb||it's", "", `{"exit_code":0}`},
		{[]string{"sh", "-c", "printf '\\000\\377'"}, "\x00\xff", "", `{"exit_code":0}`},
		{[]string{"sh", "-c", "kill -9 $$"}, "", "", `{"exit_code":137}`},
	} {
		stdout, stderr, last, data := c.exec(sb, r.args...)
		if stdout != r.stdout || stderr != r.stderr || last != "exit" || data != r.end {
			t.Errorf("%q: %q, %q, %s %s", r.args, stdout, stderr, last, data)
		}
	}
	if _, _, last, data := c.exec(sb, "no-such-program"); last != "exit" || data != `{"exit_code":127}` {
		t.Errorf("a missing program: %s %s", last, data)
	}
	c.want(200, "", c.do("PUT", sb+"/file/workspace/d/f", "x"))
	a := c.want(200, "", c.do("POST", sb+"/exec", `{"argv":["pwd"],"cwd":"d"}`))
	if stdout, _, _, _ := c.events(a.body); stdout != "/workspace/d\n" {
		t.Errorf("with a directory: %q", stdout)
	}
}

func TestBridgeLifecycle(t *testing.T) {
	owner, c, _ := startBridge(t)
	running := func(sb string) bool {
		t.Helper()
		return c.want(200, "", c.do("GET", sb+"/running", "")).fields["running"] == true
	}
	sb := c.create()
	name := "bridge-" + strings.TrimPrefix(sb, "/v1/sandbox/")
	content := strings.Repeat("0123456789", 100)
	c.want(200, "", c.do("PUT", sb+"/file/workspace/a%20b/c.txt", content))
	if a := c.do("GET", sb+"/file/workspace/a%20b/c.txt", "", "Range", "bytes=5-14"); a.status != 206 || string(a.body) != "5678901234" || a.header.Get("Content-Range") != "bytes 5-14/1000" {
		t.Errorf("a range: %d %q %q", a.status, a.body, a.header)
	}
	c.want(416, "invalid_request", c.do("GET", sb+"/file/workspace/a%20b/c.txt", "", "Range", "bytes=1000-"))
	for _, args := range [][]string{
		{"ln", "-s", "/workspace/a b/c.txt", "/workspace/link"},
		{"ln", "-s", "/etc/hostname", "/workspace/outside"},
		{"ln", "/workspace/a b/c.txt", "/workspace/hard"},
		{"mkfifo", "/workspace/pipe"},
		{"mkdir", "-p", "/workspace/cache/x", "/workspace/star*"},
	} {
		if _, stderr, _, data := c.exec(sb, args...); data != `{"exit_code":0}` {
			t.Fatalf("%q: %s %s", args, stderr, data)
		}
	}
	kept := c.want(200, "", c.do("POST", sb+"/persist?excludes=cache,./star*", "")).body
	want := map[string]byte{"./": '5', "./a b/": '5', "./a b/c.txt": '0', "./hard": '0', "./link": '2'}
	for in := tar.NewReader(bytes.NewReader(kept)); ; {
		head, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if head.Typeflag != want[head.Name] {
			t.Errorf("member %q of type %c", head.Name, head.Typeflag)
		}
		delete(want, head.Name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	// It sleeps, and wakes.
	s, err := owner.Get(t.Context(), name)
	if err == nil {
		_, err = s.Pause(t.Context(), sandbox.PauseDisk)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !running(sb) {
		t.Error("a paused sandbox is not running")
	}
	if stdout, _, _, _ := c.exec(sb, "cat", "/workspace/link"); stdout != content {
		t.Errorf("after a pause: %q", stdout)
	}
	// It is deleted, and its id begins anew.
	for range 2 {
		c.want(204, "", c.do("DELETE", sb, ""))
		if running(sb) {
			t.Error("a deleted sandbox is running")
		}
	}
	if running("/v1/sandbox/unknown_ID-1") {
		t.Error("an unknown sandbox is running")
	}
	c.want(200, "", c.do("POST", sb+"/hydrate", string(kept)))
	if stdout, _, _, _ := c.exec(sb, "cat", "/workspace/hard", "/workspace/link"); stdout != content+content {
		t.Errorf("after hydrating: %q", stdout)
	}
	// Ids that are not valid names work, many at once.
	done := make(chan answer)
	for range 4 {
		go func() { done <- c.do("POST", "/v1/sandbox/My_ID/exec", `{"argv":["true"]}`) }()
	}
	for range 4 {
		if a := <-done; a.status != 200 || !strings.Contains(string(a.body), `"exit_code":0`) {
			t.Errorf("a new id: %d %s", a.status, a.body)
		}
	}
	count := 0
	for _, err := range owner.List(t.Context(), atoll.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		count++
	}
	if count != 2 {
		t.Errorf("%d sandboxes, want 2", count)
	}
}

func TestBridgeMountsWorkspaces(t *testing.T) {
	owner, c, _ := startBridge(t)
	if _, err := owner.CreateWorkspace(t.Context(), durable.NewWorkspace{Name: "data"}); err != nil {
		t.Fatal(err)
	}
	mount := `{"binding":"data","mountPath":"/workspace/data"}`
	a := c.want(200, "", c.do("POST", "/v1/sandbox", `{"exposedPorts":[80],"timeoutMs":5,"mounts":[`+mount+`]}`))
	sb := "/v1/sandbox/" + a.fields["id"].(string)
	c.want(200, "", c.do("POST", sb+"/mount", mount))
	c.want(502, "mount_error", c.do("POST", sb+"/mount", strings.Replace(mount, "workspace/data", "workspace/other", 1)))
	c.want(200, "", c.do("PUT", sb+"/file/workspace/data/f", "kept elsewhere"))
	kept := c.want(200, "", c.do("POST", sb+"/persist", "")).body
	if bytes.Contains(kept, []byte("kept elsewhere")) {
		t.Error("a mount was persisted")
	}
	c.want(204, "", c.do("DELETE", sb, ""))
	w, err := owner.Workspace(t.Context(), "data")
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Attached) > 0 {
		t.Errorf("the workspace is still attached: %v", w.Attached)
	}
}
