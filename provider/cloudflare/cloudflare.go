// Package cloudflare makes sandboxes with a bridge of Cloudflare's Sandbox SDK:
// a Worker of the user's account, or another Atoll.
//
// The bridge has no list of sandboxes, and any request makes the one that it
// names. So the name follows from Atoll's ID, and a file inside, the mark, says
// which sandbox it is: without the mark it is a new and empty one. Every command
// checks the mark first.
//
// Inside, Atoll's own guest does the work. The provider uploads it and talks to
// it with commands, because they have no input.
//
// It is tested with Atoll's own bridge, not with Cloudflare's.
package cloudflare

import (
	"context"
	"net/http"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// Name is the name of this provider.
const Name = "cloudflare"

// Options configure the connection to the bridge.
type Options struct{ hosted.Connection }

var opening = hosted.Opening{
	Name: Name, Version: "v1", Key: "CLOUDFLARE_SANDBOX_API_KEY", URL: "CLOUDFLARE_SANDBOX_WORKER_URL", ParseError: parseError,
}

// FromEnvironment returns the options from the environment variables of OpenAI's
// clients, and from further variables: the key's file and command.
func FromEnvironment(dir string, lookup func(string) string) Options {
	return Options{opening.Connection(dir, lookup)}
}

// Provider makes sandboxes with a bridge. Its methods may be called
// concurrently.
type Provider struct {
	*hosted.Core
	api *api
}

var (
	_ driver.Provider     = (*Provider)(nil)
	_ driver.ImageChecker = (*Provider)(nil)
)

// New opens the provider. It makes no network call. It removes records of
// sandboxes that ended long ago.
func New(opts Options) (*Provider, error) {
	login, err := opening.Login(&opts.Connection)
	if err != nil {
		return nil, err
	}
	a := &api{Login: login, gates: map[string]*gate{}}
	p := &Provider{api: a, Core: login.Core(a)}
	p.Expires, p.Marks, p.Resting = true, true, []string{running}
	a.sandboxes, a.work, a.conns = p.Records, &p.Work, &p.Conns
	p.OpenInside = func(b hosted.Sandbox) hosted.Inside { return a.enter(p.Open, b.Sandbox, b.ID) }
	return p, p.Start(opts.Executable)
}

// Probe implements driver.Provider. It checks the key with the bridge, and makes
// no sandbox.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	fixed := driver.Limit{Why: "the Worker's configuration decides", Fixed: true}
	return p.api.Facts(ctx, p.Core, &hosted.Description{
		Limits: map[string]driver.Limit{"cpus": fixed, "memory": fixed, "disk": fixed, "pids": fixed, "lifetime": {Holds: true, By: "Atoll"}},
		Notes: []driver.Finding{{
			Severity: driver.Note, Subject: "sleep",
			Message: "a sandbox of Cloudflare that is not used for ten minutes loses its files and counts as gone",
		}, {
			Severity: driver.Note, Subject: "network", Message: "the bridge has no rules for the network: the Worker's configuration decides what a sandbox reaches",
		}},
		Tested: "tested against Atoll's own bridge, not against Cloudflare's",
	}, func(ctx context.Context) error {
		return p.api.Call(ctx, http.MethodGet, "/v1/openapi.json", nil, new(any))
	})
}

// CheckImage implements driver.ImageChecker: the Worker has one image.
func (p *Provider) CheckImage(image string) error {
	if image == "" || image == "host" {
		return nil
	}
	return p.Unsupported(image, "the Worker's configuration decides the image of its sandboxes", "leave the image out")
}

// Create implements driver.Provider.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	if err := p.CheckImage(spec.Image); err != nil {
		return nil, err
	}
	if err := p.Check(spec); err != nil {
		return nil, err
	}
	if rules := spec.Network.Plain; rules != nil && !rules.Open {
		return nil, p.Unsupported("network", "the bridge enforces no rules for the network", "leave the network out")
	}
	scope, err := p.Scope()
	if err != nil {
		return nil, err
	}
	m := newMark(scope, spec.ID)
	return p.Make(ctx, &hosted.Creation{
		Spec: spec, Life: spec.Lifetime.HardTimeout(),
		Ask: func(ctx context.Context) (hosted.Sandbox, error) { return p.request(ctx, m) },
	})
}

// request makes a sandbox by writing its mark, which succeeds once. If the
// answer is lost, the mark tells whether it was written. On an error the result
// names what may have been made: a request for its name can always be removed.
func (p *Provider) request(ctx context.Context, m mark) (hosted.Sandbox, error) {
	err := p.api.write(ctx, p.Open, m)
	if hosted.Refused(err) {
		return m.sandbox(), err
	}
	b, err := hosted.Search(ctx, &p.api.Client, err, func() (hosted.Sandbox, error) {
		b, err := p.api.look(ctx, m.id)
		if err == nil && b.ID != m.sandbox().ID {
			err = p.ProtocolError("the new sandbox has the mark of another one")
		}
		return b, err
	})
	if err != nil {
		b = m.sandbox()
	}
	return b, err
}
