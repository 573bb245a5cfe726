package drivertest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

var outputCases = []testCase{
	{"output/separate", "", func(t *caseT) {
		r := t.sandbox().run(sandbox.Command{Shell: "echo out; echo err >&2; echo out2; echo err2 >&2"})
		if r.stdout != "out\nout2\n" || r.stderr != "err\nerr2\n" {
			t.Errorf("%v", r)
		}
	}},
	{"output/all-bytes", "", func(t *caseT) {
		var script strings.Builder
		want := make([]byte, 256)
		script.WriteString("printf '")
		for i := range want {
			want[i] = byte(i)
			fmt.Fprintf(&script, `\%03o`, i)
		}
		script.WriteString("'")
		b := t.sandbox()
		t.sameBytes("stdout", []byte(b.run(sandbox.Command{Shell: script.String()}).stdout), want)
		t.sameBytes("stderr", []byte(b.run(sandbox.Command{Shell: script.String() + " >&2"}).stderr), want)
	}},
	{"output/empty", "", func(t *caseT) {
		if r := t.sandbox().argv("true"); r.stdout+r.stderr != "" {
			t.Errorf("%v", r)
		}
	}},
	{"output/live", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Shell: "echo first; read x; echo second >&2; read x; echo third", Stdin: true})
		out, errs := b.readLines(p.Stdout()), b.readLines(p.Stderr())
		out.await("first")
		b.send(p, "\n")
		errs.await("second")
		b.send(p, "\n")
		out.await("third")
		t.wantExit(b.wait(p), 0, 0, sandbox.ReasonExited)
	}},
	{"output/large", "", func(t *caseT) {
		n := size[int64](t.suite, 100<<20, 4<<20)
		b := t.sandbox()
		p := b.start(sandbox.Command{Args: []string{"dd", "if=/dev/zero", "bs=65536", fmt.Sprintf("count=%d", n/65536)}})
		counter := &zeroCounter{}
		go func() { _, _ = io.Copy(io.Discard, p.Stderr()) }()
		if _, err := io.Copy(counter, p.Stdout()); err != nil {
			t.Fatalf("reading: %v", t.vet(err))
		}
		if counter.n != n || counter.other {
			t.Errorf("%d bytes, others than zero %v; want %d zeros", counter.n, counter.other, n)
		}
		t.wantExit(b.wait(p), 0, 0, sandbox.ReasonExited)
	}},
	{"output/large-both", "", func(t *caseT) {
		r := t.sandbox().run(sandbox.Command{Shell: `i=0; while [ $i -lt 3000 ]; do echo "out $i"; echo "err $i" >&2; i=$((i+1)); done`})
		var out, errs strings.Builder
		for i := range 3000 {
			fmt.Fprintf(&out, "out %d\n", i)
			fmt.Fprintf(&errs, "err %d\n", i)
		}
		t.sameBytes("stdout", []byte(r.stdout), []byte(out.String()))
		t.sameBytes("stderr", []byte(r.stderr), []byte(errs.String()))
	}},
	{"output/read-after-exit", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Shell: "dd if=/dev/zero bs=1024 count=16 2>/dev/null; echo end; echo err >&2"})
		t.wantExit(b.wait(p), 0, 0, sandbox.ReasonExited)
		r := b.finish(p)
		if len(r.stdout) != 16<<10+4 || !strings.HasSuffix(r.stdout, "\x00end\n") || r.stderr != "err\n" {
			t.Errorf("read after the end: %v", r)
		}
	}},
	{"output/read-late", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Shell: "dd if=/dev/zero bs=1024 count=1024 2>/dev/null; echo end"})
		ctx, cancel := context.WithTimeout(t.ctx, 100*time.Millisecond)
		defer cancel()
		if _, err := p.Wait(ctx); err != nil { // It may still be waiting for its reader.
			t.wantCode("Wait", err, sandbox.CodeTimeout)
		}
		r := b.finish(p)
		if len(r.stdout) != 1<<20+4 || !strings.HasSuffix(r.stdout, "\x00end\n") {
			t.Errorf("read late: %v", r)
		}
	}},
	{"output/one-stream-unread", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Shell: "echo out; echo err >&2; dd if=/dev/zero bs=1024 count=16 >&2 2>/dev/null"})
		out, err := readAll(p.Stdout())
		if err != nil || string(out) != "out\n" {
			t.Errorf("stdout %q, %v", out, err)
		}
		t.wantExit(b.wait(p), 0, 0, sandbox.ReasonExited)
		errs, err := readAll(p.Stderr())
		if err != nil || len(errs) != 4+16<<10 {
			t.Errorf("%d bytes on stderr, %v", len(errs), err)
		}
	}},
	{"output/inherited", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Shell: "(while [ ! -e go ]; do sleep 1; done; echo from the child) & echo from the parent", Dir: b.dir})
		out := b.readLines(p.Stdout())
		out.await("from the parent")
		t.wantExit(b.wait(p), 0, 0, sandbox.ReasonExited)
		b.mustSh("echo x >go")
		out.await("from the child")
		if rest := out.rest(); len(rest) != 0 {
			t.Errorf("more output: %q", rest)
		}
	}},
	{"output/eof-after-exit", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Args: []string{"echo", "x"}})
		r := b.finish(p)
		t.want(r, "x\n")
		for range 2 {
			if n, err := p.Stdout().Read(make([]byte, 8)); n != 0 || err != io.EOF {
				t.Errorf("reading on after the end: %d, %v", n, err)
			}
		}
	}},
}

