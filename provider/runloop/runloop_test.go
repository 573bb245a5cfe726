package runloop_test

import (
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	service "github.com/atoll-run/atoll/internal/servicetest/runloop"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/runloop"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

// world is a fake service. Its sandboxes are gVisor sandboxes on this machine.
type world struct {
	*service.Server
	*hostedtest.World[*runloop.Provider]
	backing driver.Provider
	url     string
}

// serve starts a service that ends with the test.
func serve(t *testing.T) *world {
	t.Helper()
	backing := hostedtest.Kernels(t)
	w := &world{Server: service.New(backing), backing: backing}
	w.url = hostedtest.Serve(t, backing, w.Server)
	w.World = &hostedtest.World[*runloop.Provider]{
		Name: runloop.Name, New: func(dir string) (*runloop.Provider, error) { return runloop.New(w.options(dir)) }, Left: w.Names, Busy: w.Commands,
	}
	return w
}

func (w *world) options(dir string) runloop.Options {
	return runloop.Options{
		Dir: dir, Key: credential.New("RUNLOOP_API_KEY", service.Key, "", ""), URL: w.url, Executable: os.Getenv("ATOLL_BIN"), Transport: hostedtest.Transport(),
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
	return []string{"RUNLOOP_API_KEY=" + service.Key, "RUNLOOP_BASE_URL=" + url}
}

func TestCheck(t *testing.T) {
	w := serve(t)
	lacks := []string{"deadline", "images", "memory", "mounts", "network", "pause", "previews", "resize", "snapshot"}
	hostedtest.Check(t, runloop.Name, service.Key, lacks, environment(w.url)...)
	w.Empty(t)
}

func TestThroughDaemon(t *testing.T) {
	hostedtest.ThroughDaemon(t, func(t *testing.T) *hostedtest.World[*runloop.Provider] { return serve(t).World })
}

func TestHandover(t *testing.T) {
	const other = "ak_other"
	w := serve(t)
	w.AddKey(other, "org-2")
	h := hostedtest.Handover{
		Name: runloop.Name, Records: true, Open: w.Opener, Count: func() int { return len(w.Names()) },
		Other: func(dir string) (driver.Provider, error) {
			opts := w.options(dir)
			opts.Key = credential.New("RUNLOOP_API_KEY", other, "", "")
			return runloop.New(opts)
		},
	}
	h.Run(t)
}

const (
	notFound = `{"code":"not_found","message":"Devbox not found"}`
	conflict = `{"code":"conflict","message":"Devbox is changing"}`
	boxes    = "/v1/devboxes"
	box      = "/v1/devboxes/*"
	refused  = `{"code":"bad_request","message":"no"}`
)

// faulty is the service for the tests shared by all services.
func (w *world) faulty(p, again *runloop.Provider) *hostedtest.Faulty {
	return &hostedtest.Faulty{
		Faults: &w.Faults, Provider: p, Again: again, Boxes: boxes, Box: box, Key: service.Key,
		NotFound: notFound, Invalid: refused, Busy: conflict, Nothing: `{"devboxes":[],"has_more":false}`,
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
	always := func(method, path string, f servicetest.Fault) servicetest.Fault {
		f.Method, f.Path = method, path
		return f
	}
	const post, get, inside, upload = http.MethodPost, http.MethodGet, "/v1/devboxes/*/execute_async", "/v1/devboxes/*/upload_file"
	all := map[string]hostedtest.CreateFault{}
	for name, f := range map[string]servicetest.Fault{
		"open":        always(get, box, servicetest.Fault{Rewrite: hostedtest.Replace(`"network_policy_id":"npo`, `"network_policy_id":"other`)}),
		"short":       always(get, box, servicetest.Fault{Rewrite: hostedtest.Replace(`_seconds":1800`, `_seconds":300`)}),
		"command 5xx": always(post, inside, servicetest.Fault{Status: 502}),
		"no command":  always(post, inside, servicetest.Fault{Rewrite: func([]byte) []byte { return []byte("{}") }}),
	} {
		all[name] = hostedtest.CreateFault{Fault: f, Want: sandbox.CodeUnavailable, Posts: 1}
	}
	all["failed"] = hostedtest.CreateFault{
		Fault: always(get, box, servicetest.Fault{Rewrite: hostedtest.Replace(`"status":"running"`, `"status":"failure"`)}), Want: sandbox.CodeConflict, Posts: 1,
	}
	all["guest not taken"] = hostedtest.CreateFault{Fault: always(post, upload, servicetest.Fault{Status: 400, Body: refused}), Want: sandbox.CodeInvalid, Posts: 1}
	w.faulty(w.Open(t, t.TempDir()), nil).Create(t, all)
}

func TestCreateGivenUp(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).GivenUp(t, boxes, "/v1/devboxes/*/execute_async")
}

func TestLate(t *testing.T) {
	w, dir := serve(t), t.TempDir()
	w.faulty(w.Open(t, dir), w.Open(t, dir)).Late(t)
}

func TestFalse404(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).False404(t, boxes)
}

// The service refuses for a moment to end a sandbox.
func TestConflict(t *testing.T) {
	w := serve(t)
	f := w.faulty(w.Open(t, t.TempDir()), nil)
	in := f.Make(t, f.Spec("sb-conflict"))
	w.Add(servicetest.Fault{Method: http.MethodPost, Path: "/v1/devboxes/*/shutdown", Times: 3, Status: 409, Body: conflict})
	if err := in.Destroy(t.Context()); err != nil {
		t.Errorf("Destroy: %v", err)
	}
	w.Empty(t)
}

// Sandboxes with the same rules share a network policy, also if the answer to the
// request for it is lost.
func TestPolicies(t *testing.T) {
	w := serve(t)
	p := w.Open(t, t.TempDir())
	w.Add(hostedtest.At(http.MethodPost, "/v1/network-policies", servicetest.Fault{Lose: true}))
	for _, id := range []sandbox.ID{"sb-one", "sb-two"} {
		in, err := p.Create(t.Context(), bounded(id))
		if err != nil {
			t.Fatal(err)
		}
		if err := in.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if names := w.Policies(); len(names) != 1 {
		t.Errorf("the policies are %v, want one", names)
	}
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
		"running": running, "scheduled": running, "queued": running, "provisioning": running, "initializing": running, "resuming": running, "suspending": sleeping,
		"failure": failed,
	}, "shutdown")
}

