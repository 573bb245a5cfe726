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
	"cmp"
	"context"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// Name is the name of this provider.
const Name = "superserve"

// Options configure the connection to the service. Without URL, the address of
// the control API is that of the region in a constant key, or of the service's
// first region.
type Options struct {
	hosted.Connection
	// DataURL is the address of the data API. "{id}" in it is replaced by the id
	// of a sandbox; without it, the id is sent in a header. Empty: the address
	// that belongs to the control URL, if that is the service's own.
	DataURL string `json:"-"`
	// Template is the service's template for sandboxes with the image "host".
	// Empty: the service's default.
	Template string `json:"template"`
	// Secrets are secrets of the account for every sandbox. Keys are names of
	// variables, values are names of secrets. Sandboxes see placeholders, which
	// the service replaces in outgoing requests.
	Secrets map[string]string `json:"secrets"`
}

var opening = hosted.Opening{Name: Name, Version: "v1", Key: "SUPERSERVE_API_KEY", URL: "SUPERSERVE_BASE_URL", ParseError: parseError, Public: regions[firstRegion].control}

// FromEnvironment returns the options from the environment variables of the
// official SDK, and from further variables: two more sources of the key, the
// data URL and the template.
func FromEnvironment(dir string, lookup func(string) string) Options {
	return Options{
		Connection: opening.Connection(dir, lookup), DataURL: strings.TrimSpace(lookup("SUPERSERVE_DATA_URL")), Template: lookup("SUPERSERVE_TEMPLATE"),
	}
}

const firstRegion = "use"

// regions are the service's own addresses.
var regions = map[string]struct{ control, data string }{
	firstRegion: {"https://api.superserve.ai", "https://sandbox.superserve.ai"},
	"usw":       {"https://api-usw.superserve.ai", "https://usw-sandbox.superserve.ai"},
	"staging":   {"https://api-staging.superserve.ai", "https://staging-sandbox.superserve.ai"},
}

// regionKey matches a key that names its region.
var regionKey = regexp.MustCompile(`^ss_live_([a-z0-9]{1,17})_[A-Za-z0-9_-]{32}$`)

// regionOf returns the region that a key names, or the first one.
func regionOf(key string) string {
	if m := regionKey.FindStringSubmatch(key); m != nil {
		return m[1]
	}
	return firstRegion
}

// addresses adds the control URL to the options, and returns the data URL. A
// token must only go to hosts that are configured, so an unknown control URL
// needs a data URL.
func addresses(opts *Options) (*url.URL, error) {
	refuse := func(subject, message, hint string) error {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "superserve.open", Subject: subject, Message: message, Hint: hint}
	}
	data := opts.DataURL
	if opts.URL == "" && opts.Key != nil {
		opts.URL = regions[regionOf(opts.Key.Value())].control
		if opts.URL == "" {
			return nil, refuse("region", "the key is of a region that this Atoll does not know", "set SUPERSERVE_BASE_URL and SUPERSERVE_DATA_URL")
		}
	}
	for _, r := range regions {
		if data == "" && strings.TrimSuffix(cmp.Or(opts.URL, opening.Public), "/") == r.control {
			data = r.data
		}
	}
	if data == "" {
		return nil, refuse("data URL", "is needed with a control URL that is not the service's own", "set SUPERSERVE_DATA_URL")
	}
	// A host with braces is not valid.
	return rest.ParseURL("superserve.open", "data URL", strings.ReplaceAll(data, "{id}", placeholder))
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
	chosen := opts.URL != ""
	data, err := addresses(&opts)
	if err != nil {
		return nil, err
	}
	login, err := opening.Login(&opts.Connection)
	if err != nil {
		return nil, err
	}
	a := &api{login, data}
	a.Sign = func(h http.Header) { h.Set("X-API-Key", a.Key.Current()) }
	known := a.Fresh
	// A key from a file or a command may be of another region, and is then refused.
	a.Fresh = func(ctx context.Context, refused bool) error {
		err := known(ctx, refused)
		if region := regionOf(a.Key.Current()); err == nil && !chosen && regions[region].control != a.Base.String() {
			err = &sandbox.Error{
				Code: sandbox.CodeInvalid, Subject: "region", Message: "the key is of the region " + region + ", and not of " + a.Base.Host, Hint: "set SUPERSERVE_BASE_URL",
			}
		}
		return err
	}
	p := &Provider{opts: opts, api: a, Core: login.Core(a)}
	p.Resting = []string{statusActive, statusPaused}
	p.OpenInside = p.openInside
	p.Extend = func(in *hosted.Instance) hosted.Made { return &Instance{hosted.Savable{Instance: in}, p} }
	p.MemoryKeeper = hosted.MemoryKeeper{Keeper: p.Keep(&hosted.Keeper{Saver: saver{p}, Memory: true, Records: true})}
	return p, p.Start(opts.Executable)
}

