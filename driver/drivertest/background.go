package drivertest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// manager returns the sandbox's process manager.
func (sb *testSandbox) manager() driver.ProcessManager {
	pm, ok := driver.As[driver.ProcessManager](sb.inst)
	if !ok {
		sb.Fatalf("processes are declared, but the instance is no ProcessManager")
	}
	return pm
}

// background starts a background command and closes the process; the command is
// killed after the case.
func (sb *testSandbox) background(script string) string {
	p := sb.start(sandbox.Command{Args: []string{"sh", "-c", script}, Dir: sb.dir, Background: true})
	id := p.Info().ID
	sb.ok("Close", p.Close())
	return id
}

// process returns the listed command with an id.
func (sb *testSandbox) process(id string) (sandbox.ProcessInfo, bool) {
	list, err := sb.manager().Processes(sb.ctx)
	sb.ok("Processes", err)
	i := slices.IndexFunc(list, func(p sandbox.ProcessInfo) bool { return p.ID == id })
	if i < 0 {
		return sandbox.ProcessInfo{}, false
	}
	return list[i], true
}

// ended waits until a background command has ended and returns its exit.
func (sb *testSandbox) ended(id string) *sandbox.Exit {
	var info sandbox.ProcessInfo
	sb.eventually("the end of a background command", func() bool {
		var ok bool
		if info, ok = sb.process(id); !ok {
			sb.Fatalf("the list has lost the command %s", id)
		}
		return !info.Running
	})
	if info.Exit == nil {
		sb.Fatalf("an ended command is listed without its exit")
	}
	return info.Exit
}

// logged is a log read to its end.
type logged struct {
	out, err []byte
	dropped  int64
}

// log reads a command's log.
func (sb *testSandbox) log(id string, opts driver.LogOptions) logged {
	r, err := sb.manager().Logs(sb.ctx, id, opts)
	sb.ok("Logs", err)
	defer r.Close()
	var l logged
	for {
		c, err := r.Next()
		if errors.Is(err, io.EOF) {
			return l
		}
		sb.ok("LogReader.Next", err)
		l.dropped += c.Dropped
		switch c.Stream {
		case 1:
			l.out = append(l.out, c.Data...)
		case 2:
			l.err = append(l.err, c.Data...)
		default:
			sb.Fatalf("a piece of stream %d", c.Stream)
		}
	}
}

func (sb *testSandbox) kill(id string) {
	if err := sb.manager().Kill(sb.ctx, id, sigKILL); err != nil {
		sb.wantCode("Kill", err, sandbox.CodeNotFound)
	}
}

