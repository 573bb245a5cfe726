package drivertest

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// hides fails the case if the secret is in v, in any printed form.
func (t *caseT) hides(what string, v any) {
	text := fmt.Sprintf("%+v", v)
	if js, err := json.Marshal(v); err == nil {
		text += string(js)
	}
	if strings.Contains(text, t.canary) {
		t.Errorf("%s holds a secret", what)
	}
}

// hidesLogs checks everything that was logged during the suite.
func (t *caseT) hidesLogs() {
	if strings.Contains(t.logs.String(), t.canary) {
		t.Errorf("the default loggers received a secret")
	}
}

var secretCases = []testCase{
	{"secrets/spec-env", "", func(t *caseT) {
		spec := t.spec(func(s *sandbox.Spec) { s.Env = map[string]string{"TOKEN": t.canary} })
		b := t.create(t.provider, spec)
		t.want(b.argv("sh", "-c", `printf %s "$TOKEN"`), t.canary)
		f, _ := t.find(t.provider, b.inst.ID())
		t.hides("List", f)
		facts, err := t.provider.Probe(t.ctx)
		t.ok("Probe", err)
		t.hides("Probe", facts)
		_, err = t.provider.Create(t.ctx, spec)
		t.wantCode("Create with a taken ID", err, sandbox.CodeAlreadyExists)
		t.hidesLogs()
	}},
	{"secrets/command-env", "", func(t *caseT) {
		b := t.sandbox()
		env := map[string]string{"TOKEN": t.canary}
		p := b.start(sandbox.Command{Args: []string{"sleep", "1000"}, Env: env})
		t.hides("Process.Info", p.Info())
		if pm, ok := driver.As[driver.ProcessManager](b.inst); ok {
			list, err := pm.Processes(t.ctx)
			t.ok("Processes", err)
			t.hides("Processes", list)
		}
		for _, cmd := range []sandbox.Command{
			{Args: []string{"no-such-program"}, Env: env},
			{Args: []string{b.dir}, Env: env},
			{Args: []string{"true"}, Env: env, Dir: b.path("missing")},
		} {
			r := b.run(cmd)
			t.hides("the reason on standard error", r.stderr)
			t.hides("Exit", r.exit)
		}
		t.ok("Close", p.Close())
		t.hides("Exit", b.wait(p))
		t.hidesLogs()
	}},
	{"secrets/not-in-argv", "", func(t *caseT) {
		// Arguments of processes are visible inside; the environment is not.
		b := t.sandbox()
		p := b.start(sandbox.Command{Args: []string{"sleep", "1000"}, Env: map[string]string{"TOKEN": t.canary}})
		r := b.sh(`for f in /proc/[0-9]*/cmdline; do [ -r "$f" ] && cat "$f"; done 2>/dev/null; true`)
		t.hides("the arguments of the sandbox's processes", r.stdout)
		t.ok("Close", p.Close())
	}},
	{"secrets/stdin", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Args: []string{"cat"}, Stdin: true})
		b.send(p, t.canary)
		t.hides("Process.Info", p.Info())
		t.ok("closing stdin", p.Stdin().Close())
		t.want(b.finish(p), t.canary)
		if _, err := p.Stdin().Write([]byte(t.canary)); err != nil {
			t.hides("an error of Stdin", err.Error())
		}
		t.hidesLogs()
	}},
	{"secrets/files", capFiles, func(t *caseT) {
		b := t.sandbox()
		b.write("f", t.canary)
		t.hides("Stat", b.stat("f"))
		_, err := b.files().Write(t.ctx, b.path("f"), strings.NewReader(t.canary), driver.WriteOptions{NoReplace: true})
		t.wantCode("Write", err, sandbox.CodeAlreadyExists)
		_, err = b.files().Write(t.ctx, b.path("f/g"), strings.NewReader(t.canary), driver.WriteOptions{})
		_ = t.vet(err)
		_, err = b.files().Write(t.ctx, b.dir, strings.NewReader(t.canary), driver.WriteOptions{})
		t.wantCode("Write over a directory", err, sandbox.CodeInvalid)
		t.hidesLogs()
	}},
	{"secrets/archive", capArchive, func(t *caseT) {
		b := t.sandbox()
		err := b.importTo(b.path("d"), t.tarball(file("ok", t.canary), file("../bad", t.canary)))
		t.wantCode("Import", err, sandbox.CodeInvalid)
		t.hidesLogs()
	}},
	{"secrets/destroyed", "", func(t *caseT) {
		b := t.fresh(func(s *sandbox.Spec) { s.Env = map[string]string{"TOKEN": t.canary} })
		b.mustSh(`echo "$TOKEN" >"$1"`, b.path("f"))
		t.ok("Destroy", b.inst.Destroy(t.ctx))
		exit, err := b.inst.Wait(t.ctx)
		t.ok("Wait", err)
		t.hides("the sandbox's Exit", exit)
		_, err = b.inst.Exec(t.ctx, &sandbox.Command{Args: []string{"true"}, Env: map[string]string{"TOKEN": t.canary}})
		t.wantCode("Exec", err, sandbox.CodeGone)
		t.hidesLogs()
	}},
}

