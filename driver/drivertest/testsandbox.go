package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// testSandbox is a sandbox with a directory in it for one case.
type testSandbox struct {
	*caseT
	inst driver.Instance
	dir  string
	spec *sandbox.Spec // the spec it was created with, if known
}

// fresh creates a sandbox for this case alone and destroys it afterwards.
func (t *caseT) fresh(change ...func(*sandbox.Spec)) *testSandbox {
	return t.create(t.provider, t.spec(change...))
}

func (t *caseT) create(p driver.Provider, spec *sandbox.Spec) *testSandbox {
	inst, err := p.Create(t.ctx, spec)
	if err != nil {
		t.Fatalf("Create: %v", t.vet(err))
	}
	b := t.own(inst)
	b.spec = spec
	return b
}

// own wraps an instance that is destroyed when the case ends.
func (t *caseT) own(inst driver.Instance) *testSandbox {
	t.Cleanup(func(ctx context.Context) {
		if err := inst.Destroy(ctx); err != nil {
			t.Errorf("Destroy: %v", t.vet(err))
		}
	})
	return t.attach(inst)
}

// attach wraps an instance that the case does not destroy.
func (t *caseT) attach(inst driver.Instance) *testSandbox {
	dir := "/tmp"
	if t.h.Dir != nil {
		dir = t.h.Dir(inst)
	}
	return &testSandbox{caseT: t, inst: inst, dir: dir}
}

// sandbox returns the sandbox shared by harmless cases, with a new empty directory
// in it.
func (t *caseT) sandbox() *testSandbox {
	if t.shared == nil {
		inst, err := t.provider.Create(t.ctx, t.spec())
		if err != nil {
			t.Fatalf("Create: %v", t.vet(err))
		}
		t.shared = inst
	}
	b := t.attach(t.shared)
	b.dir = path.Join(b.dir, fmt.Sprintf("case-%d", t.serial.Add(1)))
	if r := b.argv("mkdir", b.dir); r.exit.Code != 0 {
		t.Fatalf("mkdir in the harness's directory: %s", r.stderr)
	}
	t.Cleanup(b.removeDir)
	return b
}

// removeDir removes the case's directory, because not every provider gives each
// sandbox a /tmp of its own. The sandbox of a failed case is destroyed instead.
// It ignores errors: no promise is tested here.
func (sb *testSandbox) removeDir(ctx context.Context) {
	if sb.hasFailed() {
		return
	}
	p, err := sb.inst.Exec(ctx, &sandbox.Command{Args: []string{"rm", "-rf", sb.dir}})
	if err != nil {
		return
	}
	_, _ = collect(ctx, p)
	_ = p.Close()
}

// path names a file in the case's directory.
func (sb *testSandbox) path(name string) string { return sb.dir + "/" + name }

// result is the output and exit of a finished command.
type result struct {
	stdout, stderr string
	exit           sandbox.Exit
}

func (r result) String() string {
	return fmt.Sprintf("%+v, stdout %s, stderr %s", r.exit, clip(r.stdout), clip(r.stderr))
}

// clip quotes a text and shortens it if it is long.
func clip(s string) string {
	if len(s) > 400 {
		return fmt.Sprintf("%q… (%d bytes)", s[:400], len(s))
	}
	return fmt.Sprintf("%q", s)
}

// start starts a command that is closed at the end of the case.
func (sb *testSandbox) start(cmd sandbox.Command) driver.Process {
	p, err := sb.inst.Exec(sb.ctx, &cmd)
	if err != nil {
		sb.Fatalf("Exec: %v", sb.vet(err))
	}
	sb.Cleanup(func(context.Context) {
		if err := p.Close(); err != nil {
			sb.Errorf("Process.Close: %v", sb.vet(err))
		}
	})
	return p
}

// run runs a command to its end without input.
func (sb *testSandbox) run(cmd sandbox.Command) result { return sb.finish(sb.start(cmd)) }

// argv runs a program.
func (sb *testSandbox) argv(args ...string) result { return sb.run(sandbox.Command{Args: args}) }

// sh runs a script with positional parameters in the case's directory.
func (sb *testSandbox) sh(script string, args ...string) result {
	return sb.run(sandbox.Command{Args: append([]string{"sh", "-c", script, "sh"}, args...), Dir: sb.dir})
}

// mustSh runs a script that must succeed.
func (sb *testSandbox) mustSh(script string, args ...string) string {
	r := sb.sh(script, args...)
	if r.exit.Code != 0 {
		sb.Fatalf("%s: %v", script, r)
	}
	return r.stdout
}

// finish reads a command's output and waits for its end.
func (sb *testSandbox) finish(p driver.Process) result {
	r, err := collect(sb.ctx, p)
	if err != nil {
		sb.Fatalf("command: %v", sb.vet(err))
	}
	return r
}

