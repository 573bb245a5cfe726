package opensandbox_test

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	service "github.com/atoll-run/atoll/internal/servicetest/opensandbox"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/opensandbox"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

// world is a fake service. Its sandboxes are gVisor sandboxes on this machine.
type world struct {
	*service.Server
	*hostedtest.World[*opensandbox.Provider]
	backing driver.Provider
	url     string
}

// serve starts a service that ends with the test.
func serve(t *testing.T) *world {
	t.Helper()
	backing := hostedtest.Kernels(t)
	w := &world{Server: service.New(backing), backing: backing}
	w.url = hostedtest.Serve(t, backing, w.Server)
	w.World = &hostedtest.World[*opensandbox.Provider]{
		Name: opensandbox.Name, New: func(dir string) (*opensandbox.Provider, error) { return opensandbox.New(w.options(dir)) }, Left: w.Names, Busy: w.Commands,
	}
	return w
}

func (w *world) options(dir string) opensandbox.Options {
	return opensandbox.Options{
		Dir: dir, Key: credential.New("OPEN_SANDBOX_API_KEY", service.Key, "", ""), Domain: w.url, Executable: os.Getenv("ATOLL_BIN"), Transport: hostedtest.Transport(),
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
	return []string{"OPEN_SANDBOX_API_KEY=" + service.Key, "OPEN_SANDBOX_DOMAIN=" + url}
}

func TestCheck(t *testing.T) {
	w := serve(t)
	lacks := []string{"deadline", "images", "memory", "mounts", "network", "pause", "previews", "resize", "snapshot"}
	hostedtest.Check(t, opensandbox.Name, service.Key, lacks, environment(w.url)...)
	w.Empty(t)
}

func TestThroughDaemon(t *testing.T) {
	hostedtest.ThroughDaemon(t, func(t *testing.T) *hostedtest.World[*opensandbox.Provider] { return serve(t).World })
}

func TestHandover(t *testing.T) {
	const other = "osb-other"
	w := serve(t)
	w.AddKey(other, "team-2")
	h := hostedtest.Handover{
		Name: opensandbox.Name, Records: true, Open: w.Opener, Count: func() int { return len(w.Names()) },
		Other: func(dir string) (driver.Provider, error) {
			opts := w.options(dir)
			opts.Key = credential.New("OPEN_SANDBOX_API_KEY", other, "", "")
			return opensandbox.New(opts)
		},
	}
	h.Run(t)
}

const (
	notFound = `{"code":"DOCKER::SANDBOX_NOT_FOUND","message":"Sandbox not found."}`
	conflict = `{"code":"DOCKER::SANDBOX_DELETE_CONFLICT","message":"The sandbox is changing."}`
	boxes    = "/v1/sandboxes"
	box      = "/v1/sandboxes/*"
	inside   = "/v1/sandboxes/*/proxy/44772"
	refused  = `{"code":"SANDBOX::INVALID_PARAMETER","message":"no"}`
)

// faulty is the service for the tests shared by all services.
func (w *world) faulty(p, again *opensandbox.Provider) *hostedtest.Faulty {
	return &hostedtest.Faulty{
		Faults: &w.Faults, Provider: p, Again: again, Boxes: boxes, Box: box, Key: service.Key,
		NotFound: notFound, Invalid: refused, Busy: conflict, Nothing: `{"items":[],"pagination":{"hasNextPage":false}}`,
		Other: hostedtest.Replace(`"id":"`, `"id":"other`), Spec: bounded,
		Count: func() (int, int) { return len(w.Names()), 0 }, Force: w.Force,
	}
}

// bounded is a spec that the service must confirm.
func bounded(id sandbox.ID) *sandbox.Spec {
	s := spec(id)
	s.Network = sandbox.Network{Egress: []string{"api.a.test"}, Plain: &sandbox.EgressRules{Allow: []sandbox.EgressTarget{{Host: "api.a.test"}}}}
	s.Lifetime.Timeout = 30 * time.Minute
	return s
}

func TestCreateFaults(t *testing.T) {
	w := serve(t)
	const get, post, network = http.MethodGet, http.MethodPost, "/v1/sandboxes/*/networkpolicy"
	all := map[string]hostedtest.CreateFault{}
	for name, f := range map[string]servicetest.Fault{
		"open":         {Method: get, Path: network, Rewrite: hostedtest.Replace(`"defaultAction":"deny"`, `"defaultAction":"allow"`)},
		"more open":    {Method: get, Path: network, Rewrite: hostedtest.Replace(`"target":"api.a.test"`, `"target":"*.a.test"`)},
		"no sidecar":   {Method: get, Path: network, Status: 502, Body: refused},
		"short":        {Method: get, Path: box, Rewrite: hostedtest.Replace(`"expiresAt"`, `"expires"`)},
		"command 5xx":  {Method: post, Path: inside + "/command", Status: 502},
		"no command":   {Method: post, Path: inside + "/command", Rewrite: func([]byte) []byte { return []byte("{}") }},
		"command dies": {Method: post, Path: inside + "/command", Rewrite: func([]byte) []byte { return []byte(`{"type":"init","text":"x"}` + "\n\n") }},
	} {
		all[name] = hostedtest.CreateFault{Fault: f, Want: sandbox.CodeUnavailable, Posts: 1}
	}
	all["failed"] = hostedtest.CreateFault{
		Fault: servicetest.Fault{Method: get, Path: box, Rewrite: hostedtest.Replace(`"state":"Running"`, `"state":"Failed"`)}, Want: sandbox.CodeConflict, Posts: 1,
	}
	all["names only"] = hostedtest.CreateFault{
		Fault: servicetest.Fault{Method: get, Path: network, Rewrite: hostedtest.Replace(service.Strict, "dns")}, Want: sandbox.CodeUnsupported, Posts: 1,
	}
	all["guest not taken"] = hostedtest.CreateFault{
		Fault: servicetest.Fault{Method: post, Path: inside + "/files/upload", Status: 400, Body: refused}, Want: sandbox.CodeInvalid, Posts: 1,
	}
	all["daemon is late"] = hostedtest.CreateFault{
		Fault: servicetest.Fault{Method: get, Path: inside + "/ping", Times: 4, Status: 502, Body: refused}, Posts: 1,
	}
	w.faulty(w.Open(t, t.TempDir()), nil).Create(t, all)
}

func TestCreateGivenUp(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).GivenUp(t, boxes, inside+"/command")
}

