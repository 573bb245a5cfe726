package drivertest

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

func (sb *testSandbox) resize(limits sandbox.Resources) error {
	r, ok := driver.As[driver.Resizer](sb.inst)
	if !ok {
		sb.Fatalf("resize is declared, but the instance is no Resizer")
	}
	return r.Resize(sb.ctx, limits)
}

// holds reports whether the provider enforces a limit.
func (t *caseT) holds(limit string) bool { return t.facts.Limits[limit].Holds }

// nest runs itself in nested shells, as many as its argument says. The command
// after the inner shell keeps the outer one alive.
const nest = `[ "$1" -gt 0 ] || { echo enough; exit; }; sh -c "$0" "$0" $(($1 - 1)); exit $?`

// crowd reports whether n processes can run at once.
func (sb *testSandbox) crowd(n int) bool {
	return sb.argv("sh", "-c", nest, nest, strconv.Itoa(n)).stdout == "enough\n"
}

const (
	fewProcesses  = 60
	manyProcesses = 400
	crowdSize     = 120
)

var resizeCases = []testCase{
	{"resize/processes", capResize, func(t *caseT) {
		b := t.fresh(func(s *sandbox.Spec) { s.Resources.PIDs = manyProcesses })
		if !b.crowd(crowdSize) {
			t.Errorf("%d processes do not fit into %d", crowdSize, manyProcesses)
		}
		err := b.resize(sandbox.Resources{PIDs: fewProcesses})
		if !t.holds("pids") {
			t.wantCode("Resize of a limit that does not hold", err, sandbox.CodeUnsupported)
			return
		}
		t.ok("Resize", err)
		if b.crowd(crowdSize) {
			t.Errorf("%d processes fit into a limit that was lowered to %d", crowdSize, fewProcesses)
		}
		t.ok("Resize with nothing to change", b.resize(sandbox.Resources{}))
		if b.crowd(crowdSize) {
			t.Errorf("Resize with nothing to change lifted a limit")
		}
		t.ok("Resize", b.resize(sandbox.Resources{PIDs: manyProcesses}))
		if !b.crowd(crowdSize) {
			t.Errorf("%d processes do not fit into a limit that was raised to %d", crowdSize, manyProcesses)
		}
	}},
	{"resize/memory", capResize, func(t *caseT) {
		const small, large = 128 << 20, 512 << 20
		fill := []string{"dd", "if=/dev/zero", "of=/dev/null", "bs=200000000", "count=1"}
		b := t.fresh(func(s *sandbox.Spec) { s.Resources.Memory = small })
		err := b.resize(sandbox.Resources{Memory: large})
		if !t.holds("memory") {
			t.wantCode("Resize of a limit that does not hold", err, sandbox.CodeUnsupported)
			return
		}
		t.ok("Resize", err)
		if r := b.argv(fill...); r.exit.Code != 0 {
			t.Errorf("200 MB do not fit into a limit that was raised to 512 MiB: %v", r)
		}
		// The command's memory is freed soon, but not at once.
		t.eventually("the limit can be lowered", func() bool {
			err := b.resize(sandbox.Resources{Memory: small})
			if sandbox.CodeOf(err) == sandbox.CodeConflict || t.provider.ErrorCode(err) == sandbox.CodeConflict {
				return false
			}
			t.ok("Resize", err)
			return true
		})
		p, err := b.inst.Exec(t.ctx, &sandbox.Command{Args: fill})
		t.ok("Exec", err)
		defer p.Close()
		if exit, err := p.Wait(t.ctx); err == nil && exit.Code == 0 {
			t.Errorf("200 MB fit into a limit that was lowered to 128 MiB")
		}
	}},
	{"resize/all-or-nothing", capResize, func(t *caseT) {
		if !t.holds("pids") {
			return
		}
		b := t.fresh(func(s *sandbox.Spec) { s.Resources.PIDs = manyProcesses })
		err := b.resize(sandbox.Resources{PIDs: fewProcesses, Disk: 1 << 30})
		if err == nil {
			return // it can change all limits
		}
		t.wantCode("Resize of a limit that cannot change", err, sandbox.CodeUnsupported)
		if !b.crowd(crowdSize) {
			t.Errorf("Resize failed, and changed another limit")
		}
	}},
	{"resize/destroyed", capResize, func(t *caseT) {
		b := t.fresh()
		t.ok("Destroy", b.inst.Destroy(t.ctx))
		t.wantCode("Resize of a destroyed sandbox", b.resize(sandbox.Resources{PIDs: manyProcesses}), sandbox.CodeGone)
	}},
}