// Probe implements driver.Provider. It checks the key with the service.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	fixed := driver.Limit{Why: "the service's template decides", Fixed: true}
	return p.api.Facts(ctx, p.Core, &hosted.Description{
		Previews: true,
		Limits:   map[string]driver.Limit{"cpus": fixed, "memory": fixed, "disk": fixed, "pids": fixed, "lifetime": {Holds: true, By: "the service"}},
	}, func(ctx context.Context) error {
		return p.api.Call(ctx, http.MethodGet, "/sandboxes?limit=1", nil, &[]apiSandbox{})
	}, p.api.data)
}

// The longest lifetime that the service enforces.
const maxLifetime = 7 * 24 * time.Hour

// Create implements driver.Provider.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	template, ok := hosted.Template(spec.Image, p.opts.Template)
	if !ok {
		return nil, p.CheckImage(spec.Image)
	}
	return p.make(ctx, spec, creation{Template: template}, nil)
}

// CheckImage implements driver.ImageChecker.
func (p *Provider) CheckImage(image string) error { return p.CheckTemplate(image) }

// EgressAbility implements driver.EgressEnforcer: names and addresses, with all
// their ports.
func (*Provider) EgressAbility() enforce.Ability {
	return enforce.Ability{Kind: enforce.Host, Wildcards: true}
}

// everything is the deny rule that makes allow rules a closed list.
const everything = "0.0.0.0/0"

// egress converts egress rules to the service's format.
func egress(rules *sandbox.EgressRules) *network {
	if rules != nil && rules.Open {
		return nil
	}
	return &network{AllowOut: hosted.Destinations(rules), DenyOut: []string{everything}}
}

// make makes a sandbox. begin prepares the copy of a snapshot.
func (p *Provider) make(ctx context.Context, spec *sandbox.Spec, c creation, begin func(context.Context, hosted.Inside) error) (driver.Instance, error) {
	life := spec.Lifetime.HardTimeout()
	if err := p.Check(spec); err != nil {
		return nil, err
	}
	if life > maxLifetime {
		return nil, p.Unsupported("lifetime", "the service enforces at most "+maxLifetime.String(), "")
	}
	scope, err := p.Scope()
	if err != nil {
		return nil, err
	}
	c.Name, c.Metadata = string(spec.ID), hosted.Metadata(scope, spec)
	c.Network, c.Secrets, c.Preview = egress(spec.Network.Plain), p.opts.Secrets, accessPrivate
	if life > 0 {
		// The service pauses a sandbox at its timeout, and then removes it.
		seconds, atOnce := hosted.Seconds(life), int64(0)
		c.Timeout, c.AutoDelete, life = &seconds, &atOnce, time.Duration(seconds)*time.Second
	}
	var b apiSandbox
	return p.Make(ctx, &hosted.Creation{
		Spec: spec, Life: life, Begin: begin,
		Ask: func(ctx context.Context) (hosted.Sandbox, error) {
			b, err = p.request(ctx, spec.ID, &c)
			return b.describe(), err
		},
		Confirm: func() error {
			same := func(a, b *int64) bool { return a == b || a != nil && b != nil && *a == *b }
			switch {
			case !same(b.Timeout, c.Timeout) || c.AutoDelete != nil && !same(b.AutoDelete, c.AutoDelete):
				return p.ProtocolError("the service does not confirm the lifetime of the sandbox")
			case c.Network != nil && (b.Network == nil || !slices.Equal(b.Network.AllowOut, c.Network.AllowOut) || !slices.Equal(b.Network.DenyOut, c.Network.DenyOut)):
				return p.ProtocolError("the service does not confirm what the sandbox may reach")
			}
			return nil
		},
	})
}

// request requests a sandbox and reads it back. If the answer is lost or names
// another sandbox, it looks for the sandbox by its metadata.
func (p *Provider) request(ctx context.Context, id sandbox.ID, c *creation) (apiSandbox, error) {
	b, err := p.api.sandbox(ctx, http.MethodPost, "/sandboxes", "", c)
	if hosted.Refused(err) {
		return apiSandbox{}, err
	}
	if err == nil {
		if now, err := p.read(ctx, id, b, c); err == nil {
			return now, nil
		}
	}
	return hosted.Search(ctx, &p.api.Client, err, func() (apiSandbox, error) {
		found, err := p.Find(ctx, id)
		if err != nil {
			return apiSandbox{}, err
		}
		if b, err = p.awake(ctx, id, found.ID, false); err != nil {
			return apiSandbox{}, err
		}
		return p.read(ctx, id, b, c)
	})
}

// read returns the service's description of a new sandbox, with its token.
func (p *Provider) read(ctx context.Context, id sandbox.ID, b apiSandbox, c *creation) (apiSandbox, error) {
	now, err := p.api.get(ctx, b.ID)
	if err == nil && (now.Metadata[hosted.MetaID] != string(id) || now.Metadata[hosted.MetaScope] != c.Metadata[hosted.MetaScope]) {
		err = hosted.ErrNone
	}
	now.Token, now.Hint = b.Token, b.Hint
	return now, err
}
