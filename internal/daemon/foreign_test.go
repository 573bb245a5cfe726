package daemon_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// traces are the statements that the store ran, by the request they were for.
type traces struct {
	mu sync.Mutex
	of map[string][]string
}

func (tr *traces) add(ctx context.Context, statement string) {
	request, _ := span.IDs(ctx)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.of[request] = append(tr.of[request], statement)
}

// deed is what can be observed of a request from outside. Its database
// statements stand for its duration.
type deed struct {
	Status int
	Header http.Header
	Body   string
	Work   []string
}

// prober sends requests with one key.
type prober struct {
	transport *http.Transport
	token     string
	work      *traces
	n         int
}

func (p *prober) send(t *testing.T, method, path, body string, header http.Header) deed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://atoll"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	p.n++
	id := fmt.Sprintf("probe-%06d", p.n)
	r.Header.Set("Authorization", "Bearer "+p.token)
	r.Header.Set("X-Request-Id", id)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for name, values := range header {
		r.Header[name] = values
	}
	resp, err := p.transport.RoundTrip(r)
	if err != nil {
		t.Fatal(method, path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(method, path, err)
	}
	resp.Header.Del("Date")
	resp.Header.Del("X-Request-Id")
	p.work.mu.Lock()
	defer p.work.mu.Unlock()
	return deed{resp.StatusCode, resp.Header, string(text), p.work.of[id]}
}

// hiding replaces what differs between any two requests: requested names,
// generated ids, and times.
func hiding(d deed, names ...string) deed {
	for _, n := range names {
		d.Body = strings.ReplaceAll(d.Body, n, "NAME")
		for _, values := range d.Header {
			for i := range values {
				values[i] = strings.ReplaceAll(values[i], n, "NAME")
			}
		}
	}
	if madeUp.MatchString(d.Body) { // times vary in length too
		d.Body = madeUp.ReplaceAllString(d.Body, "MADE")
		d.Header.Del("Content-Length")
	}
	return d
}

var madeUp = regexp.MustCompile(`"(sb-[a-z0-9]+|20\d\d-[^"]*Z)"`)

func (d deed) String() string {
	text, _ := json.MarshalIndent(d, "", " ")
	return string(text)
}

// bodies are of requests that would succeed if what they name were the
// caller's own. An operation that needs none is not in it.
var bodies = map[string]string{
	"applyProfile": `{"name":"NAME","rules":[]}`, "testProfile": `{"url":"https://a.example/"}`, "exec": `{"args":["true"]}`,
	"approveMachine": `{"code":"ABCD-EFGH"}`, "inviteMachine": `{"name":"laptop"}`,
	"runCode": `{"code":"1"}`, "searchFiles": `{"path":"/","name":"x"}`, "patchFiles": `{"dryRun":true,"path":"/x","patch":"*** Begin Patch\n*** Add File: a\n*** End Patch"}`, "createStream": `{"kind":"port","port":80}`, "useComputer": `{"actions":[{"action":"screenshot"}]}`,
	"makeDirectory": `{"path":"/x"}`, "moveFile": `{"from":"/a","to":"/b"}`, "signalProcess": `{"signal":9}`,
	"rotateSecret": `{"value":"v"}`, "tagTemplate": `{"as":"other:one"}`, "publishTemplate": `{"public":true}`, "restoreVersion": `{"version":1}`, "updateTenant": `{"disabled":true}`,
	"updateSandbox": `{"labels":{"a":"b"}}`, "updateSession": `{"labels":{"a":"b"}}`, "acquireSession": `{"holder":"h"}`, "heartbeatSession": `{"holder":"h","epoch":1}`,
	"releaseSession": `{"holder":"h"}`, "runOnSession": `{"target":"fake","command":{"shell":"true"}}`, "swapSession": `{"target":"fake"}`, "updateNode": `{"cordoned":true}`, "drainNode": `{}`, "publishPort": `{"port":80}`, "createPreview": `{"port":80}`,
}

// answers are the statuses of operations that do not return 404 for missing
// objects: those that create them, and those for the owner of the machine only.
var answers = map[string]int{"applyProfile": 200, "publishPort": 403, "unpublishPort": 403, "getTenant": 403, "updateTenant": 403, "getNode": 403, "updateNode": 403, "drainNode": 403, "removeNode": 403, "importSnapshot": 403, "importImage": 403}

// operation is an API operation with a name in its path.
type operation struct {
	id, method, path string
	body             bool
}

