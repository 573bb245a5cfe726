package templates

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/exec"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/template"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// builder notes the request of a build, and builds the image sha256:new.
type builder struct {
	req   *template.Request
	fails error
	// in, if set, uses the sandboxes of the build.
	in func(context.Context, template.Sandboxes) error
}

func (b *builder) Build(ctx context.Context, sandboxes template.Sandboxes, req template.Request) (*template.Result, error) {
	b.req = &req
	if b.in != nil {
		if err := b.in(ctx, sandboxes); err != nil {
			return nil, err
		}
	}
	if b.fails != nil {
		return nil, b.fails
	}
	return &template.Result{Image: template.Image{Digest: "sha256:new", Size: 9}, Base: "sha256:base"}, nil
}

func (*builder) Prune(context.Context, string, time.Time, []string) (int64, error) { return 0, nil }

// strict are policies that refuse an image.
type strict struct {
	free
	image string
}

func (s strict) Permit(_ context.Context, _ audit.Action, _ *sandbox.Spec, images []string, _ ...policyset.Field) error {
	if slices.Contains(images, s.image) {
		return &sandbox.Error{Code: sandbox.CodeDenied, Message: "the policy refuses the image"}
	}
	return nil
}

// What is built from, under which name it is recorded, and whether it may be shared. After
// a failure the template that had the name is as it was.
func TestBuildTemplate(t *testing.T) {
	login := func() (string, string) { return "me", "secret" }
	for _, tt := range []struct {
		name    string
		tenant  string
		verbs   []key.Verb
		req     template.NamedRequest
		from    string
		prepare func(t *testing.T, s *Service, b *builder)

		code     sandbox.Code
		asked    string // what the builder begins with; empty: it is not asked
		as       string // the new template
		withheld string
	}{
		{name: "an image", req: template.NamedRequest{Name: "new"}, from: "debian:12", asked: "debian:12", as: "new:latest"},
		{name: "with a tag", req: template.NamedRequest{Name: "new:v1"}, from: "debian:12", asked: "debian:12", as: "new:v1"},
		{name: "in place of another", req: template.NamedRequest{Name: "old"}, from: "debian:12", asked: "debian:12", as: "old:latest"},
		{name: "a template", req: template.NamedRequest{Name: "new"}, from: "template:old", asked: "sha256:old", as: "new:latest"},
		{name: "the public template of another tenant", tenant: coretest.Rival, req: template.NamedRequest{Name: "new"}, from: "template:acme/shared", asked: "sha256:shared", as: "new:latest"},
		{name: "the private template of another tenant", tenant: coretest.Rival, req: template.NamedRequest{Name: "new"}, from: "template:acme/old", code: sandbox.CodeNotFound},
		{name: "a template that there is not", req: template.NamedRequest{Name: "new"}, from: "template:none", code: sandbox.CodeNotFound},
		{name: "an image with a login", req: template.NamedRequest{Name: "new", Login: login}, from: "debian:12", asked: "debian:12", as: "new:latest", withheld: store.WithheldLogin},
		{name: "a digest", req: template.NamedRequest{Name: "new"}, from: "sha256:aa", asked: "sha256:aa", as: "new:latest", withheld: store.WithheldDigest},
		{name: "a template that may not be shared", req: template.NamedRequest{Name: "new"}, from: "template:withheld", asked: "sha256:withheld", as: "new:latest", withheld: store.WithheldLogin},
		{name: "one that may not be shared, under a public name", req: template.NamedRequest{Name: "shared", Login: login}, from: "debian:12", code: sandbox.CodeDenied},
		{name: "under a name that is none", req: template.NamedRequest{Name: "../new"}, from: "debian:12", code: sandbox.CodeInvalid},
		{name: "under a name of another tenant", tenant: coretest.Rival, req: template.NamedRequest{Name: "acme/old"}, from: "debian:12", code: sandbox.CodeNotFound},
		{name: "without the right", verbs: []key.Verb{key.Read}, req: template.NamedRequest{Name: "new"}, from: "debian:12", code: sandbox.CodeDenied},
		{name: "against a policy", req: template.NamedRequest{Name: "new"}, from: "evil:1", prepare: func(_ *testing.T, s *Service, _ *builder) { s.cfg.Policies = strict{image: "evil:1"} }, code: sandbox.CodeDenied},
		{name: "by a daemon that builds none", req: template.NamedRequest{Name: "new"}, from: "debian:12", prepare: func(_ *testing.T, s *Service, _ *builder) { s.cfg.Builder = nil }, code: sandbox.CodeUnsupported},
		{name: "a build that fails", req: template.NamedRequest{Name: "old"}, from: "debian:12", asked: "debian:12", prepare: func(_ *testing.T, _ *Service, b *builder) {
			b.fails = &sandbox.Error{Code: sandbox.CodeExhausted, Message: "no space"}
		}, code: sandbox.CodeExhausted},
		{name: "a start command that cannot run", req: template.NamedRequest{Name: "old", Description: &template.Description{Start: "serve"}}, from: "debian:12", asked: "debian:12", code: sandbox.CodeExhausted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, snapshots := open(t)
			b := &builder{}
			s.cfg.Builder, s.cfg.Policies = b, free{}
			for name, more := range map[string]store.Template{
				"old:latest":      {Template: durable.Template{Image: "sha256:old", Snapshot: "sn-1"}},
				"shared:latest":   {Template: durable.Template{Image: "sha256:shared"}},
				"withheld:latest": {Template: durable.Template{Image: "sha256:withheld"}, Withheld: store.WithheldLogin},
			} {
				set(t, s, coretest.Acme, name, more)
			}
			publish(t, s.Core, coretest.Acme, "shared")
			if tt.prepare != nil {
				tt.prepare(t, s, b)
			}
			if tt.tenant == "" {
				tt.tenant = coretest.Acme
			}
			if tt.verbs == nil {
				tt.verbs = []key.Verb{key.Write, key.Exec, key.Read}
			}
			if tt.req.Description == nil {
				tt.req.Description = &template.Description{}
			}
			tt.req.Description.From = tt.from
			made, err := s.BuildTemplate(coretest.As(t, tt.tenant, tt.verbs...), tt.req)
			coretest.WantCode(t, err, tt.code)
			if known, ok := errors.AsType[*sandbox.Error](err); ok && known.Op == "" {
				t.Errorf("the error %v names no operation, want one that does", err)
			}
			if asked := b.req != nil; asked != (tt.asked != "") || asked && (b.req.Description.From != tt.asked || b.req.Tenant != tt.tenant) {
				t.Errorf("the builder is asked for %+v, want one that begins with %q of %s", b.req, tt.asked, tt.tenant)
			}
			if tt.code != "" {
				old, err := s.Template(coretest.As(t, coretest.Acme, key.Read), "old")
				coretest.OK(t, err)
				if old.Image != "sha256:old" || len(snapshots.removed) != 0 {
					t.Errorf("the old template is %+v, and the snapshots %v are removed; want it as it was", old, snapshots.removed)
				}
				_, err = s.Template(coretest.As(t, tt.tenant, key.Read), "new")
				coretest.WantCode(t, err, sandbox.CodeNotFound)
				return
			}
			name, tag, _ := strings.Cut(tt.as, ":")
			if made.Name != name || made.Tag != tag || made.Image != "sha256:new" || made.Base != "sha256:base" || made.Size != 9 {
				t.Errorf("it is %+v, want %s with the image and the base of the build", made, tt.as)
			}
			kept, err := s.find(t.Context(), tt.tenant, tt.as)
			coretest.OK(t, err)
			if kept.Withheld != tt.withheld {
				t.Errorf("it is withheld because of %q, want %q", kept.Withheld, tt.withheld)
			}
			if replaced := slices.Equal(snapshots.removed, []string{"sn-1"}); replaced != (tt.as == "old:latest") {
				t.Errorf("the snapshots %v are removed, want that of the old template: %v", snapshots.removed, tt.as == "old:latest")
			}
		})
	}
}

