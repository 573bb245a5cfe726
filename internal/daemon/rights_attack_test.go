package daemon_test

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/internal/mcpserver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// caller is a key with some permissions.
type caller struct{ token, id string }

// rightsWorld is a daemon with objects of the tenant default.
type rightsWorld struct {
	m     *daemontest.Machine
	d     *daemon.Daemon
	owner *atoll.Client
	db    *store.Store
	keys  map[string]caller
	made  int
	names map[string]string // of objects, by the path element before them
	// streams are the ids of streams of the sandbox and of the session.
	streams map[string]string
}

func newRightsWorld(t *testing.T, change func(*daemon.Options)) *rightsWorld {
	t.Helper()
	m := daemontest.New(t)
	w := &rightsWorld{m: m, d: m.Start(t, change), keys: map[string]caller{}, names: map[string]string{"providers": "fake"}, streams: map[string]string{}}
	w.owner, w.db = daemontest.Client(t, w.d), m.Store(t)
	_, err := w.owner.Admin().CreateTenant(t.Context(), "mine-a", operator.Limits{})
	ok(t, err)
	w.names["tenants"] = "mine-a"
	for _, kind := range []string{"sandboxes", "snapshots", "sessions", "keys", "profiles", "secrets", "workspaces", "templates", "recordings"} {
		w.renew(t, kind)
	}
	return w
}

// with returns a key with permissions.
func (w *rightsWorld) with(t *testing.T, verbs ...ops.Verb) caller {
	t.Helper()
	name := fmt.Sprint(verbs)
	if w.keys[name].id == "" {
		var words []string
		for _, v := range verbs {
			words = append(words, string(v))
		}
		k, err := w.owner.Admin().CreateKey(t.Context(), operator.NewKey{Verbs: words})
		ok(t, err)
		w.keys[name] = caller{k.Token, k.ID}
	}
	return w.keys[name]
}

// renew makes the object of a kind that the next requests are about.
func (w *rightsWorld) renew(t *testing.T, kind string) {
	t.Helper()
	w.made++
	ctx, name := t.Context(), fmt.Sprintf("mine-%d", w.made)
	var err error
	switch kind {
	case "sandboxes":
		var sb *atoll.Sandbox
		sb, err = w.owner.Create(ctx, sandbox.Spec{Name: name}, atoll.CreateOptions{})
		ok(t, err)
		w.streams[kind] = w.stream(t, "/v1/sandboxes/"+string(sb.ID()))
	case "snapshots":
		var sb *atoll.Sandbox
		sb, err = w.owner.Get(ctx, w.names["sandboxes"])
		ok(t, err)
		_, err = sb.Snapshot(ctx, durable.SnapshotRequest{Name: name})
	case "sessions":
		var s *atoll.Session
		s, err = w.owner.Sessions().Create(ctx, sandbox.Spec{}, atoll.SessionOptions{Name: name})
		ok(t, err)
		t.Cleanup(func() { _ = s.Close() })
		w.streams[kind] = w.stream(t, "/v1/sessions/"+name)
	case "keys":
		var k operator.Key
		k, err = w.owner.Admin().CreateKey(ctx, operator.NewKey{Verbs: []string{"read"}})
		name = k.ID
	case "profiles":
		_, err = w.owner.CreateProfile(ctx, sandbox.Profile{Name: name})
	case "secrets":
		_, err = w.owner.CreateSecret(ctx, durable.NewSecret{Name: name, Value: []byte("v"), Hosts: []string{"a.example"}})
	case "workspaces":
		_, err = w.owner.CreateWorkspace(ctx, durable.NewWorkspace{Name: name})
		ok(t, err)
		_, err = w.owner.PersistWorkspace(ctx, name, "")
	case "templates":
		err = w.db.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error {
			_, err := tx.Templates().Set(ctx, store.Template{Template: durable.Template{Name: name, Tag: "latest", Image: "sha256:" + strings.Repeat("a", 64), Created: tx.Now()}, Tenant: "default"})
			return err
		})
	case "recordings":
		var sb *atoll.Sandbox
		sb, err = w.owner.Get(ctx, w.names["sandboxes"])
		ok(t, err)
		err = w.db.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error {
			r := viewing.Recording{ID: name, State: viewing.RecordingAvailable, Sandbox: sb.ID(), Started: tx.Now()}
			return tx.Recordings().Create(ctx, store.Recording{Recording: r, Tenant: "default"}, 1, 1)
		})
	default:
		return
	}
	ok(t, err)
	w.names[kind] = name
}

