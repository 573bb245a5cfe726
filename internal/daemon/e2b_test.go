package daemon_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// e2bClient calls the E2B API.
type e2bClient struct {
	t    *testing.T
	addr string
}

// answer is a response. Fields are the fields of a JSON object.
type answer struct {
	status int
	header http.Header
	body   []byte
	fields map[string]any
}

func (c e2bClient) call(method, path, body string, headers ...string) answer {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, "http://"+c.addr+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, header: resp.Header, fields: map[string]any{}}
	if a.body, err = io.ReadAll(resp.Body); err != nil {
		c.t.Fatal(err)
	}
	_ = json.Unmarshal(a.body, &a.fields) // not every answer is an object
	return a
}

func (c e2bClient) want(status int, a answer) answer {
	c.t.Helper()
	if a.status != status {
		c.t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	if code, ok := a.fields["code"].(float64); status >= 400 && (!ok || int(code) != status) {
		c.t.Fatalf("the body of %d says %v: %s", status, a.fields["code"], a.body)
	}
	return a
}

// startE2B starts a daemon with the E2B API, and creates keys of two tenants.
func startE2B(t *testing.T) (m *daemontest.Machine, c e2bClient, mine, other string) {
	m = daemontest.New(t)
	d := m.Start(t, func(o *daemon.Options) { o.E2B.Listen = "127.0.0.1:0" })
	owner := daemontest.Client(t, d)
	keys := []string{}
	for _, tenant := range []string{"", "rival"} {
		k, err := owner.Admin().CreateKey(t.Context(), operator.NewKey{Tenant: tenant, Verbs: []string{"read", "exec", "write"}})
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, envd.Key(k.Token))
	}
	return m, e2bClient{t, d.E2B().String()}, keys[0], keys[1]
}

// create makes a sandbox and returns its id and token.
func (c e2bClient) create(key string) (id, token string) {
	c.t.Helper()
	a := c.want(201, c.call("POST", "/v2/sandboxes", `{"templateID":"base","envVars":{"SECRET":"canary-7f3a"}}`, "X-API-Key", key))
	return a.fields["sandboxID"].(string), a.fields["envdAccessToken"].(string)
}

func TestAttackE2BControlPlaneWantsKeys(t *testing.T) {
	_, c, mine, other := startE2B(t)
	id, token := c.create(mine)
	routes := []string{
		"POST /sandboxes", "POST /v2/sandboxes", "GET /sandboxes", "GET /v2/sandboxes", "GET /snapshots", "GET /nowhere", "GET /volumes", "POST /v3/templates", "POST /v2/templates", "GET /templates", "GET /templates/x", "GET /templates/x/files/" + strings.Repeat("0", 64),
		"POST /v2/templates/x/builds/y", "GET /templates/x/builds/y/status", "GET /templates/aliases/base", "POST /templates/tags", "GET /secrets", "POST /secrets",
		"GET /secrets/x", "POST /secrets/x", "DELETE /secrets/x", "GET /sandboxes/" + id + "/logs", "GET /v2/sandboxes/" + id + "/logs", "PUT /sandboxes/" + id + "/network",
		"GET /sandboxes/" + id, "DELETE /sandboxes/" + id, "POST /sandboxes/" + id + "/connect", "POST /sandboxes/" + id + "/timeout",
		"POST /sandboxes/" + id + "/pause", "POST /sandboxes/" + id + "/fork", "GET /sandboxes/" + id + "/metrics",
	}
	for _, route := range routes {
		method, path, _ := strings.Cut(route, " ")
		for _, headers := range [][]string{nil, {"X-API-Key", ""}, {"X-API-Key", token}, {"X-API-Key", mine[:len(mine)-2] + "00"}, {"X-Access-Token", token}} {
			c.want(401, c.call(method, path, "{}", headers...))
		}
		if strings.Contains(path, id) { // another tenant's is as good as none
			c.want(404, c.call(method, path, `{"timeout":60}`, "X-API-Key", other))
		}
	}
	if a := c.want(200, c.call("GET", "/v2/sandboxes", "", "X-API-Key", other)); string(bytes.TrimSpace(a.body)) != "[]" {
		t.Errorf("another tenant sees %s", a.body)
	}
	c.want(204, c.call("DELETE", "/sandboxes/"+id, "", "X-API-Key", mine))
	c.want(404, c.call("DELETE", "/sandboxes/"+id, "", "X-API-Key", mine))
}