func (sb *testSandbox) setDeadline(at time.Time) error {
	d, ok := driver.As[driver.DeadlineSetter](sb.inst)
	if !ok {
		sb.Fatalf("deadline is declared, but the instance is no DeadlineSetter")
	}
	return d.SetDeadline(sb.ctx, at)
}

// endsByLifetime waits for the end of the sandbox.
func (sb *testSandbox) endsByLifetime() {
	exit, err := sb.inst.Wait(sb.ctx)
	sb.ok("Wait", err)
	if exit.Reason != sandbox.ReasonLifetime {
		sb.Errorf("the sandbox ended with %+v, want reason lifetime", exit)
	}
}

// livesFor checks that the sandbox does not end for d, which is longer than its
// earlier deadline.
func (sb *testSandbox) livesFor(d time.Duration) {
	ctx, cancel := context.WithTimeout(sb.ctx, d)
	defer cancel()
	if exit, err := sb.inst.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		sb.Fatalf("the sandbox ended before its deadline: %+v, %v", exit, err)
	}
	sb.want(sb.argv("echo", "alive"), "alive\n")
}

// short is a lifetime that ends soon.
func (t *caseT) short() time.Duration {
	return time.Duration(size(t.suite, int64(2*time.Second), int64(15*time.Second)))
}

// shortLived creates a sandbox with a short lifetime and calls do while it
// lives. It returns a lifetime that was long enough for that: on a busy machine
// the sandbox may end before the first call returns, which is not the
// provider's fault.
func (t *caseT) shortLived(do func(*testSandbox) error) (*testSandbox, time.Duration) {
	return t.shortLivedAt(t.provider, t.own, do)
}

// shortLivedAt is shortLived for another connection to the provider; own
// destroys the sandbox at the end.
func (t *caseT) shortLivedAt(p driver.Provider, own func(driver.Instance) *testSandbox, do func(*testSandbox) error) (*testSandbox, time.Duration) {
	for life := t.short(); ; life *= 2 {
		before := time.Now()
		inst, err := p.Create(t.ctx, t.spec(func(s *sandbox.Spec) { s.Lifetime.Timeout = life }))
		if err == nil {
			b := own(inst)
			if err = do(b); err == nil && time.Since(before) < life { // else it may have ended before
				return b, life
			}
		}
		if time.Since(before) < life || life > 8*t.short() {
			t.Fatalf("a sandbox with a lifetime of %v: %v", life, t.vet(err))
		}
	}
}

