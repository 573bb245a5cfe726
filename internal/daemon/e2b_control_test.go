package daemon_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// list is the answer that is an array.
func (a answer) list(t *testing.T) (all []map[string]any) {
	t.Helper()
	if err := json.Unmarshal(a.body, &all); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	return all
}

// adminKey makes a key that allows everything in a tenant.
func adminKey(t *testing.T, d *daemon.Daemon, tenant string) string {
	t.Helper()
	k, err := daemontest.Client(t, d).Admin().CreateKey(t.Context(), operator.NewKey{Tenant: tenant, Verbs: []string{"admin"}})
	if err != nil {
		t.Fatal(err)
	}
	return envd.Key(k.Token)
}

// TestE2BSecrets looks for secret values where they must not be, and tries to
// read them as another tenant.
func TestE2BSecrets(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, func(o *daemon.Options) { o.E2B.Listen = "127.0.0.1:0" })
	c := e2bClient{t, d.E2B().String()}
	mine, other := adminKey(t, d, ""), adminKey(t, d, "rival")
	const canary, second = "canary-value-51c2", "canary-value-77aa"
	a := c.want(201, c.call("POST", "/secrets", `{"name":"Token","value":"`+canary+`","metadata":{"team":"red"}}`, "X-API-Key", mine))
	if a.fields["name"] != "token" || a.fields["currentVersion"] != 1.0 || a.fields["metadata"].(map[string]any)["team"] != "red" {
		t.Errorf("it was made as %s", a.body)
	}
	id := a.fields["secretID"].(string)
	c.want(409, c.call("POST", "/secrets", `{"name":"token","value":"x"}`, "X-API-Key", mine))
	for _, bad := range []string{`{"name":"sec_a","value":"x"}`, `{"name":"a b","value":"x"}`, `{"name":"a"}`, `{"name":"a","value":"x","metadata":{"` + strings.Repeat("k", 129) + `":""}}`} {
		c.want(400, c.call("POST", "/secrets", bad, "X-API-Key", mine))
	}
	a = c.want(200, c.call("POST", "/secrets/"+id, `{"value":"`+second+`"}`, "X-API-Key", mine))
	if a.fields["currentVersion"] != 2.0 || a.fields["metadata"].(map[string]any)["team"] != "red" {
		t.Errorf("it became %s", a.body)
	}
	a = c.want(200, c.call("POST", "/secrets/TOKEN", `{"value":"`+canary+`","metadata":{"team":"blue"}}`, "X-API-Key", mine))
	if a.fields["currentVersion"] != 3.0 || a.fields["metadata"].(map[string]any)["team"] != "blue" {
		t.Errorf("it became %s", a.body)
	}
	c.want(201, c.call("POST", "/secrets", `{"name":"zeta","value":"x"}`, "X-API-Key", mine))
	page := c.want(200, c.call("GET", "/secrets?limit=1", "", "X-API-Key", mine))
	next := c.want(200, c.call("GET", "/secrets?limit=1&nextToken="+page.header.Get("X-Next-Token"), "", "X-API-Key", mine))
	if got := append(page.list(t), next.list(t)...); len(got) != 2 || got[0]["name"] != "token" || got[1]["name"] != "zeta" || next.header.Get("X-Next-Token") != "" {
		t.Errorf("the pages hold %v", got)
	}
	for _, path := range []string{"/secrets/token", "/secrets/" + id} {
		c.want(404, c.call("GET", path, "", "X-API-Key", other))
		c.want(404, c.call("DELETE", path, "", "X-API-Key", other))
		c.want(404, c.call("POST", path, `{"value":"x"}`, "X-API-Key", other))
		c.want(200, c.call("GET", path, "", "X-API-Key", mine))
	}
	c.want(204, c.call("DELETE", "/secrets/"+id, "", "X-API-Key", mine))
	c.want(404, c.call("GET", "/secrets/"+id, "", "X-API-Key", mine))
	nowhere(t, m.Dir, canary, second)
}

