package drivertest

import (
	"bytes"
	"fmt"
	"io"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// cut disconnects from a command as a lost connection does.
func (sb *testSandbox) cut(p driver.Process) {
	d, ok := driver.As[driver.Detacher](p)
	if !ok {
		sb.Fatalf("rejoin is declared, but a process is no Detacher")
	}
	sb.ok("Detach", d.Detach())
}

// rejoin reconnects to a command.
func (sb *testSandbox) rejoin(id string, from driver.Cursor) (driver.Process, driver.Cursor) {
	p, at, err := sb.tryRejoin(id, from, false)
	sb.ok("Rejoin", err)
	return p, at
}

func (sb *testSandbox) tryRejoin(id string, from driver.Cursor, skip bool) (driver.Process, driver.Cursor, error) {
	r, ok := driver.As[driver.Rejoiner](sb.inst)
	if !ok {
		sb.Fatalf("rejoin is declared, but the instance is no Rejoiner")
	}
	return r.Rejoin(sb.ctx, id, from, skip)
}

// held starts a command that waits for its disconnected caller.
func (sb *testSandbox) held(script string, hold time.Duration) driver.Process {
	return sb.start(sandbox.Command{Args: []string{"sh", "-c", script}, Dir: sb.dir, Stdin: true, Hold: hold})
}

// numbered returns the output of the scripts in these cases.
func numbered(lines int) []byte {
	var out bytes.Buffer
	for i := range lines {
		fmt.Fprintf(&out, "%09d\n", i)
	}
	return out.Bytes()
}

// writeNumbered returns a script that writes this many lines, a hundred at a time:
// busybox makes a system call for each printf, which costs most of the time where
// calls are slow.
func writeNumbered(lines int) string {
	return fmt.Sprintf("awk 'BEGIN { for (i = 0; i < %d; i++) { s = s sprintf(\"%%09d\\n\", i); if (i %% 100 == 99) { printf \"%%s\", s; s = \"\" } }; printf \"%%s\", s }'", lines)
}

// hangsUp checks that a command whose caller is lost gets SIGHUP, so that it can
// clean up, and that all its processes end with it.
func (sb *testSandbox) hangsUp(hold time.Duration) {
	p := sb.start(sandbox.Command{
		Shell: `(trap "" HUP; exec sleep 1000) & trap "echo x >hup; exit 3" HUP; echo $!; wait`,
		Dir:   sb.dir, Hold: hold,
	})
	child := sb.readLines(p.Stdout()).next()
	sb.cut(p)
	if exit := sb.ended(p.Info().ID); exit.Code != 3 {
		sb.Errorf("a command that handles SIGHUP ended with %+v", exit)
	}
	sb.mustSh("[ -e hup ]")
	sb.diesToo(child)
}

var rejoinCases = []testCase{
	{"rejoin/output", capRejoin, func(t *caseT) {
		b := t.sandbox()
		const lines = 900_000 // more than is kept, and more than can be in transit
		want := numbered(lines)
		p := b.held(writeNumbered(lines)+"; echo done >&2; exit 7", time.Minute)
		id := p.Info().ID
		var got []byte
		// Each connection is cut during output, which the next one must receive
		// again.
		for _, n := range []int{10, 1000, 2 << 20, 1, 3 << 20} {
			part := make([]byte, n)
			if _, err := io.ReadFull(p.Stdout(), part); err != nil {
				t.Fatalf("reading: %v", err)
			}
			got = append(got, part...)
			b.cut(p)
			var at driver.Cursor
			p, at = b.rejoin(id, driver.Cursor{Stdout: int64(len(got))})
			if at.Stdout != int64(len(got)) || at.Stderr != 0 {
				t.Fatalf("rejoined at %+v, want output at %d", at, len(got))
			}
		}
		r := b.finish(p)
		if got = append(got, r.stdout...); !bytes.Equal(got, want) {
			t.Errorf("%d bytes of output are not the %d that were written", len(got), len(want))
		}
		if r.stderr != "done\n" || r.exit.Code != 7 {
			t.Errorf("standard error %q, %+v", r.stderr, r.exit)
		}
		t.ok("Close", p.Close())
	}},
	{"rejoin/input", capRejoin, func(t *caseT) {
		b := t.sandbox()
		p := b.held("while read x; do echo got $x; done; echo end", time.Minute)
		_, err := io.WriteString(p.Stdin(), "one\n")
		t.ok("writing", err)
		out := b.readLines(p.Stdout())
		out.await("got one")
		b.cut(p)
		p, at := b.rejoin(p.Info().ID, driver.Cursor{Stdout: int64(len("got one\n"))})
		defer p.Close()
		if at.Stdin != int64(len("one\n")) {
			t.Errorf("%d bytes of input were taken, want 4", at.Stdin)
		}
		_, err = io.WriteString(p.Stdin(), "two\n")
		t.ok("writing", err)
		t.ok("ending the input", p.Stdin().Close())
		if all, err := io.ReadAll(p.Stdout()); err != nil || string(all) != "got two\nend\n" {
			t.Errorf("read %q, %v", all, err)
		}
	}},
	{"rejoin/blocked-input", capRejoin, func(t *caseT) {
		b := t.sandbox()
		first := b.held("while [ ! -e go ]; do sleep 0.1; done; wc -c", time.Minute)
		const total = 3 << 20 // far more than a pipe holds
		input := bytes.Repeat([]byte("x"), total)
		go func() { _, _ = first.Stdin().Write(input) }() // blocks: the command never reads
		b.cut(first)
		p, at := b.rejoin(first.Info().ID, driver.Cursor{})
		defer p.Close()
		if at.Stdin < 0 || at.Stdin >= total {
			t.Fatalf("%d bytes of input were taken", at.Stdin)
		}
		go func() {
			_, _ = p.Stdin().Write(input[at.Stdin:])
			_ = p.Stdin().Close()
		}()
		b.mustSh("echo x >go")
		if all, err := io.ReadAll(p.Stdout()); err != nil || string(bytes.TrimSpace(all)) != fmt.Sprint(total) {
			t.Errorf("it read %q bytes of %d, %v", all, total, err)
		}
	}},
	{"rejoin/exit", capRejoin, func(t *caseT) {
		b := t.sandbox()
		p := b.held("echo said; exit 9", time.Minute)
		b.wait(p)
		b.cut(p)
		p, _ = b.rejoin(p.Info().ID, driver.Cursor{})
		if r := b.finish(p); r.stdout != "said\n" || r.exit.Code != 9 {
			t.Errorf("%v", r)
		}
		t.ok("Close", p.Close())
	}},
	{"rejoin/takes-over", capRejoin, func(t *caseT) {
		b := t.sandbox()
		first := b.held("echo one; read x; echo two", time.Minute)
		out := b.readLines(first.Stdout())
		out.await("one")
		second, _ := b.rejoin(first.Info().ID, driver.Cursor{Stdout: 4})
		defer second.Close()
		if _, err := first.Wait(t.ctx); err == nil {
			t.Errorf("the first connection saw the end of a running command")
		}
		b.cut(first)
		_, err := io.WriteString(second.Stdin(), "\n")
		t.ok("writing", err)
		if all, err := io.ReadAll(second.Stdout()); err != nil || string(all) != "two\n" {
			t.Errorf("the second read %q, %v", all, err)
		}
	}},
	{"rejoin/close-after-takeover", capRejoin, func(t *caseT) {
		b := t.sandbox()
		first := b.held("echo one; read x; echo two", time.Minute)
		b.readLines(first.Stdout()).await("one")
		second, _ := b.rejoin(first.Info().ID, driver.Cursor{Stdout: 4})
		if _, err := first.Wait(t.ctx); err == nil {
			t.Errorf("the first connection saw the end of a running command")
		}
		t.ok("Close of the connection that was replaced", first.Close())
		_, err := io.WriteString(second.Stdin(), "\n")
		t.ok("writing", err)
		if r := b.finish(second); r.stdout != "two\n" || r.exit.Code != 0 {
			t.Errorf("the command that another connection took over: %v", r)
		}
		t.ok("Close", second.Close())
	}},
	{"rejoin/close-ends-it", capRejoin, func(t *caseT) {
		b := t.sandbox()
		p := b.held("sleep 1000", time.Hour)
		t.ok("Close", p.Close())
		b.ended(p.Info().ID)
	}},
	{"rejoin/nobody-comes", capRejoin, func(t *caseT) {
		b := t.sandbox()
		p := b.held("sleep 1000", time.Millisecond)
		b.cut(p)
		b.ended(p.Info().ID)
	}},
	{"rejoin/hung-up-after-hold", capRejoin, func(t *caseT) { t.sandbox().hangsUp(time.Millisecond) }},
	{"rejoin/hung-up-at-once", capRejoin, func(t *caseT) { t.sandbox().hangsUp(0) }},
	{"rejoin/hung-up-stopped", capRejoin, func(t *caseT) {
		b := t.sandbox()
		p := b.held("kill -STOP $$", time.Millisecond)
		b.cut(p)
		b.ended(p.Info().ID)
	}},
	{"rejoin/hung-up-writing", capRejoin, func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Shell: "trap 'dd if=/dev/zero bs=65536 count=64 2>/dev/null; echo x >bye; exit' HUP; echo up; sleep 1000 & wait", Dir: b.dir})
		b.readLines(p.Stdout()).await("up")
		b.cut(p)
		b.ended(p.Info().ID)
		b.mustSh("[ -e bye ]")
	}},
	{"rejoin/background", capRejoin, func(t *caseT) {
		b := t.sandbox()
		const lines = 200_000 // more than a log keeps
		id := b.background(writeNumbered(lines) + "; while [ ! -e go ]; do sleep 0.1; done; echo late")
		want := numbered(lines)
		b.eventually("the end of the output", func() bool { return bytes.HasSuffix(b.log(id, driver.LogOptions{Tail: 1}).out, want[len(want)-10:]) })
		_, _, err := b.tryRejoin(id, driver.Cursor{Stdout: 5}, false)
		t.wantCode("Rejoin where nothing is kept", err, sandbox.CodeExhausted)
		p, at, err := b.tryRejoin(id, driver.Cursor{Stdout: 5}, true)
		t.ok("Rejoin with what is kept", err)
		first := make([]byte, 10)
		_, err = io.ReadFull(p.Stdout(), first)
		t.ok("reading", err)
		if !bytes.Equal(first, want[at.Stdout:at.Stdout+10]) {
			t.Errorf("at %d it reads %q, want %q", at.Stdout, first, want[at.Stdout:at.Stdout+10])
		}
		t.ok("Close", p.Close())
		p, _ = b.rejoin(id, driver.Cursor{Stdout: int64(len(want)) - 10})
		defer p.Close()
		b.mustSh("echo x >go")
		if all, err := io.ReadAll(p.Stdout()); err != nil || string(all) != string(want[len(want)-10:])+"late\n" {
			t.Errorf("read %q, %v", all, err)
		}
	}},
	{"rejoin/refused", capRejoin, func(t *caseT) {
		b := t.sandbox()
		plain := b.start(sandbox.Command{Args: []string{"sleep", "1000"}})
		held := b.held("sleep 1000", time.Minute)
		for _, tt := range []struct {
			what, id string
			from     driver.Cursor
			code     sandbox.Code
		}{
			{"a foreground command", plain.Info().ID, driver.Cursor{}, sandbox.CodeConflict},
			{"an unknown command", "no-such-process", driver.Cursor{}, sandbox.CodeNotFound},
			{"output that was never written", held.Info().ID, driver.Cursor{Stdout: 1}, sandbox.CodeInvalid},
		} {
			_, _, err := b.tryRejoin(tt.id, tt.from, false)
			t.wantCode("Rejoin "+tt.what, err, tt.code)
		}
		t.ok("Close", held.Close())
	}},
}
