package boxlite_test

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	service "github.com/atoll-run/atoll/internal/servicetest/boxlite"
	"github.com/atoll-run/atoll/provider/boxlite"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/sandbox"
)

func spec(id sandbox.ID) *sandbox.Spec { return &sandbox.Spec{ID: id, Name: string(id), Image: "host"} }

// make makes a sandbox that is destroyed with the test.
func (w *world) make(t *testing.T, p *boxlite.Provider, s *sandbox.Spec) driver.Instance {
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

// stopped has another client of the server stop a box.
func (w *world) stopped(t *testing.T, id string) {
	t.Helper()
	if err := w.Stop(context.WithoutCancel(t.Context()), id); err != nil {
		t.Fatal(err)
	}
}

func resume(t *testing.T, in driver.Instance) error {
	t.Helper()
	r, ok := driver.As[driver.Resumer](in)
	if !ok {
		t.Fatal("no driver.Resumer")
	}
	return r.Resume(t.Context())
}

const (
	boxesPath = "/v1/" + service.Prefix + "/boxes"
	boxPath   = boxesPath + "/*"
	notFound  = `{"error":{"code":"not_found","type":"NotFoundError","message":"box not found"}}`
	invalid   = `{"error":{"code":"invalid_argument","type":"InvalidArgumentError","message":"no"}}`
	busy      = `{"error":{"code":"invalid_state","type":"InvalidStateError","message":"box is stopping"}}`
)

// swap has an answer say something else.
func swap(from, to string) func([]byte) []byte {
	return func(body []byte) []byte { return bytes.Replace(body, []byte(from), []byte(to), 1) }
}

// Whatever happens to the requests that make a sandbox, there is one or none, and
// it is asked for once unless the server refused it.
func TestCreateFaults(t *testing.T) {
	w := serve(t)
	p := w.open(t)
	fault := func(method, path string, f servicetest.Fault) servicetest.Fault {
		f.Method, f.Path, f.Times = method, path, 1
		return f
	}
	post := func(f servicetest.Fault) servicetest.Fault { return fault(http.MethodPost, boxesPath, f) }
	start := func(f servicetest.Fault) servicetest.Fault { return fault(http.MethodPost, boxPath+"/start", f) }
	// The first GET asks whether there is such a box already.
	get := func(f servicetest.Fault) servicetest.Fault { f.Skip = 1; return fault(http.MethodGet, boxPath, f) }
	for name, tt := range map[string]struct {
		fault servicetest.Fault
		want  sandbox.Code // empty: it is made
		posts int
	}{
		"lost answer":           {post(servicetest.Fault{Lose: true}), "", 2}, // net/http repeats what has an idempotency key
		"5xx after it acted":    {post(servicetest.Fault{Status: 502, Act: true}), "", 1},
		"truncated answer":      {post(servicetest.Fault{Truncate: 40}), "", 1},
		"another id":            {post(servicetest.Fault{Rewrite: swap(`"box_id":"`, `"box_id":"0`)}), "", 1},
		"another name":          {post(servicetest.Fault{Rewrite: swap(`"name":"`, `"name":"0`)}), "", 1},
		"false 404":             {get(servicetest.Fault{Status: 404, Body: notFound}), "", 1},
		"slow":                  {post(servicetest.Fault{Delay: 300 * time.Millisecond}), "", 1},
		"too many requests":     {servicetest.TooMany(http.MethodPost, boxesPath, time.Second, 1), "", 2},
		"start: lost answer":    {start(servicetest.Fault{Lose: true}), "", 1},
		"start: 503":            {start(servicetest.Fault{Status: 503}), "", 1},
		"start: 409":            {start(servicetest.Fault{Status: 409, Body: busy}), "", 1},
		"start: refused":        {start(servicetest.Fault{Status: 400, Body: invalid}), sandbox.CodeInvalid, 1},
		"exec: lost answer":     {fault(http.MethodPost, boxPath+"/exec", servicetest.Fault{Lose: true}), sandbox.CodeUnavailable, 1},
		"upload is refused":     {fault(http.MethodPut, boxPath+"/files", servicetest.Fault{Status: 400, Body: invalid}), "", 1},
		"5xx":                   {post(servicetest.Fault{Status: 503}), sandbox.CodeUnavailable, 1},
		"refused":               {post(servicetest.Fault{Status: 400, Body: invalid}), sandbox.CodeInvalid, 1},
		"no size":               {get(servicetest.Fault{Rewrite: swap(`"memory_mib":256`, `"memory_mib":512`)}), sandbox.CodeUnavailable, 1},
		"no lifetime":           {get(servicetest.Fault{Rewrite: swap(`"auto_stop":3600`, `"auto_stop":900`)}), sandbox.CodeUnavailable, 1},
		"an image that is none": {servicetest.Fault{Path: "/none"}, sandbox.CodeInvalid, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w.Faults.Clear()
			w.Faults.Add(tt.fault)
			s := spec("sb-create")
			s.Resources.Memory, s.Lifetime.Timeout = 256<<20, time.Hour
			if tt.fault.Path == "/none" {
				s.Image = "no/such:image"
			}
			in, err := p.Create(t.Context(), s)
			if got := p.ErrorCode(err); got != tt.want || (err == nil) != (tt.want == "") {
				t.Errorf("code %q, want %q: %v", got, tt.want, err)
			}
			if n := w.Faults.Requests(http.MethodPost, boxesPath); n != tt.posts {
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
				t.Errorf("there are %d boxes, want %d", n, want)
			}
			if in != nil {
				if err := in.Destroy(t.Context()); err != nil || len(w.IDs()) > 0 {
					t.Errorf("Destroy: %v, %d are left", err, len(w.IDs()))
				}
			}
		})
	}
}

