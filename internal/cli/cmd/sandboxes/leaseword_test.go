package sandboxes

import (
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox/durable"
)

func TestLeaseWord(t *testing.T) {
	now := time.Unix(1000, 0)
	for want, l := range map[string]durable.LeaseInfo{
		"warm":     {State: "warm", Sandbox: "sb-1", Expires: now.Add(time.Hour)},
		"idle":     {State: "draining", Sandbox: "sb-1", Idle: now.Add(-time.Second), Expires: now.Add(time.Second)},
		"draining": {State: "draining", Sandbox: "sb-1", Idle: now.Add(-time.Hour), Expires: now.Add(-time.Second)},
		"paused":   {State: "cold", Sandbox: "sb-1"},
		"cold":     {State: "cold"},
		"warming":  {State: "warming"},
	} {
		if got := leaseWord(&l, now); got != want {
			t.Errorf("%+v is %s, want %s", l, got, want)
		}
	}
	if got := leaseWord(&durable.LeaseInfo{State: "draining", Expires: now.Add(time.Hour)}, now); got != "draining" { // it is rotated
		t.Errorf("a rotation is %s, want draining", got)
	}
}
