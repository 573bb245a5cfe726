package daemon_test

import (
	"context"
	"slices"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/providerset"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// service is a provider with separate sandboxes in every account.
type service struct {
	accounts map[string]*fake.World
	loose    bool
}

func (s *service) entry(name, account string) providerset.Entry {
	if s.accounts[account] == nil {
		s.accounts[account] = new(fake.World)
	}
	return providerset.Entry{Name: name, Open: func(providerset.Host) (driver.Provider, error) {
		return fake.New(fake.Options{World: s.accounts[account], Binding: account, Limited: !s.loose}), nil
	}}
}

func newService() *service { return &service{accounts: map[string]*fake.World{}} }

// with starts a daemon with providers. The first is the default.
func with(t *testing.T, m *daemontest.Machine, entries ...providerset.Entry) (*atoll.Client, *daemon.Daemon) {
	t.Helper()
	d := m.Start(t, func(o *daemon.Options) { o.Providers = entries })
	return daemontest.Client(t, d), d
}

func wantState(t *testing.T, c *atoll.Client, name string, want sandbox.State) sandbox.Sandbox {
	t.Helper()
	s, err := c.Get(t.Context(), name)
	if err != nil || s.Info().State != want {
		t.Fatalf("%s is %s (%s), %v, want %s", name, s.Info().State, s.Info().Reason, err, want)
	}
	return s.Info()
}

// A daemon started with another default provider still manages the sandboxes of
// the former one.
func TestAnotherDefaultProvider(t *testing.T) {
	m, s := daemontest.New(t), newService()
	one, two := s.entry("one", "here"), s.entry("two", "there")
	c, d := with(t, m, one, two)
	if _, err := c.Create(t.Context(), sandbox.Spec{Name: "g1"}, atoll.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	mustClose(t, d)

	c, d = with(t, m, two, one)
	if info := wantState(t, c, "g1", sandbox.Running); info.Provider != "one" {
		t.Errorf("its provider is %s, want one", info.Provider)
	}
	g1, err := c.Get(t.Context(), "g1")
	if err != nil {
		t.Fatal(err)
	}
	if res, err := g1.Run(t.Context(), sandbox.Command{Shell: "echo lives"}, atoll.RunOptions{}); err != nil || string(res.Stdout) != "lives\n" {
		t.Errorf("%+v %v", res, err)
	}
	for name, provider := range map[string]string{"g2": "", "g3": "one"} {
		made, err := c.Create(t.Context(), sandbox.Spec{Name: name, Provider: provider}, atoll.CreateOptions{})
		want := map[string]string{"": "two", "one": "one"}[provider]
		if err != nil || made.Info().Provider != want {
			t.Errorf("%s was made by %s, %v, want %s", name, made.Info().Provider, err, want)
		}
	}
	if _, err := c.Create(t.Context(), sandbox.Spec{Provider: "three"}, atoll.CreateOptions{}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a provider that is not there: %v", err)
	}
	mustClose(t, d)

	// Without the provider the sandbox is lost, and nothing is concluded.
	c, d = with(t, m, two)
	wantState(t, c, "g1", sandbox.Lost)
	if err := c.Remove(t.Context(), "g1"); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("removing it: %v, want unavailable", err)
	}
	mustClose(t, d)

	c, _ = with(t, m, one, two)
	wantState(t, c, "g1", sandbox.Running)
	wantState(t, c, "g2", sandbox.Running)
	if err := c.Remove(t.Context(), "g1"); err != nil {
		t.Fatal(err)
	}
	if n := count(t, s.accounts["here"]); n != 1 {
		t.Errorf("%d sandboxes are left of provider one, want g3 only", n)
	}
}

// A key of another account proves nothing about a sandbox: the sandbox is lost
// and keeps its name until its own account is used again.
func TestAnotherAccount(t *testing.T) {
	m, s := daemontest.New(t), newService()
	c, d := with(t, m, s.entry("hosted", "ours"))
	if _, err := c.Create(t.Context(), sandbox.Spec{Name: "g1"}, atoll.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	mustClose(t, d)

	c, d = with(t, m, s.entry("hosted", "theirs"))
	wantState(t, c, "g1", sandbox.Lost)
	if err := c.Remove(t.Context(), "g1"); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("removing it: %v, want unavailable", err)
	}
	if _, err := c.Create(t.Context(), sandbox.Spec{Name: "g1"}, atoll.CreateOptions{}); sandbox.CodeOf(err) != sandbox.CodeAlreadyExists {
		t.Errorf("taking its name: %v, want already_exists", err)
	}
	g1, err := c.Get(t.Context(), "g1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g1.Run(t.Context(), sandbox.Command{Shell: "true"}, atoll.RunOptions{}); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("running in it: %v, want unavailable", err)
	}
	mustClose(t, d)

	c, _ = with(t, m, s.entry("hosted", "ours"))
	wantState(t, c, "g1", sandbox.Running)
	if err := c.Remove(t.Context(), "g1"); err != nil {
		t.Fatal(err)
	}
	if n := count(t, s.accounts["ours"]); n != 0 {
		t.Errorf("%d sandboxes are left", n)
	}
}

// Callers who do not own the machine get the default provider and the shared
// ones.
func TestProvidersOfOthers(t *testing.T) {
	m, s := daemontest.New(t), newService()
	d := m.Start(t, func(o *daemon.Options) {
		o.Providers = []providerset.Entry{s.entry("one", "1"), s.entry("two", "2"), s.entry("three", "3")}
		o.SharedProviders = []string{"two"}
	})
	owner := daemontest.Client(t, d)
	key, err := owner.Admin().CreateKey(t.Context(), operator.NewKey{Name: "ci", Tenant: "acme", Verbs: []string{"write"}})
	if err != nil {
		t.Fatal(err)
	}
	other := daemontest.Bearer(t, d, key.Token)
	for name, want := range map[string]sandbox.Code{"": "", "one": "", "two": "", "three": sandbox.CodeDenied} {
		if _, err := other.Create(t.Context(), sandbox.Spec{Provider: name}, atoll.CreateOptions{}); sandbox.CodeOf(err) != want {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
	if _, err := owner.Create(t.Context(), sandbox.Spec{Provider: "three"}, atoll.CreateOptions{}); err != nil {
		t.Errorf("the owner: %v", err)
	}
	all, err := owner.Providers(t.Context())
	all = slices.DeleteFunc(all, func(p catalog.Provider) bool { return !p.Descriptor.Driver.Available })
	if err != nil || len(all) != 3 || !all[0].Default || all[1].Default || all[0].Binding != "1" || !all[0].Available || !all[0].Capabilities["files"] {
		t.Errorf("%+v %v", all, err)
	}
}

// Limits that the provider does not enforce are reported, and do not satisfy a
// quota.
func TestLimitsOfProviders(t *testing.T) {
	m, s := daemontest.New(t), newService()
	loose := newService()
	loose.loose = true
	c, _ := with(t, m, s.entry("strict", "1"), loose.entry("loose", "2"))
	asked := sandbox.Resources{Memory: 64 << 20}
	strict, err := c.Create(t.Context(), sandbox.Spec{Resources: asked}, atoll.CreateOptions{})
	if err != nil || len(strict.Info().Limits) != 0 || strict.Info().Resources.Memory != 64<<20 {
		t.Errorf("%+v %v", strict.Info(), err)
	}
	made, err := c.Create(t.Context(), sandbox.Spec{Name: "b", Provider: "loose", Resources: asked}, atoll.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for what, info := range map[string]sandbox.Sandbox{"created": made.Info(), "read": wantState(t, c, "b", sandbox.Running), "listed": listed(t, c, "b")} {
		if l, ok := info.Limits["memory"]; !ok || l.Enforced || l.Why == "" || len(info.Limits) != 1 {
			t.Errorf("%s: limits %+v", what, info.Limits)
		}
	}
	unasked, err := c.Create(t.Context(), sandbox.Spec{Provider: "loose"}, atoll.CreateOptions{})
	if err != nil || unasked.Info().Resources.Memory != 0 || len(unasked.Info().Limits) != 0 {
		t.Errorf("without a limit it shows %+v, %v", unasked.Info(), err)
	}
	if _, err := c.Admin().UpdateTenant(t.Context(), "default", operator.TenantChange{Limits: &operator.LimitsChange{Memory: new(int64(1 << 30))}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(t.Context(), sandbox.Spec{Provider: "loose", Resources: asked}, atoll.CreateOptions{}); sandbox.CodeOf(err) != sandbox.CodeUnsupported {
		t.Errorf("under a quota: %v, want unsupported", err)
	}
}

func listed(t *testing.T, c *atoll.Client, name string) sandbox.Sandbox {
	t.Helper()
	for info, err := range c.List(t.Context(), atoll.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if info.Name == name {
			return info
		}
	}
	t.Fatalf("%s is not listed", name)
	return sandbox.Sandbox{}
}

func count(t *testing.T, w *fake.World) (n int) {
	t.Helper()
	p := fake.New(fake.Options{World: w})
	defer p.Close()
	for _, err := range p.List(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

func mustClose(t *testing.T, d *daemon.Daemon) {
	t.Helper()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}
