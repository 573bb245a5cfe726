package secrets_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/secrets"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// outside is all that the service has to do with: the policies, the gateway, and
// values that are kept outside the store.
type outside struct {
	policies *policyset.Set
	enforced []string // sandboxes
	values   map[string]string
}

func (o *outside) Set() *policyset.Set { return o.policies }

func (o *outside) Enforce(_ context.Context, all []store.Sandbox) error {
	for _, b := range all {
		o.enforced = append(o.enforced, string(b.ID))
	}
	return nil
}

func (o *outside) Read(_ context.Context, s secret.Source) (secret.Value, error) {
	return secret.NewValue([]byte(o.values[s.String()])), nil
}

func open(t *testing.T) (*secrets.Service, *outside) {
	t.Helper()
	sealer, err := secret.OpenSealer(filepath.Join(t.TempDir(), "seal.key"))
	coretest.OK(t, err)
	o := &outside{values: map[string]string{}}
	return secrets.New(coretest.Open(t), secrets.Config{Sealer: sealer, Sources: o, Policies: o, Gateway: o}), o
}

func TestCreate(t *testing.T) {
	long := strings.Repeat("x", 1001)
	for _, tt := range []struct {
		name  string
		owner bool // of the machine, else an administrator of a tenant
		n     durable.NewSecret
		code  sandbox.Code
	}{
		{"a value", false, durable.NewSecret{Name: "github", Text: "ghp_0123456789"}, ""},
		{"no value", false, durable.NewSecret{Name: "github"}, sandbox.CodeInvalid},
		{"no name", false, durable.NewSecret{Text: "ghp_0123456789"}, sandbox.CodeInvalid},
		{"a name that is a path", false, durable.NewSecret{Name: "../github", Text: "ghp_0123456789"}, sandbox.CodeInvalid},
		{"a host that is none", false, durable.NewSecret{Name: "github", Text: "ghp_0123456789", Hosts: []string{"https://api.github.com/"}}, sandbox.CodeInvalid},
		{"a long description", false, durable.NewSecret{Name: "github", Text: "ghp_0123456789", Description: long}, sandbox.CodeInvalid},
		{"a label without a name", false, durable.NewSecret{Name: "github", Text: "ghp_0123456789", Labels: map[string]string{"": "x"}}, sandbox.CodeInvalid},
		{"a source of an unknown kind", true, durable.NewSecret{Name: "github", Source: "http:x"}, sandbox.CodeInvalid},
		{"a file of the machine", true, durable.NewSecret{Name: "github", Source: "file:/etc/token"}, ""},
		{"a file of the machine, for a tenant", false, durable.NewSecret{Name: "github", Source: "file:/etc/token"}, sandbox.CodeDenied},
		{"a source and a value", true, durable.NewSecret{Name: "github", Source: "env:TOKEN", Text: "ghp_0123456789"}, sandbox.CodeInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _ := open(t)
			ctx := coretest.As(t, coretest.Acme, key.Admin)
			if tt.owner {
				ctx = coretest.Owner(t)
			}
			_, err := s.Create(ctx, tt.n)
			coretest.WantCode(t, err, tt.code)
			all, err := s.List(ctx)
			coretest.OK(t, err)
			if made := len(all) == 1; made != (tt.code == "") {
				t.Errorf("the secrets are %+v, want one: %v", all, tt.code == "")
			}
		})
	}
}

// A policy decides whether a secret may be given to sandboxes at all.
func TestCreateUnderPolicy(t *testing.T) {
	s, o := open(t)
	var err error
	o.policies, err = policyset.Parse(map[string][]byte{"caps.yaml": []byte("policies:\n  - name: sealed\n    secretModes: [gateway]\n")})
	coretest.OK(t, err)
	ctx := coretest.As(t, coretest.Acme, key.Admin)
	_, err = s.Create(ctx, durable.NewSecret{Name: "open", Text: "ghp_0123456789", AllowEnv: true})
	coretest.WantCode(t, err, sandbox.CodeDenied)
	_, err = s.Create(ctx, durable.NewSecret{Name: "sealed", Text: "ghp_0123456789"})
	coretest.OK(t, err)
}

