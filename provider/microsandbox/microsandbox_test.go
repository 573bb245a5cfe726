package microsandbox_test

import (
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	service "github.com/atoll-run/atoll/internal/servicetest/microsandbox"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/microsandbox"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

const box = "/v1/sandboxes/*"

// A sandbox is looked up by its name before it is created. The fake counts that
// as the same path.
var suite = hostedtest.Suite[*microsandbox.Provider, *service.Server]{
	Name: microsandbox.Name, Busy: (*service.Server).Commands, Unrecorded: true, Restarts: true,
	New: func(backing driver.Provider) *service.Server {
		s := service.New(backing)
		s.AddKey("msb_other", "org-2")
		return s
	},
	Open: func(dir string, env func(string) string) (*microsandbox.Provider, error) {
		opts := microsandbox.FromEnvironment(dir, env)
		hostedtest.Connect(&opts.Connection)
		return microsandbox.New(opts)
	},
	Env: func(url string) map[string]string {
		return map[string]string{"MSB_API_KEY": service.Key, "MSB_API_URL": url}
	},
	Secret: service.Key, Other: map[string]string{"MSB_API_KEY": "msb_other"},
	Bounded: func(s *sandbox.Spec) {
		hostedtest.Reach(s, sandbox.EgressTarget{Host: "api.a.test"}, sandbox.EgressTarget{Host: "*.b.test"}, sandbox.EgressTarget{Prefix: netip.MustParsePrefix("192.0.2.0/24")})
		s.Lifetime.Timeout = 30 * time.Minute
	},
	Boxes: "/v1/sandboxes", Box: box, Absent: box, Looks: 1, LooksFirst: true,
	NotFound: `{"error":{"code":"sandbox_not_found","message":"Sandbox not found"}}`, Invalid: `{"code":"invalid_sandbox_config","message":"no"}`,
	Changing: `{"error":{"code":"sandbox_still_running","message":"Sandbox is running"}}`, Nothing: `{"data":[],"next_cursor":null}`,
	Renamed: [2]string{`"name":"`, `"name":"other`}, Refusal: `{"error":{"code":"some_code","message":"TEXT"}}`,
	Foreign:  []string{`{"error":{"code":"route_not_found","message":"no"}}`},
	Statuses: map[string]sandbox.State{"running": sandbox.Running, "starting": sandbox.Running, "stopping": sandbox.Paused, "failed": sandbox.Failed},
	Refused:  map[string]func(*sandbox.Spec){"cpus": func(s *sandbox.Spec) { s.Resources.CPUs = 0.5 }},
}

func TestConformance(t *testing.T) { suite.Conformance(t) }

func TestCheck(t *testing.T) { suite.Check(t) }

func TestShared(t *testing.T) { suite.Shared(t) }

func TestCreateFaults(t *testing.T) {
	all := hostedtest.Unavailable(map[string]servicetest.Fault{
		"open":       hostedtest.Rewritten(box, `"default_egress":"deny"`, `"default_egress":"allow"`),
		"more names": hostedtest.Rewritten(box, `"domain":"api.a.test"`, `"domain":"b.test"`),
		"any name":   hostedtest.Rewritten(box, `"strict":true`, `"strict":false`),
		"short":      hostedtest.Rewritten(box, `"max_duration_secs":1800`, `"max_duration_secs":18`),
		"ephemeral":  hostedtest.Rewritten(box, `"ephemeral":false`, `"ephemeral":true`),
		"no agent":   {Method: http.MethodGet, Path: box + "/agent", Status: 502},
	})
	all["failed"] = hostedtest.CreateFault{Fault: hostedtest.Rewritten(box, `"status":"running"`, `"status":"failed"`), Want: sandbox.CodeConflict, Posts: 1}
	// What the service need not show is not confirmed.
	all["no spec"] = hostedtest.CreateFault{Fault: hostedtest.Rewritten(box, `"spec":`, `"other":`), Posts: 1}
	suite.CreateFaults(t, all)
}
