// Package islo makes sandboxes with the service islo, whose gateway decides about
// the requests that leave them.
//
// The service makes, lists, pauses and ends sandboxes over REST. Inside, Atoll's
// own guest does the work: the provider uploads it, listens to the events of the
// command that joins it, and talks to it with further commands. All of that is
// text. So commands, files, ports and watching keep the promises of package
// driver.
//
// It was tested with a fake of the service that the service's own SDK works
// with, and not with the service itself.
package islo

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/records"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// Name is the name of this provider.
const Name = "islo"

// Options say which account to use, and how.
type Options struct {
	// Dir is a directory for this provider alone. It is made when something has
	// to be kept. Sandboxes belong to it: another directory has to adopt them.
	Dir string
	// Key is where the API key comes from. It is sent to the control URL and
	// nowhere else; for tokens that end soon, which are sent to both.
	Key *credential.Source
	// ControlURL is where tokens and gateway profiles are. Empty: the service's.
	ControlURL string
	// ComputeURL is where sandboxes are, in the region of one's choice. Empty: the
	// service's, if ControlURL is, too.
	ComputeURL string
	// Image is that of sandboxes with the image "host". Empty: the service's
	// default.
	Image string
	// Profile is a gateway profile of the account for sandboxes that ask for no
	// network. Nothing changes or removes it. Empty: they have no network.
	Profile string
	// Gateway is what the gateway profiles of other sandboxes have besides what
	// these ask for.
	Gateway Gateway
	// Executable is a static program that imports internal/guest/early, to be the
	// guest where none is embedded. Empty: the running one.
	Executable string
	// Transport carries requests. Nil: one of the provider's own.
	Transport http.RoundTripper
}

// FromEnvironment returns the options that the service's own SDK would take from
// variables of the environment, and the key's file and command, the image and
// the profile, which it does not take from there.
func FromEnvironment(dir string, lookup func(string) string) Options {
	return Options{
		Dir: dir, Key: credential.FromEnvironment("ISLO_API_KEY", lookup), ControlURL: strings.TrimSpace(lookup("ISLO_BASE_URL")),
		ComputeURL: strings.TrimSpace(lookup("ISLO_COMPUTE_URL")), Image: lookup("ISLO_IMAGE"), Profile: lookup("ISLO_GATEWAY_PROFILE"),
	}
}

// The service's own addresses.
const (
	publicControl = "https://api.islo.dev"
	publicCompute = "https://ca.compute.islo.dev"
)

// addresses returns the control and the compute URL. A token must not go to a
// host that nobody named, so another control URL needs a compute URL.
func addresses(opts *Options) (control, compute *url.URL, err error) {
	c, d := opts.ControlURL, opts.ComputeURL
	if c == "" {
		c = publicControl
	}
	if d == "" && strings.TrimSuffix(c, "/") == publicControl {
		d = publicCompute
	}
	if d == "" {
		return nil, nil, &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "islo.open", Subject: "compute URL", Message: "is needed with a control URL that is not the service's own",
			Hint: "set ISLO_COMPUTE_URL",
		}
	}
	if control, err = rest.ParseURL("islo.open", "control URL", c); err != nil {
		return nil, nil, err
	}
	compute, err = rest.ParseURL("islo.open", "compute URL", d)
	return control, compute, err
}

// Provider makes sandboxes with the service. Its methods may be called
// concurrently.
type Provider struct {
	*hosted.Core
	opts  Options
	api   *api
	saved records.Dir[struct{}] // only their locks
}

var (
	_ driver.Provider       = (*Provider)(nil)
	_ driver.EgressEnforcer = (*Provider)(nil)
	_ driver.Binder         = (*Provider)(nil)
	_ driver.FormerBinder   = (*Provider)(nil)
	_ driver.Adopter        = (*Provider)(nil)
	_ driver.ImageChecker   = (*Provider)(nil)
	_ driver.StateTeller    = (*Provider)(nil)
	_ driver.Restorer       = (*Provider)(nil)
	_ driver.SnapshotKeeper = (*Provider)(nil)
	_ driver.Resumer        = (*Instance)(nil)
	_ driver.Snapshotter    = (*Instance)(nil)
	_ driver.Instance       = (*Instance)(nil)
	_ driver.Meter          = (*Instance)(nil)
)

// New opens the provider. It asks nobody and makes nothing, but forgets what was
// kept of sandboxes that ended long ago.
func New(opts Options) (*Provider, error) {
	if opts.Dir == "" {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "islo.open", Message: "no directory given"}
	}
	control, compute, err := addresses(&opts)
	if err != nil {
		return nil, err
	}
	if opts.Key == nil {
		opts.Key = credential.New("ISLO_API_KEY", "", "", "")
	}
	boxes := hosted.Open(opts.Dir)
	a := newAPI(control, compute, opts.Key, boxes, opts.Transport)
	p := &Provider{opts: opts, api: a, saved: records.Dir[struct{}]{Root: opts.Dir, Name: "snapshots"}, Core: &hosted.Core{
		Boxes: boxes, Name: Name, Service: a, API: &a.Client, Expires: true, More: true,
		Hint: "use the ISLO_API_KEY and the ISLO_BASE_URL that it was made with",
	}}
	if err := p.Start(opts.Executable); err != nil {
		return nil, err
	}
	return p, nil
}

// Probe implements driver.Provider. It asks the service whether the key is good.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	if err := ctx.Err(); err != nil {
		return driver.Facts{}, err
	}
	vm := driver.Limit{Holds: true, By: "the service's virtual machine"}
	facts := driver.Facts{
		Provider: Name, Version: "v1", Engine: Name, Isolates: true,
		Capabilities: driver.Capabilities{
			Files: true, Watch: true, Archive: true, Terminal: true, Processes: true, Users: true, Reattach: true,
			Snapshot: true, Ports: true, Usage: true, Rejoin: true,
		},
		Limits: map[string]driver.Limit{
			"cpus": vm, "memory": vm, "disk": vm, "pids": {Why: "the service does not count processes"},
			"lifetime": {Holds: true, By: "Atoll, and the service at the end of the minute"},
		},
	}
	if !p.opts.Key.Set() {
		facts.Findings = append(facts.Findings, driver.Finding{Severity: driver.Blocker, Subject: "key", Message: "there is no API key", Fix: "set ISLO_API_KEY"})
	} else {
		_, err := p.api.page(ctx, url.Values{"limit": {"1"}})
		hosted.Judge(&facts, err, "ISLO_API_KEY", "ISLO_BASE_URL and ISLO_COMPUTE_URL", p.api.control.Base, p.api.Base)
	}
	if err := ctx.Err(); err != nil {
		return driver.Facts{}, err
	}
	facts.Findings = append(facts.Findings, driver.Finding{
		Severity: driver.Note, Subject: "service", Message: "tested with a fake of the service, and not with the service itself",
	})
	return facts, nil
}