// Which description a tar of build files has, and what the request adds. The files are
// removed afterwards.
func TestBuildFromTar(t *testing.T) {
	files := map[string]string{
		"Dockerfile":      "ARG V=1\nFROM debian:$V\n",
		"other/File":      "FROM alpine:3\n",
		"template.json":   `{"from": "busybox:1", "start": "serve"}`,
		"wrong.json":      `{"from": 7}`,
		"other/README.md": "text",
	}
	for _, tt := range []struct {
		name  string
		req   template.TarRequest
		raw   string // instead of a tar
		fails error
		code  sandbox.Code
		from  string
		start string
	}{
		{name: "a Dockerfile", from: "debian:1"},
		{name: "with an argument", req: template.TarRequest{Args: map[string]string{"V": "12"}}, from: "debian:12"},
		{name: "with a start command", req: template.TarRequest{Start: "run"}, from: "debian:1", start: "run", code: sandbox.CodeExhausted},
		{name: "another file", req: template.TarRequest{File: "other/File"}, from: "alpine:3"},
		{name: "JSON", req: template.TarRequest{File: "template.json"}, from: "busybox:1", start: "serve", code: sandbox.CodeExhausted},
		{name: "JSON with another start command", req: template.TarRequest{File: "template.json", Start: "run"}, from: "busybox:1", start: "run", code: sandbox.CodeExhausted},
		{name: "JSON that is wrong", req: template.TarRequest{File: "wrong.json"}, code: sandbox.CodeInvalid},
		{name: "a file that is not there", req: template.TarRequest{File: "none"}, code: sandbox.CodeInvalid},
		{name: "a file outside", req: template.TarRequest{File: "../../../etc/passwd"}, code: sandbox.CodeInvalid},
		{name: "no tar", raw: strings.Repeat("text ", 300), code: sandbox.CodeInvalid},
		{name: "a build that fails", fails: &sandbox.Error{Code: sandbox.CodeUnavailable}, code: sandbox.CodeUnavailable, from: "debian:1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, _ := open(t)
			b := &builder{fails: tt.fails}
			s.cfg.Builder, s.cfg.Policies, s.cfg.Scratch = b, free{}, t.TempDir()
			var in bytes.Buffer
			w := tar.NewWriter(&in)
			for name, text := range files {
				coretest.OK(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text)), Mode: 0o644}))
				_, err := w.Write([]byte(text))
				coretest.OK(t, err)
			}
			coretest.OK(t, w.Close())
			if tt.raw != "" {
				in.Reset()
				in.WriteString(tt.raw)
			}
			tt.req.Name, tt.req.Files = "new", &in
			_, err := s.BuildFromTar(coretest.As(t, coretest.Acme, key.Write, key.Exec), tt.req, nil)
			coretest.WantCode(t, err, tt.code)
			if asked := b.req != nil; asked != (tt.from != "") || asked && (b.req.Description.From != tt.from || b.req.Description.Start != tt.start || b.req.Files == nil) {
				t.Errorf("the builder is asked for %+v, want one from %q that starts %q, with the files", b.req, tt.from, tt.start)
			}
			left, err := os.ReadDir(s.cfg.Scratch)
			coretest.OK(t, err)
			if len(left) != 0 {
				t.Errorf("%v are left of the build files, want nothing", left)
			}
		})
	}
}

