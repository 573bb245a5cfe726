package superserve

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

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
func (*Provider) EgressAbility() sandbox.EgressAbility {
	return sandbox.EgressAbility{Kind: sandbox.EgressHost, Wildcards: true}
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

// complete fills in the request for a spec, and refuses what the service does
// not support.
func (p *Provider) complete(c *creation, spec *sandbox.Spec, scope string) error {
	life := spec.Lifetime.HardTimeout()
	if err := p.Check(spec); err != nil {
		return err
	}
	if life > maxLifetime {
		return p.Unsupported("lifetime", "the service enforces at most "+maxLifetime.String(), "")
	}
	c.Name, c.Metadata = string(spec.ID), hosted.Metadata(scope, spec)
	c.Network, c.Secrets, c.Preview = egress(spec.Network.Plain), p.opts.Secrets, "private"
	if life > 0 {
		// The service pauses a sandbox at its timeout, and then removes it.
		seconds, atOnce := hosted.Seconds(life), int64(0)
		c.Timeout, c.AutoDelete = &seconds, &atOnce
	}
	return nil
}

// make makes a sandbox. begin prepares the copy of a snapshot.
func (p *Provider) make(ctx context.Context, spec *sandbox.Spec, c creation, begin func(context.Context, hosted.Inside) error) (driver.Instance, error) {
	scope, err := p.Scope()
	if err == nil {
		err = p.complete(&c, spec, scope)
	}
	if err != nil {
		return nil, err
	}
	var b box
	m := &hosted.Making{
		Spec: spec, Begin: begin,
		Ask: func(ctx context.Context) (hosted.Box, error) {
			b, err = p.request(ctx, spec.ID, &c)
			return b.describe(), err
		},
		Confirm: func() error { return p.confirm(b, &c) },
	}
	if c.Timeout != nil {
		m.Life = time.Duration(*c.Timeout) * time.Second
	}
	return p.Make(ctx, m)
}

// request requests a sandbox and reads it back. If the answer is lost or names
// another sandbox, it looks for the sandbox by its metadata.
func (p *Provider) request(ctx context.Context, id sandbox.ID, c *creation) (box, error) {
	b, err := p.api.sandbox(ctx, http.MethodPost, "/sandboxes", "", c)
	if hosted.Refused(err) {
		return box{}, err
	}
	if err == nil {
		if now, err := p.read(ctx, id, b, c); err == nil {
			return now, nil
		}
	}
	return hosted.Search(ctx, &p.api.Client, err, func() (box, error) {
		found, err := p.Find(ctx, id)
		if err != nil {
			return box{}, err
		}
		if b, err = p.awake(ctx, id, found.ID, false); err != nil {
			return box{}, err
		}
		return p.read(ctx, id, b, c)
	})
}

// read returns the service's description of a new sandbox, with its token.
func (p *Provider) read(ctx context.Context, id sandbox.ID, b box, c *creation) (box, error) {
	now, err := p.api.get(ctx, b.ID)
	if err == nil && (now.Metadata[hosted.MetaID] != string(id) || now.Metadata[hosted.MetaScope] != c.Metadata[hosted.MetaScope]) {
		err = hosted.ErrNone
	}
	now.Token, now.Hint = b.Token, b.Hint
	return now, err
}

// confirm checks that the service enforces the requested settings.
func (p *Provider) confirm(b box, c *creation) error {
	same := func(a, b *int64) bool { return a == b || a != nil && b != nil && *a == *b }
	switch {
	case !same(b.Timeout, c.Timeout) || c.AutoDelete != nil && !same(b.AutoDelete, c.AutoDelete):
		return p.Strange("the service does not confirm the lifetime of the sandbox")
	case c.Network != nil && (b.Network == nil || !slices.Equal(b.Network.AllowOut, c.Network.AllowOut) || !slices.Equal(b.Network.DenyOut, c.Network.DenyOut)):
		return p.Strange("the service does not confirm what the sandbox may reach")
	}
	return nil
}