var backgroundCases = []testCase{
	{"background/survives-close", capProcesses, func(t *caseT) {
		b := t.sandbox()
		id := b.background("echo started; while [ ! -e stop ]; do sleep 1; done; echo stopped; exit 4")
		info, ok := b.process(id)
		if !ok || !info.Running || !info.Background || info.Exit != nil || info.PID == 0 {
			t.Fatalf("listed as %+v, %v", info, ok)
		}
		b.mustSh("echo x >stop")
		if exit := b.ended(id); exit.Code != 4 || exit.Reason != sandbox.ReasonExited {
			t.Errorf("it ended with %+v, want code 4", *exit)
		}
		if l := b.log(id, driver.LogOptions{}); string(l.out) != "started\nstopped\n" {
			t.Errorf("its log is %q", l.out)
		}
	}},
	{"background/connected", capProcesses, func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Shell: "echo out; echo err >&2; exit 3", Background: true})
		r := b.finish(p)
		if r.stdout != "out\n" || r.stderr != "err\n" || r.exit.Code != 3 {
			t.Errorf("%v", r)
		}
	}},
	{"background/input", capProcesses, func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Shell: "read x; echo \"got $x\"", Background: true, Stdin: true})
		b.send(p, "it\n")
		t.want(b.finish(p), "got it\n")
	}},
	{"background/nobody-reads", capProcesses, func(t *caseT) {
		b := t.sandbox()
		id := b.background("dd if=/dev/zero bs=65536 count=64 2>/dev/null; exit 6")
		if exit := b.ended(id); exit.Code != 6 {
			t.Errorf("a command whose output is not read: %+v, want code 6", *exit)
		}
	}},
	{"background/list-order", capProcesses, func(t *caseT) {
		b := t.sandbox()
		ids := []string{b.background("sleep 1000"), b.background("exit 2"), b.background("sleep 1000")}
		list, err := b.manager().Processes(t.ctx)
		t.ok("Processes", err)
		var found []string
		for _, info := range list {
			if slices.Contains(ids, info.ID) {
				found = append(found, info.ID)
			}
		}
		if !slices.Equal(found, ids) {
			t.Errorf("listed %q, want %q: oldest first", found, ids)
		}
		b.kill(ids[0])
		b.kill(ids[2])
	}},
	{"background/foreground-listed", capProcesses, func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Shell: "echo ready; read x; exit 8", Stdin: true})
		b.readLines(p.Stdout()).await("ready")
		if info, ok := b.process(p.Info().ID); !ok || !info.Running || info.Background {
			t.Errorf("a foreground command is listed as %+v, %v", info, ok)
		}
		b.send(p, "\n")
		if exit := b.ended(p.Info().ID); exit.Code != 8 {
			t.Errorf("it ended with %+v, want code 8", *exit)
		}
	}},
	{"background/kill", capProcesses, func(t *caseT) {
		b := t.sandbox()
		id := b.background("sleep 1000 & echo $!; sleep 1000")
		var child string
		t.eventually("the child's PID in the log", func() bool {
			child = strings.TrimSpace(string(b.log(id, driver.LogOptions{}).out))
			return child != ""
		})
		t.ok("Kill", b.manager().Kill(t.ctx, id, sigTERM))
		if exit := b.ended(id); exit.Signal != sigTERM || exit.Code != 128+sigTERM || exit.Reason != sandbox.ReasonSignaled {
			t.Errorf("it ended with %+v, want signal %d", *exit, sigTERM)
		}
		b.diesToo(child)
		t.wantCode("Kill after the end", b.manager().Kill(t.ctx, id, sigTERM), sandbox.CodeNotFound)
	}},
	{"background/unknown", capProcesses, func(t *caseT) {
		pm := t.sandbox().manager()
		for _, id := range []string{"no-such-process", "", "../1", "1 "} {
			t.wantCode("Kill", pm.Kill(t.ctx, id, sigTERM), sandbox.CodeNotFound)
			p, err := pm.Reconnect(t.ctx, id)
			if err == nil {
				_ = p.Close()
			}
			t.wantCode("Reconnect", err, sandbox.CodeNotFound)
			l, err := pm.Logs(t.ctx, id, driver.LogOptions{})
			if err == nil {
				_ = l.Close()
			}
			t.wantCode("Logs", err, sandbox.CodeNotFound)
		}
	}},
	{"background/timeout", capProcesses, func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Args: []string{"sleep", "1000"}, Background: true, Timeout: timeout(t)})
		t.ok("Close", p.Close())
		if exit := b.ended(p.Info().ID); exit.Reason != sandbox.ReasonTimeout {
			t.Errorf("it ended with %+v, want reason timeout", *exit)
		}
	}},
	{"logs/streams", capProcesses, func(t *caseT) {
		b := t.sandbox()
		id := b.background("echo one; echo two >&2; echo three")
		b.ended(id)
		l := b.log(id, driver.LogOptions{})
		if string(l.out) != "one\nthree\n" || string(l.err) != "two\n" || l.dropped != 0 {
			t.Errorf("stdout %q, stderr %q, %d dropped", l.out, l.err, l.dropped)
		}
	}},
	{"logs/tail", capProcesses, func(t *caseT) {
		b := t.sandbox()
		id := b.background("i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); done; printf unfinished")
		b.ended(id)
		for n, want := range map[int]string{1: "unfinished", 3: "line 98\nline 99\nunfinished"} {
			if l := b.log(id, driver.LogOptions{Tail: n}); string(l.out) != want {
				t.Errorf("the last %d lines are %q, want %q", n, l.out, want)
			}
		}
		if l := b.log(id, driver.LogOptions{Tail: 1000}); bytes.Count(l.out, []byte("\n")) != 100 {
			t.Errorf("more lines than there are: %s", clip(string(l.out)))
		}
	}},
	{"logs/follow", capProcesses, func(t *caseT) {
		b := t.sandbox()
		id := b.background("echo early; while [ ! -e go ]; do sleep 1; done; echo late")
		r, err := b.manager().Logs(t.ctx, id, driver.LogOptions{Follow: true})
		t.ok("Logs", err)
		defer r.Close()
		var all []byte
		for {
			c, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			t.ok("Next", err)
			all = append(all, c.Data...)
			if bytes.HasSuffix(all, []byte("early\n")) {
				b.mustSh("echo x >go")
			}
		}
		if string(all) != "early\nlate\n" {
			t.Errorf("followed %q", all)
		}
	}},
	{"logs/follow-close", capProcesses, func(t *caseT) {
		b := t.sandbox()
		id := b.background("sleep 1000")
		r, err := b.manager().Logs(t.ctx, id, driver.LogOptions{Follow: true})
		t.ok("Logs", err)
		ended := make(chan error, 1)
		go func() {
			_, err := r.Next()
			ended <- err
		}()
		t.ok("Close", r.Close())
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("Next returned a piece of an empty log")
			}
		case <-t.ctx.Done():
			t.Fatalf("Next hangs although the reader is closed")
		}
		b.kill(id)
	}},
	{"logs/bounded", capProcesses, logsBounded},
	{"background/starter-misses-nothing", capProcesses, func(t *caseT) {
		b := t.sandbox()
		const total = 8 << 20 // far more than any sensible log keeps
		p := b.start(sandbox.Command{Shell: fmt.Sprintf("echo begun; dd if=/dev/zero bs=65536 count=%d 2>/dev/null; echo the end", total/65536), Background: true})
		defer p.Close()
		for range 20 { // enough time to write everything if the reader did not matter
			b.mustSh("true")
		}
		out, err := io.ReadAll(p.Stdout())
		t.ok("reading", err)
		if want := total + len("begun\nthe end\n"); len(out) != want {
			t.Errorf("its starter reads %d bytes of %d", len(out), want)
		}
	}},
	{"reconnect/log-and-live", capProcesses, func(t *caseT) {
		b := t.sandbox()
		id := b.background("echo early; while [ ! -e go ]; do sleep 1; done; echo late; exit 5")
		p, err := b.manager().Reconnect(t.ctx, id)
		t.ok("Reconnect", err)
		defer p.Close()
		if p.Info().ID != id {
			t.Errorf("reconnected to %q, want %q", p.Info().ID, id)
		}
		out := b.readLines(p.Stdout())
		out.await("early")
		b.mustSh("echo x >go")
		out.await("late")
		t.wantExit(b.wait(p), 5, 0, sandbox.ReasonExited)
		if rest := out.rest(); len(rest) != 0 {
			t.Errorf("more output: %q", rest)
		}
	}},
	{"reconnect/close-leaves-it", capProcesses, func(t *caseT) {
		b := t.sandbox()
		id := b.background("sleep 1000")
		p, err := b.manager().Reconnect(t.ctx, id)
		t.ok("Reconnect", err)
		t.ok("Close", p.Close())
		if info, _ := b.process(id); !info.Running {
			t.Errorf("closing a reconnected Process ended the command: %+v", info)
		}
		b.kill(id)
	}},
	{"reconnect/ended", capProcesses, func(t *caseT) {
		b := t.sandbox()
		id := b.background("echo said; exit 9")
		b.ended(id)
		p, err := b.manager().Reconnect(t.ctx, id)
		t.ok("Reconnect", err)
		r := b.finish(p)
		if r.stdout != "said\n" || r.exit.Code != 9 {
			t.Errorf("%v", r)
		}
		t.ok("Close", p.Close())
	}},
	{"reconnect/foreground", capProcesses, func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Args: []string{"sleep", "1000"}})
		q, err := b.manager().Reconnect(t.ctx, p.Info().ID)
		if err == nil {
			_ = q.Close()
		}
		t.wantCode("Reconnect to a foreground command", err, sandbox.CodeConflict, sandbox.CodeInvalid, sandbox.CodeNotFound)
	}},
	{"reconnect/after-restart", capProcesses, func(t *caseT) {
		if !t.declared(capReattach) {
			t.Logf("the provider does not declare %s", capReattach)
			return
		}
		b := t.fresh()
		id := b.background("echo early; while [ ! -e go ]; do sleep 1; done; echo late")
		inst, err := t.connect().Attach(t.ctx, b.inst.ID())
		t.ok("Attach", err)
		other := t.attach(inst)
		if info, ok := other.process(id); !ok || !info.Running {
			t.Errorf("another process lists the command as %+v, %v", info, ok)
		}
		p, err := other.manager().Reconnect(t.ctx, id)
		t.ok("Reconnect", err)
		out := t.readLines(p.Stdout())
		out.await("early")
		b.mustSh("echo x >go")
		out.await("late")
		t.ok("Close", p.Close())
	}},
}

// logsBounded writes far more than any sensible log keeps. The log must keep
// the end of the output and count the lost bytes.
func logsBounded(t *caseT) {
	b := t.sandbox()
	total := size[int64](t.suite, 32<<20, 32<<20)
	id := b.background(fmt.Sprintf("dd if=/dev/zero bs=65536 count=%d 2>/dev/null; echo the end", total/65536))
	b.ended(id)
	l := b.log(id, driver.LogOptions{})
	all := total + int64(len("the end\n"))
	if kept := int64(len(l.out)); kept+l.dropped != all {
		t.Errorf("%d bytes kept and %d dropped, want %d together", kept, l.dropped, all)
	}
	if l.dropped == 0 {
		t.Errorf("the log kept %d bytes: it is not bounded", len(l.out))
	}
	if !bytes.HasSuffix(l.out, []byte("the end\n")) {
		t.Errorf("the end of the output is lost")
	}
}
