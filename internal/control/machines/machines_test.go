package machines

import (
	"slices"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// The mode of the whole machine has to be taken, and the screen may be; nothing is
// taken that the machine does not offer.
func TestTakenConsents(t *testing.T) {
	whole, screen, plain := operator.ConsentWholeMachine, operator.ConsentScreen, operator.ConsentSandboxes
	for _, c := range []struct {
		name        string
		asks, takes operator.Consents
		want        operator.Consents // nil: refused
	}{
		{"sandboxes", operator.Consents{plain}, nil, operator.Consents{plain}},
		{"sandboxes, named", operator.Consents{plain}, operator.Consents{plain}, operator.Consents{plain}},
		{"the whole machine of sandboxes", operator.Consents{plain}, operator.Consents{whole}, nil},
		{"nothing of a whole machine", operator.Consents{whole, screen}, nil, nil},
		{"the screen alone", operator.Consents{whole, screen}, operator.Consents{screen}, nil},
		{"without the screen", operator.Consents{whole, screen}, operator.Consents{whole}, operator.Consents{whole}},
		{"all", operator.Consents{whole, screen}, operator.Consents{screen, whole}, operator.Consents{whole, screen}},
		{"a screen that is not offered", operator.Consents{whole}, operator.Consents{whole, screen}, nil},
		{"updates, which nobody offered", operator.Consents{whole}, operator.Consents{whole, operator.ConsentUpdates}, nil},
	} {
		got, err := taken(c.asks, c.takes)
		if (err == nil) != (c.want != nil) || !slices.Equal(got, c.want) || err != nil && sandbox.CodeOf(err) != sandbox.CodeConflict {
			t.Errorf("%s: %v, %v; want %v", c.name, got, err, c.want)
		}
	}
}