// A caller that gives up while the server is slow leaves nothing.
func TestCreateGivenUp(t *testing.T) {
	w := serve(t)
	p := w.open(t)
	for _, path := range []string{boxesPath, boxPath + "/start", boxPath + "/exec"} {
		ctx, cancel := context.WithCancel(t.Context())
		w.Faults.Clear()
		w.Faults.Add(servicetest.Fault{Method: http.MethodPost, Path: path, Before: cancel, Delay: 100 * time.Millisecond})
		if _, err := p.Create(ctx, spec("sb-given-up")); p.ErrorCode(err) != sandbox.CodeCanceled {
			t.Errorf("Create: %v, want canceled", err)
		}
		if n := len(w.IDs()); n != 0 {
			t.Errorf("%s: %d boxes are left", path, n)
		}
		cancel()
	}
}

// An answer that a box does not exist is no evidence while the server lists it.
func TestFalse404(t *testing.T) {
	w := serve(t)
	p := w.open(t)
	in := w.make(t, p, spec("sb-false"))
	w.Faults.Add(
		servicetest.Fault{Method: http.MethodGet, Path: boxPath, Status: 404, Body: notFound},
		servicetest.Fault{Method: http.MethodDelete, Path: boxPath, Status: 404, Body: notFound},
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
	w.Faults.Add(servicetest.Fault{Method: http.MethodGet, Path: boxPath, Status: 404, Body: "<html>not found</html>"})
	if _, err := p.Attach(t.Context(), in.ID()); p.ErrorCode(err) != sandbox.CodeUnavailable {
		t.Errorf("Attach: %v, want unavailable", err)
	}
}

// A box whose state changes refuses to be removed for a moment.
func TestTemporaryConflict(t *testing.T) {
	w := serve(t)
	p := w.open(t)
	in := w.make(t, p, spec("sb-conflict"))
	w.Faults.Add(servicetest.Fault{Method: http.MethodDelete, Path: boxPath, Times: 3, Status: 409, Body: busy})
	if err := in.Destroy(t.Context()); err != nil || len(w.IDs()) > 0 {
		t.Errorf("Destroy: %v, %d are left", err, len(w.IDs()))
	}
}

// A key that expires is read again from where it comes, in the middle of
// everything, and the sandboxes stay ours.
func TestExpiredKey(t *testing.T) {
	const next = "blk_live_next"
	w := serve(t)
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(service.Key), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*boxlite.Options){
		"file":    func(o *boxlite.Options) { o.APIKey, o.APIKeyFile = "", file },
		"command": func(o *boxlite.Options) { o.APIKey, o.APIKeyCommand = "", "cat "+file },
	} {
		t.Run(name, func(t *testing.T) {
			w.AddKey(service.Key, service.Prefix)
			if err := os.WriteFile(file, []byte(service.Key), 0o600); err != nil {
				t.Fatal(err)
			}
			p := w.open(t, change)
			in := w.make(t, p, spec("sb-key"))
			before, _ := p.Binding(t.Context())
			w.AddKey(next, service.Prefix)
			w.RevokeKey(service.Key)
			if _, err := p.Attach(t.Context(), in.ID()); p.ErrorCode(err) != sandbox.CodeUnauthorized || strings.Contains(err.Error(), service.Key) {
				t.Errorf("Attach with a key that expired: %v, want unauthorized", err)
			}
			if err := os.WriteFile(file, []byte(next+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			meter, _ := driver.As[driver.Meter](in)
			if u, err := meter.Usage(t.Context()); err != nil || u.Memory <= 0 {
				t.Errorf("Usage: %+v, %v", u, err)
			}
			if after, _ := p.Binding(t.Context()); after != before {
				t.Errorf("the binding was %q and is %q", before, after)
			}
			// A key of another account is no evidence that the sandbox is gone.
			w.AddKey("blk_live_other", "other")
			w.RevokeKey(next)
			if err := os.WriteFile(file, []byte("blk_live_other"), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Attach(t.Context(), in.ID()); p.ErrorCode(err) != sandbox.CodeUnauthorized && p.ErrorCode(err) != sandbox.CodeDenied {
				t.Errorf("Attach with a key of another account: %v, want unauthorized", err)
			}
			if _, err := p.Attach(t.Context(), in.ID()); p.ErrorCode(err) != sandbox.CodeUnauthorized {
				t.Errorf("Attach with a key of another account: %v, want unauthorized", err)
			}
			w.RevokeKey("blk_live_other") // and it is ours again
			w.AddKey(next, service.Prefix)
			if err := os.WriteFile(file, []byte(next), 0o600); err != nil {
				t.Fatal(err)
			}
			// The first request is refused with the wrong path, and then it is known.
			_, _ = p.Attach(t.Context(), in.ID())
			if _, err := p.Attach(t.Context(), in.ID()); err != nil {
				t.Errorf("Attach with a key of the account again: %v", err)
			}
		})
	}
}

// TestResume stops a box behind our back. Resume starts that very box: its files
// are there, the environment reaches every command again, and there is no other
// box. It does the same for whoever attaches.
func TestResume(t *testing.T) {
	w := serve(t)
	w.Transitions(100 * time.Millisecond)
	p := w.open(t)
	s := spec("sb-resume")
	s.Env = map[string]string{"GREETING": "hello"}
	in := w.make(t, p, s)
	id := w.IDs()[0]
	const script = `echo $GREETING; cat /root/kept`
	hostedtest.Says(t, in, "echo kept >/root/kept; sleep 1000 >/dev/null 2>&1 &")
	w.stopped(t, id)
	if got, err := p.State(t.Context(), in.ID()); err != nil || got != sandbox.Paused {
		t.Errorf("a stopped box is %q, %v", got, err)
	}
	if _, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"true"}}); p.ErrorCode(err) != sandbox.CodeConflict {
		t.Errorf("a command in a stopped box: %v, want conflict", err)
	}
	other, err := p.Attach(t.Context(), in.ID())
	if err != nil {
		t.Fatal(err)
	}
	if n := w.Faults.Requests(http.MethodPost, boxPath+"/start"); n != 1 {
		t.Errorf("it was started %d times before it was resumed, want 1", n)
	}
	done := make(chan error, 2)
	for _, one := range []driver.Instance{in, other} {
		go func() { done <- resume(t, one) }()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Errorf("Resume: %v", err)
		}
	}
	for _, one := range []driver.Instance{in, other} {
		if got := hostedtest.Says(t, one, script); got != "hello\nkept\n" {
			t.Errorf("after it was resumed it says %q", got)
		}
	}
	// Another client of the server has it stopped and started: the environment is
	// there all the same.
	w.stopped(t, id)
	w.Faults.Add(servicetest.Fault{Method: http.MethodPost, Path: boxPath + "/start", Times: 1, Lose: true})
	if err := resume(t, in); err != nil {
		t.Errorf("Resume with a lost answer: %v", err)
	}
	if got := hostedtest.Says(t, in, script); got != "hello\nkept\n" {
		t.Errorf("after it was resumed again it says %q", got)
	}
	if ids := w.IDs(); len(ids) != 1 || ids[0] != id {
		t.Errorf("there are the boxes %v, want %s alone", ids, id)
	}
}

