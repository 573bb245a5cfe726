package catalog

import (
	"slices"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// RB-7.
func TestCatalogDescribe(t *testing.T) {
	list := Describe([]Provider{
		{Name: "gvisor", Available: true, Default: true, Isolates: true, Capabilities: map[string]bool{"snapshot": true, "memory": true, "ports": true, "files": true}, Limits: map[string]sandbox.Enforcement{"memory": {Enforced: true}}},
		{Name: "mine", Summary: "brought along"},
	})
	if len(list) != len(Known())+1 || !list[0].Descriptor.Driver.Available || !list[1].Descriptor.Driver.Available || list[1].Descriptor.Name != "mine" {
		t.Fatalf("%d providers, first %+v", len(list), list[0])
	}
	if d := list[0].Descriptor; d.Pause != "" || d.RunAs || d.Snapshot.Kind != SnapshotMemory || d.Terminal.PTY {
		t.Errorf("the descriptor says more than the driver can do: %+v", d)
	}
	for _, p := range list {
		if err := CheckDescriptor(p.Name, p.Descriptor); err != nil {
			t.Error(err)
		}
		if p.Name != "gvisor" && p.Name != "mine" && (p.Descriptor.Driver.Available || p.Available || p.Problem == "") {
			t.Errorf("%s has no driver, and is %+v", p.Name, p)
		}
	}
	choice := ChooseFrom(Needs{Limits: []string{"memory"}, Snapshot: SnapshotMemory}, list)
	at := slices.IndexFunc(choice.Candidates, func(c Candidate) bool { return c.Provider == "superserve" })
	if choice.Provider != "gvisor" || at < 0 || choice.Candidates[at].Fits {
		t.Errorf("%+v", choice)
	}
}
