package runloop_test

import (
	"errors"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	service "github.com/atoll-run/atoll/internal/testing/servicetest/runloop"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/runloop"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

const (
	anySandbox = "/v1/devboxes/*"
	refused    = `{"code":"bad_request","message":"no"}`
)

var suite = hostedtest.Suite[*runloop.Provider, *service.Server]{
	Name: runloop.Name, Busy: (*service.Server).Commands, Saves: true, Restarts: true,
	Left: func(s *service.Server) (ids []string) {
		for _, m := range s.Snapshots("") {
			ids = append(ids, m.ID)
		}
		return ids
	},
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
	Bounded:   bound,
	Sandboxes: "/v1/devboxes", Sandbox: anySandbox, Inside: anySandbox + "/execute_async", Ending: anySandbox + "/shutdown",
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
		"open":        hostedtest.Rewritten(anySandbox, `"network_policy_id":"npo`, `"network_policy_id":"other`),
		"short":       hostedtest.Rewritten(anySandbox, `_seconds":1800`, `_seconds":300`),
		"command 5xx": {Method: http.MethodPost, Path: anySandbox + "/execute_async", Status: 502},
		"no command":  {Method: http.MethodPost, Path: anySandbox + "/execute_async", Rewrite: func([]byte) []byte { return []byte("{}") }},
	})
	all["failed"] = hostedtest.CreateFault{Fault: hostedtest.Rewritten(anySandbox, `"status":"running"`, `"status":"failure"`), Want: sandbox.CodeConflict, Posts: 1}
	all["guest not taken"] = hostedtest.CreateFault{
		Fault: servicetest.Fault{Method: http.MethodPost, Path: anySandbox + "/upload_file", Status: 400, Body: refused}, Want: sandbox.CodeInvalid, Posts: 1,
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

// A snapshot is one or none, and the sandbox continues.
func TestSnapshotFaults(t *testing.T) {
	w := suite.Serve(t)
	p := w.Open(t, t.TempDir())
	const all = "/v1/devboxes/disk_snapshots"
	post := func(f servicetest.Fault) servicetest.Fault {
		return hostedtest.At(http.MethodPost, anySandbox+"/snapshot_disk_async", f)
	}
	status := func(f servicetest.Fault) servicetest.Fault { return hostedtest.At(http.MethodGet, all+"/*/status", f) }
	in := w.Faulty(p, nil).Make(t, hostedtest.Spec("sb-saved"))
	shot, _ := driver.As[driver.Snapshotter](in)
	for name, tt := range map[string]struct {
		want   sandbox.Code // empty: it is saved
		faults []servicetest.Fault
	}{
		"lost answer":      {"", []servicetest.Fault{post(servicetest.Fault{Lose: true})}},
		"truncated":        {"", []servicetest.Fault{post(servicetest.Fault{Truncate: 20})}},
		"slow":             {"", []servicetest.Fault{status(servicetest.Fault{Status: 200, Body: `{"status":"in_progress"}`})}},
		"not yet known":    {"", []servicetest.Fault{status(servicetest.Fault{Status: 404, Body: `{"code":"not_found","message":"Snapshot not found"}`})}},
		"5xx":              {sandbox.CodeUnavailable, []servicetest.Fault{post(servicetest.Fault{Status: 503})}},
		"refused":          {sandbox.CodeInvalid, []servicetest.Fault{post(servicetest.Fault{Status: 400, Body: refused})}},
		"failed":           {sandbox.CodeUnavailable, []servicetest.Fault{status(servicetest.Fault{Status: 200, Body: `{"status":"error","error_message":"the disk is full"}`})}},
		"another snapshot": {sandbox.CodeUnavailable, []servicetest.Fault{status(servicetest.Fault{Rewrite: hostedtest.Replace(`"id":"snp_`, `"id":"other`)})}},
	} {
		t.Run(name, func(t *testing.T) {
			w.Fake.Clear()
			w.Fake.Add(tt.faults...)
			hostedtest.Says(t, in, "echo "+strings.ReplaceAll(name, " ", "-")+" >/root/kept")
			saved, err := shot.Snapshot(t.Context(), driver.SnapshotOptions{ID: "sn-saved"})
			if p.ErrorCode(err) != tt.want {
				t.Errorf("Snapshot: %v, want code %q", err, tt.want)
			}
			w.Fake.Clear()
			if err == nil {
				if err := p.RemoveSnapshot(t.Context(), saved.Ref); err != nil {
					t.Error(err)
				}
			}
			if left := w.Fake.Snapshots(""); len(left) > 0 {
				t.Errorf("there are %d snapshots", len(left))
			}
			if got := hostedtest.Says(t, in, "cat /root/kept"); got != strings.ReplaceAll(name, " ", "-")+"\n" {
				t.Errorf("it says %q", got)
			}
		})
	}
}

// A sandbox from a snapshot is one, also if the answer is lost, and is refused once
// the snapshot was removed.
func TestRestoreFaults(t *testing.T) {
	w := suite.Serve(t)
	p := w.Open(t, t.TempDir())
	in := w.Faulty(p, nil).Make(t, hostedtest.Spec("sb-saved"))
	hostedtest.Says(t, in, "echo kept >/root/kept")
	shot, _ := driver.As[driver.Snapshotter](in)
	saved, err := shot.Snapshot(t.Context(), driver.SnapshotOptions{ID: "sn-saved", Stop: true})
	if err != nil {
		t.Fatal(err)
	}
	w.Fake.Add(hostedtest.At(http.MethodPost, "/v1/devboxes", servicetest.Fault{Lose: true}))
	twin, _, err := p.Restore(t.Context(), hostedtest.Spec("sb-twin"), saved.Ref)
	if err != nil {
		t.Fatal(err)
	}
	if got := hostedtest.Says(t, twin, "cat /root/kept"); got != "kept\n" {
		t.Errorf("the copy says %q", got)
	}
	if n := len(w.Fake.Names()); n != 1 {
		t.Errorf("there are %d sandboxes, want 1", n)
	}
	w.Fake.Clear()
	w.Fake.Add(servicetest.Fault{Method: http.MethodGet, Path: anySandbox, Rewrite: hostedtest.Replace(`"snapshot_id":"snp_`, `"snapshot_id":"other`)})
	if _, _, err := p.Restore(t.Context(), hostedtest.Spec("sb-other"), saved.Ref); p.ErrorCode(err) != sandbox.CodeUnavailable {
		t.Errorf("from another snapshot: %v, want unavailable", err)
	}
	w.Fake.Clear()
	for _, err := range []error{twin.Destroy(t.Context()), p.RemoveSnapshot(t.Context(), saved.Ref)} {
		if err != nil {
			t.Error(err)
		}
	}
	if _, _, err := p.Restore(t.Context(), hostedtest.Spec("sb-twin"), saved.Ref); !errors.Is(err, driver.ErrSnapshotLost) {
		t.Errorf("from a snapshot that was removed: %v", err)
	}
	w.Empty(t)
}