// stream opens a sandbox or session to viewers.
func (w *rightsWorld) stream(t *testing.T, of string) string {
	t.Helper()
	status, text := w.send(t, caller{}, "POST", of+"/streams", `{"kind":"desktop","port":5900}`, nil)
	var made struct{ ID string }
	if err := json.Unmarshal([]byte(text), &made); err != nil || made.ID == "" {
		t.Fatal(status, text)
	}
	return made.ID
}

// send sends a request to the HTTP API. Of a response that does not end, it
// returns no text.
func (w *rightsWorld) send(t *testing.T, c caller, method, path, body string, header http.Header) (status int, text string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://atoll"+path, strings.NewReader(body))
	ok(t, err)
	r.Header.Set("Content-Type", "application/json")
	for name, values := range header {
		r.Header[name] = values
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	transport := w.d.Memory().Transport()
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(method, path, err)
	}
	defer resp.Body.Close()
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode == http.StatusSwitchingProtocols || kind == "text/event-stream" {
		return resp.StatusCode, ""
	}
	all, err := io.ReadAll(resp.Body)
	ok(t, err)
	return resp.StatusCode, string(all)
}

// messages starts a command over a WebSocket, and returns all messages, or why
// there is no socket.
func (w *rightsWorld) messages(t *testing.T, c caller, path string) string {
	t.Helper()
	transport := w.d.Memory().Transport()
	defer transport.CloseIdleConnections()
	ws, resp, err := websocket.Dial(t.Context(), "ws://atoll"+path, &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: transport}, HTTPHeader: http.Header{"Authorization": {"Bearer " + c.token}},
	})
	if err != nil && resp != nil {
		text, _ := io.ReadAll(resp.Body)
		return err.Error() + string(text)
	}
	ok(t, err)
	defer func() { _ = ws.CloseNow() }()
	_ = ws.Write(t.Context(), websocket.MessageText, []byte(`{"type":"start","command":{"args":["true"]}}`)) // it may be closed
	said := ""
	for {
		_, text, err := ws.Read(t.Context())
		if err != nil {
			return said
		}
		said += string(text)
	}
}

// attack sends the requests of routes with keys that have one permission, and
// with one that has just those that a route needs, and compares what is refused
// with what the route needs. send returns whether a request was refused, and
// what was said. restore is called after requests that were allowed.
func (w *rightsWorld) attack(t *testing.T, routes []ops.Route, send func(t *testing.T, r ops.Route, c caller) (refused bool, said string), restore func(t *testing.T, r ops.Route)) {
	tried := 0
	for _, r := range routes {
		t.Run(r.Name, func(t *testing.T) {
			sets := [][]ops.Verb{{ops.Read}, {ops.Exec}, {ops.Write}, {ops.Admin}}
			if needs := r.Needs(); len(needs) > 1 {
				sets = append(sets, needs)
			}
			// What requests name is there until one is allowed.
			// One with admin is the last.
			last := func(verbs []ops.Verb) int {
				switch {
				case !r.Allows(verbs...):
					return 0
				case !slices.Contains(verbs, ops.Admin):
					return 1
				}
				return 2
			}
			slices.SortStableFunc(sets, func(a, b []ops.Verb) int { return cmp.Compare(last(a), last(b)) })
			for _, verbs := range sets {
				refused, said := send(t, r, w.with(t, verbs...))
				if refused == r.Allows(verbs...) {
					t.Errorf("a key with %v: refused is %v, but it needs %v: %.300s", verbs, refused, r.Needs(), said)
				}
				tried++
			}
			restore(t, r)
		})
	}
	if tried < 4*len(routes) {
		t.Errorf("only %d requests were tried", tried)
	}
}

