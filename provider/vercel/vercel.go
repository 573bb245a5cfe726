// Package vercel makes sandboxes with the service Vercel Sandbox.
//
// The service makes, lists, stops, resumes and ends named sandboxes over REST. A
// sandbox runs in sessions: each start makes one, and a session ends after a
// time. Inside, Atoll's own guest does the work. The provider uploads it, listens
// to the output of a command that joins it, and sends it input with further
// commands, all as text.
//
// It is tested with a fake service that the official SDK accepts, not with the
// real service.
package vercel

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// Name is the name of this provider.
const Name = "vercel"

// Options configure the connection to the service.
type Options struct {
	hosted.Connection
	// Team and Project are the IDs of the account and of the project that sandboxes
	// belong to.
	Team    string `json:"-"`
	Project string `json:"-"`
	// Region is the region of sandboxes. Empty: the service's default.
	Region string `json:"region"`
	// Image is the image of sandboxes that name none. Empty: the service's default.
	Image string `json:"image"`
	// Session is how long a session lasts. It is a duration such as "2h". Empty: 45
	// minutes.
	Session string `json:"session"`
}

var opening = hosted.Opening{
	Name: Name, Version: "v3", Key: "VERCEL_TOKEN", What: "access token", URL: "ATOLL_VERCEL_URL", Public: "https://vercel.com/api", ParseError: parseError,
}

const (
	teamEnv    = "VERCEL_TEAM_ID"
	projectEnv = "VERCEL_PROJECT_ID"
	sessionEnv = "ATOLL_VERCEL_SESSION"
	// usual is how long a session lasts. Every plan of the service permits that.
	usual = 45 * time.Minute
)

// FromEnvironment returns the options from the environment variables of the
// official SDK, and from further variables.
func FromEnvironment(dir string, lookup func(string) string) Options {
	return Options{
		Connection: opening.Connection(dir, lookup), Team: strings.TrimSpace(lookup(teamEnv)), Project: strings.TrimSpace(lookup(projectEnv)),
		Region: lookup("VERCEL_REGION"), Image: lookup("ATOLL_VERCEL_IMAGE"), Session: lookup(sessionEnv),
	}
}

// Provider makes sandboxes with the service. Its methods may be called
// concurrently.
type Provider struct {
	*hosted.Core
	*hosted.Keeper
	opts    Options
	session time.Duration
	api     *api
}

var (
	_ driver.Provider       = (*Provider)(nil)
	_ driver.EgressEnforcer = (*Provider)(nil)
	_ driver.ImageChecker   = (*Provider)(nil)
)

// New opens the provider. It makes no network call. It removes records of
// sandboxes that ended long ago.
func New(opts Options) (*Provider, error) {
	session := usual
	if opts.Session != "" {
		var err error
		if session, err = time.ParseDuration(opts.Session); err != nil || session < time.Second {
			return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "vercel.open", Subject: sessionEnv, Message: "is not a duration of at least a second"}
		}
	}
	login, err := opening.Login(&opts.Connection,
		hosted.Place{Env: teamEnv, What: "team", Value: opts.Team}, hosted.Place{Env: projectEnv, What: "project", Value: opts.Project})
	if err != nil {
		return nil, err
	}
	a := &api{login, opts.Team, opts.Project}
	p := &Provider{opts: opts, session: session, api: a, Core: login.Core(a)}
	p.OpenInside, p.Expires, p.Reboots, p.Resting = p.openInside, true, true, []string{running, stopped}
	p.Extend = func(in *hosted.Instance) hosted.Made { return Instance{hosted.Savable{Instance: in}} }
	p.Keeper = p.Keep(&hosted.Keeper{Saver: saver{p}, AtRest: true, Records: true})
	return p, p.Start(opts.Executable)
}

// Probe implements driver.Provider. It checks the token with the service.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	fixed := driver.Limit{Why: "the service decides", Fixed: true}
	return p.api.Facts(ctx, p.Core, &hosted.Description{
		Limits: map[string]driver.Limit{
			"cpus": fixed, "memory": fixed, "disk": fixed, "pids": fixed, "lifetime": {Holds: true, By: "Atoll; the service stops the sandbox when its session ends"},
		},
		Notes: []driver.Finding{{Severity: driver.Note, Subject: "snapshots", Message: "the service stops a sandbox to save it, so a snapshot ends the processes"}},
	}, func(ctx context.Context) error {
		_, err := p.api.page(ctx, p.api.query("project", "limit", "1"))
		return err
	})
}

