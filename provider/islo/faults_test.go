package islo_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	service "github.com/atoll-run/atoll/internal/testing/servicetest/islo"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/islo"
	"github.com/atoll-run/atoll/sandbox"
)

// make makes a sandbox that is destroyed with the test.
func (w *world) make(t *testing.T, p *islo.Provider, s *sandbox.Spec) driver.Instance {
	t.Helper()
	return w.faulty(p, nil).Make(t, s)
}

// faulty is the service for the tests shared by all services. Each sandbox also
// has a gateway profile.
func (w *world) faulty(p, again *islo.Provider) *hostedtest.Faulty {
	return &hostedtest.Faulty{
		Faults: &w.Faults, Provider: p, Again: again, Sandboxes: "/sandboxes", Sandbox: "/sandboxes/*", Key: service.Key, Looks: 1,
		NotFound: notFound, Invalid: refused, Busy: conflict, Nothing: `{"items":[],"total":0}`,
		Other: hostedtest.Replace(`"name":"`, `"name":"other-`), Spec: bounded,
		Count: func() (int, int) { return len(w.Names()), len(w.Profiles()) },
		Force: w.Force,
	}
}

// bounded is the spec of a sandbox with its own gateway profile.
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

// failures are faults at each step of making a gateway profile and a sandbox.
// After each, neither exists.
func failures() map[string]hostedtest.CreateFault {
	const post, get, del, profiles = http.MethodPost, http.MethodGet, http.MethodDelete, "/gateway/profiles"
	const unavailable, invalid = sandbox.CodeUnavailable, sandbox.CodeInvalid
	all := map[string]hostedtest.CreateFault{}
	add := func(name string, want sandbox.Code, posts int, f servicetest.Fault) {
		all[name] = hostedtest.CreateFault{Fault: f, Want: want, Posts: posts}
	}
	at := hostedtest.At
	always := func(method, path string, f servicetest.Fault) servicetest.Fault {
		f.Method, f.Path = method, path
		return f
	}
	add("profile refused", sandbox.CodeDenied, 0, at(post, profiles, servicetest.Fault{Status: 403, Body: `{"code":"ACCESS_DENIED","message":"no"}`}))
	add("profile lost", unavailable, 0, at(post, profiles, servicetest.Fault{Lose: true}))
	add("profile truncated", unavailable, 0, at(post, profiles, servicetest.Fault{Truncate: 10}))
	add("profile 5xx", unavailable, 0, at(post, profiles, servicetest.Fault{Status: 500}))
	add("another profile", unavailable, 0, at(post, profiles, servicetest.Fault{Rewrite: hostedtest.Replace(`"name":"`, `"name":"other-`)}))
	add("first rule refused", invalid, 0, at(post, profiles+"/*/rules", servicetest.Fault{Status: 400, Body: refused}))
	add("second rule refused", invalid, 0, at(post, profiles+"/*/rules", servicetest.Fault{Skip: 1, Status: 400, Body: refused}))
	add("rule lost", unavailable, 0, at(post, profiles+"/*/rules", servicetest.Fault{Lose: true}))
	add("rule 5xx", unavailable, 0, at(post, profiles+"/*/rules", servicetest.Fault{Skip: 1, Status: 502}))
	add("profile not confirmed", sandbox.CodeNotFound, 0, at(get, profiles+"/*", servicetest.Fault{Status: 404, Body: `{"code":"NOT_FOUND","message":"no"}`}))
	add("profile not as asked", unavailable, 0, at(get, profiles+"/*", servicetest.Fault{Rewrite: hostedtest.Replace(`"methods":["POST"]`, `"methods":["PUT"]`)}))
	add("sandbox refused", invalid, 1, at(post, "/sandboxes", servicetest.Fault{Status: 400, Body: `{"code":"INVALID_REQUEST","message":"gateway profile not found"}`}))
	add("sandbox 5xx", unavailable, 1, at(post, "/sandboxes", servicetest.Fault{Status: 503}))
	add("no credit", unavailable, 1, at(post, "/sandboxes", servicetest.Fault{Status: 402, Body: `{"code":"BILLING_NOT_ALLOWED","message":"no"}`}))
	add("smaller", unavailable, 1, always(get, "/sandboxes/*", servicetest.Fault{Rewrite: hostedtest.Replace(`"memory_mb":`, `"memory_mb":1`)}))
	add("failed", sandbox.CodeConflict, 1, always(get, "/sandboxes/*", servicetest.Fault{Rewrite: hostedtest.Replace(`"status":"running"`, `"status":"failed"`)}))
	add("guest not taken", invalid, 1, always(post, "/sandboxes/*/files", servicetest.Fault{Status: 400, Body: refused}))
	add("no commands", unavailable, 1, always(post, "/sandboxes/*/exec/stream", servicetest.Fault{Status: 500, Body: `{"code":"EXEC_FAILED","message":"no"}`}))
	return all
}