// A suspended sandbox starts again with its files, also slowly.
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

// What the service cannot do is refused before any request.
func TestRefused(t *testing.T) {
	p, err := runloop.New(runloop.Options{Dir: t.TempDir(), URL: "http://127.0.0.1:1", Key: credential.New("RUNLOOP_API_KEY", "k", "", "")})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for what, change := range map[string]func(*sandbox.Spec){
		"image":    func(s *sandbox.Spec) { s.Image = "docker.io/library/python" },
		"mounts":   func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "/", Target: "/x"}} },
		"lifetime": func(s *sandbox.Spec) { s.Lifetime.Timeout = 49 * time.Hour },
		"IPv6": func(s *sandbox.Spec) {
			s.Network = sandbox.Network{Egress: []string{"2001:db8::/32"}, Plain: &sandbox.EgressRules{Allow: []sandbox.EgressTarget{{Prefix: netip.MustParsePrefix("2001:db8::/32")}}}}
		},
		"rules": func(s *sandbox.Spec) { s.Network = sandbox.Network{Egress: []string{"a.test"}} },
	} {
		s := spec("sb-refused")
		change(s)
		if _, err := p.Create(t.Context(), s); p.ErrorCode(err) != sandbox.CodeUnsupported {
			t.Errorf("%s: %v, want unsupported", what, err)
		}
	}
	if _, err := runloop.New(runloop.Options{Dir: t.TempDir(), URL: "https://u:secret@x"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("an address with a password: %v", err)
	}
}
