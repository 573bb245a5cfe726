package policies_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/policies"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// files are the policies of the machine. changed notes how often they were
// applied to the networks of sandboxes, and cannot is why that fails.
type files struct {
	text    string
	changed int
	cannot  error
}

func open(t *testing.T, text string) (*policies.Service, *files) {
	t.Helper()
	f := &files{text: text}
	s := policies.New(coretest.Open(t), policies.Config{
		Files: policies.Files{Source: "/etc/atoll/caps.yaml", Load: func() (*policyset.Set, error) {
			return policyset.Parse(map[string][]byte{"caps.yaml": []byte(f.text)})
		}},
		Changed: func(context.Context) error { f.changed++; return f.cannot },
	})
	coretest.OK(t, s.Load(t.Context()))
	return s, f
}

const (
	small = "policies:\n  - name: small\n    tenants: [acme]\n    cpus: 2\n    lifetime: 1h\n    mounts: [/srv/data]\n"
	large = "policies:\n  - name: large\n    tenants: [acme]\n    cpus: 8\n"
	wrong = "policies:\n  - name: small\n    cpus: many\n"
)

// New policies are in force at once. Invalid ones change nothing, and the owner
// of the machine sees why.
func TestLoad(t *testing.T) {
	s, f := open(t, small)
	first := s.Set().Digest()
	coretest.OK(t, s.Load(t.Context()))
	if f.changed != 1 {
		t.Errorf("the same policies were applied %d times, want once", f.changed)
	}

	f.text = wrong
	if err := s.Load(t.Context()); err == nil || policies.InForce(err) {
		t.Errorf("loading invalid policies returned %v, want an error that leaves the old ones in force", err)
	}
	if got := s.Set().Digest(); got != first {
		t.Errorf("the policies in force are now %s, want still %s", got, first)
	}
	seen, err := s.Get(coretest.Owner(t))
	coretest.OK(t, err)
	if seen.Problem == "" || seen.Source == "" {
		t.Errorf("the owner of the machine sees the problem %q of %q, want both", seen.Problem, seen.Source)
	}

	f.text, f.cannot = large, errors.New("the gateway is down")
	if err := s.Load(t.Context()); !policies.InForce(err) {
		t.Errorf("loading returned %v, want an error that says that the new policies are in force", err)
	}
	if got := s.Set().Digest(); got == first {
		t.Error("the old policies are still in force, want the new ones")
	}
}

// Tenants see the policies for them, and no file names.
func TestGet(t *testing.T) {
	s, _ := open(t, small)
	for _, tt := range []struct {
		name   string
		ctx    context.Context
		count  int
		source bool
	}{
		{"the owner of the machine", coretest.Owner(t), 1, true},
		{"a tenant with a policy", coretest.As(t, coretest.Acme, key.Read), 1, false},
		{"a tenant without", coretest.As(t, coretest.Rival, key.Read), 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := s.Get(tt.ctx)
			coretest.OK(t, err)
			if len(got.Policies) != tt.count || (got.Source != "") != tt.source {
				t.Errorf("%d policies of %q are shown, want %d, and the source: %v", len(got.Policies), got.Source, tt.count, tt.source)
			}
		})
	}
	_, err := s.Reload(coretest.As(t, coretest.Acme, key.Admin))
	coretest.WantCode(t, err, sandbox.CodeDenied)
	_, err = policies.New(coretest.Open(t), policies.Config{}).Reload(coretest.Owner(t))
	coretest.WantCode(t, err, sandbox.CodeUnsupported)
}

// act is the action whose refusal is recorded.
func act(tenant string) audit.Action {
	return audit.Action{Tenant: tenant, Op: ops.SandboxUpdate, Subject: "web"}
}

// A change is checked for what it changes. What the sandbox had before the
// policies is no reason to refuse it.
func TestPermitChange(t *testing.T) {
	hour, day := time.Hour, 24*time.Hour
	s, _ := open(t, small)
	for _, tt := range []struct {
		name   string
		tenant string
		c      sandbox.Change
		code   sandbox.Code
	}{
		{"nothing", coretest.Acme, sandbox.Change{}, ""},
		{"fewer processors", coretest.Acme, sandbox.Change{Resources: sandbox.Resources{CPUs: 1}}, ""},
		{"too many processors", coretest.Acme, sandbox.Change{Resources: sandbox.Resources{CPUs: 3}}, sandbox.CodeDenied},
		{"too many processors, without a policy", coretest.Rival, sandbox.Change{Resources: sandbox.Resources{CPUs: 3}}, ""},
		{"memory, while it has too many processors", coretest.Acme, sandbox.Change{Resources: sandbox.Resources{Memory: 1 << 30}}, ""},
		{"labels, while it has too many processors", coretest.Acme, sandbox.Change{Labels: map[string]*string{"team": new("a")}}, sandbox.CodeDenied},
		{"a lifetime, of which a part is over", coretest.Acme, sandbox.Change{Lifetime: sandbox.LifetimeChange{Timeout: &hour}}, sandbox.CodeDenied},
		{"a long lifetime", coretest.Acme, sandbox.Change{Lifetime: sandbox.LifetimeChange{Timeout: &day}}, sandbox.CodeDenied},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b store.Sandbox
			b.Tenant, b.Name, b.Resources, b.Created = tt.tenant, "web", sandbox.Resources{CPUs: 4}, coretest.Now.Add(-time.Minute)
			err := s.PermitChange(t.Context(), act(tt.tenant), &b, &tt.c, coretest.Now)
			coretest.WantCode(t, err, tt.code)
			if known, ok := errors.AsType[*sandbox.Error](err); ok && !strings.Contains(known.Rule, "small") {
				t.Errorf("the refusal names the rule %q, want one of small", known.Rule)
			}
		})
	}
}

// Policies count a lifetime from the creation of a sandbox.
func TestPermitUntil(t *testing.T) {
	s, _ := open(t, small)
	var b store.Sandbox
	b.Tenant, b.Created = coretest.Acme, coretest.Now.Add(-30*time.Minute)
	coretest.OK(t, s.PermitUntil(t.Context(), act(coretest.Acme), &b, coretest.Now.Add(30*time.Minute)))
	coretest.WantCode(t, s.PermitUntil(t.Context(), act(coretest.Acme), &b, coretest.Now.Add(31*time.Minute)), sandbox.CodeDenied)
}

// A link to a directory that may not be mounted may not be mounted either.
func TestPermitFollowsLinks(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	coretest.OK(t, err)
	allowed, secret := filepath.Join(dir, "data"), filepath.Join(dir, "secret")
	for _, d := range []string{allowed, secret} {
		coretest.OK(t, os.Mkdir(d, 0o700))
	}
	coretest.OK(t, os.Symlink(secret, filepath.Join(allowed, "link")))
	s, _ := open(t, "policies:\n  - name: data\n    mounts: ["+allowed+"]\n")
	for source, want := range map[string]sandbox.Code{
		allowed:                 "",
		allowed + "/new":        "",
		allowed + "/link":       sandbox.CodeDenied,
		allowed + "/link/below": sandbox.CodeDenied,
		allowed + "/../secret":  sandbox.CodeDenied,
		secret:                  sandbox.CodeDenied,
	} {
		spec := sandbox.Spec{Image: "debian:12", Mounts: []sandbox.Mount{{Source: source, Target: "/data"}}}
		if err := s.Permit(t.Context(), act(coretest.Acme), &spec, []string{"debian:12"}); sandbox.CodeOf(err) != want {
			t.Errorf("mounting %s: the error is %v, want the code %q", strings.TrimPrefix(source, dir), err, want)
		}
	}
}
