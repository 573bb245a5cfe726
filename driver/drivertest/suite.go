package drivertest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/scratch"
	"github.com/atoll-run/atoll/sandbox"
)

// testCase tests one promise. needs names the capability without which the case
// checks its absence instead; empty means that every provider must pass.
type testCase struct {
	name  string
	needs string
	run   func(t *caseT)
}

// allCases lists the suite in the order it runs. Leak checks come last, because
// they check what all the others left behind.
func allCases() []testCase {
	return slices.Concat(
		capabilityCases, lifecycleCases, reattachCases, rejoinCases, execCases, outputCases, stdinCases, signalCases,
		terminalCases, backgroundCases, leftCases, fileReadCases, fileWriteCases, fileTreeCases, archiveCases, hostileArchiveCases,
		watchCases, portCases, previewCases, networkCases, resizeCases, deadlineCases, usageCases, pauseCases, snapshotCases, keeperCases, restoreCases, forkCases, travelCases, imageCases, errorCases, secretCases, concurrencyCases, aliasingCases, leakCases,
	)
}

// canaryEnv is set in this process while the suite runs. If its value appears
// inside a sandbox, the provider leaks its environment.
const canaryEnv = "ATOLL_DRIVERTEST_CANARY"

// state is shared by cases that run one after another. A case that hangs keeps
// its state, and later cases get another, so that it cannot disturb them.
type state struct {
	shared driver.Instance // reused by cases that do not harm it; nil until needed
}

// suite is the state shared by all cases of a run.
type suite struct {
	h        Harness
	provider driver.Provider
	facts    driver.Facts
	canary   string // a secret that must not be visible anywhere
	baseline leakBaseline
	logs     *lockedBuffer
	restore  []func()
	serial   atomic.Int64
	prefix   string

	mu   sync.Mutex
	idle []*state // not in use
}

// take returns a state that no case uses.
func (s *suite) take() *state {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.idle)
	if n == 0 {
		return &state{}
	}
	st := s.idle[n-1]
	s.idle = s.idle[:n-1]
	return st
}

func (s *suite) put(st *state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, st)
}

// dropIdle destroys the shared sandboxes of the idle states.
func (s *suite) dropIdle(ctx context.Context) {
	s.mu.Lock()
	idle := s.idle
	s.idle = nil
	s.mu.Unlock()
	for _, st := range idle {
		st.dropShared(ctx)
	}
}

