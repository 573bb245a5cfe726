// Package superserve makes sandboxes with the service Superserve, whose
// sandboxes are Firecracker virtual machines that it pauses and resumes.
//
// The service makes, lists, pauses and ends sandboxes over REST. Inside, Atoll's
// own guest does the work: the provider uploads it, starts it over the service's
// WebSocket for commands, and talks to it over the standard input and output of
// that command. So commands, files, ports and watching keep the promises of
// package driver.
//
// It was tested with a fake of the service that the service's own SDK works
// with, and not with the service itself.
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
	"github.com/atoll-run/atoll/provider/internal/records"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// Name is the name of this provider.
const Name = "superserve"

// Options say which account to use, and how.
type Options struct {
	// Dir is a directory for this provider alone. It is made when something has
	// to be kept. Sandboxes belong to it: another directory has to adopt them.
	Dir string
	// APIKey is the key of the account. APIKeyFile is a file that holds it, and
	// APIKeyCommand a command for the shell that writes it. The first one that is
	// set counts. The key is sent to the control URL and nowhere else, and is no
	// part of any error.
	APIKey, APIKeyFile, APIKeyCommand string
	// ControlURL is where sandboxes are made. Empty: that of the region in
	// APIKey, or the first region of the service.
	ControlURL string
	// DataURL is where sandboxes are reached. "{id}" in it stands for the id of
	// one; without it the id goes along in a header. Empty: the one that belongs
	// to the control URL, if that is one of the service's own.
	DataURL string
	// Template is the service's template for sandboxes with the image "host".
	// Empty: the service's default.
	Template string
	// Secrets are secrets of the account for every sandbox: by the variable that
	// stands for one, its name. Sandboxes see a stand-in, which the service
	// replaces on the way out.
	Secrets map[string]string
	// Executable is a static program that imports internal/guest/early, to be the
	// guest where none is embedded. Empty: the running one.
	Executable string
	// Transport carries requests. Nil: one of the provider's own.
	Transport http.RoundTripper
}

// FromEnvironment returns the options that the service's own SDK would take from
// variables of the environment, and two more sources of the key, the data URL and
// the template, which it does not take from there.
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

// regionKey is a key that names its region.
var regionKey = regexp.MustCompile(`^ss_live_([a-z0-9]{1,17})_[A-Za-z0-9_-]{32}$`)

// regionOf is the region that a key names, or the first one.
func regionOf(key string) string {
	if m := regionKey.FindStringSubmatch(key); m != nil {
		return m[1]
	}
	return "use"
}

// fresh returns what sees to it that there is a key. One that comes from a file
// or a command may be of a region whose address was not given: it goes to no other.
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

// addresses returns the control and the data URL. A token of a sandbox must not
// go to a host that nobody named, so an unknown control URL needs a data URL.
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
	// A host with braces is no valid one.
	data, err = rest.ParseURL("superserve.open", "data URL", strings.ReplaceAll(d, "{id}", placeholder))
	return control, data, err
}

// placeholder stands for the id of a sandbox in a parsed address.
const placeholder = "sandbox-id"

// Provider makes sandboxes with the service. Its methods may be called
// concurrently.
type Provider struct {
	*hosted.Core
	opts  Options
	api   *api
	saved records.Dir[savedRecord]
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
	_ driver.FileRestorer   = (*Provider)(nil)
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
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "superserve.open", Message: "no directory given"}
	}
	control, data, err := addresses(&opts)
	if err != nil {
		return nil, err
	}
	key := credential.New("SUPERSERVE_API_KEY", opts.APIKey, opts.APIKeyFile, opts.APIKeyCommand)
	a := newAPI(control, data, key, fresh(&opts, key, control), opts.Transport)
	p := &Provider{opts: opts, api: a, saved: records.Dir[savedRecord]{Root: opts.Dir, Name: "snapshots"}, Core: &hosted.Core{
		Boxes: hosted.Open(opts.Dir), Name: Name, Service: a, API: &a.Client,
		Hint: "use the SUPERSERVE_API_KEY and the SUPERSERVE_BASE_URL that it was made with",
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
	why := "the service's template decides"
	facts := driver.Facts{
		Provider: Name, Version: "v1", Engine: Name, Isolates: true,
		Capabilities: driver.Capabilities{
			Files: true, Watch: true, Archive: true, Terminal: true, Processes: true, Users: true, Reattach: true,
			Snapshot: true, Memory: true, Ports: true, Previews: true, Usage: true, Rejoin: true,
		},
		Limits: map[string]driver.Limit{
			"cpus": {Why: why, Fixed: true}, "memory": {Why: why, Fixed: true}, "disk": {Why: why, Fixed: true}, "pids": {Why: why, Fixed: true},
			"lifetime": {Holds: true, By: "the service"},
		},
	}
	p.judge(ctx, &facts)
	if err := ctx.Err(); err != nil {
		return driver.Facts{}, err
	}
	facts.Findings = append(facts.Findings, driver.Finding{
		Severity: driver.Note, Subject: "service", Message: "tested with a fake of the service, and not with the service itself",
	})
	return facts, nil
}

// judge finds out whether sandboxes can be made.
func (p *Provider) judge(ctx context.Context, facts *driver.Facts) {
	if !p.api.key.Set() {
		facts.Findings = []driver.Finding{{Severity: driver.Blocker, Subject: "key", Message: "there is no API key", Fix: "set SUPERSERVE_API_KEY"}}
		return
	}
	_, err := p.api.list(ctx, url.Values{"limit": {"1"}})
	hosted.Judge(facts, err, "SUPERSERVE_API_KEY", "SUPERSERVE_BASE_URL", p.api.Base, p.api.data)
}
