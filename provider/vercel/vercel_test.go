package vercel_test

import (
	"bytes"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	service "github.com/atoll-run/atoll/internal/servicetest/vercel"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/vercel"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

const (
	box     = "/api/v2/sandboxes/*"
	session = "/api/v2/sandboxes/sessions/*"
	refused = `{"error":{"code":"bad_request","message":"no"}}`
)

var suite = hostedtest.Suite[*vercel.Provider, *service.Server]{
	Name: vercel.Name, Path: "/api", Busy: (*service.Server).Commands, Restarts: true,
	New: func(backing driver.Provider) *service.Server {
		s := service.New(backing)
		s.AddKey("vcp_other", "team_2")
		return s
	},
	Open: func(dir string, env func(string) string) (*vercel.Provider, error) {
		opts := vercel.FromEnvironment(dir, env)
		hostedtest.Connect(&opts.Connection)
		return vercel.New(opts)
	},
	Env: func(url string) map[string]string {
		return map[string]string{"VERCEL_TOKEN": service.Token, "VERCEL_TEAM_ID": service.Team, "VERCEL_PROJECT_ID": service.Project, "ATOLL_VERCEL_URL": url}
	},
	Secret: service.Token, Other: map[string]string{"VERCEL_TOKEN": "vcp_other", "VERCEL_TEAM_ID": "team_2"},
	Bounded: func(s *sandbox.Spec) {
		hostedtest.Reach(s, sandbox.EgressTarget{Host: "api.a.test"})
		s.Lifetime.Timeout = 30 * time.Minute
	},
	Boxes: "/api/v[23]/sandboxes", Box: box, Inside: session + "/cmd",
	NotFound: `{"error":{"code":"not_found","message":"Sandbox not found"}}`, Invalid: refused,
	Changing: `{"error":{"code":"conflict","message":"Sandbox is changing"}}`, Nothing: `{"sandboxes":[],"pagination":{"count":0,"next":null}}`,
	Renamed: [2]string{`"name":"atoll`, `"name":"other`}, Refusal: `{"error":{"code":"x","message":"TEXT"}}`,
	Statuses: map[string]sandbox.State{
		"running": sandbox.Running, "pending": sandbox.Running, "stopping": sandbox.Paused, "snapshotting": sandbox.Paused, "failed": sandbox.Failed,
		"aborted": sandbox.Failed,
	},
	Refused: map[string]func(*sandbox.Spec){"an image": func(s *sandbox.Spec) { s.Image = "docker.io/library/python" }},
}

func TestConformance(t *testing.T) { suite.Conformance(t) }

func TestCheck(t *testing.T) { suite.Check(t) }

func TestShared(t *testing.T) { suite.Shared(t) }

func TestCreateFaults(t *testing.T) {
	all := hostedtest.Unavailable(map[string]servicetest.Fault{
		"open":        hostedtest.Rewritten(box, `"allowedDomains":["api.a.test"],"mode":"custom"`, `"mode":"allow-all"`),
		"wide":        hostedtest.Rewritten(box, `["api.a.test"]`, `["*"]`),
		"short":       hostedtest.Rewritten(box, `"timeout":1800000`, `"timeout":300000`),
		"not kept":    hostedtest.Rewritten(box, `"persistent":true`, `"persistent":false`),
		"command 5xx": {Method: http.MethodPost, Path: session + "/cmd", Status: 502},
		"no command":  {Method: http.MethodPost, Path: session + "/cmd", Rewrite: func([]byte) []byte { return []byte("{}\n") }},
		"error record": {Method: http.MethodPost, Path: session + "/cmd", Rewrite: func(b []byte) []byte {
			first, _, _ := bytes.Cut(b, []byte("\n"))
			return append(first, "\n{\"stream\":\"error\",\"data\":{\"code\":\"sandbox_stream_closed\",\"message\":\"no\"}}\n"...)
		}},
	})
	all["failed"] = hostedtest.CreateFault{Fault: hostedtest.Rewritten(box, `"status":"running"`, `"status":"failed"`), Want: sandbox.CodeConflict, Posts: 1}
	all["guest not taken"] = hostedtest.CreateFault{
		Fault: servicetest.Fault{Method: http.MethodPost, Path: session + "/fs/write", Status: 400, Body: refused}, Want: sandbox.CodeInvalid, Posts: 1,
	}
	suite.CreateFaults(t, all)
}

func TestOptions(t *testing.T) {
	_, err := vercel.New(vercel.Options{Connection: hosted.Connection{Dir: t.TempDir()}, Session: "long"})
	if sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a session without a length: %v", err)
	}
}
