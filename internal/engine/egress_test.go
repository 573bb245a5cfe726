package engine_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// bounding is a fake that enforces egress rules and records them.
type bounding struct {
	*fake.Provider
	ability enforce.Ability
	got     *sandbox.EgressRules
}

func (b *bounding) EgressAbility() enforce.Ability { return b.ability }

func (b *bounding) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	own := *spec
	b.got, own.Network = spec.Network.Plain, sandbox.Network{}
	return b.Provider.Create(ctx, &own)
}

// A provider without a gateway gets the rules that it can enforce. A sandbox
// with other rules is refused.
func TestRulesOfProviders(t *testing.T) {
	p := &bounding{fake.New(fake.Options{}), enforce.Ability{Kind: enforce.Host, NamePorts: []uint16{80, 443}}, nil}
	t.Cleanup(func() { _ = p.Close() })
	c := engine.New(engine.Config{Provider: p})
	create := func(n sandbox.Network, e plan.Egress) error {
		p.got = nil
		_, err := carryOut(t.Context(), c, sandbox.CreateRequest{Spec: sandbox.Spec{Network: n}}, acme, func(p *plan.Plan) { p.Egress = e })
		return err
	}
	hosts := sandbox.Network{Egress: []string{"api.example.com"}}
	if err := create(hosts, plan.Egress{}); err != nil || len(p.got.Allow) != 1 || p.got.Allow[0].Host != "api.example.com" || p.got.Open {
		t.Errorf("%+v %v", p.got, err)
	}
	refused := func(err error) string {
		e, ok := errors.AsType[*sandbox.Error](err)
		if !ok || e.Code != sandbox.CodeUnsupported || p.got != nil {
			t.Errorf("%v, made with %+v", err, p.got)
			return ""
		}
		return e.Rule
	}
	if rule := refused(create(sandbox.Network{Egress: []string{"api.example.com:22"}}, plan.Egress{})); rule != "egress" {
		t.Errorf("refused by %q", rule)
	}
	stored := sandbox.Profile{Rules: []sandbox.Rule{{Name: "read", Action: sandbox.Allow, Hosts: []string{"a.example"}, Methods: []string{"GET"}}}}
	if rule := refused(create(sandbox.Network{Profile: "docs"}, plan.Egress{Profile: stored})); rule != "read" {
		t.Errorf("refused by %q", rule)
	}
	limit := []policy.EgressLimit{{Name: "agents", Profile: sandbox.Profile{}}}
	if err := create(hosts, plan.Egress{EgressLimits: limit}); err != nil || p.got == nil || len(p.got.Allow) != 0 || p.got.Open {
		t.Errorf("under a limit: %+v %v", p.got, err)
	}

	// Plain processes have the network of the machine, which must be reported.
	p.ability = enforce.Ability{Kind: enforce.None}
	for mode, want := range map[policy.Unenforceable]sandbox.Code{policy.Refuse: sandbox.CodeUnsupported, policy.Narrow: sandbox.CodeUnsupported, policy.LetPass: ""} {
		err := create(hosts, plan.Egress{Unenforceable: mode})
		if sandbox.CodeOf(err) != want || (p.got != nil && p.got.Open) != (want == "") {
			t.Errorf("%s: %+v %v", mode, p.got, err)
		}
	}
}

// distant is a provider that knows its ability when it has been asked who it is, as
// another daemon.
type distant struct {
	*bounding
	err   error
	asked bool
}

func (d *distant) Binding(context.Context) (string, error) {
	d.asked = d.err == nil
	return "there", d.err
}

func (d *distant) EgressAbility() enforce.Ability {
	if !d.asked {
		return enforce.Ability{Kind: enforce.None}
	}
	return d.ability
}

// The first sandbox of another daemon can have rules. Without an answer, its error
// says so, and not that the rules are impossible.
func TestRulesOfAnotherDaemon(t *testing.T) {
	p := &distant{bounding: &bounding{fake.New(fake.Options{}), enforce.Ability{Kind: enforce.HostPort}, nil}}
	t.Cleanup(func() { _ = p.Close() })
	c := engine.New(engine.Config{Provider: p})
	create := func() error {
		_, err := carryOut(t.Context(), c, sandbox.CreateRequest{Spec: sandbox.Spec{Network: sandbox.Network{Egress: []string{"api.example.com"}}}}, acme, func(*plan.Plan) {})
		return err
	}
	p.err = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "no answer"}
	if err := create(); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("without an answer: %v, want unavailable", err)
	}
	p.err = nil
	if err := create(); err != nil || p.got == nil || len(p.got.Allow) != 1 {
		t.Errorf("%+v %v", p.got, err)
	}
}

// A secret that only Atoll's gateway could insert is refused for that reason, on
// a provider that enforces egress itself.
func TestGatewaySecretsOfProviders(t *testing.T) {
	p := &bounding{fake.New(fake.Options{}), enforce.Ability{Kind: enforce.Host, NamePorts: []uint16{80, 443}}, nil}
	t.Cleanup(func() { _ = p.Close() })
	c := engine.New(engine.Config{Provider: p})
	_, err := carryOut(t.Context(), c, sandbox.CreateRequest{Spec: sandbox.Spec{
		Network: sandbox.Network{Egress: []string{"api.example.com"}}, Secrets: []sandbox.SecretRef{{Name: "token", Env: "TOKEN", Mode: sandbox.SecretGateway}},
	}}, acme)
	if e := wantError(t, err, sandbox.CodeUnsupported); !strings.Contains(e.Message, "Atoll's egress gateway") || !strings.Contains(e.Hint, "mode env") {
		t.Errorf("it is refused with %q, hint %q; want the reason", e.Message, e.Hint)
	}
}

// templates is a provider with its own images.
type templates struct {
	driver.Provider
	created *sandbox.Spec
}

func (p *templates) CheckImage(image string) error {
	if strings.HasPrefix(image, "template:") {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "no such template"}
}

func (p *templates) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	p.created = spec
	own := *spec
	own.Image = "host"
	return p.Provider.Create(ctx, &own)
}

// noImages fails a test that fetches an image.
type noImages struct{ t *testing.T }

func (n noImages) Ensure(_ context.Context, req engine.ImageRequest) (engine.ImageConfig, error) {
	n.t.Errorf("the image %s is fetched", req.Ref)
	return engine.ImageConfig{}, errors.New("the registry does not answer")
}

func (noImages) ErrorCode(error) sandbox.Code { return sandbox.CodeUnavailable }

// Images are not fetched for a provider that has its own.
func TestImagesOfProviders(t *testing.T) {
	p := &templates{Provider: fake.New(fake.Options{})}
	t.Cleanup(func() { _ = p.Close() })
	c := engine.New(engine.Config{Provider: p, Images: noImages{t}})
	_, err := carryOut(t.Context(), c, sandbox.CreateRequest{Spec: sandbox.Spec{Image: "debian:12"}})
	wantError(t, err, sandbox.CodeUnsupported)
	sb, err := carryOut(t.Context(), c, sandbox.CreateRequest{Spec: sandbox.Spec{Image: "template:base"}})
	if err != nil || p.created.Image != "template:base" {
		t.Fatalf("made from %+v, %v; want the image as it was asked for", p.created, err)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}
