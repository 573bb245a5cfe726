// Package blaxel makes sandboxes with the service Blaxel.
//
// The service makes, lists, restores and ends sandboxes over REST, and each
// sandbox has an API of its own at another address. Inside, Atoll's own guest
// does the work. The provider uploads it, listens to the output of a command that
// joins it, and sends it input with further commands, all as text.
//
// It is tested with a fake service that the official SDK accepts, not with the
// real service.
package blaxel

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// Name is the name of this provider.
const Name = "blaxel"

// Options configure the connection to the service. The key is sent to the API,
// and to the sandboxes that the API names. URL has the version of the API.
type Options struct {
	hosted.Connection
	// Workspace is the service's workspace of sandboxes.
	Workspace string `json:"workspace"`
	// Region is where sandboxes run. Empty: the service chooses.
	Region string `json:"region"`
	// Image is the image of sandboxes that name none. Empty: DefaultImage.
	Image string `json:"image"`
}

var opening = hosted.Opening{
	Name: Name, Version: "v0", Key: "BL_API_KEY", URL: "BL_API_URL", Public: "https://api.blaxel.ai/v0", ParseError: parseError,
}

const (
	workspaceEnv = "BL_WORKSPACE"
	// DefaultImage is the image of sandboxes if nothing names another.
	DefaultImage = "blaxel/base-image:latest"
	// usual is the memory of sandboxes if nothing asks for another, in MB.
	usual = 4096
	// shortest is the shortest lifetime that the service accepts.
	shortest = 5 * time.Minute
)

// FromEnvironment returns the options from the environment variables of the
// official SDK, and from further variables.
func FromEnvironment(dir string, lookup func(string) string) Options {
	return Options{
		Connection: opening.Connection(dir, lookup), Workspace: strings.TrimSpace(lookup(workspaceEnv)), Region: lookup("BL_REGION"), Image: lookup("ATOLL_BLAXEL_IMAGE"),
	}
}

// Provider makes sandboxes with the service. Its methods may be called
// concurrently.
type Provider struct {
	*hosted.Core
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
	login, err := opening.Login(&opts.Connection, hosted.Place{Env: workspaceEnv, What: "workspace", Value: opts.Workspace})
	if err != nil {
		return nil, err
	}
	a := &api{login}
	a.Sign = func(h http.Header) {
		h.Set("X-Blaxel-Authorization", "Bearer "+a.Key.Current())
		h.Set("X-Blaxel-Workspace", opts.Workspace)
		h.Set("Blaxel-Version", version)
	}
	// The service answers so for a key that it does not know.
	a.Rejects = func(r *rest.Refusal) bool { return r.Status == http.StatusForbidden && r.Code == "UNAUTHORIZED" }
	p := &Provider{opts: opts, api: a, Core: login.Core(a)}
	p.OpenInside, p.Expires, p.Reboots, p.Partial, p.Resting = p.openInside, true, true, true, []string{deployed, archived}
	return p, p.Start(opts.Executable)
}

// Probe implements driver.Provider. It checks the key with the service.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	fixed := driver.Limit{Why: "the service decides", Fixed: true}
	return p.api.Facts(ctx, p.Core, &hosted.Description{
		Limits: map[string]driver.Limit{
			"cpus": {Why: "a sandbox has one processor for each 2 GiB of memory", Fixed: true}, "memory": {Holds: true, By: "the service's machine"},
			"disk": fixed, "pids": fixed, "lifetime": {Holds: true, By: "Atoll and the service"},
		},
	}, func(ctx context.Context) error {
		_, err := p.api.page(ctx, "", 1)
		return err
	})
}

// CheckImage implements driver.ImageChecker. The service fetches images.
func (p *Provider) CheckImage(image string) error { return p.CheckFetched(image) }

// EgressAbility implements driver.EgressEnforcer. The service's proxy matches
// names of HTTP and HTTPS.
func (*Provider) EgressAbility() enforce.Ability {
	return enforce.Ability{Kind: enforce.Host, NamePorts: []uint16{80, 443}, NamesOnly: true, Wildcards: true}
}

// Create implements driver.Provider. The name is random, so a sandbox whose
// answer is lost is found by it.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	if err := p.CheckImage(spec.Image); err != nil {
		return nil, err
	}
	if err := p.Check(spec); err != nil {
		return nil, err
	}
	rules, ok := networkFor(spec.Network.Plain)
	if !ok {
		return nil, p.Unsupported("network", "the service filters names only, not addresses", "leave the addresses out")
	}
	scope, err := p.Scope()
	if err != nil {
		return nil, err
	}
	var random [10]byte
	_, _ = rand.Read(random[:]) // Read never fails.
	asked := apiSandbox{
		Metadata: metadata{Name: "atoll-" + hex.EncodeToString(random[:]), Labels: hosted.Wanted(scope, spec.ID)},
		Spec:     sandboxSpec{Region: p.opts.Region, Network: rules, Runtime: runtime{Image: spec.Image, Memory: usual}},
	}
	if spec.Image == "" || spec.Image == "host" {
		asked.Spec.Runtime.Image = cmp.Or(p.opts.Image, DefaultImage)
	}
	if n := spec.Resources.Memory; n > 0 {
		asked.Spec.Runtime.Memory = (n + 1<<20 - 1) >> 20
	}
	life := spec.Lifetime.HardTimeout()
	if life > 0 { // Atoll ends it earlier if it has to
		asked.Spec.Runtime.TTL = ttl(max(life, shortest))
	}
	var b apiSandbox
	return p.Make(ctx, &hosted.Creation{
		Spec: spec, Life: life,
		Ask: func(ctx context.Context) (hosted.Sandbox, error) {
			b, err = p.request(ctx, spec.ID, &asked)
			return b.describe(), err
		},
		Confirm: func() error {
			switch now := b.Spec; {
			case !rules.same(now.Network):
				return p.ProtocolError("the service does not confirm the network of the sandbox")
			case !sameTTL(now.Runtime.TTL, asked.Spec.Runtime.TTL):
				return p.ProtocolError("the service does not confirm the lifetime of the sandbox")
			case spec.Resources.Memory > 0 && now.Runtime.Memory != asked.Spec.Runtime.Memory:
				return p.ProtocolError("the service does not confirm the memory of the sandbox")
			}
			return nil
		},
	})
}

// request requests a sandbox and waits until it runs.
func (p *Provider) request(ctx context.Context, id sandbox.ID, asked *apiSandbox) (b apiSandbox, err error) {
	err = p.api.Call(ctx, http.MethodPost, "/sandboxes", asked, nil)
	if hosted.Refused(err) {
		return b, err
	}
	b, err = hosted.Search(ctx, &p.api.Client, err, func() (apiSandbox, error) { return p.api.get(ctx, asked.Metadata.Name) })
	if err != nil {
		return b, err
	}
	now, err := p.Settled(ctx, id, b.Metadata.Name)
	if err == nil && now.Status != deployed {
		err = p.ProtocolError("the new sandbox is " + now.Status)
	}
	return b, err
}
