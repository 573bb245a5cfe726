// Package superserve makes sandboxes with the service Superserve. They are
// Firecracker virtual machines, which the service can pause and resume.
//
// The service makes, lists, pauses and ends sandboxes over REST. Inside,
// Atoll's own guest does the work: the provider uploads it, starts it over the
// service's WebSocket for commands, and talks to it over the standard input and
// output of that command. This way commands, files, ports and watching satisfy
// the driver contract.
//
// It is tested with a fake service that the official SDK accepts, not with the
// real service.
package superserve

import (
	"context"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// Name is the name of this provider.
const Name = "superserve"

// Options configure the connection to the service.
type Options struct {
	// Dir is a directory for this provider alone. It is created when it is first
	// needed. Sandboxes belong to it: another directory must adopt them first.
	Dir string
	// APIKey is the key of the account. APIKeyFile is a file that holds it, and
	// APIKeyCommand a command for the shell that writes it. The first one that is
	// set is used. The key is sent only to the control URL and is never part of an
	// error.
	APIKey, APIKeyFile, APIKeyCommand string
	// ControlURL is the address of the control API. Empty: the address of the
	// region in APIKey, or of the service's first region.
	ControlURL string
	// DataURL is the address of the data API. "{id}" in it is replaced by the id
	// of a sandbox; without it, the id is sent in a header. Empty: the address
	// that belongs to the control URL, if that is the service's own.
	DataURL string
	// Template is the service's template for sandboxes with the image "host".
	// Empty: the service's default.
	Template string
	// Secrets are secrets of the account for every sandbox. Keys are names of
	// variables, values are names of secrets. Sandboxes see placeholders, which
	// the service replaces in outgoing requests.
	Secrets map[string]string
	// Executable is a static program that imports internal/guest/early. It is the
	// guest if none is embedded. Empty: the running program.
	Executable string
	// Transport sends requests. Nil: a new one.
	Transport http.RoundTripper
}

// FromEnvironment returns the options from the environment variables of the
// official SDK, and from further variables: two more sources of the key, the
// data URL and the template.
func FromEnvironment(dir string, lookup func(string) string) Options {
	return Options{
		Dir: dir, APIKey: lookup("SUPERSERVE_API_KEY"), APIKeyFile: lookup("SUPERSERVE_API_KEY_FILE"), APIKeyCommand: lookup("SUPERSERVE_API_KEY_COMMAND"),
		ControlURL: strings.TrimSpace(lookup("SUPERSERVE_BASE_URL")),
		DataURL:    strings.TrimSpace(lookup("SUPERSERVE_DATA_URL")), Template: lookup("SUPERSERVE_TEMPLATE"),
	}
}

// regions are the service's own addresses.
var regions = map[string]struct{ control, data string }{
	"use":     {"https://api.superserve.ai", "https://sandbox.superserve.ai"},
	"usw":     {"https://api-usw.superserve.ai", "https://usw-sandbox.superserve.ai"},
	"staging": {"https://api-staging.superserve.ai", "https://staging-sandbox.superserve.ai"},
}

// regionKey matches a key that names its region.
var regionKey = regexp.MustCompile(`^ss_live_([a-z0-9]{1,17})_[A-Za-z0-9_-]{32}$`)

// regionOf returns the region that a key names, or the first one.
func regionOf(key string) string {
	if m := regionKey.FindStringSubmatch(key); m != nil {
		return m[1]
	}
	return "use"
}

// fresh returns a function that ensures that there is a key. A key from a file
// or a command may belong to a region that is not configured; it is then
// refused.
func fresh(opts *Options, key *credential.Source, control *url.URL) func(context.Context, bool) error {
	return func(ctx context.Context, refused bool) error {
		err := key.Fresh(ctx, refused)
		if region := regionOf(key.Current()); err == nil && opts.ControlURL == "" && regions[region].control != control.String() {
			err = &sandbox.Error{
				Code: sandbox.CodeInvalid, Subject: "region", Message: "the key is of the region " + region + ", and not of " + control.Host, Hint: "set SUPERSERVE_BASE_URL",
			}
		}
		return err
	}
}

// addresses returns the control and the data URL. A token must only go to hosts
// that are configured, so an unknown control URL needs a data URL.
func addresses(opts *Options) (control, data *url.URL, err error) {
	refuse := func(subject, message, hint string) error {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "superserve.open", Subject: subject, Message: message, Hint: hint}
	}
	c, d := opts.ControlURL, opts.DataURL
	if c == "" {
		if c = regions[regionOf(opts.APIKey)].control; c == "" {
			return nil, nil, refuse("region", "the key is of a region that this Atoll does not know", "set SUPERSERVE_BASE_URL and SUPERSERVE_DATA_URL")
		}
	}
	for _, r := range regions {
		if d == "" && strings.TrimSuffix(c, "/") == r.control {
			d = r.data
		}
	}
	if d == "" {
		return nil, nil, refuse("data URL", "is needed with a control URL that is not the service's own", "set SUPERSERVE_DATA_URL")
	}
	if control, err = rest.ParseURL("superserve.open", "control URL", c); err != nil {
		return nil, nil, err
	}
	// A host with braces is not valid.
	data, err = rest.ParseURL("superserve.open", "data URL", strings.ReplaceAll(d, "{id}", placeholder))
	return control, data, err
}

