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
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/records"
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

// Provider makes sandboxes with a service.
type Provider struct {
	opts  Options
	api   *api
	boxes records.Dir[record]
	kit   guestkit.Kit

	close func()
	work  sync.WaitGroup // continues after callers gave up
}

var (
	_ driver.Provider       = (*Provider)(nil)
	_ driver.EgressEnforcer = (*Provider)(nil)
	_ driver.Binder         = (*Provider)(nil)
	_ driver.FormerBinder   = (*Provider)(nil)
	_ driver.Adopter        = (*Provider)(nil)
	_ driver.ImageChecker   = (*Provider)(nil)
	_ driver.StateTeller    = (*Provider)(nil)
	_ driver.Resumer        = (*Instance)(nil)
	_ driver.Instance       = (*Instance)(nil)
	_ driver.FileSystem     = (*Instance)(nil)
	_ driver.Archiver       = (*Instance)(nil)
	_ driver.Watcher        = (*Instance)(nil)
	_ driver.ProcessManager = (*Instance)(nil)
	_ driver.Dialer         = (*Instance)(nil)
	_ driver.DeadlineSetter = (*Instance)(nil)
	_ driver.Meter          = (*Instance)(nil)
)

// idle is how long an unused connection to the service is kept.
const idle = 10 * time.Second

// New opens the provider. It makes no network call. It removes records of
// sandboxes that ended long ago.
func New(opts Options) (*Provider, error) {
	if opts.Dir == "" {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "e2b.open", Message: "no directory given"}
	}
	if opts.Template == "" {
		opts.Template = "base"
	}
	if opts.Lifetime <= 0 {
		opts.Lifetime = time.Hour
	}
	transport := opts.Transport
	if transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.IdleConnTimeout, t.MaxIdleConnsPerHost, t.DisableCompression = idle, 16, true
		transport = t
	}
	a, err := newAPI(&opts, transport)
	if err != nil {
		return nil, err
	}
	p := &Provider{opts: opts, api: a, boxes: records.Dir[record]{Root: opts.Dir, Name: "boxes"}, close: a.client.CloseIdleConnections}
	p.sweep(time.Now())
	p.kit.Guest = func(arch string) (*program.Program, error) { return program.For(arch, opts.Executable) }
	return p, nil
}

// Probe implements driver.Provider. It checks the key with the service.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	if err := ctx.Err(); err != nil {
		return driver.Facts{}, err
	}
	why := "the service's template decides"
	facts := driver.Facts{
		Provider: Name, Version: "v2", Isolation: true,
		Capabilities: driver.Capabilities{
			Files: true, Watch: true, Archive: true, Terminal: true, Processes: true, Users: true, Reattach: true,
			Ports: true, Deadline: true, Usage: true, Rejoin: true, Snapshot: true, Memory: true,
		},
		Limits: map[string]driver.Limit{
			"cpus": {Why: why, Fixed: true}, "memory": {Why: why, Fixed: true}, "disk": {Why: why, Fixed: true}, "pids": {Why: why, Fixed: true},
			"lifetime": {Holds: true, By: "the service"},
		},
	}
	facts.Available = p.judge(ctx, &facts)
	if err := ctx.Err(); err != nil {
		return driver.Facts{}, err
	}
	facts.Findings = append(facts.Findings, driver.Finding{
		Severity: driver.Note, Subject: "lifetime",
		Message: "the service requires a lifetime: the default is " + p.opts.Lifetime.String(),
	}, driver.Finding{
		Severity: driver.Note, Subject: "service", Message: "tested against Atoll's own E2B API, not against the hosted service",
	})
	return facts, nil
}

// judge checks whether sandboxes can be created.
func (p *Provider) judge(ctx context.Context, facts *driver.Facts) bool {
	add := func(severity driver.Severity, subject, message, fix string) {
		facts.Findings = append(facts.Findings, driver.Finding{Severity: severity, Subject: subject, Message: message, Fix: fix})
	}
	if p.opts.APIKey == "" {
		add(driver.Blocker, "key", "no API key is set", "set E2B_API_KEY")
		return false
	}
	_, _, err := p.api.list(ctx, nil, "", 1)
	switch code := sandbox.CodeOf(err); {
	case err == nil:
		add(driver.OK, "service", p.api.base.Host+" answers and takes the key", "")
	case code == sandbox.CodeUnauthorized || code == sandbox.CodeDenied:
		add(driver.Blocker, "key", p.api.base.Host+" does not take the key", "set E2B_API_KEY to a key of this service")
	default:
		add(driver.Blocker, "service", err.Error(), "see whether E2B_API_URL and E2B_DOMAIN are right")
	}
	if p.api.base.Scheme == "http" && !loopback(p.api.base.Hostname()) {
		add(driver.Warning, "key", "the key is sent to "+p.api.base.Host+" without encryption", "use an https address")
	}
	return err == nil
}

// ErrorCode implements driver.Provider.
func (p *Provider) ErrorCode(err error) sandbox.Code { return guest.ErrorCode(err) }

// Close implements driver.Provider. It waits for requests that continued after
// their callers gave up.
func (p *Provider) Close() error {
	p.work.Wait()
	p.close()
	return nil
}
