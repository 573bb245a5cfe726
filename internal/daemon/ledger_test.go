package daemon_test

import (
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
)

// The history of a session lists the sandboxes that served it, their holders,
// and why each ended.
func TestHistoryOfEpochs(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, shortGrace)
	c := daemontest.Client(t, d)
	s := openSession(t, c, sandbox.Spec{}, atoll.SessionOptions{Name: "agent", Turn: true})
	first := s.Receipt().Sandbox
	endOutside(t, m, first)
	if _, err := s.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := s.Receipt().Sandbox
	if err := s.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	untilCold(t, c, "agent")
	if _, err := s.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := untilLease(t, c, "agent", "warm").Lease.History
	if len(got) != 3 {
		t.Fatalf("the history is %+v, want three epochs", got)
	}
	for i, want := range []struct {
		sandbox sandbox.ID
		why     string
	}{{s.Receipt().Sandbox, ""}, {second, "it was unused"}, {first, "it was gone"}} {
		e := got[i]
		if e.Epoch != int64(3-i) || e.Sandbox != want.sandbox || e.Why != want.why || e.Ended.IsZero() != (i == 0) || e.Began.IsZero() || e.Provider != "fake" || len(e.Holders) != 1 {
			t.Errorf("epoch %d: %+v, want sandbox %s, %q and one holder", 3-i, e, want.sandbox, want.why)
		}
	}
}
