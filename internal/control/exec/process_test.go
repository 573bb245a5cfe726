package exec_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

var (
	errAway = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the sandbox does not answer"}
	errCut  = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the connection is closed"}
)

// script is a command whose end the test decides. Its connections share it.
type script struct {
	info   sandbox.ProcessInfo
	stdout string
	// ended is closed when exit is set. onClose, if set, is the exit of a command that
	// a closed connection ends.
	ended   chan struct{}
	exit    sandbox.Exit
	onClose *sandbox.Exit
	// refuses is the error of another connection, nil: there can be one.
	refuses error
}

func (s *script) end(exit sandbox.Exit) {
	s.exit = exit
	close(s.ended)
}

// link is a connection to a script. It knows nothing of what happens after Close.
type link struct {
	*script
	out, none io.Reader
	once      sync.Once
	closed    chan struct{}
	saw       bool // the end came first
}

func (s *script) connect() *link {
	return &link{script: s, out: strings.NewReader(s.stdout), none: strings.NewReader(""), closed: make(chan struct{})}
}

func (l *link) Info() sandbox.ProcessInfo                      { return l.info }
func (*link) Stdin() io.WriteCloser                            { return nil }
func (l *link) Stdout() io.Reader                              { return l.out }
func (l *link) Stderr() io.Reader                              { return l.none }
func (*link) Signal(context.Context, int) error                { return nil }
func (*link) Resize(context.Context, sandbox.WindowSize) error { return nil }
func (l *link) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-l.ended:
	case <-l.closed:
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
	select {
	case <-l.closed:
		switch {
		case l.saw:
		case l.onClose != nil:
			return *l.onClose, nil
		default:
			return sandbox.Exit{}, errCut
		}
	default:
	}
	return l.exit, nil
}

func (l *link) Close() error {
	l.once.Do(func() {
		select {
		case <-l.ended:
			l.saw = true
		default:
		}
		close(l.closed)
	})
	return nil
}

func (l *link) Detach() error { return l.Close() }

// stage is a provider with the sandbox sb-1, which runs one script.
type stage struct {
	coretest.Provider
	script *script
	listed []sandbox.ProcessInfo
}

func (s *stage) Attach(_ context.Context, id sandbox.ID) (driver.Instance, error) {
	return actor{s, id}, nil
}

type actor struct {
	*stage
	id sandbox.ID
}

func (a actor) ID() sandbox.ID { return a.id }
func (a actor) Exec(context.Context, *sandbox.Command) (driver.Process, error) {
	return a.script.connect(), nil
}

func (actor) Wait(ctx context.Context) (sandbox.Exit, error) {
	<-ctx.Done()
	return sandbox.Exit{}, ctx.Err()
}
func (actor) Destroy(context.Context) error { return nil }
func (a actor) Processes(context.Context) ([]sandbox.ProcessInfo, error) {
	if a.listed == nil {
		return nil, errAway
	}
	return a.listed, nil
}

func (a actor) Reconnect(context.Context, string) (driver.Process, error) {
	if a.script.refuses != nil {
		return nil, a.script.refuses
	}
	return a.script.connect(), nil
}

func (a actor) Rejoin(_ context.Context, _ string, from driver.Cursor, _ bool) (driver.Process, driver.Cursor, error) {
	return a.script.connect(), from, nil
}

func (actor) Logs(context.Context, string, driver.LogOptions) (driver.LogReader, error) {
	return nil, errAway
}

func (actor) Kill(context.Context, string, int) error { return nil }

// theatre is the service of commands over a stage, as acme uses it. It notes the ends of
// background commands that it is told of.
type theatre struct {
	*exec.Service
	exec.Tenants
	core    *core.Core
	stage   *stage
	sandbox *engine.Sandbox
	redact  *secret.Redactor
	// delay is how long readers wait after some output, and counted is how much there was.
	delay time.Duration

	mu      sync.Mutex
	counted int
	mains   []string
}

func newTheatre(t *testing.T) *theatre {
	t.Helper()
	th := &theatre{core: coretest.Open(t), stage: &stage{script: &script{info: sandbox.ProcessInfo{ID: "p-1", Started: time.Now()}, ended: make(chan struct{})}}}
	th.Service = exec.New(th.core, exec.Config{Sandboxes: th, Redactors: th, Tenants: th})
	sb, err := engine.New(engine.Config{Provider: th.stage}).Attach(t.Context(), "sb-1", "web")
	coretest.OK(t, err)
	th.sandbox = sb
	return th
}

