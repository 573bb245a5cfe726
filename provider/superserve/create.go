package superserve

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// Sandboxes are identified by their metadata. Labels are metadata too.
const (
	metaScope = "atoll-scope"
	metaID    = "atoll-id"
	metaLabel = "label."
)

// TemplateScheme begins an image that is a template of the service.
const TemplateScheme = "template:"

// The longest lifetime that the service enforces.
const maxLifetime = 7 * 24 * time.Hour

// Create implements driver.Provider.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	template, ok := p.templateOf(spec.Image)
	if !ok {
		return nil, p.CheckImage(spec.Image)
	}
	return p.make(ctx, spec, creation{Template: template}, false)
}

// templateOf returns the template that an image names.
func (p *Provider) templateOf(image string) (string, bool) {
	if image == "" || image == "host" {
		return p.opts.Template, true
	}
	name, ok := strings.CutPrefix(image, TemplateScheme)
	return name, ok && name != ""
}

// CheckImage implements driver.ImageChecker.
func (p *Provider) CheckImage(image string) error {
	if _, ok := p.templateOf(image); ok {
		return nil
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnsupported, Op: "superserve.create", Subject: image, Message: "this provider makes sandboxes from the service's templates, not from images",
		Hint: "leave the image out, or use " + TemplateScheme + "NAME",
	}
}

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
	refuse := func(subject, message, hint string) error {
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "superserve.create", Subject: subject, Message: message, Hint: hint}
	}
	life := spec.Lifetime.HardTimeout()
	switch {
	case len(spec.Mounts) > 0:
		return refuse("mounts", "directories of this machine are not where the sandbox is", "")
	case spec.Network.Asked() && spec.Network.Plain == nil:
		return refuse("network", "the rules were not translated into what the service enforces", "leave the network out: the sandbox has none")
	case life > maxLifetime:
		return refuse("lifetime", "the service enforces at most "+maxLifetime.String(), "")
	}
	c.Name, c.Metadata = string(spec.ID), map[string]string{metaScope: scope, metaID: string(spec.ID)}
	for k, v := range spec.Labels {
		c.Metadata[metaLabel+k] = v
	}
	c.Network, c.Secrets, c.Preview = egress(spec.Network.Plain), p.opts.Secrets, "private"
	if life > 0 {
		// The service pauses a sandbox at its timeout, and then removes it.
		seconds, atOnce := max(1, int64((life+time.Second-1)/time.Second)), int64(0)
		c.Timeout, c.AutoDelete = &seconds, &atOnce
	}
	return nil
}

// make makes a sandbox. With bare, the processes of a snapshot are ended.
func (p *Provider) make(ctx context.Context, spec *sandbox.Spec, c creation, bare bool) (driver.Instance, error) {
	scope, err := p.Scope()
	if err == nil {
		err = p.complete(&c, spec, scope)
	}
	if err != nil {
		return nil, err
	}
	var b box
	m := &hosted.Making[*Instance]{
		Spec: spec,
		Ask: func(ctx context.Context) (hosted.Box, error) {
			b, err = p.request(ctx, spec.ID, &c)
			return b.describe(), err
		},
		Confirm: func() error { return p.confirm(b, &c) },
		Instance: func(_ hosted.Box, ends time.Time) *Instance {
			in := p.instance(spec.ID, b.ID, ends)
			in.inside.set(b)
			return in
		},
	}
	if c.Timeout != nil {
		m.Life = time.Duration(*c.Timeout) * time.Second
	}
	if c.Snapshot != "" {
		m.Begin = func(ctx context.Context, in *Instance) error {
			_, err := in.inside.Run(ctx, hosted.Inherited(bare))
			return err
		}
	}
	return hosted.Make(ctx, p.Core, m)
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
	if err == nil && (now.Metadata[metaID] != string(id) || now.Metadata[metaScope] != c.Metadata[metaScope]) {
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

// Attach implements driver.Provider. It leaves a paused sandbox paused.
func (p *Provider) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	b, err := p.Present(ctx, id)
	if err != nil {
		return nil, err
	}
	return p.instance(id, b.ID, p.Of(id, b.ID).Ends), nil
}
