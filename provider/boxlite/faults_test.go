package boxlite_test

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	service "github.com/atoll-run/atoll/internal/testing/servicetest/boxlite"
	"github.com/atoll-run/atoll/provider/boxlite"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/sandbox"
)

// stop stops all boxes, as another client of the server.
func stop(t *testing.T, w *world) {
	t.Helper()
	if err := w.Fake.StopAll(); err != nil {
		t.Fatal(err)
	}
}

func TestCreateFaults(t *testing.T) {
	w := suite.Serve(t)
	post := func(path string, f servicetest.Fault) servicetest.Fault {
		return hostedtest.At(http.MethodPost, path, f)
	}
	start := boxPath + "/start"
	// The first GET checks whether the box already exists.
	get := func(from, to string) servicetest.Fault {
		return hostedtest.At(http.MethodGet, boxPath, servicetest.Fault{Skip: 1, Rewrite: hostedtest.Replace(from, to)})
	}
	f := w.Faulty(w.Open(t, t.TempDir()), nil)
	f.Create(t, map[string]hostedtest.CreateFault{
		"lost answer":        {Fault: post(boxesPath, servicetest.Fault{Lose: true}), Posts: 2}, // net/http repeats requests with an idempotency key
		"another name":       {Fault: post(boxesPath, servicetest.Fault{Rewrite: hostedtest.Replace(`"name":"`, `"name":"0`)}), Posts: 1},
		"start: lost answer": {Fault: post(start, servicetest.Fault{Lose: true}), Posts: 1},
		"start: 503":         {Fault: post(start, servicetest.Fault{Status: 503}), Posts: 1},
		"start: 409":         {Fault: post(start, servicetest.Fault{Status: 409, Body: busy}), Posts: 1},
		"start: refused":     {Fault: post(start, servicetest.Fault{Status: 400, Body: invalid}), Want: sandbox.CodeInvalid, Posts: 1},
		"exec: lost answer":  {Fault: post(boxPath+"/exec", servicetest.Fault{Lose: true}), Want: sandbox.CodeUnavailable, Posts: 1},
		"upload is refused":  {Fault: hostedtest.At(http.MethodPut, boxPath+"/files", servicetest.Fault{Status: 400, Body: invalid}), Posts: 1},
		"no size":            {Fault: get(`"memory_mib":256`, `"memory_mib":512`), Want: sandbox.CodeUnavailable, Posts: 1},
		"no lifetime":        {Fault: get(`"auto_stop":3600`, `"auto_stop":900`), Want: sandbox.CodeUnavailable, Posts: 1},
	})
	s := hostedtest.Spec("sb-image")
	s.Image = "no/such:image"
	if _, err := f.Provider.Create(t.Context(), s); f.Provider.ErrorCode(err) != sandbox.CodeInvalid || len(w.Fake.Names()) > 0 {
		t.Errorf("an image that is none: %v, want invalid", err)
	}
}

// A caller gives up while the box starts, and nothing is left.
func TestGivenUp(t *testing.T) {
	w := suite.Serve(t)
	w.Faulty(w.Open(t, t.TempDir()), nil).GivenUp(t, boxPath+"/start")
}

