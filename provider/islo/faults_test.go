package islo_test

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	service "github.com/atoll-run/atoll/internal/servicetest/islo"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/islo"
	"github.com/atoll-run/atoll/sandbox"
)

// make makes a sandbox that is destroyed with the test.
func (w *world) make(t *testing.T, p *islo.Provider, s *sandbox.Spec) driver.Instance {
	t.Helper()
	in, err := p.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.Faults.Clear()
		for _, name := range w.Names() {
			w.Force(name, "")
		}
		if err := in.Destroy(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("Destroy: %v", err)
		}
	})
	return in
}

// bounded is a spec of a sandbox with a gateway profile of its own.
func bounded(id sandbox.ID) *sandbox.Spec {
	s := spec(id)
	s.Network = sandbox.Network{Egress: []string{"api.a.test"}, Plain: &sandbox.EgressRules{Requests: []sandbox.EgressRequest{
		{Rule: "no posts", Action: sandbox.Deny, Host: "api.a.test", Methods: []string{"POST"}},
		{Rule: "api", Action: sandbox.Allow, Host: "api.a.test", Path: "/v1/*"},
	}}}
	return s
}

const (
	notFound = `{"code":"SANDBOX_NOT_FOUND","message":"sandbox not found"}`
	conflict = `{"code":"SANDBOX_INVALID_STATE","message":"sandbox is resuming"}`
	refused  = `{"code":"VALIDATION_ERROR","message":"no"}`
)

// otherName has an answer name another sandbox.
func otherName(body []byte) []byte {
	return bytes.Replace(body, []byte(`"name":"`), []byte(`"name":"other-`), 1)
}

// smaller is a service that gives less than it was asked for.
func smaller(body []byte) []byte {
	return bytes.Replace(body, []byte(`"memory_mb":`), []byte(`"memory_mb":1`), 1)
}

// wider is a gateway that does not have a rule as it was asked for.
func wider(body []byte) []byte {
	return bytes.Replace(body, []byte(`"methods":["POST"]`), []byte(`"methods":["PUT"]`), 1)
}