// TestStatuses tries every status that the server may say. None of them makes
// another box.
func TestStatuses(t *testing.T) {
	w := serve(t)
	p := w.open(t)
	in := w.make(t, p, spec("sb-statuses"))
	id := w.IDs()[0]
	for status, tt := range map[string]struct {
		state        sandbox.State
		code, resume sandbox.Code
	}{
		service.Running:    {sandbox.Running, "", ""},
		service.Configured: {sandbox.Paused, "", ""},
		service.Stopping:   {sandbox.Paused, "", ""},
		service.Stopped:    {sandbox.Paused, "", ""},
		service.Paused:     {sandbox.Paused, "", ""},
		service.Failed:     {"", sandbox.CodeConflict, sandbox.CodeConflict},
		service.Unknown:    {"", sandbox.CodeUnavailable, sandbox.CodeUnavailable},
		"hibernating":      {"", sandbox.CodeUnavailable, sandbox.CodeUnavailable},
	} {
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
			// After a few looks it runs again.
			w.Faults.Add(servicetest.Fault{Method: http.MethodGet, Path: boxPath, Skip: 2, Before: func() { w.Force(id, "") }})
			if err := resume(t, in); p.ErrorCode(err) != tt.resume {
				t.Errorf("Resume: %v, want code %q", err, tt.resume)
			}
		})
	}
	if n := len(w.IDs()); n != 1 {
		t.Errorf("there are %d boxes, want 1", n)
	}
}

