package daytona_test

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	service "github.com/atoll-run/atoll/internal/servicetest/daytona"
	"github.com/atoll-run/atoll/provider/daytona"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

// world is a fake service. Its sandboxes are gVisor sandboxes on this machine.
type world struct {
	*service.Server
	*hostedtest.World[*daytona.Provider]
	backing driver.Provider
	url     string
}

// serve starts a service that ends with the test.
func serve(t *testing.T) *world {
	t.Helper()
	backing := hostedtest.Kernels(t)
	w := &world{Server: service.New(backing), backing: backing}
	w.url = hostedtest.Serve(t, backing, w.Server) + "/api"
	w.World = &hostedtest.World[*daytona.Provider]{
		Name: daytona.Name, New: func(dir string) (*daytona.Provider, error) { return daytona.New(w.options(dir)) }, Left: w.left, Busy: w.Sessions,
	}
	return w
}

// left names the sandboxes and snapshots that the service has.
func (w *world) left() []string {
	names := w.Names()
	for _, kept := range w.Snapshots("") {
		names = append(names, kept.ID)
	}
	return names
}

func (w *world) options(dir string) daytona.Options {
	return daytona.Options{
		Dir: dir, Key: credential.New("DAYTONA_API_KEY", service.Key, "", ""), URL: w.url, Executable: os.Getenv("ATOLL_BIN"), Transport: hostedtest.Transport(),
	}
}

func spec(id sandbox.ID) *sandbox.Spec { return &sandbox.Spec{ID: id, Name: string(id), Image: "host"} }

func TestConformance(t *testing.T) {
	w := serve(t)
	hostedtest.WarmUp(t, w.backing)
	w.Conformance(t, "snapshot", "restore")
}

func TestCheck(t *testing.T) {
	w := serve(t)
	lacks := []string{"deadline", "images", "memory", "mounts", "network", "pause", "previews", "resize"}
	hostedtest.Check(t, daytona.Name, service.Key, lacks, "DAYTONA_API_KEY="+service.Key, "DAYTONA_API_URL="+w.url)
	w.Empty(t)
}

func TestThroughDaemon(t *testing.T) {
	hostedtest.ThroughDaemon(t, func(t *testing.T) *hostedtest.World[*daytona.Provider] { return serve(t).World })
}

func TestHandover(t *testing.T) {
	const other = "dtn_other"
	w := serve(t)
	w.AddKey(other, "org-2")
	h := hostedtest.Handover{
		Name: daytona.Name, Records: true, Open: w.Opener, Count: func() int { return len(w.Names()) },
		Other: func(dir string) (driver.Provider, error) {
			opts := w.options(dir)
			opts.Key = credential.New("DAYTONA_API_KEY", other, "", "")
			return daytona.New(opts)
		},
	}
	h.Run(t)
}

const (
	notFound = `{"statusCode":404,"error":"Not Found","message":"Sandbox not found"}`
	conflict = `{"statusCode":409,"error":"Conflict","message":"Sandbox is changing"}`
	refused  = `{"statusCode":400,"error":"Bad Request","message":"no"}`
)

// faulty is the service for the tests shared by all services.
func (w *world) faulty(p, again *daytona.Provider) *hostedtest.Faulty {
	return &hostedtest.Faulty{
		Faults: &w.Faults, Provider: p, Again: again, Boxes: "/api/sandbox", Box: "/api/sandbox/*", Key: service.Key,
		NotFound: notFound, Invalid: refused, Busy: conflict, Nothing: `{"items":[],"nextCursor":null}`,
		Other: hostedtest.Replace(`"name":"`, `"name":"other-`), Spec: bounded,
		Count: func() (int, int) { return len(w.Names()), 0 }, Force: w.Force,
	}
}

// bounded is a spec that the service must confirm.
func bounded(id sandbox.ID) *sandbox.Spec {
	s := spec(id)
	s.Network = sandbox.Network{Egress: []string{"api.a.test"}, Plain: &sandbox.EgressRules{Allow: []sandbox.EgressTarget{{Host: "api.a.test"}}}}
	s.Lifetime.Timeout = time.Hour
	return s
}

