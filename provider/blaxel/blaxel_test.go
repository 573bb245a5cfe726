package blaxel_test

import (
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	service "github.com/atoll-run/atoll/internal/testing/servicetest/blaxel"
	"github.com/atoll-run/atoll/provider/blaxel"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

const (
	anySandbox = "/v0/sandboxes/*"
	process    = "/sbx/*/process"
)

var suite = hostedtest.Suite[*blaxel.Provider, *service.Server]{
	Name: blaxel.Name, Path: "/v0", Busy: (*service.Server).Commands, Restarts: true,
	New: func(backing driver.Provider) *service.Server {
		s := service.New(backing)
		s.AddKey("bl_other", "other-team")
		return s
	},
	Open: func(dir string, env func(string) string) (*blaxel.Provider, error) {
		opts := blaxel.FromEnvironment(dir, env)
		hostedtest.Connect(&opts.Connection)
		return blaxel.New(opts)
	},
	Env: func(url string) map[string]string {
		return map[string]string{"BL_API_KEY": service.Key, "BL_WORKSPACE": service.Workspace, "BL_API_URL": url}
	},
	Secret: service.Key, Other: map[string]string{"BL_API_KEY": "bl_other", "BL_WORKSPACE": "other-team"},
	Bounded: func(s *sandbox.Spec) {
		hostedtest.Reach(s, sandbox.EgressTarget{Host: "api.a.test"})
		s.Lifetime.Timeout, s.Resources.Memory = 30*time.Minute, 2<<30
	},
	Sandboxes: "/v0/sandboxes", Sandbox: anySandbox, Inside: process,
	NotFound: `{"error":"NOT_FOUND","code":404,"message":"Sandbox not found"}`, Invalid: `{"code":"INVALID_NAME","message":"no"}`,
	Changing: `{"error":"CONFLICT","code":409,"message":"Sandbox is changing"}`, Nothing: `{"data":[],"meta":{"hasMore":false}}`,
	Renamed: [2]string{`"name":"`, `"name":"other`}, Refusal: `{"error":"SOME_CODE","code":1,"message":"TEXT"}`,
	Foreign: []string{`{"error":"WORKSPACE_NOT_FOUND","code":404,"message":"no"}`, `{"error":"ROUTE_NOT_FOUND","code":404,"message":"no"}`},
	Statuses: map[string]sandbox.State{
		"DEPLOYED": sandbox.Running, "UPLOADING": sandbox.Running, "BUILDING": sandbox.Running, "BUILT": sandbox.Running, "DEPLOYING": sandbox.Running,
		"UNARCHIVING": sandbox.Running, "ARCHIVING": sandbox.Paused, "FAILED": sandbox.Failed, "DEACTIVATING": sandbox.Failed, "DEACTIVATED": sandbox.Failed,
	},
	Deleted: "TERMINATED",
	Refused: map[string]func(*sandbox.Spec){"addresses": func(s *sandbox.Spec) {
		hostedtest.Reach(s, sandbox.EgressTarget{Prefix: netip.MustParsePrefix("192.0.2.0/24")})
	}},
}

func TestConformance(t *testing.T) { suite.Conformance(t) }

func TestCheck(t *testing.T) { suite.Check(t) }

func TestShared(t *testing.T) { suite.Shared(t) }

func TestCreateFaults(t *testing.T) {
	all := hostedtest.Unavailable(map[string]servicetest.Fault{
		"open":         hostedtest.Rewritten(anySandbox, `"rulesets":["proxy"]`, `"rulesets":["default"]`),
		"no network":   hostedtest.Rewritten(anySandbox, `"network":`, `"other":`),
		"more names":   hostedtest.Rewritten(anySandbox, `"api.a.test"`, `"api.a.test","b.test"`),
		"short":        hostedtest.Rewritten(anySandbox, `"ttl":"1800s"`, `"ttl":"300s"`),
		"small":        hostedtest.Rewritten(anySandbox, `"memory":2048`, `"memory":1024`),
		"command 5xx":  {Method: http.MethodPost, Path: process, Status: 502},
		"no exit code": {Method: http.MethodPost, Path: process, Rewrite: func([]byte) []byte { return []byte("{}") }},
	})
	for name, tt := range map[string]hostedtest.CreateFault{
		"not encrypted":   {Fault: hostedtest.Rewritten(anySandbox, `"url":"http`, `"url":"ftp`), Want: sandbox.CodeInvalid},
		"other words":     {Fault: hostedtest.Rewritten(anySandbox, `"ttl":"1800s"`, `"ttl":"30m"`)},
		"failed":          {Fault: hostedtest.Rewritten(anySandbox, `"status":"DEPLOYED"`, `"status":"FAILED"`), Want: sandbox.CodeConflict},
		"guest not taken": {Fault: servicetest.Fault{Method: http.MethodPut, Status: 400, Body: `{"error":"no"}`}, Want: sandbox.CodeInvalid},
		// Only a 404 with this code is repeated.
		"reached late": {Fault: servicetest.Fault{
			Method: http.MethodPost, Path: process, Times: 2, Status: 404, Body: `{"error":{"code":"WORKLOAD_UNAVAILABLE","message":"wait"}}`,
		}},
	} {
		tt.Posts = 1
		all[name] = tt
	}
	suite.CreateFaults(t, all)
}

// The service answers 403 for a key that it does not know. The key is then read
// again.
func TestKeyChanges(t *testing.T) {
	w, file := suite.Serve(t), t.TempDir()+"/key"
	write := func(key string) {
		if err := os.WriteFile(file, []byte(key), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := suite.Env(w.URL)
	delete(env, "BL_API_KEY")
	env["BL_API_KEY_FILE"] = file
	p, err := suite.Open(t.TempDir(), func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, key := range []string{"bl_wrong", service.Key} { // a key is kept until it is refused
		write(key)
		if facts, err := p.Probe(t.Context()); err != nil || facts.Available != (key == service.Key) {
			t.Errorf("with the key %s: %+v, %v", key, facts, err)
		}
	}
}