func refusal(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

// routesOf returns the routes of an API that need a key.
func routesOf(t *testing.T, name string) (keyed []ops.Route) {
	t.Helper()
	for _, f := range faces(t) {
		for _, r := range f.routes {
			if f.name == name && !r.Open {
				keyed = append(keyed, r)
			}
		}
	}
	return keyed
}

// leastBodies are of requests that need no more than the least that their
// operation needs. NAME is a new name.
var leastBodies = map[string]string{
	"createSandbox": `{"name":"NAME"}`, "createKey": `{"verbs":["read"]}`, "createTenant": `{"id":"NAME"}`, "createProfile": `{"name":"NAME","rules":[]}`,
	"createSecret": `{"name":"NAME","value":"v","hosts":["a.example"]}`, "createWorkspace": `{"name":"NAME"}`, "createSession": `{"name":"NAME"}`,
	"resumeSession": `{"envelope":{"version":1,"backend":"atoll","spec":{}}}`, "enableE2B": `{"listen":"127.0.0.1:0"}`,
	"createStream": `{"kind":"desktop","port":5900}`, "publishTemplate": `{"public":false}`, "applyProfile": `{"name":"SELF","rules":[]}`, "forkSandbox": `{"count":1}`,
}

// operationIDs returns the ids of the operations in the OpenAPI document, and
// which of them take JSON, by the names of their routes.
func operationIDs(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/openapi.json")
	ok(t, err)
	var doc struct {
		Paths map[string]map[string]struct{ OperationID string }
	}
	ok(t, json.Unmarshal(text, &doc))
	ids := map[string]string{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			ids[strings.ToUpper(method)+" "+path] = op.OperationID
		}
	}
	return ids
}

// buildFiles is a tar with a Dockerfile.
func buildFiles(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	const text = "FROM host\n"
	ok(t, w.WriteHeader(&tar.Header{Name: "Dockerfile", Mode: 0o644, Size: int64(len(text))}))
	_, err := io.WriteString(w, text)
	ok(t, err)
	ok(t, w.Close())
	return b.String()
}

var upgrade = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}}

// TestAttackRights sends every request of the HTTP API with keys that have one
// permission.
func TestAttackRights(t *testing.T) {
	w := newRightsWorld(t, nil)
	ids, files, n := operationIDs(t), buildFiles(t), 0
	kindOf := func(r ops.Route) string {
		_, path, _ := strings.Cut(r.Name, " ")
		return strings.Split(strings.TrimPrefix(path, "/v1/"), "/")[0]
	}
	w.attack(t, routesOf(t, nativeFace), func(t *testing.T, r ops.Route, c caller) (bool, string) {
		method, path, _ := strings.Cut(r.Name, " ")
		id := cmp.Or(ids[r.Name], ids[strings.Replace(r.Name, "/v1/sessions/{ref}/", "/v1/sandboxes/{ref}/", 1)])
		kind := kindOf(r)
		name := w.names[kind]
		if may := []caller{w.with(t, ops.Read), w.with(t, ops.Admin)}; id == "waitSandbox" && slices.Contains(may, c) {
			name = "none" // the end of another would not come
		}
		path = strings.NewReplacer("/processes/{id}", "/processes/p1", "/streams/{id}", "/streams/"+w.streams[kind],
			"{port}", "80", "{hostPort}", "8080", "{ref}", name, "{name}", name, "{snapshot}", name, "{id}", name).Replace(path)
		header := http.Header{}
		switch id {
		case "openPort":
			header = upgrade.Clone()
		case "execStream", "attachStream": // the refusal is in a message
			said := w.messages(t, c, path)
			return strings.Contains(said, `"code":"denied"`), said
		}
		query := "?path=/x&from=1&to=1&name=built"
		if id == "sessionUsage" {
			query = "?by=sandbox"
		}
		n++
		body := cmp.Or(leastBodies[id], bodies[id], "{}")
		if method == http.MethodGet {
			body = ""
		}
		if id == "buildTemplate" {
			body = files
		}
		status, text := w.send(t, c, method, path+query, strings.NewReplacer("NAME", fmt.Sprintf("new-%d", n), "SELF", name).Replace(body), header)
		return refusal(status) || id == "buildTemplate" && strings.Contains(text, `"code":"denied"`), fmt.Sprint(id, " ", status, " ", text)
	}, func(t *testing.T, r ops.Route) {
		if !strings.HasPrefix(r.Name, "GET ") {
			w.renew(t, kindOf(r))
		}
	})
}

