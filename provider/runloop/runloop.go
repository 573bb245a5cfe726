// Package runloop makes sandboxes with the service Runloop, which calls them
// devboxes.
//
// The service makes, lists, suspends, resumes and ends sandboxes over REST.
// Inside, Atoll's own guest does the work. The provider uploads it, listens to the
// output of a command that joins it, and sends it input with further commands, all
// as text.
//
// It is tested with a fake service that the official SDK accepts, not with the
// real service.
package runloop

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// Name is the name of this provider.
const Name = "runloop"

// Options configure the connection to the service.
type Options struct {
	hosted.Connection
	// Blueprint is the name of the service's blueprint for sandboxes that name no
	// image. Empty: the service's default.
	Blueprint string `json:"blueprint"`
}

var opening = hosted.Opening{
	Name: Name, Version: "v1", Key: "RUNLOOP_API_KEY", URL: "RUNLOOP_BASE_URL", Public: "https://api.runloop.ai", ParseError: parseError,
}

// longest is how long a sandbox may live.
const longest = 48 * time.Hour

// FromEnvironment returns the options from the environment variables of the
// official SDK, and from further variables.
func FromEnvironment(dir string, lookup func(string) string) Options {
	return Options{Connection: opening.Connection(dir, lookup), Blueprint: lookup("ATOLL_RUNLOOP_BLUEPRINT")}
}

// Provider makes sandboxes with the service. Its methods may be called
// concurrently.
type Provider struct {
	*hosted.Core
	*hosted.Keeper
	opts Options
	api  *api
}

var (
	_ driver.Provider       = (*Provider)(nil)
	_ driver.EgressEnforcer = (*Provider)(nil)
	_ driver.ImageChecker   = (*Provider)(nil)
)

// New opens the provider. It makes no network call. It removes records of
// sandboxes that ended long ago.
func New(opts Options) (*Provider, error) {
	login, err := opening.Login(&opts.Connection)
	if err != nil {
		return nil, err
	}
	a := &api{login}
	p := &Provider{opts: opts, api: a, Core: login.Core(a)}
	p.OpenInside, p.Expires, p.Reboots, p.Resting = p.openInside, true, true, []string{running, suspended}
	p.Extend = func(in *hosted.Instance) hosted.Made { return hosted.Savable{Instance: in} }
	p.Keeper = p.Keep(&hosted.Keeper{Saver: saver{p}})
	return p, p.Start(opts.Executable)
}

// Probe implements driver.Provider. It checks the key with the service.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	fixed := driver.Limit{Why: "the blueprint decides", Fixed: true}
	return p.api.Facts(ctx, p.Core, &hosted.Description{
		Limits: map[string]driver.Limit{
			"cpus": fixed, "memory": fixed, "disk": fixed, "pids": fixed, "lifetime": {Holds: true, By: "Atoll and the service"},
		},
	}, func(ctx context.Context) error {
		_, err := p.api.page(ctx, url.Values{"limit": {"1"}})
		return err
	})
}

// CheckImage implements driver.ImageChecker.
func (p *Provider) CheckImage(image string) error { return p.CheckTemplate(image) }

// EgressAbility implements driver.EgressEnforcer. The service matches names on
// the usual ports, and addresses on all ports.
func (*Provider) EgressAbility() enforce.Ability {
	return enforce.Ability{Kind: enforce.Host, NamePorts: []uint16{80, 443}, Wildcards: true}
}

// Create implements driver.Provider. Names are not unique, so a sandbox whose
// answer is lost is found by its metadata.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	blueprint, ok := hosted.Template(spec.Image, p.opts.Blueprint)
	if !ok {
		return nil, p.CheckImage(spec.Image)
	}
	return p.make(ctx, spec, creation{Blueprint: blueprint})
}

// make makes a sandbox. c says from what.
func (p *Provider) make(ctx context.Context, spec *sandbox.Spec, c creation) (driver.Instance, error) {
	if err := p.Check(spec); err != nil {
		return nil, err
	}
	rules, ok := rulesFor(spec.Network.Plain)
	if !ok {
		return nil, p.Unsupported("network", "the service knows no IPv6 addresses", "leave them out")
	}
	life := spec.Lifetime.HardTimeout()
	if life > longest {
		return nil, p.Unsupported("lifetime", "the service ends a sandbox after 48 hours", "ask for a shorter lifetime, or for none")
	}
	scope, err := p.Scope()
	if err != nil {
		return nil, err
	}
	c.Name, c.Metadata = "atoll-"+string(spec.ID), hosted.Metadata(scope, spec)
	c.Launch.KeepAlive = hosted.Seconds(cmp.Or(life, longest))
	var b apiSandbox
	return p.Make(ctx, &hosted.Creation{
		Spec: spec, Life: life,
		Prepare: func(ctx context.Context) (err error) {
			c.Launch.Policy, err = p.api.policy(ctx, rules)
			return err
		},
		Ask: func(ctx context.Context) (hosted.Sandbox, error) {
			b, err = p.request(ctx, scope, spec.ID, &c)
			return b.describe(), err
		},
		Confirm: func() error {
			switch {
			case b.Launch.Policy != c.Launch.Policy:
				return p.ProtocolError("the service does not confirm the network of the sandbox")
			case b.Launch.KeepAlive != c.Launch.KeepAlive:
				return p.ProtocolError("the service does not confirm the lifetime of the sandbox")
			case b.Snapshot != c.Snapshot:
				return p.ProtocolError("the service does not confirm the snapshot of the sandbox")
			}
			return nil
		},
	})
}

// request requests a sandbox and waits until it runs.
func (p *Provider) request(ctx context.Context, scope string, id sandbox.ID, c *creation) (b apiSandbox, err error) {
	err = p.api.Call(ctx, http.MethodPost, "/v1/devboxes", c, nil)
	if hosted.Refused(err) {
		return b, err
	}
	b, err = hosted.Search(ctx, &p.api.Client, err, func() (apiSandbox, error) {
		found, err := p.api.List(ctx, scope, id)
		for _, one := range found {
			if err == nil && one.Scope == scope && one.Sandbox == id && one.State != sandbox.Gone {
				return p.api.get(ctx, one.ID)
			}
		}
		return apiSandbox{}, cmp.Or(err, hosted.ErrNone)
	})
	if err != nil {
		return b, err
	}
	now, err := p.Settled(ctx, id, b.ID)
	if err == nil && now.Status != running {
		err = p.ProtocolError("the new sandbox is " + now.Status)
	}
	return b, err
}
