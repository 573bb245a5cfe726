package daemon_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// in runs a command in a session.
func (c bridgeClient) in(session, sandbox string, args ...string) (stdout, stderr, end string) {
	c.t.Helper()
	body, _ := json.Marshal(map[string]any{"argv": args, "timeout_ms": 30000})
	a := c.want(200, "", c.do("POST", sandbox+"/exec", string(body), "Session-Id", session))
	stdout, stderr, _, end = c.events(a.body)
	return stdout, stderr, end
}

// wantIn checks what a command in a session writes.
func (c bridgeClient) wantIn(session, sandbox, want string, args ...string) {
	c.t.Helper()
	if stdout, stderr, end := c.in(session, sandbox, args...); stdout != want || end != `{"exit_code":0}` {
		c.t.Errorf("%q in session %q: %q %q %s, want %q", args, session, stdout, stderr, end, want)
	}
}

const fine = `{"exit_code":0}`

func TestBridgeSessions(t *testing.T) {
	m := daemontest.New(t)
	listen := func(o *daemon.Options) { o.Bridge.Listen = "127.0.0.1:0" }
	d := m.Start(t, listen)
	k, err := daemontest.Client(t, d).Admin().CreateKey(t.Context(), operator.NewKey{Verbs: []string{"read", "exec", "write"}})
	if err != nil {
		t.Fatal(err)
	}
	c := bridgeClient{e2bClient{t, d.Bridge().String()}, k.Token}
	sandbox := c.create()
	if _, _, end := c.in("", sandbox, "mkdir", "-p", "/workspace/app/src"); end != fine {
		t.Fatal(end)
	}
	// A session has its own directory and environment.
	a := c.want(200, "", c.do("POST", sandbox+"/session", `{"id":"one","cwd":"app","env":{"COLOR":"grün","GONE":null}}`))
	if a.fields["id"] != "one" {
		t.Errorf("%s", a.body)
	}
	c.want(502, "session_error", c.do("POST", sandbox+"/session", `{"id":"one"}`))
	other := c.want(200, "", c.do("POST", sandbox+"/session", "")).fields["id"].(string)
	c.wantIn("one", sandbox, "/workspace/app\n", "pwd")
	c.wantIn("one", sandbox, "grün\n", "sh", "-c", "echo $COLOR")
	c.wantIn(other, sandbox, "/workspace\n", "pwd")
	c.wantIn("", sandbox, "/workspace\n", "pwd")
	c.wantIn("never-made", sandbox, "/workspace\n", "pwd") // which is like an empty one
	// Commands of the shell change it; cwd of a request is only for that one.
	for _, args := range [][]string{{"cd", "src"}, {"export", "COLOR=red", "X=a=b"}, {"unset", "X"}} {
		if _, stderr, end := c.in("one", sandbox, args...); end != fine || stderr != "" {
			t.Errorf("%q: %s %q", args, end, stderr)
		}
	}
	a = c.want(200, "", c.do("POST", sandbox+"/exec", `{"argv":["pwd"],"cwd":"/workspace"}`, "Session-Id", "one"))
	if stdout, _, _, _ := c.events(a.body); stdout != "/workspace\n" {
		t.Errorf("with a directory: %q", stdout)
	}
	c.wantIn("one", sandbox, "/workspace/app/src red\n", "sh", "-c", "echo $(pwd) $COLOR $X")
	for _, args := range [][]string{{"cd", "missing"}, {"cd", "/etc"}, {"cd", "../../.."}, {"cd", "a", "b"}, {"export", "=x"}} {
		if _, stderr, end := c.in("one", sandbox, args...); end != `{"exit_code":1}` || !strings.HasPrefix(stderr, args[0]+": ") {
			t.Errorf("%q: %s %q", args, end, stderr)
		}
	}
	// It stays when the daemon restarts.
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	c.addr = m.Start(t, listen).Bridge().String()
	c.wantIn("one", sandbox, "/workspace/app/src\n", "pwd")
	// Ids are checked wherever they are used.
	for _, id := range []string{"a/b", "..", "a b", strings.Repeat("a", 129)} {
		c.want(400, "invalid_request", c.do("POST", sandbox+"/exec", `{"argv":["true"]}`, "Session-Id", id))
		c.want(400, "invalid_request", c.do("GET", sandbox+"/file/workspace/f", "", "Session-Id", id))
		c.want(400, "invalid_request", c.do("PUT", sandbox+"/file/workspace/f", "x", "Session-Id", id))
	}
	c.want(200, "", c.do("PUT", sandbox+"/file/workspace/f", "x", "Session-Id", "one"))
	// A directory that is gone is the default one.
	if _, _, end := c.in("", sandbox, "rm", "-r", "/workspace/app"); end != fine {
		t.Fatal(end)
	}
	c.wantIn("one", sandbox, "/workspace\n", "pwd")
	// Deleting it ends what runs in it.
	stream := make(chan answer)
	go func() {
		stream <- c.do("POST", sandbox+"/exec", `{"argv":["sh","-c","echo go > /workspace/started; sleep 600"]}`, "Session-Id", "one")
	}()
	for c.do("GET", sandbox+"/file/workspace/started", "").status != 200 {
		// It has not started yet.
	}
	a = c.want(200, "", c.do("DELETE", sandbox+"/session/one", ""))
	if a.fields["success"] != true || a.fields["sessionId"] != "one" {
		t.Errorf("%s", a.body)
	}
	if _, _, last, data := c.events((<-stream).body); last != "error" || !strings.Contains(data, "session_error") {
		t.Errorf("the command in it: %s %s", last, data)
	}
	c.want(502, "session_error", c.do("DELETE", sandbox+"/session/one", ""))
	c.wantIn("one", sandbox, "\n", "sh", "-c", "echo $COLOR")
	// There is a limit, at which no other session is made, but those that are there work.
	made := 0
	for ; made < 100; made++ {
		if a := c.do("POST", sandbox+"/session", `{}`); a.status != 200 {
			c.want(502, "session_error", a)
			break
		}
	}
	if made != 63 { // one is there already
		t.Errorf("%d more sessions", made)
	}
	c.want(502, "session_error", c.do("POST", sandbox+"/exec", `{"argv":["export","A=b"]}`, "Session-Id", "new"))
	if _, _, end := c.in(other, sandbox, "export", "A=b"); end != fine {
		t.Error(end)
	}
	// They end with the sandbox.
	c.want(204, "", c.do("DELETE", sandbox, ""))
	c.wantIn(other, sandbox, "\n", "sh", "-c", "echo $A")
}

