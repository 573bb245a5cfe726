// Package microsandbox makes sandboxes with the cloud of microsandbox, which
// runs micro-VMs.
//
// The service makes, lists, starts and ends sandboxes over REST. A WebSocket
// leads to the agent in a sandbox, which runs commands with input and output in
// bytes. Inside, Atoll's own guest does the work.
//
// It is tested with a fake service that the official SDK accepts, not with the
// real service.
package microsandbox

import (
	"cmp"
	"context"
	"net/http"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// Name is the name of this provider.
const Name = "microsandbox"

// Options configure the connection to the service.
type Options struct {
	hosted.Connection
	// Image is the OCI image of sandboxes that name none. Empty: DefaultImage.
	Image string `json:"image"`
}

var opening = hosted.Opening{
	Name: Name, Version: "v1", Key: "MSB_API_KEY", URL: "MSB_API_URL", Public: "https://api.microsandbox.dev", ParseError: parseError,
}

const (
	// DefaultImage is the image of sandboxes if nothing names another.
	DefaultImage = "debian:12"

	mib     = 1 << 20
	maxCPUs = 255
)

// FromEnvironment returns the options from the environment variables of the
// official SDK, and from further variables.
func FromEnvironment(dir string, lookup func(string) string) Options {
	return Options{Connection: opening.Connection(dir, lookup), Image: lookup("ATOLL_MICROSANDBOX_IMAGE")}
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
	login, err := opening.Login(&opts.Connection)
	if err != nil {
		return nil, err
	}
	a := &api{login}
	p := &Provider{opts: opts, api: a, Core: login.Core(a)}
	p.Expires, p.Reboots, p.Marks, p.Resting = true, true, true, []string{running, stopped, created}
	p.OpenInside = func(b hosted.Sandbox) hosted.Inside { return &inside{p: p, sandbox: b.ID, name: b.Sandbox} }
	p.Extend = func(in *hosted.Instance) hosted.Made { return Instance{hosted.Savable{Instance: in}} }
	p.Keeper = p.Keep(&hosted.Keeper{Saver: saver{p}, AtRest: true})
	return p, p.Start(opts.Executable)
}

// Probe implements driver.Provider. It checks the key with the service.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	vm := driver.Limit{Holds: true, By: "the micro-VM"}
	return p.api.Facts(ctx, p.Core, &hosted.Description{
		Limits: map[string]driver.Limit{
			"cpus": vm, "memory": vm, "disk": vm, "pids": {Why: "the service has no limit for processes", Fixed: true},
			"lifetime": {Holds: true, By: "Atoll, and the service, which stops the sandbox"},
		},
		Notes: []driver.Finding{{Severity: driver.Note, Subject: "snapshots", Message: "the service saves only stopped sandboxes, so a snapshot ends the sandbox"}},
	}, func(ctx context.Context) error {
		_, err := page[apiSandbox](ctx, p.api, sandboxes, "", 1)
		return err
	})
}

// CheckImage implements driver.ImageChecker. The service fetches images.
func (p *Provider) CheckImage(image string) error { return p.CheckFetched(image) }

// EgressAbility implements driver.EgressEnforcer. The service matches names and
// addresses on all ports.
func (*Provider) EgressAbility() enforce.Ability {
	return enforce.Ability{Kind: enforce.Host, Wildcards: true}
}

// creation is the request for a new sandbox.
type creation struct {
	Source    string            `json:"source"`
	Name      string            `json:"name"`
	Image     string            `json:"reference,omitempty"`
	Snapshot  *location         `json:"disk_snapshot_ref,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Resources resources         `json:"resources"`
	Network   network           `json:"network"`
	Lifecycle lifecycle         `json:"lifecycle"`
}

type resources struct {
	CPUs   int64 `json:"vcpus,omitempty"`
	Memory int64 `json:"memory_mib,omitempty"`
	Disk   int64 `json:"disk_size_mib,omitempty"`
}

type lifecycle struct {
	Ephemeral bool  `json:"ephemeral"`                   // it is removed when it stops
	Seconds   int64 `json:"max_duration_secs,omitempty"` // then it is stopped
}

// Create implements driver.Provider. The service keeps names unique, so a sandbox
// whose answer is lost is found by its name.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	if err := p.CheckImage(spec.Image); err != nil {
		return nil, err
	}
	return p.make(ctx, spec, func(*creation) error { return nil })
}

// make makes a sandbox. adapt changes the request.
func (p *Provider) make(ctx context.Context, spec *sandbox.Spec, adapt func(*creation) error) (driver.Instance, error) {
	if err := p.Check(spec); err != nil {
		return nil, err
	}
	r := spec.Resources
	if r.CPUs != float64(int64(r.CPUs)) || r.CPUs > maxCPUs {
		return nil, p.Unsupported("cpus", "the service gives whole processors", "ask for a whole number")
	}
	scope, err := p.Scope()
	if err != nil {
		return nil, err
	}
	c := creation{Source: "oci", Name: names.Of(scope, spec.ID), Image: spec.Image, Network: networkFor(spec.Network.Plain)}
	if spec.Image == "" || spec.Image == "host" {
		c.Image = cmp.Or(p.opts.Image, DefaultImage)
	}
	c.Resources = resources{CPUs: int64(r.CPUs), Memory: (r.Memory + mib - 1) / mib, Disk: (r.Disk + mib - 1) / mib}
	life := spec.Lifetime.HardTimeout()
	if life > 0 {
		c.Lifecycle.Seconds = hosted.Seconds(life)
	}
	if err := adapt(&c); err != nil {
		return nil, err
	}
	var b apiSandbox
	return p.Make(ctx, &hosted.Creation{
		Spec: spec, Life: life,
		Ask: func(ctx context.Context) (hosted.Sandbox, error) {
			b, err = p.request(ctx, spec.ID, &c)
			return b.describe(), err
		},
		Confirm: func() error { return p.confirm(b, &c) },
	})
}

// request requests a sandbox and waits until it runs.
func (p *Provider) request(ctx context.Context, id sandbox.ID, c *creation) (b apiSandbox, err error) {
	err = p.api.Call(ctx, http.MethodPost, sandboxes+"?start=true", c, nil)
	if hosted.Refused(err) {
		return b, err
	}
	b, err = hosted.Search(ctx, &p.api.Client, err, func() (apiSandbox, error) { return p.api.named(ctx, c.Name) })
	if err != nil {
		return b, err
	}
	now, err := p.Settled(ctx, id, b.ID)
	if err == nil && now.Status != running {
		err = p.ProtocolError("the new sandbox is " + now.Status)
	}
	return b, err
}

// confirm checks what the service shows of a new sandbox. It need not show
// everything.
func (p *Provider) confirm(b apiSandbox, c *creation) error {
	switch {
	case b.Ephemeral:
		return p.ProtocolError("the service removes the sandbox when it stops")
	case b.Spec == nil:
		return nil
	case b.Spec.Network != nil && !c.Network.same(b.Spec.Network):
		return p.ProtocolError("the service does not confirm the network of the sandbox")
	case b.Spec.Lifecycle != nil && b.Spec.Lifecycle.Seconds != c.Lifecycle.Seconds:
		return p.ProtocolError("the service does not confirm the lifetime of the sandbox")
	}
	return nil
}