// placeholder stands for the id of a sandbox in a parsed address.
const placeholder = "sandbox-id"

// Provider makes sandboxes with the service. Its methods may be called
// concurrently.
type Provider struct {
	*hosted.Core
	hosted.MemoryKeeper
	opts Options
	api  *api
}

// Instance is a sandbox of the service. A guest inside runs commands and
// accesses files. Its methods may be called concurrently.
type Instance struct {
	hosted.Savable
	p *Provider
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
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "superserve.open", Message: "no directory given"}
	}
	control, data, err := addresses(&opts)
	if err != nil {
		return nil, err
	}
	key := credential.New("SUPERSERVE_API_KEY", opts.APIKey, opts.APIKeyFile, opts.APIKeyCommand)
	a := newAPI(control, data, key, fresh(&opts, key, control), opts.Transport)
	p := &Provider{opts: opts, api: a, Core: &hosted.Core{
		Boxes: hosted.Open(opts.Dir), Name: Name, Service: a, API: &a.Client,
		Hint: "use its original SUPERSERVE_API_KEY and SUPERSERVE_BASE_URL",
	}}
	p.Resting, p.Enter = []string{statusActive, statusPaused}, p.enter
	p.Extend = func(in *hosted.Instance) hosted.Made { return &Instance{hosted.Savable{Instance: in}, p} }
	p.MemoryKeeper = hosted.MemoryKeeper{Keeper: p.Keep(&hosted.Keeper{Saver: saver{p}, Memory: true, Records: true})}
	if err := p.Start(opts.Executable); err != nil {
		return nil, err
	}
	return p, nil
}

// Probe implements driver.Provider. It checks the key with the service.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	fixed := driver.Limit{Why: "the service's template decides", Fixed: true}
	return p.Facts(ctx, &hosted.Description{
		Version: "v1", Needs: "SUPERSERVE_API_KEY", What: "API key", Credential: "SUPERSERVE_API_KEY", Address: "SUPERSERVE_BASE_URL", Previews: true,
		Limits: map[string]driver.Limit{"cpus": fixed, "memory": fixed, "disk": fixed, "pids": fixed, "lifetime": {Holds: true, By: "the service"}},
	}, p.api.key.Set(), func(ctx context.Context) error {
		return p.api.Call(ctx, http.MethodGet, "/sandboxes?limit=1", nil, &[]box{})
	}, p.api.Base, p.api.data)
}