// TestBridgeSessionsAreHostile: a program in the sandbox overwrites the files
// of its sessions.
func TestBridgeSessionsAreHostile(t *testing.T) {
	_, c, rival := startBridge(t)
	sandbox := c.create()
	c.want(200, "", c.do("POST", sandbox+"/session", `{"id":"one","env":{"A":"mine"}}`))
	rival.wantIn("one", sandbox, "\n", "sh", "-c", "echo $A") // the sandbox of that id is another one
	file := "/var/lib/atoll/bridge/one.json"
	for _, content := range []string{`{`, `[]`, `{"env":{"A=B":"x"}}`, `{"cwd":7}`} {
		if _, stderr, end := c.in("", sandbox, "sh", "-c", fmt.Sprintf("printf '%%s' '%s' > %s", content, file)); end != fine {
			t.Fatal(end, stderr)
		}
		c.want(502, "session_error", c.do("POST", sandbox+"/exec", `{"argv":["true"]}`, "Session-Id", "one"))
		c.want(502, "session_error", c.do("POST", sandbox+"/session", `{"id":"one"}`))
	}
	c.in("", sandbox, "sh", "-c", `echo '{"cwd":"/etc"}' > `+file)
	c.want(403, "invalid_request", c.do("POST", sandbox+"/exec", `{"argv":["pwd"]}`, "Session-Id", "one"))
	c.want(200, "", c.do("DELETE", sandbox+"/session/one", ""))
	c.wantIn("one", sandbox, "/workspace\n", "pwd")
}