func (th *theatre) Use(context.Context, string) (exec.Use, error) {
	u := exec.Use{Who: key.Principal{Tenant: coretest.Acme}, Sandbox: th.sandbox, Inner: th.sandbox}
	u.Record.ID, u.Record.Name = "sb-1", "web"
	return u, nil
}

func (th *theatre) MainEnded(tenant string, id sandbox.ID, process string, _ time.Time, exit sandbox.Exit) {
	th.mu.Lock()
	defer th.mu.Unlock()
	th.mains = append(th.mains, fmt.Sprintf("%s %s %s %d", tenant, id, process, exit.Code))
}

func (th *theatre) Redactor(context.Context, *store.Sandbox) (*secret.Redactor, error) {
	return th.redact, nil
}

func (*theatre) WithLimits(ctx context.Context, _ operator.Limits) context.Context { return ctx }

func (th *theatre) MeterOutput(_ string, _ operator.Limits, n int) time.Duration {
	th.mu.Lock()
	defer th.mu.Unlock()
	if th.counted += n; n > 0 {
		return th.delay
	}
	return 0
}

// logged waits until the log has some events, ends the service, and returns all that
// are there then, as TYPE REASON CODE BYTES, in their order.
func (th *theatre) logged(t *testing.T, want int) (all []string) {
	t.Helper()
	log := eventlog.New(th.core.Store, eventlog.Options{})
	defer func() { coretest.OK(t, log.Close()) }()
	read := func() []eventlog.Event {
		events, err := log.Read(t.Context(), coretest.Acme, eventlog.Filter{}, 0, 0)
		coretest.OK(t, err)
		return events
	}
	for deadline := time.Now().Add(20 * time.Second); len(read()) < want && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
	coretest.OK(t, th.core.Close())
	last := audit.Action{Tenant: coretest.Acme, Op: ops.ProcessExec, Subject: "last"}
	coretest.OK(t, th.core.Audit.Fact(t.Context(), last, eventlog.ExecEnded, nil)) // after all others
	for _, e := range read() {
		if e.Subject == "last" {
			continue
		}
		if e.Sandbox != "sb-1" || e.Subject != "p-1" {
			t.Errorf("the event is %+v, want it of p-1 in sb-1", e)
		}
		code := "-"
		if e.Exit != nil {
			code = strconv.Itoa(*e.Exit)
		}
		all = append(all, strings.Join([]string{e.Type, string(e.Reason), code, strconv.FormatInt(e.Bytes, 10)}, " "))
	}
	return all
}

