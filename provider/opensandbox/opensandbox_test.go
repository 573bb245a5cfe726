package opensandbox_test

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	service "github.com/atoll-run/atoll/internal/testing/servicetest/opensandbox"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/opensandbox"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

const (
	anySandbox = "/v1/sandboxes/*"
	inside     = anySandbox + "/proxy/44772"
	refused    = `{"code":"SANDBOX::INVALID_PARAMETER","message":"no"}`
)

var suite = hostedtest.Suite[*opensandbox.Provider, *service.Server]{
	Name: opensandbox.Name, Busy: (*service.Server).Commands, Keyless: true, Restarts: true, Saves: true,
	Left: func(s *service.Server) (names []string) {
		for _, kept := range s.Snapshots("") {
			names = append(names, kept.Name)
		}
		return names
	},
	New: func(backing driver.Provider) *service.Server {
		s := service.New(backing)
		s.AddKey("osb-other", "team-2")
		return s
	},
	Open: func(dir string, env func(string) string) (*opensandbox.Provider, error) {
		opts := opensandbox.FromEnvironment(dir, env)
		hostedtest.Connect(&opts.Connection)
		return opensandbox.New(opts)
	},
	Env: func(url string) map[string]string {
		return map[string]string{"OPEN_SANDBOX_API_KEY": service.Key, "OPEN_SANDBOX_DOMAIN": url}
	},
	Secret: service.Key, Other: map[string]string{"OPEN_SANDBOX_API_KEY": "osb-other"},
	Bounded: func(s *sandbox.Spec) {
		hostedtest.Reach(s, sandbox.EgressTarget{Host: "api.a.test"})
		s.Lifetime.Timeout = 30 * time.Minute
	},
	Sandboxes: "/v1/sandboxes", Sandbox: anySandbox, Inside: inside + "/command",
	NotFound: `{"code":"DOCKER::SANDBOX_NOT_FOUND","message":"Sandbox not found."}`, Invalid: refused,
	Changing: `{"code":"DOCKER::SANDBOX_DELETE_CONFLICT","message":"The sandbox is changing."}`,
	Nothing:  `{"items":[],"pagination":{"hasNextPage":false}}`, Renamed: [2]string{`"id":"`, `"id":"other`}, Refusal: `{"code":"x","message":"TEXT"}`,
	Statuses: map[string]sandbox.State{
		"Running": sandbox.Running, "Pending": sandbox.Running, "Resuming": sandbox.Running, "Pausing": sandbox.Paused, "Paused": sandbox.Paused,
		"Failed": sandbox.Failed, "Terminated": sandbox.Failed,
	},
	Deleted: "Stopping",
}

func TestConformance(t *testing.T) { suite.Conformance(t) }

func TestCheck(t *testing.T) { suite.Check(t) }

func TestShared(t *testing.T) { suite.Shared(t) }

func TestCreateFaults(t *testing.T) {
	const get, post, network = http.MethodGet, http.MethodPost, anySandbox + "/networkpolicy"
	all := hostedtest.Unavailable(map[string]servicetest.Fault{
		"open":         hostedtest.Rewritten(network, `"defaultAction":"deny"`, `"defaultAction":"allow"`),
		"more open":    hostedtest.Rewritten(network, `"target":"api.a.test"`, `"target":"*.a.test"`),
		"no sidecar":   {Method: get, Path: network, Status: 502, Body: refused},
		"short":        hostedtest.Rewritten(anySandbox, `"expiresAt"`, `"expires"`),
		"command 5xx":  {Method: post, Path: inside + "/command", Status: 502},
		"no command":   {Method: post, Path: inside + "/command", Rewrite: func([]byte) []byte { return []byte("{}") }},
		"command dies": {Method: post, Path: inside + "/command", Rewrite: func([]byte) []byte { return []byte(`{"type":"init","text":"x"}` + "\n\n") }},
	})
	for name, tt := range map[string]hostedtest.CreateFault{
		"failed":          {Fault: hostedtest.Rewritten(anySandbox, `"state":"Running"`, `"state":"Failed"`), Want: sandbox.CodeConflict},
		"names only":      {Fault: hostedtest.Rewritten(network, service.Strict, "dns"), Want: sandbox.CodeUnsupported},
		"guest not taken": {Fault: servicetest.Fault{Method: post, Path: inside + "/files/upload", Status: 400, Body: refused}, Want: sandbox.CodeInvalid},
		"daemon is late":  {Fault: servicetest.Fault{Method: get, Path: inside + "/ping", Times: 4, Status: 502, Body: refused}},
	} {
		tt.Posts = 1
		all[name] = tt
	}
	suite.CreateFaults(t, all)
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
	if _, err := p.Create(t.Context(), hostedtest.Spec("sb-unset")); p.ErrorCode(err) != sandbox.CodeInvalid {
		t.Errorf("Create: %v", err)
	}
}

// An image that the server cannot fetch is a refusal.
func TestNoImage(t *testing.T) {
	w := suite.Serve(t)
	p, s := w.Open(t, t.TempDir()), hostedtest.Spec("sb-no-image")
	s.Image = "missing/image"
	if _, err := p.Create(t.Context(), s); p.ErrorCode(err) != sandbox.CodeNotFound || !strings.Contains(err.Error(), "missing/image") {
		t.Errorf("Create: %v, want not found", err)
	}
	w.Empty(t)
}

// A lifetime that is shorter than what the server accepts ends in time, and the
// image and the limits reach the server.
func TestShort(t *testing.T) {
	w := suite.Serve(t)
	s := hostedtest.Spec("sb-short")
	s.Lifetime.Timeout, s.Image, s.Resources = 3*time.Second, "python:3.12", sandbox.Resources{CPUs: 0.5, Memory: 256 << 20}
	in, err := w.Open(t, t.TempDir()).Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if got := w.Fake.Asked(); got != "python:3.12 cpu=500m memory=268435456 timeout=60" {
		t.Errorf("the server was asked for %s", got)
	}
	if exit, err := in.Wait(t.Context()); err != nil || exit.Reason != sandbox.ReasonLifetime {
		t.Errorf("Wait: %+v, %v", exit, err)
	}
	w.Empty(t)
}
