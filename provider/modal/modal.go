// Package modal makes sandboxes with the service Modal.
//
// The service makes, lists and ends sandboxes over gRPC. Commands run through
// another gRPC service, on the worker of a sandbox. Inside, Atoll's own guest
// does the work. The provider uploads it as input of a command, and connects to
// it with the input and the output of a command that joins it.
//
// It is tested with a fake service that the official SDK accepts, not with the
// real service.
package modal

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/modalapi"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rpc"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// Name is the name of this provider.
const Name = "modal"

// Options configure the connection to the service. The secret is the second part
// of the token.
type Options struct {
	hosted.Connection
	// TokenID is the first part of the token.
	TokenID string `json:"-"`
	// Config is the configuration file of the service's own clients. What is empty
	// in the options is read from it. Empty: none.
	Config string `json:"-"`
	// Profile is the section of Config. Empty: the one that is active.
	Profile string `json:"-"`
	// App is the name of the app that sandboxes belong to. It is created when it is
	// first needed.
	App string `json:"app"`
	// Environment is the environment of the app. Empty: the account's default.
	Environment string `json:"environment"`
	// Image is the OCI image of sandboxes that name none. Empty: DefaultImage.
	Image string `json:"image"`
}

var opening = hosted.Opening{
	Name: Name, Version: "v2", Key: "MODAL_TOKEN_SECRET", What: "token secret", URL: "MODAL_SERVER_URL", Public: "https://api.modal.com", ParseError: rpc.ParseError,
}

const (
	idEnv  = "MODAL_TOKEN_ID"
	appEnv = "MODAL_APP_NAME"
	envEnv = "MODAL_ENVIRONMENT"
	// DefaultImage is the image of sandboxes if nothing names another.
	DefaultImage = "debian:12"
	// longest is how long a sandbox may live.
	longest = 24 * time.Hour
	// grace is how much later than Atoll the service ends a sandbox, so that it is
	// clear that its lifetime was over.
	grace = 30 * time.Second
)

// FromEnvironment returns the options from the environment variables of the
// official SDK, and from further variables.
func FromEnvironment(dir string, lookup func(string) string) Options {
	opts := Options{
		Connection: opening.Connection(dir, lookup), TokenID: strings.TrimSpace(lookup(idEnv)), Profile: lookup("MODAL_PROFILE"),
		App: strings.TrimSpace(lookup(appEnv)), Environment: strings.TrimSpace(lookup(envEnv)), Image: lookup("ATOLL_MODAL_IMAGE"), Config: lookup("MODAL_CONFIG_PATH"),
	}
	if home, err := os.UserHomeDir(); opts.Config == "" && err == nil {
		opts.Config = home + "/.modal.toml"
	}
	return opts
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
	_ driver.SnapshotPauser = (*Provider)(nil)
)

// New opens the provider. It makes no network call. It removes records of
// sandboxes that ended long ago.
func New(opts Options) (*Provider, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	like, _ := opts.Transport.(*http.Transport)
	opts.Transport = rpc.Transport(like)
	login, err := opening.Login(&opts.Connection, hosted.Place{Env: idEnv, What: "token id", Value: opts.TokenID},
		hosted.Place{Env: envEnv, Value: opts.Environment, Optional: true}, hosted.Place{Env: appEnv, What: "app", Value: opts.App})
	if err != nil {
		return nil, err
	}
	a := newAPI(login, &opts)
	p := &Provider{opts: opts, api: a, Core: login.Core(a)}
	p.OpenInside, p.Expires, p.Resting = p.openInside, true, []string{running}
	p.Extend = func(in *hosted.Instance) hosted.Made { return hosted.Savable{Instance: in} }
	p.Keeper = p.Keep(&hosted.Keeper{Saver: saver{p}, Records: true})
	return p, p.Start(opts.Executable)
}

// Probe implements driver.Provider. It checks the token with the service.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	service := driver.Limit{Holds: true, By: "the service"}
	fixed := driver.Limit{Why: "the service decides", Fixed: true}
	return p.api.login.Facts(ctx, p.Core, &hosted.Description{
		Limits: map[string]driver.Limit{
			"cpus": service, "memory": service, "disk": fixed, "pids": fixed, "lifetime": {Holds: true, By: "Atoll and the service"},
		},
	}, func(ctx context.Context) error {
		_, err := p.api.List(ctx, strings.Repeat("0", 16), "") // of nobody
		return err
	})
}

