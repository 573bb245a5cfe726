package e2b

import (
	"context"
	"errors"
	"iter"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/records"
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

// making limits how long a request may continue after its caller gave up.
const making = 2 * time.Minute

// Create implements driver.Provider.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	template, err := p.template(spec)
	if err != nil {
		return nil, err
	}
	return p.create(ctx, spec, template, false)
}

// create makes a sandbox from a template or a snapshot.
func (p *Provider) create(ctx context.Context, spec *sandbox.Spec, template string, copied bool) (driver.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	scope, err := p.boxes.Scope()
	if err != nil {
		return nil, err
	}
	l, err := p.boxes.Lock(ctx, string(spec.ID))
	if err != nil {
		return nil, err
	}
	if _, err := p.find(ctx, spec.ID); sandbox.CodeOf(err) != sandbox.CodeGone && !errors.Is(err, driver.ErrElsewhere) {
		l.Unlock()
		if err == nil {
			err = &sandbox.Error{Code: sandbox.CodeAlreadyExists, Op: "e2b.create", Subject: string(spec.ID), Message: "a sandbox with this ID already exists"}
		}
		return nil, err
	}
	life := spec.Lifetime.Timeout
	if life <= 0 {
		life = p.opts.Lifetime
	}
	req := newBox{Template: template, Timeout: seconds(life), Metadata: map[string]string{metaScope: scope, metaID: string(spec.ID)}}
	for k, v := range spec.Labels {
		req.Metadata[metaLabel+k] = v
	}
	req.Internet, req.Network = egress(spec.Network.Plain)
	req.copied = copied
	// A request cannot be canceled. The sandbox is complete or removed before the
	// lock is released.
	in, err := records.Finish(ctx, &p.work, func() (*Instance, error) {
		defer l.Unlock()
		return p.finalize(ctx, l, req, defaults(spec), spec.ID)
	})
	if err != nil {
		return nil, err
	}
	return in, nil
}

// template returns the template for a spec, and refuses what the service does
// not support.
func (p *Provider) template(spec *sandbox.Spec) (string, error) {
	refuse := func(subject, message, hint string) error {
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "e2b.create", Subject: subject, Message: message, Hint: hint}
	}
	switch {
	case len(spec.Mounts) > 0:
		return "", refuse("mounts", "directories of this machine are not where the sandbox is", "")
	case spec.Network.Asked() && spec.Network.Plain == nil:
		return "", refuse("network", "the rules were not translated into what the service enforces", "leave the network out: the sandbox has none")
	}
	name, ok := p.templateOf(spec.Image)
	if !ok {
		return "", p.CheckImage(spec.Image)
	}
	return name, nil
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
		Code: sandbox.CodeUnsupported, Op: "e2b.create", Subject: image, Message: "this provider makes sandboxes from the service's templates, not from images",
		Hint: "leave the image out, and set E2B_TEMPLATE to choose a template",
	}
}

// seconds rounds a lifetime up to whole seconds, as the service needs.
func seconds(d time.Duration) int64 { return max(1, int64((d+time.Second-1)/time.Second)) }

// finalize makes a sandbox ready for commands, or nothing.
func (p *Provider) finalize(ctx context.Context, l *lockedRecord, req newBox, def guest.Defaults, id sandbox.ID) (*Instance, error) {
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), making)
	defer cancel()
	b, err := p.api.create(asking, req)
	if err != nil {
		return nil, errors.Join(err, p.forget(asking, l, id, err))
	}
	b.Ends = time.Now().Add(time.Duration(req.Timeout) * time.Second)
	in := p.instance(id, b)
	binding, err := p.Binding(ctx)
	if err == nil {
		err = l.Write(record{Box: b.ID, Ends: b.Ends, Life: time.Duration(req.Timeout) * time.Second, Binding: binding})
	}
	if err == nil {
		err = in.ready(ctx, req.copied, def)
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err == nil {
		return in, nil
	}
	in.Finish(guestkit.Killed)
	return nil, errors.Join(err, p.api.kill(asking, b.ID), l.Remove())
}

// defaults are the settings of commands in a sandbox.
func defaults(spec *sandbox.Spec) guest.Defaults {
	return guest.Defaults{Env: spec.Env, User: spec.User, Workdir: spec.Workdir}
}

