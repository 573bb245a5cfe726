package superserve_test

import (
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	service "github.com/atoll-run/atoll/internal/testing/servicetest/superserve"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/superserve"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

func TestThroughDaemon(t *testing.T) {
	hostedtest.ThroughDaemon(t, func(t *testing.T) *hostedtest.World[*superserve.Provider] { return serve(t).World })
}

func TestHandover(t *testing.T) {
	const other = "ss_live_use_zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz"
	w := serve(t)
	w.AddKey(other, "team-2")
	h := hostedtest.Handover{
		Name: superserve.Name, Records: true, Open: w.Opener, Count: func() int { return len(w.Names()) },
		Other: func(dir string) (driver.Provider, error) {
			opts := w.options(dir)
			opts.Key = key(other)
			return superserve.New(opts)
		},
	}
	h.Run(t)
}

// A sandbox that the service reports as failed is made again from what was
// saved, and the receipt says so.
func TestFailedIsMadeAgain(t *testing.T) {
	w := serve(t)
	c := hostedtest.Daemon(t, superserve.Name, true, w.Opener)
	s, err := c.Sessions().Create(t.Context(), sandbox.Spec{}, atoll.SessionOptions{Name: "agent"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	run := func(shell string) string {
		t.Helper()
		res, err := s.Run(t.Context(), sandbox.Command{Shell: shell}, atoll.RunOptions{})
		if err != nil || res.Exit.Code != 0 {
			t.Fatalf("%s: %+v, %v", shell, res, err)
		}
		return string(res.Stdout)
	}
	run("mkdir -p /workspace && echo saved >/workspace/note")
	if _, err := s.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := s.Receipt().Sandbox
	w.Force(service.Failed)
	r, err := s.Acquire(t.Context())
	if err != nil || r.Sandbox == first || r.Outcome == durable.OutcomeAttached || r.Why == "" {
		t.Fatalf("after the failure of %s: %+v, %v", first, r, err)
	}
	if got := run("cat /workspace/note"); got != "saved\n" {
		t.Errorf("it has %q", got)
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Empty(t)
}
