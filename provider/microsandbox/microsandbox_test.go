package microsandbox_test

import (
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	service "github.com/atoll-run/atoll/internal/servicetest/microsandbox"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/microsandbox"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

// world is a fake service. Its sandboxes are gVisor sandboxes on this machine.
type world struct {
	*service.Server
	*hostedtest.World[*microsandbox.Provider]
	backing driver.Provider
	url     string
}

// serve starts a service that ends with the test.
func serve(t *testing.T) *world {
	t.Helper()
	backing := hostedtest.Kernels(t)
	w := &world{Server: service.New(backing), backing: backing}
	w.url = hostedtest.Serve(t, backing, w.Server)
	w.World = &hostedtest.World[*microsandbox.Provider]{
		Name: microsandbox.Name, New: func(dir string) (*microsandbox.Provider, error) { return microsandbox.New(w.options(dir)) }, Left: w.Names, Busy: w.Commands,
	}
	return w
}

func (w *world) options(dir string) microsandbox.Options {
	return microsandbox.Options{
		Dir: dir, Key: credential.New("MSB_API_KEY", service.Key, "", ""), URL: w.url, Executable: os.Getenv("ATOLL_BIN"), Transport: hostedtest.Transport(),
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
	return []string{"MSB_API_KEY=" + service.Key, "MSB_API_URL=" + url}
}

func TestCheck(t *testing.T) {
	w := serve(t)
	lacks := []string{"deadline", "images", "memory", "mounts", "network", "pause", "previews", "resize", "snapshot"}
	hostedtest.Check(t, microsandbox.Name, service.Key, lacks, environment(w.url)...)
	w.Empty(t)
}

func TestThroughDaemon(t *testing.T) {
	hostedtest.ThroughDaemon(t, func(t *testing.T) *hostedtest.World[*microsandbox.Provider] { return serve(t).World })
}

func TestHandover(t *testing.T) {
	const other = "msb_other"
	w := serve(t)
	w.AddKey(other, "org-2")
	h := hostedtest.Handover{
		Name: microsandbox.Name, Open: w.Opener, Count: func() int { return len(w.Names()) },
		Other: func(dir string) (driver.Provider, error) {
			opts := w.options(dir)
			opts.Key = credential.New("MSB_API_KEY", other, "", "")
			return microsandbox.New(opts)
		},
	}
	h.Run(t)
}

const (
	notFound = `{"error":{"code":"sandbox_not_found","message":"Sandbox not found"}}`
	conflict = `{"error":{"code":"sandbox_still_running","message":"Sandbox is running"}}`
	refused  = `{"code":"invalid_sandbox_config","message":"no"}`
	boxes    = "/v1/sandboxes"
	box      = "/v1/sandboxes/*"
	agent    = "/v1/sandboxes/*/agent"
)

// faulty is the service for the tests shared by all services. A sandbox is looked
// up by its name before it is created. The fake counts that as the same path.
func (w *world) faulty(p, again *microsandbox.Provider) *hostedtest.Faulty {
	return &hostedtest.Faulty{
		Faults: &w.Faults, Provider: p, Again: again, Boxes: boxes, Box: box, Key: service.Key, Looks: 1,
		NotFound: notFound, Invalid: refused, Busy: conflict, Nothing: `{"data":[],"next_cursor":null}`,
		Other: hostedtest.Replace(`"name":"`, `"name":"other`), Spec: bounded,
		Count: func() (int, int) { return len(w.Names()), 0 }, Force: w.Force,
	}
}

// bounded is a spec that the service must confirm.
func bounded(id sandbox.ID) *sandbox.Spec {
	s := spec(id)
	s.Network = sandbox.Network{Egress: []string{"api.a.test", "*.b.test"}, Plain: &sandbox.EgressRules{Allow: []sandbox.EgressTarget{
		{Host: "api.a.test"}, {Host: "*.b.test"}, {Prefix: netip.MustParsePrefix("192.0.2.0/24")},
	}}}
	s.Lifetime.Timeout = 30 * time.Minute
	return s
}

func TestCreateFaults(t *testing.T) {
	w := serve(t)
	always := func(path string, f servicetest.Fault) servicetest.Fault {
		f.Method, f.Path = http.MethodGet, path
		return f
	}
	rewrite := func(from, to string) servicetest.Fault {
		return always(box, servicetest.Fault{Rewrite: hostedtest.Replace(from, to)})
	}
	all := map[string]hostedtest.CreateFault{}
	for name, f := range map[string]servicetest.Fault{
		"open":       rewrite(`"default_egress":"deny"`, `"default_egress":"allow"`),
		"more names": rewrite(`"domain":"api.a.test"`, `"domain":"b.test"`),
		"any name":   rewrite(`"strict":true`, `"strict":false`),
		"short":      rewrite(`"max_duration_secs":1800`, `"max_duration_secs":18`),
		"ephemeral":  rewrite(`"ephemeral":false`, `"ephemeral":true`),
		"no agent":   always(agent, servicetest.Fault{Status: 502}),
	} {
		all[name] = hostedtest.CreateFault{Fault: f, Want: sandbox.CodeUnavailable, Posts: 1}
	}
	all["failed"] = hostedtest.CreateFault{
		Fault: always(box, servicetest.Fault{Rewrite: hostedtest.Replace(`"status":"running"`, `"status":"failed"`)}), Want: sandbox.CodeConflict, Posts: 1,
	}
	// What the service need not show is not confirmed.
	all["no spec"] = hostedtest.CreateFault{Fault: rewrite(`"spec":`, `"other":`), Posts: 1}
	w.faulty(w.Open(t, t.TempDir()), nil).Create(t, all)
}

func TestLate(t *testing.T) {
	w, dir := serve(t), t.TempDir()
	w.faulty(w.Open(t, dir), w.Open(t, dir)).Late(t)
}

func TestFalse404(t *testing.T) {
	w := serve(t)
	other := `{"error":{"code":"route_not_found","message":"no"}}`
	w.faulty(w.Open(t, t.TempDir()), nil).False404(t, box, other)
}

func TestConflict(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).Conflict(t)
}

func TestRefusals(t *testing.T) {
	w := serve(t)
	body := func(text string) string { return `{"error":{"code":"some_code","message":"` + text + `"}}` }
	w.faulty(w.Open(t, t.TempDir()), nil).Refusals(t, boxes, body, false)
}

func TestStatuses(t *testing.T) {
	w := serve(t)
	running, sleeping := hostedtest.Meaning{State: sandbox.Running}, hostedtest.Meaning{State: sandbox.Paused}
	failed := hostedtest.Meaning{State: sandbox.Failed, Resume: sandbox.CodeConflict}
	w.faulty(w.Open(t, t.TempDir()), nil).Statuses(t, map[string]hostedtest.Meaning{
		"running": running, "starting": running, "stopping": sleeping, "failed": failed,
	}, "")
}

// A stopped sandbox starts again with its files, also slowly.
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
	p, err := microsandbox.New(microsandbox.Options{Dir: t.TempDir(), URL: "http://127.0.0.1:1", Key: credential.New("MSB_API_KEY", "k", "", "")})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for what, change := range map[string]func(*sandbox.Spec){
		"image":  func(s *sandbox.Spec) { s.Image = "dir:/tmp" },
		"mounts": func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "/", Target: "/x"}} },
		"cpus":   func(s *sandbox.Spec) { s.Resources.CPUs = 0.5 },
		"rules":  func(s *sandbox.Spec) { s.Network = sandbox.Network{Egress: []string{"a.test"}} },
	} {
		s := spec("sb-refused")
		change(s)
		if _, err := p.Create(t.Context(), s); p.ErrorCode(err) != sandbox.CodeUnsupported {
			t.Errorf("%s: %v, want unsupported", what, err)
		}
	}
	if _, err := microsandbox.New(microsandbox.Options{Dir: t.TempDir(), URL: "https://u:secret@x"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("an address with a password: %v", err)
	}
}