func operations(t *testing.T) (all []operation) {
	t.Helper()
	text, err := os.ReadFile("../../docs/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string
			RequestBody *struct{ Content map[string]any }
		}
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			if !strings.Contains(path, "{") {
				continue
			}
			takesJSON := op.RequestBody != nil && op.RequestBody.Content["application/json"] != nil
			all = append(all, operation{op.OperationID, strings.ToUpper(method), path, takesJSON})
		}
	}
	slices.SortFunc(all, func(a, b operation) int { return cmp.Compare(a.id, b.id) })
	return all
}

// TestAttackForeignNames: names and ids of another tenant, and ones that do not
// exist, give the same response, byte for byte, after the same database
// statements. So they cannot be distinguished by timing either.
func TestAttackForeignNames(t *testing.T) {
	work := &traces{of: map[string][]string{}}
	m := daemontest.New(t)
	d := m.Start(t, func(o *daemon.Options) { o.Trace = work.add })
	probe(t, d, foreignThings(t, m.Store(t), d), work)
}

// TestAttackForeignNamesThroughAnotherDaemon: the same holds for what another
// tenant has on another daemon of the same database.
func TestAttackForeignNamesThroughAnotherDaemon(t *testing.T) {
	address := storetest.Postgres(t)
	work := &traces{of: map[string][]string{}}
	theirs := daemontest.New(t).Start(t, on(address))
	d := daemontest.New(t).Start(t, func(o *daemon.Options) { o.Store, o.Trace = address, work.add })
	probe(t, d, foreignThings(t, openStore(t, address), theirs), work)
}

// probe tries all operations with objects of another tenant.
func probe(t *testing.T, d *daemon.Daemon, ids things, work *traces) {
	mine, err := daemontest.Client(t, d).Admin().CreateKey(t.Context(), operator.NewKey{Tenant: "other", Verbs: []string{"admin"}})
	if err != nil {
		t.Fatal(err)
	}
	p := &prober{transport: d.Memory().Transport(), token: mine.Token, work: work}
	defer p.transport.CloseIdleConnections()
	// Objects of a tenant's first request are not created again.
	p.send(t, "POST", "/v1/sandboxes", `{"name":"first"}`, nil)

	var makers []operation
	for _, op := range operations(t) {
		if answers[op.id] == http.StatusOK {
			makers = append(makers, op)
			continue
		}
		p.compare(t, op, ids)
	}
	p.compareCreates(t)
	for _, op := range makers { // which the others would find
		p.compare(t, op, ids)
	}
}

// compare sends an operation with each name of another tenant, and with one
// that does not exist.
func (p *prober) compare(t *testing.T, op operation, ids things) {
	t.Run(op.id, func(t *testing.T) {
		header := http.Header{}
		if slices.Contains([]string{"execStream", "attachStream", "openPort"}, op.id) {
			header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}}
		}
		for kind, foreign := range ids.of(op.path) {
			never := absentLike(foreign)
			try := func(name string) deed {
				body := strings.ReplaceAll(bodies[op.id], "NAME", name)
				if body == "" && op.body {
					body = "{}"
				}
				return hiding(p.send(t, op.method, op.to(name), body, header), foreign, never)
			}
			a, b := try(never), try(foreign)
			if a.String() != b.String() {
				t.Errorf("%s of another tenant: %s\nand nobody's: %s", kind, b, a)
			}
			if want := cmp.Or(answers[op.id], http.StatusNotFound); a.Status != want {
				t.Errorf("%s: %s, want the status %d: does it need a body?", kind, a, want)
			}
			if len(a.Work) == 0 {
				t.Error("no statement was traced")
			}
		}
	})
}

// to is the path of an operation on what has a name.
func (op *operation) to(name string) string {
	return strings.NewReplacer(
		"/processes/{id}", "/processes/p1", "{port}", "80", "{hostPort}", "8080", "{ref}", name, "{name}", name, "{snapshot}", name, "{id}", name,
	).Replace(op.path) + "?path=/x&from=1&to=2"
}

