package e2b

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// Create implements driver.Provider.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	template, ok := hosted.Template(spec.Image, p.opts.Template)
	if !ok {
		return nil, p.CheckImage(spec.Image)
	}
	return p.make(ctx, spec, template, nil)
}

// CheckImage implements driver.ImageChecker.
func (p *Provider) CheckImage(image string) error { return p.CheckTemplate(image) }

// EgressAbility implements driver.EgressEnforcer. The service matches names in
// HTTP requests and TLS hellos on their usual ports, and addresses on all
// ports.
func (*Provider) EgressAbility() enforce.Ability {
	return enforce.Ability{Kind: enforce.Host, NamePorts: []uint16{80, 443}, Wildcards: true}
}

// egress converts egress rules to the service's format. It denies everything
// else in both ways that the service has.
func egress(rules *sandbox.EgressRules) (internet bool, n *sandboxNetwork) {
	if rules != nil && rules.Open {
		return true, nil
	}
	if allow := hosted.Destinations(rules); len(allow) > 0 {
		n = &sandboxNetwork{AllowOut: allow, DenyOut: []string{"0.0.0.0/0"}}
	}
	return false, n
}

// make makes a sandbox from a template or a snapshot. begin prepares the copy
// of a snapshot.
func (p *Provider) make(ctx context.Context, spec *sandbox.Spec, template string, begin func(context.Context, hosted.Inside) error) (driver.Instance, error) {
	if err := p.Check(spec); err != nil {
		return nil, err
	}
	scope, err := p.Scope()
	if err != nil {
		return nil, err
	}
	life := spec.Lifetime.Timeout
	if life <= 0 {
		life = p.opts.Lifetime
	}
	req := newSandbox{Template: template, Timeout: hosted.Seconds(life), Metadata: hosted.Metadata(scope, spec)}
	req.Internet, req.Network = egress(spec.Network.Plain)
	return p.Make(ctx, &hosted.Creation{
		Spec: spec, Life: time.Duration(req.Timeout) * time.Second, Again: true, Begin: begin,
		Ask: func(ctx context.Context) (hosted.Sandbox, error) {
			b, err := p.api.create(ctx, &req)
			if err == nil || hosted.Refused(err) {
				b.Ends = time.Now().Add(time.Duration(req.Timeout) * time.Second)
				return b.describe(), err
			}
			return hosted.Search(ctx, &p.api.Client, err, func() (hosted.Sandbox, error) {
				found, err := p.Find(ctx, spec.ID)
				if err != nil {
					return found, err
				}
				return p.api.Get(ctx, spec.ID, found.ID)
			})
		},
	})
}

// Instance is a sandbox of the service. A guest inside runs commands and
// accesses files.
type Instance struct {
	hosted.Savable
	p      *Provider
	inside *inside
}

// SetDeadline implements driver.DeadlineSetter. The service uses whole seconds
// and requires a deadline: "never" becomes the longest lifetime.
func (in *Instance) SetDeadline(ctx context.Context, at time.Time) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, ended := in.Ended(); ended {
		return guestkit.Gone(in.ID())
	}
	life := in.p.opts.Lifetime
	if !at.IsZero() {
		life = time.Until(at)
	}
	ends := time.Now().Add(time.Duration(hosted.Seconds(life)) * time.Second)
	switch err := in.p.api.post(ctx, in.Sandbox, "timeout", timeout(life)); {
	case missing(err):
		return in.Explain(ctx, err)
	case err != nil:
		return err
	}
	in.SetEnds(ends)
	return in.p.Change(ctx, in.ID(), in.Sandbox, func(r *hosted.Record) { r.Ends = ends })
}

// Usage implements driver.Meter. The service reports the load of the
// processors, but no processor time.
func (in *Instance) Usage(ctx context.Context) (sandbox.Usage, error) {
	if _, ended := in.Ended(); ended {
		return sandbox.Usage{}, guestkit.Gone(in.ID())
	}
	m, err := in.inside.metrics(ctx)
	if err != nil {
		return sandbox.Usage{}, in.Explain(ctx, err)
	}
	return sandbox.Usage{CPU: -1, Memory: int64(m.MemUsed), Disk: int64(m.DiskUsed), PIDs: -1, Sampled: time.Unix(m.At, 0)}, nil
}
