package sim

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// schedules is how many schedules a test explores. ATOLL_SIM_SCHEDULES sets
// another number: a million takes minutes.
func schedules(t *testing.T) uint64 {
	n := uint64(3000)
	if s := os.Getenv("ATOLL_SIM_SCHEDULES"); s != "" {
		var err error
		if n, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func options(seed uint64) Options {
	o := Options{Seed: seed, Clients: 1 + int(seed%3), Reapers: 1 + int(seed/3%2), Faults: float64(seed%4) * 0.05, Crashes: float64(seed/4%3) * 0.004, Losses: float64(seed/12%3) * 0.01}
	if seed%7 == 0 { // long turns at a provider that ends its sandboxes
		o.Lifetime = 40 * time.Minute
	}
	if seed%14 == 0 {
		o.Faults, o.Crashes, o.Losses = 0, 0, 0
	}
	return o
}

// RB-53.
func TestSchedules(t *testing.T) {
	steps := 0
	for seed := range schedules(t) {
		r := Run(options(seed))
		if steps += r.Steps; r.Violation != "" {
			t.Fatalf("seed %d: %s\n%s", seed, r.Violation, strings.Join(r.Log, "\n"))
		}
	}
	t.Logf("%d steps", steps)
}

// Every rule is needed: without it, some schedule violates an invariant (RB-56).
func TestMutants(t *testing.T) {
	for name, rule := range Mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(5000) {
				o := options(seed)
				o.Mutant = name
				if Run(o).Violation != "" {
					return
				}
			}
			t.Errorf("no schedule notices that this rule is broken: %s", rule)
		})
	}
}

// fleet are options with nodes and daemons.
func fleet(seed uint64) Options {
	return Options{
		Seed: seed, Clients: 2 + int(seed%3), Nodes: 2 + int(seed/2%2), Daemons: 1 + int(seed%3), Operators: int(seed / 3 % 3), Skew: 10 * time.Minute,
		Faults: float64(seed%4) * 0.03, Crashes: float64(seed/4%3) * 0.002, Cuts: float64(seed/5%3) * 0.01, Losses: float64(seed/12%3) * 0.002,
	}
}

// Daemons on one database and their nodes die, are cut off and come back, while
// operators drain, remove and give up nodes.
func TestFleetSchedules(t *testing.T) {
	steps := 0
	for seed := range schedules(t) {
		r := Run(fleet(seed))
		if steps += r.Steps; r.Violation != "" {
			t.Fatalf("seed %d: %s\n%s", seed, r.Violation, strings.Join(r.Log, "\n"))
		}
	}
	t.Logf("%d steps", steps)
}

func TestFleetMutants(t *testing.T) {
	for name, rule := range FleetMutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(5000) {
				o := fleet(seed)
				o.Mutant = name
				if r := Run(o); r.Violation != "" {
					t.Logf("seed %d: %s", seed, r.Violation)
					return
				}
			}
			t.Errorf("no schedule notices that this rule is broken: %s", rule)
		})
	}
}

func TestRunIsAFunctionOfItsSeed(t *testing.T) {
	for seed := range uint64(50) {
		for _, o := range []Options{options(seed), fleet(seed)} {
			a, b := Run(o), Run(o)
			if a.Steps != b.Steps || strings.Join(a.Log, "\n") != strings.Join(b.Log, "\n") {
				t.Fatalf("seed %d: two runs differ", seed)
			}
		}
	}
}
