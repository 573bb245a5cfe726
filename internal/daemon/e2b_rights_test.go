package daemon_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// keyWith returns a key of the default tenant with permissions, and its id.
func keyWith(t *testing.T, d *daemon.Daemon, verbs ...string) (token, id string) {
	t.Helper()
	k, err := daemontest.Client(t, d).Admin().CreateKey(t.Context(), operator.NewKey{Verbs: verbs})
	ok(t, err)
	return envd.Key(k.Token), k.ID
}

// TestAttackE2BTokensOfAReader: the tokens that a key gets have the rights of
// that key.
func TestAttackE2BTokensOfAReader(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, func(o *daemon.Options) { o.E2B.Listen = "127.0.0.1:0" })
	c := e2bClient{t, d.E2B().String()}
	all, _ := keyWith(t, d, "read", "exec", "write")
	id, own := c.create(all)
	volume := c.want(201, c.call("POST", "/volumes", `{"name":"data"}`, "X-API-Key", all))
	hash := strings.Repeat("0", 64)

	reader, _ := keyWith(t, d, "read")
	token := c.want(200, c.call("GET", "/sandboxes/"+id, "", "X-API-Key", reader)).fields["envdAccessToken"].(string)
	if token == own {
		t.Fatal("a key with read only gets the token of the creator")
	}
	inside := func(token, method, path, body string) int {
		kind := "application/json"
		if strings.HasPrefix(path, "/files?") {
			kind = "application/octet-stream"
		}
		return c.call(method, path, body, "E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "49983", "X-Access-Token", token, "Content-Type", kind).status
	}
	const pick = `{"process":{"pid":1}}`
	for _, tt := range []struct {
		method, path, body string
		want               int
	}{
		{"POST", "/files?path=/root/x&username=root", "x", http.StatusForbidden},
		{"GET", "/envs", "", http.StatusForbidden},
		{"POST", "/process.Process/Update", pick, http.StatusForbidden},
		{"POST", "/process.Process/SendInput", pick, http.StatusForbidden},
		{"POST", "/process.Process/SendSignal", `{"process":{"pid":1},"signal":"SIGNAL_SIGKILL"}`, http.StatusForbidden},
		{"POST", "/process.Process/CloseStdin", pick, http.StatusForbidden},
		{"POST", "/filesystem.Filesystem/MakeDir", `{"path":"/root/d"}`, http.StatusForbidden},
		{"POST", "/filesystem.Filesystem/Move", `{"source":"/etc/passwd","destination":"/root/d"}`, http.StatusForbidden},
		{"POST", "/filesystem.Filesystem/Remove", `{"path":"/etc/passwd"}`, http.StatusForbidden},
		{"GET", "/files?path=/etc/passwd", "", http.StatusOK},
		{"POST", "/filesystem.Filesystem/Stat", `{"path":"/etc/passwd"}`, http.StatusOK},
		{"POST", "/filesystem.Filesystem/ListDir", `{"path":"/etc"}`, http.StatusOK},
		{"POST", "/process.Process/List", "{}", http.StatusOK},
	} {
		if got := inside(token, tt.method, tt.path, tt.body); got != tt.want {
			t.Errorf("%s %s with the token of a reader: %d, want %d", tt.method, tt.path, got, tt.want)
		}
	}
	if _, said, err := (e2bFiles{c, id, token}).run(`{"process":{"cmd":"/bin/true"}}`).next(); err != nil || said["error"] == nil {
		t.Errorf("a reader starts a command: %v %v", said, err)
	}
	if got := inside(own, "POST", "/files?path=/root/x&username=root", "x"); got != http.StatusOK {
		t.Errorf("the creator writes a file: %d", got)
	}

	vid := volume.fields["volumeID"].(string)
	file := "/volumecontent/" + vid + "/file?path=/x"
	vtoken := c.want(200, c.call("GET", "/volumes/"+vid, "", "X-API-Key", reader)).fields["token"].(string)
	if got := c.call("PUT", file, "x", "Authorization", "Bearer "+vtoken).status; got != http.StatusForbidden {
		t.Errorf("a reader writes to a volume: %d", got)
	}
	if got := c.call("PUT", file, "x", "Authorization", "Bearer "+volume.fields["token"].(string)).status; got != http.StatusCreated {
		t.Errorf("the creator writes to the volume: %d", got)
	}
	if got := c.call("GET", file, "", "Authorization", "Bearer "+vtoken).status; got != http.StatusOK {
		t.Errorf("a reader reads from a volume: %d", got)
	}
	if got := c.call("GET", "/templates/x/files/"+hash, "", "X-API-Key", reader).status; got != http.StatusForbidden {
		t.Errorf("a reader gets an upload URL: %d", got)
	}
}

// TestAttackE2BTokensAfterTheirKey: a token ends with the key that it was given
// to, and so do its streams. Tokens of other keys stay.
func TestAttackE2BTokensAfterTheirKey(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, func(o *daemon.Options) { o.E2B.Listen = "127.0.0.1:0" })
	c := e2bClient{t, d.E2B().String()}
	first, firstID := keyWith(t, d, "read", "exec", "write")
	second, _ := keyWith(t, d, "read", "exec", "write")
	id, token := c.create(first)
	other := c.want(200, c.call("GET", "/sandboxes/"+id, "", "X-API-Key", second)).fields["envdAccessToken"].(string)
	stream := (e2bFiles{c, id, token}).run(`{"process":{"cmd":"/bin/sleep","args":["600"]}}`)
	pid := stream.until("start").(map[string]any)["pid"]

	ok(t, daemontest.Client(t, d).Admin().RevokeKey(t.Context(), firstID))
	for { // without an end, the test runs into its time limit
		if _, _, err := stream.next(); err != nil {
			break
		}
	}
	read := func(token string) int {
		return c.call("GET", "/files?path=/etc/passwd", "", "E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "49983", "X-Access-Token", token).status
	}
	if got := read(token); got != http.StatusUnauthorized {
		t.Errorf("a token after its key: %d", got)
	}
	if got := read(other); got != http.StatusOK {
		t.Errorf("a token of another key: %d", got)
	}
	kill := fmt.Sprintf(`{"process":{"pid":%v},"signal":"SIGNAL_SIGKILL"}`, pid)
	c.want(200, c.call("POST", "/process.Process/SendSignal", kill, "E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "49983", "X-Access-Token", other, "Content-Type", "application/json"))
	yes := true
	_, err := daemontest.Client(t, d).Admin().UpdateTenant(t.Context(), "default", operator.TenantChange{Disabled: &yes})
	ok(t, err)
	if got := read(other); got != http.StatusUnauthorized {
		t.Errorf("a token of a disabled tenant: %d", got)
	}
	no := false
	_, err = daemontest.Client(t, d).Admin().UpdateTenant(t.Context(), "default", operator.TenantChange{Disabled: &no})
	ok(t, err)
}
