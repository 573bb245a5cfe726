// Package boxlite makes sandboxes with a BoxLite server: one on your own
// machine, or the hosted service. Each is a micro-VM.
//
// The server makes, lists, starts, stops and ends boxes over REST. Inside,
// Atoll's own guest does the work: the provider uploads it as a tar archive,
// starts it as a command, attaches to it over a WebSocket, and talks to it over
// standard input and output. This way commands, files, ports and watching
// satisfy the driver contract, independent of the server's own rules for paths
// and environments.
//
// It is tested with a fake server that the official SDK accepts, not with the
// real server.
package boxlite

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// Name is the name of this provider.
const Name = "boxlite"

// Options configure the connection to the server. Its address has no version, and
// your own server may need no key.
type Options struct {
	hosted.Connection
	// Prefix is the part of paths that names a tenant. Empty: requested from the server.
	Prefix string `json:"-"`
	// Image is the OCI image of sandboxes that name none. Empty: the server's
	// default.
	Image string `json:"image"`
	// Volumes are managed volumes for every sandbox. Keys are mount paths, values
	// are names or ids of volumes.
	Volumes map[string]string `json:"volumes"`
	// Tunnels connects to ports of sandboxes with a network through the server's
	// tunnels. Their addresses are public and need no credential: everyone who
	// knows one can reach the port.
	Tunnels bool `json:"tunnels"`
}

var opening = hosted.Opening{Name: Name, Version: "v1", Key: "BOXLITE_API_KEY", URL: "BOXLITE_REST_URL", ParseError: parseError}

// FromEnvironment returns the options from the environment variables of the
// official SDK, and two more sources of the key.
func FromEnvironment(dir string, lookup func(string) string) Options {
	return Options{Connection: opening.Connection(dir, lookup), Prefix: lookup("BOXLITE_REST_PATH_PREFIX"), Image: lookup("BOXLITE_IMAGE")}
}

// Provider makes sandboxes with a server. Its methods may be called
// concurrently.
type Provider struct {
	*hosted.Core
	*hosted.Keeper
	opts    Options
	api     *api
	volumes []volume
}

// Instance is a box of the server. A guest inside runs commands and accesses
// files. Its methods may be called concurrently.
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
// sandboxes that ended long ago, and begins to end sandboxes at their
// deadlines.
func New(opts Options) (*Provider, error) {
	login, err := opening.Login(&opts.Connection)
	if err != nil {
		return nil, err
	}
	a := &api{Login: login, prefix: strings.Trim(opts.Prefix, "/")}
	if a.prefix != "" && !usablePrefix.MatchString(a.prefix) {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "boxlite.open", Subject: "prefix", Message: "is not valid in a path"}
	}
	known := a.Fresh
	a.Fresh = func(ctx context.Context, refused bool) error {
		if refused { // another key may be one of another account
			a.know(nil)
		}
		return known(ctx, refused)
	}
	bearer := a.Sign
	a.Sign = func(h http.Header) {
		if a.Key.Current() != "" {
			bearer(h)
		}
	}
	p := &Provider{opts: opts, api: a, Core: login.Core(a)}
	p.Expires, p.Marks, p.Reboots, p.Resting = true, true, true, []string{running, configured, stopped}
	p.OpenInside = func(b hosted.Sandbox) hosted.Inside { return &inside{p: p, id: b.ID, name: b.Sandbox} }
	p.Extend = func(in *hosted.Instance) hosted.Made { return &Instance{hosted.Savable{Instance: in}, p} }
	p.Keeper = p.Keep(&hosted.Keeper{Saver: saver{p}, AtRest: true, Records: true})
	for _, path := range slices.Sorted(maps.Keys(opts.Volumes)) {
		p.volumes = append(p.volumes, volume{Managed: opts.Volumes[path], Path: path})
	}
	return p, p.Start(opts.Executable)
}

// Probe implements driver.Provider. It checks the key with the server.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	vm := driver.Limit{Holds: true, By: "the virtual machine"}
	return p.api.Facts(ctx, p.Core, &hosted.Description{
		Limits: map[string]driver.Limit{
			"cpus": vm, "memory": vm,
			"disk": {Why: "the server does not say how large the disk of a box is"}, "pids": {Why: "the server has no limit for processes", Fixed: true},
			"lifetime": {Holds: true, By: "Atoll, and the server's auto-stop where no Atoll runs"},
		},
		Notes:  []driver.Finding{{Severity: driver.Note, Subject: "snapshots", Message: "the server saves only stopped sandboxes, so a snapshot ends the sandbox"}},
		Tested: "tested with a fake server, not with the real one",
	}, func(ctx context.Context) error {
		_, err := p.api.page(ctx, "", 1)
		return err
	})
}
