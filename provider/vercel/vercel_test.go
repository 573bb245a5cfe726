package vercel_test

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	service "github.com/atoll-run/atoll/internal/testing/servicetest/vercel"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/vercel"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(hostedtest.Main(m)) }

const (
	anySandbox = "/api/v2/sandboxes/*"
	session    = "/api/v2/sandboxes/sessions/*"
	refused    = `{"error":{"code":"bad_request","message":"no"}}`
)

var suite = hostedtest.Suite[*vercel.Provider, *service.Server]{
	Name: vercel.Name, Path: "/api", Busy: (*service.Server).Commands, Left: (*service.Server).Saved, Saves: true, Rests: true, Restarts: true,
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
	Sandboxes: "/api/v[23]/sandboxes", Sandbox: anySandbox, Inside: session + "/cmd",
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
		"open":        hostedtest.Rewritten(anySandbox, `"allowedDomains":["api.a.test"],"mode":"custom"`, `"mode":"allow-all"`),
		"wide":        hostedtest.Rewritten(anySandbox, `["api.a.test"]`, `["*"]`),
		"short":       hostedtest.Rewritten(anySandbox, `"timeout":1800000`, `"timeout":300000`),
		"not kept":    hostedtest.Rewritten(anySandbox, `"persistent":true`, `"persistent":false`),
		"command 5xx": {Method: http.MethodPost, Path: session + "/cmd", Status: 502},
		"no command":  {Method: http.MethodPost, Path: session + "/cmd", Rewrite: func([]byte) []byte { return []byte("{}\n") }},
		"error record": {Method: http.MethodPost, Path: session + "/cmd", Rewrite: func(b []byte) []byte {
			first, _, _ := bytes.Cut(b, []byte("\n"))
			return append(first, "\n{\"stream\":\"error\",\"data\":{\"code\":\"sandbox_stream_closed\",\"message\":\"no\"}}\n"...)
		}},
	})
	all["failed"] = hostedtest.CreateFault{Fault: hostedtest.Rewritten(anySandbox, `"status":"running"`, `"status":"failed"`), Want: sandbox.CodeConflict, Posts: 1}
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

