package superserve_test

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	service "github.com/atoll-run/atoll/internal/servicetest/superserve"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/superserve"
	"github.com/atoll-run/atoll/sandbox"
)

func spec(id sandbox.ID) *sandbox.Spec { return &sandbox.Spec{ID: id, Name: string(id), Image: "host"} }

// make makes a sandbox that is destroyed with the test.
func (w *world) make(t *testing.T, p *superserve.Provider, s *sandbox.Spec) driver.Instance {
	t.Helper()
	in, err := p.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.Faults.Clear()
		for _, id := range w.IDs() {
			w.Force(id, "")
		}
		if err := in.Destroy(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("Destroy: %v", err)
		}
	})
	return in
}

const notFound = `{"error":{"code":"not_found","message":"sandbox not found"}}`

// Whatever happens to the request that makes a sandbox, there is one or none,
// and it is asked for once unless the service refused it.
func TestCreateFaults(t *testing.T) {
	w := serve(t)
	p := w.open(t, t.TempDir())
	post := func(f servicetest.Fault) servicetest.Fault {
		f.Method, f.Path, f.Times = http.MethodPost, "/sandboxes", 1
		return f
	}
	get := func(f servicetest.Fault) servicetest.Fault {
		f.Method, f.Path, f.Times = http.MethodGet, "/sandboxes/*", 1
		return f
	}
	for name, tt := range map[string]struct {
		fault servicetest.Fault
		want  sandbox.Code // empty: it is made
		posts int
	}{
		"lost answer":        {post(servicetest.Fault{Lose: true}), "", 1},
		"5xx after it acted": {post(servicetest.Fault{Status: 502, Act: true}), "", 1},
		"truncated answer":   {post(servicetest.Fault{Truncate: 40}), "", 1},
		"another id":         {post(servicetest.Fault{Rewrite: otherID}), "", 1},
		"false 404":          {get(servicetest.Fault{Status: 404, Body: notFound}), "", 1},
		"slow":               {post(servicetest.Fault{Delay: 300 * time.Millisecond}), "", 1},
		"too many requests":  {servicetest.TooMany(http.MethodPost, "/sandboxes", time.Second, 1), "", 2},
		"5xx":                {post(servicetest.Fault{Status: 503}), sandbox.CodeUnavailable, 1},
		"refused":            {post(servicetest.Fault{Status: 400, Body: `{"error":{"code":"validation_error","message":"no"}}`}), sandbox.CodeInvalid, 1},
		"no limits":          {get(servicetest.Fault{Rewrite: forgetful}), sandbox.CodeUnavailable, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w.Faults.Clear()
			w.Faults.Add(tt.fault)
			in, err := p.Create(t.Context(), spec("sb-create"))
			if got := p.ErrorCode(err); got != tt.want || (err == nil) != (tt.want == "") {
				t.Errorf("code %q, want %q: %v", got, tt.want, err)
			}
			if n := w.Faults.Requests(http.MethodPost, "/sandboxes"); n != tt.posts {
				t.Errorf("it was asked for %d times, want %d", n, tt.posts)
			}
			want := 0
			if in != nil {
				want = 1
				if got := hostedtest.Says(t, in, "echo alive"); got != "alive\n" {
					t.Errorf("it says %q", got)
				}
			}
			if n := len(w.IDs()); n != want {
				t.Errorf("there are %d sandboxes, want %d", n, want)
			}
			if in != nil {
				if err := in.Destroy(t.Context()); err != nil || len(w.IDs()) > 0 {
					t.Errorf("Destroy: %v, %d are left", err, len(w.IDs()))
				}
			}
		})
	}
}

// otherID has an answer name another sandbox.
func otherID(body []byte) []byte {
	return bytes.Replace(body, []byte(`"id":"`), []byte(`"id":"0`), 1)
}

// forgetful is a service that takes a network and does not enforce it.
func forgetful(body []byte) []byte {
	return bytes.Replace(body, []byte(`"network":`), []byte(`"ignored":`), 1)
}

