package catalog

import (
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// What the living provider says of its isolation wins over its descriptor, and
// decides the choice.
func TestFactsWinOverTheDescriptor(t *testing.T) {
	emulated := Provider{Name: "microvm", Available: true}
	emulated.Descriptor.Isolation = sandbox.IsolationNone // its processor is emulated
	silent := Provider{Name: "gvisor", Available: true, Default: true}
	all := Describe([]Provider{silent, emulated})
	if all[0].Descriptor.Isolation != sandbox.IsolationKernel || all[1].Descriptor.Isolation != sandbox.IsolationNone {
		t.Errorf("gvisor gives %q, microvm %q", all[0].Descriptor.Isolation, all[1].Descriptor.Isolation)
	}
	if got := ChooseFrom(Needs{Isolation: sandbox.IsolationHardware}, all); got.Provider != "" {
		t.Errorf("hardware is given by %s", got.Provider)
	}
	if doc, err := Negotiate(all[0].Descriptor, Query{}); err != nil || doc.Isolation != sandbox.IsolationKernel {
		t.Errorf("the document says %q, %v", doc.Isolation, err)
	}
}

func TestIsolationsAreOrdered(t *testing.T) {
	all := append([]sandbox.Isolation{""}, sandbox.Isolations()...)
	for i, a := range all {
		for j, b := range all {
			if got, want := a.Meets(b), i >= j || j <= 1; got != want { // what is not known counts as none
				t.Errorf("%q meets %q: %v", a, b, got)
			}
			if got := a.Stronger(b); !got.Meets(a) || !got.Meets(b) {
				t.Errorf("the stronger one of %q and %q is %q", a, b, got)
			}
		}
	}
	if sandbox.Isolation("vm").Valid() {
		t.Error("a word that is none is valid")
	}
}