// Whatever happens to the requests that make a sandbox and what it may reach,
// there is one with its profile or neither, and it is asked for once unless the
// service refused it.
func TestCreateFaults(t *testing.T) {
	w := serve(t)
	p := w.open(t, t.TempDir())
	at := func(method, path string, f servicetest.Fault) servicetest.Fault {
		f.Method, f.Path, f.Times = method, path, 1
		return f
	}
	const post, get = http.MethodPost, http.MethodGet
	for name, tt := range map[string]struct {
		fault servicetest.Fault
		want  sandbox.Code // empty: it is made
		posts int
	}{
		"lost answer":               {at(post, "/sandboxes", servicetest.Fault{Lose: true}), "", 1},
		"5xx after it acted":        {at(post, "/sandboxes", servicetest.Fault{Status: 502, Act: true}), "", 1},
		"truncated answer":          {at(post, "/sandboxes", servicetest.Fault{Truncate: 40}), "", 1},
		"another name":              {at(post, "/sandboxes", servicetest.Fault{Rewrite: otherName}), "", 1},
		"false 404":                 {at(get, "/sandboxes/*", servicetest.Fault{Skip: 1, Status: 404, Body: notFound}), "", 1},
		"slow":                      {at(post, "/sandboxes", servicetest.Fault{Delay: 300 * time.Millisecond}), "", 1},
		"too many requests":         {servicetest.TooMany(post, "/sandboxes", time.Second, 1), "", 2},
		"expired token":             {at(post, "/sandboxes", servicetest.Fault{Before: w.Expire}), "", 2},
		"5xx":                       {at(post, "/sandboxes", servicetest.Fault{Status: 503}), sandbox.CodeUnavailable, 1},
		"refused":                   {at(post, "/sandboxes", servicetest.Fault{Status: 400, Body: refused}), sandbox.CodeInvalid, 1},
		"no credit":                 {at(post, "/sandboxes", servicetest.Fault{Status: 402, Body: `{"code":"BILLING_NOT_ALLOWED","message":"no"}`}), sandbox.CodeUnavailable, 1},
		"smaller":                   {servicetest.Fault{Method: get, Path: "/sandboxes/*", Rewrite: smaller}, sandbox.CodeUnavailable, 1},
		"failed":                    {servicetest.Fault{Method: get, Path: "/sandboxes/*", Skip: 1, Times: 1, Status: 200, Body: `{"id":"x","name":"NAME","status":"failed"}`}, sandbox.CodeUnavailable, 1},
		"guest not taken":           {servicetest.Fault{Method: post, Path: "/sandboxes/*/files", Status: 400, Body: refused}, sandbox.CodeInvalid, 1},
		"no commands":               {servicetest.Fault{Method: post, Path: "/sandboxes/*/exec/stream", Status: 500, Body: `{"code":"EXEC_FAILED","message":"no"}`}, sandbox.CodeUnavailable, 1},
		"profile refused":           {at(post, "/gateway/profiles", servicetest.Fault{Status: 403, Body: `{"code":"ACCESS_DENIED","message":"no"}`}), sandbox.CodeDenied, 0},
		"profile lost":              {at(post, "/gateway/profiles", servicetest.Fault{Lose: true}), sandbox.CodeUnavailable, 0},
		"profile 5xx":               {at(post, "/gateway/profiles", servicetest.Fault{Status: 500}), sandbox.CodeUnavailable, 0},
		"first rule refused":        {at(post, "/gateway/profiles/*/rules", servicetest.Fault{Status: 400, Body: refused}), sandbox.CodeInvalid, 0},
		"second rule refused":       {at(post, "/gateway/profiles/*/rules", servicetest.Fault{Skip: 1, Status: 400, Body: refused}), sandbox.CodeInvalid, 0},
		"rule lost":                 {at(post, "/gateway/profiles/*/rules", servicetest.Fault{Lose: true}), sandbox.CodeUnavailable, 0},
		"rule too many requests":    {servicetest.TooMany(post, "/gateway/profiles/*/rules", time.Second, 1), "", 1},
		"profile not as asked":      {at(get, "/gateway/profiles/*", servicetest.Fault{Rewrite: wider}), sandbox.CodeUnavailable, 0},
		"profile removed meanwhile": {at(post, "/sandboxes", servicetest.Fault{Status: 400, Body: `{"code":"INVALID_REQUEST","message":"gateway profile not found"}`}), sandbox.CodeInvalid, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w.Faults.Clear()
			w.Faults.Add(tt.fault)
			s := bounded("sb-create")
			s.Resources.Memory = 512 << 20
			in, err := p.Create(t.Context(), s)
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
			if n, m := len(w.Names()), len(w.Profiles()); n != want || m != want {
				t.Errorf("there are %d sandboxes and %d profiles, want %d of both", n, m, want)
			}
			if in != nil {
				if err := in.Destroy(t.Context()); err != nil || len(w.Names())+len(w.Profiles()) > 0 {
					t.Errorf("Destroy: %v, left are %v and %v", err, w.Names(), w.Profiles())
				}
			}
		})
	}
}

// A caller that gives up while the service is slow leaves nothing.
func TestCreateGivenUp(t *testing.T) {
	w := serve(t)
	p := w.open(t, t.TempDir())
	for _, path := range []string{"/gateway/profiles", "/gateway/profiles/*/rules", "/sandboxes", "/sandboxes/*/exec"} {
		w.Faults.Clear()
		ctx, cancel := context.WithCancel(t.Context())
		w.Faults.Add(servicetest.Fault{Method: http.MethodPost, Path: path, Times: 1, Before: cancel, Delay: 100 * time.Millisecond})
		if _, err := p.Create(ctx, bounded("sb-given-up")); p.ErrorCode(err) != sandbox.CodeCanceled {
			t.Errorf("%s: Create: %v, want canceled", path, err)
		}
		if n := len(w.Names()) + len(w.Profiles()); n != 0 {
			t.Errorf("%s: left are %v and %v", path, w.Names(), w.Profiles())
		}
	}
}

