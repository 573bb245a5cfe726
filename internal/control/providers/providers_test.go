package providers_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// gives is the isolation of each provider of the tests. weak is the default.
var gives = map[string]sandbox.Isolation{"weak": sandbox.IsolationNone, "strong": sandbox.IsolationKernel, "private": sandbox.IsolationHardware}

func opened(name string) providers.Opened {
	p := &coretest.Provider{Can: driver.Facts{Provider: name, Available: true, Isolates: true, Isolation: gives[name], Capabilities: driver.Capabilities{Images: true}}}
	return providers.Opened{Name: name, Binding: name + "-1", Former: []string{name + "-0"}, Engine: engine.Config{Provider: p}}
}

// open returns a Service whose tenants may also use the provider strong.
func open(t *testing.T, nodes providers.Nodes) *providers.Service {
	t.Helper()
	cfg := providers.Config{
		Default: opened("weak"), Shared: []string{"strong"}, Machines: machines{}, Nodes: nodes,
		Open: func(_ context.Context, name string) (providers.Opened, error) {
			if _, ok := gives[name]; !ok && !strings.HasPrefix(name, "node-") {
				return providers.Opened{}, &sandbox.Error{Code: sandbox.CodeInvalid, Message: "there is no such provider"}
			}
			return opened(name), nil
		},
	}
	for name := range gives {
		cfg.Known = append(cfg.Known, catalog.Provider{Name: name, Available: true})
	}
	return providers.New(coretest.Open(t), cfg)
}

// machines has one machine, of acme.
type machines struct{}

func (machines) Known(context.Context, string) ([]catalog.Provider, error) { return nil, nil }

func (machines) Belongs(_ context.Context, name, tenant string) (machine, ok bool) {
	return name == "machine-1", tenant == coretest.Acme
}

// nodes are two nodes, of which one takes no sandboxes. chosen is the one that suits
// a sandbox.
type nodes struct{ chosen string }

func (nodes) Known() []catalog.Provider {
	return []catalog.Provider{{Name: "node-a"}, {Name: "node-b", Problem: "it is cordoned"}}
}
func (nodes) Any() bool { return true }

func (n nodes) Find(name string) (catalog.Provider, bool) {
	for _, p := range n.Known() {
		if p.Name == name {
			return p, true
		}
	}
	return catalog.Provider{}, false
}
func (nodes) Candidates(string, int64) []catalog.Facts { return nil }
func (n nodes) Choose(string, int64, sandbox.Isolation) (provider, why string) {
	return n.chosen, "it has the image"
}
func (nodes) Reload(context.Context) error               { return nil }
func (nodes) Lends(context.Context, string, string) bool { return false }

var (
	owner  = key.Peer(key.DefaultTenant, 0)
	tenant = key.Principal{Tenant: coretest.Acme, Key: "k"}
	rival  = key.Principal{Tenant: coretest.Rival, Key: "k"}
)

// Which provider makes a sandbox: the one that was asked for and no other, else the
// default, else the first that is strong enough and may be used.
func TestSelect(t *testing.T) {
	for _, tt := range []struct {
		name   string
		who    key.Principal
		spec   sandbox.Spec
		want   string
		chosen bool // it says why it is not the default
		code   sandbox.Code
	}{
		{name: "the default", who: tenant, want: "weak"},
		{name: "the default, by name", who: tenant, spec: sandbox.Spec{Provider: "weak"}, want: "weak"},
		{name: "a shared one", who: tenant, spec: sandbox.Spec{Provider: "strong"}, want: "strong"},
		{name: "one that is not shared", who: tenant, spec: sandbox.Spec{Provider: "private"}, code: sandbox.CodeDenied},
		{name: "one that is not shared, for the owner", who: owner, spec: sandbox.Spec{Provider: "private"}, want: "private"},
		{name: "one that there is not", who: owner, spec: sandbox.Spec{Provider: "none"}, code: sandbox.CodeInvalid},
		{name: "stronger than the default", who: tenant, spec: sandbox.Spec{Isolation: sandbox.IsolationKernel}, want: "strong", chosen: true},
		{name: "stronger than what is shared", who: tenant, spec: sandbox.Spec{Isolation: sandbox.IsolationHardware}, code: sandbox.CodeUnsupported},
		{name: "stronger than what is shared, for the owner", who: owner, spec: sandbox.Spec{Isolation: sandbox.IsolationHardware}, want: "private", chosen: true},
		{name: "stronger than the one that was asked for", who: owner, spec: sandbox.Spec{Provider: "weak", Isolation: sandbox.IsolationKernel}, code: sandbox.CodeUnsupported},
		{name: "the machine of another tenant", who: rival, spec: sandbox.Spec{Provider: "machine-1"}, code: sandbox.CodeInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			be, chosen, err := open(t, nil).Select(t.Context(), tt.who, &tt.spec)
			coretest.WantCode(t, err, tt.code)
			if err != nil {
				return
			}
			if be.Name != tt.want || (chosen != "") != tt.chosen {
				t.Errorf("it is made by %s (%q), want %s, and why: %v", be.Name, chosen, tt.want, tt.chosen)
			}
		})
	}
}

// With nodes, a sandbox without a provider is made on one of them, and what is only
// on this machine stays here.
func TestSelectNode(t *testing.T) {
	for _, tt := range []struct {
		name   string
		chosen string
		spec   sandbox.Spec
		here   bool
		want   string
		code   sandbox.Code
	}{
		{name: "the one that suits", chosen: "node-a", want: "node-a"},
		{name: "by name", chosen: "node-b", spec: sandbox.Spec{Provider: "node-a"}, want: "node-a"},
		{name: "one that takes none, by name", spec: sandbox.Spec{Provider: "node-b"}, code: sandbox.CodeUnavailable},
		{name: "none is strong enough", spec: sandbox.Spec{Isolation: sandbox.IsolationHardware}, code: sandbox.CodeUnsupported},
		{name: "made from what is here only", chosen: "node-a", here: true, want: "weak"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t, nodes{tt.chosen})
			if tt.here {
				s.KeepHere(&tt.spec)
			}
			be, _, err := s.Select(t.Context(), tenant, &tt.spec)
			coretest.WantCode(t, err, tt.code)
			if err == nil && be.Name != tt.want {
				t.Errorf("it is made by %s, want %s", be.Name, tt.want)
			}
		})
	}
}

// A sandbox belongs to the account or address that made it. That this daemon uses
// another one proves nothing about it.
func TestOf(t *testing.T) {
	for _, tt := range []struct {
		name, provider, binding string
		code                    sandbox.Code
	}{
		{"of this account", "weak", "weak-1", ""},
		{"recorded by an early version", "weak", "", ""},
		{"of this account, by its former name", "weak", "weak-0", ""},
		{"of another account", "weak", "weak-2", sandbox.CodeUnavailable},
		{"of a provider that cannot be opened", "none", "none-1", sandbox.CodeUnavailable},
	} {
		var b store.Sandbox
		b.Name, b.Provider, b.Binding = "web", tt.provider, tt.binding
		_, err := open(t, nil).Of(t.Context(), &b)
		if sandbox.CodeOf(err) != tt.code || (err == nil) != (tt.code == "") {
			t.Errorf("%s: the error is %v, want the code %q", tt.name, err, tt.code)
		}
		if known, ok := errors.AsType[*sandbox.Error](err); ok && (known.Hint == "" || known.Subject != "web") {
			t.Errorf("%s: the error is about %q with the hint %q, want web and what to do", tt.name, known.Subject, known.Hint)
		}
	}
}