// compareCreates creates sandboxes that refer to foreign and to missing objects.
func (p *prober) compareCreates(t *testing.T) {
	for what, body := range map[string]string{
		"name": `{"name":"NAME"}`, "snapshot": `{"snapshot":"NAME"}`, "template": `{"image":"template:NAME"}`, "full template": `{"image":"template:default/NAME"}`, "profile": `{"network":{"profile":"NAME"}}`,
		"secret": `{"secrets":[{"name":"NAME"}]}`, "workspace": `{"workspaces":[{"name":"NAME"}]}`,
	} {
		t.Run("create with a "+what, func(t *testing.T) {
			a := hiding(p.send(t, "POST", "/v1/sandboxes", strings.ReplaceAll(body, "NAME", "none-a"), nil), "none-a")
			b := hiding(p.send(t, "POST", "/v1/sandboxes", strings.ReplaceAll(body, "NAME", "mine-a"), nil), "mine-a")
			if a.String() != b.String() {
				t.Errorf("of another tenant: %s\nand nobody's: %s", b, a)
			}
			if made := what == "name"; made != (a.Status == http.StatusCreated) {
				t.Errorf("%s", a)
			}
		})
	}
	t.Run("create with an idempotency key", func(t *testing.T) {
		var deeds []string
		for _, k := range []string{"none-a", "mine-a"} {
			d := hiding(p.send(t, "POST", "/v1/sandboxes", `{"labels":{"a":"b"}}`, http.Header{"Idempotency-Key": {k}}), k)
			d.Body = regexp.MustCompile(`"name":"[^"]*"`).ReplaceAllString(d.Body, "NAMED")
			deeds = append(deeds, d.String())
		}
		if deeds[0] != deeds[1] {
			t.Errorf("%s\n%s", deeds[0], deeds[1])
		}
	})
}

// things are names and ids of a tenant's objects, by the path element that
// contains them.
type things map[string]map[string]string

func (th things) of(path string) map[string]string {
	kind := strings.Split(strings.TrimPrefix(path, "/v1/"), "/")[0]
	return th[kind]
}

// absentLike returns a name or id that does not exist and resembles another.
func absentLike(name string) string {
	last := byte('0')
	if name[len(name)-1] == last {
		last = '1'
	}
	if strings.HasPrefix(name, "mine") {
		return "none" + name[len("mine"):]
	}
	return name[:len(name)-1] + string(last)
}

// foreignThings makes one of each kind for the tenant default.
func foreignThings(t *testing.T, db *store.Store, d *daemon.Daemon) things {
	t.Helper()
	ctx, c := t.Context(), daemontest.Client(t, d)
	sb, err := c.Create(ctx, sandbox.Spec{Name: "mine-a"}, atoll.CreateOptions{IdempotencyKey: "mine-a"})
	ok(t, err)
	_, err = sb.Exec(ctx, sandbox.Command{Shell: "true", Background: true})
	ok(t, err)
	snap, err := sb.Snapshot(ctx, durable.SnapshotRequest{Name: "mine-a"})
	ok(t, err)
	k, err := c.Admin().CreateKey(ctx, operator.NewKey{Verbs: []string{"read"}})
	ok(t, err)
	_, err = c.CreateProfile(ctx, sandbox.Profile{Name: "mine-a"})
	ok(t, err)
	_, err = c.CreateSecret(ctx, durable.NewSecret{Name: "mine-a", Value: []byte("v"), Hosts: []string{"a.example"}})
	ok(t, err)
	_, err = c.CreateWorkspace(ctx, durable.NewWorkspace{Name: "mine-a"})
	ok(t, err)
	_, err = c.PersistWorkspace(ctx, "mine-a", "")
	ok(t, err)
	ok(t, db.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error {
		_, err := tx.Templates().Set(ctx, store.Template{Template: durable.Template{Name: "mine-a", Tag: "latest", Image: "sha256:" + strings.Repeat("a", 64), Created: tx.Now()}, Tenant: "default"})
		return err
	}))
	_, err = c.Admin().CreateTenant(ctx, "mine-a", operator.Limits{})
	ok(t, err)
	session, err := c.Sessions().Create(ctx, sandbox.Spec{}, atoll.SessionOptions{Name: "mine-a"})
	ok(t, err)
	t.Cleanup(func() { _ = session.Close() })
	ok(t, db.Update(context.WithoutCancel(ctx), func(tx *store.Tx) error {
		r := viewing.Recording{ID: "rec-mine", State: viewing.RecordingAvailable, Sandbox: sb.ID(), Started: tx.Now()}
		return tx.Recordings().Create(ctx, store.Recording{Recording: r, Tenant: "default"}, 1, 1)
	}))
	name := map[string]string{"the name": "mine-a"}
	return things{
		"sandboxes": {"the name": "mine-a", "the id": string(sb.ID())}, "snapshots": {"the name": "mine-a", "the id": snap.ID},
		"keys": {"the id": k.ID}, "recordings": {"the id": "rec-mine"}, "profiles": name, "secrets": name, "templates": name, "workspaces": name, "tenants": name,
		"sessions": {"the name": "mine-a", "the id": session.ID()},
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