// A caller that gives up while the service is slow leaves nothing.
func TestCreateGivenUp(t *testing.T) {
	w := serve(t)
	p := w.open(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	w.Faults.Add(servicetest.Fault{Method: http.MethodPost, Path: "/sandboxes", Before: cancel, Delay: 100 * time.Millisecond})
	if _, err := p.Create(ctx, spec("sb-given-up")); p.ErrorCode(err) != sandbox.CodeCanceled {
		t.Errorf("Create: %v, want canceled", err)
	}
	if n := len(w.IDs()); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

// An answer that a sandbox does not exist is no evidence while the service lists
// it.
func TestFalse404(t *testing.T) {
	w := serve(t)
	p := w.open(t, t.TempDir())
	in := w.make(t, p, spec("sb-false"))
	w.Faults.Add(
		servicetest.Fault{Method: http.MethodGet, Path: "/sandboxes/*", Status: 404, Body: notFound},
		servicetest.Fault{Method: http.MethodDelete, Path: "/sandboxes/*", Status: 404, Body: notFound},
	)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if exit, err := in.Wait(ctx); err == nil {
		t.Errorf("the sandbox ended: %+v", exit)
	}
	if err := in.Destroy(t.Context()); p.ErrorCode(err) != sandbox.CodeUnavailable {
		t.Errorf("Destroy: %v, want unavailable", err)
	}
	w.Faults.Clear()
	if got := hostedtest.Says(t, in, "echo alive"); got != "alive\n" {
		t.Errorf("it says %q", got)
	}
	// A page of something on the way is none either.
	w.Faults.Add(servicetest.Fault{Method: http.MethodGet, Path: "/sandboxes", Status: 404, Body: "<html>not found</html>"})
	if _, err := p.Attach(t.Context(), in.ID()); p.ErrorCode(err) != sandbox.CodeUnavailable {
		t.Errorf("Attach: %v, want unavailable", err)
	}
}

// Tokens and hints end at any time: others connect, sandboxes move.
func TestExpiredTokens(t *testing.T) {
	w := serve(t)
	p := w.open(t, t.TempDir())
	in := w.make(t, p, spec("sb-tokens"))
	meter, _ := driver.As[driver.Meter](in)
	for name, tt := range map[string]struct {
		fault servicetest.Fault
		want  sandbox.Code
	}{
		"token":             {servicetest.Fault{Before: func() { w.Rotate(w.IDs()[0]) }}, ""},
		"route":             {servicetest.Fault{Status: 404, Body: `{"error":{"code":"sandbox_route_stale","message":"moved"}}`}, ""},
		"unavailable":       {servicetest.Fault{Status: 503, Body: `{"error":{"code":"sandbox_unavailable","message":"paused"}}`}, ""},
		"another 503":       {servicetest.Fault{Status: 503, Body: `{"error":"upstream connect error"}`}, sandbox.CodeUnavailable},
		"a missing file":    {servicetest.Fault{Status: 404, Body: `{"error":"no such file"}`}, sandbox.CodeNotFound},
		"stream cut off":    {servicetest.Fault{Truncate: 30}, sandbox.CodeUnavailable},
		"end without code":  {servicetest.Fault{Status: 200, Body: "data: {\"stdout\":\"1 1 1\"}\n\ndata: {\"finished\":true}\n\n"}, sandbox.CodeUnavailable},
		"end with an error": {servicetest.Fault{Status: 200, Body: "data: {\"error\":\"no\",\"exit_code\":0,\"finished\":true}\n\n"}, sandbox.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			w.Faults.Clear()
			tt.fault.Method, tt.fault.Path, tt.fault.Times = http.MethodPost, "/exec/stream", 1
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

// A sandbox that is changing refuses to be removed for a moment.
func TestTemporaryConflict(t *testing.T) {
	w := serve(t)
	p := w.open(t, t.TempDir())
	in := w.make(t, p, spec("sb-conflict"))
	w.Faults.Add(servicetest.Fault{
		Method: http.MethodDelete, Path: "/sandboxes/*", Times: 3, Status: 409, Body: `{"error":{"code":"conflict","message":"sandbox is resuming"}}`,
	})
	if err := in.Destroy(t.Context()); err != nil || len(w.IDs()) > 0 {
		t.Errorf("Destroy: %v, %d are left", err, len(w.IDs()))
	}
}

// pause has another client of the service pause a sandbox. With async it does
// not wait for that.
func (w *world) pause(t *testing.T, async bool) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/sandboxes/"+w.IDs()[0]+"/pause", nil)
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

// TestPaused has another client pause a sandbox, and resumes it while it is still
// pausing, twice at once.
func TestPaused(t *testing.T) {
	w := serve(t)
	p := w.open(t, t.TempDir())
	in := w.make(t, p, spec("sb-paused"))
	hostedtest.Says(t, in, "echo kept >/tmp/kept; sleep 1000 >/dev/null 2>&1 &")
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
		if got := hostedtest.Says(t, one, "cat /tmp/kept; pgrep -f 'sleep 1000' >/dev/null && echo runs"); got != "kept\nruns\n" {
			t.Errorf("after it was resumed: %q", got)
		}
	}
}

// TestStatuses tries every status that the service may say. None of them makes
// another sandbox.
func TestStatuses(t *testing.T) {
	w := serve(t)
	p := w.open(t, t.TempDir())
	in := w.make(t, p, spec("sb-statuses"))
	id := w.IDs()[0]
	r, _ := driver.As[driver.Resumer](in)
	for status, tt := range map[string]struct {
		state        sandbox.State
		code, resume sandbox.Code
	}{
		service.Active:    {sandbox.Running, "", ""},
		service.Starting:  {sandbox.Running, "", ""},
		service.Migrating: {sandbox.Running, "", ""},
		service.Resuming:  {sandbox.Running, "", ""},
		service.Paused:    {sandbox.Paused, "", ""},
		service.Pausing:   {sandbox.Paused, "", ""},
		service.Failed:    {"", sandbox.CodeConflict, sandbox.CodeConflict},
		"hibernating":     {"", sandbox.CodeUnavailable, sandbox.CodeUnavailable},
		service.Deleted:   {"", sandbox.CodeGone, ""}, // tried last
	} {
		if status == service.Deleted {
			continue
		}
		t.Run(status, func(t *testing.T) {
			w.Faults.Clear()
			w.Force(id, status)
			got, err := p.State(t.Context(), in.ID())
			if got != tt.state || p.ErrorCode(err) != tt.code {
				t.Errorf("State: %q, %v; want %q, code %q", got, err, tt.state, tt.code)
			}
			if _, err := p.Attach(t.Context(), in.ID()); p.ErrorCode(err) != tt.code {
				t.Errorf("Attach: %v, want code %q", err, tt.code)
			}
			if _, err := p.Create(t.Context(), spec(in.ID())); p.ErrorCode(err) != sandbox.CodeAlreadyExists {
				t.Errorf("Create: %v, want already exists", err)
			}
			// After a few looks it is active again.
			w.Faults.Add(servicetest.Fault{Method: http.MethodGet, Path: "/sandboxes/*", Skip: 3, Before: func() { w.Force(id, "") }})
			if err := r.Resume(t.Context()); p.ErrorCode(err) != tt.resume {
				t.Errorf("Resume: %v, want code %q", err, tt.resume)
			}
		})
	}
	w.Faults.Clear()
	w.Force(id, service.Deleted)
	if _, err := p.Attach(t.Context(), in.ID()); p.ErrorCode(err) != sandbox.CodeGone {
		t.Errorf("Attach to a deleted sandbox: %v, want gone", err)
	}
	if n := len(w.IDs()); n != 1 {
		t.Errorf("there are %d sandboxes, want 1", n)
	}
}

// A snapshot is asked for with a key, so that one whose answer is lost is not
// taken twice; and nothing is left of one that fails.
func TestSnapshotFaults(t *testing.T) {
	w := serve(t)
	p := w.open(t, t.TempDir())
	s := spec("sb-snapshots")
	s.Lifetime.Timeout = time.Hour
	in := w.make(t, p, s)
	shot, _ := driver.As[driver.Snapshotter](in)
	w.Transitions(100 * time.Millisecond)
	w.Faults.Add(servicetest.Fault{Method: http.MethodPost, Path: "/sandboxes/*/snapshot", Times: 1, Lose: true})
	saved, err := shot.Snapshot(t.Context(), driver.SnapshotOptions{ID: "sn-lost", Memory: true})
	if err != nil || w.Snapshots() != 1 {
		t.Errorf("Snapshot: %v; there are %d, want 1", err, w.Snapshots())
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
		if _, err := shot.Snapshot(t.Context(), driver.SnapshotOptions{ID: "sn-fails"}); err == nil || w.Snapshots() != 0 {
			t.Errorf("%s: %v; there are %d, want none", name, err, w.Snapshots())
		}
	}
	if got := hostedtest.Says(t, in, "echo alive"); got != "alive\n" {
		t.Errorf("it says %q", got)
	}
}

// Neither keys nor tokens appear in errors, whatever the service repeats.
func TestRefusals(t *testing.T) {
	w := serve(t)
	p := w.open(t, t.TempDir())
	for status, want := range map[int]sandbox.Code{
		400: sandbox.CodeInvalid, 401: sandbox.CodeUnauthorized, 403: sandbox.CodeDenied, 404: sandbox.CodeNotFound, 409: sandbox.CodeConflict,
		429: sandbox.CodeExhausted, 500: sandbox.CodeUnavailable, 502: sandbox.CodeUnavailable, 302: sandbox.CodeUnavailable,
	} {
		w.Faults.Clear()
		w.Faults.Add(servicetest.Fault{
			Status: status, Header: http.Header{"Location": {"http://127.0.0.1:1/"}}, Body: `{"error":{"code":"x","message":"the key ` + service.Key + ` is wrong"}}`,
		})
		_, err := p.Attach(t.Context(), "sb-refused")
		if got := p.ErrorCode(err); got != want || strings.Contains(err.Error(), service.Key) {
			t.Errorf("status %d: code %q, want %q: %v", status, got, want, err)
		}
		facts, err := p.Probe(t.Context())
		if err != nil || facts.Available {
			t.Errorf("status %d: Probe: %+v, %v", status, facts, err)
		}
	}
}