// TestE2BSecretsWantAnAdministrator checks that the default key cannot create
// secrets.
func TestE2BSecretsWantAnAdministrator(t *testing.T) {
	_, c, mine, _ := startE2B(t)
	c.want(403, c.call("POST", "/secrets", `{"name":"token","value":"x"}`, "X-API-Key", mine))
	c.want(200, c.call("GET", "/secrets", "", "X-API-Key", mine))
}

// TestE2BNetworkIsClosedByDefault checks that there is no network unless both
// the operator and the client allow it, and that the API reports that.
func TestE2BNetworkIsClosedByDefault(t *testing.T) {
	_, c, mine, other := startE2B(t)
	id, _ := c.create(mine)
	if n := c.want(200, c.call("GET", "/sandboxes/"+id, "", "X-API-Key", mine)).fields["network"]; n != nil {
		t.Errorf("it has a network: %v", n)
	}
	path := "/sandboxes/" + id + "/network"
	c.want(409, c.call("PUT", path, `{"allowOut":["192.0.2.1"]}`, "X-API-Key", mine))
	c.want(409, c.call("PUT", path, `{"egressProxy":{"address":"192.0.2.1:1"}}`, "X-API-Key", mine))
	c.want(404, c.call("PUT", path, `{}`, "X-API-Key", other))
	c.want(400, c.call("PUT", path, `{"denyOut":["example.com"]}`, "X-API-Key", mine))
	c.want(400, c.call("PUT", path, `{"rules":{"a.test":[{"transform":{"headers":{"A":"${e2b.identity.tokens.t}"}}}]}}`, "X-API-Key", mine)) // the sandbox has no such token
}

func TestE2BLogs(t *testing.T) {
	_, c, mine, _ := startE2B(t)
	id, _ := c.create(mine)
	c.want(204, c.call("POST", "/sandboxes/"+id+"/timeout", `{"timeout":60}`, "X-API-Key", mine))
	v1 := c.want(200, c.call("GET", "/sandboxes/"+id+"/logs", "", "X-API-Key", mine)).fields
	lines, entries := v1["logs"].([]any), v1["logEntries"].([]any)
	if len(lines) == 0 || len(lines) != len(entries) || !strings.Contains(lines[0].(map[string]any)["line"].(string), "sandbox.create") {
		t.Fatalf("the logs are %v", v1)
	}
	messages := func(query string) (out []string) {
		for _, e := range c.want(200, c.call("GET", "/v2/sandboxes/"+id+"/logs"+query, "", "X-API-Key", mine)).fields["logs"].([]any) {
			out = append(out, e.(map[string]any)["message"].(string))
		}
		return out
	}
	all := messages("")
	backward := messages("?direction=backward")
	slices.Reverse(backward)
	if len(all) != len(entries) || !slices.Equal(all, backward) {
		t.Errorf("forward %v, backward %v", all, backward)
	}
	if got := messages("?direction=backward&limit=1"); len(got) != 1 || got[0] != all[len(all)-1] {
		t.Errorf("the newest is %v of %v", got, all)
	}
	if got := messages("?level=info&search=sandbox.created"); len(got) != 1 {
		t.Errorf("found %v", got)
	}
	for _, bad := range []string{"?direction=sideways", "?level=loud", "?limit=1001", "?cursor=x"} {
		c.want(400, c.call("GET", "/v2/sandboxes/"+id+"/logs"+bad, "", "X-API-Key", mine))
	}
}