func TestCreateFaults(t *testing.T) {
	w := serve(t)
	f := w.faulty(w.Open(t, t.TempDir()), nil)
	f.Spec = sized
	more := failures()
	more["expired token"] = hostedtest.CreateFault{Fault: hostedtest.At(http.MethodPost, "/sandboxes", servicetest.Fault{Before: w.Expire}), Posts: 2}
	more["rule: too many requests"] = hostedtest.CreateFault{Fault: servicetest.TooMany(http.MethodPost, "/gateway/profiles/*/rules", time.Second, 1), Posts: 1}
	f.Create(t, more)
}

// sized is a spec with a size that the service must confirm.
func sized(id sandbox.ID) *sandbox.Spec {
	s := bounded(id)
	s.Resources.Memory = 512 << 20
	return s
}

// TestCompensation makes every step fail, and then also the requests that undo
// earlier steps. The next List removes what is left.
func TestCompensation(t *testing.T) {
	w, dir := serve(t), t.TempDir()
	p, other := w.Open(t, dir), w.Open(t, dir)
	for name, tt := range failures() {
		for _, path := range []string{"/gateway/profiles/*", "/sandboxes/*"} {
			w.Faults.Clear()
			w.Faults.Add(tt.Fault, servicetest.Fault{Method: http.MethodDelete, Path: path, Status: 500})
			if _, err := p.Create(t.Context(), sized("sb-undone")); err == nil {
				t.Errorf("%s: the sandbox was created", name)
			}
			w.Faults.Clear()
			for found, err := range other.List(t.Context()) {
				t.Errorf("%s, then DELETE %s: List: %+v, %v", name, path, found, err)
			}
			w.Empty(t)
			if t.Failed() {
				t.Fatalf("after %s, then DELETE %s", name, path)
			}
		}
	}
}

func TestCreateGivenUp(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).GivenUp(t, "/gateway/profiles", "/gateway/profiles/*/rules", "/sandboxes", "/sandboxes/*/exec")
}

func TestLate(t *testing.T) {
	w, dir := serve(t), t.TempDir()
	w.faulty(w.Open(t, dir), w.Open(t, dir)).Late(t)
}

