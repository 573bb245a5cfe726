package daytona_test

import (
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	service "github.com/atoll-run/atoll/internal/testing/servicetest/daytona"
	"github.com/atoll-run/atoll/provider/daytona"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

const (
	anySandbox = "/api/sandbox/*"
	session    = "/toolbox/*/process/session"
	refused    = `{"statusCode":400,"error":"Bad Request","message":"no"}`
)

var suite = hostedtest.Suite[*daytona.Provider, *service.Server]{
	Name: daytona.Name, Path: "/api", Busy: (*service.Server).Sessions, Saves: true, Restarts: true,
	New: func(backing driver.Provider) *service.Server {
		s := service.New(backing)
		s.AddKey("dtn_other", "org-2")
		return s
	},
	Open: func(dir string, env func(string) string) (*daytona.Provider, error) {
		opts := daytona.FromEnvironment(dir, env)
		hostedtest.Connect(&opts.Connection)
		return daytona.New(opts)
	},
	Env: func(url string) map[string]string {
		return map[string]string{"DAYTONA_API_KEY": service.Key, "DAYTONA_API_URL": url}
	},
	Secret: service.Key, Other: map[string]string{"DAYTONA_API_KEY": "dtn_other"},
	Left: func(s *service.Server) (ids []string) {
		for _, kept := range s.Snapshots("") {
			ids = append(ids, kept.ID)
		}
		return ids
	},
	Bounded: func(s *sandbox.Spec) {
		hostedtest.Reach(s, sandbox.EgressTarget{Host: "api.a.test"})
		s.Lifetime.Timeout = time.Hour
	},
	Sandboxes: "/api/sandbox", Sandbox: anySandbox, Inside: session,
	NotFound: `{"statusCode":404,"error":"Not Found","message":"Sandbox not found"}`, Invalid: refused,
	Changing: `{"statusCode":409,"error":"Conflict","message":"Sandbox is changing"}`, Nothing: `{"items":[],"nextCursor":null}`,
	Renamed: [2]string{`"name":"`, `"name":"other-`}, Refusal: `{"statusCode":STATUS,"error":"x","message":"TEXT"}`, LooksFirst: true,
	Statuses: map[string]sandbox.State{
		"started": sandbox.Running, "creating": sandbox.Running, "starting": sandbox.Running, "resuming": sandbox.Running, "restoring": sandbox.Running,
		"snapshotting": sandbox.Running, "stopping": sandbox.Paused, "pausing": sandbox.Paused, "archiving": sandbox.Paused, "error": sandbox.Failed,
		"build_failed": sandbox.Failed,
	},
	Refused: map[string]func(*sandbox.Spec){"an image": func(s *sandbox.Spec) { s.Image = "docker.io/library/python" }},
}

func TestConformance(t *testing.T) { suite.Conformance(t) }

func TestCheck(t *testing.T) { suite.Check(t) }

func TestShared(t *testing.T) { suite.Shared(t) }

func TestCreateFaults(t *testing.T) {
	all := hostedtest.Unavailable(map[string]servicetest.Fault{
		"open":        hostedtest.Rewritten(anySandbox, `"domainAllowList":"api.a.test",`, ""),
		"no end":      hostedtest.Rewritten(anySandbox, `autoDestroyAt`, "other"),
		"toolbox 5xx": {Method: http.MethodPost, Path: session, Status: 502},
	})
	for name, tt := range map[string]struct {
		fault servicetest.Fault
		want  sandbox.Code
	}{
		"foreign toolbox": {hostedtest.Rewritten(anySandbox, `"toolboxProxyUrl":"http://`, `"toolboxProxyUrl":"ftp://`), sandbox.CodeInvalid},
		"failed":          {hostedtest.Rewritten(anySandbox, `"state":"started"`, `"state":"error"`), sandbox.CodeConflict},
		"guest not taken": {servicetest.Fault{Method: http.MethodPost, Path: "/toolbox/*/files/bulk-upload", Status: 400, Body: refused}, sandbox.CodeInvalid},
	} {
		all[name] = hostedtest.CreateFault{Fault: tt.fault, Want: tt.want, Posts: 1}
	}
	suite.CreateFaults(t, all)
}
