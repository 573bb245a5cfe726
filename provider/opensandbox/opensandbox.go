// Package opensandbox makes sandboxes with an OpenSandbox server, which runs
// containers of Docker or Kubernetes.
//
// The server makes, lists, resumes and ends sandboxes over REST, and forwards
// requests to the daemon execd in each of them. Inside, Atoll's own guest does
// the work. The provider uploads it through execd, listens to the output of a
// command that joins it, and sends it input with further commands, all as text.
package opensandbox

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// Name is the name of this provider.
const Name = "opensandbox"

// Options configure the connection to the server. Without a scheme, its address
// is one of HTTP, as for the official SDK.
type Options struct {
	hosted.Connection
	// Image is the OCI image of sandboxes that name none. Empty: DefaultImage.
	Image string `json:"image"`
}

var opening = hosted.Opening{Name: Name, Version: "v1", Key: "OPEN_SANDBOX_API_KEY", URL: "OPEN_SANDBOX_DOMAIN", ParseError: parseError}

const (
	// DefaultImage is the image of sandboxes if nothing names another.
	DefaultImage = "debian:12"
	// shortest is the shortest lifetime that the server accepts.
	shortest = time.Minute
)

// FromEnvironment returns the options from the environment variables of the
// official SDK, and from further variables.
func FromEnvironment(dir string, lookup func(string) string) Options {
	return Options{Connection: opening.Connection(dir, lookup), Image: lookup("ATOLL_OPENSANDBOX_IMAGE")}
}

// Provider makes sandboxes with the server. Its methods may be called
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
	_ driver.SnapshotPauser = (*Provider)(nil)
)

// New opens the provider. It makes no network call. It removes records of
// sandboxes that ended long ago.
func New(opts Options) (*Provider, error) {
	if opts.URL != "" && !strings.Contains(opts.URL, "://") {
		opts.URL = "http://" + opts.URL
	}
	login, err := opening.Login(&opts.Connection)
	if err != nil {
		return nil, err
	}
	a := &api{Login: login}
	a.Sign = func(h http.Header) {
		if key := a.Key.Current(); key != "" {
			h.Set("Open-Sandbox-Api-Key", key)
		}
	}
	p := &Provider{opts: opts, api: a, Core: login.Core(a)}
	p.OpenInside, p.Expires, p.Reboots, p.Resting = p.openInside, true, true, []string{running, paused}
	p.Extend = func(in *hosted.Instance) hosted.Made { return hosted.Savable{Instance: in} }
	p.Keeper = p.Keep(&hosted.Keeper{Saver: saver{p}, Records: true})
	return p, p.Start(opts.Executable)
}

// Probe implements driver.Provider. It checks the key with the server.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	container := driver.Limit{Holds: true, By: "the server's container"}
	other := driver.Limit{Why: "the server's configuration decides", Fixed: true}
	return p.api.Facts(ctx, p.Core, &hosted.Description{
		Limits: map[string]driver.Limit{
			"cpus": container, "memory": container, "disk": other, "pids": other, "lifetime": {Holds: true, By: "Atoll and the server"},
		},
		Tested: "tested with a fake server, and with the real one on Docker, whose images of execd and of the sidecar were replaced",
	}, func(ctx context.Context) error {
		_, err := p.api.page(ctx, 1, 1, nil)
		return err
	})
}

// CheckImage implements driver.ImageChecker. The server fetches images.
func (p *Provider) CheckImage(image string) error { return p.CheckFetched(image) }

// EgressAbility implements driver.EgressEnforcer. The server matches names and
// addresses on all ports.
func (*Provider) EgressAbility() enforce.Ability {
	return enforce.Ability{Kind: enforce.Host, Wildcards: true}
}

// Create implements driver.Provider.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	if err := p.CheckImage(spec.Image); err != nil {
		return nil, err
	}
	c := creation{Image: &image{URI: spec.Image}}
	if spec.Image == "" || spec.Image == "host" {
		c.Image.URI = cmp.Or(p.opts.Image, DefaultImage)
	}
	return p.make(ctx, spec, c, nil)
}

// make makes a sandbox of an image or a snapshot. Names are not unique, so one
// whose answer is lost is found by its metadata.
func (p *Provider) make(ctx context.Context, spec *sandbox.Spec, c creation, begin func(context.Context, hosted.Inside) error) (driver.Instance, error) {
	if err := p.Check(spec); err != nil {
		return nil, err
	}
	scope, err := p.Scope()
	if err != nil {
		return nil, err
	}
	c.Entrypoint, c.Limits, c.Metadata = []string{"tail", "-f", "/dev/null"}, map[string]string{}, hosted.Wanted(scope, spec.ID)
	if n := spec.Resources.CPUs; n > 0 {
		c.Limits["cpu"] = strconv.FormatInt(max(1, int64(n*1000)), 10) + "m"
	}
	if n := spec.Resources.Memory; n > 0 {
		c.Limits["memory"] = strconv.FormatInt(n, 10)
	}
	life := spec.Lifetime.HardTimeout()
	if life > 0 { // Atoll ends it earlier if it has to
		seconds := hosted.Seconds(max(life, shortest))
		c.Timeout = &seconds
	}
	c.Network = policyFor(spec.Network.Plain)
	var b apiSandbox
	var enforced policy
	return p.Make(ctx, &hosted.Creation{
		Spec: spec, Life: life, Begin: begin,
		Ask: func(ctx context.Context) (hosted.Sandbox, error) {
			if b, err = p.request(ctx, scope, spec.ID, &c); err == nil && c.Network != nil {
				enforced, err = p.api.enforced(ctx, b.ID)
			}
			return b.describe(), err
		},
		Confirm: func() error {
			if c.Network != nil && !c.Network.same(enforced) {
				return p.ProtocolError("the server does not confirm the network of the sandbox")
			}
			if c.Timeout != nil && !b.lives(time.Duration(*c.Timeout)*time.Second) {
				return p.ProtocolError("the server does not confirm the lifetime of the sandbox")
			}
			return nil
		},
	})
}

// request requests a sandbox and waits until it runs.
func (p *Provider) request(ctx context.Context, scope string, id sandbox.ID, c *creation) (b apiSandbox, err error) {
	err = p.api.Call(ctx, http.MethodPost, "/v1/sandboxes", c, nil)
	if r := rest.RefusalOf(err); r.Ours && c.Image != nil && strings.HasSuffix(r.Code, "IMAGE_PULL_FAILED") {
		return b, &sandbox.Error{
			Code: sandbox.CodeNotFound, Op: "opensandbox.create", Subject: c.Image.URI, Message: "the server cannot fetch the image: " + p.api.Clip(r.Text),
			Hint: "check its name, and that the server reaches its registry", Cause: err,
		}
	}
	if hosted.Refused(err) {
		return b, err
	}
	b, err = hosted.Search(ctx, &p.api.Client, err, func() (b apiSandbox, err error) {
		err = hosted.ErrNone
		found, listErr := p.api.List(ctx, scope, id)
		if len(found) > 0 {
			b, err = p.api.get(ctx, found[0].ID)
		}
		return b, cmp.Or(listErr, err)
	})
	if err != nil {
		return b, err
	}
	now, err := p.Settled(ctx, id, b.ID)
	if err == nil && now.Status != running {
		err = p.ProtocolError("the new sandbox is " + now.Status)
	}
	if err == nil {
		err = p.api.ready(ctx, b.ID)
	}
	return b, err
}