// What could not be taken back at once is found by the next one who looks: the
// profile of a sandbox that was not made, and that of one which the service has
// ended by itself.
func TestTidy(t *testing.T) {
	w, dir := serve(t), t.TempDir()
	p := w.open(t, dir)
	w.Faults.Add(
		servicetest.Fault{Method: http.MethodPost, Path: "/sandboxes", Times: 1, Status: 400, Body: refused},
		servicetest.Fault{Method: http.MethodDelete, Path: "/gateway/profiles/*", Status: 500},
	)
	if _, err := p.Create(t.Context(), bounded("sb-tidy")); p.ErrorCode(err) != sandbox.CodeInvalid || len(w.Profiles()) != 1 {
		t.Fatalf("Create: %v, profiles %v", err, w.Profiles())
	}
	w.Faults.Clear()
	look := func() {
		t.Helper()
		for f, err := range w.open(t, dir).List(t.Context()) {
			t.Errorf("List: %+v, %v", f, err)
		}
		if len(w.Profiles()) != 0 {
			t.Errorf("profiles %v are left", w.Profiles())
		}
	}
	look()
	in, err := p.Create(t.Context(), bounded("sb-tidy"))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Delete(t.Context(), w.Names()[0]); err != nil || len(w.Profiles()) != 1 {
		t.Fatalf("the service ends it: %v, profiles %v", err, w.Profiles())
	}
	look()
	if err := in.Destroy(t.Context()); err != nil {
		t.Errorf("Destroy of what the service has ended: %v", err)
	}
}

// Nothing is left when a sandbox ends but its profile cannot be removed at first.
func TestDestroyFaults(t *testing.T) {
	w := serve(t)
	p := w.open(t, t.TempDir())
	in := w.make(t, p, bounded("sb-destroy"))
	w.Faults.Add(
		servicetest.Fault{Method: http.MethodDelete, Path: "/sandboxes/*", Times: 3, Status: 409, Body: conflict},
		servicetest.Fault{Method: http.MethodDelete, Path: "/gateway/profiles/*", Times: 3, Status: 500},
	)
	if err := in.Destroy(t.Context()); p.ErrorCode(err) != sandbox.CodeUnavailable || len(w.Names()) != 0 || len(w.Profiles()) != 1 {
		t.Errorf("Destroy: %v; %v and %v are left", err, w.Names(), w.Profiles())
	}
	if err := in.Destroy(t.Context()); err != nil || len(w.Profiles()) != 0 {
		t.Errorf("Destroy again: %v; %v are left", err, w.Profiles())
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
	// A page of something on the way is none either, nor is a missing file.
	for _, body := range []string{"<html>not found</html>", `{"code":"FILE_NOT_FOUND","message":"no such file"}`} {
		w.Faults.Clear()
		w.Faults.Add(servicetest.Fault{Method: http.MethodGet, Path: "/sandboxes/*", Status: 404, Body: body})
		if _, err := p.Attach(t.Context(), in.ID()); err == nil || p.ErrorCode(err) == sandbox.CodeGone {
			t.Errorf("%s: Attach: %v", body, err)
		}
	}
}

// Tokens end at any time, and results come when they come.
func TestCommandFaults(t *testing.T) {
	w := serve(t)
	p := w.open(t, t.TempDir())
	in := w.make(t, p, spec("sb-commands"))
	meter, _ := driver.As[driver.Meter](in)
	const post, get = http.MethodPost, http.MethodGet
	status := func(s string) func([]byte) []byte {
		return func(b []byte) []byte {
			b = bytes.Replace(b, []byte(`"status":"completed"`), []byte(`"status":"`+s+`"`), 1)
			return bytes.Replace(b, []byte(`"exit_code":0,`), nil, 1)
		}
	}
	for name, tt := range map[string]struct {
		fault servicetest.Fault
		want  sandbox.Code
	}{
		"expired token":       {servicetest.Fault{Method: post, Path: "/sandboxes/*/exec", Before: w.Expire}, ""},
		"poll 5xx":            {servicetest.Fault{Method: get, Path: "/sandboxes/*/exec/*", Status: 503}, ""},
		"poll truncated":      {servicetest.Fault{Method: get, Path: "/sandboxes/*/exec/*", Truncate: 10}, ""},
		"queued":              {servicetest.Fault{Method: get, Path: "/sandboxes/*/exec/*", Rewrite: status("queued")}, ""},
		"timeout":             {servicetest.Fault{Method: get, Path: "/sandboxes/*/exec/*", Skip: 3, Rewrite: status("timeout")}, sandbox.CodeUnavailable},
		"another word":        {servicetest.Fault{Method: get, Path: "/sandboxes/*/exec/*", Skip: 3, Rewrite: status("evaporated")}, sandbox.CodeUnavailable},
		"result is gone":      {servicetest.Fault{Method: get, Path: "/sandboxes/*/exec/*", Status: 404, Body: `{"code":"COMMAND_NOT_FOUND","message":"no"}`}, sandbox.CodeNotFound},
		"command not started": {servicetest.Fault{Method: post, Path: "/sandboxes/*/exec", Status: 502}, sandbox.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			w.Faults.Clear()
			if tt.fault.Times = 1; tt.fault.Skip > 0 {
				tt.fault.Skip, tt.fault.Times = 0, 0
			}
			w.Faults.Add(tt.fault)
			u, err := meter.Usage(t.Context())
			if got := p.ErrorCode(err); got != tt.want || err == nil && u.Memory <= 0 {
				t.Errorf("code %q, want %q: %+v, %v", got, tt.want, u, err)
			}
		})
	}
}