func TestAttackE2BDataPlaneWantsTheSandboxesOwnToken(t *testing.T) {
	_, c, mine, other := startE2B(t)
	id, token := c.create(mine)
	foreign, foreignToken := c.create(other)
	stat := func(id string, headers ...string) answer {
		return c.call("POST", "/filesystem.Filesystem/Stat", `{"path":"/"}`,
			append([]string{"E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "49983", "Content-Type", "application/json"}, headers...)...)
	}
	if a := stat(id, "X-Access-Token", token); a.status != 200 {
		t.Fatalf("with its token: %d %s", a.status, a.body)
	}
	for _, wrong := range [][]string{nil, {"X-Access-Token", foreignToken}, {"X-Access-Token", token + "0"}, {"X-API-Key", mine}} {
		c.want(401, stat(id, wrong...))
	}
	c.want(401, stat(foreign, "X-Access-Token", token))
	// The host name overrides headers. A name without a port does not name a sandbox.
	byName := c.call("POST", "/filesystem.Filesystem/Stat", `{"path":"/"}`, "Host", "49983-"+foreign+".box.test", "E2b-Sandbox-Id", id,
		"X-Access-Token", token, "Content-Type", "application/json")
	c.want(401, byName)
	c.want(502, c.call("GET", "/health", "", "Host", "49983-sb0000000000000.box.test"))
	for _, odd := range []string{"sb", "sb-", "xx0000000000000", "sb..", "sb%2f"} {
		if a := c.call("GET", "/health", "", "E2b-Sandbox-Id", odd, "E2b-Sandbox-Port", "49983"); a.status != 400 && a.status != 404 && a.status != 502 {
			t.Errorf("id %q: %d %s", odd, a.status, a.body)
		}
	}
	// A token of a sandbox is not a key, and cannot end the sandbox.
	c.want(401, c.call("DELETE", "/sandboxes/"+id, "", "Authorization", "Bearer "+token))
	c.want(204, c.call("DELETE", "/sandboxes/"+id, "", "X-API-Key", mine))
	c.want(502, c.call("GET", "/health", "", "E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "49983"))
	c.want(502, stat(id, "X-Access-Token", token))
}

func TestAttackE2BSignatures(t *testing.T) {
	_, c, mine, _ := startE2B(t)
	id, token := c.create(mine)
	other, _ := c.create(mine)
	c.want(200, c.call("POST", "/files?path=/tmp/f", "content", "E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "49983", "X-Access-Token", token,
		"Content-Type", "application/octet-stream"))
	get := func(id string, q url.Values) answer {
		return c.call("GET", "/files?"+q.Encode(), "", "Host", "49983-"+id+".box.test")
	}
	// The signature was computed apart: sha256 of "/tmp/f:read::TOKEN".
	good := url.Values{"path": {"/tmp/f"}, "signature": {sign("/tmp/f:read::" + token)}}
	if a := get(id, good); a.status != 200 || string(a.body) != "content" {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if a := c.call("GET", "/files?"+good.Encode(), ""); a.status != 200 { // without a name
		t.Errorf("without a name: %d %s", a.status, a.body)
	}
	c.want(401, get(other, good))
	for name, bad := range map[string]url.Values{
		"none":         {"path": {"/tmp/f"}},
		"another path": {"path": {"/etc/passwd"}, "signature": good["signature"]},
		"another user": {"path": {"/tmp/f"}, "username": {"root"}, "signature": good["signature"]},
		"later expiry": {"path": {"/tmp/f"}, "signature_expiration": {"99999999999"}, "signature": {sign("/tmp/f:read::" + token + ":1")}},
		"expired":      {"path": {"/tmp/f"}, "signature_expiration": {"1"}, "signature": {sign("/tmp/f:read::" + token + ":1")}},
		"for writing":  {"path": {"/tmp/f"}, "signature": {sign("/tmp/f:write::" + token)}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, a := range []answer{c.want(401, get(id, bad)), c.want(401, c.call("GET", "/files?"+bad.Encode(), ""))} {
				if len(a.fields) != 2 || (a.fields["message"] == "signature is already expired") != (name == "expired") {
					t.Errorf("it says %s", a.body)
				}
			}
		})
	}
	wrong := c.call("GET", "/files?"+good.Encode(), "", "Host", "49983-"+id+".box.test", "X-Access-Token", "wrong")
	c.want(401, wrong) // a header wins over a signature
}

// Secrets are only in the file in the state directory that they are derived
// from.
func TestE2BKeepsSecrets(t *testing.T) {
	m, c, mine, _ := startE2B(t)
	_, token := c.create(mine)
	secrets := []string{token, mine, envd.Token(mine)}
	err := filepath.WalkDir(m.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		for _, secret := range secrets {
			if bytes.Contains(text, []byte(secret)) {
				t.Errorf("%s holds a secret", d.Name())
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(m.Dir, "e2b.secret"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestE2BLists(t *testing.T) {
	_, c, mine, _ := startE2B(t)
	var ids []string
	for range 3 {
		id, _ := c.create(mine)
		ids = append(ids, id)
	}
	first := c.want(200, c.call("GET", "/v2/sandboxes?limit=2&order=asc", "", "X-API-Key", mine))
	next := first.header.Get("X-Next-Token")
	if first.header.Get("X-Total-Running") != "3" || next == "" || !strings.Contains(string(first.body), ids[0]) || strings.Contains(string(first.body), ids[2]) {
		t.Errorf("%v %s", first.header, first.body)
	}
	rest := c.want(200, c.call("GET", "/v2/sandboxes?limit=2&order=asc&nextToken="+next, "", "X-API-Key", mine))
	if rest.header.Get("X-Next-Token") != "" || !strings.Contains(string(rest.body), ids[2]) {
		t.Errorf("%v %s", rest.header, rest.body)
	}
	// A sandbox of which only the files are kept is "paused" for E2B clients, in lists too.
	c.want(204, c.call("POST", "/sandboxes/"+ids[1]+"/pause", `{"memory":false}`, "X-API-Key", mine))
	paused := c.want(200, c.call("GET", "/v2/sandboxes?state=paused", "", "X-API-Key", mine))
	if text := string(paused.body); strings.Count(text, "sandboxID") != 1 || !strings.Contains(text, ids[1]) {
		t.Errorf("%s", text)
	}
	for _, bad := range []string{"limit=0", "limit=101", "limit=x", "order=up", "state=gone", "nextToken=x", "nextToken=" + next, "startedAfter=now", "metadata=%25zz"} {
		c.want(400, c.call("GET", "/v2/sandboxes?"+bad, "", "X-API-Key", mine))
	}
	for _, bad := range []string{`{"timeout":-1}`, `{`, `{"timeout":"x"}`, `{"autoPauseMemory":false}`, `{"metadata":{"e2b.template":"x"}}`} {
		c.want(400, c.call("POST", "/v2/sandboxes", strings.Replace(bad, "{\"", `{"templateID":"base","`, 1), "X-API-Key", mine))
	}
}

// sign computes a signature in the way that clients do.
func sign(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "v1_" + strings.TrimRight(base64.StdEncoding.EncodeToString(sum[:]), "=")
}

// TestE2BPlaceIsTheDaemonsOwn: a daemon never reports the E2B address of an earlier, killed daemon, from the moment
// at which it can be reached.
func TestE2BPlaceIsTheDaemonsOwn(t *testing.T) {
	const stale = `{"url":"https://127.0.0.1:1","domain":"gone.test"}`
	for _, listen := range []string{"", "127.0.0.1:0"} {
		m := daemontest.New(t)
		place := filepath.Join(m.Dir, "e2b.json")
		if err := os.WriteFile(place, []byte(stale), 0o600); err != nil {
			t.Fatal(err)
		}
		said := make(chan string)
		go func() {
			for {
				if c, err := net.Dial("unix", filepath.Join(m.Dir, atoll.SocketName)); err == nil {
					text, _ := os.ReadFile(place)
					_ = c.Close()
					said <- string(text)
					return
				}
			}
		}()
		m.Start(t, func(o *daemon.Options) {
			o.Socket, o.E2B.Listen, o.E2B.Domain = true, listen, "box.test"
		})
		if got := <-said; got == stale || (got == "") != (listen == "") {
			t.Errorf("a daemon that serves them at %q says %s", listen, got)
		}
	}
}

// The desktop SDKs ask for a template that is an image of its own.
func TestE2BDesktopNeedsItsImage(t *testing.T) {
	_, c, mine, _ := startE2B(t)
	a := c.want(404, c.call("POST", "/v2/sandboxes", `{"templateID":"desktop"}`, "X-API-Key", mine))
	if !strings.Contains(string(a.body), "make desktop-image") {
		t.Errorf("the answer does not say how to make it: %s", a.body)
	}
	c.want(404, c.call("GET", "/templates/aliases/desktop", "", "X-API-Key", mine))
}
