package drivertest

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// leakBaseline is what this process holds at one time.
type leakBaseline struct {
	goroutines map[string]string // stacks by goroutine ID
	fds        int
	children   []string
}

func takeBaseline() leakBaseline {
	return leakBaseline{goroutines(), countFDs(), children()}
}

// countFDs returns the number of open descriptors of this process, or 0 if it
// cannot be determined.
func countFDs() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

// children returns the running processes that this process started.
func children() []string {
	var pids []string
	lists, _ := filepath.Glob("/proc/self/task/*/children") // The pattern is valid.
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if err == nil { // A thread may have ended meanwhile.
			pids = append(pids, strings.Fields(string(data))...)
		}
	}
	return pids
}

// goroutines returns the stacks of all goroutines by ID, except the suite's own
// and those of package testing or the runtime.
func goroutines() map[string]string {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	own := []string{"drivertest.(*suite).run(", "drivertest.(*suite).check(", "drivertest.(*caseT).body(", "testing.tRunner(", "testing.(*T).Run(", "testing.runTests", "os/signal.loop(", "runtime.ensureSigM"}
	all := map[string]string{}
	for _, stack := range strings.Split(string(buf), "\n\n") {
		head, _, _ := strings.Cut(stack, "[")
		if !slices.ContainsFunc(own, func(f string) bool { return strings.Contains(stack, f) }) {
			all[head] = stack
		}
	}
	return all
}

// leaked describes what exists beyond the baseline, or returns "".
func (base leakBaseline) leaked() string {
	const spareFDs = 4 // The Go runtime opens some late.
	var found []string
	for id, stack := range goroutines() {
		if _, ok := base.goroutines[id]; !ok {
			found = append(found, clipEnd(stack, 3000))
		}
	}
	if n := countFDs(); n > base.fds+spareFDs {
		found = append(found, fmt.Sprintf("%d open descriptors, %d at the beginning: %s", n, base.fds, describeFDs()))
	}
	for _, pid := range children() {
		if !slices.Contains(base.children, pid) {
			found = append(found, "a child process: "+describeProcess(pid))
		}
	}
	return strings.Join(found, "\n")
}

func clipEnd(s string, n int) string {
	if len(s) > n {
		return s[:n] + "…"
	}
	return s
}

func describeFDs() string {
	var names []string
	links, _ := filepath.Glob("/proc/self/fd/*") // The pattern is valid.
	for _, l := range links {
		if target, err := os.Readlink(l); err == nil {
			names = append(names, target)
		}
	}
	return clipEnd(strings.Join(names, " "), 4000)
}

func describeProcess(pid string) string {
	name, err := os.ReadFile("/proc/" + pid + "/comm")
	if err != nil {
		return pid
	}
	return pid + " " + strings.TrimSpace(string(name))
}

// awaitBaseline waits until nothing is held beyond the baseline, and otherwise fails
// the case. It waits for a while, because goroutines and processes may end
// after the call that ended them.
func (t *caseT) awaitBaseline(base leakBaseline) {
	deadline := time.Now().Add(t.patience() / 4)
	for ; ; time.Sleep(10 * time.Millisecond) {
		left := base.leaked()
		if left == "" {
			return
		}
		if time.Now().After(deadline) || t.ctx.Err() != nil {
			t.Errorf("left behind:\n%s", left)
			return
		}
	}
}

// leaksGroup is the group of the cases that must run alone in this process.
const leaksGroup = "leaks"

var leakCases = []testCase{
	{"leaks/exec", "", func(t *caseT) {
		b := t.sandbox()
		b.argv("true")
		base := takeBaseline()
		for range size(t.suite, 20, 3) {
			p := b.start(sandbox.Command{Args: []string{"cat"}, Stdin: true})
			b.send(p, "x")
			t.ok("Close", p.Close())
			q := b.start(sandbox.Command{Args: []string{"sleep", "1000"}})
			t.ok("Close", q.Close())
			t.want(b.argv("echo", "x"), "x\n")
		}
		t.awaitBaseline(base)
	}},
	{"leaks/exec-unread", "", func(t *caseT) {
		b := t.sandbox()
		b.argv("true")
		base := takeBaseline()
		for range size(t.suite, 5, 2) {
			p := b.start(sandbox.Command{Args: []string{"cat", "/dev/zero"}})
			if _, err := io.ReadFull(p.Stdout(), make([]byte, 100<<10)); err != nil {
				t.Errorf("reading: %v", t.vet(err))
			}
			t.ok("Close", p.Close())
		}
		t.awaitBaseline(base)
	}},
	{"leaks/files", capFiles, func(t *caseT) {
		b := t.sandbox()
		b.write("f", string(pattern(1<<20)))
		b.read("f")
		base := takeBaseline()
		for range size(t.suite, 20, 3) {
			r, _, err := b.files().Read(t.ctx, b.path("f"), driver.ReadOptions{})
			t.ok("Read", err)
			_, _ = io.ReadFull(r, make([]byte, 10))
			t.ok("Close", r.Close())
			_, err = b.files().Write(t.ctx, b.path("g"), brokenReader(1000), driver.WriteOptions{})
			if err == nil {
				t.Errorf("Write with a failing reader succeeds")
			}
			_ = b.listError(b.dir)
			for range b.files().List(t.ctx, b.dir, driver.ListOptions{}) {
				break
			}
		}
		t.awaitBaseline(base)
	}},
	{"leaks/watch", capWatch, func(t *caseT) {
		b := t.sandbox()
		w := b.watch("", true)
		w.cancel()
		w.closed()
		base := takeBaseline()
		for range size(t.suite, 10, 2) {
			w := b.watch("", true)
			w.cancel()
			w.closed()
		}
		t.awaitBaseline(base)
	}},
	{"leaks/sandboxes", "", func(t *caseT) {
		t.sandbox()
		base := takeBaseline()
		for range size(t.suite, 3, 1) {
			inst, err := t.provider.Create(t.ctx, t.spec())
			t.ok("Create", err)
			b := t.attach(inst)
			p := b.start(sandbox.Command{Args: []string{"sleep", "1000"}})
			t.ok("Destroy", inst.Destroy(t.ctx))
			b.wait(p)
			t.ok("Close", p.Close())
		}
		t.awaitBaseline(base)
	}},
	{"leaks/suite", "", func(t *caseT) {
		t.dropShared(t.ctx)
		t.dropIdle(t.ctx)
		// Nothing that the suite created may still exist.
		for f, err := range t.provider.List(t.ctx) {
			t.ok("List", err)
			if strings.HasPrefix(string(f.ID), t.prefix) {
				t.Errorf("a sandbox of the suite is left: %+v", f)
				t.destroyNow(f.ID)
			}
		}
		if err := t.provider.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if t.h.Close != nil {
			t.ok("Close", t.h.Close())
		}
		t.awaitBaseline(t.baseline)
	}},
}

func (t *caseT) destroyNow(id sandbox.ID) {
	inst, err := t.provider.Attach(t.ctx, id)
	if err == nil {
		err = inst.Destroy(t.ctx)
	}
	if err != nil {
		t.Errorf("destroying %s: %v", id, t.vet(err))
	}
}
