package hostedtest

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

// Faults break requests to a service: see servicetest.Faults.
type Faults interface {
	Add(faults ...servicetest.Fault)
	Clear()
	Requests(method, pattern string) int
}

// Faulty is a fake service with injected faults, and a provider that uses it.
type Faulty struct {
	Faults
	Provider driver.Provider
	// Again is another provider with the same directory, as in another process.
	Again driver.Provider
	// Sandboxes and Sandbox match the paths of all sandboxes and of one.
	Sandboxes, Sandbox string
	// Ending is the path of the POST that removes a sandbox. Empty: that is a DELETE
	// of Sandbox.
	Ending string
	// NotFound, Invalid and Busy are the service's errors for an unknown sandbox,
	// an invalid request, and a sandbox whose state is changing. Nothing is an
	// empty list of sandboxes.
	NotFound, Invalid, Busy, Nothing string
	// Key must appear in no error.
	Key string
	// Looks is how many lookups of a sandbox precede its creation.
	Looks int
	// Other changes an answer so that it names another sandbox.
	Other func([]byte) []byte
	// Count returns the number of sandboxes, and of other resources that belong to
	// them.
	Count func() (sandboxes, besides int)
	// Force makes all sandboxes report a status; "" restores their own.
	Force func(status string)
	// Spec returns the spec of a new sandbox.
	Spec func(id sandbox.ID) *sandbox.Spec
}

// CreateFault is a fault during the creation of a sandbox.
type CreateFault struct {
	servicetest.Fault
	Want  sandbox.Code // empty: it is created
	Posts int          // number of creation requests
}

// At returns a fault of requests that match a method and a path.
func At(method, path string, f servicetest.Fault) servicetest.Fault {
	f.Method, f.Path, f.Times = method, path, 1
	return f
}

// Replace changes a text in an answer.
func Replace(from, to string) func([]byte) []byte {
	return func(body []byte) []byte { return bytes.Replace(body, []byte(from), []byte(to), 1) }
}

// usual returns the faults of every service. Services add rows of their own
// where the number of requests matters.
func (f *Faulty) usual() map[string]CreateFault {
	post := func(fault servicetest.Fault) servicetest.Fault { return At(http.MethodPost, f.Sandboxes, fault) }
	return map[string]CreateFault{
		"lost answer":        {post(servicetest.Fault{Lose: true}), "", 1},
		"5xx after it acted": {post(servicetest.Fault{Status: 502, Act: true}), "", 1},
		"truncated answer":   {post(servicetest.Fault{Truncate: 40}), "", 1},
		"another sandbox":    {post(servicetest.Fault{Rewrite: f.Other}), "", 1},
		"false 404":          {At(http.MethodGet, f.Sandbox, servicetest.Fault{Skip: f.Looks, Status: 404, Body: f.NotFound}), "", 1},
		"slow":               {post(servicetest.Fault{Delay: 300 * time.Millisecond}), "", 1},
		"too many requests":  {servicetest.TooMany(http.MethodPost, f.Sandboxes, time.Second, 1), "", 2},
		"5xx":                {post(servicetest.Fault{Status: 503}), sandbox.CodeUnavailable, 1},
		"refused":            {post(servicetest.Fault{Status: 400, Body: f.Invalid}), sandbox.CodeInvalid, 1},
	}
}

// Create creates sandboxes while the service fails. Afterwards there is exactly
// one with all its resources, or none, and it was requested once unless the
// service refused it. more replaces or extends the usual faults.
func (f *Faulty) Create(t *testing.T, more map[string]CreateFault) {
	all := f.usual()
	for name, fault := range more {
		all[name] = fault
	}
	_, besides := f.Count()
	for name, tt := range all {
		t.Run(name, func(t *testing.T) {
			f.Clear()
			f.Add(tt.Fault)
			in, err := f.Provider.Create(t.Context(), f.Spec("sb-create"))
			if got := f.Provider.ErrorCode(err); got != tt.Want || (err == nil) != (tt.Want == "") {
				t.Errorf("code %q, want %q: %v", got, tt.Want, err)
			}
			if n := f.Requests(http.MethodPost, f.Sandboxes); n != tt.Posts {
				t.Errorf("it was requested %d times, want %d", n, tt.Posts)
			}
			if in == nil {
				f.left(t, 0, besides)
				return
			}
			if got := Says(t, in, "echo alive"); got != "alive\n" {
				t.Errorf("it says %q", got)
			}
			if n, _ := f.Count(); n != 1 {
				t.Errorf("there are %d sandboxes, want 1", n)
			}
			if err := in.Destroy(t.Context()); err != nil {
				t.Errorf("Destroy: %v", err)
			}
			f.left(t, 0, besides)
		})
	}
}

