package blaxel_test

import (
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	service "github.com/atoll-run/atoll/internal/servicetest/blaxel"
	"github.com/atoll-run/atoll/provider/blaxel"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

// world is a fake service. Its sandboxes are gVisor sandboxes on this machine.
type world struct {
	*service.Server
	*hostedtest.World[*blaxel.Provider]
	backing driver.Provider
	url     string
}

// serve starts a service that ends with the test.
func serve(t *testing.T) *world {
	t.Helper()
	backing := hostedtest.Kernels(t)
	w := &world{Server: service.New(backing), backing: backing}
	w.url = hostedtest.Serve(t, backing, w.Server) + "/v0"
	w.World = &hostedtest.World[*blaxel.Provider]{
		Name: blaxel.Name, New: func(dir string) (*blaxel.Provider, error) { return blaxel.New(w.options(dir)) }, Left: w.Names, Busy: w.Commands,
	}
	return w
}

func (w *world) options(dir string) blaxel.Options {
	return blaxel.Options{
		Dir: dir, Key: credential.New("BL_API_KEY", service.Key, "", ""), Workspace: service.Workspace, URL: w.url, Executable: os.Getenv("ATOLL_BIN"),
		Transport: hostedtest.Transport(),
	}
}

func spec(id sandbox.ID) *sandbox.Spec { return &sandbox.Spec{ID: id, Name: string(id), Image: "host"} }

func TestConformance(t *testing.T) {
	w := serve(t)
	hostedtest.WarmUp(t, w.backing)
	w.Conformance(t)
}

// environment is how a user configures the provider.
func environment(url string) []string {
	return []string{"BL_API_KEY=" + service.Key, "BL_WORKSPACE=" + service.Workspace, "BL_API_URL=" + url}
}

func TestCheck(t *testing.T) {
	w := serve(t)
	lacks := []string{"deadline", "images", "memory", "mounts", "network", "pause", "previews", "resize", "snapshot"}
	hostedtest.Check(t, blaxel.Name, service.Key, lacks, environment(w.url)...)
	w.Empty(t)
}

func TestThroughDaemon(t *testing.T) {
	hostedtest.ThroughDaemon(t, func(t *testing.T) *hostedtest.World[*blaxel.Provider] { return serve(t).World })
}

func TestHandover(t *testing.T) {
	const other = "other-team"
	w := serve(t)
	w.AddKey("bl_other", other)
	h := hostedtest.Handover{
		Name: blaxel.Name, Records: true, Open: w.Opener, Count: func() int { return len(w.Names()) },
		Other: func(dir string) (driver.Provider, error) {
			opts := w.options(dir)
			opts.Key, opts.Workspace = credential.New("BL_API_KEY", "bl_other", "", ""), other
			return blaxel.New(opts)
		},
	}
	h.Run(t)
}

const (
	notFound = `{"error":"NOT_FOUND","code":404,"message":"Sandbox not found"}`
	conflict = `{"error":"CONFLICT","code":409,"message":"Sandbox is changing"}`
	refused  = `{"code":"INVALID_NAME","message":"no"}`
	boxes    = "/v0/sandboxes"
	box      = "/v0/sandboxes/*"
	process  = "/sbx/*/process"
)

// faulty is the service for the tests shared by all services.
func (w *world) faulty(p, again *blaxel.Provider) *hostedtest.Faulty {
	return &hostedtest.Faulty{
		Faults: &w.Faults, Provider: p, Again: again, Boxes: boxes, Box: box, Key: service.Key,
		NotFound: notFound, Invalid: refused, Busy: conflict, Nothing: `{"data":[],"meta":{"hasMore":false}}`,
		Other: hostedtest.Replace(`"name":"`, `"name":"other`), Spec: bounded,
		Count: func() (int, int) { return len(w.Names()), 0 }, Force: w.Force,
	}
}

// bounded is a spec that the service must confirm.
func bounded(id sandbox.ID) *sandbox.Spec {
	s := spec(id)
	s.Network = sandbox.Network{Egress: []string{"api.a.test"}, Plain: &sandbox.EgressRules{Allow: []sandbox.EgressTarget{{Host: "api.a.test"}}}}
	s.Lifetime.Timeout, s.Resources.Memory = 30*time.Minute, 2<<30
	return s
}

func TestCreateFaults(t *testing.T) {
	w := serve(t)
	always := func(method, path string, f servicetest.Fault) servicetest.Fault {
		f.Method, f.Path = method, path
		return f
	}
	const get, post = http.MethodGet, http.MethodPost
	all := map[string]hostedtest.CreateFault{}
	for name, f := range map[string]servicetest.Fault{
		"open":          always(get, box, servicetest.Fault{Rewrite: hostedtest.Replace(`"rulesets":["proxy"]`, `"rulesets":["default"]`)}),
		"no network":    always(get, box, servicetest.Fault{Rewrite: hostedtest.Replace(`"network":`, `"other":`)}),
		"more names":    always(get, box, servicetest.Fault{Rewrite: hostedtest.Replace(`"api.a.test"`, `"api.a.test","b.test"`)}),
		"short":         always(get, box, servicetest.Fault{Rewrite: hostedtest.Replace(`"ttl":"1800s"`, `"ttl":"300s"`)}),
		"small":         always(get, box, servicetest.Fault{Rewrite: hostedtest.Replace(`"memory":2048`, `"memory":1024`)}),
		"command 5xx":   always(post, process, servicetest.Fault{Status: 502}),
		"no exit code":  always(post, process, servicetest.Fault{Rewrite: func([]byte) []byte { return []byte("{}") }}),
		"not encrypted": always(get, box, servicetest.Fault{Rewrite: hostedtest.Replace(`"url":"http`, `"url":"ftp`)}),
	} {
		all[name] = hostedtest.CreateFault{Fault: f, Want: sandbox.CodeUnavailable, Posts: 1}
	}
	all["not encrypted"] = hostedtest.CreateFault{Fault: all["not encrypted"].Fault, Want: sandbox.CodeInvalid, Posts: 1}
	all["other words"] = hostedtest.CreateFault{Fault: always(get, box, servicetest.Fault{Rewrite: hostedtest.Replace(`"ttl":"1800s"`, `"ttl":"30m"`)}), Posts: 1}
	all["failed"] = hostedtest.CreateFault{
		Fault: always(get, box, servicetest.Fault{Rewrite: hostedtest.Replace(`"status":"DEPLOYED"`, `"status":"FAILED"`)}), Want: sandbox.CodeConflict, Posts: 1,
	}
	all["guest not taken"] = hostedtest.CreateFault{
		Fault: always(http.MethodPut, "", servicetest.Fault{Status: 400, Body: `{"error":"no"}`}), Want: sandbox.CodeInvalid, Posts: 1,
	}
	// Only a 404 with this code is repeated.
	all["reached late"] = hostedtest.CreateFault{
		Fault: servicetest.Fault{Method: post, Path: process, Times: 2, Status: 404, Body: `{"error":{"code":"WORKLOAD_UNAVAILABLE","message":"wait"}}`}, Posts: 1,
	}
	w.faulty(w.Open(t, t.TempDir()), nil).Create(t, all)
}

func TestCreateGivenUp(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).GivenUp(t, boxes, process)
}