// e2bBodies are the bodies of requests of E2B's clients; of others, {}.
var e2bBodies = map[string]string{
	"POST /sandboxes": `{"templateID":"base"}`, "POST /v2/sandboxes": `{"templateID":"base"}`, "POST /sandboxes/{id}/timeout": `{"timeout":60}`,
	"POST /secrets": `{"name":"NAME","value":"v"}`, "POST /secrets/{id}": `{"value":"v"}`, "POST /v3/templates": `{"name":"NAME"}`, "POST /v2/templates": `{"name":"NAME"}`,
	"PATCH /templates/{id}": `{"public":false}`, "PATCH /v2/templates/{id}": `{"public":false}`,
	"POST /v2/templates/{id}/builds/{build}": `{"fromImage":"base"}`,
	"POST /templates/tags":                   `{"target":"TEMPLATE","tags":["x"]}`, "DELETE /templates/tags": `{"name":"TEMPLATE","tags":["latest"]}`, "POST /volumes": `{"name":"NAME"}`,
}

// TestAttackE2BRights does the same with the API for clients of E2B.
func TestAttackE2BRights(t *testing.T) {
	w := newRightsWorld(t, func(o *daemon.Options) { o.E2B.Listen = "127.0.0.1:0" })
	c := e2bClient{t, w.d.E2B().String()}
	admin, n := w.with(t, ops.Admin), 0
	sb, _ := c.create(envd.Key(admin.token))
	build := c.want(202, c.call("POST", "/v3/templates", `{"name":"building"}`, "X-API-Key", envd.Key(admin.token))).fields["buildID"].(string)
	w.attack(t, routesOf(t, e2bFace), func(t *testing.T, r ops.Route, k caller) (bool, string) {
		c.t = t
		method, path, _ := strings.Cut(r.Name, " ")
		if path == "" {
			method, path = "GET", "/nowhere"
		}
		id := map[string]string{"sandboxes": sb, "templates": w.names["templates"], "secrets": w.names["secrets"], "volumes": w.names["workspaces"]}
		path = strings.Replace(path, "{id}/builds", "building/builds", 1)
		for kind, name := range id {
			path = strings.Replace(path, "/"+kind+"/{id}", "/"+kind+"/"+name, 1)
		}
		path = strings.NewReplacer("{build}", build, "{hash}", strings.Repeat("0", 64), "{what}/{name}", "tags/x", "{what}", "tags").Replace(path)
		n++
		body := strings.NewReplacer("NAME", fmt.Sprintf("new-%d", n), "TEMPLATE", w.names["templates"]).Replace(cmp.Or(e2bBodies[r.Name], "{}"))
		a := c.call(method, path+"?sandbox_ids="+sb, body, "X-API-Key", envd.Key(k.token), "Content-Type", "application/json")
		return refusal(a.status), fmt.Sprint(a.status, " ", string(a.body))
	}, func(t *testing.T, r ops.Route) {
		if strings.HasPrefix(r.Name, "GET ") {
			return
		}
		c.t = t
		switch {
		case strings.Contains(r.Name, "/sandboxes/"):
			sb, _ = c.create(envd.Key(admin.token))
		case strings.Contains(r.Name, "/templates"):
			w.renew(t, "templates")
		case strings.Contains(r.Name, "/secrets"):
			w.renew(t, "secrets")
		case strings.Contains(r.Name, "/volumes"):
			w.renew(t, "workspaces")
		}
	})
}

// e2bToken returns the token that a key gets for a sandbox or a volume.
func (w *rightsWorld) e2bToken(t *testing.T, purpose, id, keyID string) string {
	t.Helper()
	secret, err := os.ReadFile(filepath.Join(w.m.Dir, "e2b.secret"))
	ok(t, err)
	m := hmac.New(sha256.New, secret)
	m.Write([]byte("atoll e2b " + purpose + "\x00" + id + "\x00" + keyID))
	return keyID + "." + hex.EncodeToString(m.Sum(nil))
}