// ready configures the guest. In a copy, it first ends the connections of the
// original, because their other side is missing and nothing may wait for them.
func (in *Instance) ready(ctx context.Context, copied bool, def guest.Defaults) error {
	if copied {
		if err := in.inside.hangUp(ctx); err != nil {
			return in.Explain(ctx, err)
		}
	}
	return in.configure(ctx, def)
}

// configure sends the settings of commands to the guest.
func (in *Instance) configure(ctx context.Context, def guest.Defaults) error {
	return in.Use(ctx, false, func(ctx context.Context, c *guest.Client) error { return c.Configure(ctx, def) })
}

// forget removes the sandbox of a request whose answer was lost.
func (p *Provider) forget(ctx context.Context, l *lockedRecord, id sandbox.ID, why error) error {
	if sandbox.CodeOf(why) == sandbox.CodeUnavailable || sandbox.CodeOf(why) == sandbox.CodeTimeout {
		if b, err := p.find(ctx, id); err == nil {
			return errors.Join(p.api.kill(ctx, b.ID), l.Remove())
		}
	}
	return l.Remove()
}

// find looks up a sandbox of ours. If the service accepts the key and does not
// list it, it does not exist.
func (p *Provider) find(ctx context.Context, id sandbox.ID) (box, error) {
	scope, err := p.scopeOf(id)
	if err != nil {
		return box{}, err
	}
	all, err := p.named(ctx, id)
	if err != nil {
		return box{}, err
	}
	for _, b := range all {
		if b.Metadata[metaScope] == scope {
			return b, nil
		}
	}
	if len(all) > 0 {
		return box{}, driver.Elsewhere(id)
	}
	return box{}, p.absent(id)
}

// named returns the sandboxes with an ID, of all directories.
func (p *Provider) named(ctx context.Context, id sandbox.ID) (all []box, err error) {
	page, _, err := p.api.list(ctx, map[string]string{metaID: string(id)}, "", pageSize)
	for _, b := range page {
		if b.Metadata[metaID] == string(id) && b.Metadata[metaScope] != "" {
			all = append(all, b)
		}
	}
	return all, err
}

// Attach implements driver.Provider.
func (p *Provider) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b, err := p.find(ctx, id)
	if err != nil {
		return nil, err
	}
	// A listing contains no tokens.
	whole, err := p.api.get(ctx, b.ID)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return nil, guestkit.Gone(id)
	}
	if err != nil {
		return nil, err
	}
	return p.instance(id, whole), nil
}

// List implements driver.Provider.
func (p *Provider) List(ctx context.Context) iter.Seq2[driver.Found, error] {
	return func(yield func(driver.Found, error) bool) {
		err := ctx.Err()
		var scope string
		if err == nil {
			scope, err = p.boxes.Scope()
		}
		for token := ""; err == nil; {
			var page []box
			if page, token, err = p.api.list(ctx, map[string]string{metaScope: scope}, token, pageSize); err != nil {
				break
			}
			for _, b := range page {
				if f, ours := found(b, scope); ours && !yield(f, nil) {
					return
				}
			}
			if token == "" {
				p.adopted(ctx, yield)
				return
			}
		}
		yield(driver.Found{}, err)
	}
}

// adopted yields the sandboxes that this directory took over from others.
func (p *Provider) adopted(ctx context.Context, yield func(driver.Found, error) bool) {
	for _, id := range p.boxes.IDs() {
		r, _ := p.boxes.Get(id)
		if r.Scope == "" {
			continue
		}
		b, err := p.find(ctx, sandbox.ID(id))
		if code := sandbox.CodeOf(err); code == sandbox.CodeGone || code == sandbox.CodeUnauthorized {
			continue // it ended, or belongs to another account
		}
		f, _ := found(b, r.Scope)
		if !yield(f, err) || err != nil {
			return
		}
	}
}

// found converts a sandbox of the service for the driver contract.
func found(b box, scope string) (f driver.Found, ours bool) {
	f = driver.Found{ID: sandbox.ID(b.Metadata[metaID]), State: stateOf(b), Created: b.Started, Labels: map[string]string{}}
	for k, v := range b.Metadata {
		if name, ok := strings.CutPrefix(k, metaLabel); ok {
			f.Labels[name] = v
		}
	}
	return f, b.Metadata[metaScope] == scope && sandbox.ValidateName(string(f.ID)) == nil
}
