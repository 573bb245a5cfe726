package modal_test

import (
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	service "github.com/atoll-run/atoll/internal/servicetest/modal"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/modal"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

// world is a fake service. Its sandboxes are gVisor sandboxes on this machine.
type world struct {
	*service.Server
	*hostedtest.World[*modal.Provider]
	backing driver.Provider
}

// serve starts a service that ends with the test.
func serve(t *testing.T) *world {
	t.Helper()
	backing := hostedtest.Kernels(t)
	w := &world{Server: service.New(backing), backing: backing}
	w.URL = hostedtest.Serve(t, backing, w.Server)
	w.World = &hostedtest.World[*modal.Provider]{
		Name: modal.Name, New: func(dir string) (*modal.Provider, error) { return modal.New(w.options(dir)) }, Left: w.left, Busy: w.Commands,
	}
	return w
}

// left names the sandboxes and snapshots that the service has.
func (w *world) left() []string {
	names := append(w.Names(), w.Published()...)
	for _, kept := range w.Snapshots("") {
		names = append(names, kept.ID)
	}
	return names
}

func (w *world) options(dir string) modal.Options {
	return modal.Options{
		Dir: dir, TokenID: service.TokenID, Secret: credential.New("MODAL_TOKEN_SECRET", service.TokenSecret, "", ""), App: service.App, URL: w.URL,
		Executable: os.Getenv("ATOLL_BIN"), Transport: hostedtest.Transport(),
	}
}

func spec(id sandbox.ID) *sandbox.Spec { return &sandbox.Spec{ID: id, Name: string(id), Image: "host"} }

func TestConformance(t *testing.T) {
	w := serve(t)
	hostedtest.WarmUp(t, w.backing)
	w.Conformance(t, "snapshot", "restore")
}

// environment is how a user configures the provider.
func environment(url string) []string {
	return []string{
		"MODAL_TOKEN_ID=" + service.TokenID, "MODAL_TOKEN_SECRET=" + service.TokenSecret, "MODAL_SERVER_URL=" + url, "MODAL_APP_NAME=" + service.App,
	}
}

func TestCheck(t *testing.T) {
	w := serve(t)
	lacks := []string{"deadline", "images", "memory", "mounts", "network", "pause", "previews", "resize"}
	hostedtest.Check(t, modal.Name, service.TokenSecret, lacks, environment(w.URL)...)
	w.Empty(t)
}

func TestThroughDaemon(t *testing.T) {
	hostedtest.ThroughDaemon(t, func(t *testing.T) *hostedtest.World[*modal.Provider] { return serve(t).World })
}

func TestHandover(t *testing.T) {
	w := serve(t)
	w.AddKey("ak-other", "as-other", "ws-2")
	h := hostedtest.Handover{
		Name: modal.Name, Records: true, Open: w.Opener, Count: func() int { return len(w.Names()) },
		Other: func(dir string) (driver.Provider, error) {
			opts := w.options(dir)
			opts.TokenID, opts.Secret = "ak-other", credential.New("MODAL_TOKEN_SECRET", "as-other", "", "")
			return modal.New(opts)
		},
	}
	h.Run(t)
}

// The paths are those that the fake shows to faults.
const (
	boxes   = "/boxes"
	box     = "/boxes/one"
	refused = `{"message":"no"}`
)

// faulty is the service for the tests shared by all services.
func (w *world) faulty(p, again *modal.Provider) *hostedtest.Faulty {
	return &hostedtest.Faulty{
		Faults: &w.Faults, Provider: p, Again: again, Boxes: boxes, Box: box, Key: service.TokenSecret,
		NotFound: refused, Invalid: refused, Busy: refused, Nothing: `{}`,
		Other: hostedtest.Replace("sb-", "sc-"), Spec: bounded,
		Count: func() (int, int) { return len(w.Names()), 0 }, Force: w.Force,
	}
}

// bounded is a spec that the service must enforce.
func bounded(id sandbox.ID) *sandbox.Spec {
	s := spec(id)
	s.Network = sandbox.Network{Egress: []string{"api.a.test"}, Plain: &sandbox.EgressRules{Allow: []sandbox.EgressTarget{{Host: "api.a.test"}}}}
	s.Lifetime.Timeout = 30 * time.Minute
	return s
}

func TestCreateFaults(t *testing.T) {
	w := serve(t)
	const post, get = http.MethodPost, http.MethodGet
	all := map[string]hostedtest.CreateFault{}
	for name, f := range map[string]servicetest.Fault{
		"foreign":     {Method: get, Path: "/tags", Rewrite: hostedtest.Replace("atoll-scope", "other-scope")},
		"other id":    {Method: get, Path: "/tags", Rewrite: hostedtest.Replace("sb-create", "sb-others")},
		"command 5xx": {Method: post, Path: "/TaskExecStart", Status: 502},
		"input 5xx":   {Method: post, Path: "/TaskExecStdinWrite", Status: 502},
		"no task":     {Method: post, Path: "/SandboxGetTaskIdV2", Status: 200, Body: `{}`},
		"no access":   {Method: post, Path: "/SandboxGetCommandRouterAccess", Rewrite: hostedtest.Replace("http://", "gopher:")},
		"no end":      {Method: post, Path: "/TaskExecWait", Status: 200, Body: `{}`},
	} {
		all[name] = hostedtest.CreateFault{Fault: f, Want: sandbox.CodeUnavailable, Posts: 1}
	}
	all["repeated"] = hostedtest.CreateFault{Fault: servicetest.Fault{Method: post, Path: "/TaskExecStart", Times: 1, Lose: true}, Posts: 1}
	all["input repeated"] = hostedtest.CreateFault{Fault: servicetest.Fault{Method: post, Path: "/TaskExecStdinWrite", Times: 2, Lose: true}, Posts: 1}
	all["output continues"] = hostedtest.CreateFault{Fault: servicetest.Fault{Method: post, Path: "/TaskExecStdioRead", Times: 1, Status: 502}, Posts: 1}
	all["guest not taken"] = hostedtest.CreateFault{
		Fault: servicetest.Fault{Method: post, Path: "/TaskExecStdinWrite", Status: 400, Body: refused}, Want: sandbox.CodeInvalid, Posts: 1,
	}
	all["no image"] = hostedtest.CreateFault{Fault: servicetest.Fault{Method: post, Path: "/ImageGetOrCreate", Status: 400, Body: refused}, Want: sandbox.CodeInvalid}
	w.faulty(w.Open(t, t.TempDir()), nil).Create(t, all)
}

func TestCreateGivenUp(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).GivenUp(t, boxes, "/TaskExecStart")
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
	w.faulty(w.Open(t, t.TempDir()), nil).Conflict(t)
}