// The end of a command is recorded once, by whoever sees it: its caller, the daemon that
// its caller left, or the daemon that finds it again. What is not known is not recorded.
func TestEnds(t *testing.T) {
	exited := sandbox.Exit{Code: 3, Reason: sandbox.ReasonExited}
	signaled := sandbox.Exit{Code: 137, Signal: 9, Reason: sandbox.ReasonSignaled}
	held, background := sandbox.Command{Shell: "x", Hold: time.Minute}, sandbox.Command{Shell: "x", Background: true}
	terminal := sandbox.Command{Shell: "x", TTY: &sandbox.WindowSize{Cols: 80, Rows: 24}}
	end := func(_ *testing.T, s *script, _ driver.Process) { s.end(exited) }
	wait := func(t *testing.T, _ *script, p driver.Process) {
		got, err := p.Wait(t.Context())
		if err != nil || got != exited {
			t.Errorf("its caller gets %+v, %v; want %+v", got, err, exited)
		}
	}
	read := func(t *testing.T, _ *script, p driver.Process) {
		_, err := io.ReadAll(p.Stdout())
		coretest.OK(t, err)
	}
	drop := func(t *testing.T, _ *script, p driver.Process) { coretest.OK(t, p.Close()) }
	detach := func(t *testing.T, _ *script, p driver.Process) {
		d, ok := driver.As[driver.Detacher](p)
		if !ok {
			t.Fatal("the command has no Detach, want one")
		}
		coretest.OK(t, d.Detach())
	}
	type steps []func(*testing.T, *script, driver.Process)
	for _, tt := range []struct {
		name    string
		cmd     sandbox.Command
		killed  bool  // closing its connection ends it
		refuses error // of a later connection
		steps   steps
		want    []string
		main    bool // it counts as the end of the main command
	}{
		{name: "its caller waits", steps: steps{end, wait, drop}, want: []string{"exec.ended exited 3 0"}},
		{name: "its caller reads and waits", steps: steps{read, end, wait, drop}, want: []string{"exec.ended exited 3 6"}},
		{name: "its caller closes it twice", steps: steps{end, wait, drop, drop}, want: []string{"exec.ended exited 3 0"}},
		{name: "it ended, and its caller does not wait", steps: steps{end, drop}, want: []string{"exec.ended exited 3 0"}},
		{name: "its caller leaves, which ends it", killed: true, steps: steps{drop}, want: []string{"exec.ended signaled 137 0"}},
		{name: "its caller leaves, and nothing more is known", steps: steps{drop}, want: []string{"exec.ended killed - 0"}},
		{name: "its caller is cut off", steps: steps{detach}, want: []string{"exec.ended killed - 0"}},
		{name: "it is held, and its caller leaves", cmd: held, steps: steps{drop}, want: []string{"exec.ended killed - 0"}},
		{name: "it is held, and its caller is cut off", cmd: held, steps: steps{detach, end}, want: []string{"exec.ended exited 3 0"}, main: true},
		{name: "it is held, and cannot be found again", cmd: held, refuses: errAway, steps: steps{detach, end}},
		{name: "in the background", cmd: background, steps: steps{end}, want: []string{"exec.ended exited 3 0"}, main: true},
		{name: "in the background, closed before", cmd: background, steps: steps{drop, end}, want: []string{"exec.ended exited 3 0"}, main: true},
		{name: "in the background, and cannot be found again", cmd: background, refuses: errAway, steps: steps{drop, end}},
		{name: "a terminal", cmd: terminal, steps: steps{end, wait, drop}, want: []string{"terminal.pty.started  - 0", "exec.ended exited 3 0", "terminal.pty.exited exited 3 0"}},
		{name: "a terminal whose viewer leaves", cmd: terminal, killed: true, steps: steps{drop}, want: []string{"terminal.pty.started  - 0", "exec.ended signaled 137 0", "terminal.pty.exited owner_gone 137 0"}},
		{name: "a terminal whose viewer leaves, and nothing more is known", cmd: terminal, steps: steps{drop}, want: []string{"terminal.pty.started  - 0", "exec.ended killed - 0", "terminal.pty.exited owner_gone - 0"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			th := newTheatre(t)
			s := th.stage.script
			s.stdout, s.refuses = "output", tt.refuses
			if tt.killed {
				s.onClose = &signaled
			}
			if tt.cmd.Shell == "" {
				tt.cmd.Shell = "x"
			}
			h, err := th.Open(t.Context(), "web")
			coretest.OK(t, err)
			p, err := h.Exec(t.Context(), tt.cmd)
			coretest.OK(t, err)
			for _, step := range tt.steps {
				step(t, s, p)
			}
			if got := th.logged(t, len(tt.want)); !slices.Equal(got, tt.want) {
				t.Errorf("the log has %q, want %q", got, tt.want)
			}
			var mains []string
			if tt.main {
				mains = []string{"acme sb-1 p-1 3"}
			}
			if !slices.Equal(th.mains, mains) {
				t.Errorf("the ends %q are reported, want %q", th.mains, mains)
			}
		})
	}
}

// A daemon that starts finds the commands of the earlier one: it records the ends of
// those that run, and tells of those that ended meanwhile.
func TestWatchBackground(t *testing.T) {
	exit := sandbox.Exit{Code: 3, Reason: sandbox.ReasonExited}
	running, ended, unknown := sandbox.ProcessInfo{ID: "p-1", Running: true}, sandbox.ProcessInfo{ID: "p-1", Exit: &exit}, sandbox.ProcessInfo{ID: "p-1"}
	shell := running
	shell.TTY = true
	for _, tt := range []struct {
		name    string
		listed  []sandbox.ProcessInfo
		refuses error
		want    []string
		mains   []string
	}{
		{"one that runs", []sandbox.ProcessInfo{running}, nil, []string{"exec.ended exited 3 0"}, []string{"acme sb-1 p-1 3"}},
		{"a terminal that runs", []sandbox.ProcessInfo{shell}, nil, []string{"exec.ended exited 3 0", "terminal.pty.exited exited 3 0"}, []string{"acme sb-1 p-1 3"}},
		{"one that runs, and cannot be connected to", []sandbox.ProcessInfo{running}, errAway, nil, nil},
		{"one that ended", []sandbox.ProcessInfo{ended}, nil, nil, []string{"acme sb-1 p-1 3"}},
		{"one of which no more is known", []sandbox.ProcessInfo{unknown}, nil, nil, nil},
		{"none", []sandbox.ProcessInfo{}, nil, nil, nil},
		{"no list", nil, nil, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			th := newTheatre(t)
			th.stage.listed, th.stage.script.refuses = tt.listed, tt.refuses
			th.stage.script.end(exit)
			th.WatchBackground(coretest.Acme, th.sandbox)
			if got := th.logged(t, len(tt.want)); !slices.Equal(got, tt.want) {
				t.Errorf("the log has %q, want %q", got, tt.want)
			}
			if !slices.Equal(th.mains, tt.mains) {
				t.Errorf("the ends %q are reported, want %q", th.mains, tt.mains)
			}
		})
	}
}