// The value of a secret comes back only inside this program.
func TestRotate(t *testing.T) {
	s, _ := open(t)
	ctx := coretest.As(t, coretest.Acme, key.Admin)
	create(t, s, ctx, durable.NewSecret{Name: "github", Text: "first-value", Hosts: []string{"api.github.com"}})
	out, err := s.Rotate(ctx, "github", durable.SecretValue{Text: "second-value", Labels: map[string]string{"team": "a"}})
	coretest.OK(t, err)
	if out.Version != 2 || out.Labels["team"] != "a" {
		t.Errorf("the secret has the version %d and the labels %v, want 2 and team=a", out.Version, out.Labels)
	}
	wantValue(t, s, "github", "second-value")
	for _, tt := range []struct {
		name string
		ctx  context.Context
		of   string
		v    durable.SecretValue
		code sandbox.Code
	}{
		{"one that is not there", ctx, "gitlab", durable.SecretValue{Text: "third-value"}, sandbox.CodeNotFound},
		{"one of another tenant", coretest.As(t, coretest.Rival, key.Admin), "github", durable.SecretValue{Text: "third-value"}, sandbox.CodeNotFound},
		{"by a reader", coretest.As(t, coretest.Acme, key.Read), "github", durable.SecretValue{Text: "third-value"}, sandbox.CodeDenied},
		{"without a value", ctx, "github", durable.SecretValue{}, sandbox.CodeInvalid},
		{"with a wrong label", ctx, "github", durable.SecretValue{Text: "third-value", Labels: map[string]string{"": "x"}}, sandbox.CodeInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := s.Rotate(tt.ctx, tt.of, tt.v)
			coretest.WantCode(t, err, tt.code)
			wantValue(t, s, "github", "second-value")
		})
	}
}

// A value outside the store is changed there, and read again after a rotation.
func TestRotateSource(t *testing.T) {
	s, o := open(t)
	owner := coretest.Owner(t)
	create(t, s, owner, durable.NewSecret{Name: "token", Source: "env:TOKEN"})
	_, err := s.Rotate(owner, "token", durable.SecretValue{Text: "a-value"})
	coretest.WantCode(t, err, sandbox.CodeInvalid)
	o.values["env:TOKEN"] = "of-the-variable"
	out, err := s.Rotate(owner, "token", durable.SecretValue{})
	coretest.OK(t, err)
	if out.Version != 2 {
		t.Errorf("the secret has the version %d, want 2", out.Version)
	}
}

// A sandbox gets a placeholder, or the value if the secret allows that.
func TestBind(t *testing.T) {
	for _, tt := range []struct {
		name  string
		made  durable.NewSecret
		ref   sandbox.SecretRef
		value bool // in the environment, instead of a placeholder
		code  sandbox.Code
	}{
		{"a placeholder", durable.NewSecret{Hosts: []string{"api.github.com"}}, sandbox.SecretRef{Name: "github"}, false, ""},
		{"no hosts to send it to", durable.NewSecret{}, sandbox.SecretRef{Name: "github"}, false, sandbox.CodeDenied},
		{"the value, which is not allowed", durable.NewSecret{}, sandbox.SecretRef{Name: "github", Mode: sandbox.SecretEnv}, false, sandbox.CodeDenied},
		{"the value", durable.NewSecret{AllowEnv: true}, sandbox.SecretRef{Name: "github", Mode: sandbox.SecretEnv}, true, ""},
		{"one that is not there", durable.NewSecret{}, sandbox.SecretRef{Name: "gitlab"}, false, sandbox.CodeNotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, _ := open(t)
			ctx := coretest.As(t, coretest.Acme, key.Admin)
			tt.made.Name, tt.made.Text = "github", "the-value-itself"
			create(t, s, ctx, tt.made)
			env, swaps, err := bind(t, s, tt.ref)
			coretest.WantCode(t, err, tt.code)
			if err != nil {
				return
			}
			got := env[tt.ref.Variable()]
			if (got == "the-value-itself") != tt.value || got == "" {
				t.Errorf("the variable is %q; the value itself is wanted: %v", got, tt.value)
			}
			if replaced := len(swaps) == 1 && swaps[0].Placeholder == got; replaced == tt.value {
				t.Errorf("the gateway replaces %+v; a placeholder is wanted: %v", swaps, !tt.value)
			}
		})
	}
}

