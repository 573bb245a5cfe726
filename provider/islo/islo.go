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
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// Name is the name of this provider.
const Name = "islo"

// Options configure the connection to the service. URL is the address for tokens
// and gateway profiles. The key is sent only there, in exchange for short-lived
// tokens, which are sent to both addresses.
type Options struct {
	hosted.Connection
	// ComputeURL is the address of the sandboxes of a region. Empty: the
	// service's, if URL is empty too.
	ComputeURL string `json:"-"`
	// Image is used for sandboxes with the image "host". Empty: the service's
	// default.
	Image string `json:"image"`
	// Profile is a gateway profile of the account for sandboxes without a network
	// in their spec. Atoll never changes or removes it. Empty: they have no
	// network.
	Profile string `json:"profile"`
	// Gateway contains settings that are added to the gateway profiles of all
	// other sandboxes.
	Gateway Gateway `json:"gateway"`
}

// The service's own addresses.
const (
	publicControl = "https://api.islo.dev"
	publicCompute = "https://ca.compute.islo.dev"
)

var opening = hosted.Opening{Name: Name, Version: "v1", Key: "ISLO_API_KEY", URL: "ISLO_BASE_URL", Public: publicControl, ParseError: parseError}

// FromEnvironment returns the options from the environment variables of the
// official SDK, and from further variables: the key's file and command, the
// image and the profile.
func FromEnvironment(dir string, lookup func(string) string) Options {
	return Options{
		Connection: opening.Connection(dir, lookup), ComputeURL: strings.TrimSpace(lookup("ISLO_COMPUTE_URL")),
		Image: lookup("ISLO_IMAGE"), Profile: lookup("ISLO_GATEWAY_PROFILE"),
	}
}

// compute returns the compute URL. A token must only go to hosts that are
// configured, so another control URL needs a compute URL.
func compute(opts *Options) (*url.URL, error) {
	address := opts.ComputeURL
	if address == "" && strings.TrimSuffix(cmp.Or(opts.URL, publicControl), "/") == publicControl {
		address = publicCompute
	}
	if address == "" {
		return nil, &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "islo.open", Subject: "compute URL", Message: "is needed with a control URL that is not the service's own",
			Hint: "set ISLO_COMPUTE_URL",
		}
	}
	return rest.ParseURL("islo.open", "compute URL", address)
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
	address, err := compute(&opts)
	if err != nil {
		return nil, err
	}
	login, err := opening.Login(&opts.Connection)
	if err != nil {
		return nil, err
	}
	a := newAPI(login, address, hosted.Open(opts.Dir))
	p := &Provider{opts: opts, api: a, Core: login.Core(a)}
	p.API, p.Expires, p.Resting = &a.Client, true, []string{statusRunning, statusPaused, statusStopped}
	p.OpenInside = p.openInside
	p.Extend = func(in *hosted.Instance) hosted.Made { return hosted.Savable{Instance: in} }
	p.Keeper = p.Keep(&hosted.Keeper{Saver: saver{p}})
	return p, p.Start(opts.Executable)
}

// Probe implements driver.Provider. It checks the key with the service.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	vm := driver.Limit{Holds: true, By: "the service's virtual machine"}
	return p.api.Facts(ctx, p.Core, &hosted.Description{
		Address: "ISLO_BASE_URL and ISLO_COMPUTE_URL",
		Limits: map[string]driver.Limit{
			"cpus": vm, "memory": vm, "disk": vm, "pids": {Why: "the service does not count processes"},
			"lifetime": {Holds: true, By: "Atoll, and the service at the end of the minute"},
		},
	}, func(ctx context.Context) error {
		return p.api.Call(ctx, http.MethodGet, "/sandboxes?limit=1", nil, &pages[apiSandbox]{})
	}, p.api.Base)
}
