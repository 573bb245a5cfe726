package engine_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/sandbox"
)

func finish(_ context.Context, _ *engine.Sandbox, p driver.Process) error { return p.Close() }

func request(args ...string) engine.RunRequest {
	return engine.RunRequest{Command: sandbox.Command{Args: args}}
}

func TestRunRemovesTheSandbox(t *testing.T) {
	canceled, cancel := context.WithCancel(context.Background())
	defer cancel()
	tests := []struct {
		name string
		ctx  context.Context
		fail map[string]error
		use  func(context.Context, *engine.Sandbox, driver.Process) error
		code sandbox.Code // "" for success
	}{
		{name: "the command ends", use: finish},
		{name: "the command cannot be started", fail: map[string]error{"exec": errKnown}, use: finish, code: sandbox.CodeExhausted},
		{name: "the caller goes away", ctx: canceled, use: func(ctx context.Context, _ *engine.Sandbox, p driver.Process) error {
			cancel()
			<-ctx.Done()
			return nil
		}, code: sandbox.CodeCanceled},
		{name: "destroying fails", fail: map[string]error{"destroy": errKnown}, use: finish, code: sandbox.CodeExhausted},
		{name: "it is gone already", fail: map[string]error{"destroy": errGone}, use: finish},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, c := setup(t)
			p.fail = map[string]error{}
			for k, v := range tt.fail {
				p.fail[k] = v
			}
			ctx := tt.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			exit, err := c.Run(ctx, request("true"), tt.use)
			if tt.code != "" {
				wantError(t, err, tt.code)
			} else if err != nil || exit.Code != 7 {
				t.Errorf("exit %+v, error %v", exit, err)
			}
			if tt.fail["destroy"] == nil && p.count() != 0 {
				t.Error("the sandbox stays")
			}
			if tt.fail["destroy"] == errKnown && exit.Reason != sandbox.ReasonExited {
				t.Error("how the command ended is lost")
			}
		})
	}
}

func TestRunRemovesTheSandboxAfterAPanic(t *testing.T) {
	p, c := setup(t)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is lost")
			}
		}()
		_, _ = c.Run(t.Context(), request("true"), func(context.Context, *engine.Sandbox, driver.Process) error { panic("x") })
	}()
	if p.count() != 0 {
		t.Error("the sandbox stays")
	}
}

func TestRunKeeps(t *testing.T) {
	p, c := setup(t)
	req := request("true")
	req.Keep = true
	if _, err := c.Run(t.Context(), req, finish); err != nil {
		t.Fatal(err)
	}
	if p.count() != 1 || p.made[0].Labels[engine.LabelOwner] != "" {
		t.Errorf("%d sandboxes, labels %v", p.count(), p.made[0].Labels)
	}
}

func TestUseErrorsPassUntouched(t *testing.T) {
	p, c := setup(t)
	want := errors.New("my own")
	_, err := c.Run(t.Context(), request("true"), func(context.Context, *engine.Sandbox, driver.Process) error { return want })
	if err != want || p.count() != 0 {
		t.Errorf("%v, %d sandboxes", err, p.count())
	}
}

func TestStart(t *testing.T) {
	p, c := setup(t)
	sb, info, err := c.Start(t.Context(), request("sleep", "9"))
	if err != nil || info == nil || info.ID != "p1" {
		t.Fatalf("%v, %v", info, err)
	}
	if ran := p.alive[sb.ID()].ran; len(ran) != 1 || !ran[0].Background {
		t.Errorf("ran %+v", ran)
	}
	if p.made[0].Labels[engine.LabelOwner] != "" {
		t.Error("it would go away with us")
	}
	if _, info, err = c.Start(t.Context(), engine.RunRequest{}); err != nil || info != nil {
		t.Errorf("an idle sandbox: %v, %v", info, err)
	}
	p.fail["exec"] = errKnown
	_, _, err = c.Start(t.Context(), request("sleep"))
	wantError(t, err, sandbox.CodeExhausted)
	p.plain = true // its sandboxes end with this process
	_, _, err = c.Start(t.Context(), engine.RunRequest{})
	wantError(t, err, sandbox.CodeUnsupported)
	if p.count() != 2 {
		t.Errorf("%d sandboxes, want 2", p.count())
	}
}

// library is an image store with one image in it.
type library struct {
	img   engine.ImageConfig
	err   error
	asked engine.ImageRequest
}

func (l *library) Ensure(_ context.Context, req engine.ImageRequest) (engine.ImageConfig, error) {
	l.asked = req
	return l.img, l.err
}

func (l *library) ErrorCode(err error) sandbox.Code {
	if err == errUnknown {
		return sandbox.CodeNotFound
	}
	return ""
}