// An expired key is read again from its source at any time, and the sandboxes
// stay ours.
func TestExpiredKey(t *testing.T) {
	const next = "blk_live_next"
	w := suite.Serve(t)
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(service.Key), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*boxlite.Options){
		"file":    func(o *boxlite.Options) { o.Key = credential.New("BOXLITE_API_KEY", "", file, "") },
		"command": func(o *boxlite.Options) { o.Key = credential.New("BOXLITE_API_KEY", "", "", "cat "+file) },
	} {
		t.Run(name, func(t *testing.T) {
			w.Fake.AddKey(service.Key, service.Prefix)
			if err := os.WriteFile(file, []byte(service.Key), 0o600); err != nil {
				t.Fatal(err)
			}
			p := open(t, w, change)
			in := w.Faulty(p, nil).Make(t, hostedtest.Spec("sb-key"))
			before, _ := p.Binding(t.Context())
			w.Fake.AddKey(next, service.Prefix)
			w.Fake.RevokeKey(service.Key)
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
			// A key of another account does not show that the sandbox is gone.
			w.Fake.AddKey("blk_live_other", "other")
			w.Fake.RevokeKey(next)
			if err := os.WriteFile(file, []byte("blk_live_other"), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Attach(t.Context(), in.ID()); p.ErrorCode(err) != sandbox.CodeUnauthorized && p.ErrorCode(err) != sandbox.CodeDenied {
				t.Errorf("Attach with a key of another account: %v, want unauthorized", err)
			}
			if _, err := p.Attach(t.Context(), in.ID()); p.ErrorCode(err) != sandbox.CodeUnauthorized {
				t.Errorf("Attach with a key of another account: %v, want unauthorized", err)
			}
			w.Fake.RevokeKey("blk_live_other") // now it is ours again
			w.Fake.AddKey(next, service.Prefix)
			if err := os.WriteFile(file, []byte(next), 0o600); err != nil {
				t.Fatal(err)
			}
			// The first request fails with the wrong path; after that the path is known.
			_, _ = p.Attach(t.Context(), in.ID())
			if _, err := p.Attach(t.Context(), in.ID()); err != nil {
				t.Errorf("Attach with a key of the account again: %v", err)
			}
		})
	}
}

// TestResume stops a box as another client. Resume starts the same box: it has
// its files, commands have their environment, and there is no other box. The
// same is true after Attach.
func TestResume(t *testing.T) {
	w := suite.Serve(t)
	w.Fake.Transitions(100 * time.Millisecond)
	p := w.Open(t, t.TempDir())
	s := hostedtest.Spec("sb-resume")
	s.Env = map[string]string{"GREETING": "hello"}
	in := w.Faulty(p, nil).Make(t, s)
	id := w.Fake.Names()[0]
	const script = `echo $GREETING; cat /root/kept`
	hostedtest.Says(t, in, "echo kept >/root/kept; sleep 1000 >/dev/null 2>&1 &")
	stop(t, w)
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
	if n := w.Fake.Requests(http.MethodPost, boxPath+"/start"); n != 1 {
		t.Errorf("it was started %d times before it was resumed, want 1", n)
	}
	done := make(chan error, 2)
	for _, one := range []driver.Instance{in, other} {
		r, ok := driver.As[driver.Resumer](one)
		if !ok {
			t.Fatal("no driver.Resumer")
		}
		go func() { done <- r.Resume(t.Context()) }()
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
	// Another client stops and starts the box. The environment is kept.
	stop(t, w)
	w.Fake.Add(servicetest.Fault{Method: http.MethodPost, Path: boxPath + "/start", Times: 1, Lose: true})
	w.Resume(t, in)
	if got := hostedtest.Says(t, in, script); got != "hello\nkept\n" {
		t.Errorf("after it was resumed again it says %q", got)
	}
	if ids := w.Fake.Names(); len(ids) != 1 || ids[0] != id {
		t.Errorf("there are the boxes %v, want %s alone", ids, id)
	}
}

// No rule for paths blocks our archives: neither mounts over the guest's path
// nor rules for the workspace.
func TestOwnArchives(t *testing.T) {
	w := suite.Serve(t)
	if _, err := http.DefaultClient.Do(request(t, w, http.MethodPost, "/v1/acme/volumes", `{"name":"state"}`)); err != nil {
		t.Fatal(err)
	}
	// The volume is mounted at the guest's path.
	p := open(t, w, func(o *boxlite.Options) { o.Volumes = map[string]string{"/var/lib/atoll": "state"} })
	in := w.Faulty(p, nil).Make(t, hostedtest.Spec("sb-archives"))
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
	if n := w.Fake.Requests(http.MethodPut, boxPath+"/files"); n != 1 {
		t.Errorf("%d archives were tried, want 1", n)
	}
}

// request makes a request without the provider.
func request(t *testing.T, w *world, method, path, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+service.Key)
	r.Close = true
	return r
}

// The server refuses all requests, also that for the account.
func TestRefusals(t *testing.T) {
	w := suite.Serve(t)
	body := func(text string) string { return strings.Replace(refusal, "TEXT", text, 1) }
	w.Faulty(w.Open(t, t.TempDir()), nil).Refusals(t, "", body, true)
}

