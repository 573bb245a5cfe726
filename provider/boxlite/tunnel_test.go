package boxlite_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/driver/drivertest"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
	"github.com/atoll-run/atoll/provider/boxlite"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/sandbox"
)

const tunnelPath = boxPath + "/network/tunnel"

// reaching is the spec of a sandbox with a network.
func reaching(id sandbox.ID) *sandbox.Spec {
	s := hostedtest.Spec(id)
	s.Network = sandbox.Network{Egress: []string{"*"}, Plain: &sandbox.EgressRules{Open: true}}
	return s
}

// TestTunnels runs the suite's port cases with a server that offers tunnels,
// and with one that refuses them, so that the guest is used.
func TestTunnels(t *testing.T) {
	for name, fault := range map[string]servicetest.Fault{
		"offered": {Path: "/none"},
		"refused": {Method: http.MethodPost, Path: tunnelPath, Status: 501, Body: `{"error":{"code":"unsupported","message":"no tunnels here"}}`},
		"strange": {Method: http.MethodPost, Path: tunnelPath, Rewrite: hostedtest.Replace(`"uri":"http`, `"uri":"gopher`)},
	} {
		t.Run(name, func(t *testing.T) {
			need.Program(t, "python3")
			w := suite.Serve(t)
			hostedtest.WarmUp(t, w.Backing)
			w.Fake.Add(fault)
			dir := t.TempDir()
			drivertest.Run(t, drivertest.Harness{
				New: func(context.Context) (driver.Provider, error) {
					return connect(w, dir, func(o *boxlite.Options) { o.Tunnels = true })
				},
				Spec: func() sandbox.Spec { return *reaching("") },
				Only: []string{"ports"}, Patience: 5 * time.Minute,
			})
			if n := w.Fake.Requests(http.MethodPost, tunnelPath); n == 0 {
				t.Error("no tunnel was requested")
			}
			if n := w.Fake.Connected(); (n > 0) != (name == "offered") {
				t.Errorf("%d connections went through tunnels", n)
			}
		})
	}
}

// Without the option, and without a network, no port has a public address.
func TestNoTunnels(t *testing.T) {
	for name, tt := range map[string]struct {
		tunnels bool
		spec    *sandbox.Spec
		want    string
	}{
		"not wanted": {false, reaching("sb-closed"), `{"outbound":{"mode":"enabled"},"inbound":{"mode":"disabled"}}`},
		"no network": {true, hostedtest.Spec("sb-closed"), `{"outbound":{"mode":"disabled"},"inbound":{"mode":"disabled"}}`},
		"wanted":     {true, reaching("sb-open"), `{"outbound":{"mode":"enabled"},"inbound":{"mode":"enabled"}}`},
	} {
		w := suite.Serve(t)
		p := open(t, w, func(o *boxlite.Options) { o.Tunnels = tt.tunnels })
		in := w.Faulty(p, nil).Make(t, tt.spec)
		if got := w.Fake.Flows(w.Fake.Names()[0]); got != tt.want {
			t.Errorf("%s: asked for %s, want %s", name, got, tt.want)
		}
		d, _ := driver.As[driver.Dialer](in)
		if _, err := d.Dial(t.Context(), 9); p.ErrorCode(err) != sandbox.CodeUnavailable {
			t.Errorf("%s: Dial where nothing listens: %v, want unavailable", name, err)
		}
		want := 0
		if name == "wanted" {
			want = 1
		}
		if n := w.Fake.Requests(http.MethodPost, tunnelPath); n != want {
			t.Errorf("%s: %d tunnels were requested, want %d", name, n, want)
		}
	}
}
