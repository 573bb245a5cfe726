package modal_test

import (
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	service "github.com/atoll-run/atoll/internal/testing/servicetest/modal"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/modal"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

// The paths are those that the fake shows to faults.
const refused = `{"message":"no"}`

var suite = hostedtest.Suite[*modal.Provider, *service.Server]{
	Name: modal.Name, Busy: (*service.Server).Commands, Saves: true, Told: func(s *service.Server, url string) { s.URL = url },
	New: func(backing driver.Provider) *service.Server {
		s := service.New(backing)
		s.AddKey("ak-other", "as-other", "ws-2")
		return s
	},
	Open: func(dir string, env func(string) string) (*modal.Provider, error) {
		opts := modal.FromEnvironment(dir, env)
		hostedtest.Connect(&opts.Connection)
		return modal.New(opts)
	},
	Env: func(url string) map[string]string {
		return map[string]string{
			"MODAL_TOKEN_ID": service.TokenID, "MODAL_TOKEN_SECRET": service.TokenSecret, "MODAL_SERVER_URL": url, "MODAL_APP_NAME": service.App,
		}
	},
	Secret: service.TokenSecret, Other: map[string]string{"MODAL_TOKEN_ID": "ak-other", "MODAL_TOKEN_SECRET": "as-other"},
	Left: saved,
	Bounded: func(s *sandbox.Spec) {
		hostedtest.Reach(s, sandbox.EgressTarget{Host: "api.a.test"})
		s.Lifetime.Timeout = 30 * time.Minute
	},
	Sandboxes: "/boxes", Sandbox: "/boxes/one", Inside: "/TaskExecStart", NotFound: refused, Invalid: refused, Changing: refused, Nothing: `{}`,
	Renamed: [2]string{"sb-", "sc-"}, Refusal: `{"message":"TEXT"}`,
	Statuses: map[string]sandbox.State{"running": sandbox.Running}, Deleted: "timeout",
	Refused: map[string]func(*sandbox.Spec){
		"lifetime": func(s *sandbox.Spec) { s.Lifetime.Timeout = 25 * time.Hour },
		"IPv6": func(s *sandbox.Spec) {
			hostedtest.Reach(s, sandbox.EgressTarget{Prefix: netip.MustParsePrefix("2001:db8::/32")})
		},
	},
}

// saved names the snapshots that the service has.
func saved(s *service.Server) []string {
	names := s.Published()
	for _, kept := range s.Snapshots("") {
		names = append(names, kept.ID)
	}
	return names
}

func TestConformance(t *testing.T) { suite.Conformance(t) }

func TestCheck(t *testing.T) { suite.Check(t) }

func TestShared(t *testing.T) { suite.Shared(t) }

func TestCreateFaults(t *testing.T) {
	const post = http.MethodPost
	all := hostedtest.Unavailable(map[string]servicetest.Fault{
		"foreign":     hostedtest.Rewritten("/tags", "atoll-scope", "other-scope"),
		"other id":    hostedtest.Rewritten("/tags", "sb-create", "sb-others"),
		"command 5xx": {Method: post, Path: "/TaskExecStart", Status: 502},
		"input 5xx":   {Method: post, Path: "/TaskExecStdinWrite", Status: 502},
		"no task":     {Method: post, Path: "/SandboxGetTaskIdV2", Status: 200, Body: `{}`},
		"no access":   {Method: post, Path: "/SandboxGetCommandRouterAccess", Rewrite: hostedtest.Replace("http://", "gopher:")},
		"no end":      {Method: post, Path: "/TaskExecWait", Status: 200, Body: `{}`},
	})
	all["repeated"] = hostedtest.CreateFault{Fault: servicetest.Fault{Method: post, Path: "/TaskExecStart", Times: 1, Lose: true}, Posts: 1}
	all["input repeated"] = hostedtest.CreateFault{Fault: servicetest.Fault{Method: post, Path: "/TaskExecStdinWrite", Times: 2, Lose: true}, Posts: 1}
	all["output continues"] = hostedtest.CreateFault{Fault: servicetest.Fault{Method: post, Path: "/TaskExecStdioRead", Times: 1, Status: 502}, Posts: 1}
	all["guest not taken"] = hostedtest.CreateFault{
		Fault: servicetest.Fault{Method: post, Path: "/TaskExecStdinWrite", Status: 400, Body: refused}, Want: sandbox.CodeInvalid, Posts: 1,
	}
	all["no image"] = hostedtest.CreateFault{Fault: servicetest.Fault{Method: post, Path: "/ImageGetOrCreate", Status: 400, Body: refused}, Want: sandbox.CodeInvalid}
	suite.CreateFaults(t, all)
}

// The service refuses requests for a token.
func TestToken(t *testing.T) {
	w := suite.Serve(t)
	p := w.Open(t, t.TempDir())
	w.Faulty(p, nil).Refusals(t, "/AuthTokenGet", func(text string) string { return `{"message":"` + text + `"}` }, false)
	w.Fake.Clear()
	w.Fake.Add(servicetest.Fault{Path: "/AuthTokenGet", Status: 404, Body: refused})
	if _, err := p.Attach(t.Context(), "sb-refused"); p.ErrorCode(err) != sandbox.CodeUnavailable {
		t.Errorf("Attach without a token: %v, want unavailable", err)
	}
}

// Tokens expire while a sandbox is used.
func TestExpired(t *testing.T) {
	w := suite.Serve(t)
	p := w.Open(t, t.TempDir())
	in := w.Faulty(p, nil).Make(t, hostedtest.Spec("sb-expired"))
	w.Fake.Expire()
	if got := hostedtest.Says(t, in, "echo alive"); got != "alive\n" {
		t.Errorf("it says %q", got)
	}
	w.Fake.Expire()
	if _, err := p.Attach(t.Context(), in.ID()); err != nil {
		t.Errorf("Attach: %v", err)
	}
	if err := w.Fake.End(t.Context(), w.Fake.Names()[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Attach(t.Context(), in.ID()); p.ErrorCode(err) != sandbox.CodeGone {
		t.Errorf("Attach: %v, want gone", err)
	}
}

// Images are built once, and a name that leads to none is the user's mistake.
func TestImages(t *testing.T) {
	w := suite.Serve(t)
	p := w.Open(t, t.TempDir())
	for range 2 {
		s := hostedtest.Spec("sb-image")
		s.Image = "docker.io/library/alpine:3"
		in, err := p.Create(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if err := in.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := w.Fake.Requests(http.MethodPost, "/ImageJoinStreaming"); n != 2 {
		t.Errorf("the service was asked %d times about the build, want twice", n)
	}
	s := hostedtest.Spec("sb-image")
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
	w := suite.Serve(t)
	p := w.Open(t, t.TempDir())
	in := w.Faulty(p, nil).Make(t, hostedtest.Spec("sb-saved"))
	s, ok := driver.As[driver.Snapshotter](in)
	if !ok {
		t.Fatal("no driver.Snapshotter")
	}
	w.Fake.Add(servicetest.Fault{Path: "/ImagePublish", Status: 400, Body: refused})
	if _, err := s.Snapshot(t.Context(), driver.SnapshotOptions{ID: "one"}); p.ErrorCode(err) != sandbox.CodeInvalid {
		t.Errorf("Snapshot: %v, want invalid", err)
	}
	if left := w.Fake.Snapshots(""); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
	w.Fake.Clear()
	w.Fake.Add(servicetest.Fault{Path: "/TaskSnapshotFilesystem", Times: 1, Lose: true})
	if _, err := s.Snapshot(t.Context(), driver.SnapshotOptions{ID: "one"}); err != nil {
		t.Errorf("Snapshot: %v", err)
	}
	if n := len(w.Fake.Snapshots("")); n != 1 {
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
	if left := saved(w.Fake); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

// The token may be in the file of the service's own clients.
func TestConfig(t *testing.T) {
	w := suite.Serve(t)
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