func TestLate(t *testing.T) {
	w, dir := serve(t), t.TempDir()
	w.faulty(w.Open(t, dir), w.Open(t, dir)).Late(t)
}

func TestFalse404(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).False404(t, boxes)
}

func TestConflict(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).Conflict(t)
	w.Empty(t)
}

func TestRefusals(t *testing.T) {
	w := serve(t)
	body := func(text string) string { return `{"code":"x","message":"` + text + `"}` }
	w.faulty(w.Open(t, t.TempDir()), nil).Refusals(t, boxes, body, true)
}

func TestStatuses(t *testing.T) {
	w := serve(t)
	running, sleeping := hostedtest.Meaning{State: sandbox.Running}, hostedtest.Meaning{State: sandbox.Paused}
	failed := hostedtest.Meaning{State: sandbox.Failed, Resume: sandbox.CodeConflict}
	w.faulty(w.Open(t, t.TempDir()), nil).Statuses(t, map[string]hostedtest.Meaning{
		"Running": running, "Pending": running, "Resuming": running, "Pausing": sleeping, "Paused": sleeping, "Failed": failed, "Terminated": failed,
	}, "Stopping")
}

// A paused sandbox starts again with its files, also slowly.
func TestStopped(t *testing.T) {
	w := serve(t)
	p := w.Open(t, t.TempDir())
	w.Transitions(100 * time.Millisecond)
	in := w.faulty(p, nil).Make(t, spec("sb-stopped"))
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

// What the server cannot do is refused before any request.
func TestRefused(t *testing.T) {
	p, err := opensandbox.New(opensandbox.Options{Dir: t.TempDir(), Domain: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for what, change := range map[string]func(*sandbox.Spec){
		"image":  func(s *sandbox.Spec) { s.Image = "tar:/x.tar" },
		"mounts": func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "/", Target: "/x"}} },
		"rules":  func(s *sandbox.Spec) { s.Network = sandbox.Network{Egress: []string{"a.test"}} },
	} {
		s := spec("sb-refused")
		change(s)
		if _, err := p.Create(t.Context(), s); p.ErrorCode(err) != sandbox.CodeUnsupported {
			t.Errorf("%s: %v, want unsupported", what, err)
		}
	}
	if _, err := opensandbox.New(opensandbox.Options{Dir: t.TempDir(), Domain: "https://u:secret@x"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("an address with a password: %v", err)
	}
}

// Without an address, nothing is sent.
func TestUnset(t *testing.T) {
	p, err := opensandbox.New(opensandbox.FromEnvironment(t.TempDir(), func(string) string { return "" }))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	facts, err := p.Probe(t.Context())
	if err != nil || facts.Available {
		t.Errorf("Probe: %+v, %v", facts, err)
	}
	if _, err := p.Create(t.Context(), spec("sb-unset")); p.ErrorCode(err) != sandbox.CodeInvalid {
		t.Errorf("Create: %v", err)
	}
}

// An image that the server cannot fetch is a refusal.
func TestNoImage(t *testing.T) {
	w := serve(t)
	p, s := w.Open(t, t.TempDir()), spec("sb-no-image")
	s.Image = "missing/image"
	if _, err := p.Create(t.Context(), s); p.ErrorCode(err) != sandbox.CodeNotFound || !strings.Contains(err.Error(), "missing/image") {
		t.Errorf("Create: %v, want not found", err)
	}
	w.Empty(t)
}

// A lifetime that is shorter than what the server accepts ends in time, and the
// image and the limits reach the server.
func TestShort(t *testing.T) {
	w := serve(t)
	s := spec("sb-short")
	s.Lifetime.Timeout, s.Image, s.Resources = 3*time.Second, "python:3.12", sandbox.Resources{CPUs: 0.5, Memory: 256 << 20}
	in, err := w.Open(t, t.TempDir()).Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.Asked(); got != "python:3.12 cpu=500m memory=268435456 timeout=60" {
		t.Errorf("the server was asked for %s", got)
	}
	if exit, err := in.Wait(t.Context()); err != nil || exit.Reason != sandbox.ReasonLifetime {
		t.Errorf("Wait: %+v, %v", exit, err)
	}
	w.Empty(t)
}