func (f *Faulty) left(t *testing.T, sandboxes, besides int) {
	t.Helper()
	if n, m := f.Count(); n != sandboxes || m != besides {
		t.Errorf("there are %d sandboxes and %d other resources, want %d and %d", n, m, sandboxes, besides)
	}
}

// Make creates a sandbox that is destroyed at the end of the test.
func (f *Faulty) Make(t *testing.T, s *sandbox.Spec) driver.Instance {
	t.Helper()
	in, err := f.Provider.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Clear()
		f.Force("")
		if err := in.Destroy(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("Destroy: %v", err)
		}
	})
	return in
}

// GivenUp cancels Create during requests that match the paths. Nothing is left
// behind after a while: Create does not wait long for a slow service.
func (f *Faulty) GivenUp(t *testing.T, paths ...string) {
	for _, path := range paths {
		ctx, cancel := context.WithCancel(t.Context())
		f.Clear()
		f.Add(servicetest.Fault{Method: http.MethodPost, Path: path, Times: 1, Before: cancel, Delay: 100 * time.Millisecond})
		if _, err := f.Provider.Create(ctx, f.Spec("sb-given-up")); f.Provider.ErrorCode(err) != sandbox.CodeCanceled {
			t.Errorf("%s: Create: %v, want canceled", path, err)
		}
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if sandboxes, besides := f.Count(); sandboxes+besides == 0 {
				break
			}
		}
		f.left(t, 0, 0)
		cancel()
	}
}

// Late makes the service create a sandbox without an answer and show it only
// after the driver has stopped looking for it. The next List, or Create with
// its ID, ends it.
func (f *Faulty) Late(t *testing.T) {
	lose := func() {
		t.Helper()
		f.Add(
			servicetest.Fault{Method: http.MethodPost, Path: f.Sandboxes, Lose: true},
			servicetest.Fault{Method: http.MethodGet, Path: f.Sandbox, Status: http.StatusNotFound, Body: f.NotFound},
			servicetest.Fault{Method: http.MethodGet, Path: f.Sandboxes, Status: http.StatusOK, Body: f.Nothing},
			servicetest.Fault{Method: http.MethodDelete, Path: f.Sandbox, Status: http.StatusNotFound, Body: f.NotFound},
		)
		if _, err := f.Provider.Create(t.Context(), f.Spec("sb-late")); f.Provider.ErrorCode(err) != sandbox.CodeUnavailable {
			t.Errorf("Create: %v, want unavailable", err)
		}
		for found, err := range f.Provider.List(t.Context()) {
			t.Errorf("before it appears, List: %+v, %v", found, err)
		}
		if n, _ := f.Count(); n != 1 {
			t.Errorf("the service has %d sandboxes, want 1", n)
		}
		f.Clear()
	}
	lose()
	for found, err := range f.Again.List(t.Context()) {
		t.Errorf("after it has appeared, List: %+v, %v", found, err)
	}
	f.left(t, 0, 0)
	lose()
	in, err := f.Again.Create(t.Context(), f.Spec("sb-late"))
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := f.Count(); n != 1 {
		t.Errorf("there are %d sandboxes, want 1", n)
	}
	if got := Says(t, in, "echo alive"); got != "alive\n" {
		t.Errorf("it says %q", got)
	}
	// A sandbox that was returned to a caller stays.
	for found, err := range f.Provider.List(t.Context()) {
		if err != nil || found.ID != in.ID() {
			t.Errorf("List: %+v, %v", found, err)
		}
	}
	if n, _ := f.Count(); n != 1 {
		t.Errorf("there are %d sandboxes after List, want 1", n)
	}
	if err := in.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	f.left(t, 0, 0)
}

// False404 makes the service answer 404 for a sandbox that it lists. This does
// not show that the sandbox is gone, and neither do answers with bodies of
// other servers.
func (f *Faulty) False404(t *testing.T, path string, bodies ...string) {
	in := f.Make(t, f.Spec("sb-false"))
	f.Add(
		servicetest.Fault{Method: http.MethodGet, Path: f.Sandbox, Status: 404, Body: f.NotFound},
		servicetest.Fault{Method: http.MethodDelete, Path: f.Sandbox, Status: 404, Body: f.NotFound},
	)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if exit, err := in.Wait(ctx); err == nil {
		t.Errorf("the sandbox ended: %+v", exit)
	}
	if err := in.Destroy(t.Context()); f.Provider.ErrorCode(err) != sandbox.CodeUnavailable {
		t.Errorf("Destroy: %v, want unavailable", err)
	}
	f.Clear()
	if got := Says(t, in, "echo alive"); got != "alive\n" {
		t.Errorf("it says %q", got)
	}
	for _, body := range append(bodies, "<html>not found</html>") {
		f.Clear()
		f.Add(servicetest.Fault{Method: http.MethodGet, Path: path, Status: 404, Body: body})
		if _, err := f.Provider.Attach(t.Context(), in.ID()); err == nil || f.Provider.ErrorCode(err) == sandbox.CodeGone {
			t.Errorf("%s: Attach: %v", body, err)
		}
	}
}

