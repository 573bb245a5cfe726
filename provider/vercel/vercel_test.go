package vercel_test

import (
	"bytes"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	service "github.com/atoll-run/atoll/internal/servicetest/vercel"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/vercel"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

// world is a fake service. Its sandboxes are gVisor sandboxes on this machine.
type world struct {
	*service.Server
	*hostedtest.World[*vercel.Provider]
	backing driver.Provider
	url     string
}

// serve starts a service that ends with the test.
func serve(t *testing.T) *world {
	t.Helper()
	backing := hostedtest.Kernels(t)
	w := &world{Server: service.New(backing), backing: backing}
	w.url = hostedtest.Serve(t, backing, w.Server) + "/api"
	w.World = &hostedtest.World[*vercel.Provider]{
		Name: vercel.Name, New: func(dir string) (*vercel.Provider, error) { return vercel.New(w.options(dir)) }, Left: w.Names, Busy: w.Commands,
	}
	return w
}

func (w *world) options(dir string) vercel.Options {
	return vercel.Options{
		Dir: dir, Token: credential.New("VERCEL_TOKEN", service.Token, "", ""), Team: service.Team, Project: service.Project, URL: w.url,
		Executable: os.Getenv("ATOLL_BIN"), Transport: hostedtest.Transport(),
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
	return []string{"VERCEL_TOKEN=" + service.Token, "VERCEL_TEAM_ID=" + service.Team, "VERCEL_PROJECT_ID=" + service.Project, "ATOLL_VERCEL_URL=" + url}
}

func TestCheck(t *testing.T) {
	w := serve(t)
	lacks := []string{"deadline", "images", "memory", "mounts", "network", "pause", "previews", "resize", "snapshot"}
	hostedtest.Check(t, vercel.Name, service.Token, lacks, environment(w.url)...)
	w.Empty(t)
}

func TestThroughDaemon(t *testing.T) {
	hostedtest.ThroughDaemon(t, func(t *testing.T) *hostedtest.World[*vercel.Provider] { return serve(t).World })
}

func TestHandover(t *testing.T) {
	const other = "vcp_other"
	w := serve(t)
	w.AddKey(other, "team_2")
	h := hostedtest.Handover{
		Name: vercel.Name, Records: true, Open: w.Opener, Count: func() int { return len(w.Names()) },
		Other: func(dir string) (driver.Provider, error) {
			opts := w.options(dir)
			opts.Token, opts.Team = credential.New("VERCEL_TOKEN", other, "", ""), "team_2"
			return vercel.New(opts)
		},
	}
	h.Run(t)
}

const (
	notFound = `{"error":{"code":"not_found","message":"Sandbox not found"}}`
	conflict = `{"error":{"code":"conflict","message":"Sandbox is changing"}}`
	boxes    = "/api/v[23]/sandboxes"
	box      = "/api/v2/sandboxes/*"
	refused  = `{"error":{"code":"bad_request","message":"no"}}`
)

// faulty is the service for the tests shared by all services.
func (w *world) faulty(p, again *vercel.Provider) *hostedtest.Faulty {
	return &hostedtest.Faulty{
		Faults: &w.Faults, Provider: p, Again: again, Boxes: boxes, Box: box, Key: service.Token,
		NotFound: notFound, Invalid: refused, Busy: conflict, Nothing: `{"sandboxes":[],"pagination":{"count":0,"next":null}}`,
		Other: hostedtest.Replace(`"name":"atoll`, `"name":"other`), Spec: bounded,
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
	const post, get, inside, upload = http.MethodPost, http.MethodGet, "/api/v2/sandboxes/sessions/*/cmd", "/api/v2/sandboxes/sessions/*/fs/write"
	all := map[string]hostedtest.CreateFault{}
	for name, f := range map[string]servicetest.Fault{
		"open":        always(get, box, servicetest.Fault{Rewrite: hostedtest.Replace(`"allowedDomains":["api.a.test"],"mode":"custom"`, `"mode":"allow-all"`)}),
		"wide":        always(get, box, servicetest.Fault{Rewrite: hostedtest.Replace(`["api.a.test"]`, `["*"]`)}),
		"short":       always(get, box, servicetest.Fault{Rewrite: hostedtest.Replace(`"timeout":1800000`, `"timeout":300000`)}),
		"not kept":    always(get, box, servicetest.Fault{Rewrite: hostedtest.Replace(`"persistent":true`, `"persistent":false`)}),
		"command 5xx": always(post, inside, servicetest.Fault{Status: 502}),
		"no command":  always(post, inside, servicetest.Fault{Rewrite: func([]byte) []byte { return []byte("{}\n") }}),
		"error record": always(post, inside, servicetest.Fault{Rewrite: func(b []byte) []byte {
			first, _, _ := bytes.Cut(b, []byte("\n"))
			return append(first, "\n{\"stream\":\"error\",\"data\":{\"code\":\"sandbox_stream_closed\",\"message\":\"no\"}}\n"...)
		}}),
	} {
		all[name] = hostedtest.CreateFault{Fault: f, Want: sandbox.CodeUnavailable, Posts: 1}
	}
	all["failed"] = hostedtest.CreateFault{
		Fault: always(get, box, servicetest.Fault{Rewrite: hostedtest.Replace(`"status":"running"`, `"status":"failed"`)}), Want: sandbox.CodeConflict, Posts: 1,
	}
	all["guest not taken"] = hostedtest.CreateFault{Fault: always(post, upload, servicetest.Fault{Status: 400, Body: refused}), Want: sandbox.CodeInvalid, Posts: 1}
	w.faulty(w.Open(t, t.TempDir()), nil).Create(t, all)
}

func TestCreateGivenUp(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).GivenUp(t, "/api/v3/sandboxes", "/api/v2/sandboxes/sessions/*/cmd")
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
}

func TestRefusals(t *testing.T) {
	w := serve(t)
	body := func(text string) string { return `{"error":{"code":"x","message":"` + text + `"}}` }
	w.faulty(w.Open(t, t.TempDir()), nil).Refusals(t, boxes, body, true)
}

func TestStatuses(t *testing.T) {
	w := serve(t)
	running, sleeping := hostedtest.Meaning{State: sandbox.Running}, hostedtest.Meaning{State: sandbox.Paused}
	failed := hostedtest.Meaning{State: sandbox.Failed, Resume: sandbox.CodeConflict}
	w.faulty(w.Open(t, t.TempDir()), nil).Statuses(t, map[string]hostedtest.Meaning{
		"running": running, "pending": running, "stopping": sleeping, "snapshotting": sleeping, "failed": failed, "aborted": failed,
	}, "")
}

// A sandbox whose session has ended starts again with its files, also slowly. The
// new session is found by those who know only the old one.
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
	other, err := p.Attach(t.Context(), in.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.StopAll(); err != nil {
		t.Fatal(err)
	}
	if err := r.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := hostedtest.Says(t, other, "cat /root/note"); got != "kept\n" {
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
	p, err := vercel.New(vercel.Options{Dir: t.TempDir(), URL: "http://127.0.0.1:1", Token: credential.New("VERCEL_TOKEN", "k", "", "")})
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
	if _, err := vercel.New(vercel.Options{Dir: t.TempDir(), URL: "https://u:secret@x"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("an address with a password: %v", err)
	}
	if _, err := vercel.New(vercel.Options{Dir: t.TempDir(), Session: "long"}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a session without a length: %v", err)
	}
}