func newSuite(ctx context.Context, h Harness) (*suite, error) {
	if h.New == nil || h.Spec == nil {
		return nil, errors.New("drivertest: Harness.New and Harness.Spec must be set")
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // Read never fails.
	s := &suite{
		h:      h,
		canary: "canary-" + hex.EncodeToString(random[:]),
		prefix: IDPrefix + hex.EncodeToString(random[:4]),
		logs:   &lockedBuffer{},
	}
	s.baseline = takeBaseline()
	var err error
	if s.provider, err = h.New(ctx); err != nil {
		return nil, fmt.Errorf("drivertest: New: %w", err)
	}
	if s.facts, err = s.provider.Probe(ctx); err != nil {
		err = fmt.Errorf("drivertest: Probe: %w", err)
	} else if !s.facts.Available {
		err = fmt.Errorf("drivertest: the provider is not available here: %s", blockers(s.facts))
	}
	if err != nil {
		return nil, errors.Join(err, s.provider.Close())
	}
	if !h.beside {
		s.capture()
	}
	return s, nil
}

func blockers(f driver.Facts) string {
	var b []string
	for _, finding := range f.Findings {
		if finding.Severity == driver.Blocker {
			b = append(b, finding.Subject+": "+finding.Message)
		}
	}
	return strings.Join(b, "; ")
}

// capture sets the canary in the environment and captures the loggers that a
// careless driver might use.
func (s *suite) capture() {
	old, had := os.LookupEnv(canaryEnv)
	_ = os.Setenv(canaryEnv, s.canary) // The name is valid: Setenv cannot fail.
	logger, writer, flags := slog.Default(), log.Writer(), log.Flags()
	slog.SetDefault(slog.New(slog.NewTextHandler(s.logs, &slog.HandlerOptions{Level: slog.LevelDebug})))
	log.SetOutput(s.logs)
	s.restore = append(s.restore, func() {
		slog.SetDefault(logger)
		log.SetOutput(writer)
		log.SetFlags(flags)
		if had {
			_ = os.Setenv(canaryEnv, old)
		} else {
			_ = os.Unsetenv(canaryEnv)
		}
	})
}

// close releases the remaining resources. After a complete run the leak cases
// have already closed the provider.
func (s *suite) close() {
	ctx, cancel := context.WithTimeout(context.Background(), s.patience())
	defer cancel()
	s.dropIdle(ctx)
	_ = s.provider.Close()
	for _, f := range s.restore {
		f()
	}
	s.restore = nil
}

// dropShared destroys the shared sandbox. It ignores errors: the case that
// broke the provider has reported them.
func (s *state) dropShared(ctx context.Context) {
	inst := s.shared
	s.shared = nil
	defer func() { _ = recover() }()
	if inst != nil {
		_ = inst.Destroy(ctx)
	}
}

func (s *suite) selected() []testCase {
	if len(s.h.Only) == 0 {
		return allCases()
	}
	return slices.DeleteFunc(allCases(), func(c testCase) bool {
		return !slices.ContainsFunc(s.h.Only, func(p string) bool { return strings.HasPrefix(c.name, p) })
	})
}

// caseGroup is the cases with the same first part of their names.
type caseGroup struct {
	name  string
	cases []testCase
}

// grouped returns the selected cases by group, in the order in which the groups
// start.
func (s *suite) grouped() []*caseGroup {
	var groups []*caseGroup
	for _, c := range s.selected() {
		name, _, _ := strings.Cut(c.name, "/")
		i := slices.IndexFunc(groups, func(g *caseGroup) bool { return g.name == name })
		if i < 0 {
			i, groups = len(groups), append(groups, &caseGroup{name: name})
		}
		groups[i].cases = append(groups[i].cases, c)
	}
	return groups
}

// patience is the timeout of a case or a cleanup.
func (s *suite) patience() time.Duration {
	if s.h.Patience > 0 {
		return s.h.Patience
	}
	if s.h.Slow {
		return 5 * time.Minute
	}
	return time.Minute
}

// run runs one case in a new goroutine, so that a call that ignores its context
// fails the case instead of blocking the suite.
func (s *suite) run(ctx context.Context, c testCase) Result {
	ctx, cancel := context.WithTimeout(ctx, s.patience())
	defer cancel()
	t := &caseT{suite: s, state: s.take(), ctx: ctx, done: make(chan struct{})}
	start := time.Now()
	status := Pass
	go t.body(c, &status)
	select {
	case <-t.done:
		s.put(t.state)
	case <-hopeless(ctx, s.patience()/4):
		t.Errorf("the case hangs: a call ignores its context\n%s", stacks(16<<10))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	res := Result{Name: c.name, Capability: c.needs, Messages: slices.Clone(t.messages), Duration: time.Since(start)}
	switch res.Status = status; {
	case t.failed:
		res.Status = Fail
	case t.skipped:
		res.Status = Skipped
	}
	s.observe(res)
	return res
}

// observe passes a result to the harness, never concurrently.
func (s *suite) observe(res Result) {
	if s.h.Observe != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.h.Observe(res)
	}
}

// hopeless is closed grace after ctx has ended.
func hopeless(ctx context.Context, grace time.Duration) <-chan struct{} {
	c := make(chan struct{})
	context.AfterFunc(ctx, func() { time.AfterFunc(grace, func() { close(c) }) })
	return c
}

func stacks(limit int) string {
	buf := make([]byte, limit)
	return string(buf[:runtime.Stack(buf, true)])
}

// caseT is the test of one case: a small testing.T that works with [Run] and
// [Check]. Fatalf must be called from the goroutine of the case.
type caseT struct {
	*suite
	*state
	ctx  context.Context // ends at the case's timeout
	done chan struct{}

	mu       sync.Mutex
	failed   bool
	skipped  bool
	messages []string
	cleanups []func(ctx context.Context)
}

// body runs the case and its cleanups.
func (t *caseT) body(c testCase, status *Status) {
	defer close(t.done)
	defer t.cleanup()
	defer t.recovered()
	if c.needs != "" && !t.declared(c.needs) {
		*status = NotApplicable
		t.assertAbsent(c.needs)
		return
	}
	c.run(t)
}

// recovered is deferred and turns a panic into a failure of the case.
func (t *caseT) recovered() {
	if r := recover(); r != nil {
		t.Errorf("panic: %v\n%s", r, debug.Stack())
	}
}

// cleanup runs all cleanups, last first, even if one of them panics or exits
// the goroutine.
func (t *caseT) cleanup() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), t.patience()/4)
	defer cancel()
	defer func() {
		if t.hasFailed() {
			t.dropShared(ctx) // The sandbox may be broken.
		}
	}()
	for _, f := range t.cleanups {
		defer t.recovered()
		defer f(ctx)
	}
}

func (t *caseT) hasFailed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

// Cleanup registers f to run after the case, last first.
func (t *caseT) Cleanup(f func(ctx context.Context)) { t.cleanups = append(t.cleanups, f) }

// Errorf records a failure and continues.
func (t *caseT) Errorf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = true
	t.messages = append(t.messages, fmt.Sprintf(format, args...))
}

// Fatalf records a failure and ends the case.
func (t *caseT) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	runtime.Goexit()
}

// python returns the command that runs a program for python3, or ends the case
// as skipped if the sandbox's image has none.
func (sb *testSandbox) python(program string) []string {
	if sb.argv("sh", "-c", "command -v python3").exit.Code != 0 {
		sb.Logf("needs python3: the sandbox's image has none")
		sb.mu.Lock()
		sb.skipped = true
		sb.mu.Unlock()
		runtime.Goexit()
	}
	return []string{"python3", "-c", program}
}

// Logf records a note.
func (t *caseT) Logf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.messages = append(t.messages, fmt.Sprintf(format, args...))
}

// TempDir creates a directory that is removed at the end of the case.
func (t *caseT) TempDir() string {
	dir, remove, err := scratch.Dir("drivertest-")
	if err != nil {
		t.Fatalf("temp dir: %v", err)
	}
	t.Cleanup(func(context.Context) { _ = remove() })
	return dir
}

// connect opens another connection to the provider, as another process would.
func (t *caseT) connect() driver.Provider {
	p, err := t.h.New(t.ctx)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func(context.Context) {
		if err := p.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return p
}

// size returns normal, or slow if the provider is slow.
func size[N int | int64](s *suite, normal, slow N) N {
	if s.h.Slow {
		return slow
	}
	return normal
}

// spec returns a spec with a fresh ID.
func (s *suite) spec(change ...func(*sandbox.Spec)) *sandbox.Spec {
	spec := s.h.Spec()
	spec.ID = sandbox.ID(fmt.Sprintf("%s-%d", s.prefix, s.serial.Add(1)))
	spec.Name = string(spec.ID)
	for _, f := range change {
		f(&spec)
	}
	return &spec
}

// lockedBuffer is a writer for loggers.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

var _ io.Writer = (*lockedBuffer)(nil)

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
