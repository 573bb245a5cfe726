package gvisor_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// pooled returns a provider with a pool, a function that waits until a number
// of sandboxes is ready, and one that reports whether a sandbox came from the
// pool.
func pooled(t *testing.T, most int) (p *gvisor.Provider, await func(func(all, restored int) bool), from func(sandbox.ID) bool) {
	t.Helper()
	state := t.TempDir()
	p = newProvider(t, func(o *gvisor.Options) { o.StateDir, o.Pool = state, most })
	await = func(want func(all, restored int) bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !want(p.Ready()); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				all, restored := p.Ready()
				t.Fatalf("%d are ready, %d of them restored", all, restored)
			}
		}
	}
	from = func(id sandbox.ID) bool {
		t.Helper()
		js, err := os.ReadFile(filepath.Join(state, "boxes", string(id), "record.json"))
		if err != nil {
			t.Fatal(err)
		}
		var record struct {
			Inside string `json:"inside"`
		}
		if err := json.Unmarshal(js, &record); err != nil {
			t.Fatal(err)
		}
		return strings.HasPrefix(record.Inside, "0-")
	}
	return p, await, from
}

// TestPoolFollowsUse checks that requested shapes are prewarmed and used once,
// and that their number is limited.
func TestPoolFollowsUse(t *testing.T) {
	p, await, from := pooled(t, 2)
	for i, want := range []bool{false, true, true} {
		id := sandbox.ID(fmt.Sprint("box-", i))
		in := create(t, p, sandbox.Spec{ID: id, Image: "host", Hostname: string(id)})
		if got := from(id); got != want {
			t.Errorf("%s comes from the pool: %v", id, got)
		}
		if o := sh(t, in, "hostname; ls /tmp; touch /tmp/mine"); o.stdout != string(id)+"\n" {
			t.Errorf("%s says %+v", id, o)
		}
		await(func(all, _ int) bool { return all == min(i+1, 2) })
	}
	// Another shape, and requests that no pool can serve.
	other := create(t, p, sandbox.Spec{ID: "small", Image: "host", Resources: sandbox.Resources{Memory: 128 << 20}})
	if from("small") {
		t.Error("a sandbox with a smaller limit came from the pool")
	}
	sh(t, other, "true")
	dir := t.TempDir()
	create(t, p, sandbox.Spec{ID: "mounted", Image: "host", Mounts: []sandbox.Mount{{Source: dir, Target: "/mnt"}}})
	if from("mounted") {
		t.Error("a sandbox with a mount came from the pool")
	}
	if _, err := p.Create(t.Context(), &sandbox.Spec{ID: "box-1", Image: "host"}); p.ErrorCode(err) != sandbox.CodeAlreadyExists {
		t.Errorf("the second of a name: %v", err)
	}
	p.Drain()
	if n, _ := p.Ready(); n != 0 {
		t.Errorf("%d are ready after Drain", n)
	}
}

// TestPoolOfSnapshot restores one snapshot several times. The later sandboxes
// are already restored, and are independent of each other.
func TestPoolOfSnapshot(t *testing.T) {
	p, await, from := pooled(t, 2)
	source := create(t, p, sandbox.Spec{ID: "source", Image: "host", Hostname: "source", Resources: sandbox.Resources{Memory: 512 << 20}})
	proc := background(t, source, repl)
	out := bufio.NewReader(proc.Stdout())
	ask(t, proc, out, "x = 42")
	dir := snapshot(t, source, driver.SnapshotOptions{Memory: true})
	if err := source.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Drain() // ends those prewarmed for the source's shape
	seen := map[string]bool{}
	for i := range 4 {
		id := sandbox.ID(fmt.Sprint("twin-", i))
		twin, how := restore(t, p, dir, sandbox.Spec{
			ID: id, Image: "host", Hostname: string(id), Env: map[string]string{"WHO": string(id)}, Resources: sandbox.Resources{Memory: 512 << 20},
		})
		if !how.Memory || i == 3 && !from(id) {
			t.Errorf("%s: restored %+v, from the pool: %v", id, how, from(id))
		}
		o := sh(t, twin, "hostname; echo $WHO; ls /root/mark* 2>/dev/null; touch /root/mark; head -c 16 /dev/urandom | od -An -tx1 | tr -d ' '")
		lines := strings.Fields(o.stdout)
		if len(lines) != 3 || lines[0] != string(id) || lines[1] != string(id) || seen[lines[2]] {
			t.Errorf("%s says %+v", id, o)
		} else {
			seen[lines[2]] = true
		}
		again, out := reconnect(t, twin, proc.Info().ID, len("ok\n"))
		if got := ask(t, again, out, "x"); got != "42" {
			t.Errorf("%s answers %q", id, got)
		}
		if i >= 1 {
			await(func(_, restored int) bool { return restored > 0 })
		}
	}
	// Removing a snapshot must also end the prewarmed sandboxes with its memory.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	await(func(_, restored int) bool { return restored == 0 })
}

// TestPoolUnderPressure checks that low memory empties the pool and prevents
// prewarming until there is enough again.
func TestPoolUnderPressure(t *testing.T) {
	p, await, from := pooled(t, 2)
	var lowMemory atomic.Bool
	p.SetLowMemory(lowMemory.Load)
	create(t, p, sandbox.Spec{ID: "first", Image: "host"})
	await(func(all, _ int) bool { return all == 1 })
	lowMemory.Store(true)
	await(func(all, _ int) bool { return all == 0 })
	create(t, p, sandbox.Spec{ID: "second", Image: "host"})
	if from("second") {
		t.Error("a sandbox came from the emptied pool")
	}
	lowMemory.Store(false)
	await(func(all, _ int) bool { return all > 0 })
}

// TestPoolIsKilled kills a process with a prewarmed sandbox. The sandbox must
// end.
func TestPoolIsKilled(t *testing.T) {
	state := t.TempDir()
	mustDie(t, victimPlan{State: state, Images: imagesDir, Pool: 1})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		left, err := os.ReadDir(filepath.Join(state, "boxes"))
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left are %v", left)
		}
	}
}

// TestPoolGuardIsKilled checks that a pool without its guard ends its
// sandboxes, reports that, and starts again with another guard.
func TestPoolGuardIsKilled(t *testing.T) {
	state := t.TempDir()
	p := newProvider(t, func(o *gvisor.Options) { o.StateDir, o.Pool, o.Attached = state, 1, false })
	await := func(what string, reached func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !reached(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(what + " never came")
			}
		}
	}
	ready := func(want int) func() bool {
		return func() bool { n, _ := p.Ready(); return n == want }
	}
	create(t, p, sandbox.Spec{ID: "first", Image: "host"})
	await("a sandbox in the pool", ready(1))
	if err := syscall.Kill(guardOf(t, filepath.Join(state, "boxes")), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await("the end of the pool", ready(0))
	await("a finding about it", func() bool {
		facts, err := p.Probe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(facts.Findings, func(f driver.Finding) bool { return f.Subject == "pool" })
	})
	create(t, p, sandbox.Spec{ID: "second", Image: "host"})
	await("a sandbox in the next pool", ready(1))
	guardOf(t, filepath.Join(state, "boxes"))
}

// guardOf returns the process that guards the pool of a directory.
func guardOf(t *testing.T, sandboxes string) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !strings.HasSuffix(string(text), "\x00"+sandboxes+"\x00") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && pid != os.Getpid() {
			return pid
		}
	}
	t.Fatalf("nothing guards %s", sandboxes)
	return 0
}