func TestLate(t *testing.T) {
	w, dir := serve(t), t.TempDir()
	w.faulty(w.Open(t, dir), w.Open(t, dir)).Late(t)
}

func TestFalse404(t *testing.T) {
	w := serve(t)
	other := func(code string) string { return `{"error":"` + code + `","code":404,"message":"no"}` }
	w.faulty(w.Open(t, t.TempDir()), nil).False404(t, boxes, other("WORKSPACE_NOT_FOUND"), other("ROUTE_NOT_FOUND"))
}

func TestConflict(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).Conflict(t)
}

func TestRefusals(t *testing.T) {
	w := serve(t)
	body := func(text string) string { return `{"error":"SOME_CODE","code":1,"message":"` + text + `"}` }
	w.faulty(w.Open(t, t.TempDir()), nil).Refusals(t, boxes, body, true)
}

// The service answers 403 for a key that it does not know. The key is then read
// again.
func TestKeyChanges(t *testing.T) {
	w := serve(t)
	file := t.TempDir() + "/key"
	write := func(key string) {
		if err := os.WriteFile(file, []byte(key), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	opts := w.options(t.TempDir())
	opts.Key = credential.New("BL_API_KEY", "", file, "")
	p, err := blaxel.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, key := range []string{"bl_wrong", service.Key} { // a key is kept until it is refused
		write(key)
		if facts, err := p.Probe(t.Context()); err != nil || facts.Available != (key == service.Key) {
			t.Errorf("with the key %s: %+v, %v", key, facts, err)
		}
	}
}

func TestStatuses(t *testing.T) {
	w := serve(t)
	running, sleeping := hostedtest.Meaning{State: sandbox.Running}, hostedtest.Meaning{State: sandbox.Paused}
	failed := hostedtest.Meaning{State: sandbox.Failed, Resume: sandbox.CodeConflict}
	w.faulty(w.Open(t, t.TempDir()), nil).Statuses(t, map[string]hostedtest.Meaning{
		"DEPLOYED": running, "UPLOADING": running, "BUILDING": running, "BUILT": running, "DEPLOYING": running, "UNARCHIVING": running, "ARCHIVING": sleeping,
		"FAILED": failed, "DEACTIVATING": failed, "DEACTIVATED": failed,
	}, "TERMINATED")
}

// An archived sandbox starts again with its files, also slowly.
func TestArchived(t *testing.T) {
	w := serve(t)
	p := w.Open(t, t.TempDir())
	w.Transitions(100 * time.Millisecond)
	in := w.faulty(p, nil).Make(t, spec("sb-archived"))
	hostedtest.Says(t, in, "echo kept >/root/note")
	if err := w.StopAll(); err != nil {
		t.Fatal(err)
	}
	r, ok := driver.As[driver.Resumer](in)
	if !ok {
		t.Fatal("no driver.Resumer")
	}
	if err := r.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := hostedtest.Says(t, in, "cat /root/note"); got != "kept\n" {
		t.Errorf("it says %q", got)
	}
	if err := w.End(t.Context(), w.Names()[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Attach(t.Context(), in.ID()); p.ErrorCode(err) != sandbox.CodeGone {
		t.Errorf("Attach: %v, want gone", err)
	}
}

// What the service cannot do is refused before any request.
func TestRefused(t *testing.T) {
	key := credential.New("BL_API_KEY", "k", "", "")
	p, err := blaxel.New(blaxel.Options{Dir: t.TempDir(), URL: "http://127.0.0.1:1", Key: key, Workspace: "w"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for what, change := range map[string]func(*sandbox.Spec){
		"image":  func(s *sandbox.Spec) { s.Image = "tar:/tmp/image" },
		"mounts": func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "/", Target: "/x"}} },
		"addresses": func(s *sandbox.Spec) {
			s.Network = sandbox.Network{Egress: []string{"192.0.2.0/24"}, Plain: &sandbox.EgressRules{Allow: []sandbox.EgressTarget{{Prefix: netip.MustParsePrefix("192.0.2.0/24")}}}}
		},
		"rules": func(s *sandbox.Spec) { s.Network = sandbox.Network{Egress: []string{"a.test"}} },
	} {
		s := spec("sb-refused")
		change(s)
		if _, err := p.Create(t.Context(), s); p.ErrorCode(err) != sandbox.CodeUnsupported {
			t.Errorf("%s: %v, want unsupported", what, err)
		}
	}
	if _, err := blaxel.New(blaxel.Options{Dir: t.TempDir(), URL: "https://u:secret@x"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("an address with a password: %v", err)
	}
	nowhere, err := blaxel.New(blaxel.Options{Dir: t.TempDir(), URL: "http://127.0.0.1:1", Key: key})
	if err != nil {
		t.Fatal(err)
	}
	defer nowhere.Close()
	if facts, err := nowhere.Probe(t.Context()); err != nil || facts.Available || !strings.Contains(facts.Findings[0].Fix, "BL_WORKSPACE") {
		t.Errorf("without a workspace: %+v, %v", facts, err)
	}
}