// zeroCounter counts zeros.
type zeroCounter struct {
	n     int64
	other bool
}

func (z *zeroCounter) Write(p []byte) (int, error) {
	z.n += int64(len(p))
	z.other = z.other || len(bytes.Trim(p, "\x00")) > 0
	return len(p), nil
}

var stdinCases = []testCase{
	{"stdin/echo", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Args: []string{"cat"}, Stdin: true})
		out := b.readLines(p.Stdout())
		for i := range 5 {
			b.send(p, fmt.Sprintf("line %d\n", i))
			out.await(fmt.Sprintf("line %d", i))
		}
		t.ok("closing stdin", p.Stdin().Close())
		t.wantExit(b.wait(p), 0, 0, sandbox.ReasonExited)
	}},
	{"stdin/none", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Args: []string{"cat"}})
		if p.Stdin() == nil {
			t.Fatalf("Stdin is nil")
		}
		if _, err := p.Stdin().Write([]byte("x")); err == nil {
			t.Errorf("writing to an input that is closed already succeeds")
		}
		t.want(b.finish(p), "")
	}},
	{"stdin/close-twice", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Args: []string{"cat"}, Stdin: true})
		_ = p.Stdin().Close()
		_ = p.Stdin().Close()
		t.want(b.finish(p), "")
		if _, err := p.Stdin().Write([]byte("x")); err == nil {
			t.Errorf("writing after Close succeeds")
		}
	}},
	{"stdin/round-trip", "", func(t *caseT) {
		b := t.sandbox()
		want := pattern(size(t.suite, 16<<20, 1<<20))
		p := b.start(sandbox.Command{Args: []string{"cat"}, Stdin: true})
		sent := make(chan error, 1)
		go func() {
			_, err := io.Copy(p.Stdin(), bytes.NewReader(want))
			if cerr := p.Stdin().Close(); err == nil {
				err = cerr
			}
			sent <- err
		}()
		r := b.finish(p)
		t.sameBytes("what came back", []byte(r.stdout), want)
		if err := <-sent; err != nil {
			t.Errorf("sending: %v", err)
		}
	}},
	{"stdin/part-read", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Args: []string{"head", "-c", "5"}, Stdin: true})
		b.send(p, "hello world")
		_ = p.Stdin().Close()
		t.want(b.finish(p), "hello")
	}},
	{"stdin/never-read", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Args: []string{"sleep", "1000"}, Stdin: true})
		sent := make(chan struct{})
		go func() {
			_, _ = io.Copy(p.Stdin(), bytes.NewReader(make([]byte, 8<<20)))
			close(sent)
		}()
		t.ok("Close", p.Close())
		select {
		case <-sent:
		case <-t.ctx.Done():
			t.Fatalf("a writer hangs although the command has ended")
		}
	}},
	{"stdin/after-exit", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Args: []string{"true"}, Stdin: true})
		b.wait(p)
		failed := make(chan error, 1)
		go func() {
			_, err := io.Copy(p.Stdin(), bytes.NewReader(make([]byte, 8<<20)))
			failed <- err
		}()
		select {
		case err := <-failed:
			if err == nil {
				t.Errorf("8 MB written to a command that has ended")
			}
		case <-t.ctx.Done():
			t.Fatalf("writing to a command that has ended hangs")
		}
	}},
	{"stdin/not-shared", "", func(t *caseT) {
		b := t.sandbox()
		p := b.start(sandbox.Command{Args: []string{"cat"}, Stdin: true})
		q := b.start(sandbox.Command{Args: []string{"cat"}, Stdin: true})
		b.send(p, "for p")
		b.send(q, "for q")
		_ = p.Stdin().Close()
		t.want(b.finish(p), "for p") // q's open input does not hold p's open.
		_ = q.Stdin().Close()
		t.want(b.finish(q), "for q")
	}},
}
