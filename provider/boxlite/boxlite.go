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
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// Name is the name of this provider.
const Name = "boxlite"

// Options configure the connection to the server.
type Options struct {
	// Dir is a directory for this provider alone. It is created when it is first
	// needed. Sandboxes belong to it: another directory must adopt them first.
	Dir string
	// URL is the server's address, without the version.
	URL string
	// Prefix is the part of paths that names a tenant. Empty: requested from the server.
	Prefix string
	// APIKey is the key of the account. APIKeyFile is a file that holds it, and
	// APIKeyCommand a command for the shell that writes it. The first one that is
	// set is used; your own server may need none. The key is sent only to URL and
	// is never part of an error.
	APIKey, APIKeyFile, APIKeyCommand string
	// Image is the OCI image of sandboxes that name none. Empty: the server's
	// default.
	Image string
	// Volumes are managed volumes for every sandbox. Keys are mount paths, values
	// are names or ids of volumes.
	Volumes map[string]string
	// Tunnels connects to ports of sandboxes with a network through the server's
	// tunnels. Their addresses are public and need no credential: everyone who
	// knows one can reach the port.
	Tunnels bool
	// Executable is a static program that imports internal/guest/early. It is the
	// guest if none is embedded. Empty: the running program.
	Executable string
	// Transport sends requests. Nil: a new one.
	Transport http.RoundTripper
}

// FromEnvironment returns the options from the environment variables of the
// official SDK, and two more sources of the key.
func FromEnvironment(dir string, lookup func(string) string) Options {
	return Options{
		Dir: dir, URL: strings.TrimSpace(lookup("BOXLITE_REST_URL")), Prefix: lookup("BOXLITE_REST_PATH_PREFIX"), Image: lookup("BOXLITE_IMAGE"),
		APIKey: lookup("BOXLITE_API_KEY"), APIKeyFile: lookup("BOXLITE_API_KEY_FILE"), APIKeyCommand: lookup("BOXLITE_API_KEY_COMMAND"),
	}
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
	if opts.Dir == "" {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "boxlite.open", Message: "no directory given"}
	}
	a, err := newAPI(&opts, credential.New("BOXLITE_API_KEY", opts.APIKey, opts.APIKeyFile, opts.APIKeyCommand))
	if err != nil {
		return nil, err
	}
	p := &Provider{opts: opts, api: a, Core: &hosted.Core{
		Boxes: hosted.Open(opts.Dir), Name: Name, Service: a, API: &a.Client, Expires: true,
		Hint: "use its original BOXLITE_REST_URL and BOXLITE_API_KEY",
	}}
	p.Marks, p.Reboots, p.Resting = true, true, []string{statusRunning, "configured", statusStopped}
	p.Enter = func(b hosted.Box) hosted.Inside { return &inside{p: p, id: b.ID, name: b.Sandbox} }
	p.Extend = func(in *hosted.Instance) hosted.Made { return &Instance{hosted.Savable{Instance: in}, p} }
	p.Keeper = p.Keep(&hosted.Keeper{Saver: saver{p}, AtRest: true, Records: true})
	for _, path := range slices.Sorted(maps.Keys(opts.Volumes)) {
		p.volumes = append(p.volumes, volume{Managed: opts.Volumes[path], Path: path})
	}
	if err := p.Start(opts.Executable); err != nil {
		return nil, err
	}
	return p, nil
}

// Probe implements driver.Provider. It checks the key with the server.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	vm := driver.Limit{Holds: true, By: "the virtual machine"}
	return p.Facts(ctx, &hosted.Description{
		Version: "v1", Needs: "BOXLITE_REST_URL", What: "URL", Credential: "BOXLITE_API_KEY", Address: "BOXLITE_REST_URL",
		Limits: map[string]driver.Limit{
			"cpus": vm, "memory": vm,
			"disk": {Why: "the server does not say how large the disk of a box is"}, "pids": {Why: "the server has no limit for processes", Fixed: true},
			"lifetime": {Holds: true, By: "Atoll, and the server's auto-stop where no Atoll runs"},
		},
		Notes:  []driver.Finding{{Severity: driver.Note, Subject: "snapshots", Message: "the server saves only stopped sandboxes, so a snapshot ends the sandbox"}},
		Tested: "tested with a fake server, not with the real one",
	}, p.opts.URL != "", func(ctx context.Context) error {
		_, err := p.api.page(ctx, "", 1)
		return err
	}, p.api.Base)
}