// CheckImage implements driver.ImageChecker. The service fetches images. It
// cannot read images in files of this machine.
func (p *Provider) CheckImage(image string) error {
	if err := p.CheckFetched(image); err != nil {
		return err
	}
	if strings.ContainsAny(image, " \t\r\n") || image == hosted.TemplateScheme {
		return p.Unsupported(image, "it is not the name of an image", "use an image from a registry")
	}
	return nil
}

// EgressAbility implements driver.EgressEnforcer. The service matches names on
// the port of HTTPS, and addresses on all ports.
func (*Provider) EgressAbility() enforce.Ability {
	return enforce.Ability{Kind: enforce.Host, NamePorts: []uint16{443}, Wildcards: true}
}

// networkFor translates what a sandbox may reach. The service knows IPv4 only.
func networkFor(rules *sandbox.EgressRules) (n *modalapi.Network, ok bool) {
	switch {
	case rules != nil && rules.Open:
		return &modalapi.Network{Type: modalapi.Open}, true
	case rules == nil || len(rules.Allow) == 0:
		return &modalapi.Network{Type: modalapi.Blocked}, true
	}
	n = &modalapi.Network{Type: modalapi.Allowlist}
	for _, t := range rules.Allow {
		switch {
		case t.Host != "":
			n.Domains = append(n.Domains, t.Host)
		case t.Prefix.Addr().Is4():
			n.CIDRs = append(n.CIDRs, t.Prefix.String())
		default:
			return nil, false
		}
	}
	return n, true
}

// nameOf returns the service's name of a sandbox, which is short.
func nameOf(scope string, id sandbox.ID) string {
	sum := sha256.Sum256([]byte(scope + "\n" + string(id)))
	return "atoll-" + hex.EncodeToString(sum[:20])
}

// Create implements driver.Provider.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	image := spec.Image
	if image == "" || image == "host" {
		image = cmp.Or(p.opts.Image, DefaultImage)
	}
	if err := p.CheckImage(image); err != nil {
		return nil, err
	}
	return p.make(ctx, spec, image, nil)
}

// make makes a sandbox. The name is unique among the sandboxes that run, so one
// whose answer is lost is found by it.
func (p *Provider) make(ctx context.Context, spec *sandbox.Spec, image string, begin func(context.Context, hosted.Inside) error) (driver.Instance, error) {
	if err := p.Check(spec); err != nil {
		return nil, err
	}
	network, ok := networkFor(spec.Network.Plain)
	if !ok {
		return nil, p.Unsupported("network", "the service knows no IPv6 addresses", "leave them out")
	}
	life := spec.Lifetime.HardTimeout()
	if life > longest {
		return nil, p.Unsupported("lifetime", "the service ends a sandbox after 24 hours", "ask for a shorter lifetime, or for none")
	}
	if p.opts.App == "" {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "modal.create", Subject: "app", Message: "is not set", Hint: "set " + appEnv}
	}
	scope, err := p.Scope()
	if err != nil {
		return nil, err
	}
	name, limit := nameOf(scope, spec.ID), longest
	if life > 0 {
		limit = min(limit, life+grace)
	}
	milli := uint32(max(0, spec.Resources.CPUs*1000))
	mib := uint32((spec.Resources.Memory + 1<<20 - 1) >> 20)
	req := modalapi.CreateRequest{Tags: tags(scope, spec.ID), Sandbox: &modalapi.Sandbox{
		Resources: &modalapi.Resources{CPU: milli, CPUMax: milli, Memory: mib, MemoryMax: mib},
		Timeout:   uint32(hosted.Seconds(limit)), Network: network, Name: &name,
	}}
	if req.Sandbox.Image, err = p.api.image(ctx, image); err == nil {
		req.App, err = p.api.appID(ctx, modalapi.CreateIfMissing)
	}
	if err != nil {
		return nil, err
	}
	var b hosted.Sandbox
	return p.Make(ctx, &hosted.Creation{
		Spec: spec, Life: life, Begin: begin,
		Ask: func(ctx context.Context) (hosted.Sandbox, error) {
			b, err = p.request(ctx, name, &req)
			return b, err
		},
		Confirm: func() error {
			if b.Scope != scope || b.Sandbox != spec.ID {
				return p.ProtocolError("the service does not confirm whose the sandbox is")
			}
			return p.Usable(b)
		},
	})
}

// request requests a sandbox and finds it.
func (p *Provider) request(ctx context.Context, name string, req *modalapi.CreateRequest) (hosted.Sandbox, error) {
	err := p.api.forget(call(ctx, p.api, create, req, &modalapi.Created{}))
	if hosted.Refused(err) {
		return hosted.Sandbox{}, err
	}
	return hosted.Search(ctx, p.api.Client.Client, err, func() (hosted.Sandbox, error) { return p.api.named(ctx, name) })
}
