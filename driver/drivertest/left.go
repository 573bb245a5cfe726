package drivertest

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// leaves runs a command that prints the number of a process that outlives it,
// and closes it.
func (sb *testSandbox) leaves(cmd sandbox.Command) (pid string) {
	cmd.Dir = sb.dir
	p := sb.start(cmd)
	pid = sb.readLines(p.Stdout()).next()
	sb.wantExit(sb.wait(p), 0, 0, sandbox.ReasonExited)
	sb.ok("Close", p.Close())
	sb.argv("true") // gives a late kill time to happen
	if !sb.alive(pid) {
		sb.Fatalf("process %s died with the command that started it", pid)
	}
	sb.Cleanup(func(context.Context) { sb.sh(`kill -9 "$1" 2>/dev/null`, pid) })
	return pid
}

// left returns the list's entry of a process that outlived its command.
func (sb *testSandbox) left(pid string) (info sandbox.ProcessInfo, ok bool) {
	list, err := sb.manager().Processes(sb.ctx)
	sb.ok("Processes", err)
	for _, info := range list {
		if strconv.Itoa(info.PID) == pid && info.Running {
			return info, true
		}
	}
	return sandbox.ProcessInfo{}, false
}

// leavers are commands that leave a process behind.
var leavers = map[string]string{
	"output shared": `sleep 1000 & echo $!`,
	"quiet":         `sleep 1000 >/dev/null 2>&1 & echo $!`,
	"subshell":      `(sleep 1000 & echo $!)`,
}

var leftCases = []testCase{
	{"left/runs-on", "", func(t *caseT) {
		b := t.sandbox()
		for _, script := range leavers {
			b.leaves(sandbox.Command{Shell: script})
		}
	}},
	{"left/late", "", func(t *caseT) {
		t.sandbox().leaves(sandbox.Command{Shell: "sleep 1000 & echo $!; sleep 1"}) // beyond the fast path
	}},
	{"left/by-terminal", capTerminal, func(t *caseT) {
		t.sandbox().leaves(sandbox.Command{Shell: "trap '' HUP; sleep 1000 & echo $!", TTY: &sandbox.WindowSize{Cols: 80, Rows: 24}})
	}},
	{"left/by-background", capProcesses, func(t *caseT) {
		t.sandbox().leaves(sandbox.Command{Shell: "sleep 1000 & echo $!", Background: true})
	}},
	{"left/by-held", capRejoin, func(t *caseT) {
		t.sandbox().leaves(sandbox.Command{Shell: "sleep 1000 & echo $!", Hold: time.Second})
	}},
	{"left/writes-on", "", func(t *caseT) {
		b := t.sandbox()
		b.leaves(sandbox.Command{Shell: "(while [ ! -e go ]; do sleep 0.1; done; dd if=/dev/zero bs=65536 count=32 2>/dev/null && echo x >done; sleep 1000) & echo $!"})
		b.mustSh("echo x >go")
		b.eventually("the end of output that is not read", func() bool { return b.sh("[ -e done ]").exit.Code == 0 })
	}},
	{"left/listed", capProcesses, func(t *caseT) {
		b := t.sandbox()
		pid := b.leaves(sandbox.Command{Shell: leavers["output shared"]})
		var info sandbox.ProcessInfo
		b.eventually("a list that says what runs", func() bool {
			var ok bool
			if info, ok = b.left(pid); !ok {
				t.Fatalf("process %s runs, and is not listed", pid)
			}
			return strings.Join(info.Args, " ") == "sleep 1000"
		})
		if info.ID == "" || !info.Background || info.Exit != nil {
			t.Errorf("it is listed as %+v", info)
		}
		if again, ok := b.left(pid); !ok || again.ID != info.ID {
			t.Errorf("its ID was %q, and now is %q, %v", info.ID, again.ID, ok)
		}
		_, err := b.manager().Reconnect(t.ctx, info.ID)
		t.wantCode("Reconnect", err, sandbox.CodeConflict)
		_, err = b.manager().Logs(t.ctx, info.ID, driver.LogOptions{})
		t.wantCode("Logs", err, sandbox.CodeConflict)
		t.ok("Kill", b.manager().Kill(t.ctx, info.ID, sigTERM))
		b.diesToo(pid)
		b.eventually("a list without what was killed", func() bool { _, ok := b.left(pid); return !ok })
		t.wantCode("Kill of what has ended", b.manager().Kill(t.ctx, info.ID, sigTERM), sandbox.CodeNotFound)
	}},
	{"left/nothing-after-kill", "", func(t *caseT) {
		b := t.sandbox()
		p, child := b.startFamily(sandbox.Command{})
		t.ok("Signal", p.Signal(t.ctx, sigKILL))
		b.wait(p)
		b.diesToo(child)
	}},
}
