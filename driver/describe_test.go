package driver_test

import (
	"context"
	"testing"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// An unavailable provider has a Problem.
func TestDescribeSaysWhatBlocks(t *testing.T) {
	findings := []driver.Finding{
		{Severity: driver.OK, Message: "fine"},
		{Severity: driver.Blocker, Message: "no key"},
		{Severity: driver.Blocker, Message: "no network"},
	}
	for available, want := range map[bool]string{false: "no key", true: ""} {
		var p catalog.Provider
		driver.Facts{Available: available, Findings: findings}.Describe(&p)
		if p.Problem != want {
			t.Errorf("available %t: the problem is %q, want %q", available, p.Problem, want)
		}
	}
}

// byGateway can use the gateway, if it is set.
type byGateway struct {
	driver.Provider
	set bool
}

func (byGateway) EgressAbility() enforce.Ability {
	return enforce.Ability{Kind: enforce.CIDRPort}
}
func (p byGateway) CanUseGateway() bool                                 { return p.set }
func (byGateway) UsesGateway(context.Context, sandbox.ID) (bool, error) { return false, nil }

// With the gateway, a provider enforces all rules, whatever its descriptor says.
func TestDescribeGateway(t *testing.T) {
	for set, want := range map[bool]enforce.Kind{false: enforce.CIDRPort, true: enforce.Full} {
		p := catalog.Provider{Name: "kubernetes"}
		driver.Describe(byGateway{set: set}, driver.Facts{Available: true}, &p)
		if got := catalog.Describe([]catalog.Provider{p})[0].Descriptor.Egress; got != want {
			t.Errorf("with the gateway %v, it enforces %s, want %s", set, got, want)
		}
	}
}