// workshop makes the sandboxes of builds in memory, and runs commands in them.
type workshop struct {
	provider *fake.Provider
	engine   *engine.Engine
	fails    error // of opening one

	mu        sync.Mutex
	spec      sandbox.Spec
	base      []string
	destroyed []string
}

func (w *workshop) CreateForBuild(ctx context.Context, spec sandbox.Spec, base []string) (sandbox.ID, error) {
	w.spec, w.base = spec, base
	_, err := w.provider.Create(ctx, &sandbox.Spec{ID: "sb-1"})
	return "sb-1", err
}

func (w *workshop) Destroy(ctx context.Context, ref string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.destroyed = append(w.destroyed, ref)
	return nil
}

func (w *workshop) Use(ctx context.Context, ref string) (u exec.Use, err error) {
	if w.fails != nil {
		return u, w.fails
	}
	u.Inner, err = w.engine.Attach(ctx, sandbox.ID(ref), ref)
	u.Sandbox = u.Inner
	return u, err
}

func (*workshop) MainEnded(string, sandbox.ID, string, time.Time, sandbox.Exit) {}

func (*workshop) Redactor(context.Context, *store.Sandbox) (*secret.Redactor, error) { return nil, nil }

// unmetered are tenants without quotas.
type unmetered struct{ exec.Tenants }

