// Package islo makes sandboxes with the service islo. The service's gateway
// controls their outgoing requests.
//
// The service makes, lists, pauses and ends sandboxes over REST. Inside,
// Atoll's own guest does the work: the provider uploads it, listens to the
// events of the command that joins it, and talks to it with further commands,
// all as text. This way commands, files, ports and watching satisfy the driver
// contract.
//
// It is tested with a fake service that the official SDK accepts, not with the
// real service.
package islo

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// Name is the name of this provider.
const Name = "islo"

// Options configure the connection to the service.
type Options struct {
	// Dir is a directory for this provider alone. It is created when it is first
	// needed. Sandboxes belong to it: another directory must adopt them first.
	Dir string
	// Key is the source of the API key. The key is sent only to the control URL,
	// in exchange for short-lived tokens, which are sent to both.
	Key *credential.Source
	// ControlURL is the address for tokens and gateway profiles. Empty: the service's.
	ControlURL string
	// ComputeURL is the address of the sandboxes of a region. Empty: the
	// service's, if ControlURL is empty too.
	ComputeURL string
	// Image is used for sandboxes with the image "host". Empty: the service's
	// default.
	Image string
	// Profile is a gateway profile of the account for sandboxes without a network
	// in their spec. Atoll never changes or removes it. Empty: they have no
	// network.
	Profile string
	// Gateway contains settings that are added to the gateway profiles of all
	// other sandboxes.
	Gateway Gateway
	// Executable is a static program that imports internal/guest/early. It is the
	// guest if none is embedded. Empty: the running program.
	Executable string
	// Transport sends requests. Nil: a new one.
	Transport http.RoundTripper
}

// FromEnvironment returns the options from the environment variables of the
// official SDK, and from further variables: the key's file and command, the
// image and the profile.
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

// addresses returns the control and the compute URL. A token must only go to
// hosts that are configured, so another control URL needs a compute URL.
func addresses(opts *Options) (control, compute *url.URL, err error) {
	c, d := cmp.Or(opts.ControlURL, publicControl), opts.ComputeURL
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
	p := &Provider{opts: opts, api: a, Core: &hosted.Core{
		Boxes: boxes, Name: Name, Service: a, API: &a.Client, Expires: true,
		Resting: []string{statusRunning, statusPaused, statusStopped}, Hint: "use its original ISLO_API_KEY and ISLO_BASE_URL",
	}}
	p.Enter = p.enter
	p.Extend = func(in *hosted.Instance) hosted.Made { return hosted.Savable{Instance: in} }
	p.Keeper = p.Keep(&hosted.Keeper{Saver: saver{p}})
	if err := p.Start(opts.Executable); err != nil {
		return nil, err
	}
	return p, nil
}

// Probe implements driver.Provider. It checks the key with the service.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	vm := driver.Limit{Holds: true, By: "the service's virtual machine"}
	return p.Facts(ctx, &hosted.Description{
		Version: "v1", Needs: "ISLO_API_KEY", What: "API key", Credential: "ISLO_API_KEY", Address: "ISLO_BASE_URL and ISLO_COMPUTE_URL",
		Limits: map[string]driver.Limit{
			"cpus": vm, "memory": vm, "disk": vm, "pids": {Why: "the service does not count processes"},
			"lifetime": {Holds: true, By: "Atoll, and the service at the end of the minute"},
		},
	}, p.opts.Key.Set(), func(ctx context.Context) error {
		return p.api.Call(ctx, http.MethodGet, "/sandboxes?limit=1", nil, &pages[box]{})
	}, p.api.control.Base, p.api.Base)
}
