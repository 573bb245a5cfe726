package prepare_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/admission"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/sandboxes/prepare"
	"github.com/atoll-run/atoll/internal/control/sandboxes/sandboxtest"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// A sandbox that is made again is what it is now, not what was asked for first: its
// limits and labels may have changed, and a part of its lifetime is over.
func TestAgain(t *testing.T) {
	r := sandboxtest.Open(t, &coretest.Provider{})
	s := &prepare.Preparer{Policies: r.Policies, Snapshots: r.Snapshots, Tenants: r.Tenants}
	var b store.Sandbox
	b.ID, b.Name, b.Tenant, b.Provider, b.Image = "sb-1", "web", coretest.Acme, sandboxtest.Provider, "debian:12"
	b.Resources, b.Labels, b.Rest.Left = sandbox.Resources{CPUs: 4}, map[string]string{"team": "b"}, time.Minute
	b.Spec = sandbox.Spec{Image: "sha256:aa", Snapshot: "sn-9", Resources: sandbox.Resources{CPUs: 1}, Labels: map[string]string{"team": "a"}, Lifetime: sandbox.Lifetime{Timeout: time.Hour}}
	ask, err := s.Again(t.Context(), &b)
	coretest.OK(t, err)
	be, err := r.Providers.Backend(t.Context(), "")
	coretest.OK(t, err)
	p, err := s.Fit(t.Context(), be, audit.Action{}, ask)
	coretest.OK(t, err)
	got := p.Spec
	if got.ID != "sb-1" || got.Name != "web" || got.Provider != sandboxtest.Provider || got.Resources.CPUs != 4 || got.Labels["team"] != "b" {
		t.Errorf("it is made as %+v, want sb-1, web, with 4 CPUs and the label b", got)
	}
	if got.Image != "sha256:aa" || got.Snapshot != "" || p.Pull != "never" || p.Images[0] != "debian:12" {
		t.Errorf("it is made from %s or %s (pulled %s), known as %v; want the exact image that it had, known by its name", got.Image, got.Snapshot, p.Pull, p.Images)
	}
	if got.Lifetime.Timeout != time.Minute {
		t.Errorf("it gets a lifetime of %v, want what was left of it, 1m", got.Lifetime.Timeout)
	}
	b.Spec.Lifetime.Timeout = 0 // which the daemon then enforces
	if ask, err = s.Again(t.Context(), &b); err != nil || ask.Spec.Lifetime.Timeout != 0 {
		t.Errorf("without a lifetime of its provider it gets %v, %v, want none", ask.Spec.Lifetime.Timeout, err)
	}
}

// A limit that somebody else set has to hold.
func TestDemanded(t *testing.T) {
	r := sandboxtest.Open(t, &coretest.Provider{})
	s := &prepare.Preparer{Policies: r.Policies, Snapshots: r.Snapshots, Tenants: r.Tenants}
	be, err := r.Providers.Backend(t.Context(), "")
	coretest.OK(t, err)
	loose := map[string]sandbox.Enforcement{"memory": {Why: "there is no control group"}}
	for _, tt := range []struct {
		name string
		caps sandbox.Resources
		code sandbox.Code
	}{
		{"nobody set it", sandbox.Resources{}, ""},
		{"a policy set another one", sandbox.Resources{CPUs: 1}, ""},
		{"a policy set it", sandbox.Resources{Memory: 1 << 30}, sandbox.CodeUnsupported},
	} {
		if err := s.Demanded(t.Context(), be, coretest.Acme, tt.caps, loose); sandbox.CodeOf(err) != tt.code || (err == nil) != (tt.code == "") {
			t.Errorf("%s: the error is %v, want the code %q", tt.name, err, tt.code)
		}
	}
}

// Only sandboxes on this machine wait for room on it.
func TestAdmit(t *testing.T) {
	for _, tt := range []struct {
		name  string
		facts driver.Facts
		code  sandbox.Code
	}{
		{"of a service", driver.Facts{Provider: "e2b"}, ""},
		{"of this machine", driver.Facts{Provider: "gvisor", Engine: "1"}, sandbox.CodeCanceled},
		{"with files of this machine", driver.Facts{Provider: "host", SharesFiles: true}, sandbox.CodeCanceled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := sandboxtest.Open(t, &coretest.Provider{Can: tt.facts})
			gate := admission.New(admission.Config{Slots: 1, Waiting: 1, Total: 1, Patience: time.Hour, Memory: func() (free, total int64) { return 1 << 40, 1 << 40 }})
			full, err := gate.Enter(t.Context(), coretest.Rival)
			coretest.OK(t, err)
			defer full()
			s := &prepare.Preparer{Policies: r.Policies, Snapshots: r.Snapshots, Tenants: r.Tenants, Gate: gate}
			be, err := r.Providers.Backend(t.Context(), "")
			coretest.OK(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // who waits gives up at once
			leave, err := s.Admit(ctx, be, coretest.Acme)
			coretest.WantCode(t, err, tt.code)
			if err == nil {
				leave()
			}
		})
	}
}