func (unmetered) WithLimits(ctx context.Context, _ operator.Limits) context.Context { return ctx }
func (unmetered) MeterOutput(string, operator.Limits, int) time.Duration            { return 0 }

// A build runs its steps in sandboxes of its own, which end with it.
func TestBuildSandboxes(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fails error // of opening the sandbox
		do    func(t *testing.T, ctx context.Context, sb template.Sandbox) error
		code  sandbox.Code
	}{
		{name: "output and exit of a command", do: func(t *testing.T, ctx context.Context, sb template.Sandbox) error {
			var out bytes.Buffer
			exit, err := sb.Exec(ctx, sandbox.Command{Shell: "echo out; echo err >&2; exit 3"}, &out)
			if lines := strings.Fields(out.String()); exit.Code != 3 || len(lines) != 2 || !slices.Contains(lines, "out") || !slices.Contains(lines, "err") {
				t.Errorf("the command ended with %+v and the output %q, want 3 with both streams", exit, out.String())
			}
			return err
		}},
		{name: "a file", do: func(t *testing.T, ctx context.Context, sb template.Sandbox) error {
			_, err := sb.Exec(ctx, sandbox.Command{Shell: "echo 12345678 > /f"}, &bytes.Buffer{})
			coretest.OK(t, err)
			text, err := sb.ReadFile(ctx, "/f", 4)
			if string(text) != "1234" {
				t.Errorf("the file has %q, want no more than the 4 bytes that were asked for", text)
			}
			return err
		}},
		{name: "a file that is not there", do: func(_ *testing.T, ctx context.Context, sb template.Sandbox) error {
			_, err := sb.ReadFile(ctx, "/none", 4)
			return err
		}, code: sandbox.CodeNotFound},
		{name: "a command of a build that is canceled", do: func(t *testing.T, ctx context.Context, sb template.Sandbox) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			_, err := sb.Exec(ctx, sandbox.Command{Shell: "echo begun; sleep 3600"}, writer(func(p []byte) (int, error) {
				cancel() // it runs
				return len(p), nil
			}))
			return err
		}, code: sandbox.CodeCanceled},
		{name: "a sandbox that cannot be opened", fails: &sandbox.Error{Code: sandbox.CodeUnavailable}, code: sandbox.CodeUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, _ := open(t)
			p := fake.New(fake.Options{Limited: true})
			t.Cleanup(func() { coretest.OK(t, p.Close()) })
			w := &workshop{provider: p, engine: engine.New(engine.Config{Provider: p}), fails: tt.fails}
			b := &builder{in: func(ctx context.Context, sandboxes template.Sandboxes) error {
				sb, err := sandboxes.Open(ctx, "sha256:step", sandbox.Network{Egress: []string{"example.com"}})
				if err != nil {
					return err
				}
				err = tt.do(t, ctx, sb)
				gone, cancel := context.WithCancel(ctx)
				cancel()
				return errors.Join(err, sb.Close(gone)) // also after the build was canceled
			}}
			s.cfg.Builder, s.cfg.Policies, s.cfg.Sandboxes = b, free{}, w
			s.cfg.Exec = exec.New(s.Core, exec.Config{Sandboxes: w, Redactors: w, Tenants: unmetered{}})
			_, err := s.BuildTemplate(coretest.As(t, coretest.Acme, key.Write, key.Exec), template.NamedRequest{Name: "new", Description: &template.Description{From: "debian:12"}})
			coretest.WantCode(t, err, tt.code)
			if got := w.spec; got.Image != "sha256:step" || !slices.Equal(got.Network.Egress, []string{"example.com"}) || got.Lifetime.Timeout != buildLifetime || !strings.HasPrefix(got.Name, "build-") || !slices.Equal(w.base, []string{"debian:12"}) {
				t.Errorf("the sandbox is %+v of %v, want one of sha256:step with its network that ends after %v, judged as debian:12", got, w.base, buildLifetime)
			}
			if !slices.Equal(w.destroyed, []string{"sb-1"}) {
				t.Errorf("the sandboxes %v are destroyed, want sb-1 once", w.destroyed)
			}
		})
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
