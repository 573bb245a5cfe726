package superserve_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	"github.com/atoll-run/atoll/provider/superserve"
	"github.com/atoll-run/atoll/sandbox"
)

// A port is not published if its address or token is not available, or if the
// service makes it public without a request.
func TestPreviewFaults(t *testing.T) {
	w, dir := serve(t), t.TempDir()
	p := w.Open(t, dir)
	in, _ := driver.As[driver.Previewer](w.make(t, p, spec("sb-previews")))
	none := func(when string) {
		t.Helper()
		if all, err := in.Previews(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("%s: %+v, %v", when, all, err)
		}
	}
	for name, f := range map[string]servicetest.Fault{
		"a lost answer":  {Method: http.MethodPost, Path: "/sandboxes/*/preview-ports", Lose: true},
		"another access": {Method: http.MethodPost, Path: "/sandboxes/*/preview-ports", Rewrite: func(b []byte) []byte { return bytes.Replace(b, []byte(`"private"`), []byte(`"public"`), 1) }},
		"another port":   {Method: http.MethodPost, Path: "/sandboxes/*/preview-ports", Rewrite: func(b []byte) []byte { return bytes.Replace(b, []byte(`8080`), []byte(`8081`), 1) }},
		"no token":       {Method: http.MethodPost, Path: "/sandboxes/*/preview-ports/*/token", Status: 403, Body: `{"error":{"code":"forbidden","message":"no"}}`},
		"an empty token": {Method: http.MethodPost, Path: "/sandboxes/*/preview-ports/*/token", Rewrite: func([]byte) []byte { return []byte(`{"port":8080}`) }},
	} {
		w.Faults.Clear()
		w.Faults.Add(f)
		if got, err := in.Preview(t.Context(), sandbox.PreviewRequest{Port: 8080}); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
		w.Faults.Clear()
		none(name)
	}
	for _, port := range []uint16{80, 1023, 49983} {
		if _, err := in.Preview(t.Context(), sandbox.PreviewRequest{Port: port}); p.ErrorCode(err) != sandbox.CodeInvalid {
			t.Errorf("port %d: %v", port, err)
		}
	}
	none("ports that the service does not show")
	// After a failure, an earlier URL keeps its access.
	before, err := in.Preview(t.Context(), sandbox.PreviewRequest{Port: 8080, Public: true})
	if err != nil {
		t.Fatal(err)
	}
	w.Faults.Add(servicetest.Fault{Method: http.MethodPost, Path: "/sandboxes/*/preview-ports/*/token", Status: 403})
	if _, err := in.Preview(t.Context(), sandbox.PreviewRequest{Port: 8080}); err == nil {
		t.Error("no token, and no error")
	}
	w.Faults.Clear()
	if all, err := in.Previews(t.Context()); err != nil || len(all) != 1 || all[0] != before {
		t.Errorf("%+v, %v; want %+v", all, err, before)
	}
	// The URL is below the domain of the data API, which must have one.
	for data, want := range map[string]string{"https://boxd-{id}.data.example": ".data.example", "https://data.example": ".data.example", "https://192.0.2.1": "", "https://[2001:db8::1]:8443": ""} {
		opts := w.options(dir)
		opts.DataURL = data
		other, err := superserve.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		again, err := other.Attach(t.Context(), "sb-previews")
		if err != nil {
			t.Fatal(err)
		}
		shown, _ := driver.As[driver.Previewer](again)
		got, err := shown.Preview(t.Context(), sandbox.PreviewRequest{Port: 9000})
		if (want == "") != (p.ErrorCode(err) == sandbox.CodeUnsupported) || want != "" && (!strings.HasPrefix(got.URL, "https://9000-") || !strings.HasSuffix(got.URL, want) || strings.Contains(got.URL, "boxd")) {
			t.Errorf("with the data URL %s: %q, %v", data, got.URL, err)
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	}
}