var deadlineCases = []testCase{
	{"deadline/set", capDeadline, func(t *caseT) {
		b := t.fresh()
		t.ok("SetDeadline", b.setDeadline(time.Now().Add(t.short())))
		b.endsByLifetime()
	}},
	{"deadline/earlier", capDeadline, func(t *caseT) {
		b := t.fresh(func(s *sandbox.Spec) { s.Lifetime.Timeout = time.Hour })
		t.ok("SetDeadline", b.setDeadline(time.Now().Add(t.short())))
		b.endsByLifetime()
	}},
	{"deadline/past", capDeadline, func(t *caseT) {
		b := t.fresh()
		t.ok("SetDeadline", b.setDeadline(time.Now().Add(-time.Hour)))
		b.endsByLifetime()
	}},
	{"deadline/later", capDeadline, func(t *caseT) {
		b, life := t.shortLived(func(b *testSandbox) error { return b.setDeadline(time.Now().Add(time.Hour)) })
		b.livesFor(3 * life / 2)
	}},
	{"deadline/never", capDeadline, func(t *caseT) {
		b, life := t.shortLived(func(b *testSandbox) error { return b.setDeadline(time.Time{}) })
		b.livesFor(3 * life / 2)
	}},
	{"deadline/elsewhere", capDeadline, func(t *caseT) {
		if !t.declared(capReattach) {
			return // no other process can reach the sandbox
		}
		elsewhere := t.connect()
		extend := func(b *testSandbox, by time.Duration) error {
			inst, err := elsewhere.Attach(t.ctx, b.inst.ID())
			if err != nil {
				return err
			}
			return t.attach(inst).setDeadline(time.Now().Add(by))
		}
		later, life := t.shortLived(func(b *testSandbox) error { return extend(b, time.Hour) })
		earlier := t.fresh()
		t.ok("SetDeadline by another process", extend(earlier, t.short()))
		later.livesFor(3 * life / 2)
		earlier.endsByLifetime()
	}},
	{"deadline/destroyed", capDeadline, func(t *caseT) {
		b := t.fresh()
		t.ok("Destroy", b.inst.Destroy(t.ctx))
		t.wantCode("SetDeadline of a destroyed sandbox", b.setDeadline(time.Now().Add(time.Hour)), sandbox.CodeGone)
	}},
}

func (sb *testSandbox) usage() sandbox.Usage {
	m, ok := driver.As[driver.Meter](sb.inst)
	if !ok {
		sb.Fatalf("usage is declared, but the instance is no Meter")
	}
	before := time.Now()
	u, err := m.Usage(sb.ctx)
	sb.ok("Usage", err)
	if u.Sampled.Before(before.Add(-time.Minute)) || u.Sampled.After(time.Now().Add(time.Minute)) {
		sb.Errorf("sampled %v, want about %v", u.Sampled, before)
	}
	return u
}

var usageCases = []testCase{
	{"usage/figures", capUsage, func(t *caseT) {
		u := t.fresh().usage()
		if u.CPU < 0 && u.Memory < 0 && u.Disk < 0 && u.PIDs < 0 {
			t.Errorf("usage is declared, and no figure is known")
		}
		if u.Memory == 0 {
			t.Errorf("a sandbox without memory")
		}
	}},
	{"usage/processes", capUsage, func(t *caseT) {
		b := t.fresh()
		before := b.usage()
		if before.PIDs < 0 {
			return
		}
		p := b.start(sandbox.Command{Shell: "for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done; echo ready; wait"})
		b.readLines(p.Stdout()).await("ready")
		if now := b.usage(); now.PIDs < before.PIDs+8 {
			t.Errorf("%d processes, and %d after nine more were started", before.PIDs, now.PIDs)
		}
	}},
	{"usage/processor", capUsage, func(t *caseT) {
		b := t.fresh()
		before := b.usage()
		if before.CPU < 0 {
			return
		}
		b.start(sandbox.Command{Shell: "while :; do :; done"})
		t.eventually("a busy loop uses the processor", func() bool { return b.usage().CPU >= before.CPU+50*time.Millisecond })
	}},
	{"usage/disk", capUsage, func(t *caseT) {
		b := t.fresh()
		before := b.usage()
		if before.Disk < 0 {
			return
		}
		const n = 8 << 20
		b.mustSh(`dd if=/dev/zero of="$1" bs=1048576 count=8 2>/dev/null`, b.path("big"))
		t.eventually("a file uses the disk", func() bool { return b.usage().Disk >= before.Disk+n })
	}},
	{"usage/destroyed", capUsage, func(t *caseT) {
		b := t.fresh()
		m, _ := driver.As[driver.Meter](b.inst)
		t.ok("Destroy", b.inst.Destroy(t.ctx))
		_, err := m.Usage(t.ctx)
		t.wantCode("Usage of a destroyed sandbox", err, sandbox.CodeGone)
	}},
}
