package catalog

import (
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

func facts(t *testing.T) []Facts {
	return []Facts{
		{Descriptor: known(t, "gvisor"), Available: true, Isolates: true, Images: true, Mounts: true, Default: true, Holds: map[string]bool{"memory": true}},
		{Descriptor: known(t, "host"), Available: true, Shares: true, Mounts: true},
		{Descriptor: known(t, "docker"), Why: "no daemon answers", Images: true},
		{Descriptor: known(t, "e2b"), Available: true, Isolates: true},
		{Descriptor: known(t, "none"), Available: true},
		{Descriptor: known(t, "microvm"), Available: true, Isolates: true, Images: true},
	}
}

func TestChoose(t *testing.T) {
	tests := []struct {
		name string
		n    Needs
		want string
		why  map[string]string // part of the reason per provider
	}{
		{"anything", Needs{}, "gvisor", map[string]string{"docker": "no daemon answers", "none": "cannot create sandboxes"}},
		{"named", Needs{Provider: "e2b"}, "e2b", map[string]string{"gvisor": "the spec names e2b"}},
		{"named and not there", Needs{Provider: "docker"}, "", map[string]string{"docker": "no daemon answers"}},
		{"a desktop", Needs{Desktop: true}, "e2b", map[string]string{"gvisor": "has no desktop"}},
		{"a desktop for free", Needs{Desktop: true, Price: PriceFree}, "", map[string]string{"e2b": "price class use is above free"}},
		{"memory", Needs{Limits: []string{"memory"}, Snapshot: SnapshotMemory}, "gvisor", map[string]string{"host": "does not enforce the memory limit", "e2b": "cannot take snapshots of memory"}},
		{"files of its own", Needs{OwnFiles: true}, "gvisor", map[string]string{"host": "has no root file system of its own"}},
		{"a kernel of its own", Needs{Isolation: sandbox.IsolationKernel}, "gvisor", map[string]string{"host": "gives none, and isolation kernel is needed", "e2b": "gives unknown isolation"}},
		{"hardware", Needs{Isolation: sandbox.IsolationHardware}, "microvm", map[string]string{"gvisor": "gives kernel, and isolation hardware is needed"}},
		{"hardware of one that has less", Needs{Isolation: sandbox.IsolationHardware, Provider: "gvisor"}, "", map[string]string{"gvisor": "gives kernel"}},
		{"a word that is none", Needs{Isolation: "vm"}, "", map[string]string{"gvisor": `"vm" is no isolation`}},
		{"any", Needs{Isolation: sandbox.IsolationNone}, "gvisor", nil},
		{"rules for requests", Needs{Egress: enforce.Full}, "gvisor", map[string]string{"e2b": "enforces egress at level host, and full is needed"}},
	}
	for _, tt := range tests {
		got := Choose(tt.n, facts(t))
		if got.Provider != tt.want || len(got.Candidates) != len(facts(t)) {
			t.Errorf("%s: %+v, want %q", tt.name, got, tt.want)
		}
		for _, c := range got.Candidates {
			if c.Fits && tt.want != "" && got.Candidates[0].Provider != tt.want || len(c.Reasons) == 0 {
				t.Errorf("%s: %+v", tt.name, c)
			}
			if why := tt.why[c.Provider]; why != "" && (c.Fits || !strings.Contains(strings.Join(c.Reasons, "; "), why)) {
				t.Errorf("%s: %s because %q, want %q", tt.name, c.Provider, c.Reasons, why)
			}
		}
	}
	denied := facts(t)
	denied[0].Denied = "provider gvisor is not in the list"
	if got := Choose(Needs{}, denied); got.Provider != "host" {
		t.Errorf("a denied provider: %+v", got)
	}
}

func TestNeedsOf(t *testing.T) {
	n := NeedsOf(&sandbox.Spec{Image: "debian:12", User: "1000", Network: sandbox.Network{Egress: []string{"example.com"}}})
	if !n.Images || !n.User || n.Egress != enforce.Host {
		t.Errorf("%+v", n)
	}
	if n := NeedsOf(&sandbox.Spec{Image: "host"}); n.Images || n.Egress != "" {
		t.Errorf("%+v", n)
	}
}

func BenchmarkNegotiateAll(b *testing.B) {
	list := Known()
	for b.Loop() {
		for _, d := range list {
			if _, err := Negotiate(d, Query{Liveness: "warm"}); err != nil {
				b.Fatal(err)
			}
		}
	}
}
