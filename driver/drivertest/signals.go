package drivertest

import (
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// Signals by their Linux numbers.
const (
	sigHUP  = 1
	sigINT  = 2
	sigKILL = 9
	sigUSR1 = 10
	sigTERM = 15
)

// startFamily starts a command with a child that could outlive it, and returns
// the child's PID.
func (sb *testSandbox) startFamily(cmd sandbox.Command) (driver.Process, string) {
	cmd.Args = []string{"sh", "-c", "sleep 1000 & echo $!; sleep 1000"}
	p := sb.start(cmd)
	return p, sb.readLines(p.Stdout()).next()
}

func (sb *testSandbox) diesToo(child string) {
	sb.eventually("the end of a child", func() bool { return !sb.alive(child) })
}

var signalCases = []testCase{
	{"signal/term", "", func(t *caseT) {
		b := t.sandbox()
		p, child := b.startFamily(sandbox.Command{})
		if !b.alive(child) {
			t.Errorf("the child does not run")
		}
		t.ok("Signal", p.Signal(t.ctx, sigTERM))
		t.wantExit(b.wait(p), 128+sigTERM, sigTERM, sandbox.ReasonSignaled)
		b.diesToo(child)
	}},
	{"signal/kill", "", func(t *caseT) {
		b := t.sandbox()
		p, child := b.startFamily(sandbox.Command{})
		t.ok("Signal", p.Signal(t.ctx, sigKILL))
		t.wantExit(b.wait(p), 128+sigKILL, sigKILL, sandbox.ReasonSignaled)
		b.diesToo(child)
	}},
	{"signal/trap", "", func(t *caseT) {
		for _, sig := range []int{sigHUP, sigINT, sigUSR1, sigTERM} {
			b := t.sandbox()
			// The loop is necessary: a shell that is about to start a child handles a
			// signal only after the child has ended.
			p := b.start(sandbox.Command{Shell: "trap 'echo got; exit 3' HUP INT USR1 TERM; echo ready; while :; do sleep 1; done"})
			out := b.readLines(p.Stdout())
			out.await("ready")
			t.ok("Signal", p.Signal(t.ctx, sig))
			if rest := strings.Join(out.rest(), " "); rest != "got" {
				t.Errorf("signal %d: the command said %q, want got", sig, rest)
			}
			t.wantExit(b.wait(p), 3, 0, sandbox.ReasonExited)
		}
	}},
	{"signal/ignored", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Shell: `trap '' TERM; echo ready; read x; echo "got $x"; read y`, Stdin: true})
		out := b.readLines(p.Stdout())
		out.await("ready")
		t.ok("Signal", p.Signal(t.ctx, sigTERM))
		b.send(p, "it\n")
		out.await("got it")
		t.ok("Signal", p.Signal(t.ctx, sigKILL))
		t.wantExit(b.wait(p), 128+sigKILL, sigKILL, sandbox.ReasonSignaled)
	}},
	{"signal/after-exit", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Args: []string{"true"}})
		b.wait(p)
		t.wantCode("Signal after the end", p.Signal(t.ctx, sigTERM), sandbox.CodeNotFound)
	}},
	{"signal/only-its-command", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Args: []string{"sleep", "1000"}})
		q := b.start(sandbox.Command{Args: []string{"cat"}, Stdin: true})
		t.ok("Signal", p.Signal(t.ctx, sigTERM))
		b.wait(p)
		b.send(q, "unharmed")
		_ = q.Stdin().Close()
		t.want(b.finish(q), "unharmed")
	}},
	{"signal/from-inside", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Shell: "echo $$; sleep 1000; echo after"})
		pid := b.readLines(p.Stdout()).next()
		b.mustSh(`kill -9 "$1"`, pid)
		t.wantExit(b.wait(p), 128+sigKILL, sigKILL, sandbox.ReasonSignaled)
	}},
	{"timeout/kills-tree", "", func(t *caseT) {
		b := t.sandbox()
		p, child := b.startFamily(sandbox.Command{Timeout: timeout(t)})
		t.wantExit(b.wait(p), 128+sigKILL, sigKILL, sandbox.ReasonTimeout)
		b.diesToo(child)
		t.want(b.argv("echo", "the sandbox lives"), "the sandbox lives\n")
	}},
	{"timeout/trap-does-not-help", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Shell: "trap '' HUP INT TERM; sleep 1000", Timeout: timeout(t)})
		t.wantExit(b.wait(p), 128+sigKILL, sigKILL, sandbox.ReasonTimeout)
	}},
	{"timeout/keeps-output", "", func(t *caseT) {
		r := t.sandbox().run(sandbox.Command{Shell: "echo before; sleep 1000", Timeout: timeout(t)})
		if r.exit.Reason != sandbox.ReasonTimeout || r.stdout != "before\n" {
			t.Errorf("%v; want reason timeout and the output until then", r)
		}
	}},
	{"timeout/not-reached", "", func(t *caseT) {
		t.want(t.sandbox().run(sandbox.Command{Args: []string{"echo", "quick"}, Timeout: time.Hour}), "quick\n")
	}},
	{"close/kills-tree", "", func(t *caseT) {
		b := t.sandbox()
		p, child := b.startFamily(sandbox.Command{})
		t.ok("Close", p.Close())
		t.ok("the second Close", p.Close())
		if exit := b.wait(p); exit.Code == 0 {
			t.Errorf("a command that was closed: %+v", exit)
		}
		b.diesToo(child)
	}},
	{"close/unblocks-readers", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Args: []string{"sleep", "1000"}})
		out := b.readLines(p.Stdout())
		t.ok("Close", p.Close())
		out.rest()
	}},
	{"close/after-exit", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Args: []string{"true"}})
		b.wait(p)
		t.ok("Close", p.Close())
		t.ok("the second Close", p.Close())
		t.wantExit(b.wait(p), 0, 0, sandbox.ReasonExited)
	}},
}

// timeout is short, but long enough for a command to start.
func timeout(t *caseT) time.Duration {
	return time.Duration(size[int64](t.suite, int64(time.Second), int64(5*time.Second)))
}