// The connection with the guest breaks, and is made again.
func TestLinkFaults(t *testing.T) {
	w := serve(t)
	p := w.open(t, t.TempDir())
	in := w.make(t, p, spec("sb-link"))
	for name, f := range map[string]servicetest.Fault{
		"input refused":  {Status: 500, Body: `{"code":"EXEC_FAILED","message":"no"}`},
		"input lost":     {Truncate: 5},
		"input no exit":  {Status: 200, Body: "event: stdout\ndata: x\n\n"},
		"input error":    {Status: 200, Body: "event: error\ndata: the machine is busy\n\n"},
		"expired token":  {Before: w.Expire},
		"too many calls": servicetest.TooMany("", "", time.Second, 1),
	} {
		w.Faults.Clear()
		f.Method, f.Path, f.Times = http.MethodPost, "/sandboxes/*/exec/stream", 1
		w.Faults.Add(f)
		deadline := time.Now().Add(30 * time.Second)
		for {
			out, err := servicetest.Run(t.Context(), in, sandbox.Command{Args: []string{"echo", "alive"}}, 100)
			if err == nil && string(out.Stdout) == "alive\n" {
				break
			}
			if p.ErrorCode(err) == sandbox.CodeGone || time.Now().After(deadline) {
				t.Fatalf("%s: %+v, %v", name, out, err)
			}
		}
	}
}

// Long input goes in files, and comes out as it went in.
func TestLongInput(t *testing.T) {
	w := serve(t)
	p := w.open(t, t.TempDir())
	in := w.make(t, p, spec("sb-input"))
	fs, err := servicetest.Files(in)
	if err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte("all\x00of\xffit\r\n"), 100_000)
	before := w.Faults.Requests(http.MethodPost, "/sandboxes/*/files")
	if _, err := fs.Write(t.Context(), "/tmp/long", bytes.NewReader(data), driver.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := hostedtest.Says(t, in, "wc -c </tmp/long; ls /var/lib/atoll/in | wc -l"); strings.Join(strings.Fields(got), " ") != "1100000 0" {
		t.Errorf("it says %q", got)
	}
	if n := w.Faults.Requests(http.MethodPost, "/sandboxes/*/files"); n == before {
		t.Error("no file was uploaded")
	}
	w.Faults.Add(servicetest.Fault{Method: http.MethodPost, Path: "/sandboxes/*/files", Times: 1, Status: 503})
	if _, err := fs.Write(t.Context(), "/tmp/long", bytes.NewReader(data), driver.WriteOptions{}); p.ErrorCode(err) != sandbox.CodeUnavailable {
		t.Errorf("Write: %v, want unavailable", err)
	}
	if got := hostedtest.Says(t, in, "echo alive"); got != "alive\n" {
		t.Errorf("it says %q", got)
	}
}

