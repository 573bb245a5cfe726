package drivertest

import (
	"context"
	"maps"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// find returns the listed sandbox with an ID.
func (t *caseT) find(p driver.Provider, id sandbox.ID) (driver.Found, bool) {
	for f, err := range p.List(t.ctx) {
		t.ok("List", err)
		if f.ID == id {
			return f, true
		}
	}
	return driver.Found{}, false
}

func (t *caseT) notListed(p driver.Provider, id sandbox.ID) {
	if f, ok := t.find(p, id); ok {
		t.Errorf("List shows %+v, which should not exist", f)
	}
}

// destroyLater destroys a sandbox at the end, even if its provider was closed.
func (t *caseT) destroyLater(id sandbox.ID) {
	t.Cleanup(func(ctx context.Context) {
		if inst, err := t.provider.Attach(ctx, id); err == nil {
			_ = inst.Destroy(ctx)
		}
	})
}

// evidence returns the codes that Attach may return for an unknown sandbox.
// Only a provider that sees the sandboxes of every process knows that it does
// not exist.
func (t *caseT) evidence() []sandbox.Code {
	if t.declared(capReattach) {
		return []sandbox.Code{sandbox.CodeGone}
	}
	return []sandbox.Code{sandbox.CodeGone, sandbox.CodeUnsupported}
}

var lifecycleCases = []testCase{
	{"lifecycle/create-exec-destroy", "", func(t *caseT) {
		spec := t.spec()
		b := t.create(t.provider, spec)
		if got := b.inst.ID(); got != spec.ID {
			t.Errorf("ID is %q, want %q", got, spec.ID)
		}
		t.want(b.argv("echo", "hello"), "hello\n")
		t.ok("Destroy", b.inst.Destroy(t.ctx))
		t.notListed(t.provider, spec.ID)
	}},
	{"lifecycle/destroy-twice", "", func(t *caseT) {
		b := t.fresh()
		t.ok("Destroy", b.inst.Destroy(t.ctx))
		t.ok("the second Destroy", b.inst.Destroy(t.ctx))
	}},
	{"lifecycle/destroy-with-commands", "", func(t *caseT) {
		b := t.fresh()
		p := b.start(sandbox.Command{Shell: "sleep 1000 & echo ready; sleep 1000"})
		b.readLines(p.Stdout()).await("ready")
		t.ok("Destroy", b.inst.Destroy(t.ctx))
		if exit := b.wait(p); exit.Reason != sandbox.ReasonKilled || exit.Code == 0 {
			t.Errorf("a command of a destroyed sandbox: %+v, want reason killed", exit)
		}
	}},
	{"lifecycle/attach-unknown", "", func(t *caseT) {
		_, err := t.provider.Attach(t.ctx, t.spec().ID)
		t.wantCode("Attach to a sandbox that never was", err, t.evidence()...)
	}},
	{"lifecycle/attach-destroyed", "", func(t *caseT) {
		b := t.fresh()
		t.ok("Destroy", b.inst.Destroy(t.ctx))
		_, err := t.provider.Attach(t.ctx, b.inst.ID())
		t.wantCode("Attach to a destroyed sandbox", err, t.evidence()...)
	}},
	{"lifecycle/attach-own", "", func(t *caseT) {
		b := t.fresh()
		b.mustSh(`echo kept >"$1"`, b.path("f"))
		inst, err := t.provider.Attach(t.ctx, b.inst.ID())
		t.ok("Attach", err)
		t.want(t.attach(inst).argv("cat", b.path("f")), "kept\n")
	}},
	{"lifecycle/duplicate-id", "", func(t *caseT) {
		spec := t.spec()
		b := t.create(t.provider, spec)
		other := *spec
		inst, err := t.provider.Create(t.ctx, &other)
		if err == nil {
			_ = inst.Destroy(t.ctx)
		}
		t.wantCode("Create with a taken ID", err, sandbox.CodeAlreadyExists)
		t.want(b.argv("echo", "alive"), "alive\n")
		if _, ok := t.find(t.provider, spec.ID); !ok {
			t.Errorf("the first sandbox is no longer listed")
		}
	}},
	{"lifecycle/id-again", "", func(t *caseT) {
		spec := t.spec()
		b := t.create(t.provider, spec)
		b.mustSh(`echo old >"$1"`, b.path("f"))
		t.ok("Destroy", b.inst.Destroy(t.ctx))
		again := t.create(t.provider, spec)
		if r := again.argv("cat", b.path("f")); r.exit.Code == 0 {
			t.Errorf("a new sandbox has the files of a destroyed one: %v", r)
		}
	}},
	{"lifecycle/create-canceled", "", createCanceled},
	{"lifecycle/list", "", func(t *caseT) {
		labels := map[string]string{"team": "blue", "odd key": "ü=\"x\""}
		before := time.Now()
		spec := t.spec(func(s *sandbox.Spec) { s.Labels = maps.Clone(labels) })
		b := t.create(t.provider, spec)
		f, ok := t.find(t.provider, b.inst.ID())
		if !ok {
			t.Fatalf("List does not show a living sandbox")
		}
		if f.State != sandbox.Running || f.Exit != nil {
			t.Errorf("state %q, exit %+v; want running and none", f.State, f.Exit)
		}
		if !maps.Equal(f.Labels, labels) {
			t.Errorf("labels %q, want %q", f.Labels, labels)
		}
		if f.Created.Before(before.Add(-time.Minute)) || f.Created.After(time.Now().Add(time.Minute)) {
			t.Errorf("created %v, want about %v", f.Created, before)
		}
	}},
	{"lifecycle/list-stops", "", func(t *caseT) {
		t.fresh()
		t.fresh()
		n := 0
		for range t.provider.List(t.ctx) {
			n++
			break
		}
		if n != 1 {
			t.Errorf("%d rounds, want 1", n)
		}
	}},
	{"lifecycle/list-canceled", "", func(t *caseT) {
		t.fresh()
		ctx, cancel := context.WithCancel(t.ctx)
		cancel()
		for _, err := range t.provider.List(ctx) {
			if err != nil {
				t.wantCode("List with a canceled context", err, sandbox.CodeCanceled)
				return
			}
		}
		t.Errorf("List with a canceled context ends as if it were complete")
	}},
	{"lifecycle/wait-destroy", "", func(t *caseT) {
		b := t.fresh()
		ended := make(chan sandbox.Exit, 2)
		failed := make(chan error, 2)
		for range cap(ended) {
			go func() {
				if exit, err := b.inst.Wait(t.ctx); err != nil {
					failed <- err
				} else {
					ended <- exit
				}
			}()
		}
		b.argv("true")
		t.ok("Destroy", b.inst.Destroy(t.ctx))
		for range cap(ended) {
			select {
			case exit := <-ended:
				if exit.Reason != sandbox.ReasonKilled {
					t.Errorf("Wait says %+v, want reason killed", exit)
				}
			case err := <-failed:
				t.Errorf("Wait: %v", t.vet(err))
			}
		}
		exit, err := b.inst.Wait(t.ctx)
		t.ok("Wait after Destroy", err)
		if exit.Reason != sandbox.ReasonKilled {
			t.Errorf("Wait after Destroy says %+v, want reason killed", exit)
		}
	}},
	{"lifecycle/timeout", "", func(t *caseT) {
		var p driver.Process
		b, _ := t.shortLived(func(b *testSandbox) (err error) {
			p, err = b.inst.Exec(t.ctx, &sandbox.Command{Args: []string{"sleep", "1000"}})
			return err
		})
		defer func() { t.ok("Process.Close", p.Close()) }()
		exit, err := b.inst.Wait(t.ctx)
		t.ok("Wait", err)
		if exit.Reason != sandbox.ReasonLifetime {
			t.Errorf("the sandbox ended with %+v, want reason lifetime", exit)
		}
		if exit := b.wait(p); exit.Code == 0 {
			t.Errorf("a command of an ended sandbox: %+v", exit)
		}
		if f, ok := t.find(t.provider, b.inst.ID()); ok {
			if f.State != sandbox.Stopped && f.State != sandbox.Failed {
				t.Errorf("List shows an ended sandbox as %q", f.State)
			} else if f.Exit == nil || f.Exit.Reason != sandbox.ReasonLifetime {
				t.Errorf("List does not say why the sandbox ended: %+v", f.Exit)
			}
		}
	}},
	{"lifecycle/calls-after-destroy", "", callsAfterDestroy},
	{"lifecycle/env-user-workdir", "", func(t *caseT) {
		b := t.fresh(func(s *sandbox.Spec) {
			s.Env = map[string]string{"FROM_SPEC": "a b\n$c", "BOTH": "spec"}
		})
		b.mustSh(`mkdir "$1"`, b.path("w"))
		t.want(b.run(sandbox.Command{
			Shell: `printf '%s|%s|' "$FROM_SPEC" "$BOTH"; pwd`,
			Env:   map[string]string{"BOTH": "command"}, Dir: b.path("w"),
		}), "a b\n$c|command|"+b.path("w")+"\n")
	}},
	{"lifecycle/workdir", "", func(t *caseT) {
		dir := t.attach(t.sandbox().inst).path("made/for/this")
		b := t.fresh(func(s *sandbox.Spec) { s.Workdir = dir })
		t.want(b.argv("pwd"), dir+"\n")
	}},
	{"lifecycle/isolated-files", "", func(t *caseT) {
		a, b := t.fresh(), t.fresh()
		file := a.path("only-in-a")
		a.mustSh(`echo x >"$1"`, file)
		if a.dir == b.dir && b.argv("cat", file).exit.Code == 0 {
			t.Errorf("one sandbox sees the files of another")
		}
	}},
	{"lifecycle/close-twice", "", func(t *caseT) {
		p, err := t.h.New(t.ctx)
		t.ok("New", err)
		t.ok("Close", p.Close())
		t.ok("the second Close", p.Close())
	}},
}

// createCanceled cancels Create at several times: it must return soon, and a
// sandbox that it does not return must not exist.
func createCanceled(t *caseT) {
	for _, delay := range []time.Duration{-1, 0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond} {
		ctx, cancel := context.WithCancel(t.ctx)
		if delay < 0 {
			cancel()
		} else {
			timer := time.AfterFunc(delay, cancel)
			defer timer.Stop()
		}
		spec := t.spec()
		inst, err := t.provider.Create(ctx, spec)
		cancel()
		if err == nil {
			if delay < 0 {
				t.Errorf("Create with a canceled context succeeded")
			}
			t.ok("Destroy", inst.Destroy(t.ctx))
			continue
		}
		t.wantCode("Create, canceled", err, sandbox.CodeCanceled)
		t.notListed(t.provider, spec.ID)
		again, err := t.provider.Create(t.ctx, spec)
		t.ok("Create with the ID of a canceled one", err)
		t.ok("Destroy", again.Destroy(t.ctx))
	}
}

// callsAfterDestroy makes every kind of call on a destroyed sandbox.
func callsAfterDestroy(t *caseT) {
	b := t.fresh()
	p := b.start(sandbox.Command{Args: []string{"sleep", "1000"}})
	t.ok("Destroy", b.inst.Destroy(t.ctx))
	_, err := b.inst.Exec(t.ctx, &sandbox.Command{Args: []string{"true"}})
	t.wantCode("Exec", err, sandbox.CodeGone)
	t.wantCode("Process.Signal", p.Signal(t.ctx, 15), sandbox.CodeNotFound, sandbox.CodeGone)
	if b.inst.ID() == "" {
		t.Errorf("a destroyed sandbox has lost its ID")
	}
	if fs, ok := driver.As[driver.FileSystem](b.inst); ok {
		_, err := fs.Stat(t.ctx, "/")
		t.wantCode("Stat", err, sandbox.CodeGone)
		_, _, err = fs.Read(t.ctx, b.path("f"), driver.ReadOptions{})
		t.wantCode("Read", err, sandbox.CodeGone)
		t.wantCode("Mkdir", fs.Mkdir(t.ctx, b.path("d"), driver.MkdirOptions{}), sandbox.CodeGone)
	}
	if pm, ok := driver.As[driver.ProcessManager](b.inst); ok {
		_, err := pm.Processes(t.ctx)
		t.wantCode("Processes", err, sandbox.CodeGone)
		t.wantCode("Kill", pm.Kill(t.ctx, p.Info().ID, 9), sandbox.CodeGone, sandbox.CodeNotFound)
	}
}

var reattachCases = []testCase{
	{"reattach/after-restart", capReattach, func(t *caseT) {
		first, err := t.h.New(t.ctx)
		t.ok("New", err)
		inst, err := first.Create(t.ctx, t.spec())
		t.ok("Create", err)
		t.destroyLater(inst.ID())
		b := t.attach(inst)
		b.mustSh(`echo kept >"$1"`, b.path("f"))
		t.ok("Close", first.Close())

		second := t.connect()
		if f, ok := t.find(second, inst.ID()); !ok || f.State != sandbox.Running {
			t.Errorf("after a restart List shows %+v, %v", f, ok)
		}
		again, err := second.Attach(t.ctx, inst.ID())
		t.ok("Attach", err)
		t.want(t.attach(again).argv("cat", b.path("f")), "kept\n")
		t.ok("Destroy", again.Destroy(t.ctx))
		t.notListed(t.provider, inst.ID())
	}},
	{"reattach/two-at-once", capReattach, func(t *caseT) {
		b := t.fresh()
		inst, err := t.connect().Attach(t.ctx, b.inst.ID())
		t.ok("Attach", err)
		other := t.attach(inst)
		p := b.start(sandbox.Command{Args: []string{"cat"}, Stdin: true})
		t.want(other.argv("echo", "other"), "other\n")
		b.send(p, "first\n")
		t.ok("closing stdin", p.Stdin().Close())
		t.want(b.finish(p), "first\n")
	}},
	{"reattach/destroyed-elsewhere", capReattach, func(t *caseT) {
		b := t.fresh()
		elsewhere := t.connect()
		inst, err := elsewhere.Attach(t.ctx, b.inst.ID())
		t.ok("Attach", err)
		t.ok("Destroy", inst.Destroy(t.ctx))
		exit, err := b.inst.Wait(t.ctx)
		t.ok("Wait", err)
		if exit.Reason != sandbox.ReasonKilled {
			t.Errorf("the sandbox ended with %+v, want reason killed", exit)
		}
		_, err = b.inst.Exec(t.ctx, &sandbox.Command{Args: []string{"true"}})
		t.wantCode("Exec", err, sandbox.CodeGone)
		_, err = t.provider.Attach(t.ctx, b.inst.ID())
		t.wantCode("Attach", err, sandbox.CodeGone)
		t.ok("Destroy of what is gone", b.inst.Destroy(t.ctx))
	}},
	{"reattach/lifetime", capReattach, func(t *caseT) {
		first, err := t.h.New(t.ctx)
		t.ok("New", err)
		own := func(inst driver.Instance) *testSandbox {
			t.destroyLater(inst.ID())
			return t.attach(inst)
		}
		b, _ := t.shortLivedAt(first, own, func(*testSandbox) error { return nil })
		t.ok("Close", first.Close())
		second := t.connect()
		t.eventually("the end of a lifetime that began in another process", func() bool {
			f, ok := t.find(second, b.inst.ID())
			return !ok || f.State != sandbox.Running
		})
	}},
}
