package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func setup(t *testing.T, change ...func(*engine.Config)) (*scriptedProvider, *engine.Engine) {
	t.Helper()
	p := newScriptedProvider()
	n := 0
	cfg := engine.Config{Provider: p, NewID: func() sandbox.ID { n++; return sandbox.ID(fmt.Sprintf("sb-%d", n)) }}
	for _, c := range change {
		c(&cfg)
	}
	return p, engine.New(cfg)
}

func create(t *testing.T, c *engine.Engine, spec sandbox.Spec) *engine.Sandbox {
	t.Helper()
	sb, err := carryOut(t.Context(), c, sandbox.CreateRequest{Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// carryOut creates what a request asks for, without a daemon. change changes the
// plan before it is adapted to the provider.
func carryOut(ctx context.Context, c *engine.Engine, req sandbox.CreateRequest, change ...func(*plan.Plan)) (*engine.Sandbox, error) {
	if len(change) == 0 {
		p, err := c.Plan(ctx, req)
		if err != nil {
			return nil, err
		}
		return c.Create(ctx, p, nil)
	}
	p, err := plan.Draft(plan.Ask{Request: plan.Request{CreateRequest: req}})
	for _, f := range change {
		f(&p)
	}
	if err == nil {
		p, err = c.Fit(ctx, p)
	}
	if err != nil {
		return nil, err
	}
	return c.Create(ctx, p, nil)
}

func bound(p *plan.Plan) { p.Bound = true }
func acme(p *plan.Plan)  { p.Tenant = "acme" }

// wantError checks the code of an error, and that it is the one type that
// leaves the engine, with an operation.
func wantError(t *testing.T, err error, code sandbox.Code) *sandbox.Error {
	t.Helper()
	var e *sandbox.Error
	if !errors.As(err, &e) || err != error(e) {
		t.Fatalf("got %T %v, want a *sandbox.Error", err, err)
	}
	if e.Code != code || e.Op == "" {
		t.Fatalf("got code %q, op %q, want %q: %v", e.Code, e.Op, code, err)
	}
	return e
}

func TestCreateCompletesTheSpec(t *testing.T) {
	p, c := setup(t, func(cfg *engine.Config) {
		cfg.Defaults = sandbox.Resources{CPUs: 2, Memory: 1 << 30, Disk: 1 << 31, PIDs: 100}
	})
	env := map[string]string{"A": "1"}
	sb := create(t, c, sandbox.Spec{Env: env, Workdir: "/a//b/", Labels: map[string]string{"team": "red"}, Resources: sandbox.Resources{Memory: -1}})
	spec := p.made[0]
	if sb.Name() != "sb-1" || spec.ID != "sb-1" || spec.Name != "sb-1" || spec.Image != "host" || spec.Hostname != "sb-1" || spec.Workdir != "/a/b" {
		t.Errorf("completed to %+v", spec)
	}
	if want := (sandbox.Resources{CPUs: 2, Memory: -1, Disk: 1 << 31, PIDs: 100}); spec.Resources != want {
		t.Errorf("resources %+v, want %+v", spec.Resources, want)
	}
	if want := map[string]string{"team": "red", "atoll.name": "sb-1", "atoll.image": "host"}; !maps.Equal(spec.Labels, want) {
		t.Errorf("labels %v, want %v", spec.Labels, want)
	}
	env["A"] = "2"
	if spec.Env["A"] != "1" {
		t.Error("the driver's spec shares its map with the caller's")
	}
}

func TestCreateRefuses(t *testing.T) {
	tests := map[string]sandbox.CreateRequest{
		"a bad name":       {Spec: sandbox.Spec{Name: "../etc"}},
		"a reserved label": {Spec: sandbox.Spec{Labels: map[string]string{"atoll.owner": "me"}}},
		"little memory":    {Spec: sandbox.Spec{Resources: sandbox.Resources{Memory: 1}}},
		"a pull policy":    {Pull: "sometimes"},
		"a relative mount": {Spec: sandbox.Spec{Mounts: []sandbox.Mount{{Source: "a", Target: "/a"}}}},
	}
	for name, req := range tests {
		t.Run(name, func(t *testing.T) {
			p, c := setup(t)
			_, err := carryOut(t.Context(), c, req)
			wantError(t, err, sandbox.CodeInvalid)
			if len(p.made) != 0 {
				t.Error("the driver was called")
			}
		})
	}
}

func TestNamesAreUnique(t *testing.T) {
	p, c := setup(t, func(cfg *engine.Config) { cfg.NewID = nil })
	var wg sync.WaitGroup
	errs := make([]error, 16)
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = carryOut(context.Background(), c, sandbox.CreateRequest{Spec: sandbox.Spec{Name: "one"}})
		})
	}
	wg.Wait()
	made := 0
	for _, err := range errs {
		if err == nil {
			made++
			continue
		}
		if e := wantError(t, err, sandbox.CodeAlreadyExists); e.Hint == "" {
			t.Error("no hint")
		}
	}
	if made != 1 || p.count() != 1 {
		t.Fatalf("%d made, %d alive, want one", made, p.count())
	}
	sb, err := c.Find(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	// The id of one sandbox cannot become the name of another.
	_, err = carryOut(t.Context(), c, sandbox.CreateRequest{Spec: sandbox.Spec{Name: string(sb.ID())}})
	wantError(t, err, sandbox.CodeAlreadyExists)
}

func TestNameLockFailureMakesNothing(t *testing.T) {
	p, c := setup(t, func(cfg *engine.Config) {
		cfg.LockNames = func(context.Context) (func(), error) { return nil, errUnknown }
	})
	_, err := carryOut(t.Context(), c, sandbox.CreateRequest{Spec: sandbox.Spec{Name: "one"}})
	wantError(t, err, sandbox.CodeInternal)
	if p.count() != 0 {
		t.Error("something was made")
	}
}

func TestFind(t *testing.T) {
	p, c := setup(t)
	create(t, c, sandbox.Spec{Name: "one"})
	for _, ref := range []string{"one", "sb-1"} {
		sb, err := c.Find(t.Context(), ref)
		if err != nil || sb.ID() != "sb-1" || sb.Name() != "one" {
			t.Errorf("Find(%s): %v", ref, err)
		}
	}
	_, err := c.Find(t.Context(), "two")
	if e := wantError(t, err, sandbox.CodeNotFound); e.Subject != "two" || e.Hint == "" {
		t.Errorf("got %+v", e)
	}
	_, err = c.Find(t.Context(), "\x1b[2J")
	wantError(t, err, sandbox.CodeInvalid)
	// An incomplete listing proves nothing about missing sandboxes.
	p.fail["list"] = errUnknown
	_, err = c.Find(t.Context(), "two")
	wantError(t, err, sandbox.CodeInternal)
}

func TestListHidesAtollsLabels(t *testing.T) {
	_, c := setup(t)
	create(t, c, sandbox.Spec{Name: "one", Labels: map[string]string{"team": "red"}})
	if _, err := carryOut(t.Context(), c, sandbox.CreateRequest{}, bound); err != nil {
		t.Fatal(err)
	}
	all, err := c.List(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	for _, s := range all {
		if s.Bound != (s.Name != "one") || s.Image != "host" {
			t.Errorf("got %+v", s)
		}
		if s.Name == "one" && (len(s.Labels) != 1 || s.Labels["team"] != "red") {
			t.Errorf("labels %v", s.Labels)
		}
	}
}

func TestGuardForbids(t *testing.T) {
	var asked []engine.Action
	p, c := setup(t, func(cfg *engine.Config) {
		cfg.Guard = func(ctx context.Context, a engine.Action, act func(context.Context) error) error {
			asked = append(asked, a)
			if a.Op == "sandbox.create" || a.Op == "files.read" {
				return act(ctx)
			}
			return &sandbox.Error{Code: sandbox.CodeDenied, Message: "not you"}
		}
	})
	sb := create(t, c, sandbox.Spec{Name: "one"})
	if _, _, err := sb.Files().Read(t.Context(), "/x", driver.ReadOptions{}); err != nil {
		t.Error(err)
	}
	ctx := t.Context()
	_, execErr := sb.Exec(ctx, sandbox.Command{Args: []string{"true"}})
	_, psErr := sb.Processes(ctx)
	_, logErr := sb.Logs(ctx, "1", driver.LogOptions{})
	_, findErr := c.Find(ctx, "one")
	_, listErr := c.List(ctx)
	_, sweepErr := c.Sweep(ctx)
	_, writeErr := sb.Files().Write(ctx, "/x", strings.NewReader(""), driver.WriteOptions{})
	for _, err := range []error{execErr, psErr, logErr, findErr, listErr, sweepErr, writeErr, sb.Kill(ctx, "1", 9), sb.Destroy(ctx)} {
		wantError(t, err, sandbox.CodeDenied)
	}
	if p.count() != 1 {
		t.Error("a forbidden destruction happened")
	}
	if a := asked[1]; a.Op != "files.read" || a.Sandbox != "sb-1" || a.Name != "one" || a.Subject != "/x" {
		t.Errorf("the guard was asked about %+v", a)
	}
}

func TestErrorsAreWrappedOnce(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want sandbox.Error // Cause is checked by errors.Is
	}{
		{"classified by the provider", errKnown, sandbox.Error{Code: "exhausted", Op: "process.exec", Subject: "one", Message: "the sandbox ran out of luck"}},
		{"unknown", errUnknown, sandbox.Error{Code: "internal", Op: "process.exec", Subject: "one", Message: "what was that"}},
		{"canceled", fmt.Errorf("x: %w", context.Canceled), sandbox.Error{Code: "canceled", Op: "process.exec", Subject: "one", Message: "canceled"}},
		{"too slow", context.DeadlineExceeded, sandbox.Error{Code: "timeout", Op: "process.exec", Subject: "one", Message: "took too long"}},
		{"typed", &sandbox.Error{Code: "denied", Message: "no", Hint: "ask"}, sandbox.Error{Code: "denied", Op: "process.exec", Subject: "one", Message: "no", Hint: "ask"}},
		{"typed inside", fmt.Errorf("while: %w", &sandbox.Error{Code: "denied", Subject: "it", Message: "no"}), sandbox.Error{Code: "denied", Op: "process.exec", Subject: "it", Message: "while: it: no"}},
		{"typed, and joined with nothing", errors.Join(&sandbox.Error{Code: "denied", Op: "x.y", Subject: "it", Message: "no"}), sandbox.Error{Code: "denied", Op: "x.y", Subject: "it", Message: "no"}},
		{"from inside a sandbox", errors.New("\x1b]0;title\x07\xff\u202e"), sandbox.Error{Code: "internal", Op: "process.exec", Subject: "one", Message: "\ufffd]0;title\ufffd\ufffd\ufffd"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, c := setup(t)
			sb := create(t, c, sandbox.Spec{Name: "one"})
			p.fail["exec"] = tt.err
			_, err := sb.Exec(t.Context(), sandbox.Command{Args: []string{"true"}})
			got := *wantError(t, err, tt.want.Code)
			if !errors.Is(err, tt.err) {
				t.Error("the cause is lost")
			}
			got.Cause = nil
			if tt.want.Hint == "" {
				got.Hint = ""
			}
			if got != tt.want {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestLongErrorsAreCut(t *testing.T) {
	p, c := setup(t)
	p.fail["create"] = errors.New(strings.Repeat("é", 100_000))
	_, err := carryOut(t.Context(), c, sandbox.CreateRequest{})
	if e := wantError(t, err, sandbox.CodeInternal); len(e.Message) > 3000 || strings.Contains(e.Message, "\ufffd") {
		t.Errorf("%d bytes", len(e.Message))
	}
}

func TestUnsupported(t *testing.T) {
	p, c := setup(t)
	p.plain = true
	sb := create(t, c, sandbox.Spec{})
	_, err := sb.Files().Stat(t.Context(), "/x")
	wantError(t, err, sandbox.CodeUnsupported)
	_, err = sb.Files().Watch(t.Context(), "/x", true)
	wantError(t, err, sandbox.CodeUnsupported)
	_, err = sb.Processes(t.Context())
	wantError(t, err, sandbox.CodeUnsupported)
	_, err = carryOut(t.Context(), c, sandbox.CreateRequest{Spec: sandbox.Spec{Image: "debian:12"}})
	wantError(t, err, sandbox.CodeUnsupported)
}

func TestFiles(t *testing.T) {
	p, c := setup(t)
	sb := create(t, c, sandbox.Spec{Name: "one"})
	files := sb.Files()
	if info, err := files.Stat(t.Context(), "/a/../b//c/"); err != nil || info.Path != "/b/c" {
		t.Errorf("Stat: %+v, %v", info, err)
	}
	if err := files.Move(t.Context(), "/x/./y", "/z/", false); err != nil {
		t.Error(err)
	}
	x := p.alive["sb-1"]
	if got := strings.Join(x.seen, " "); got != "/b/c /x/y /z" {
		t.Errorf("the driver saw %s", got)
	}
	bad := map[string]error{
		"relative":  files.Remove(t.Context(), "etc/passwd", true),
		"empty":     files.Mkdir(t.Context(), "", driver.MkdirOptions{}),
		"NUL":       files.Remove(t.Context(), "/a\x00b", false),
		"mode":      files.Mkdir(t.Context(), "/a", driver.MkdirOptions{Mode: 0o10000}),
		"owner":     files.Mkdir(t.Context(), "/a", driver.MkdirOptions{Owner: "a:b:c"}),
		"to":        files.Move(t.Context(), "/a", "b", false),
		"unbounded": files.Remove(t.Context(), "/"+strings.Repeat("a", 5000), false),
	}
	for name, err := range bad {
		t.Run(name, func(t *testing.T) { wantError(t, err, sandbox.CodeInvalid) })
	}
	if len(x.seen) != 3 {
		t.Errorf("the driver saw a bad path: %q", x.seen[3:])
	}
}

func TestListFiles(t *testing.T) {
	p, c := setup(t)
	files := create(t, c, sandbox.Spec{Name: "one"}).Files()
	var names []string
	for info, err := range files.List(t.Context(), "/d", driver.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, info.Path)
	}
	if strings.Join(names, "") != "ab" {
		t.Errorf("got %q", names)
	}
	p.fail["list-files"] = errKnown
	n := 0
	for _, err := range files.List(t.Context(), "/d", driver.ListOptions{}) {
		if n++; n == 3 {
			wantError(t, err, sandbox.CodeExhausted)
		} else if err != nil {
			t.Errorf("item %d: %v", n, err)
		}
	}
	if n != 3 {
		t.Errorf("%d items, want 3", n)
	}
	for range files.List(t.Context(), "/d", driver.ListOptions{}) {
		break // must not panic by yielding again
	}
}

func TestProcesses(t *testing.T) {
	p, c := setup(t)
	sb := create(t, c, sandbox.Spec{Name: "one"})
	proc, err := sb.Exec(t.Context(), sandbox.Command{Args: []string{"sleep"}})
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, proc.Signal(t.Context(), 0), sandbox.CodeInvalid)
	wantError(t, proc.Signal(t.Context(), 65), sandbox.CodeInvalid)
	wantError(t, sb.Kill(t.Context(), "1", -9), sandbox.CodeInvalid)
	wantError(t, proc.Resize(t.Context(), sandbox.WindowSize{Cols: 60_000}), sandbox.CodeInvalid)
	p.fail["signal"] = errKnown
	e := wantError(t, proc.Signal(t.Context(), 15), sandbox.CodeExhausted)
	if e.Subject != "p1" {
		t.Errorf("subject %q", e.Subject)
	}
	logs, err := sb.Logs(t.Context(), "1", driver.LogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if chunk, err := logs.Next(); err != nil || string(chunk.Data) != "x" {
		t.Errorf("%+v, %v", chunk, err)
	}
	_, err = logs.Next()
	wantError(t, err, sandbox.CodeExhausted)
	_, err = sb.Logs(t.Context(), "1", driver.LogOptions{Tail: -1})
	wantError(t, err, sandbox.CodeInvalid)
	_, err = sb.Exec(t.Context(), sandbox.Command{Args: []string{"a\x00b"}})
	wantError(t, err, sandbox.CodeInvalid)
}

// A limit that is not enforced is reported, or refused if the provider chooses
// the size itself. Defaults that would not be enforced are left out.
func TestLimitsThatDoNotHold(t *testing.T) {
	defaults := func(cfg *engine.Config) { cfg.Defaults = sandbox.Resources{Memory: 1 << 30} }
	asked := sandbox.Spec{Resources: sandbox.Resources{Memory: 64 << 20}}

	p, c := setup(t, defaults)
	if sb := create(t, c, asked); len(sb.Limits()) != 0 || p.made[0].Resources.Memory != 64<<20 {
		t.Errorf("where limits hold: %v, made with %+v", sb.Limits(), p.made[0].Resources)
	}
	p.loose = true
	if sb := create(t, c, sandbox.Spec{}); len(sb.Limits()) != 0 || p.made[1].Resources != (sandbox.Resources{}) {
		t.Errorf("a default: %v, made with %+v", sb.Limits(), p.made[1].Resources)
	}
	want := map[string]sandbox.Enforcement{"memory": {Why: "nothing limits it"}}
	if sb := create(t, c, asked); !maps.Equal(sb.Limits(), want) {
		t.Errorf("got %v, want %v", sb.Limits(), want)
	}
	p.fixed = true
	_, err := carryOut(t.Context(), c, sandbox.CreateRequest{Spec: asked})
	if e := wantError(t, err, sandbox.CodeUnsupported); e.Subject != "memory" || e.Hint == "" {
		t.Errorf("got %+v", e)
	}
	if _, err := carryOut(t.Context(), c, sandbox.CreateRequest{}); err != nil {
		t.Errorf("without a limit: %v", err)
	}
}

// An image is not fetched for a provider that runs none.
func TestProviderWithoutImages(t *testing.T) {
	lib := &library{err: errUnknown}
	p, c := setup(t, func(cfg *engine.Config) { cfg.Images = lib })
	p.noImages = true
	_, err := carryOut(t.Context(), c, sandbox.CreateRequest{Spec: sandbox.Spec{Image: "debian:12"}})
	if e := wantError(t, err, sandbox.CodeUnsupported); e.Subject != "debian:12" || lib.asked.Ref != "" {
		t.Errorf("got %+v, asked for %+v", e, lib.asked)
	}
}

// A provider without a gateway says so, where a secret needs one.
func TestGatewaySecretWithoutGateway(t *testing.T) {
	_, c := setup(t)
	_, err := carryOut(t.Context(), c, sandbox.CreateRequest{Spec: sandbox.Spec{Secrets: []sandbox.SecretRef{{Name: "github"}}}}, acme)
	if e := wantError(t, err, sandbox.CodeUnsupported); !strings.Contains(e.Message, "egress gateway") {
		t.Errorf("got %+v", e)
	}
}
