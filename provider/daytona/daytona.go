// Package daytona makes sandboxes with the service Daytona.
//
// The service makes, lists, stops and ends sandboxes over REST. Inside, Atoll's
// own guest does the work. The provider uploads it, listens to the output of a
// command in a session of the sandbox's toolbox that joins it, and sends it
// input with further commands, all as text.
//
// It is tested with a fake service that the official SDK accepts, not with the
// real service.
package daytona

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// Name is the name of this provider.
const Name = "daytona"

// Options configure the connection to the service. The key is sent to the API,
// and to the toolboxes that the API names.
type Options struct {
	hosted.Connection
	// Target is the region of sandboxes. Empty: the account's default.
	Target string `json:"target"`
	// Snapshot is the service's snapshot for sandboxes with the image "host".
	// Empty: the account's default.
	Snapshot string `json:"snapshot"`
}

var opening = hosted.Opening{
	Name: Name, Version: "v1", Key: "DAYTONA_API_KEY", URL: "DAYTONA_API_URL", Public: "https://app.daytona.io/api", ParseError: parseError,
}

// FromEnvironment returns the options from the environment variables of the
// official SDK, and from further variables.
func FromEnvironment(dir string, lookup func(string) string) Options {
	return Options{Connection: opening.Connection(dir, lookup), Target: lookup("DAYTONA_TARGET"), Snapshot: lookup("DAYTONA_SNAPSHOT")}
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
	a, bearer := &api{login}, login.Sign
	a.Sign = func(h http.Header) {
		bearer(h)
		h.Set("X-Daytona-Source", "atoll")
	}
	p := &Provider{opts: opts, api: a, Core: login.Core(a)}
	p.OpenInside, p.Expires, p.Reboots, p.Resting = p.openInside, true, true, []string{started, stopped, paused, archived}
	p.Extend = func(in *hosted.Instance) hosted.Made { return hosted.Savable{Instance: in} }
	p.Keeper = p.Keep(&hosted.Keeper{Saver: saver{p}})
	return p, p.Start(opts.Executable)
}

// Probe implements driver.Provider. It checks the key with the service.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	fixed := driver.Limit{Why: "the service's snapshot decides", Fixed: true}
	return p.api.Facts(ctx, p.Core, &hosted.Description{
		Limits: map[string]driver.Limit{
			"cpus": fixed, "memory": fixed, "disk": fixed, "pids": fixed, "lifetime": {Holds: true, By: "Atoll, and the service at the end of the minute"},
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

// network adds the permitted destinations to a request.
func (c *creation) network(rules *sandbox.EgressRules) {
	if rules != nil && rules.Open {
		return
	}
	var names, prefixes []string
	if rules != nil {
		for _, t := range rules.Allow {
			if t.Host != "" {
				names = append(names, t.Host)
			} else {
				prefixes = append(prefixes, t.Prefix.String())
			}
		}
	}
	c.Domains, c.Prefixes = strings.Join(names, ","), strings.Join(prefixes, ",")
	c.BlockAll = c.Domains == "" && c.Prefixes == ""
}

// Create implements driver.Provider. The name is unique, so a sandbox whose
// answer is lost is found by it.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	snapshot, ok := hosted.Template(spec.Image, p.opts.Snapshot)
	if !ok {
		return nil, p.CheckImage(spec.Image)
	}
	return p.make(ctx, spec, snapshot, nil)
}

// make makes a sandbox from a snapshot. begin prepares the copy of a sandbox.
func (p *Provider) make(ctx context.Context, spec *sandbox.Spec, snapshot string, begin func(context.Context, hosted.Inside) error) (driver.Instance, error) {
	if err := p.Check(spec); err != nil {
		return nil, err
	}
	scope, err := p.Scope()
	if err != nil {
		return nil, err
	}
	never := 0
	c := creation{
		Name: names.Of(scope, spec.ID), Snapshot: snapshot, Target: p.opts.Target, Labels: hosted.Metadata(scope, spec),
		AutoStop: &never, AutoPause: &never,
	}
	life := spec.Lifetime.HardTimeout()
	if life > 0 {
		c.TTL = int64((life + time.Minute - 1) / time.Minute)
	}
	c.network(spec.Network.Plain)
	var b apiSandbox
	return p.Make(ctx, &hosted.Creation{
		Spec: spec, Life: life, Begin: begin,
		Ask: func(ctx context.Context) (hosted.Sandbox, error) {
			b, err = p.request(ctx, spec.ID, &c)
			return b.describe(), err
		},
		Confirm: func() error {
			if b.BlockAll != c.BlockAll || b.Domains != c.Domains || b.Prefixes != c.Prefixes {
				return p.ProtocolError("the service does not confirm the network of the sandbox")
			}
			if life > 0 && b.Ends.IsZero() {
				return p.ProtocolError("the service does not confirm the lifetime of the sandbox")
			}
			return nil
		},
	})
}

// request requests a sandbox and waits until it runs.
func (p *Provider) request(ctx context.Context, id sandbox.ID, c *creation) (b apiSandbox, err error) {
	err = p.api.Call(ctx, http.MethodPost, "/sandbox", c, nil)
	if hosted.Refused(err) {
		return b, err
	}
	if b, err = hosted.Search(ctx, &p.api.Client, err, func() (apiSandbox, error) { return p.api.named(ctx, c.Name) }); err != nil {
		return b, err
	}
	now, err := p.Settled(ctx, id, b.ID)
	if err == nil && now.Status != started {
		err = p.ProtocolError("the new sandbox is " + now.Status)
	}
	if err == nil {
		b, err = p.api.named(ctx, c.Name)
	}
	return b, err
}