// TestE2BUploads is an attack: files must be written only where the tenant's
// signed URL allows, even through links.
func TestE2BUploads(t *testing.T) {
	d := daemontest.New(t).Start(t, func(o *daemon.Options) { o.E2B.Listen = "127.0.0.1:0" })
	c, owner := e2bClient{t, d.E2B().String()}, daemontest.Client(t, d)
	var keys []operator.Key
	for _, tenant := range []string{"", "rival"} {
		k, err := owner.Admin().CreateKey(t.Context(), operator.NewKey{Tenant: tenant, Verbs: []string{"write", "read"}})
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, k)
	}
	mine, other := envd.Key(keys[0].Token), envd.Key(keys[1].Token)
	hash := strings.Repeat("ab", 32)
	link := func(key string) (present bool, path string) {
		a := c.want(201, c.call("GET", "/templates/x/files/"+hash, "", "X-API-Key", key))
		return a.fields["present"].(bool), strings.TrimPrefix(a.fields["url"].(string), "http://"+c.addr)
	}
	present, path := link(mine)
	if present {
		t.Error("nobody uploaded it")
	}
	if a := c.call("PUT", path, "some bytes"); a.status != 200 {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	c.want(403, c.call("PUT", path, "again"))
	c.want(403, c.call("PUT", "/uploads/x", "never"))
	present, path = link(mine)
	if !present {
		t.Error("it was uploaded")
	}
	if present, _ := link(other); present {
		t.Error("another tenant's upload is there for all")
	}
	for _, bad := range []string{"..", "x", strings.Repeat("A", 64), strings.Repeat("0", 63)} {
		if a := c.call("GET", "/templates/x/files/"+bad, "", "X-API-Key", mine); a.status != 400 && a.status != 404 && a.status != 307 {
			t.Errorf("%q: status %d", bad, a.status)
		}
	}
	// The link ends with the key that requested it.
	if err := owner.Admin().RevokeKey(t.Context(), keys[0].ID); err != nil {
		t.Fatal(err)
	}
	c.want(401, c.call("PUT", path, "late"))
}

func TestE2BTemplatesThatAreNotBuilt(t *testing.T) {
	_, c, mine, other := startE2B(t)
	for _, bad := range []string{`{}`, `{"name":"base"}`, `{"name":":x"}`, `{"name":"x","cpuCount":-1}`} {
		c.want(400, c.call("POST", "/v3/templates", bad, "X-API-Key", mine))
	}
	a := c.want(202, c.call("POST", "/v3/templates", `{"name":"tools:v1","tags":["default"],"cpuCount":1,"memoryMB":512}`, "X-API-Key", mine))
	if got := a.fields["tags"].([]any); !slices.Equal(got, []any{"v1", "default"}) {
		t.Errorf("the tags are %v", got)
	}
	build := "/templates/tools/builds/" + a.fields["buildID"].(string)
	c.want(404, c.call("GET", build+"/status", "", "X-API-Key", other))
	c.want(404, c.call("POST", "/v2"+build, `{"fromImage":"x"}`, "X-API-Key", other))
	c.want(400, c.call("POST", "/v2"+build, `{}`, "X-API-Key", mine))
	c.want(400, c.call("POST", "/v2"+build, `{"fromImage":"x","fromTemplate":"y"}`, "X-API-Key", mine))
	c.want(404, c.call("POST", "/v2"+build, `{"fromTemplate":"no-such"}`, "X-API-Key", mine))
	for login, status := range map[string]int{
		`{"type":"registry","username":"a:b","password":"p"}`:          400,
		`{"type":"registry","username":"a"}`:                           400,
		`{"type":"gcp"}`:                                               400,
		`{"type":"other","username":"a","password":"p"}`:               400,
		`{"type":"aws","awsAccessKeyId":"a","awsSecretAccessKey":"b"}`: 400,
	} {
		c.want(status, c.call("POST", "/v2"+build, `{"fromImage":"r.test/x","fromImageRegistry":`+login+`}`, "X-API-Key", mine))
	}
	c.want(400, c.call("POST", "/v2"+build, `{"fromTemplate":"y","fromImageRegistry":{"type":"registry","username":"a","password":"p"}}`, "X-API-Key", mine))
	if a := c.want(200, c.call("GET", build+"/status", "", "X-API-Key", mine)); a.fields["status"] != "waiting" {
		t.Errorf("its status is %s", a.body)
	}
	c.want(404, c.call("GET", "/templates/tools", "", "X-API-Key", mine))
	c.want(404, c.call("GET", "/templates/tools/tags", "", "X-API-Key", mine))
	c.want(404, c.call("GET", "/templates/aliases/tools", "", "X-API-Key", mine))
	c.want(200, c.call("GET", "/templates/aliases/base", "", "X-API-Key", mine))
	c.want(404, c.call("POST", "/templates/tags", `{"target":"tools:v1","tags":["x"]}`, "X-API-Key", mine))
	c.want(404, c.call("DELETE", "/templates/tags", `{"name":"tools","tags":["x"]}`, "X-API-Key", mine))
	c.want(404, c.call("DELETE", "/templates/tools", "", "X-API-Key", mine))
	c.want(404, c.call("POST", "/v2/sandboxes", `{"templateID":"tools"}`, "X-API-Key", mine))
}

