package microsandbox_test

import (
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	service "github.com/atoll-run/atoll/internal/testing/servicetest/microsandbox"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/microsandbox"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

const anySandbox = "/v1/sandboxes/*"

// A sandbox is looked up by its name before it is created. The fake counts that
// as the same path.
var suite = hostedtest.Suite[*microsandbox.Provider, *service.Server]{
	Name: microsandbox.Name, Busy: (*service.Server).Commands, Saves: true, Rests: true, Unrecorded: true, Restarts: true,
	Left: func(s *service.Server) (names []string) {
		for _, m := range s.Snapshots("") {
			names = append(names, m.Name)
		}
		return names
	},
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
	Sandboxes: "/v1/sandboxes", Sandbox: anySandbox, Absent: anySandbox, Looks: 1, LooksFirst: true,
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
		"open":       hostedtest.Rewritten(anySandbox, `"default_egress":"deny"`, `"default_egress":"allow"`),
		"more names": hostedtest.Rewritten(anySandbox, `"domain":"api.a.test"`, `"domain":"b.test"`),
		"any name":   hostedtest.Rewritten(anySandbox, `"strict":true`, `"strict":false`),
		"short":      hostedtest.Rewritten(anySandbox, `"max_duration_secs":1800`, `"max_duration_secs":18`),
		"ephemeral":  hostedtest.Rewritten(anySandbox, `"ephemeral":false`, `"ephemeral":true`),
		"no agent":   {Method: http.MethodGet, Path: anySandbox + "/agent", Status: 502},
	})
	all["failed"] = hostedtest.CreateFault{Fault: hostedtest.Rewritten(anySandbox, `"status":"running"`, `"status":"failed"`), Want: sandbox.CodeConflict, Posts: 1}
	// What the service need not show is not confirmed.
	all["no spec"] = hostedtest.CreateFault{Fault: hostedtest.Rewritten(anySandbox, `"spec":`, `"other":`), Posts: 1}
	suite.CreateFaults(t, all)
}

// A snapshot is one or none. If it fails, the sandbox continues with its files.
func TestSnapshotFaults(t *testing.T) {
	w := suite.Serve(t)
	p := w.Open(t, t.TempDir())
	const all, operations = "/v1/snapshots", "/v1/snapshot-operations"
	post := func(f servicetest.Fault) servicetest.Fault { return hostedtest.At(http.MethodPost, all, f) }
	get := func(path string, f servicetest.Fault) servicetest.Fault {
		return hostedtest.At(http.MethodGet, path, f)
	}
	accepted := post(servicetest.Fault{Status: 202, Body: `{"id":"op-1","status":"queued"}`}) // and not done
	failed := `{"id":"op-1","status":"failed","error":{"code":"full","message":"the disk is full"}}`
	for name, tt := range map[string]struct {
		want   sandbox.Code // empty: it is saved
		faults []servicetest.Fault
	}{
		"lost answer":       {"", []servicetest.Fault{post(servicetest.Fault{Lose: true})}},
		"truncated":         {"", []servicetest.Fault{post(servicetest.Fault{Truncate: 20})}},
		"5xx":               {sandbox.CodeUnavailable, []servicetest.Fault{post(servicetest.Fault{Status: 503})}},
		"not for all":       {sandbox.CodeInvalid, []servicetest.Fault{post(servicetest.Fault{Status: 422, Body: `{"error":{"code":"unsupported_feature","message":"no"}}`})}},
		"not made":          {sandbox.CodeUnavailable, []servicetest.Fault{accepted}},
		"failed":            {sandbox.CodeUnavailable, []servicetest.Fault{accepted, get(operations+"/*", servicetest.Fault{Status: 200, Body: failed})}},
		"no operation":      {"", []servicetest.Fault{get(operations+"/*", servicetest.Fault{Status: 404, Body: failed})}},
		"stop: lost answer": {"", []servicetest.Fault{hostedtest.At(http.MethodPost, anySandbox+"/stop", servicetest.Fault{Lose: true})}},
	} {
		t.Run(name, func(t *testing.T) {
			w.Fake.Clear()
			in := w.Faulty(p, nil).Make(t, hostedtest.Spec("sb-saved"))
			hostedtest.Says(t, in, "echo kept >/root/kept")
			w.Fake.Add(tt.faults...)
			shot, _ := driver.As[driver.Snapshotter](in)
			saved, err := shot.Snapshot(t.Context(), driver.SnapshotOptions{ID: "sn-saved", Stop: true})
			if p.ErrorCode(err) != tt.want {
				t.Errorf("Snapshot: %v, want code %q", err, tt.want)
			}
			w.Fake.Clear()
			if err != nil {
				if got := hostedtest.Says(t, in, "cat /root/kept"); got != "kept\n" {
					t.Errorf("after a snapshot that failed it says %q", got)
				}
				err = in.Destroy(t.Context())
			} else {
				err = p.RemoveSnapshot(t.Context(), saved.Ref)
			}
			if err != nil {
				t.Error(err)
			}
			w.Empty(t)
		})
	}
}