// A secret in use is removed only by force. The sandboxes then lose it at once.
func TestRemove(t *testing.T) {
	s, o := open(t)
	ctx := coretest.As(t, coretest.Acme, key.Admin)
	create(t, s, ctx, durable.NewSecret{Name: "github", Text: "the-value-itself", Hosts: []string{"api.github.com"}})
	_, _, err := bind(t, s, sandbox.SecretRef{Name: "github"})
	coretest.OK(t, err)
	coretest.WantCode(t, s.Remove(coretest.As(t, coretest.Rival, key.Admin), "github", true), sandbox.CodeNotFound)
	coretest.WantCode(t, s.Remove(ctx, "github", false), sandbox.CodeConflict)
	if len(o.enforced) != 0 {
		t.Errorf("a refused removal changed the network of %q", o.enforced)
	}
	coretest.OK(t, s.Remove(ctx, "github", true))
	if want := []string{"sb-1"}; !slices.Equal(o.enforced, want) {
		t.Errorf("the removal changed the network of %q, want %q", o.enforced, want)
	}
}

// The password of a proxy is bound to its proxy.
func TestSealedProxy(t *testing.T) {
	s, _ := open(t)
	n := sandbox.Network{Inline: &sandbox.Profile{Proxy: &sandbox.UpstreamProxy{Address: "proxy.example:1080", Username: "me", Password: "let-me-in"}}}
	sealed, err := s.SealProxy(coretest.Acme, n)
	coretest.OK(t, err)
	if n.Inline.Proxy.Password != "let-me-in" {
		t.Error("sealing changed the request")
	}
	proxy := sealed.Inline.Proxy
	if proxy.Password != "" || strings.Contains(string(proxy.Sealed), "let-me-in") {
		t.Errorf("the sealed proxy %+v has the password", proxy)
	}
	v, err := s.OpenProxy(coretest.Acme, proxy)
	coretest.OK(t, err)
	if got := string(v.Reveal()); got != "let-me-in" {
		t.Errorf("the opened password is %q, want let-me-in", got)
	}
	elsewhere := *proxy
	elsewhere.Address = "evil.example:1080"
	for name, open := range map[string]func() (secret.Value, error){
		"for another proxy":  func() (secret.Value, error) { return s.OpenProxy(coretest.Acme, &elsewhere) },
		"for another tenant": func() (secret.Value, error) { return s.OpenProxy(coretest.Rival, proxy) },
	} {
		if v, err := open(); err == nil {
			t.Errorf("%s the password was opened: %d bytes", name, v.Len())
		}
	}
}

func create(t *testing.T, s *secrets.Service, ctx context.Context, n durable.NewSecret) {
	t.Helper()
	_, err := s.Create(ctx, n)
	coretest.OK(t, err)
}

// bind binds a secret to the sandbox sb-1 of the tenant acme.
func bind(t *testing.T, s *secrets.Service, ref sandbox.SecretRef) (env map[string]string, swaps []policy.Swap, err error) {
	t.Helper()
	var b store.Sandbox
	b.ID = "sb-1"
	coretest.Add(t, s.Core, coretest.Acme, b)
	values, err := s.Reveal(t.Context(), coretest.Acme, []sandbox.SecretRef{ref})
	coretest.OK(t, err)
	defer values.Clear()
	err = s.Store.Update(t.Context(), func(tx *store.Tx) error {
		env, swaps, err = s.Bind(t.Context(), tx, coretest.Acme, &sandbox.Spec{ID: "sb-1", Secrets: []sandbox.SecretRef{ref}}, values)
		return err
	})
	return env, swaps, err
}

func wantValue(t *testing.T, s *secrets.Service, name, want string) {
	t.Helper()
	stored, err := store.Read(t.Context(), s.Store, func(tx *store.Tx) (store.Secret, error) {
		return tx.Secrets().Get(t.Context(), coretest.Acme, name)
	})
	coretest.OK(t, err)
	v, err := s.Open(t.Context(), &stored)
	coretest.OK(t, err)
	defer v.Clear()
	if got := string(v.Reveal()); got != want {
		t.Errorf("the value of %s is %q, want %q", name, got, want)
	}
}
