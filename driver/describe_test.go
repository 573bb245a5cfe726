package driver_test

import (
	"testing"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver"
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