// Archives of ours are blocked by no rule for paths: not by mounts in the way of
// the guest, and not by those for the workspace.
func TestOwnArchives(t *testing.T) {
	w := serve(t)
	if _, err := http.DefaultClient.Do(w.request(t, http.MethodPost, "/v1/acme/volumes", `{"name":"state"}`)); err != nil {
		t.Fatal(err)
	}
	// The volume is where the guest belongs.
	p := w.open(t, func(o *boxlite.Options) { o.Volumes = map[string]string{"/var/lib/atoll": "state"} })
	in := w.make(t, p, spec("sb-archives"))
	a, ok := driver.As[driver.Archiver](in)
	if !ok {
		t.Fatal("no driver.Archiver")
	}
	hostedtest.Says(t, in, "mkdir -p /srv/a /var/lib/atoll/b && echo one >/srv/a/file && echo two >/var/lib/atoll/b/file")
	for _, dir := range []string{"/srv/a", "/var/lib/atoll/b"} {
		var packed bytes.Buffer
		if err := a.Export(t.Context(), dir, &packed, driver.ExportOptions{}); err != nil {
			t.Errorf("Export of %s: %v", dir, err)
		}
		if err := a.Import(t.Context(), dir+"-copy", &packed, driver.ImportOptions{}); err != nil {
			t.Errorf("Import of %s: %v", dir, err)
		}
	}
	if got := hostedtest.Says(t, in, "cat /srv/a-copy/a/file /var/lib/atoll/b-copy/b/file"); got != "one\ntwo\n" {
		t.Errorf("the copies say %q", got)
	}
	if n := w.Faults.Requests(http.MethodPut, boxPath+"/files"); n != 1 {
		t.Errorf("%d archives were tried, want 1", n)
	}
}

// request is one that is made past the provider.
func (w *world) request(t *testing.T, method, path, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+service.Key)
	r.Close = true
	return r
}