// change has another client pause, stop or resume a sandbox.
func (w *world) change(t *testing.T, what string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func(path, token, body string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	res := ask("/auth/token", "", `{"access_key":"`+service.Key+`"}`)
	defer res.Body.Close()
	var token bytes.Buffer
	if _, err := token.ReadFrom(res.Body); err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(token.String(), `"session_token":"`)
	text, _, _ := strings.Cut(rest, `"`)
	res = ask("/sandboxes/"+w.Names()[0]+"/"+what, text, "")
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", what, res.Status)
	}
}

// TestPaused has another client pause and stop a sandbox, and resumes it while
// that still goes on, twice at once. It keeps its name, and no other is made.
func TestPaused(t *testing.T) {
	w := serve(t)
	p := w.open(t, t.TempDir())
	s := spec("sb-paused")
	s.Env, s.Workdir = map[string]string{"FROM": "spec"}, "/srv"
	in := w.make(t, p, s)
	other, err := p.Attach(t.Context(), in.ID())
	if err != nil {
		t.Fatal(err)
	}
	const runs = "pgrep -f 'slee[p] 1000' >/dev/null && echo runs || echo none"
	for _, slow := range []time.Duration{0, 200 * time.Millisecond} {
		for _, what := range []string{"pause", "stop"} {
			w.Transitions(0)
			hostedtest.Says(t, in, "echo kept >/tmp/kept; sleep 1000 >/dev/null 2>&1 &")
			w.Transitions(slow)
			w.change(t, what)
			if got, err := p.State(t.Context(), in.ID()); err != nil || got != sandbox.Paused {
				t.Errorf("%s: the sandbox is %q, %v", what, got, err)
			}
			if slow == 0 {
				if _, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"true"}}); p.ErrorCode(err) != sandbox.CodeConflict {
					t.Errorf("%s: a command in a sandbox that stands still: %v, want conflict", what, err)
				}
				if _, err := p.Create(t.Context(), spec(in.ID())); p.ErrorCode(err) != sandbox.CodeAlreadyExists {
					t.Errorf("%s: Create: %v, want already exists", what, err)
				}
			}
			done := make(chan error, 2)
			for _, one := range []driver.Instance{in, other} {
				r, _ := driver.As[driver.Resumer](one)
				go func() { done <- r.Resume(t.Context()) }()
			}
			for range 2 {
				if err := <-done; err != nil {
					t.Errorf("%s: Resume: %v", what, err)
				}
			}
			want := map[string]string{"pause": "kept spec /srv runs\n", "stop": "kept spec /srv none\n"}[what]
			for _, one := range []driver.Instance{in, other} {
				if got := hostedtest.Says(t, one, "echo $(cat /tmp/kept) $FROM $(pwd) $("+runs+")"); got != want {
					t.Errorf("%s: after it was resumed: %q, want %q", what, got, want)
				}
			}
		}
	}
	if n := w.Faults.Requests(http.MethodPost, "/sandboxes"); n != 1 {
		t.Errorf("%d sandboxes were asked for", n)
	}
}