var concurrencyCases = []testCase{
	{"concurrency/sandboxes", "", concurrentSandboxes},
	{"concurrency/exec-while-destroying", "", func(t *caseT) {
		b := t.fresh()
		n := size(t.suite, 16, 4)
		results := make(chan error, n)
		started := make(chan struct{}, n)
		for range n {
			go func() {
				var err error
				for err == nil {
					err = b.runOnce()
					select {
					case started <- struct{}{}:
					default:
					}
				}
				results <- err
			}()
		}
		<-started
		t.ok("Destroy", b.inst.Destroy(t.ctx))
		for range n {
			select {
			case err := <-results:
				t.wantCode("a call while the sandbox is destroyed", err, sandbox.CodeGone, sandbox.CodeNotFound)
			case <-t.ctx.Done():
				t.Fatalf("a call hangs while the sandbox is destroyed")
			}
		}
	}},
	{"concurrency/destroy", "", func(t *caseT) {
		b := t.fresh()
		results := make(chan error, 8)
		for range cap(results) {
			go func() { results <- b.inst.Destroy(t.ctx) }()
		}
		for range cap(results) {
			if err := <-results; err != nil {
				t.Errorf("one of many Destroys: %v", t.vet(err))
			}
		}
		t.notListed(t.provider, b.inst.ID())
	}},
	{"concurrency/same-id", "", func(t *caseT) {
		spec := t.spec()
		t.destroyLater(spec.ID)
		n := size(t.suite, 6, 3)
		type made struct {
			inst driver.Instance
			err  error
		}
		results := make(chan made, n)
		for range n {
			go func() {
				own := *spec
				inst, err := t.provider.Create(t.ctx, &own)
				results <- made{inst, err}
			}()
		}
		var winner driver.Instance
		for range n {
			m := <-results
			switch {
			case m.err != nil:
				t.wantCode("Create with a taken ID", m.err, sandbox.CodeAlreadyExists)
			case winner != nil:
				t.Errorf("two sandboxes with one ID")
			default:
				winner = m.inst
			}
		}
		if winner == nil {
			t.Fatalf("no call got the ID")
		}
		t.want(t.attach(winner).argv("echo", "alive"), "alive\n")
	}},
	{"concurrency/signal-and-exit", "", func(t *caseT) {
		b := t.sandbox()
		for range size(t.suite, 30, 3) {
			p := b.start(sandbox.Command{Args: []string{"true"}})
			if err := p.Signal(t.ctx, sigTERM); err != nil {
				t.wantCode("Signal", err, sandbox.CodeNotFound)
			}
			exit := b.wait(p)
			if exit.Code != 0 && exit.Signal != sigTERM {
				t.Errorf("ended with %+v", exit)
			}
		}
	}},
}

// runOnce runs one command; any goroutine may call it. It returns an error,
// too, if the command was killed with its sandbox.
func (sb *testSandbox) runOnce() error {
	p, err := sb.inst.Exec(sb.ctx, &sandbox.Command{Args: []string{"echo", "x"}})
	if err != nil {
		return err
	}
	defer p.Close()
	_, err = collect(sb.ctx, p)
	return err
}

// concurrentSandboxes creates, uses and destroys several sandboxes concurrently.
func concurrentSandboxes(t *caseT) {
	n := size(t.suite, 8, 3)
	results := make(chan error, n)
	specs := make([]*sandbox.Spec, n)
	for i := range n {
		specs[i] = t.spec(func(s *sandbox.Spec) { s.Env = map[string]string{"NUMBER": fmt.Sprint(i)} })
		t.destroyLater(specs[i].ID)
	}
	for i := range n {
		go func() {
			results <- func() error {
				inst, err := t.provider.Create(t.ctx, specs[i])
				if err != nil {
					return err
				}
				p, err := inst.Exec(t.ctx, &sandbox.Command{Shell: "echo $NUMBER"})
				if err != nil {
					return err
				}
				defer p.Close()
				r, err := collect(t.ctx, p)
				if err == nil && r.stdout != fmt.Sprintf("%d\n", i) {
					t.Errorf("sandbox %d said %q", i, r.stdout)
				}
				if err != nil {
					return err
				}
				return inst.Destroy(t.ctx)
			}()
		}()
	}
	for range n {
		if err := <-results; err != nil {
			t.Errorf("one of many sandboxes: %v", t.vet(err))
		}
	}
	for _, spec := range specs {
		t.notListed(t.provider, spec.ID)
	}
}

