package machines

import (
	"slices"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// The mode of the whole machine has to be taken, and the screen may be; nothing is
// taken that the machine does not offer.
func TestTakenConsents(t *testing.T) {
	whole, screen, plain := sandbox.ConsentWholeMachine, sandbox.ConsentScreen, sandbox.ConsentSandboxes
	for _, c := range []struct {
		name        string
		asks, takes sandbox.Consents
		want        sandbox.Consents // nil: refused
	}{
		{"sandboxes", sandbox.Consents{plain}, nil, sandbox.Consents{plain}},
		{"sandboxes, named", sandbox.Consents{plain}, sandbox.Consents{plain}, sandbox.Consents{plain}},
		{"the whole machine of sandboxes", sandbox.Consents{plain}, sandbox.Consents{whole}, nil},
		{"nothing of a whole machine", sandbox.Consents{whole, screen}, nil, nil},
		{"the screen alone", sandbox.Consents{whole, screen}, sandbox.Consents{screen}, nil},
		{"without the screen", sandbox.Consents{whole, screen}, sandbox.Consents{whole}, sandbox.Consents{whole}},
		{"all", sandbox.Consents{whole, screen}, sandbox.Consents{screen, whole}, sandbox.Consents{whole, screen}},
		{"a screen that is not offered", sandbox.Consents{whole}, sandbox.Consents{whole, screen}, nil},
		{"updates, which nobody offered", sandbox.Consents{whole}, sandbox.Consents{whole, sandbox.ConsentUpdates}, nil},
	} {
		got, err := taken(c.asks, c.takes)
		if (err == nil) != (c.want != nil) || !slices.Equal(got, c.want) || err != nil && sandbox.CodeOf(err) != sandbox.CodeConflict {
			t.Errorf("%s: %v, %v; want %v", c.name, got, err, c.want)
		}
	}
}