// TestAttackE2BTokenRights does the same with what tokens give access to: the
// data plane and the ports of a sandbox, and the files of a volume. A token has
// the permissions of its key, even one that such a key cannot get.
func TestAttackE2BTokenRights(t *testing.T) {
	w := newRightsWorld(t, func(o *daemon.Options) { o.E2B.Listen = "127.0.0.1:0" })
	c := e2bClient{t, w.d.E2B().String()}
	admin := w.with(t, ops.Admin)
	public, token := c.create(envd.Key(admin.token))
	id := "sb-" + strings.TrimPrefix(public, "sb")
	if w.e2bToken(t, "envd", id, admin.id) != token {
		t.Fatal("how are tokens made now?")
	}
	ws, err := w.owner.Workspace(t.Context(), w.names["workspaces"])
	ok(t, err)

	routes := routesOf(t, e2bDataFace)
	for _, f := range faces(t) {
		for _, r := range f.routes {
			if strings.Contains(r.Name, "/volumecontent/") || f.name == e2bDataFace && r.Open && len(r.Ops) > 0 {
				routes = append(routes, r)
			}
		}
	}
	w.attack(t, routes, func(t *testing.T, r ops.Route, k caller) (bool, string) {
		c.t = t
		method, path, isPath := strings.Cut(r.Name, " ")
		headers := []string{"E2b-Sandbox-Id", public, "E2b-Sandbox-Port", "49983", "X-Access-Token", w.e2bToken(t, "envd", id, k.id), "Content-Type", "application/json"}
		body := "{}"
		switch {
		case strings.HasPrefix(r.Name, "port 49999"):
			method, path, headers[3] = "POST", "/execute", "49999"
		case strings.HasPrefix(r.Name, "a port"):
			method, path, headers[3] = "GET", "/", "8080"
			headers = append(headers, "E2b-Traffic-Access-Token", w.e2bToken(t, "traffic", id, k.id))
		case strings.Contains(path, "/volumecontent/"):
			path = strings.Replace(path, "{id}", ws.ID, 1) + "?path=/x"
			headers = []string{"Authorization", "Bearer " + w.e2bToken(t, "volume", ws.ID, k.id)}
		case path == "/files":
			path += "?path=/root/x&username=root"
			headers[len(headers)-1] = "application/octet-stream"
		case !isPath:
			if method, path = "POST", r.Name; path == "/" {
				path = "/process.Process/None"
			}
			if slices.Contains([]string{envd.ProcessStart, envd.ProcessConnect, envd.ProcessStreamInput, envd.FilesystemWatchDir}, path) {
				headers[len(headers)-1] = "application/connect+json"
				frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body)))
				body = string(frame) + body
			}
		}
		a := c.call(method, path, body, headers...)
		denied := bytes.Contains(a.body, []byte("permission_denied")) || bytes.Contains(a.body, []byte("unauthenticated"))
		return refusal(a.status) || denied, fmt.Sprint(a.status, " ", string(a.body))
	}, func(*testing.T, ops.Route) {})
}

// bridgeBodies are the bodies of requests of the bridge's clients; of others, x.
var bridgeBodies = map[string]string{
	"POST /v1/sandbox": "{}", "POST /v1/sandbox/{id}/exec": `{"argv":["true"]}`, "POST /v1/sandbox/{id}/mount": `{"binding":"b","mountPath":"/workspace/m"}`,
	"POST /v1/sandbox/{id}/unmount": `{"mountPath":"/workspace/m"}`, "POST /v1/sandbox/{id}/session": "{}", "POST /v1/sandbox/{id}/tunnel/{port}": "{}",
}

// TestAttackBridgeRights does the same with the API of Cloudflare's bridge.
func TestAttackBridgeRights(t *testing.T) {
	w := newRightsWorld(t, func(o *daemon.Options) { o.Bridge.Listen = "127.0.0.1:0" })
	admin := bridgeClient{e2bClient{t, w.d.Bridge().String()}, w.with(t, ops.Admin).token}
	const sb = "/v1/sandbox/mine"
	prepare := func(t *testing.T) {
		admin.t = t
		admin.want(200, "", admin.do("POST", sb+"/exec", `{"argv":["true"]}`))
		admin.do("POST", sb+"/session", `{"id":"s1"}`) // it may exist
		admin.want(200, "", admin.do("POST", sb+"/tunnel/8080", "{}"))
	}
	prepare(t)
	w.attack(t, routesOf(t, bridgeFace), func(t *testing.T, r ops.Route, k caller) (bool, string) {
		method, path, _ := strings.Cut(r.Name, " ")
		if path == "" {
			method, path = "GET", "/nowhere"
		}
		path = strings.NewReplacer("{id}", "mine", "{path...}", "workspace/x", "{session}", "s1", "{port}", "8080").Replace(path)
		var headers []string
		if strings.HasSuffix(path, "/pty") {
			for name, values := range upgrade {
				headers = append(headers, name, values[0])
			}
		}
		a := bridgeClient{e2bClient{t, w.d.Bridge().String()}, k.token}.head(method, path, cmp.Or(bridgeBodies[r.Name], "x"), headers...)
		return refusal(a.status), fmt.Sprint(a.status, " ", string(a.body))
	}, func(t *testing.T, _ ops.Route) { prepare(t) })
}

