package superserve_test

import (
	"bytes"
	"net/http"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	service "github.com/atoll-run/atoll/internal/testing/servicetest/superserve"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/superserve"
	"github.com/atoll-run/atoll/sandbox"
)

func spec(id sandbox.ID) *sandbox.Spec { return &sandbox.Spec{ID: id, Name: string(id), Image: "host"} }

// make makes a sandbox that is destroyed with the test.
func (w *world) make(t *testing.T, p *superserve.Provider, s *sandbox.Spec) driver.Instance {
	t.Helper()
	return w.faulty(p, nil).Make(t, s)
}

// faulty is the service for the tests shared by all services.
func (w *world) faulty(p, again *superserve.Provider) *hostedtest.Faulty {
	return &hostedtest.Faulty{
		Faults: &w.Faults, Provider: p, Again: again, Sandboxes: "/sandboxes", Sandbox: "/sandboxes/*", Key: service.Key,
		NotFound: `{"error":{"code":"not_found","message":"sandbox not found"}}`, Invalid: `{"error":{"code":"validation_error","message":"no"}}`,
		Busy: `{"error":{"code":"conflict","message":"sandbox is resuming"}}`, Nothing: "[]",
		Other: hostedtest.Replace(`"id":"`, `"id":"0`), Spec: spec,
		Count: func() (int, int) { return len(w.Names()), 0 },
		Force: w.Force,
	}
}

func TestCreateFaults(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).Create(t, map[string]hostedtest.CreateFault{
		"the network is not enforced": {
			Fault: hostedtest.At(http.MethodGet, "/sandboxes/*", servicetest.Fault{Rewrite: hostedtest.Replace(`"network":`, `"ignored":`)}),
			Want:  sandbox.CodeUnavailable, Posts: 1,
		},
	})
}

func TestCreateGivenUp(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).GivenUp(t, "/sandboxes")
}

func TestLate(t *testing.T) {
	w, dir := serve(t), t.TempDir()
	w.faulty(w.Open(t, dir), w.Open(t, dir)).Late(t)
}

func TestFalse404(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).False404(t, "/sandboxes")
}

func TestTemporaryConflict(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).Conflict(t)
}

// Tokens and hints expire at any time: other clients connect, and sandboxes move.
func TestExpiredTokens(t *testing.T) {
	w := serve(t)
	p := w.Open(t, t.TempDir())
	in := w.make(t, p, spec("sb-tokens"))
	meter, _ := driver.As[driver.Meter](in)
	for name, tt := range map[string]struct {
		fault servicetest.Fault
		want  sandbox.Code
	}{
		"token":            {servicetest.Fault{Before: func() { w.Rotate(w.Names()[0]) }}, ""},
		"route":            {servicetest.Fault{Status: 404, Body: `{"error":{"code":"sandbox_route_stale","message":"moved"}}`}, ""},
		"unavailable":      {servicetest.Fault{Status: 503, Body: `{"error":{"code":"sandbox_unavailable","message":"paused"}}`}, ""},
		"another 503":      {servicetest.Fault{Status: 503, Body: `{"error":"upstream connect error"}`}, sandbox.CodeUnavailable},
		"a missing file":   {servicetest.Fault{Status: 404, Body: `{"error":"no such file"}`}, sandbox.CodeNotFound},
		"another protocol": {servicetest.Fault{Status: 200, Body: "{}"}, sandbox.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			w.Faults.Clear()
			tt.fault.Method, tt.fault.Path, tt.fault.Times = http.MethodGet, "/exec/connect", 1
			w.Faults.Add(tt.fault)
			u, err := meter.Usage(t.Context())
			if got := p.ErrorCode(err); got != tt.want || err == nil && u.Memory <= 0 {
				t.Errorf("code %q, want %q: %+v, %v", got, tt.want, u, err)
			}
			want := 0
			if tt.want == "" {
				want = 1
			}
			if n := w.Faults.Requests(http.MethodPost, "/sandboxes/*/activate"); n != want {
				t.Errorf("it was activated %d times, want %d", n, want)
			}
		})
	}
}

// pause pauses a sandbox as another client of the service. With async it does
// not wait.
func (w *world) pause(t *testing.T, async bool) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/sandboxes/"+w.Names()[0]+"/pause", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", service.Key)
	want := http.StatusNoContent
	if async {
		req.Header.Set("Prefer", "respond-async")
		want = http.StatusAccepted
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != want {
		t.Fatalf("pause: %s, want %d", res.Status, want)
	}
}