func TestRefusals(t *testing.T) {
	w := serve(t)
	body := func(text string) string { return `{"message":"` + text + `"}` }
	w.faulty(w.Open(t, t.TempDir()), nil).Refusals(t, boxes, body, true)
	p := w.Open(t, t.TempDir())
	w.faulty(p, nil).Refusals(t, "/AuthTokenGet", body, false)
	w.Clear()
	w.Add(servicetest.Fault{Path: "/AuthTokenGet", Status: 404, Body: refused})
	if _, err := p.Attach(t.Context(), "sb-refused"); p.ErrorCode(err) != sandbox.CodeUnavailable {
		t.Errorf("Attach without a token: %v, want unavailable", err)
	}
}

func TestStatuses(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).Statuses(t, map[string]hostedtest.Meaning{"running": {State: sandbox.Running}}, "timeout")
}

// Tokens expire while a sandbox is used.
func TestExpired(t *testing.T) {
	w := serve(t)
	p := w.Open(t, t.TempDir())
	in := w.faulty(p, nil).Make(t, spec("sb-expired"))
	w.Expire()
	if got := hostedtest.Says(t, in, "echo alive"); got != "alive\n" {
		t.Errorf("it says %q", got)
	}
	w.Expire()
	if _, err := p.Attach(t.Context(), in.ID()); err != nil {
		t.Errorf("Attach: %v", err)
	}
	if err := w.End(t.Context(), w.Names()[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Attach(t.Context(), in.ID()); p.ErrorCode(err) != sandbox.CodeGone {
		t.Errorf("Attach: %v, want gone", err)
	}
}

// Images are built once, and a name that leads to none is the user's mistake.
func TestImages(t *testing.T) {
	w := serve(t)
	p := w.Open(t, t.TempDir())
	for range 2 {
		s := spec("sb-image")
		s.Image = "docker.io/library/alpine:3"
		in, err := p.Create(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if err := in.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := w.Requests(http.MethodPost, "/ImageJoinStreaming"); n != 2 {
		t.Errorf("the service was asked %d times about the build, want twice", n)
	}
	s := spec("sb-image")
	for image, want := range map[string]sandbox.Code{
		"docker.io/library/missing": sandbox.CodeNotFound, "template:im-none": sandbox.CodeNotFound, "oci:/x": sandbox.CodeUnsupported, "a\nRUN evil": sandbox.CodeUnsupported, "template:": sandbox.CodeUnsupported,
	} {
		s.Image = image
		if _, err := p.Create(t.Context(), s); p.ErrorCode(err) != want {
			t.Errorf("%q: %v, want %s", image, err, want)
		}
	}
	w.Empty(t)
}

// A snapshot that cannot be named leaves no image.
func TestSnapshotFaults(t *testing.T) {
	w := serve(t)
	p := w.Open(t, t.TempDir())
	in := w.faulty(p, nil).Make(t, spec("sb-saved"))
	s, ok := driver.As[driver.Snapshotter](in)
	if !ok {
		t.Fatal("no driver.Snapshotter")
	}
	w.Add(servicetest.Fault{Path: "/ImagePublish", Status: 400, Body: refused})
	if _, err := s.Snapshot(t.Context(), driver.SnapshotOptions{ID: "one"}); p.ErrorCode(err) != sandbox.CodeInvalid {
		t.Errorf("Snapshot: %v, want invalid", err)
	}
	if left := w.Snapshots(""); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
	w.Clear()
	w.Add(servicetest.Fault{Path: "/TaskSnapshotFilesystem", Times: 1, Lose: true})
	if _, err := s.Snapshot(t.Context(), driver.SnapshotOptions{ID: "one"}); err != nil {
		t.Errorf("Snapshot: %v", err)
	}
	if n := len(w.Snapshots("")); n != 1 {
		t.Errorf("there are %d images, want one", n)
	}
	for found, err := range p.Snapshots(t.Context()) {
		if err == nil {
			err = p.RemoveSnapshot(t.Context(), found.Ref)
		}
		if err != nil {
			t.Error(err)
		}
	}
	if left := slices.Concat(w.Published(), w.left()[1:]); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

// What the service cannot do is refused before any request.
func TestRefused(t *testing.T) {
	p, err := modal.New(modal.Options{
		Dir: t.TempDir(), URL: "http://127.0.0.1:1", TokenID: "i", Secret: credential.New("MODAL_TOKEN_SECRET", "k", "", ""), App: "a",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for what, change := range map[string]func(*sandbox.Spec){
		"image":    func(s *sandbox.Spec) { s.Image = "tar:/x" },
		"mounts":   func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: "/", Target: "/x"}} },
		"lifetime": func(s *sandbox.Spec) { s.Lifetime.Timeout = 25 * time.Hour },
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
	if _, err := modal.New(modal.Options{Dir: t.TempDir(), URL: "https://u:secret@x"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("an address with a password: %v", err)
	}
}

// The token may be in the file of the service's own clients.
func TestConfig(t *testing.T) {
	w := serve(t)
	file := filepath.Join(t.TempDir(), "modal.toml")
	text := "# mine\n[other]\ntoken_id = \"ak-x\"\n\n[work]\ntoken_id = '" + service.TokenID + "' # mine\ntoken_secret = \"" + service.TokenSecret + "\"\nactive = true\n" +
		"server_url = \"" + w.URL + "\"\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	vars := map[string]string{"MODAL_CONFIG_PATH": file, "MODAL_APP_NAME": service.App}
	for profile, want := range map[string]bool{"": true, "work": true, "other": false, "none": false} {
		vars["MODAL_PROFILE"] = profile
		opts := modal.FromEnvironment(t.TempDir(), func(name string) string { return vars[name] })
		opts.Transport = hostedtest.Transport()
		p, err := modal.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		if facts, err := p.Probe(t.Context()); err != nil || facts.Available != want {
			t.Errorf("profile %q: %+v, %v", profile, facts.Findings, err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}