// head is do, without the rest of a connection that was upgraded.
func (c bridgeClient) head(method, path, body string, headers ...string) answer {
	c.t.Helper()
	if !slices.Contains(headers, "Upgrade") {
		return c.do(method, path, body, headers...)
	}
	r, err := http.NewRequestWithContext(c.t.Context(), method, "http://"+c.addr+path, nil)
	ok(c.t, err)
	r.Header.Set("Authorization", "Bearer "+c.key)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(r)
	ok(c.t, err)
	_ = resp.Body.Close()
	return answer{status: resp.StatusCode}
}

// TestAttackMCPRights does the same with the tools and resources of the MCP
// server.
func TestAttackMCPRights(t *testing.T) {
	w := newRightsWorld(t, plainTCP) // only then ports have URLs
	client, err := atoll.New(atoll.Options{Host: "http://" + w.d.TCP().String()})
	ok(t, err)
	t.Cleanup(func() { _ = client.Close() })
	s := httptest.NewServer(mcpserver.New(client, "test").Handler())
	t.Cleanup(s.Close)
	sessions := map[string]*mcp.ClientSession{}
	of := func(t *testing.T, k caller) *mcp.ClientSession {
		if sessions[k.id] == nil {
			client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
			session, err := client.Connect(context.WithoutCancel(t.Context()), &mcp.StreamableClientTransport{Endpoint: s.URL, HTTPClient: &http.Client{Transport: bearing(k.token)}}, nil)
			ok(t, err)
			sessions[k.id] = session
		}
		return sessions[k.id]
	}
	t.Cleanup(func() {
		for _, session := range sessions {
			_ = session.Close()
		}
	})
	takes := map[string]map[string]any{} // properties, by tool
	for tool, err := range of(t, w.with(t, ops.Admin)).Tools(t.Context(), nil) {
		ok(t, err)
		text, err := json.Marshal(tool.InputSchema)
		ok(t, err)
		var schema struct{ Properties map[string]any }
		ok(t, json.Unmarshal(text, &schema))
		takes[tool.Name] = schema.Properties
	}
	w.attack(t, routesOf(t, mcpFace), func(t *testing.T, r ops.Route, k caller) (bool, string) {
		session := of(t, k)
		if strings.HasPrefix(r.Name, "atoll://") {
			uri := strings.NewReplacer("{sandbox}", w.names["sandboxes"], "{+path}", "etc/passwd", "{process}", "p1").Replace(r.Name)
			_, err := session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
			return err != nil && strings.Contains(err.Error(), "denied:"), fmt.Sprint(err)
		}
		args := map[string]any{}
		for name, value := range toolArguments {
			if takes[r.Name][name] != nil && (r.Name != "egress_explain" || name != "url") {
				args[name] = value
			}
		}
		if takes[r.Name]["sandbox"] != nil {
			args["sandbox"] = w.names["sandboxes"]
		}
		if r.Name == "saved_remove" {
			args = map[string]any{"snapshot": w.names["snapshots"]}
		}
		got, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: r.Name, Arguments: args})
		ok(t, err)
		text, err := json.Marshal(got.Content)
		ok(t, err)
		return got.IsError && strings.Contains(string(text), `"text":"denied:`), string(text)
	}, func(t *testing.T, r ops.Route) {
		switch r.Name {
		case "sandbox_remove", "sandbox_pause", "sandbox_resume":
			w.renew(t, "sandboxes")
		case "saved_remove":
			w.renew(t, "snapshots")
		}
	})
}