func TestBridgeTunnels(t *testing.T) {
	t.Parallel()
	m := daemontest.New(t)
	listen := func(o *daemon.Options) { o.Bridge.Listen = "127.0.0.1:0" }
	d := m.Start(t, listen)
	owner := daemontest.Client(t, d)
	client := func(tenant string, verbs ...string) bridgeClient {
		k, err := owner.Admin().CreateKey(t.Context(), operator.NewKey{Tenant: tenant, Verbs: verbs})
		if err != nil {
			t.Fatal(err)
		}
		return bridgeClient{e2bClient{t, d.Bridge().String()}, k.Token}
	}
	c, rival, reader := client("", "read", "exec", "write"), client("rival", "read", "exec", "write"), client("", "read", "write")
	sandbox := c.create()
	c.in("", sandbox, "true")
	s, err := owner.Get(t.Context(), "bridge-"+strings.TrimPrefix(sandbox, "/v1/sandbox/"))
	if err != nil {
		t.Fatal(err)
	}
	route := fmt.Sprintf("%s/tunnel/%d", sandbox, echo(t, s))
	reader.want(403, "forbidden", reader.do("POST", route, ""))
	a := c.want(200, "", c.do("POST", route, `{"name":"app"}`))
	host, _ := a.fields["hostname"].(string)
	_, port, _ := strings.Cut(c.addr, ":")
	if url := a.fields["url"]; url != "http://"+host+":"+port || !strings.HasSuffix(host, ".localhost") || a.fields["name"] != "app" || a.fields["id"] == "" || a.fields["createdAt"] == "" {
		t.Errorf("%s", a.body)
	}
	again := c.want(200, "", c.do("POST", route, ""))
	if string(again.body) != string(a.body) {
		t.Errorf("%s, then %s", a.body, again.body)
	}
	// A server that echoes is not one of HTTP: the proxy that has reached it says so.
	through := func(host string, headers ...string) int {
		t.Helper()
		return c.call("GET", "/", "", append([]string{"Host", host}, headers...)...).status
	}
	if got := through(host); got != http.StatusBadGateway {
		t.Errorf("through the tunnel: %d", got)
	}
	last := map[bool]string{true: "b", false: "a"}[strings.HasSuffix(strings.TrimSuffix(host, ".localhost"), "a")]
	guessed := strings.TrimSuffix(host, ".localhost")
	guessed = guessed[:len(guessed)-1] + last + ".localhost"
	number, rest, _ := strings.Cut(host, "-")
	for _, wrong := range []string{guessed, "1" + number[:len(number)-1] + "-" + rest, "99999-" + rest, number + "-sb-0000000000000" + host[strings.LastIndex(host, "-"):]} {
		if got := through(wrong, "Authorization", "Bearer "+c.key); got != http.StatusNotFound {
			t.Errorf("at %s: %d", wrong, got)
		}
	}
	// The same id under another key is another sandbox.
	rival.want(204, "", rival.do("DELETE", route, ""))
	// It stays when the daemon restarts.
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = m.Start(t, listen)
	c.addr = d.Bridge().String()
	if got := through(host); got != http.StatusBadGateway {
		t.Errorf("after a restart: %d", got)
	}
	// Deleted, it is gone, and another one has another address.
	for range 2 {
		c.want(204, "", c.do("DELETE", route, ""))
	}
	if got := through(host); got != http.StatusNotFound {
		t.Errorf("a deleted tunnel: %d", got)
	}
	if a := c.want(200, "", c.do("POST", route, "")); a.fields["hostname"] == host || through(host) != http.StatusNotFound {
		t.Errorf("a new tunnel: %s", a.body)
	}
	host = c.want(200, "", c.do("POST", route, "")).fields["hostname"].(string)
	for n := range 40 {
		if a := c.do("POST", fmt.Sprintf("%s/tunnel/%d", sandbox, 10000+n), ""); a.status != 200 {
			if c.want(502, "tunnel_error", a); n != 31 {
				t.Errorf("%d more tunnels", n)
			}
			break
		}
	}
	// So it is with the sandbox.
	c.want(204, "", c.do("DELETE", sandbox, ""))
	c.in("", sandbox, "true")
	if got := through(host); got != http.StatusNotFound {
		t.Errorf("the tunnel of a deleted sandbox: %d", got)
	}
}