// Conflict makes the service refuse for a moment to remove a sandbox.
func (f *Faulty) Conflict(t *testing.T) {
	in := f.Make(t, f.Spec("sb-conflict"))
	method, path := http.MethodDelete, f.Sandbox
	if f.Ending != "" {
		method, path = http.MethodPost, f.Ending
	}
	f.Add(servicetest.Fault{Method: method, Path: path, Times: 3, Status: 409, Body: f.Busy})
	if err := in.Destroy(t.Context()); err != nil {
		t.Errorf("Destroy: %v", err)
	}
	f.left(t, 0, 0)
}

// Meaning is the meaning of a service's status.
type Meaning struct {
	State        sandbox.State
	Code, Resume sandbox.Code // of the errors
}

// Statuses tries every status of the service, an unknown one, and finally that
// of a deleted sandbox, if there is one. None of them creates another sandbox.
func (f *Faulty) Statuses(t *testing.T, all map[string]Meaning, deleted string) {
	p, in := f.Provider, f.Make(t, f.Spec("sb-statuses"))
	r, ok := driver.As[driver.Resumer](in)
	if !ok {
		t.Fatal("no driver.Resumer")
	}
	all["hibernating"] = Meaning{Code: sandbox.CodeUnavailable, Resume: sandbox.CodeUnavailable}
	for status, want := range all {
		t.Run(status, func(t *testing.T) {
			f.Clear()
			f.Force(status)
			got, err := p.(driver.StateTeller).State(t.Context(), in.ID())
			if got != want.State || p.ErrorCode(err) != want.Code {
				t.Errorf("State: %q, %v; want %q, code %q", got, err, want.State, want.Code)
			}
			if _, err := p.Attach(t.Context(), in.ID()); p.ErrorCode(err) != want.Code {
				t.Errorf("Attach: %v, want code %q", err, want.Code)
			}
			if _, err := p.Create(t.Context(), f.Spec(in.ID())); p.ErrorCode(err) != sandbox.CodeAlreadyExists {
				t.Errorf("Create: %v, want already exists", err)
			}
			// After a few lookups it runs again.
			f.Clear()
			f.Add(servicetest.Fault{Method: http.MethodGet, Path: f.Sandbox, Skip: 3, Before: func() { f.Force("") }})
			if err := r.Resume(t.Context()); p.ErrorCode(err) != want.Resume {
				t.Errorf("Resume: %v, want code %q", err, want.Resume)
			}
		})
	}
	f.Clear()
	if deleted != "" {
		f.Force(deleted)
		if _, err := p.Attach(t.Context(), in.ID()); p.ErrorCode(err) != sandbox.CodeGone {
			t.Errorf("Attach to a deleted sandbox: %v, want gone", err)
		}
	}
	if n, _ := f.Count(); n != 1 {
		t.Errorf("there are %d sandboxes, want 1", n)
	}
}

// Refusals makes the service refuse requests that match a path with each
// status. body returns an answer with a text that repeats the key. The key must
// be in no error.
func (f *Faulty) Refusals(t *testing.T, path string, body func(text string) string, attach bool) {
	for status, want := range map[int]sandbox.Code{
		400: sandbox.CodeInvalid, 401: sandbox.CodeUnauthorized, 403: sandbox.CodeDenied, 404: sandbox.CodeNotFound, 409: sandbox.CodeConflict,
		429: sandbox.CodeExhausted, 500: sandbox.CodeUnavailable, 502: sandbox.CodeUnavailable, 302: sandbox.CodeUnavailable,
	} {
		f.Clear()
		f.Add(servicetest.Fault{
			Path: path, Status: status, Header: http.Header{"Location": {"http://127.0.0.1:1/"}}, Body: body("the key " + f.Key + " is wrong"),
		})
		facts, err := f.Provider.Probe(t.Context())
		if err != nil || facts.Available {
			t.Errorf("status %d of %s: Probe: %+v, %v", status, path, facts, err)
		}
		for _, finding := range facts.Findings {
			if strings.Contains(finding.Message, f.Key) {
				t.Errorf("status %d of %s: %s", status, path, finding.Message)
			}
		}
		if !attach {
			continue
		}
		_, err = f.Provider.Attach(t.Context(), "sb-refused")
		if got := f.Provider.ErrorCode(err); got != want || strings.Contains(err.Error(), f.Key) {
			t.Errorf("status %d: code %q, want %q: %v", status, got, want, err)
		}
	}
}