// collect reads both outputs to their end and waits. Any goroutine may call it.
func collect(ctx context.Context, p driver.Process) (result, error) {
	type output struct {
		data []byte
		err  error
	}
	read := func(r io.Reader) <-chan output {
		c := make(chan output, 1)
		go func() {
			data, err := readAll(r)
			c <- output{data, err}
		}()
		return c
	}
	outc, errc := read(p.Stdout()), read(p.Stderr())
	exit, err := p.Wait(ctx)
	if err != nil {
		_ = p.Close() // Unblocks the readers.
		return result{}, fmt.Errorf("wait: %w", err)
	}
	r := result{exit: exit}
	for _, s := range []struct {
		c    <-chan output
		into *string
		name string
	}{{outc, &r.stdout, "stdout"}, {errc, &r.stderr, "stderr"}} {
		select {
		case o := <-s.c:
			if o.err != nil {
				return r, fmt.Errorf("reading %s: %w", s.name, o.err)
			}
			*s.into = string(o.data)
		case <-ctx.Done():
			_ = p.Close()
			return r, fmt.Errorf("%s does not end: %w", s.name, ctx.Err())
		}
	}
	return r, nil
}

// readAll reads r to the end, up to a limit: a broken provider must not fill
// this process's memory, and no case reads as much.
func readAll(r io.Reader) ([]byte, error) {
	const bound = 128 << 20
	data, err := io.ReadAll(io.LimitReader(r, bound))
	if len(data) == bound {
		err = errors.New("the output does not end")
	}
	return data, err
}

// wait waits for a command and ignores its output.
func (sb *testSandbox) wait(p driver.Process) sandbox.Exit {
	exit, err := p.Wait(sb.ctx)
	if err != nil {
		sb.Fatalf("Process.Wait: %v", sb.vet(err))
	}
	return exit
}

// wantExit checks how a command ended.
func (t *caseT) wantExit(got sandbox.Exit, code, signal int, reason sandbox.Reason) {
	if got.Code != code || got.Signal != signal || got.Reason != reason {
		t.Errorf("exit %+v, want code %d, signal %d, reason %s", got, code, signal, reason)
	}
}

// want checks a command's output and its successful end.
func (t *caseT) want(got result, stdout string) {
	if got.exit.Code != 0 || got.exit.Reason != sandbox.ReasonExited || got.stdout != stdout {
		t.Errorf("%v; want success and stdout %s", got, clip(stdout))
	}
}

// lines reads a command's output line by line while it runs.
type lines struct {
	t *caseT
	c chan string
}

// readLines starts to read r. Nothing else may read r afterwards.
func (t *caseT) readLines(r io.Reader) *lines {
	l := &lines{t, make(chan string, 1024)}
	go func() {
		defer close(l.c)
		var line []byte
		buf := make([]byte, 4096)
		for {
			n, err := r.Read(buf)
			for _, c := range buf[:n] {
				if c != '\n' {
					line = append(line, c)
					continue
				}
				l.put(line)
				line = line[:0]
			}
			if err != nil {
				if len(line) > 0 {
					l.put(line)
				}
				return
			}
		}
	}()
	return l
}

func (l *lines) put(line []byte) {
	select {
	case l.c <- strings.TrimSuffix(string(line), "\r"):
	case <-l.t.ctx.Done():
	}
}

// next returns the next line; the case fails when there is none.
func (l *lines) next() string {
	select {
	case s, ok := <-l.c:
		if !ok {
			l.t.Fatalf("the output ended where a line was expected")
		}
		return s
	case <-l.t.ctx.Done():
		l.t.Fatalf("no line of output came")
	}
	return ""
}

// await skips lines until one is want.
func (l *lines) await(want string) {
	for l.next() != want {
	}
}

// rest returns the remaining lines after the output has ended.
func (l *lines) rest() []string {
	var rest []string
	for {
		select {
		case s, ok := <-l.c:
			if !ok {
				return rest
			}
			rest = append(rest, s)
		case <-l.t.ctx.Done():
			l.t.Fatalf("the output does not end")
		}
	}
}

// eventually polls until cond holds; the case fails when its time has passed.
func (t *caseT) eventually(what string, cond func() bool) {
	for delay := 5 * time.Millisecond; !cond(); delay = min(2*delay, time.Second) {
		select {
		case <-t.ctx.Done():
			t.Fatalf("%s: not before the case's timeout", what)
		case <-time.After(delay):
		}
	}
}

// alive reports whether a process of the sandbox runs. A zombie does not count.
func (sb *testSandbox) alive(pid string) bool {
	r := sb.sh(`kill -0 "$1" 2>/dev/null || exit 1
if [ -r "/proc/$1/stat" ]; then read -r a b c d <"/proc/$1/stat"; [ "$c" != Z ]; fi`, pid)
	return r.exit.Code == 0
}

// send writes to a command's standard input.
func (sb *testSandbox) send(p driver.Process, s string) {
	if _, err := io.Copy(p.Stdin(), strings.NewReader(s)); err != nil {
		sb.Fatalf("writing standard input: %v", err)
	}
}

// pattern returns n bytes without repetitions, cheaply.
func pattern(n int) []byte {
	p := make([]byte, n)
	x := uint32(2463534242)
	for i := range p {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		p[i] = byte(x)
	}
	return p
}

// sameBytes compares long outputs without printing them.
func (t *caseT) sameBytes(what string, got, want []byte) {
	if bytes.Equal(got, want) {
		return
	}
	i := 0
	for i < min(len(got), len(want)) && got[i] == want[i] {
		i++
	}
	t.Errorf("%s: %d bytes, want %d; they differ at byte %d", what, len(got), len(want), i)
}
