package e2b_test

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/e2b"
	"github.com/atoll-run/atoll/sandbox"
)

// pauseAll pauses all sandboxes as another client of the service.
func (s *service) pauseAll(t *testing.T) {
	t.Helper()
	ask := func(method, path string, out any) {
		req, err := http.NewRequestWithContext(t.Context(), method, s.env["E2B_API_URL"]+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-API-Key", s.env["E2B_API_KEY"])
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if res.StatusCode/100 != 2 {
			t.Fatalf("%s %s: %s", method, path, res.Status)
		}
		if out != nil {
			if err := json.NewDecoder(res.Body).Decode(out); err != nil {
				t.Fatal(err)
			}
		}
	}
	var all []struct {
		ID string `json:"sandboxID"`
	}
	ask(http.MethodGet, "/v2/sandboxes", &all)
	for _, b := range all {
		ask(http.MethodPost, "/sandboxes/"+b.ID+"/pause", nil)
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestPaused makes the service pause a sandbox without a request from Atoll.
func TestPaused(t *testing.T) {
	s := serve(t)
	p, err := e2b.New(s.options(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	in, err := p.Create(t.Context(), spec("sb-paused"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := in.Destroy(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	run(t, in, "echo kept >/tmp/kept; sleep 1000 >/dev/null 2>&1 & echo $! >/tmp/pid")
	state := func(want sandbox.State) {
		t.Helper()
		got, err := p.State(t.Context(), in.ID())
		if err != nil || got != want {
			t.Errorf("the sandbox is %q, %v; want %q", got, err, want)
		}
		for f, err := range p.List(t.Context()) {
			if err != nil || f.State != want {
				t.Errorf("it is listed as %+v, %v; want %q", f, err, want)
			}
		}
	}
	state(sandbox.Running)
	s.pauseAll(t)
	state(sandbox.Paused)
	if _, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"true"}}); p.ErrorCode(err) != sandbox.CodeConflict {
		t.Errorf("a command in a paused sandbox: %v, want conflict", err)
	}
	r, ok := driver.As[driver.Resumer](in)
	if !ok {
		t.Fatal("the sandbox cannot be resumed")
	}
	for range 2 {
		if err := r.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		state(sandbox.Running)
	}
	if got := run(t, in, "cat /tmp/kept; kill -0 $(cat /tmp/pid) && echo runs"); got != "kept\nruns\n" {
		t.Errorf("after it was resumed: %q", got)
	}
}

// Images are templates of the service.
func TestImages(t *testing.T) {
	p := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s", r.Method, r.URL)
		refuse(w, http.StatusInternalServerError, "no")
	})
	for image, want := range map[string]sandbox.Code{"": "", "host": "", "template:x": "", "template:": sandbox.CodeUnsupported, "debian:12": sandbox.CodeUnsupported, "dir:/": sandbox.CodeUnsupported} {
		if err := p.CheckImage(image); sandbox.CodeOf(err) != want {
			t.Errorf("%q: %v, want code %q", image, err, want)
		}
	}
	if _, err := p.Create(t.Context(), &sandbox.Spec{ID: "sb-image", Image: "debian:12"}); p.ErrorCode(err) != sandbox.CodeUnsupported {
		t.Errorf("Create: %v, want unsupported", err)
	}
}
