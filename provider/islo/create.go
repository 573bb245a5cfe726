package islo

import (
	"context"
	"crypto/rand"
	"math"
	"net/http"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

// Create implements driver.Provider.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	if err := p.CheckImage(spec.Image); err != nil {
		return nil, err
	}
	image := spec.Image
	if image == "" || image == "host" {
		image = p.opts.Image
	}
	return p.make(ctx, spec, creation{Image: image}, nil)
}

// CheckImage implements driver.ImageChecker: the service fetches images.
func (p *Provider) CheckImage(image string) error { return p.CheckFetched(image) }

// complete fills in the request for a spec, and refuses what the service does
// not support.
func (p *Provider) complete(c *creation, spec *sandbox.Spec) (own *profile, err error) {
	cpus := spec.Resources.CPUs
	if err := p.Check(spec); err != nil {
		return nil, err
	}
	if cpus != math.Trunc(cpus) {
		return nil, p.Unsupported("cpus", "the service has whole processors only", "ask for a whole number")
	}
	up := func(n, unit int64) int64 { return (n + unit - 1) / unit }
	c.size = size{CPUs: int64(cpus), Memory: up(spec.Resources.Memory, 1<<20), Disk: up(spec.Resources.Disk, 1<<30)}
	// Using a sandbox does not wake it; only Resume does. The service counts
	// lifetimes in minutes.
	c.Lifecycle = lifecycle{AutoResume: "never", DeleteAfter: 60 * up(int64(spec.Lifetime.HardTimeout()), int64(time.Minute))}
	c.Request = rand.Text()
	internet := false
	if c.Name, err = p.api.own(string(spec.ID)); err != nil {
		return nil, err
	}
	if !spec.Network.Asked() && p.opts.Profile != "" {
		c.Profile = p.opts.Profile
		return nil, nil
	}
	if own = p.profileOf(c.Name, spec.Network.Plain); own != nil {
		internet = true
	}
	c.Internet = &internet
	return own, nil
}

// make creates the gateway profile, then the sandbox. begin prepares the copy
// of a snapshot.
func (p *Provider) make(ctx context.Context, spec *sandbox.Spec, c creation, begin func(context.Context, hosted.Inside) error) (driver.Instance, error) {
	own, err := p.complete(&c, spec)
	if err != nil {
		return nil, err
	}
	var b apiSandbox
	m := &hosted.Creation{
		Spec: spec, Life: spec.Lifetime.HardTimeout(), More: own != nil, Begin: begin,
		Ask: func(ctx context.Context) (hosted.Sandbox, error) {
			b, err = p.request(ctx, spec.ID, &c)
			return b.describe(), err
		},
		Confirm: func() error {
			same := func(got, asked int64) bool { return asked == 0 || got == asked }
			switch {
			case !same(b.Spec.CPUs, c.CPUs) || !same(b.Spec.Memory, c.Memory) || !same(b.Spec.Disk, c.Disk):
				return p.ProtocolError("the service does not confirm the size of the sandbox")
			case b.Lifecycle.DeleteAfter != c.Lifecycle.DeleteAfter:
				return p.ProtocolError("the service does not confirm the lifetime of the sandbox")
			}
			return nil
		},
	}
	if own != nil {
		m.Prepare = func(ctx context.Context) (err error) {
			c.Profile, err = p.api.addProfile(ctx, own)
			return err
		}
	}
	return p.Make(ctx, m)
}

// request requests a sandbox and waits until it runs. If the answer is lost or
// names another sandbox, it looks for the sandbox by its unique name.
func (p *Provider) request(ctx context.Context, id sandbox.ID, c *creation) (b apiSandbox, err error) {
	_, err = p.api.sandbox(ctx, http.MethodPost, "/sandboxes", c.Name, c)
	if hosted.Refused(err) {
		return b, err
	}
	if b, err = hosted.Search(ctx, &p.api.Client, err, func() (apiSandbox, error) { return p.api.get(ctx, c.Name) }); err != nil {
		return b, err
	}
	now, err := p.Settled(ctx, id, "")
	if err == nil && now.Status != statusRunning {
		err = p.ProtocolError("the new sandbox is " + now.Status)
	}
	if err == nil {
		b, err = p.api.get(ctx, c.Name)
	}
	return b, err
}
