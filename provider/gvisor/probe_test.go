package gvisor

import (
	"errors"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/gvisor/kernel"
)

// TestProbeNamesWhatIsDisabled checks that the doctor reports every item that
// does not fit the linked gVisor, and says nothing if all do.
func TestProbeNamesWhatIsDisabled(t *testing.T) {
	if got := probeInternals(kernel.Items()); len(got) != 0 {
		t.Errorf("findings although all items fit: %+v", got)
	}
	got := probeInternals([]kernel.Item{{Name: "one", Disabled: errors.New("pma is gone")}, {Name: "two"}, {Name: "three", Disabled: errors.New("pma is gone")}})
	if len(got) != 1 || got[0].Severity != driver.Warning || got[0].Fix == "" {
		t.Fatalf("findings: %+v, want one warning with a remedy", got)
	}
	for _, want := range []string{"one, three", "pma is gone"} {
		if !strings.Contains(got[0].Message, want) {
			t.Errorf("the message is %q, want text that contains %q", got[0].Message, want)
		}
	}
	if strings.Contains(got[0].Message, "two") {
		t.Errorf("the message is %q, but two fits", got[0].Message)
	}
}
