package drivertest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

var execCases = []testCase{
	{"exec/exit-codes", "", func(t *caseT) {
		b := t.sandbox()
		for _, code := range []int{0, 1, 7, 126, 127, 128, 130, 255} {
			t.wantExit(b.argv("sh", "-c", fmt.Sprintf("exit %d", code)).exit, code, 0, sandbox.ReasonExited)
		}
		t.wantExit(b.argv("true").exit, 0, 0, sandbox.ReasonExited)
		t.wantExit(b.argv("false").exit, 1, 0, sandbox.ReasonExited)
	}},
	{"exec/exit-signal", "", func(t *caseT) {
		b := t.sandbox()
		for _, sig := range []int{1, 2, 9, 15} {
			r := b.sh(`kill -"$1" $$; sleep 1000`, fmt.Sprint(sig))
			t.wantExit(r.exit, 128+sig, sig, sandbox.ReasonSignaled)
		}
	}},
	{"exec/not-found", "", func(t *caseT) {
		b := t.sandbox()
		for _, program := range []string{"no-such-program-here", b.path("missing"), b.path("missing/deeper")} {
			r := b.argv(program)
			t.wantExit(r.exit, 127, 0, sandbox.ReasonExited)
			if r.stderr == "" || r.stdout != "" {
				t.Errorf("%s: no reason on standard error: %v", program, r)
			}
		}
	}},
	{"exec/not-executable", "", func(t *caseT) {
		b := t.sandbox()
		b.mustSh(`echo 'echo ran' >plain; chmod 644 plain; mkdir dir`)
		for _, program := range []string{b.path("plain"), b.path("dir"), "/"} {
			r := b.argv(program)
			t.wantExit(r.exit, 126, 0, sandbox.ReasonExited)
			if r.stderr == "" || r.stdout != "" {
				t.Errorf("%s: no reason on standard error: %v", program, r)
			}
		}
	}},
	{"exec/path", "", execPath},
	{"exec/interpreter", "", func(t *caseT) {
		b := t.sandbox()
		b.mustSh(`printf '#!/bin/sh\necho "$#:$1:$2"\n' >script; chmod 755 script`)
		t.want(b.argv(b.path("script"), "a b", ""), "2:a b:\n")
	}},
	{"exec/args", "", execArgs},
	{"exec/env", "", func(t *caseT) {
		b := t.sandbox()
		env := map[string]string{
			"EMPTY": "", "TWO_LINES": "a\nb\n", "EQUALS": "a=b=c", "UNICODE": "grüße 世界 🏝", "SPACES": "  two  ", "QUOTES": `'"$(x)\`,
			"lower_case": "x", "BYTES": "\xff\xfe\x01", "LONG": strings.Repeat("v", 64<<10),
		}
		for name, value := range env {
			r := b.run(sandbox.Command{Args: []string{"sh", "-c", `eval "printf %s \"\$$1\""`, "sh", name}, Env: env})
			if name == "BYTES" || name == "LONG" {
				t.sameBytes(name, []byte(r.stdout), []byte(value))
				continue
			}
			t.want(r, value)
		}
	}},
	{"exec/env-odd-names", "", func(t *caseT) {
		r := t.sandbox().run(sandbox.Command{Args: []string{"env"}, Env: map[string]string{"a.b-c": "1", "ünï": "2"}})
		for _, line := range []string{"a.b-c=1", "ünï=2"} {
			if !strings.Contains("\n"+r.stdout, "\n"+line+"\n") {
				t.Errorf("env does not show %s: %v", line, r)
			}
		}
	}},
	{"exec/env-does-not-leak", "", func(t *caseT) {
		if os.Getenv(canaryEnv) != t.canary {
			t.Fatalf("the canary is not in this process's environment")
		}
		r := t.sandbox().argv("env")
		if strings.Contains(r.stdout, canaryEnv) || strings.Contains(r.stdout, t.canary) {
			t.Errorf("the environment of the calling process is visible inside")
		}
		if !strings.Contains("\n"+r.stdout, "\nPATH=") {
			t.Errorf("commands have no PATH: %v", r)
		}
	}},
	{"exec/env-is-per-command", "", func(t *caseT) {
		b := t.sandbox()
		b.run(sandbox.Command{Args: []string{"true"}, Env: map[string]string{"ONCE": "x"}})
		t.want(b.argv("sh", "-c", `echo "[$ONCE]"`), "[]\n")
	}},
	{"exec/dir", "", func(t *caseT) {
		b := t.sandbox()
		b.mustSh(`mkdir 'a b'`)
		t.want(b.run(sandbox.Command{Args: []string{"pwd"}, Dir: b.path("a b")}), b.path("a b")+"\n")
	}},
	{"exec/dir-missing", "", func(t *caseT) {
		b := t.sandbox()
		b.mustSh(`echo x >file`)
		for _, dir := range []string{b.path("missing"), b.path("file")} {
			r := b.run(sandbox.Command{Args: []string{"echo", "ran"}, Dir: dir})
			if (r.exit.Code != 126 && r.exit.Code != 127) || r.stderr == "" || r.stdout != "" {
				t.Errorf("in %s: %v; want code 126 or 127 and a reason on standard error", dir, r)
			}
		}
	}},
	{"exec/dir-not-changed-by-others", "", func(t *caseT) {
		b := t.sandbox()
		before := b.argv("pwd").stdout
		b.argv("sh", "-c", "cd /")
		t.want(b.argv("pwd"), before)
	}},
	{"exec/user", capUsers, execUser},
	{"exec/user-unknown", capUsers, func(t *caseT) {
		r := t.sandbox().run(sandbox.Command{Args: []string{"echo", "ran"}, User: "no-such-user"})
		if (r.exit.Code != 126 && r.exit.Code != 127) || r.stderr == "" || r.stdout != "" {
			t.Errorf("as an unknown user: %v; want code 126 or 127 and a reason on standard error", r)
		}
	}},
	{"exec/user-streams", capUsers, userStreams},
	{"exec/spec-user", capUsers, func(t *caseT) {
		b := t.fresh(func(s *sandbox.Spec) { s.User = "1234:2345" })
		t.want(b.argv("sh", "-c", "id -u; id -g"), "1234\n2345\n")
		t.want(b.run(sandbox.Command{Args: []string{"id", "-u"}, User: "0"}), "0\n")
	}},
	{"exec/shell", "", func(t *caseT) {
		t.want(t.sandbox().run(sandbox.Command{Shell: "x='a  b'\nif true; then\n  for i in 1 2 3; do echo \"$x $i\"; done | cat\nfi\n"}),
			"a  b 1\na  b 2\na  b 3\n")
	}},
	{"exec/shell-heredoc", "", func(t *caseT) {
		t.want(t.sandbox().run(sandbox.Command{Shell: "v=val\ncat <<EOF\none $v\n\ttab\nEOF\ncat <<'EOF'\n$v `x`\nEOF\n"}),
			"one val\n\ttab\n$v `x`\n")
	}},
	{"exec/shell-exit", "", func(t *caseT) {
		b := t.sandbox()
		t.wantExit(b.run(sandbox.Command{Shell: "false; (exit 9)"}).exit, 9, 0, sandbox.ReasonExited)
		if r := b.run(sandbox.Command{Shell: "if then ("}); r.exit.Code == 0 || r.stderr == "" {
			t.Errorf("a syntax error: %v", r)
		}
	}},
	{"exec/shell-large", "", func(t *caseT) {
		script := strings.Repeat(": 0123456789abcdef\n", 4000) + "echo end\n" // 76 KB in one argument
		t.want(t.sandbox().run(sandbox.Command{Shell: script}), "end\n")
	}},
	{"exec/info", "", func(t *caseT) {
		b := t.sandbox()
		before := time.Now().Add(-time.Minute)
		p := b.start(sandbox.Command{Args: []string{"sleep", "1000"}})
		q := b.start(sandbox.Command{Args: []string{"sleep", "1000"}})
		info := p.Info()
		if info.ID == "" || info.ID == q.Info().ID {
			t.Errorf("ids %q and %q; want two different ones", info.ID, q.Info().ID)
		}
		if fmt.Sprint(info.Args) != "[sleep 1000]" || info.TTY || info.Background || !info.Running || info.Exit != nil {
			t.Errorf("info of a running command: %+v", info)
		}
		if info.Started.Before(before) || info.Started.After(time.Now().Add(time.Minute)) {
			t.Errorf("started at %v", info.Started)
		}
		if !b.alive(fmt.Sprint(info.PID)) {
			t.Errorf("no process has the PID %d", info.PID)
		}
	}},
	{"exec/parallel", "", execParallel},
	{"exec/context-only-starts", "", func(t *caseT) {
		b := t.sandbox()
		ctx, cancel := context.WithCancel(t.ctx)
		p, err := b.inst.Exec(ctx, &sandbox.Command{Args: []string{"cat"}, Stdin: true})
		t.ok("Exec", err)
		cancel()
		b.argv("sleep", "1") // Time for a wrong kill to happen.
		b.send(p, "still here")
		t.ok("closing stdin", p.Stdin().Close())
		t.want(b.finish(p), "still here")
		t.ok("Close", p.Close())
	}},
	{"exec/canceled-does-not-run", "", func(t *caseT) {
		b := t.sandbox()
		ctx, cancel := context.WithCancel(t.ctx)
		cancel()
		_, err := b.inst.Exec(ctx, &sandbox.Command{Args: []string{"sh", "-c", `echo x >"$1"`, "sh", b.path("ran")}})
		t.wantCode("Exec with a canceled context", err, sandbox.CodeCanceled)
		if r := b.sh("[ -e ran ]"); r.exit.Code == 0 {
			t.Errorf("the command ran")
		}
	}},
	{"exec/wait-canceled", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Args: []string{"cat"}, Stdin: true})
		ctx, cancel := context.WithCancel(t.ctx)
		cancel()
		_, err := p.Wait(ctx)
		t.wantCode("Wait with a canceled context", err, sandbox.CodeCanceled)
		b.send(p, "lives")
		t.ok("closing stdin", p.Stdin().Close())
		t.want(b.finish(p), "lives")
	}},
	{"exec/wait-many", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Shell: "read x; exit 5", Stdin: true})
		exits := make(chan string, 20)
		for range cap(exits) {
			go func() {
				exit, err := p.Wait(t.ctx)
				exits <- fmt.Sprintf("%d %v", exit.Code, err)
			}()
		}
		b.send(p, "go\n")
		for range cap(exits) {
			if got := <-exits; got != "5 <nil>" {
				t.Errorf("one of many waits says %s", got)
			}
		}
		t.wantExit(b.wait(p), 5, 0, sandbox.ReasonExited)
		t.ok("Close", p.Close())
		t.wantExit(b.wait(p), 5, 0, sandbox.ReasonExited)
	}},
}

func execPath(t *caseT) {
	b := t.sandbox()
	b.mustSh(`mkdir one two
printf '#!/bin/sh\necho one\n' >one/prog; printf '#!/bin/sh\necho two\n' >two/prog; chmod 755 one/prog two/prog
printf 'no program' >one/shadow; printf '#!/bin/sh\necho found\n' >two/shadow; chmod 755 two/shadow`)
	at := func(path string, args ...string) result {
		return b.run(sandbox.Command{Args: args, Env: map[string]string{"PATH": path}})
	}
	t.want(at(b.path("one")+":"+b.path("two"), "prog"), "one\n")
	t.want(at(b.path("missing")+":"+b.path("two"), "prog"), "two\n")
	t.want(at(b.path("one")+":"+b.path("two"), "shadow"), "found\n")
	for _, path := range []string{"", b.path("missing")} {
		r := at(path, "true")
		t.wantExit(r.exit, 127, 0, sandbox.ReasonExited)
		if r.stderr == "" {
			t.Errorf("with PATH=%q: no reason on standard error", path)
		}
	}
}

func execArgs(t *caseT) {
	b := t.sandbox()
	args := []string{
		"", " ", "a b", "  two  ", "'", `"`, `\`, `\\n`, "$HOME", "$(echo x)", "`echo x`", "*", "~", "a\nb", "\n", "\t", "\r\n",
		"-n", "--", "-", "a=b", ";", "&", "|", "#", "%s", "{}", "!", "grüße", "世界", "🏝", "\xff\xfe", "a\xffb", "\x01\x02\x1b[31m", "",
	}
	r := b.run(sandbox.Command{Args: append([]string{"printf", `%s\000`}, args...)})
	t.want(r, strings.Join(args, "\x00")+"\x00")
	long := string(pattern(100 << 10))
	long = strings.ReplaceAll(long, "\x00", "0")
	r = b.run(sandbox.Command{Args: []string{"printf", "%s", long}})
	t.sameBytes("an argument of 100 KB", []byte(r.stdout), []byte(long))
	many := make([]string, 5000)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	r = b.run(sandbox.Command{Args: append([]string{"sh", "-c", `echo "$# $1 $5000"; shift 4999; echo "$1"`, "sh"}, many...)})
	if !strings.HasPrefix(r.stdout, "5000 0 ") || !strings.HasSuffix(r.stdout, "\n4999\n") {
		t.Errorf("5000 arguments: %v", r)
	}
}

func execUser(t *caseT) {
	b := t.sandbox()
	script := "id -u; id -g"
	for user, want := range map[string]string{"1234": "1234", "1234:2345": "1234\n2345", "0": "0\n0", "root": "0\n0"} {
		r := b.run(sandbox.Command{Shell: script, User: user})
		if r.exit.Code != 0 || !strings.HasPrefix(r.stdout, want+"\n") {
			t.Errorf("as %s: %v; want %q", user, r, want)
		}
	}
	b.mustSh(`echo secret >private; chmod 600 private`)
	if r := b.run(sandbox.Command{Args: []string{"cat", b.path("private")}, User: "1234"}); r.exit.Code == 0 {
		t.Errorf("another user reads a private file: %v", r)
	}
}

// userStreams opens the standard streams by name, which only their owner and
// root may do.
func userStreams(t *caseT) {
	b := t.sandbox()
	const script = `read -r line </dev/stdin; echo "got $line" >/dev/stdout; echo error >/dev/stderr; echo fd >/dev/fd/1; echo self >/proc/self/fd/1`
	for _, user := range []string{"0", "1234", "1234:2345"} {
		p := b.start(sandbox.Command{Shell: script, User: user, Stdin: true})
		b.send(p, "a line\n")
		t.ok("closing stdin", p.Stdin().Close())
		r := b.finish(p)
		if r.exit.Code != 0 || r.stdout != "got a line\nfd\nself\n" || r.stderr != "error\n" {
			t.Errorf("opening the streams by name as %s: %v", user, r)
		}
		r = b.run(sandbox.Command{Shell: `cat /dev/stdin >/dev/stdout; echo error >/dev/stderr`, User: user})
		if r.exit.Code != 0 || r.stdout != "" || r.stderr != "error\n" {
			t.Errorf("opening the streams by name without input as %s: %v", user, r)
		}
	}
	if !t.declared(capTerminal) {
		return
	}
	r := b.run(sandbox.Command{Shell: `echo out >/dev/stdout; echo tty >/dev/tty`, User: "1234", TTY: &sandbox.WindowSize{Cols: 80, Rows: 24}})
	if r.exit.Code != 0 || r.stdout != "out\r\ntty\r\n" {
		t.Errorf("opening the terminal by name: %v", r)
	}
}

// execParallel runs many commands concurrently, each with its own input.
func execParallel(t *caseT) {
	b := t.sandbox()
	n := size(t.suite, 50, 5)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			p, err := b.inst.Exec(t.ctx, &sandbox.Command{Args: []string{"sh", "-c", `read x; echo "$x"; exit $1`, "sh", fmt.Sprint(i)}, Stdin: true})
			if err != nil {
				t.Errorf("command %d: %v", i, t.vet(err))
				return
			}
			defer p.Close()
			if _, err := fmt.Fprintf(p.Stdin(), "line %d\n", i); err != nil {
				t.Errorf("command %d: stdin: %v", i, err)
			}
			r, err := collect(t.ctx, p)
			if err != nil {
				t.Errorf("command %d: %v", i, t.vet(err))
			} else if r.exit.Code != i || r.stdout != fmt.Sprintf("line %d\n", i) {
				t.Errorf("command %d: %v", i, r)
			}
		})
	}
	wg.Wait()
}
