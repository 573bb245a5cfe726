package scale

import (
	"os"
	"runtime"
	"testing"
	"time"
)

// size returns the options of a run. ATOLL_SCALE=full asks for 10,000 nodes with
// 10 million sandboxes, as `make scale` does.
func size() Options {
	o := Options{
		Seed: 1, Nodes: 300, Zones: 3, Daemons: 3, Sandboxes: 300_000, Weight: 100, Burst: 3000, Within: 10 * time.Second,
		Word: time.Minute, Return: 5 * time.Minute, Database: 2000,
	}
	if os.Getenv("ATOLL_SCALE") == "full" {
		o.Nodes, o.Sandboxes, o.Burst = 10_000, 10_000_000, 100_000
	}
	return o
}

func run(t *testing.T, o Options) Result {
	t.Helper()
	began := time.Now()
	r := Run(o)
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	t.Logf("%d nodes, %d sandboxes, %d control daemons, %.0f transactions per second; took %s and %d MiB",
		o.Nodes, o.Sandboxes, o.Daemons, o.Database, time.Since(began).Round(time.Second), m.Sys>>20)
	t.Logf("placement: %s per create; the fullest node has %.3f of the mean, and %.3f after all; %d refused by full nodes and tried again", r.PlaceTime, r.Filled, r.Imbalance, r.Refused)
	t.Logf("a burst of %d in %s is done after %s", o.Burst, o.Within, r.BurstDone.Round(time.Second))
	t.Logf("leases: %.1f transactions per create, %.1f per rebuilt session", r.PerCreate, r.PerRebuild)
	t.Logf("a lost zone: %d sandboxes; recorded as gone %s after the operator's word, all sessions serve again after %s", r.Rebuilt, r.GivenUp.Round(time.Second), r.Recovered.Round(time.Second))
	t.Logf("reapers: %.0f transactions per second", r.Sweep)
	if r.Twice != 0 || r.Missing != 0 {
		t.Errorf("%d sessions have two sandboxes, and %d have none", r.Twice, r.Missing)
	}
	return r
}

// Sandboxes spread evenly, and after the loss of a zone, every session has one
// sandbox again.
func TestScale(t *testing.T) {
	o := size()
	r := run(t, o)
	if r.Filled > 1.3 || r.Imbalance > 1.3 {
		t.Errorf("the fullest node has %.2f and %.2f of the mean", r.Filled, r.Imbalance)
	}
	if want := o.Sandboxes / o.Zones; r.Rebuilt < want*9/10 || r.Rebuilt > want*11/10 {
		t.Errorf("%d were rebuilt, want about %d: the test lost no zone", r.Rebuilt, want)
	}
}

// If few nodes have an image, a burst goes to them until they are full.
func TestScaleOfOneImage(t *testing.T) {
	o := size()
	o.Images = o.Nodes / 100
	o.Sandboxes /= 2
	run(t, o)
}

func TestScaleIsAFunctionOfItsSeed(t *testing.T) {
	o := size()
	o.Nodes, o.Sandboxes, o.Burst = 30, 30_000, 300
	a, b := Run(o), Run(o)
	if a.PlaceTime, b.PlaceTime = 0, 0; a != b {
		t.Errorf("two runs differ: %+v and %+v", a, b)
	}
}