// A snapshot is one or none. If it fails, the sandbox continues with its files.
func TestSnapshotFaults(t *testing.T) {
	w := suite.Serve(t)
	p := w.Open(t, t.TempDir())
	const all = "/api/v2/sandboxes/snapshots"
	post := func(f servicetest.Fault) servicetest.Fault {
		return hostedtest.At(http.MethodPost, session+"/snapshot", f)
	}
	none := func(path string) servicetest.Fault {
		return servicetest.Fault{Method: http.MethodGet, Path: path, Status: 200, Body: `{"snapshots":[],"pagination":{"count":0,"next":null}}`}
	}
	for name, tt := range map[string]struct {
		want   sandbox.Code // empty: it is saved
		faults []servicetest.Fault
	}{
		"lost answer":      {"", []servicetest.Fault{post(servicetest.Fault{Lose: true})}},
		"truncated":        {"", []servicetest.Fault{post(servicetest.Fault{Truncate: 20})}},
		"another snapshot": {"", []servicetest.Fault{post(servicetest.Fault{Rewrite: hostedtest.Replace(`"sourceSessionId":"`, `"sourceSessionId":"other`)})}},
		"5xx":              {sandbox.CodeUnavailable, []servicetest.Fault{post(servicetest.Fault{Status: 503})}},
		"refused":          {sandbox.CodeInvalid, []servicetest.Fault{post(servicetest.Fault{Status: 400, Body: refused})}},
		"not listed":       {sandbox.CodeUnavailable, []servicetest.Fault{post(servicetest.Fault{Status: 200, Body: "{}"}), none(all)}},
		"failed":           {sandbox.CodeUnavailable, []servicetest.Fault{post(servicetest.Fault{Rewrite: hostedtest.Replace(`"created"`, `"failed"`)})}},
		"it expires":       {sandbox.CodeUnavailable, []servicetest.Fault{post(servicetest.Fault{Rewrite: hostedtest.Replace(`"id":"snap_`, `"expiresAt":1,"id":"snap_`)})}},
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

// A stopped sandbox is started to be saved, and is stopped afterwards, also if that
// fails. Its snapshot outlives it, and what the service saved by itself does not.
func TestSnapshotOfStopped(t *testing.T) {
	w := suite.Serve(t)
	p := w.Open(t, t.TempDir())
	in := w.Faulty(p, nil).Make(t, hostedtest.Spec("sb-stopped"))
	hostedtest.Says(t, in, "echo kept >/root/kept")
	if err := w.Fake.StopAll(); err != nil {
		t.Fatal(err)
	}
	shot, _ := driver.As[driver.Snapshotter](in)
	stopped := func(when string) {
		t.Helper()
		if got, err := p.State(t.Context(), in.ID()); got != sandbox.Paused {
			t.Errorf("%s it is %q, %v", when, got, err)
		}
	}
	w.Fake.Add(hostedtest.At(http.MethodPost, session+"/snapshot", servicetest.Fault{Status: 400, Body: refused}))
	if _, err := shot.Snapshot(t.Context(), driver.SnapshotOptions{ID: "sn-stopped"}); p.ErrorCode(err) != sandbox.CodeInvalid {
		t.Errorf("a snapshot that is refused: %v", err)
	}
	stopped("after a snapshot that failed")
	w.Fake.Clear()
	saved, err := shot.Snapshot(t.Context(), driver.SnapshotOptions{ID: "sn-stopped"})
	if err != nil {
		t.Fatal(err)
	}
	stopped("after its snapshot")
	if err := in.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if left := w.Fake.Saved(); len(left) != 1 || left[0] != saved.Ref.Data {
		t.Errorf("of the removed sandbox there are %v, want only the snapshot %s", left, saved.Ref.Data)
	}
	w.Fake.Add(hostedtest.At(http.MethodPost, "/api/v3/sandboxes", servicetest.Fault{Lose: true}))
	twin, _, err := p.Restore(t.Context(), hostedtest.Spec("sb-twin"), saved.Ref)
	if err != nil {
		t.Fatal(err)
	}
	if got := hostedtest.Says(t, twin, "cat /root/kept"); got != "kept\n" {
		t.Errorf("the copy says %q", got)
	}
	for _, err := range []error{twin.Destroy(t.Context()), p.RemoveSnapshot(t.Context(), saved.Ref), p.RemoveSnapshot(t.Context(), saved.Ref)} {
		if err != nil {
			t.Error(err)
		}
	}
	if _, _, err := p.Restore(t.Context(), hostedtest.Spec("sb-twin"), saved.Ref); !errors.Is(err, driver.ErrSnapshotLost) {
		t.Errorf("from a snapshot that was removed: %v", err)
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
	const create = "/api/v3/sandboxes"
	for name, tt := range map[string]struct {
		want  sandbox.Code // empty: it is copied
		fault servicetest.Fault
	}{
		"lost answer": {"", hostedtest.At(http.MethodPost, create, servicetest.Fault{Lose: true})},
		"not made":    {sandbox.CodeUnavailable, hostedtest.At(http.MethodPost, create, servicetest.Fault{Status: 503})},
		"not saved":   {sandbox.CodeInvalid, hostedtest.At(http.MethodPost, session+"/snapshot", servicetest.Fault{Status: 400, Body: refused})},
		"saved late":  {"", hostedtest.At(http.MethodPost, session+"/snapshot", servicetest.Fault{Lose: true})},
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
		if left := w.Fake.Saved(); err != nil || len(left) != 1 {
			t.Errorf("%s: there are the snapshots %v, want one: %v", name, left, err)
		}
	}
	w.Fake.Clear()
	scope, err := p.Scope()
	if err != nil {
		t.Fatal(err)
	}
	account := w.Fake.Account(service.Token)
	old, err := w.Fake.Cloud.Create(servicetest.Sandbox{ID: servicetest.NewID(), Name: "copy-atoll-" + scope + "-sn-third", Owner: account}, nil)
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