// Keys appear in no error, whatever the server repeats.
func TestRefusals(t *testing.T) {
	w := serve(t)
	p := w.open(t)
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

// A snapshot is one box or none, and the sandbox goes on if there is none. One
// that runs is not stopped unless that is wanted.
func TestSnapshotFaults(t *testing.T) {
	w := serve(t)
	p := w.open(t)
	const clone, stop, size = boxPath + "/clone", boxPath + "/stop", boxPath + "/snapshots"
	once := func(path string, f servicetest.Fault) servicetest.Fault {
		f.Method, f.Path, f.Times = http.MethodPost, path, 1
		return f
	}
	for name, tt := range map[string]struct {
		fault servicetest.Fault
		want  sandbox.Code // empty: it is saved
	}{
		"stop: lost answer":   {once(stop, servicetest.Fault{Lose: true}), ""},
		"stop: 409":           {once(stop, servicetest.Fault{Status: 409, Body: busy}), ""},
		"stop: refused":       {once(stop, servicetest.Fault{Status: 400, Body: invalid}), sandbox.CodeInvalid},
		"clone: lost answer":  {once(clone, servicetest.Fault{Lose: true}), ""},
		"clone: truncated":    {once(clone, servicetest.Fault{Truncate: 40}), ""},
		"clone: another id":   {once(clone, servicetest.Fault{Rewrite: swap(`"box_id":"`, `"box_id":"0`)}), ""},
		"clone: 5xx":          {once(clone, servicetest.Fault{Status: 503}), sandbox.CodeUnavailable},
		"clone: unsupported":  {once(clone, servicetest.Fault{Status: 501, Body: invalid}), sandbox.CodeUnsupported},
		"its size is unknown": {once(size, servicetest.Fault{Rewrite: swap(`"size_bytes":`, `"bytes":`)}), sandbox.CodeUnavailable},
		"size: lost answer":   {once(size, servicetest.Fault{Lose: true}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			w.Faults.Clear()
			s := spec("sb-saved")
			s.Env = map[string]string{"GREETING": "hello"}
			in := w.make(t, p, s)
			hostedtest.Says(t, in, "echo kept >/root/kept")
			w.Faults.Add(tt.fault)
			shot, _ := driver.As[driver.Snapshotter](in)
			saved, err := shot.Snapshot(t.Context(), driver.SnapshotOptions{ID: "sn-saved", Stop: true})
			if p.ErrorCode(err) != tt.want {
				t.Errorf("Snapshot: %v, want code %q", err, tt.want)
			}
			if n := len(w.IDs()); n != 1 {
				t.Errorf("there are %d boxes, want 1", n)
			}
			if err != nil {
				if got := hostedtest.Says(t, in, "echo $GREETING; cat /root/kept"); got != "hello\nkept\n" {
					t.Errorf("after a snapshot that failed it says %q", got)
				}
				return
			}
			if err := p.RemoveSnapshot(t.Context(), saved.Ref); err != nil || len(w.IDs()) > 0 {
				t.Errorf("RemoveSnapshot: %v, %d boxes are left", err, len(w.IDs()))
			}
		})
	}
}

// What was stopped by somebody else is saved as it is. A copy has the network of
// its source, or is not made.
func TestSnapshotOfStopped(t *testing.T) {
	w := serve(t)
	p := w.open(t)
	in := w.make(t, p, spec("sb-stopped"))
	hostedtest.Says(t, in, "echo kept >/root/kept")
	w.stopped(t, w.IDs()[0])
	shot, _ := driver.As[driver.Snapshotter](in)
	saved, err := shot.Snapshot(t.Context(), driver.SnapshotOptions{ID: "sn-stopped"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := p.State(t.Context(), in.ID()); got != sandbox.Paused {
		t.Errorf("after its snapshot a stopped box is %q, %v", got, err)
	}
	open := spec("sb-open")
	open.Network = sandbox.Network{Egress: []string{"*"}, Plain: &sandbox.EgressRules{Open: true}}
	if _, _, err := p.Restore(t.Context(), open, saved.Ref); p.ErrorCode(err) != sandbox.CodeUnsupported {
		t.Errorf("a copy with another network: %v, want unsupported", err)
	}
	w.Faults.Add(servicetest.Fault{Method: http.MethodPost, Path: boxPath + "/clone", Times: 1, Lose: true})
	twin, _, err := p.Restore(t.Context(), spec("sb-twin"), saved.Ref)
	if err != nil {
		t.Fatal(err)
	}
	if got := hostedtest.Says(t, twin, "cat /root/kept"); got != "kept\n" {
		t.Errorf("the copy says %q", got)
	}
	if n := len(w.IDs()); n != 3 {
		t.Errorf("there are %d boxes, want 3", n)
	}
	if err := twin.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if err := p.RemoveSnapshot(t.Context(), saved.Ref); err != nil || len(w.IDs()) != 1 {
		t.Errorf("RemoveSnapshot: %v, %d boxes are left", err, len(w.IDs()))
	}
}