var aliasingCases = []testCase{
	{"aliasing/spec", "", func(t *caseT) {
		spec := t.spec(func(s *sandbox.Spec) {
			s.Env = map[string]string{"A": "1"}
			s.Labels = map[string]string{"l": "1"}
		})
		b := t.create(t.provider, spec)
		id := spec.ID
		spec.Env["A"], spec.Labels["l"], spec.ID = "2", "2", "other"
		t.want(b.argv("sh", "-c", "echo $A"), "1\n")
		f, _ := t.find(t.provider, id)
		if f.Labels["l"] != "1" || b.inst.ID() != id {
			t.Errorf("a change of the caller's spec changed the sandbox: %+v", f)
		}
	}},
	{"aliasing/found", "", func(t *caseT) {
		b := t.fresh(func(s *sandbox.Spec) { s.Labels = map[string]string{"l": "1"} })
		f, _ := t.find(t.provider, b.inst.ID())
		f.Labels["l"] = "2"
		if f, _ := t.find(t.provider, b.inst.ID()); f.Labels["l"] != "1" {
			t.Errorf("a change of a listed sandbox's labels changed the sandbox")
		}
	}},
	{"aliasing/command", "", func(t *caseT) {
		b := t.sandbox()
		cmd := &sandbox.Command{Args: []string{"sh", "-c", `read x; echo "$A $1"`, "sh", "1"}, Env: map[string]string{"A": "1"}, Stdin: true}
		p, err := b.inst.Exec(t.ctx, cmd)
		t.ok("Exec", err)
		defer p.Close()
		cmd.Args[0], cmd.Args[4], cmd.Env["A"] = "changed", "2", "2"
		if got := p.Info().Args[4]; got != "1" {
			t.Errorf("a change of the caller's command changed the info: %q", got)
		}
		p.Info().Args[4] = "2"
		if got := p.Info().Args[4]; got != "1" {
			t.Errorf("a change of an info changed the next: %q", got)
		}
		b.send(p, "\n")
		t.want(b.finish(p), "1 1\n")
	}},
	{"aliasing/exit", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Shell: "exit 3"})
		b.wait(p)
		if exit := p.Info().Exit; exit != nil {
			exit.Code = 4
		}
		t.wantExit(b.wait(p), 3, 0, sandbox.ReasonExited)
		t.eventually("the info of an ended command", func() bool { return p.Info().Exit != nil })
		if got := p.Info().Exit.Code; got != 3 {
			t.Errorf("a change of an info's exit changed the next: %d", got)
		}
	}},
	{"aliasing/facts", "", func(t *caseT) {
		f, err := t.provider.Probe(t.ctx)
		t.ok("Probe", err)
		for i := range f.Findings {
			f.Findings[i].Subject = "changed"
		}
		for name := range f.Limits {
			f.Limits[name] = driver.Limit{By: "changed"}
		}
		f, err = t.provider.Probe(t.ctx)
		t.ok("Probe", err)
		if strings.Contains(fmt.Sprintf("%+v", f), "changed") {
			t.Errorf("a change of the facts changed the next: %+v", f)
		}
	}},
	{"aliasing/stdin", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Shell: "sleep 1; cat", Stdin: true})
		buf := []byte("original")
		if _, err := p.Stdin().Write(buf); err != nil {
			t.Fatalf("Write: %v", t.vet(err))
		}
		copy(buf, "changed!")
		t.ok("closing stdin", p.Stdin().Close())
		t.want(b.finish(p), "original")
	}},
	{"aliasing/logs", capProcesses, func(t *caseT) {
		b := t.sandbox()
		id := b.background("echo original")
		b.ended(id)
		r, err := b.manager().Logs(t.ctx, id, driver.LogOptions{})
		t.ok("Logs", err)
		c, err := r.Next()
		t.ok("Next", err)
		copy(c.Data, "changed!")
		t.ok("Close", r.Close())
		if l := b.log(id, driver.LogOptions{}); string(l.out) != "original\n" {
			t.Errorf("a change of a piece changed the log: %q", l.out)
		}
	}},
}
