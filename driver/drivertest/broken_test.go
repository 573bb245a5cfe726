package drivertest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	_ "github.com/atoll-run/atoll/internal/guest/early" // the test binary is the guest of provider host, too
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/provider/host"
	"github.com/atoll-run/atoll/sandbox"
)

// sabotage breaks a correct provider in one way, and names the cases that must
// fail. It shows that the suite can fail.
type sabotage struct {
	name  string
	bare  bool
	wrap  func(driver.Provider) driver.Provider
	cases []string
}

// wholeProcess are the cases that examine the whole process: its descriptors,
// goroutines, environment and loggers. They run alone.
var wholeProcess = []string{"leaks/", "secrets/", "exec/env-does-not-leak"}

// TestSabotage checks for every sabotage that the right cases fail, and that
// they pass without it.
func TestSabotage(t *testing.T) {
	for _, s := range slices.Concat(brokenFacts, brokenLifecycles, brokenExecs, brokenStreams, brokenManagers, brokenFiles, brokenPorts, brokenLimits, brokenStates, leaky) {
		t.Run(s.name, func(t *testing.T) {
			if s.has([]string{"previews/"}) {
				need.Program(t, "python3")
			}
			beside := !s.has(wholeProcess)
			if beside {
				t.Parallel()
			}
			for _, broken := range []bool{true, false} {
				h := s.harness(t, nil)
				if broken {
					h = s.harness(t, s.wrap)
					h.Patience = 3 * time.Second // Some sabotages make a case hang.
				}
				h.Only, h.beside = s.cases, beside
				found := map[string]bool{}
				for _, r := range Check(t.Context(), h).Results {
					found[r.Name] = true
					if (r.Status == Fail) != broken && slices.Contains(s.cases, r.Name) {
						t.Errorf("sabotaged %v: %s is %s %q", broken, r.Name, r.Status, r.Messages)
					}
				}
				for _, name := range s.cases {
					if !found[name] {
						t.Errorf("there is no case %s", name)
					}
				}
			}
		})
	}
}

// realOnly are the cases that the fake cannot pass; they are tested with real
// processes.
var realOnly = []string{"terminal/", "capabilities/terminal", "capabilities/users", "exec/user", "exec/spec-user", "signal/trap", "signal/ignored"}