// CheckImage implements driver.ImageChecker. The service finds images itself.
func (p *Provider) CheckImage(image string) error { return p.CheckTemplate(image) }

// EgressAbility implements driver.EgressEnforcer. The service matches names on
// the usual ports, and addresses on all ports.
func (*Provider) EgressAbility() enforce.Ability {
	return enforce.Ability{Kind: enforce.Host, NamePorts: []uint16{80, 443}, Wildcards: true}
}

// policyFor returns the policy for the permitted destinations.
func policyFor(rules *sandbox.EgressRules) *policy {
	switch {
	case rules != nil && rules.Open:
		return &policy{Mode: "allow-all"}
	case rules == nil || len(rules.Allow) == 0:
		return &policy{Mode: "deny-all"}
	}
	p := &policy{Allow: map[string][]struct{}{}}
	for _, t := range rules.Allow {
		if t.Host != "" {
			p.Allow[t.Host] = []struct{}{}
			continue
		}
		if p.Subnets == nil {
			p.Subnets = &subnets{}
		}
		p.Subnets.Allow = append(p.Subnets.Allow, t.Prefix.String())
	}
	return p
}

// Create implements driver.Provider. The name is unique, so a sandbox whose
// answer is lost is found by it.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	image, ok := hosted.Template(spec.Image, p.opts.Image)
	if !ok {
		return nil, p.CheckImage(spec.Image)
	}
	return p.make(ctx, spec, creation{Image: image})
}

// make makes a sandbox. c says from what.
func (p *Provider) make(ctx context.Context, spec *sandbox.Spec, c creation) (driver.Instance, error) {
	if err := p.Check(spec); err != nil {
		return nil, err
	}
	scope, err := p.Scope()
	if err != nil {
		return nil, err
	}
	life, session := spec.Lifetime.HardTimeout(), p.session
	if life > 0 {
		session = min(session, time.Duration(hosted.Seconds(life))*time.Second)
	}
	c.Project, c.Name, c.Region, c.Persistent = p.opts.Project, names.Of(scope, spec.ID), p.opts.Region, true
	c.Timeout, c.Tags, c.Policy = session.Milliseconds(), hosted.Wanted(scope, spec.ID), policyFor(spec.Network.Plain)
	var b apiSandbox
	return p.Make(ctx, &hosted.Creation{
		Spec: spec, Life: life,
		Ask: func(ctx context.Context) (hosted.Sandbox, error) {
			b, err = p.request(ctx, spec.ID, &c)
			return b.describe(), err
		},
		Confirm: func() error {
			switch {
			case !b.Policy.same(c.Policy):
				return p.ProtocolError("the service does not confirm the network of the sandbox")
			case b.Timeout != c.Timeout:
				return p.ProtocolError("the service does not confirm the time of the session")
			case !b.Persistent:
				return p.ProtocolError("the service does not confirm that it keeps the files of the sandbox")
			}
			return nil
		},
	})
}

// request requests a sandbox and waits until it runs.
func (p *Provider) request(ctx context.Context, id sandbox.ID, c *creation) (b apiSandbox, err error) {
	err = p.api.Call(ctx, http.MethodPost, "/v3/sandboxes?"+p.api.query("").Encode(), c, nil)
	if hosted.Refused(err) {
		return b, err
	}
	if b, err = hosted.Search(ctx, &p.api.Client, err, func() (apiSandbox, error) { return p.api.named(ctx, c.Name, false) }); err != nil {
		return b, err
	}
	now, err := p.Settled(ctx, id, b.id())
	if err == nil && now.Status != running {
		err = p.ProtocolError("the new sandbox is " + now.Status)
	}
	if err == nil {
		b, err = p.api.named(ctx, c.Name, false)
	}
	return b, err
}

// same reports whether the service's account of a policy is what was asked for.
func (p *policy) same(asked *policy) bool {
	if p == nil {
		return false
	}
	names, prefixes := p.allowed()
	wantNames, wantPrefixes := asked.allowed()
	mode := func(p *policy) string { return cmp.Or(p.Mode, "custom") }
	return mode(p) == mode(asked) && slices.Equal(names, wantNames) && slices.Equal(prefixes, wantPrefixes)
}