// TestAttackRightsOfSomeRequests sends requests that ask for more than the
// least, with keys that are allowed the least.
func TestAttackRightsOfSomeRequests(t *testing.T) {
	w := newRightsWorld(t, func(o *daemon.Options) { o.E2B.Listen, o.Bridge.Listen = "127.0.0.1:0", "127.0.0.1:0" })
	sb := "/v1/sandboxes/" + w.names["sandboxes"]
	desktop := sb + "/streams/" + w.streams["sandboxes"]
	for _, tt := range []struct {
		method, path, body string
		verbs              []ops.Verb
		refused            bool
	}{
		{"POST", sb + "/computer", `{"actions":[{"action":"screenshot"}]}`, []ops.Verb{ops.Read}, false},
		{"POST", sb + "/computer", `{"actions":[{"action":"screenshot"},{"action":"type","text":"x"}]}`, []ops.Verb{ops.Read}, true},
		{"POST", sb + "/computer", `{"actions":[{"action":"screenshot"},{"action":"copy","text":"x"}]}`, []ops.Verb{ops.Read}, true},
		{"POST", sb + "/computer", `{"actions":[{"action":"screenshot"},{"action":"clipboard"}]}`, []ops.Verb{ops.Read}, true},
		{"POST", sb + "/streams", `{"kind":"desktop","port":5900,"mode":"control"}`, []ops.Verb{ops.Read}, true},
		{"POST", sb + "/streams", `{"kind":"port","port":80}`, []ops.Verb{ops.Read}, true},
		{"POST", sb + "/streams", `{"kind":"port","port":80}`, []ops.Verb{ops.Read, ops.Exec}, false},
		{"POST", desktop + "/token", `{}`, []ops.Verb{ops.Exec}, true},
		{"POST", sb + "/previews", `{"port":80,"public":true}`, []ops.Verb{ops.Read, ops.Exec, ops.Write}, true},
		{"PUT", "/v1/templates/" + w.names["templates"] + "/public", `{"public":true}`, []ops.Verb{ops.Read, ops.Exec, ops.Write}, true},
		{"POST", "/v1/sandboxes", `{"name":"with-port","ports":[{"port":80}]}`, []ops.Verb{ops.Admin}, true},
		{"POST", "/v1/sandboxes", `{"name":"with-mount","mounts":[{"source":"/etc","target":"/x"}]}`, []ops.Verb{ops.Admin}, true},
		{"POST", "/v1/keys", `{"tenant":"mine-a","verbs":["read"]}`, []ops.Verb{ops.Admin}, true},
	} {
		status, text := w.send(t, w.with(t, tt.verbs...), tt.method, tt.path, tt.body, nil)
		if refusal(status) != tt.refused {
			t.Errorf("%s %s %s with %v: %d %s", tt.method, tt.path, tt.body, tt.verbs, status, text)
		}
	}

	e2b := e2bClient{t, w.d.E2B().String()}
	some := envd.Key(w.with(t, ops.Read, ops.Exec, ops.Write).token)
	if a := e2b.call("PATCH", "/templates/"+w.names["templates"], `{"public":true}`, "X-API-Key", some); a.status != http.StatusForbidden {
		t.Errorf("a template is made public without admin: %d", a.status)
	}
	if a := e2b.call("DELETE", "/templates/"+w.names["snapshots"], "", "X-API-Key", envd.Key(w.with(t, ops.Read).token)); a.status != http.StatusForbidden {
		t.Errorf("a reader removes a snapshot: %d", a.status)
	}
	// A key without write makes no sandboxes through the bridge, by whatever request.
	runner := bridgeClient{e2bClient{t, w.d.Bridge().String()}, w.with(t, ops.Read, ops.Exec).token}
	for _, route := range []string{"POST exec", "GET file/workspace/x", "POST persist", "POST mount"} {
		method, rest, _ := strings.Cut(route, " ")
		body := cmp.Or(bridgeBodies["POST /v1/sandbox/{id}/"+rest], "")
		if a := runner.do(method, "/v1/sandbox/none/"+rest, body); a.status != http.StatusForbidden {
			t.Errorf("%s makes a sandbox without write: %d %s", route, a.status, a.body)
		}
	}
}