// has reports whether the name of a case begins with one of the prefixes.
func (s sabotage) has(prefixes []string) bool {
	return slices.ContainsFunc(s.cases, func(name string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
}

// harness returns a harness for a correct provider that wrap may change.
func (s sabotage) harness(t *testing.T, wrap func(driver.Provider) driver.Provider) Harness {
	if s.bare || !s.has(realOnly) {
		return fakeHarness(t, fake.Options{Bare: s.bare}, wrap)
	}
	if strings.Contains(s.name, "user") {
		need.Root(t, "others cannot run commands as another user")
	}
	dir, err := os.MkdirTemp("", "atoll-drivertest") //nolint:usetesting // other users cannot traverse t.TempDir
	if err == nil {
		err = os.Chmod(dir, 0o711)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return Harness{
		New: func(context.Context) (driver.Provider, error) {
			p, err := host.New(host.Options{Dir: dir})
			if err != nil || wrap == nil {
				return p, err
			}
			return wrap(p), nil
		},
		Spec: func() sandbox.Spec { return sandbox.Spec{Image: "host"} },
		Dir: func(in driver.Instance) string {
			d, _ := driver.As[interface{ Dir() string }](in)
			return d.Dir()
		},
	}
}

var errSabotage = &sandbox.Error{Code: sandbox.CodeInternal, Message: "sabotage"}

var brokenFacts = []sabotage{
	{"declares images", false, withFacts(func(f *driver.Facts) { f.Capabilities.Images = true }), []string{"images/directory", "images/tar"}},
	{"declares mounts", false, withFacts(func(f *driver.Facts) { f.Capabilities.Mounts = true }), []string{"mounts/read-write", "mounts/read-only"}},
	{"ignores what the network may be", false, func(p driver.Provider) driver.Provider {
		return createProvider{passProvider{p}, func(ctx context.Context, spec *sandbox.Spec, next driver.Provider) (driver.Instance, error) {
			own := *spec
			own.Network = sandbox.Network{}
			return next.Create(ctx, &own)
		}}
	}, []string{"capabilities/network"}},
	{"declares a network", false, withFacts(func(f *driver.Facts) { f.Capabilities.Network = true }), []string{"network/denied"}},
	{"declares files", true, withFacts(func(f *driver.Facts) { f.Capabilities.Files = true }), []string{"capabilities/files", "files/stat"}},
	{"declares terminals", true, withFacts(func(f *driver.Facts) { f.Capabilities.Terminal = true }), []string{"terminal/is-terminal"}},
	{"declares users", true, withFacts(func(f *driver.Facts) { f.Capabilities.Users = true }), []string{"exec/user", "exec/spec-user"}},
	{"hides files", false, withFacts(func(f *driver.Facts) { f.Capabilities.Files = false }), []string{"capabilities/files", "files/stat"}},
	{"hides watch", false, withFacts(func(f *driver.Facts) { f.Capabilities.Watch = false }), []string{"capabilities/watch"}},
	{"hides archive", false, withFacts(func(f *driver.Facts) { f.Capabilities.Archive = false }), []string{"capabilities/archive"}},
	{"hides terminals", false, withFacts(func(f *driver.Facts) { f.Capabilities.Terminal = false }), []string{"capabilities/terminal"}},
	{"hides users", false, withFacts(func(f *driver.Facts) { f.Capabilities.Users = false }), []string{"capabilities/users"}},
	{"hides processes", false, withFacts(func(f *driver.Facts) { f.Capabilities.Processes = false }), []string{"capabilities/processes"}},
	{"hides reattachment", false, withFacts(func(f *driver.Facts) { f.Capabilities.Reattach = false }), []string{"capabilities/reattach", "reattach/two-at-once"}},
	{"forgets a limit", false, withFacts(func(f *driver.Facts) { f.Limits = maps.Clone(f.Limits); delete(f.Limits, "pids") }), []string{"probe/limits"}},
	{"isolates nothing, silently", false, withFacts(func(f *driver.Facts) { f.Isolates, f.Findings = false, nil }), []string{"probe/findings"}},
	{"mounts silently nothing", false, func(p driver.Provider) driver.Provider {
		return createProvider{passProvider{p}, func(ctx context.Context, spec *sandbox.Spec, next driver.Provider) (driver.Instance, error) {
			own := *spec
			own.Mounts = nil
			return next.Create(ctx, &own)
		}}
	}, []string{"capabilities/mounts"}},
	{"shares its facts", false, sharedFacts, []string{"aliasing/facts"}},
}

func sharedFacts(p driver.Provider) driver.Provider {
	limits := map[string]driver.Limit{}
	return factsProvider{passProvider{p}, func(f *driver.Facts) {
		if len(limits) == 0 {
			maps.Copy(limits, f.Limits)
		}
		f.Limits = limits
	}}
}

var brokenLifecycles = []sabotage{
	{"destroys nothing", false, withEnd(nil, func(context.Context, driver.Instance) error { return nil }), []string{"lifecycle/create-exec-destroy", "lifecycle/attach-destroyed", "leaks/suite"}},
	{"destroys once", false, destroysOnce, []string{"lifecycle/destroy-twice"}},
	{"ignores a canceled create", false, func(p driver.Provider) driver.Provider {
		return createProvider{passProvider{p}, func(ctx context.Context, spec *sandbox.Spec, next driver.Provider) (driver.Instance, error) {
			return next.Create(context.WithoutCancel(ctx), spec)
		}}
	}, []string{"lifecycle/create-canceled"}},
	{"leaves half of a canceled create", false, func(p driver.Provider) driver.Provider {
		return createProvider{passProvider{p}, func(ctx context.Context, spec *sandbox.Spec, next driver.Provider) (driver.Instance, error) {
			inst, err := next.Create(context.WithoutCancel(ctx), spec)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return inst, err
		}}
	}, []string{"lifecycle/create-canceled"}},
	{"replaces a duplicate", false, func(p driver.Provider) driver.Provider {
		return createProvider{passProvider{p}, func(ctx context.Context, spec *sandbox.Spec, next driver.Provider) (driver.Instance, error) {
			if old, err := next.Attach(ctx, spec.ID); err == nil {
				_ = old.Destroy(ctx)
			}
			return next.Create(ctx, spec)
		}}
	}, []string{"lifecycle/duplicate-id", "concurrency/same-id"}},
	{"never finds anything", false, func(p driver.Provider) driver.Provider {
		return attachProvider{passProvider{p}, func(context.Context, sandbox.ID, driver.Provider) (driver.Instance, error) {
			return nil, &sandbox.Error{Code: sandbox.CodeGone}
		}}
	}, []string{"lifecycle/attach-own", "reattach/after-restart"}},
	{"says not_found for gone", false, func(p driver.Provider) driver.Provider {
		return codeProvider{passProvider{p}, func(c sandbox.Code) sandbox.Code {
			if c == sandbox.CodeGone {
				return sandbox.CodeNotFound
			}
			return c
		}}
	}, []string{"lifecycle/attach-unknown", "lifecycle/attach-destroyed", "lifecycle/calls-after-destroy"}},
	{"says gone for not_found", false, func(p driver.Provider) driver.Provider {
		return codeProvider{passProvider{p}, func(c sandbox.Code) sandbox.Code {
			if c == sandbox.CodeNotFound {
				return sandbox.CodeGone
			}
			return c
		}}
	}, []string{"files/missing", "signal/after-exit", "background/unknown"}},
	{"drops what its starter has yet to read", false, withExec(func(ctx context.Context, cmd *sandbox.Command, next driver.Instance) (driver.Process, error) {
		p, err := next.Exec(ctx, cmd)
		if err != nil || !cmd.Background {
			return p, err
		}
		id := p.Info().ID
		_ = p.Close()
		manager, _ := driver.As[driver.ProcessManager](next)
		return manager.Reconnect(ctx, id)
	}), []string{"background/starter-misses-nothing"}},
	{"invents codes", false, func(p driver.Provider) driver.Provider {
		return codeProvider{passProvider{p}, func(sandbox.Code) sandbox.Code { return "oops" }}
	}, []string{"errors/canceled", "errors/deadline", "errors/unknown"}},
	{"forgets labels", false, func(p driver.Provider) driver.Provider {
		return listProvider{passProvider{p}, func(f *driver.Found) { f.Labels = nil }}
	}, []string{"lifecycle/list"}},
	{"lists the wrong state", false, func(p driver.Provider) driver.Provider {
		return listProvider{passProvider{p}, func(f *driver.Found) { f.State = sandbox.Stopped }}
	}, []string{"lifecycle/list", "reattach/after-restart"}},
	{"shares its labels", false, sharedLabels, []string{"aliasing/found"}},
	{"shares the caller's labels", false, func(p driver.Provider) driver.Provider {
		given := map[sandbox.ID]map[string]string{}
		list := listProvider{passProvider{p}, func(f *driver.Found) { f.Labels = maps.Clone(given[f.ID]) }}
		return createProvider{passProvider{list}, func(ctx context.Context, spec *sandbox.Spec, next driver.Provider) (driver.Instance, error) {
			given[spec.ID] = spec.Labels
			return next.Create(ctx, spec)
		}}
	}, []string{"aliasing/spec"}},
	{"lists what is secret", false, func(p driver.Provider) driver.Provider {
		secret := ""
		list := listProvider{passProvider{p}, func(f *driver.Found) { f.Labels = map[string]string{"env": secret} }}
		return createProvider{passProvider{list}, func(ctx context.Context, spec *sandbox.Spec, next driver.Provider) (driver.Instance, error) {
			secret = spec.Env["TOKEN"]
			return next.Create(ctx, spec)
		}}
	}, []string{"secrets/spec-env"}},
	{"tells secrets in errors", false, func(p driver.Provider) driver.Provider {
		return createProvider{passProvider{p}, func(ctx context.Context, spec *sandbox.Spec, next driver.Provider) (driver.Instance, error) {
			inst, err := next.Create(ctx, spec)
			if err != nil {
				return nil, fmt.Errorf("creating %+v: %w", *spec, err)
			}
			return inst, nil
		}}
	}, []string{"secrets/spec-env"}},
	{"says a wrong reason", false, withEnd(func(ctx context.Context, next driver.Instance) (sandbox.Exit, error) {
		exit, err := next.Wait(ctx)
		exit.Reason = sandbox.ReasonCrashed
		return exit, err
	}, nil), []string{"lifecycle/wait-destroy", "lifecycle/timeout"}},
	{"waits with its own patience", false, withEnd(func(_ context.Context, next driver.Instance) (sandbox.Exit, error) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		exit, err := next.Wait(ctx)
		if err != nil {
			return exit, errSabotage
		}
		return exit, nil
	}, nil), []string{"errors/canceled", "errors/deadline"}},
	{"ends sandboxes at Close", false, func(p driver.Provider) driver.Provider {
		return closeProvider{passProvider{p}, func(next driver.Provider) error {
			for f := range next.List(context.Background()) {
				if inst, err := next.Attach(context.Background(), f.ID); err == nil {
					_ = inst.Destroy(context.Background())
				}
			}
			return nil
		}}
	}, []string{"reattach/after-restart"}},
	{"closes once", false, func(p driver.Provider) driver.Provider {
		var once sync.Once
		return closeProvider{passProvider{p}, func(next driver.Provider) error {
			err := error(errSabotage)
			once.Do(func() { err = next.Close() })
			return err
		}}
	}, []string{"lifecycle/close-twice"}},
	{"panics", false, withEnd(nil, func(context.Context, driver.Instance) error { panic("sabotage") }), []string{"lifecycle/destroy-twice"}},
}

func destroysOnce(p driver.Provider) driver.Provider {
	gone := map[sandbox.ID]bool{}
	return withEnd(nil, func(ctx context.Context, next driver.Instance) error {
		if gone[next.ID()] {
			return errSabotage
		}
		gone[next.ID()] = true
		return next.Destroy(ctx)
	})(p)
}

func sharedLabels(p driver.Provider) driver.Provider {
	labels := map[sandbox.ID]map[string]string{}
	return listProvider{passProvider{p}, func(f *driver.Found) {
		if labels[f.ID] == nil {
			labels[f.ID] = f.Labels
		}
		f.Labels = labels[f.ID]
	}}
}

var brokenExecs = []sabotage{
	{"forgets exit codes", false, withProcess(func(_ *sandbox.Command, p driver.Process) hookedProcess {
		return hookedProcess{Process: p, wait: func(exit sandbox.Exit, err error) (sandbox.Exit, error) { exit.Code = 0; return exit, err }}
	}), []string{"exec/exit-codes", "exec/not-found"}},
	{"forgets signals", false, withProcess(func(_ *sandbox.Command, p driver.Process) hookedProcess {
		return hookedProcess{Process: p, wait: func(exit sandbox.Exit, err error) (sandbox.Exit, error) { exit.Signal = 0; return exit, err }}
	}), []string{"exec/exit-signal", "signal/term"}},
	{"joins arguments", false, withCommand(func(c *sandbox.Command) {
		if len(c.Args) > 0 && c.Args[0] == "printf" {
			c.Shell, c.Args = strings.Join(c.Args, " "), nil
		}
	}), []string{"exec/args"}},
	{"passes its own environment", false, withCommand(func(c *sandbox.Command) {
		env := maps.Clone(c.Env)
		if env == nil {
			env = map[string]string{}
		}
		for _, kv := range os.Environ() {
			name, value, _ := strings.Cut(kv, "=")
			if name != "PATH" {
				env[name] = value
			}
		}
		c.Env = env
	}), []string{"exec/env-does-not-leak"}},
	{"forgets the environment", false, withCommand(func(c *sandbox.Command) { c.Env = nil }), []string{"exec/env", "exec/env-odd-names", "lifecycle/env-user-workdir"}},
	{"ignores the directory", false, withCommand(func(c *sandbox.Command) { c.Dir = "" }), []string{"exec/dir", "exec/dir-missing"}},
	{"ignores the user", false, withCommand(func(c *sandbox.Command) { c.User = "" }), []string{"exec/user", "exec/user-unknown"}},
	{"ignores the timeout", false, withCommand(func(c *sandbox.Command) { c.Timeout = 0 }), []string{"timeout/kills-tree"}},
	{"ignores the terminal", false, withCommand(func(c *sandbox.Command) { c.TTY = nil }), []string{"terminal/is-terminal", "terminal/size"}},
	{"gives everybody a terminal", false, withCommand(func(c *sandbox.Command) { c.TTY = &sandbox.WindowSize{Cols: 80, Rows: 24} }), []string{"terminal/none-without-asking", "output/separate"}},
	{"is killed by the context of Exec", false, withExec(func(ctx context.Context, cmd *sandbox.Command, next driver.Instance) (driver.Process, error) {
		p, err := next.Exec(ctx, cmd)
		if err == nil {
			context.AfterFunc(ctx, func() { _ = p.Close() })
		}
		return p, err
	}), []string{"exec/context-only-starts"}},
	{"runs although canceled", false, withExec(func(ctx context.Context, cmd *sandbox.Command, next driver.Instance) (driver.Process, error) {
		p, err := next.Exec(context.WithoutCancel(ctx), cmd)
		if err == nil && ctx.Err() != nil {
			_, _ = p.Wait(context.Background())
			return nil, ctx.Err()
		}
		return p, err
	}), []string{"exec/canceled-does-not-run"}},
	{"fails instead of 127", false, withExec(func(ctx context.Context, cmd *sandbox.Command, next driver.Instance) (driver.Process, error) {
		if len(cmd.Args) > 0 && cmd.Args[0] == "no-such-program-here" {
			return nil, &sandbox.Error{Code: sandbox.CodeNotFound}
		}
		return next.Exec(ctx, cmd)
	}), []string{"exec/not-found"}},
	{"kills the sandbox at a timeout", false, withExec(func(ctx context.Context, cmd *sandbox.Command, next driver.Instance) (driver.Process, error) {
		p, err := next.Exec(ctx, cmd)
		if err != nil || cmd.Timeout == 0 {
			return p, err
		}
		return hookedProcess{Process: p, wait: func(x sandbox.Exit, err error) (sandbox.Exit, error) {
			_ = next.Destroy(context.Background())
			return x, err
		}}, nil
	}), []string{"timeout/kills-tree"}},
	{"kills one process only", false, withProcess(func(_ *sandbox.Command, p driver.Process) hookedProcess {
		return hookedProcess{Process: p, close: func() error { return nil }}
	}), []string{"close/kills-tree"}},
	{"swallows signals", false, withProcess(func(_ *sandbox.Command, p driver.Process) hookedProcess {
		return hookedProcess{Process: p, signal: func(context.Context, int) error { return nil }}
	}), []string{"signal/term", "signal/trap", "signal/after-exit"}},
	{"always kills", false, withProcess(func(_ *sandbox.Command, p driver.Process) hookedProcess {
		return hookedProcess{Process: p, signal: func(ctx context.Context, _ int) error { return p.Signal(ctx, 9) }}
	}), []string{"signal/term", "signal/trap", "signal/ignored"}},
	{"does not resize", false, withProcess(func(_ *sandbox.Command, p driver.Process) hookedProcess {
		return hookedProcess{Process: p, resize: func() error { return nil }}
	}), []string{"terminal/resize", "terminal/resize-without"}},
	{"shares infos", false, func(p driver.Provider) driver.Provider {
		infos := map[string]sandbox.ProcessInfo{}
		return withProcess(func(_ *sandbox.Command, p driver.Process) hookedProcess {
			return hookedProcess{Process: p, info: func(i sandbox.ProcessInfo) sandbox.ProcessInfo {
				if _, ok := infos[i.ID]; !ok {
					infos[i.ID] = i
				}
				return infos[i.ID]
			}}
		})(p)
	}, []string{"aliasing/command"}},
	{"shows the environment", false, withProcess(func(cmd *sandbox.Command, p driver.Process) hookedProcess {
		return hookedProcess{Process: p, info: func(i sandbox.ProcessInfo) sandbox.ProcessInfo {
			i.Args = append(i.Args, fmt.Sprint(cmd.Env))
			return i
		}}
	}), []string{"secrets/command-env"}},
	{"logs the environment", false, withCommand(func(c *sandbox.Command) { slog.Debug("exec", "env", c.Env) }), []string{"secrets/command-env"}},
	{"logs the input", false, withProcess(func(_ *sandbox.Command, p driver.Process) hookedProcess {
		return hookedProcess{Process: p, stdin: hookedWriter{p.Stdin(), func(b []byte) []byte { log.Printf("stdin %s", b); return b }}}
	}), []string{"secrets/stdin"}},
}

// hookedWriter changes the written data.
type hookedWriter struct {
	io.WriteCloser
	change func([]byte) []byte
}

func (w hookedWriter) Write(b []byte) (int, error) {
	if _, err := w.WriteCloser.Write(w.change(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// unclosed is an input that stays open.
type unclosed struct{ io.WriteCloser }

func (unclosed) Close() error { return nil }

// shortReader returns a reader that ends after n bytes.
func shortReader(r io.Reader, n int64) io.Reader { return io.LimitReader(r, n) }

var brokenStreams = []sabotage{
	{"drops standard error", false, withProcess(func(_ *sandbox.Command, p driver.Process) hookedProcess {
		return hookedProcess{Process: p, stderr: strings.NewReader("")}
	}), []string{"output/separate", "exec/not-found"}},
	{"merges the streams", false, withProcess(func(_ *sandbox.Command, p driver.Process) hookedProcess {
		return hookedProcess{Process: p, stdout: io.MultiReader(p.Stdout(), p.Stderr()), stderr: strings.NewReader("")}
	}), []string{"output/separate", "output/large-both"}},
	{"truncates output", false, withProcess(func(_ *sandbox.Command, p driver.Process) hookedProcess {
		return hookedProcess{Process: p, stdout: shortReader(p.Stdout(), 20<<10)}
	}), []string{"output/large-both", "output/read-late"}},
	{"translates newlines", false, withProcess(func(_ *sandbox.Command, p driver.Process) hookedProcess {
		return hookedProcess{Process: p, stdout: &translating{p.Stdout()}}
	}), []string{"output/all-bytes"}},
	{"loses what was not read in time", false, withProcess(func(_ *sandbox.Command, p driver.Process) hookedProcess {
		lost := &atomic.Bool{}
		return hookedProcess{Process: p, stdout: perishable{p.Stdout(), lost}, wait: func(exit sandbox.Exit, err error) (sandbox.Exit, error) {
			lost.Store(err == nil)
			return exit, err
		}}
	}), []string{"output/read-after-exit"}},
	{"loses input", false, withProcess(func(_ *sandbox.Command, p driver.Process) hookedProcess {
		return hookedProcess{Process: p, stdin: hookedWriter{p.Stdin(), func(b []byte) []byte { return b[:min(len(b), 1<<20)] }}}
	}), []string{"stdin/round-trip"}},
	{"keeps the caller's buffer", false, withProcess(func(_ *sandbox.Command, p driver.Process) hookedProcess {
		return hookedProcess{Process: p, stdin: &lateWriter{w: p.Stdin()}}
	}), []string{"aliasing/stdin"}},
	{"never ends the input", false, withProcess(func(_ *sandbox.Command, p driver.Process) hookedProcess {
		return hookedProcess{Process: p, stdin: unclosed{p.Stdin()}}
	}), []string{"stdin/close-twice", "stdin/echo"}},
	{"has no input", false, withProcess(func(_ *sandbox.Command, p driver.Process) hookedProcess {
		return hookedProcess{Process: p, stdin: hookedWriter{nopCloser{io.Discard}, func(b []byte) []byte { return b }}}
	}), []string{"stdin/after-exit", "stdin/none"}},
}

// perishable output is lost when the command has ended.
type perishable struct {
	io.Reader
	lost *atomic.Bool
}

func (r perishable) Read(b []byte) (int, error) {
	if r.lost.Load() {
		return 0, io.EOF
	}
	return r.Reader.Read(b)
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// translating changes bytes as a text mode would.
type translating struct{ r io.Reader }

func (r *translating) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	copy(b, bytes.ReplaceAll(b[:n], []byte("\r"), []byte("\n")))
	return n, err
}

// lateWriter writes a buffer after its Write has returned.
type lateWriter struct {
	w    io.WriteCloser
	late []byte
}

func (l *lateWriter) Write(b []byte) (int, error) {
	l.late = b
	return len(b), nil
}

func (l *lateWriter) Close() error {
	_, _ = l.w.Write(l.late)
	return l.w.Close()
}

// leaky providers work, but leave something behind in this process.
var leaky = []sabotage{
	{"leaks goroutines", false, leaksGoroutines, []string{"leaks/exec"}},
	{"leaks descriptors", false, withExec(func(ctx context.Context, cmd *sandbox.Command, next driver.Instance) (driver.Process, error) {
		r, w, err := os.Pipe()
		if err == nil {
			leaked = append(leaked, r, w)
		}
		return next.Exec(ctx, cmd)
	}), []string{"leaks/exec"}},
	{"leaks processes", false, withExec(func(ctx context.Context, cmd *sandbox.Command, next driver.Instance) (driver.Process, error) {
		child := exec.Command("sleep", "60")
		if err := child.Start(); err == nil {
			orphans = append(orphans, child)
		}
		return next.Exec(ctx, cmd)
	}), []string{"leaks/exec"}},
}

// The leaked objects, so that the test can release them.
var (
	leaked   []*os.File
	orphans  []*exec.Cmd
	stopLeak = make(chan struct{})
)

func leaksGoroutines(p driver.Provider) driver.Provider {
	return withExec(func(ctx context.Context, cmd *sandbox.Command, next driver.Instance) (driver.Process, error) {
		go func() { <-stopLeak }()
		return next.Exec(ctx, cmd)
	})(p)
}

func TestMain(m *testing.M) {
	code := m.Run()
	close(stopLeak)
	for _, f := range leaked {
		_ = f.Close()
	}
	for _, c := range orphans {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	os.Exit(code)
}
