// Package e2b makes sandboxes with a service that speaks E2B's API: another
// Atoll, E2B itself, or a compatible service.
//
// The service makes, lists and ends sandboxes over REST. Inside, Atoll's own
// guest does the work. The provider uploads it into a new sandbox, unless the
// template already has it, starts it as a process over the service's Connect
// API, and talks to it over the standard input and output of that process. This
// way commands, files, ports and watching satisfy the driver contract, which
// E2B's own calls do not.
//
// The conformance suite tests it with Atoll's own E2B API, not with the hosted
// service.
package e2b

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
)

// Name is the name of this provider.
const Name = "e2b"

// Options configure the connection to the service. Without URL, the address of
// the API is https://api.DOMAIN.
type Options struct {
	hosted.Connection
	// Domain is the service's domain. Empty: e2b.app.
	Domain string `json:"-"`
	// SandboxURL is the address of all sandboxes. Empty: derived from the domain,
	// as E2B's clients do.
	SandboxURL string `json:"-"`
	// Template is the service's template for sandboxes with the image "host".
	// Empty: base.
	Template string `json:"template"`
	// Lifetime is the default lifetime of sandboxes, because the service requires
	// one. Zero: an hour, which every account may use.
	Lifetime time.Duration `json:"-"`
}

const publicDomain = "e2b.app"

var opening = hosted.Opening{Name: Name, Version: "v2", Key: "E2B_API_KEY", URL: "E2B_API_URL", Public: "https://api." + publicDomain, ParseError: parseError}

// FromEnvironment returns the options from the environment variables of E2B's
// own clients, and from the key's file or command.
func FromEnvironment(dir string, lookup func(string) string) Options {
	return Options{
		Connection: opening.Connection(dir, lookup), Domain: lookup("E2B_DOMAIN"), SandboxURL: lookup("E2B_SANDBOX_URL"), Template: lookup("E2B_TEMPLATE"),
	}
}

// Provider makes sandboxes with a service. Its methods may be called
// concurrently.
type Provider struct {
	*hosted.Core
	hosted.MemoryKeeper
	opts Options
	api  *api
}

var (
	_ driver.Provider       = (*Provider)(nil)
	_ driver.EgressEnforcer = (*Provider)(nil)
	_ driver.ImageChecker   = (*Provider)(nil)
	_ driver.DeadlineSetter = (*Instance)(nil)
)

// New opens the provider. It makes no network call. It removes records of
// sandboxes that ended long ago.
func New(opts Options) (*Provider, error) {
	opts.Template = cmp.Or(opts.Template, "base")
	if opts.Lifetime <= 0 {
		opts.Lifetime = time.Hour
	}
	if opts.URL == "" && opts.Domain != "" {
		opts.URL = "https://api." + opts.Domain
	}
	login, err := opening.Login(&opts.Connection)
	if err != nil {
		return nil, err
	}
	a := &api{Login: login, domain: cmp.Or(opts.Domain, publicDomain)}
	a.Sign = func(h http.Header) { h.Set("X-API-Key", a.Key.Current()) }
	if opts.SandboxURL != "" {
		if a.sandboxURL, err = rest.ParseURL("e2b.open", "the address of sandboxes", opts.SandboxURL); err != nil {
			return nil, err
		}
	}
	p := &Provider{opts: opts, api: a, Core: login.Core(a)}
	p.Partial, p.Hint = true, "use its original E2B_API_KEY and E2B_API_URL or E2B_DOMAIN"
	p.OpenInside = p.openInside
	p.Extend = func(in *hosted.Instance) hosted.Made {
		inside, _ := in.Inside.(*inside)
		return &Instance{hosted.Savable{Instance: in}, p, inside}
	}
	p.MemoryKeeper = hosted.MemoryKeeper{Keeper: p.Keep(&hosted.Keeper{Saver: saver{p}, Memory: true, Unseen: true})}
	return p, p.Start(opts.Executable)
}

// Probe implements driver.Provider. It checks the key with the service.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	fixed := driver.Limit{Why: "the service's template decides", Fixed: true}
	return p.api.Facts(ctx, p.Core, &hosted.Description{
		Address: "E2B_API_URL and E2B_DOMAIN", Deadline: true,
		Limits: map[string]driver.Limit{"cpus": fixed, "memory": fixed, "disk": fixed, "pids": fixed, "lifetime": {Holds: true, By: "the service"}},
		Notes: []driver.Finding{{
			Severity: driver.Note, Subject: "lifetime", Message: "the service requires a lifetime: the default is " + p.opts.Lifetime.String(),
		}},
		Tested: "tested against Atoll's own E2B API, not against the hosted service",
	}, func(ctx context.Context) error {
		return p.api.Call(ctx, http.MethodGet, "/v2/sandboxes?limit=1", nil, &[]apiSandbox{})
	})
}
