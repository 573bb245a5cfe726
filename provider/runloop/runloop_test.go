package runloop_test

import (
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	service "github.com/atoll-run/atoll/internal/servicetest/runloop"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/runloop"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

const (
	box     = "/v1/devboxes/*"
	refused = `{"code":"bad_request","message":"no"}`
)

var suite = hostedtest.Suite[*runloop.Provider, *service.Server]{
	Name: runloop.Name, Busy: (*service.Server).Commands, Restarts: true,
	New: func(backing driver.Provider) *service.Server {
		s := service.New(backing)
		s.AddKey("ak_other", "org-2")
		return s
	},
	Open: func(dir string, env func(string) string) (*runloop.Provider, error) {
		opts := runloop.FromEnvironment(dir, env)
		hostedtest.Connect(&opts.Connection)
		return runloop.New(opts)
	},
	Env: func(url string) map[string]string {
		return map[string]string{"RUNLOOP_API_KEY": service.Key, "RUNLOOP_BASE_URL": url}
	},
	Secret: service.Key, Other: map[string]string{"RUNLOOP_API_KEY": "ak_other"},
	Bounded: bound,
	Boxes:   "/v1/devboxes", Box: box, Inside: box + "/execute_async", Ending: box + "/shutdown",
	NotFound: `{"code":"not_found","message":"Devbox not found"}`, Invalid: refused, Changing: `{"code":"conflict","message":"Devbox is changing"}`,
	Nothing: `{"devboxes":[],"has_more":false}`, Renamed: [2]string{`"id":"`, `"id":"other`}, Refusal: `{"code":"x","message":"TEXT"}`,
	Statuses: map[string]sandbox.State{
		"running": sandbox.Running, "scheduled": sandbox.Running, "queued": sandbox.Running, "provisioning": sandbox.Running, "initializing": sandbox.Running,
		"resuming": sandbox.Running, "suspending": sandbox.Paused, "failure": sandbox.Failed,
	},
	Deleted: "shutdown",
	Refused: map[string]func(*sandbox.Spec){
		"an image": func(s *sandbox.Spec) { s.Image = "docker.io/library/python" },
		"lifetime": func(s *sandbox.Spec) { s.Lifetime.Timeout = 49 * time.Hour },
		"IPv6": func(s *sandbox.Spec) {
			hostedtest.Reach(s, sandbox.EgressTarget{Prefix: netip.MustParsePrefix("2001:db8::/32")})
		},
	},
}

// bound adds to a spec what the service must confirm.
func bound(s *sandbox.Spec) {
	hostedtest.Reach(s, sandbox.EgressTarget{Host: "api.a.test"})
	s.Lifetime.Timeout = 30 * time.Minute
}

func TestConformance(t *testing.T) { suite.Conformance(t) }

func TestCheck(t *testing.T) { suite.Check(t) }

func TestShared(t *testing.T) { suite.Shared(t) }

func TestCreateFaults(t *testing.T) {
	all := hostedtest.Unavailable(map[string]servicetest.Fault{
		"open":        hostedtest.Rewritten(box, `"network_policy_id":"npo`, `"network_policy_id":"other`),
		"short":       hostedtest.Rewritten(box, `_seconds":1800`, `_seconds":300`),
		"command 5xx": {Method: http.MethodPost, Path: box + "/execute_async", Status: 502},
		"no command":  {Method: http.MethodPost, Path: box + "/execute_async", Rewrite: func([]byte) []byte { return []byte("{}") }},
	})
	all["failed"] = hostedtest.CreateFault{Fault: hostedtest.Rewritten(box, `"status":"running"`, `"status":"failure"`), Want: sandbox.CodeConflict, Posts: 1}
	all["guest not taken"] = hostedtest.CreateFault{
		Fault: servicetest.Fault{Method: http.MethodPost, Path: box + "/upload_file", Status: 400, Body: refused}, Want: sandbox.CodeInvalid, Posts: 1,
	}
	suite.CreateFaults(t, all)
}

// Sandboxes with the same rules share a network policy, also if the answer to the
// request for it is lost.
func TestPolicies(t *testing.T) {
	w := suite.Serve(t)
	p := w.Open(t, t.TempDir())
	w.Fake.Add(hostedtest.At(http.MethodPost, "/v1/network-policies", servicetest.Fault{Lose: true}))
	for _, id := range []sandbox.ID{"sb-one", "sb-two"} {
		spec := hostedtest.Spec(id)
		bound(spec)
		in, err := p.Create(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		if err := in.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if names := w.Fake.Policies(); len(names) != 1 {
		t.Errorf("the policies are %v, want one", names)
	}
	w.Empty(t)
}