// TestAttackE2BVolumesWantTheirOwnToken is an attack with a key, a token of
// another volume, and names that lead outside.
func TestAttackE2BVolumesWantTheirOwnToken(t *testing.T) {
	m, c, mine, other := startE2B(t)
	volume := func(key string) (id, token string) {
		a := c.want(201, c.call("POST", "/volumes", `{"name":"My_Data"}`, "X-API-Key", key))
		if a.fields["name"] != "My_Data" {
			t.Errorf("it is called %v", a.fields["name"])
		}
		return a.fields["volumeID"].(string), a.fields["token"].(string)
	}
	id, token := volume(mine)
	foreign, foreignToken := volume(other)
	file := func(method, id, path, body, token string) answer {
		return c.call(method, "/volumecontent/"+id+"/file?path="+path, body, "Authorization", "Bearer "+token)
	}
	status := func(want int, a answer) {
		t.Helper()
		if a.status != want {
			t.Errorf("status %d, want %d: %s", a.status, want, a.body)
		}
	}
	status(201, file("PUT", id, "/secret.txt", "canary", token))
	for _, wrong := range []string{"", foreignToken, token + "0", mine} {
		a := file("GET", id, "/secret.txt", "", wrong)
		status(401, a)
		if a.fields["code"] != "unauthorized" {
			t.Errorf("the code is %v", a.fields["code"])
		}
		status(401, file("PUT", id, "/secret.txt", "other", wrong))
	}
	status(401, file("GET", foreign, "/secret.txt", "", token))
	if a := file("GET", id, "/secret.txt", "", token); string(a.body) != "canary" {
		t.Errorf("it holds %s", a.body)
	}
	if err := os.WriteFile(filepath.Join(m.Dir, "outside"), []byte("outside"), 0o600); err != nil {
		t.Fatal(err)
	}
	tree := filepath.Join(m.Dir, "workspaces", id, "tree")
	for name, target := range map[string]string{"abs": m.Dir, "up": "../../..", "file": filepath.Join(m.Dir, "outside")} {
		if err := os.Symlink(target, filepath.Join(tree, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/../../../outside", "/abs/outside", "/up/outside", "/file", "/up/base"} {
		if a := file("GET", id, path, "", token); a.status < 400 || strings.Contains(string(a.body), "outside\"") {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
		if a := file("PUT", id, path, "mine", token); a.status == 201 && path != "/file" && path != "/../../../outside" {
			t.Errorf("%s was written: %s", path, a.body)
		}
	}
	if held, err := os.ReadFile(filepath.Join(m.Dir, "outside")); err != nil || string(held) != "outside" {
		t.Errorf("the file outside holds %q, %v", held, err)
	}
	for _, q := range []string{"uid=-1", "mode=4095", "mode=x", "gid=9999999999"} {
		status(400, c.call("PUT", "/volumecontent/"+id+"/file?path=/x&"+q, "", "Authorization", "Bearer "+token))
	}
	c.want(404, c.call("GET", "/volumes/"+id, "", "X-API-Key", other))
	c.want(404, c.call("DELETE", "/volumes/"+id, "", "X-API-Key", other))
	c.want(204, c.call("DELETE", "/volumes/"+id, "", "X-API-Key", mine))
	status(404, file("GET", id, "/secret.txt", "", token))
}