// A snapshot is one box or none. If it fails, the sandbox continues. A running
// sandbox is only stopped on request.
func TestSnapshotFaults(t *testing.T) {
	w := suite.Serve(t)
	p := w.Open(t, t.TempDir())
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
		"clone: another id":   {once(clone, servicetest.Fault{Rewrite: hostedtest.Replace(`"box_id":"`, `"box_id":"0`)}), ""},
		"clone: 5xx":          {once(clone, servicetest.Fault{Status: 503}), sandbox.CodeUnavailable},
		"clone: unsupported":  {once(clone, servicetest.Fault{Status: 501, Body: invalid}), sandbox.CodeUnsupported},
		"its size is unknown": {once(size, servicetest.Fault{Rewrite: hostedtest.Replace(`"size_bytes":`, `"bytes":`)}), sandbox.CodeUnavailable},
		"size: lost answer":   {once(size, servicetest.Fault{Lose: true}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			w.Fake.Clear()
			s := hostedtest.Spec("sb-saved")
			s.Env = map[string]string{"GREETING": "hello"}
			in := w.Faulty(p, nil).Make(t, s)
			hostedtest.Says(t, in, "echo kept >/root/kept")
			w.Fake.Add(tt.fault)
			shot, _ := driver.As[driver.Snapshotter](in)
			saved, err := shot.Snapshot(t.Context(), driver.SnapshotOptions{ID: "sn-saved", Stop: true})
			if p.ErrorCode(err) != tt.want {
				t.Errorf("Snapshot: %v, want code %q", err, tt.want)
			}
			if n := len(w.Fake.Names()); n != 1 {
				t.Errorf("there are %d boxes, want 1", n)
			}
			if err != nil {
				if got := hostedtest.Says(t, in, "echo $GREETING; cat /root/kept"); got != "hello\nkept\n" {
					t.Errorf("after a snapshot that failed it says %q", got)
				}
				return
			}
			if err := p.RemoveSnapshot(t.Context(), saved.Ref); err != nil || len(w.Fake.Names()) > 0 {
				t.Errorf("RemoveSnapshot: %v, %d boxes are left", err, len(w.Fake.Names()))
			}
		})
	}
}

// A box that another client stopped is saved as it is. A copy has the network
// of its source, or is refused.
func TestSnapshotOfStopped(t *testing.T) {
	w := suite.Serve(t)
	p := w.Open(t, t.TempDir())
	in := w.Faulty(p, nil).Make(t, hostedtest.Spec("sb-stopped"))
	hostedtest.Says(t, in, "echo kept >/root/kept")
	stop(t, w)
	shot, _ := driver.As[driver.Snapshotter](in)
	saved, err := shot.Snapshot(t.Context(), driver.SnapshotOptions{ID: "sn-stopped"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := p.State(t.Context(), in.ID()); got != sandbox.Paused {
		t.Errorf("after its snapshot a stopped box is %q, %v", got, err)
	}
	open := hostedtest.Spec("sb-open")
	open.Network = sandbox.Network{Egress: []string{"*"}, Plain: &sandbox.EgressRules{Open: true}}
	if _, _, err := p.Restore(t.Context(), open, saved.Ref); p.ErrorCode(err) != sandbox.CodeUnsupported {
		t.Errorf("a copy with another network: %v, want unsupported", err)
	}
	w.Fake.Add(servicetest.Fault{Method: http.MethodPost, Path: boxPath + "/clone", Times: 1, Lose: true})
	twin, _, err := p.Restore(t.Context(), hostedtest.Spec("sb-twin"), saved.Ref)
	if err != nil {
		t.Fatal(err)
	}
	if got := hostedtest.Says(t, twin, "cat /root/kept"); got != "kept\n" {
		t.Errorf("the copy says %q", got)
	}
	if n := len(w.Fake.Names()); n != 3 {
		t.Errorf("there are %d boxes, want 3", n)
	}
	if err := twin.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if err := p.RemoveSnapshot(t.Context(), saved.Ref); err != nil || len(w.Fake.Names()) != 1 {
		t.Errorf("RemoveSnapshot: %v, %d boxes are left", err, len(w.Fake.Names()))
	}
}