// TestPaused pauses a sandbox as another client, and resumes it during the
// pause, twice at once.
func TestPaused(t *testing.T) {
	w := serve(t)
	p := w.Open(t, t.TempDir())
	in := w.make(t, p, spec("sb-paused"))
	hostedtest.Says(t, in, "echo kept >/tmp/kept; sleep 1000 >/dev/null 2>&1 & echo $! >/tmp/pid")
	w.pause(t, false)
	if got, err := p.State(t.Context(), in.ID()); err != nil || got != sandbox.Paused {
		t.Errorf("the sandbox is %q, %v", got, err)
	}
	if _, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"true"}}); p.ErrorCode(err) != sandbox.CodeConflict {
		t.Errorf("a command in a paused sandbox: %v, want conflict", err)
	}
	other, err := p.Attach(t.Context(), in.ID())
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := p.State(t.Context(), in.ID()); got != sandbox.Paused {
		t.Errorf("after Attach it is %q", got)
	}
	w.Transitions(200 * time.Millisecond)
	resume := func(ins ...driver.Instance) {
		t.Helper()
		done := make(chan error, len(ins))
		for _, one := range ins {
			r, _ := driver.As[driver.Resumer](one)
			go func() { done <- r.Resume(t.Context()) }()
		}
		for range ins {
			if err := <-done; err != nil {
				t.Errorf("Resume: %v", err)
			}
		}
	}
	resume(in, other)
	w.pause(t, true) // and it is still pausing
	resume(in, other)
	for _, one := range []driver.Instance{in, other} {
		if got := hostedtest.Says(t, one, "cat /tmp/kept; tr '\\0' ' ' </proc/$(cat /tmp/pid)/cmdline"); got != "kept\nsleep 1000 " {
			t.Errorf("after it was resumed: %q", got)
		}
	}
}

func TestStatuses(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).Statuses(t, map[string]hostedtest.Meaning{
		service.Active:    {State: sandbox.Running},
		service.Starting:  {State: sandbox.Running},
		service.Migrating: {State: sandbox.Running},
		service.Resuming:  {State: sandbox.Running},
		service.Paused:    {State: sandbox.Paused},
		service.Pausing:   {State: sandbox.Paused},
		service.Failed:    {State: sandbox.Failed, Resume: sandbox.CodeConflict},
	}, service.Deleted)
}

// A snapshot is requested with an idempotency key, so that it is not taken
// twice if the answer is lost. Nothing is left of a failed snapshot.
func TestSnapshotFaults(t *testing.T) {
	w := serve(t)
	p := w.Open(t, t.TempDir())
	s := spec("sb-snapshots")
	s.Lifetime.Timeout = time.Hour
	in := w.make(t, p, s)
	shot, _ := driver.As[driver.Snapshotter](in)
	w.Transitions(100 * time.Millisecond)
	w.Faults.Add(servicetest.Fault{Method: http.MethodPost, Path: "/sandboxes/*/snapshot", Times: 1, Lose: true})
	saved, err := shot.Snapshot(t.Context(), driver.SnapshotOptions{ID: "sn-lost", Memory: true})
	if err != nil || len(w.snapshots()) != 1 {
		t.Errorf("Snapshot: %v; there are %d, want 1", err, len(w.snapshots()))
	}
	if err := p.RemoveSnapshot(t.Context(), saved.Ref); err != nil {
		t.Error(err)
	}
	for name, f := range map[string]servicetest.Fault{
		"fails": {Method: http.MethodGet, Path: "/snapshots/*", Rewrite: func(b []byte) []byte {
			return bytes.Replace(bytes.Replace(b, []byte(`"creating"`), []byte(`"failed"`), 1), []byte(`"ready"`), []byte(`"failed"`), 1)
		}},
		"refused": {Method: http.MethodPost, Path: "/sandboxes/*/snapshot", Status: 403, Body: `{"error":{"code":"forbidden","message":"not enabled"}}`},
	} {
		w.Faults.Clear()
		w.Faults.Add(f)
		if _, err := shot.Snapshot(t.Context(), driver.SnapshotOptions{ID: "sn-fails"}); err == nil || len(w.snapshots()) != 0 {
			t.Errorf("%s: %v; there are %d, want none", name, err, len(w.snapshots()))
		}
	}
	if got := hostedtest.Says(t, in, "echo alive"); got != "alive\n" {
		t.Errorf("it says %q", got)
	}
}

func TestRefusals(t *testing.T) {
	w := serve(t)
	body := func(text string) string { return `{"error":{"code":"x","message":"` + text + `"}}` }
	w.faulty(w.Open(t, t.TempDir()), nil).Refusals(t, "", body, true)
}
