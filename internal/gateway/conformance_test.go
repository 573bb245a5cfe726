package gateway_test

import (
	"context"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/driver/drivertest"
	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// conformance is what of the suite of providers needs a network.
func conformance(t *testing.T, network gvisor.Network) drivertest.Harness {
	store, err := images()
	if err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	return drivertest.Harness{
		New: func(context.Context) (driver.Provider, error) {
			return gvisor.New(gvisor.Options{StateDir: state, Images: store, Kernel: program, Network: network})
		},
		Spec: func() sandbox.Spec {
			return sandbox.Spec{Image: "host", Resources: sandbox.Resources{Memory: 512 << 20, Disk: 512 << 20, PIDs: 256}}
		},
		Host: "machine.test",
		Only: []string{"capabilities/network", "network/"},
	}
}

func TestConformance(t *testing.T) {
	drivertest.Run(t, conformance(t, newRig(t, loopback("machine.test"))))
}

// generous is a network that allows more than the rules.
type generous struct{ *rig }

func (g generous) Connect(ctx context.Context, spec *sandbox.Spec, former gvisor.Known) (*gvisor.Link, error) {
	g.policies.Store(spec.ID, gateway.Policy{Profile: sandbox.Profile{Rules: []sandbox.Rule{{Action: sandbox.Allow, Hosts: []string{"machine.test:*"}}}}})
	return g.rig.Connect(ctx, spec, former)
}

// TestConformanceFindsHoles checks that the suite notices such a network.
func TestConformanceFindsHoles(t *testing.T) {
	report := drivertest.Check(t.Context(), conformance(t, generous{newRig(t, loopback("machine.test"))}))
	for _, r := range report.Results {
		if want := drivertest.Fail; r.Name != "capabilities/network" && r.Status != want {
			t.Errorf("%s: %s, want %s", r.Name, r.Status, want)
		}
	}
	if len(report.Results) != 3 {
		t.Errorf("%d cases, want 3", len(report.Results))
	}
}