// The next List finds what could not be removed at once: the profile of a
// sandbox that was not made, and of one that the service ended.
func TestTidy(t *testing.T) {
	w, dir := serve(t), t.TempDir()
	p := w.Open(t, dir)
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
		for f, err := range w.Open(t, dir).List(t.Context()) {
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
	if err := w.End(t.Context(), w.Names()[0]); err != nil || len(w.Profiles()) != 1 {
		t.Fatalf("the service ends it: %v, profiles %v", err, w.Profiles())
	}
	look()
	if err := in.Destroy(t.Context()); err != nil {
		t.Errorf("Destroy of what the service has ended: %v", err)
	}
}

// A profile that cannot be removed at first is removed later.
func TestDestroyFaults(t *testing.T) {
	w := serve(t)
	p := w.Open(t, t.TempDir())
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

// A missing file does not mean a missing sandbox.
func TestFalse404(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).False404(t, "/sandboxes/*", `{"code":"FILE_NOT_FOUND","message":"no such file"}`)
}

// Tokens expire at any time, and results may be late.
func TestCommandFaults(t *testing.T) {
	w := serve(t)
	p := w.Open(t, t.TempDir())
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

// The connection to the guest breaks and is restored.
func TestLinkFaults(t *testing.T) {
	w := serve(t)
	p := w.Open(t, t.TempDir())
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

// Long input goes through files and arrives unchanged.
func TestLongInput(t *testing.T) {
	w := serve(t)
	p := w.Open(t, t.TempDir())
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

// change pauses, stops or resumes a sandbox as another client.
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

// TestPaused pauses and stops a sandbox as another client, and resumes it
// meanwhile, twice at once. The sandbox keeps its name, and no other is made.
func TestPaused(t *testing.T) {
	w := serve(t)
	p := w.Open(t, t.TempDir())
	s := spec("sb-paused")
	s.Env, s.Workdir = map[string]string{"FROM": "spec"}, "/srv"
	in := w.make(t, p, s)
	other, err := p.Attach(t.Context(), in.ID())
	if err != nil {
		t.Fatal(err)
	}
	const runs = "kill -0 $(cat /tmp/pid) 2>/dev/null && echo runs || echo none"
	for _, slow := range []time.Duration{0, 200 * time.Millisecond} {
		for _, what := range []string{"pause", "stop"} {
			w.Transitions(0)
			hostedtest.Says(t, in, "echo kept >/tmp/kept; sleep 1000 >/dev/null 2>&1 & echo $! >/tmp/pid")
			w.Transitions(slow)
			w.change(t, what)
			if got, err := p.State(t.Context(), in.ID()); err != nil || got != sandbox.Paused {
				t.Errorf("%s: the sandbox is %q, %v", what, got, err)
			}
			if slow == 0 {
				if _, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"true"}}); p.ErrorCode(err) != sandbox.CodeConflict {
					t.Errorf("%s: a command in a stopped sandbox: %v, want conflict", what, err)
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
		t.Errorf("%d sandboxes were requested", n)
	}
}

func TestStatuses(t *testing.T) {
	w := serve(t)
	w.faulty(w.Open(t, t.TempDir()), nil).Statuses(t, map[string]hostedtest.Meaning{
		service.Running:  {State: sandbox.Running},
		service.Starting: {State: sandbox.Running},
		service.Resuming: {State: sandbox.Running},
		service.Paused:   {State: sandbox.Paused},
		service.Pausing:  {State: sandbox.Paused},
		service.Stopped:  {State: sandbox.Paused},
		service.Stopping: {State: sandbox.Paused},
		service.Failed:   {State: sandbox.Failed, Resume: sandbox.CodeConflict},
		"error":          {State: sandbox.Failed, Resume: sandbox.CodeConflict},
	}, service.Deleted)
}

// If the answer is lost, the snapshot is not taken twice. Nothing is left of a
// failed snapshot.
func TestSnapshotFaults(t *testing.T) {
	w := serve(t)
	p := w.Open(t, t.TempDir())
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
		if (err == nil) != tt.good || tt.good != (len(w.snapshots()) == 1) {
			t.Errorf("%s: Snapshot: %v; there are %d", name, err, len(w.snapshots()))
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

func TestRefusals(t *testing.T) {
	for _, path := range []string{"/auth/token", "/sandboxes*"} {
		w := serve(t)
		body := func(text string) string { return `{"code":"X","message":"` + text + `"}` }
		w.faulty(w.Open(t, t.TempDir()), nil).Refusals(t, path, body, path == "/auth/token")
	}
}
