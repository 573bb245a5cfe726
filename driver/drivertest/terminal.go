package drivertest

import (
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

func tty(script string) sandbox.Command {
	return sandbox.Command{Shell: script, TTY: &sandbox.WindowSize{Cols: 91, Rows: 33}, Stdin: true}
}

var terminalCases = []testCase{
	{"terminal/is-terminal", capTerminal, func(t *caseT) {
		b := t.sandbox()
		r := b.run(tty("[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo terminal"))
		t.want(r, "terminal\r\n")
	}},
	{"terminal/none-without-asking", "", func(t *caseT) {
		t.want(t.sandbox().run(sandbox.Command{Shell: "for i in 0 1 2; do [ -t $i ] || echo no; done", Stdin: true}), "no\nno\nno\n")
	}},
	{"terminal/merged", capTerminal, func(t *caseT) {
		r := t.sandbox().run(tty("echo out; echo err >&2; echo end"))
		if r.stdout != "out\r\nerr\r\nend\r\n" || r.stderr != "" {
			t.Errorf("%v; want both streams merged into stdout", r)
		}
	}},
	{"terminal/echo", capTerminal, func(t *caseT) {
		b := t.sandbox()
		p := b.start(tty(`read x; echo "got $x"`))
		b.send(p, "hello\n")
		r := b.finish(p)
		if r.stdout != "hello\r\ngot hello\r\n" {
			t.Errorf("%v; want the input echoed", r)
		}
	}},
	{"terminal/size", capTerminal, func(t *caseT) {
		t.want(t.sandbox().run(tty("stty size")), "33 91\r\n")
	}},
	{"terminal/resize", capTerminal, func(t *caseT) {
		b := t.sandbox()
		p := b.start(tty("trap 'echo winch; stty size; exit 0' WINCH; stty size; while :; do sleep 1; done"))
		out := b.readLines(p.Stdout())
		out.await("33 91")
		t.ok("Resize", p.Resize(t.ctx, sandbox.WindowSize{Cols: 120, Rows: 40}))
		out.await("winch")
		out.await("40 120")
		t.wantExit(b.wait(p), 0, 0, sandbox.ReasonExited)
	}},
	{"terminal/resize-without", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Args: []string{"sleep", "1000"}})
		t.wantCode("Resize without a terminal", p.Resize(t.ctx, sandbox.WindowSize{Cols: 80, Rows: 24}), sandbox.CodeInvalid)
	}},
	{"terminal/interrupt", capTerminal, func(t *caseT) {
		b := t.sandbox()
		p := b.start(tty("trap 'echo got; exit 3' INT; echo ready; while :; do sleep 1; done"))
		out := b.readLines(p.Stdout())
		out.await("ready")
		b.send(p, "\x03")
		if rest := strings.Join(out.rest(), " "); !strings.HasSuffix(rest, "got") {
			t.Errorf("after ctrl-C the command said %q, want got", rest)
		}
		t.wantExit(b.wait(p), 3, 0, sandbox.ReasonExited)
	}},
	{"terminal/interrupt-kills", capTerminal, func(t *caseT) {
		b := t.sandbox()
		p := b.start(tty("echo ready; exec sleep 1000"))
		b.readLines(p.Stdout()).await("ready")
		b.send(p, "\x03")
		t.wantExit(b.wait(p), 128+sigINT, sigINT, sandbox.ReasonSignaled)
	}},
	{"terminal/eof", capTerminal, func(t *caseT) {
		b := t.sandbox()
		p := b.start(tty("cat >/dev/null; echo done"))
		b.send(p, "some input\n")
		t.ok("closing stdin", p.Stdin().Close())
		r := b.finish(p)
		if !strings.HasSuffix(r.stdout, "done\r\n") {
			t.Errorf("%v; want the end of input to end cat", r)
		}
	}},
	{"terminal/without-stdin", capTerminal, func(t *caseT) {
		cmd := tty("cat >/dev/null; echo done")
		cmd.Stdin = false
		r := t.sandbox().run(cmd)
		if !strings.HasSuffix(r.stdout, "done\r\n") {
			t.Errorf("%v; want cat to find an empty input", r)
		}
	}},
	{"terminal/close-hangs-up", capTerminal, func(t *caseT) {
		b := t.sandbox()
		p := b.start(tty("echo $$; sleep 1000"))
		pid := b.readLines(p.Stdout()).next()
		t.ok("Close", p.Close())
		b.diesToo(pid)
	}},
	{"terminal/info", capTerminal, func(t *caseT) {
		b := t.sandbox()
		p := b.start(tty("sleep 1000"))
		if !p.Info().TTY {
			t.Errorf("info does not mention the terminal: %+v", p.Info())
		}
	}},
}