func TestCreateFaults(t *testing.T) {
	w := serve(t)
	always := func(method, path string, f servicetest.Fault) servicetest.Fault {
		f.Method, f.Path = method, path
		return f
	}
	const post, get, inside, toolbox = http.MethodPost, http.MethodGet, "/toolbox/*/process/session", "/toolbox/*/files/bulk-upload"
	all := map[string]hostedtest.CreateFault{}
	for name, f := range map[string]servicetest.Fault{
		"open":            always(get, "/api/sandbox/*", servicetest.Fault{Rewrite: hostedtest.Replace(`"domainAllowList":"api.a.test",`, "")}),
		"no end":          always(get, "/api/sandbox/*", servicetest.Fault{Rewrite: hostedtest.Replace(`autoDestroyAt`, "other")}),
		"toolbox 5xx":     always(post, inside, servicetest.Fault{Status: 502}),
		"foreign toolbox": always(get, "/api/sandbox/*", servicetest.Fault{Rewrite: hostedtest.Replace(`"toolboxProxyUrl":"http://`, `"toolboxProxyUrl":"ftp://`)}),
	} {
		want := sandbox.CodeUnavailable
		if name == "foreign toolbox" {
			want = sandbox.CodeInvalid
		}
		all[name] = hostedtest.CreateFault{Fault: f, Want: want, Posts: 1}
	}
	all["failed"] = hostedtest.CreateFault{
		Fault: always(get, "/api/sandbox/*", servicetest.Fault{Rewrite: hostedtest.Replace(`"state":"started"`, `"state":"error"`)}), Want: sandbox.CodeConflict, Posts: 1,
	}
	all["guest not taken"] = hostedtest.CreateFault{Fault: always(post, toolbox, servicetest.Fault{Status: 400, Body: refused}), Want: sandbox.CodeInvalid, Posts: 1}
	w.faulty(w.Open(t, t.TempDir()), nil).Create(t, all)
}

func TestCreateGivenUp(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).GivenUp(t, "/api/sandbox", "/toolbox/*/process/session")
}

func TestLate(t *testing.T) {
	w, dir := serve(t), t.TempDir()
	w.faulty(w.Open(t, dir), w.Open(t, dir)).Late(t)
}

func TestFalse404(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).False404(t, "/api/sandbox")
}

func TestConflict(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).Conflict(t)
}

func TestRefusals(t *testing.T) {
	w := serve(t)
	body := func(text string) string { return `{"statusCode":STATUS,"error":"x","message":"` + text + `"}` }
	w.faulty(w.Open(t, t.TempDir()), nil).Refusals(t, "/api/sandbox", body, false)
}

func TestStatuses(t *testing.T) {
	w := serve(t)
	running, sleeping := hostedtest.Meaning{State: sandbox.Running}, hostedtest.Meaning{State: sandbox.Paused}
	failed := hostedtest.Meaning{State: sandbox.Failed, Resume: sandbox.CodeConflict}
	w.faulty(w.Open(t, t.TempDir()), nil).Statuses(t, map[string]hostedtest.Meaning{
		"started": running, "creating": running, "starting": running, "resuming": running, "restoring": running, "snapshotting": running,
		"stopping": sleeping, "pausing": sleeping, "archiving": sleeping, "error": failed, "build_failed": failed,
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
	p, err := daytona.New(daytona.Options{Dir: t.TempDir(), URL: "http://127.0.0.1:1", Key: credential.New("DAYTONA_API_KEY", "k", "", "")})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for what, change := range map[string]func(*sandbox.Spec){
		"image":  func(s *sandbox.Spec) { s.Image = "docker.io/library/python" },
		"mounts": func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "/", Target: "/x"}} },
		"rules":  func(s *sandbox.Spec) { s.Network = sandbox.Network{Egress: []string{"a.test"}} },
	} {
		s := spec("sb-refused")
		change(s)
		if _, err := p.Create(t.Context(), s); p.ErrorCode(err) != sandbox.CodeUnsupported {
			t.Errorf("%s: %v, want unsupported", what, err)
		}
	}
	if _, err := daytona.New(daytona.Options{Dir: t.TempDir(), URL: "https://u:secret@x"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("an address with a password: %v", err)
	}
}
