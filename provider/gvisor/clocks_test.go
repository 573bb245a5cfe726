package gvisor_test

import (
	"bufio"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// TestClocksAndRandomness checks a copied process: time continues and does not
// go back, the date is right, and the kernel's random numbers differ between
// copies. Random numbers drawn before, and the program's own generator, are the
// same in all copies.
func TestClocksAndRandomness(t *testing.T) {
	p := newProvider(t, nil)
	in := create(t, p, sandbox.Spec{ID: "clocks", Image: "host"})
	proc := background(t, in, repl)
	out := bufio.NewReader(proc.Stdout())
	ask(t, proc, out, "import os, time, random; r = random.Random(7); drawn = os.urandom(8).hex()")
	before, err := strconv.ParseInt(ask(t, proc, out, "time.monotonic_ns()"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	drawn := ask(t, proc, out, "drawn")
	dir := snapshot(t, in, driver.SnapshotOptions{Memory: true})
	said := len("ok\n") + len(fmt.Sprint(before)) + 1 + len(drawn) + 1
	kernels, own := map[string]bool{}, map[string]bool{}
	for i := range 2 {
		twin, how := restore(t, p, dir, sandbox.Spec{ID: sandbox.ID(fmt.Sprint("clocks-", i)), Image: "host"})
		if !how.Memory {
			t.Fatal(how.Why)
		}
		again, out := reconnect(t, twin, proc.Info().ID, said)
		after, err := strconv.ParseInt(ask(t, again, out, "time.monotonic_ns()"), 10, 64)
		if err != nil || after <= before {
			t.Errorf("the monotonic clock went from %d to %d, %v", before, after, err)
		}
		early := time.Now().Add(-time.Second)
		wall, err := strconv.ParseInt(ask(t, again, out, "time.time_ns()"), 10, 64)
		if now := time.Unix(0, wall); err != nil || now.Before(early) || now.After(time.Now().Add(time.Second)) {
			t.Errorf("it is %v inside, %v", now, err)
		}
		kernels[ask(t, again, out, "os.urandom(8).hex() + open('/dev/urandom', 'rb').read(8).hex() + os.getrandom(8).hex()")] = true
		own[ask(t, again, out, "r.random()")] = true
		if got := ask(t, again, out, "drawn"); got != drawn {
			t.Errorf("the earlier random number was %q and is %q", drawn, got)
		}
	}
	if len(kernels) != 2 || len(own) != 1 {
		t.Errorf("the kernels gave %s, the programs' own generator %s", strings.Join(keys(kernels), " "), strings.Join(keys(own), " "))
	}
}

func keys(m map[string]bool) (all []string) {
	for k := range m {
		all = append(all, k)
	}
	return all
}