func TestImageCommand(t *testing.T) {
	ptr := func(s string) *string { return &s }
	tests := []struct {
		name            string
		entrypoint, cmd []string
		override        *string
		args            []string
		want            string // "" for a refusal
	}{
		{"both", []string{"e"}, []string{"c"}, nil, nil, "e c"},
		{"arguments replace cmd", []string{"e"}, []string{"c"}, nil, []string{"a", "b"}, "e a b"},
		{"an entrypoint drops cmd", []string{"e"}, []string{"c"}, ptr("x"), nil, "x"},
		{"an entrypoint and arguments", []string{"e"}, []string{"c"}, ptr("x"), []string{"a"}, "x a"},
		{"no entrypoint", []string{"e"}, []string{"c"}, ptr(""), []string{"a"}, "a"},
		{"no entrypoint, no arguments", []string{"e"}, []string{"c"}, ptr(""), nil, ""},
		{"nothing", nil, nil, nil, nil, ""},
		{"only cmd", nil, []string{"c", "d"}, nil, nil, "c d"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			lib := &library{img: engine.ImageConfig{Ref: "sha256:1", Entrypoint: tt.entrypoint, Cmd: tt.cmd}}
			p, c := setup(t, func(cfg *engine.Config) { cfg.Images = lib })
			req := request(tt.args...)
			req.Spec.Image, req.Pull, req.Platform, req.Entrypoint = "app:1", string(engine.PullAlways), "linux/arm64", tt.override
			var ran []string
			_, err := c.Run(t.Context(), req, func(_ context.Context, _ *engine.Sandbox, p driver.Process) error {
				ran = p.Info().Args
				return p.Close()
			})
			if tt.want == "" {
				wantError(t, err, sandbox.CodeInvalid)
			} else if err != nil || strings.Join(ran, " ") != tt.want {
				t.Errorf("ran %q, %v, want %q", ran, err, tt.want)
			}
			if p.made[0].Image != "sha256:1" || p.made[0].Labels[engine.LabelImage] != "app:1" {
				t.Errorf("made from %s, labelled %s", p.made[0].Image, p.made[0].Labels[engine.LabelImage])
			}
			if lib.asked.Ref != "app:1" || lib.asked.Pull != engine.PullAlways || lib.asked.Platform != "linux/arm64" {
				t.Errorf("asked for %+v", lib.asked)
			}
			if !slices.Equal(lib.img.Entrypoint, tt.entrypoint) {
				t.Error("the image's own slice was changed")
			}
		})
	}
}

func TestImageErrors(t *testing.T) {
	lib := &library{err: errUnknown}
	p, c := setup(t, func(cfg *engine.Config) { cfg.Images = lib })
	_, err := carryOut(t.Context(), c, sandbox.CreateRequest{Spec: sandbox.Spec{Image: "debain:12"}})
	if e := wantError(t, err, sandbox.CodeNotFound); e.Subject != "debain:12" || e.Op != "image.get" {
		t.Errorf("got %+v", e)
	}
	if len(p.made) != 0 {
		t.Error("a sandbox was made")
	}
}

func TestSweep(t *testing.T) {
	p, c := setup(t)
	keep := create(t, c, sandbox.Spec{Name: "kept"})
	mine, err := carryOut(t.Context(), c, sandbox.CreateRequest{Spec: sandbox.Spec{Name: "mine"}}, bound)
	if err != nil {
		t.Fatal(err)
	}
	me := p.alive[mine.ID()].labels[engine.LabelOwner]
	scope, _, _ := strings.Cut(me, "/")
	dead := exec.Command(os.Args[0], "-test.run=^$")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	orphan := func(name, owner string, state sandbox.State) {
		sb := create(t, c, sandbox.Spec{Name: name})
		p.alive[sb.ID()].labels[engine.LabelOwner] = owner
		p.alive[sb.ID()].state = state
	}
	orphan("dead-owner", scope+"/"+strconv.Itoa(dead.Process.Pid)+"/12345", sandbox.Running)
	orphan("reused-pid", scope+"/"+strconv.Itoa(os.Getpid())+"/1", sandbox.Running)
	orphan("other-boot", "elsewhere/"+strconv.Itoa(dead.Process.Pid)+"/12345", sandbox.Running)
	orphan("other-boot-ended", "elsewhere/1/1", sandbox.Failed)
	orphan("nonsense", "nonsense", sandbox.Running)
	orphan("nonsense-here", scope+"/x/y", sandbox.Running)

	swept, err := c.Sweep(t.Context())
	slices.Sort(swept)
	if want := []string{"dead-owner", "other-boot-ended", "reused-pid"}; err != nil || !slices.Equal(swept, want) {
		t.Errorf("swept %q, %v, want %q", swept, err, want)
	}
	if p.alive[keep.ID()] == nil || p.alive[mine.ID()] == nil || p.count() != 5 {
		t.Errorf("%d sandboxes stay", p.count())
	}
	// One that cannot be removed is reported, and does not keep the others.
	orphan("dead-1", scope+"/"+strconv.Itoa(os.Getpid())+"/1", sandbox.Running)
	orphan("dead-2", scope+"/"+strconv.Itoa(os.Getpid())+"/1", sandbox.Running)
	n := 0
	p.before = func(method string) {
		if method == "destroy" {
			n++
		}
	}
	p.fail["destroy"] = errKnown
	_, err = c.Sweep(t.Context())
	wantError(t, err, sandbox.CodeExhausted)
	if n != 2 {
		t.Errorf("%d attempts, want 2", n)
	}
}

func TestGoneWhileSweepingIsFine(t *testing.T) {
	p, c := setup(t)
	sb := create(t, c, sandbox.Spec{})
	p.alive[sb.ID()].labels[engine.LabelOwner] = "elsewhere/1/1"
	p.alive[sb.ID()].state = sandbox.Stopped
	p.fail["attach"] = errGone
	if _, err := c.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
}