// A sandbox that another client stopped is saved as it is. A copy has the disk of
// its source.
func TestSnapshotOfStopped(t *testing.T) {
	w := suite.Serve(t)
	p, s := w.Open(t, t.TempDir()), hostedtest.Spec("sb-stopped")
	s.Resources.Disk = 1 << 30
	in := w.Faulty(p, nil).Make(t, s)
	hostedtest.Says(t, in, "echo kept >/root/kept")
	if err := w.Fake.StopAll(); err != nil {
		t.Fatal(err)
	}
	shot, _ := driver.As[driver.Snapshotter](in)
	saved, err := shot.Snapshot(t.Context(), driver.SnapshotOptions{ID: "sn-stopped"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := p.State(t.Context(), in.ID()); got != sandbox.Paused {
		t.Errorf("after its snapshot it is %q, %v", got, err)
	}
	twin := hostedtest.Spec("sb-twin")
	twin.Resources.Disk = 2 << 30
	if _, _, err := p.Restore(t.Context(), twin, saved.Ref); p.ErrorCode(err) != sandbox.CodeUnsupported {
		t.Errorf("a copy with another disk: %v, want unsupported", err)
	}
	twin.Resources.Disk = 1 << 30
	w.Fake.Add(hostedtest.At(http.MethodPost, "/v1/sandboxes", servicetest.Fault{Times: 1, Lose: true}))
	other, _, err := p.Restore(t.Context(), twin, saved.Ref)
	if err != nil {
		t.Fatal(err)
	}
	if got := hostedtest.Says(t, other, "cat /root/kept"); got != "kept\n" {
		t.Errorf("the copy says %q", got)
	}
	if n := len(w.Fake.Names()); n != 2 {
		t.Errorf("there are %d sandboxes, want 2", n)
	}
	for _, err := range []error{other.Destroy(t.Context()), in.Destroy(t.Context()), p.RemoveSnapshot(t.Context(), saved.Ref)} {
		if err != nil {
			t.Error(err)
		}
	}
	w.Empty(t)
}

// A copy of a snapshot needs a sandbox for a while, of which nothing is left. What
// a crash has left is removed later.
func TestCopyFaults(t *testing.T) {
	w := suite.Serve(t)
	p := w.Open(t, t.TempDir())
	in := w.Faulty(p, nil).Make(t, hostedtest.Spec("sb-copied"))
	shot, _ := driver.As[driver.Snapshotter](in)
	saved, err := shot.Snapshot(t.Context(), driver.SnapshotOptions{ID: "sn-first", Stop: true})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		want  sandbox.Code // empty: it is copied
		fault servicetest.Fault
	}{
		"lost answer": {"", hostedtest.At(http.MethodPost, "/v1/sandboxes", servicetest.Fault{Lose: true})},
		"not made":    {sandbox.CodeUnavailable, hostedtest.At(http.MethodPost, "/v1/sandboxes", servicetest.Fault{Status: 503})},
		"not saved":   {sandbox.CodeInvalid, hostedtest.At(http.MethodPost, "/v1/snapshots", servicetest.Fault{Status: 422, Body: `{"error":{"code":"unsupported_feature","message":"no"}}`})},
	} {
		w.Fake.Clear()
		w.Fake.Add(tt.fault)
		copied, err := p.CopySnapshot(t.Context(), saved.Ref, "sn-second")
		if p.ErrorCode(err) != tt.want {
			t.Errorf("%s: CopySnapshot: %v, want code %q", name, err, tt.want)
		}
		if left := w.Fake.Names(); len(left) > 0 {
			t.Errorf("%s: there are the sandboxes %v", name, left)
		}
		if err == nil {
			err = p.RemoveSnapshot(t.Context(), copied.Ref)
		} else {
			err = nil
		}
		if n := len(w.Fake.Snapshots("")); err != nil || n != 1 {
			t.Errorf("%s: there are %d snapshots, want 1: %v", name, n, err)
		}
	}
	account := w.Fake.Account(service.Key)
	from, err := w.Fake.Snapshot(account, saved.Ref.Data)
	if err != nil {
		t.Fatal(err)
	}
	old, err := w.Fake.Create(servicetest.Sandbox{ID: servicetest.UUID(), Name: "copy-" + saved.Ref.Data, Owner: account}, from)
	if err != nil {
		t.Fatal(err)
	}
	for n, age := range []time.Duration{0, 2 * time.Hour} {
		w.Fake.Change(old, func(b *servicetest.Sandbox) { b.Created = time.Now().Add(-age) })
		for _, err := range p.Snapshots(t.Context()) {
			if err != nil {
				t.Error(err)
			}
		}
		if left := len(w.Fake.Names()); left != 1-n {
			t.Errorf("after %s there are %d sandboxes, want %d", age, left, 1-n)
		}
	}
	if err := p.RemoveSnapshot(t.Context(), saved.Ref); err != nil {
		t.Error(err)
	}
	w.Empty(t)
}