// TestStatuses tries every status that the service may say. None of them makes
// another sandbox.
func TestStatuses(t *testing.T) {
	w := serve(t)
	p := w.open(t, t.TempDir())
	in := w.make(t, p, spec("sb-statuses"))
	name := w.Names()[0]
	r, _ := driver.As[driver.Resumer](in)
	for _, tt := range []struct {
		status       string
		state        sandbox.State
		code, resume sandbox.Code
	}{
		{service.Running, sandbox.Running, "", ""},
		{service.Starting, sandbox.Running, "", ""},
		{service.Resuming, sandbox.Running, "", ""},
		{service.Paused, sandbox.Paused, "", ""},
		{service.Pausing, sandbox.Paused, "", ""},
		{service.Stopped, sandbox.Paused, "", ""},
		{service.Stopping, sandbox.Paused, "", ""},
		{service.Failed, "", sandbox.CodeConflict, sandbox.CodeConflict},
		{"error", "", sandbox.CodeConflict, sandbox.CodeConflict},
		{"hibernating", "", sandbox.CodeUnavailable, sandbox.CodeUnavailable},
	} {
		t.Run(tt.status, func(t *testing.T) {
			w.Faults.Clear()
			w.Force(name, tt.status)
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
			// After a few looks it runs again.
			w.Faults.Clear()
			w.Faults.Add(servicetest.Fault{Method: http.MethodGet, Path: "/sandboxes/*", Skip: 3, Before: func() { w.Force(name, "") }})
			if err := r.Resume(t.Context()); p.ErrorCode(err) != tt.resume {
				t.Errorf("Resume: %v, want code %q", err, tt.resume)
			}
		})
	}
	w.Faults.Clear()
	w.Force(name, service.Deleted)
	if _, err := p.Attach(t.Context(), in.ID()); p.ErrorCode(err) != sandbox.CodeGone {
		t.Errorf("Attach to a deleted sandbox: %v, want gone", err)
	}
	if n := len(w.Names()); n != 1 {
		t.Errorf("there are %d sandboxes, want 1", n)
	}
}

// A snapshot whose answer is lost is not taken twice, and nothing is left of one
// that fails.
func TestSnapshotFaults(t *testing.T) {
	w := serve(t)
	p := w.open(t, t.TempDir())
	in := w.make(t, p, spec("sb-snapshots"))
	shot, _ := driver.As[driver.Snapshotter](in)
	for name, tt := range map[string]struct {
		fault servicetest.Fault
		good  bool
	}{
		"lost":      {servicetest.Fault{Method: http.MethodPost, Path: "/snapshots/", Times: 1, Lose: true}, true},
		"truncated": {servicetest.Fault{Method: http.MethodPost, Path: "/snapshots/", Times: 1, Truncate: 5}, true},
		"slow": {servicetest.Fault{Method: http.MethodGet, Path: "/snapshots/*", Skip: 1, Times: 2, Rewrite: func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"ready"`), []byte(`"saving"`), 1)
		}}, true},
		"fails": {servicetest.Fault{Method: http.MethodGet, Path: "/snapshots/*", Rewrite: func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"ready"`), []byte(`"failed"`), 1)
		}}, false},
		"refused": {servicetest.Fault{Method: http.MethodPost, Path: "/snapshots/", Status: 409, Body: conflict}, false},
		"5xx":     {servicetest.Fault{Method: http.MethodPost, Path: "/snapshots/", Status: 503}, false},
	} {
		w.Faults.Clear()
		w.Faults.Add(tt.fault)
		saved, err := shot.Snapshot(t.Context(), driver.SnapshotOptions{ID: "sn-faults"})
		if (err == nil) != tt.good || tt.good != (w.Snapshots() == 1) {
			t.Errorf("%s: Snapshot: %v; there are %d", name, err, w.Snapshots())
		}
		if err == nil {
			if err := p.RemoveSnapshot(t.Context(), saved.Ref); err != nil {
				t.Errorf("%s: RemoveSnapshot: %v", name, err)
			}
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
		for _, path := range []string{"/auth/token", "/sandboxes*"} {
			w.Faults.Clear()
			w.Expire()
			w.Faults.Add(servicetest.Fault{
				Path: path, Status: status, Header: http.Header{"Location": {"http://127.0.0.1:1/"}}, Body: `{"code":"X","message":"the key ` + service.Key + ` is wrong"}`,
			})
			facts, err := p.Probe(t.Context())
			if err != nil || facts.Available {
				t.Errorf("status %d of %s: Probe: %+v, %v", status, path, facts, err)
			}
			for _, f := range facts.Findings {
				if strings.Contains(f.Message, service.Key) {
					t.Errorf("status %d of %s: %s", status, path, f.Message)
				}
			}
			if path != "/auth/token" {
				continue
			}
			_, err = p.Attach(t.Context(), "sb-refused")
			if got := p.ErrorCode(err); got != want || strings.Contains(err.Error(), service.Key) {
				t.Errorf("status %d: code %q, want %q: %v", status, got, want, err)
			}
		}
	}
}