// Output is counted as it came, and read without the values of secrets. Where it may
// begin in the middle, a part of a value is removed, too.
func TestOutput(t *testing.T) {
	const value = "correct-horse-battery"
	stars := strings.Repeat("*", len(value))
	for _, tt := range []struct {
		name    string
		connect func(context.Context, *exec.Handle) (driver.Process, error)
		output  string
		secret  bool
		want    string
	}{
		{"a command", start, "it is " + value + "\n", true, "it is " + stars + "\n"},
		{"a command of a sandbox without secrets", start, "it is " + value + "\n", false, "it is " + value + "\n"},
		{"a command that is found again", reconnect, "it is " + value + "\n", true, "it is " + stars + "\n"},
		{"a command that is joined at its beginning", rejoin(0), "it is " + value + "\n", true, "it is " + stars + "\n"},
		{"a new command that begins like the end of a value", start, value[8:] + "\n", true, value[8:] + "\n"},
		{"one that is found again in the middle of a value", reconnect, value[8:] + "\n", true, stars[8:] + "\n"},
		{"one that is joined in the middle of a value", rejoin(8), value[8:] + "\n", true, stars[8:] + "\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			th := newTheatre(t)
			th.stage.script.stdout = tt.output
			if tt.secret {
				th.redact = secret.NewRedactor(secret.NewValue([]byte(value)))
			}
			h, err := th.Open(t.Context(), "web")
			coretest.OK(t, err)
			p, err := tt.connect(t.Context(), h)
			coretest.OK(t, err)
			got, err := io.ReadAll(p.Stdout())
			coretest.OK(t, err)
			if string(got) != tt.want {
				t.Errorf("its output is %q, want %q", got, tt.want)
			}
			if th.counted != len(tt.output) {
				t.Errorf("%d bytes were counted, want %d", th.counted, len(tt.output))
			}
			coretest.OK(t, p.Close())
		})
	}
}

func start(ctx context.Context, h *exec.Handle) (driver.Process, error) {
	return h.Exec(ctx, sandbox.Command{Shell: "x"})
}

func reconnect(ctx context.Context, h *exec.Handle) (driver.Process, error) {
	return h.Reconnect(ctx, "p-1")
}

func rejoin(at int64) func(context.Context, *exec.Handle) (driver.Process, error) {
	return func(ctx context.Context, h *exec.Handle) (driver.Process, error) {
		p, _, err := h.Rejoin(ctx, "p-1", driver.Cursor{Stdout: at}, false)
		return p, err
	}
}

// A reader over its quota waits, and says so. It waits no longer than its command is open
// and the daemon runs.
func TestThrottle(t *testing.T) {
	for name, end := range map[string]func(*theatre, driver.Process) error{
		"until the command is closed":  func(_ *theatre, p driver.Process) error { return p.Close() },
		"until the daemon ends":        func(th *theatre, _ driver.Process) error { return th.core.Close() },
		"until the caller disconnects": func(_ *theatre, p driver.Process) error { return p.(driver.Detacher).Detach() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			th := newTheatre(t)
			th.stage.script.stdout, th.delay = "much", time.Hour
			h, err := th.Open(t.Context(), "web")
			coretest.OK(t, err)
			p, err := h.Exec(t.Context(), sandbox.Command{Shell: "x"})
			coretest.OK(t, err)
			throttled := p.(interface{ Throttled() (bool, int64) })
			if now, changes := throttled.Throttled(); now || changes != 0 {
				t.Errorf("before it reads, it is throttled: %v after %d changes, want no and 0", now, changes)
			}
			done := make(chan string, 1)
			go func() {
				got, _ := io.ReadAll(p.Stdout())
				done <- string(got)
			}()
			for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
				if now, changes := throttled.Throttled(); now && changes == 1 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("the reader is not throttled, want it to wait for an hour")
				}
			}
			coretest.OK(t, end(th, p))
			select {
			case got := <-done:
				if got != "much" {
					t.Errorf("it read %q, want %q", got, "much")
				}
			case <-time.After(20 * time.Second):
				t.Fatal("the reader still waits, want it to end")
			}
			if now, changes := throttled.Throttled(); now || changes != 2 {
				t.Errorf("after it, it is throttled: %v after %d changes, want no and 2", now, changes)
			}
		})
	}
}
