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
	"github.com/atoll-run/atoll/sandbox"
)

// Name is the name of this provider.
const Name = "e2b"

// Options configure the connection to the service.
type Options struct {
	// Dir is a directory for this provider alone. It is created when it is first
	// needed. Sandboxes belong to it: another directory must adopt them first.
	Dir string
	// APIKey is the key of the account. It is sent only to the API and is never
	// part of an error.
	APIKey string
	// Domain is the service's domain. Empty: e2b.app.
	Domain string
	// APIURL is the address of the API. Empty: https://api.DOMAIN.
	APIURL string
	// SandboxURL is the address of all sandboxes. Empty: derived from the domain,
	// as E2B's clients do.
	SandboxURL string
	// Template is the service's template for sandboxes with the image "host".
	// Empty: base.
	Template string
	// Lifetime is the default lifetime of sandboxes, because the service requires
	// one. Zero: an hour, which every account may use.
	Lifetime time.Duration
	// Executable is a static program that imports internal/guest/early. It is the
	// guest if none is embedded. Empty: the running program.
	Executable string
	// Transport sends requests. Nil: a new one.
	Transport http.RoundTripper
}

// FromEnvironment returns the options from the environment variables of E2B's
// own clients.
func FromEnvironment(dir string, lookup func(string) string) Options {
	return Options{
		Dir: dir, APIKey: lookup("E2B_API_KEY"), Domain: lookup("E2B_DOMAIN"), APIURL: lookup("E2B_API_URL"),
		SandboxURL: lookup("E2B_SANDBOX_URL"), Template: lookup("E2B_TEMPLATE"),
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
	if opts.Dir == "" {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "e2b.open", Message: "no directory given"}
	}
	opts.Template = cmp.Or(opts.Template, "base")
	if opts.Lifetime <= 0 {
		opts.Lifetime = time.Hour
	}
	a, err := newAPI(&opts)
	if err != nil {
		return nil, err
	}
	p := &Provider{opts: opts, api: a, Core: &hosted.Core{
		Boxes: hosted.Open(opts.Dir), Name: Name, Service: a, API: &a.Client, Partial: true,
		Hint: "use its original E2B_API_KEY and E2B_API_URL or E2B_DOMAIN",
	}}
	p.Enter = p.enter
	p.Extend = func(in *hosted.Instance) hosted.Made {
		inside, _ := in.Inside.(*inside)
		return &Instance{hosted.Savable{Instance: in}, p, inside}
	}
	p.MemoryKeeper = hosted.MemoryKeeper{Keeper: p.Keep(&hosted.Keeper{Saver: saver{p}, Memory: true, Unseen: true})}
	if err := p.Start(opts.Executable); err != nil {
		return nil, err
	}
	return p, nil
}

// Probe implements driver.Provider. It checks the key with the service.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	fixed := driver.Limit{Why: "the service's template decides", Fixed: true}
	return p.Facts(ctx, &hosted.Description{
		Version: "v2", Needs: "E2B_API_KEY", What: "API key", Credential: "E2B_API_KEY", Address: "E2B_API_URL and E2B_DOMAIN", Deadline: true,
		Limits: map[string]driver.Limit{"cpus": fixed, "memory": fixed, "disk": fixed, "pids": fixed, "lifetime": {Holds: true, By: "the service"}},
		Notes: []driver.Finding{{
			Severity: driver.Note, Subject: "lifetime", Message: "the service requires a lifetime: the default is " + p.opts.Lifetime.String(),
		}},
		Tested: "tested against Atoll's own E2B API, not against the hosted service",
	}, p.opts.APIKey != "", func(ctx context.Context) error {
		return p.api.Call(ctx, http.MethodGet, "/v2/sandboxes?limit=1", nil, &[]box{})
	}, p.api.Base)
}
