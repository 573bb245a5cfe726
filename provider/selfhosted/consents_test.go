package selfhosted_test

import (
	"slices"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/machine/agent"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/eventtype"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// What the owner of a machine agrees to later, or withdraws, is an event of the
// tenant, once for each change, also if the machine was off. RB-102.
func TestConsentsAreEvents(t *testing.T) {
	client, m, at := newWorld(t).fakeMachine(t)
	const agreed, plain = "sandboxes, updates", "sandboxes"
	var want []string
	await := func(consents string) {
		t.Helper()
		want = append(want, consents)
		var got []string
		for range 1200 {
			got = got[:0]
			for e, err := range client.Events(t.Context(), sandbox.EventQuery{Types: []string{eventtype.MachineConsents}}) {
				if err != nil {
					t.Fatal(err)
				}
				if e.Op != "machine.consent" || e.Subject != m.ID() {
					t.Errorf("the event is %+v, want one of machine.consent about %s", e, m.ID())
				}
				got = append(got, e.Policy)
			}
			if len(got) >= len(want) {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("the events say %q, want %q", got, want)
		}
	}
	set := func(text string) {
		t.Helper()
		if _, err := agent.SetConsent(at, operator.ConsentUpdates, text); err != nil {
			t.Fatal(err)
		}
	}
	set("the owner agrees")
	await(agreed)
	set("")
	await(plain)
	if err := m.Disconnect(); err != nil {
		t.Fatal(err)
	}
	set("the owner agrees again")
	if err := m.Connect(); err != nil {
		t.Fatal(err)
	}
	await(agreed)
	if got, err := client.Admin().Machine(t.Context(), m.ID()); err != nil || got.Consents.String() != agreed {
		t.Errorf("the machine has the consents %v, %v; want %s", got.Consents, err, agreed)
	}
}
