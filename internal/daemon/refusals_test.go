package daemon_test

import (
	"testing"

	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/eventtype"
)

// The events of a sandbox include decisions that were on their way from the
// gateway when a client asked for the events.
func TestEventsIncludeDecisionsInTransit(t *testing.T) {
	d := daemontest.New(t).Start(t, func(*daemon.Options) {})
	c := daemontest.Client(t, d)
	id := create(t, c, sandbox.Spec{Name: "one"}).ID()
	d.SetSettle(func(hear func(sandbox.ID, gateway.Event)) {
		hear(id, gateway.Event{Verdict: messages.Denied, Kind: "tcp", Host: "late.test", Port: 80, Reason: "no rule allows it"})
	})
	var found []string
	q := sandbox.EventQuery{Ops: []string{string(ops.EgressFlow)}, Types: []string{eventtype.EgressDenied}, Sandbox: id}
	for e, err := range c.Events(t.Context(), q) {
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, e.Subject)
	}
	if len(found) != 1 || found[0] != "tcp late.test:80 (no rule allows it)" {
		t.Errorf("the events are %q", found)
	}
}
