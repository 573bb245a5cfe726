package superserve

import (
	"context"
	"errors"
	"iter"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/records"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// Sandboxes are found again by their metadata; labels are metadata, too.
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

// egress says in the service's words what a sandbox may reach.
func egress(rules *sandbox.EgressRules) *network {
	n := &network{AllowOut: []string{}, DenyOut: []string{everything}}
	switch {
	case rules == nil:
	case rules.Open:
		return nil
	default:
		for _, t := range rules.Allow {
			if t.Host != "" {
				n.AllowOut = append(n.AllowOut, t.Host)
			} else {
				n.AllowOut = append(n.AllowOut, t.Prefix.String())
			}
		}
	}
	return n
}

// complete fills in what a new sandbox has of its spec, and refuses what the
// service does not have.
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
		// The service pauses a sandbox when its time is over, and removes it then.
		seconds, atOnce := max(1, int64((life+time.Second-1)/time.Second)), int64(0)
		c.Timeout, c.AutoDelete = &seconds, &atOnce
	}
	return nil
}

// make makes a sandbox. Nothing is left of one that is not returned. With bare,
// the processes of a snapshot are ended.
func (p *Provider) make(ctx context.Context, spec *sandbox.Spec, c creation, bare bool) (driver.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	scope, err := p.boxes.Scope()
	if err == nil {
		err = p.complete(&c, spec, scope)
	}
	if err != nil {
		return nil, err
	}
	find := func() error {
		_, err := p.find(ctx, spec.ID)
		return err
	}
	in, err := hosted.Create(ctx, p.boxes, &p.work, "superserve.create", spec.ID, find, func(l *records.Locked[hosted.Record]) (*Instance, error) {
		return p.settle(ctx, l, spec, &c, bare)
	})
	if err != nil {
		return nil, err
	}
	return in, nil
}

// settle makes a sandbox ready for commands, or nothing.
func (p *Provider) settle(ctx context.Context, l *records.Locked[hosted.Record], spec *sandbox.Spec, c *creation, bare bool) (*Instance, error) {
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), hosted.Making)
	defer cancel()
	b, err := p.request(asking, spec.ID, c)
	if err != nil {
		return nil, errors.Join(err, l.Remove())
	}
	var ends time.Time
	if c.Timeout != nil {
		ends = time.Now().Add(time.Duration(*c.Timeout) * time.Second)
	}
	in := p.instance(spec.ID, b, ends)
	if err = ctx.Err(); err == nil {
		err = p.confirm(b, c)
	}
	if err == nil {
		err = l.Write(hosted.Record{Box: b.ID, Ends: ends, Binding: p.api.binding(c.Metadata[metaScope])})
	}
	if err == nil && c.Snapshot != "" {
		_, err = in.inside.run(ctx, hosted.Inherited(bare))
	}
	if err == nil {
		def := guest.Defaults{Env: spec.Env, User: spec.User, Workdir: spec.Workdir, Hostname: spec.Hostname}
		err = in.Use(ctx, false, func(ctx context.Context, g *guest.Client) error { return g.Configure(ctx, def) })
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err == nil {
		return in, nil
	}
	in.Finish(guestkit.Killed)
	return nil, errors.Join(err, p.erase(asking, spec.ID, b.ID), l.Remove())
}

// searches is how often a sandbox is looked for whose making was not answered.
const searches = 3

// request asks for a sandbox and reads back what there is. If the answer does
// not come, or is about another sandbox, the one that was made is found by its
// metadata: it is never asked for twice.
func (p *Provider) request(ctx context.Context, id sandbox.ID, c *creation) (box, error) {
	b, err := p.api.create(ctx, c)
	switch code := sandbox.CodeOf(err); {
	case err == nil:
		var now box
		if now, err = p.api.get(ctx, b.ID); err == nil && now.Metadata[metaID] == string(id) && now.Metadata[metaScope] == c.Metadata[metaScope] {
			now.Token, now.Hint = b.Token, b.Hint
			return now, nil
		}
	case code != sandbox.CodeUnavailable && code != sandbox.CodeTimeout && !errors.Is(err, context.DeadlineExceeded):
		return box{}, err // it was refused
	}
	for n := range searches {
		if n > 0 {
			if err := rest.Sleep(ctx, slowPoll); err != nil {
				return box{}, err
			}
		}
		found, lookup := p.find(ctx, id)
		if lookup == nil {
			return p.api.awake(ctx, id, found.ID, false)
		}
	}
	if err == nil {
		err = p.api.strange("the service does not show the sandbox that it made")
	}
	return box{}, err
}

// confirm checks that the service enforces what it was asked for.
func (p *Provider) confirm(b box, c *creation) error {
	same := func(a, b *int64) bool { return a == b || a != nil && b != nil && *a == *b }
	switch {
	case !same(b.Timeout, c.Timeout) || c.AutoDelete != nil && !same(b.AutoDelete, c.AutoDelete):
		return p.api.strange("the service does not confirm the lifetime of the sandbox")
	case c.Network != nil && (b.Network == nil || !slices.Equal(b.Network.AllowOut, c.Network.AllowOut) || !slices.Equal(b.Network.DenyOut, c.Network.DenyOut)):
		return p.api.strange("the service does not confirm what the sandbox may reach")
	}
	return nil
}

// erase ends a sandbox. That the service does not know it counts only if it does
// not list it either.
func (p *Provider) erase(ctx context.Context, id sandbox.ID, boxID string) error {
	err := p.api.remove(ctx, boxID)
	if !missing(err) {
		return err
	}
	b, err := p.find(ctx, id)
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeGone, err == nil && b.ID != boxID:
		return nil
	case err == nil:
		return p.api.strange("the service lists the sandbox and says that it does not know it")
	}
	return err
}

// find asks the service for a sandbox of ours. That it lists none is evidence:
// it has taken the key.
func (p *Provider) find(ctx context.Context, id sandbox.ID) (box, error) {
	scope, err := p.boxes.Scope()
	if err != nil {
		return box{}, err
	}
	all, err := p.api.list(ctx, url.Values{"metadata." + metaScope: {scope}, "metadata." + metaID: {string(id)}})
	if err != nil {
		return box{}, err
	}
	for _, b := range all {
		if b.Metadata[metaScope] == scope && b.Metadata[metaID] == string(id) && b.Status != statusDeleted {
			return b, nil
		}
	}
	return box{}, p.boxes.Absent(id, p.api.binding(scope), "", "use the SUPERSERVE_API_KEY and the SUPERSERVE_BASE_URL that it was made with")
}

// Binding implements driver.Binder. The API tells a key nothing about its
// account, so the account is known by a keyed hash of the key.
func (p *Provider) Binding(ctx context.Context) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	scope, err := p.boxes.Scope()
	if err != nil {
		return "", err
	}
	return p.api.binding(scope), nil
}

func (a *api) binding(scope string) string { return hosted.Binding(a.Base, scope, a.Secrets[0]) }

// Attach implements driver.Provider. It leaves a paused sandbox paused.
func (p *Provider) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b, err := p.find(ctx, id)
	if err == nil {
		err = p.api.usable(id, b)
	}
	if err != nil {
		return nil, err
	}
	return p.instance(id, b, p.boxes.Of(id, b.ID).Ends), nil
}

// List implements driver.Provider.
func (p *Provider) List(ctx context.Context) iter.Seq2[driver.Found, error] {
	return func(yield func(driver.Found, error) bool) {
		var all []box
		scope, err := p.boxes.Scope()
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			all, err = p.api.list(ctx, url.Values{"metadata." + metaScope: {scope}})
		}
		if err != nil {
			yield(driver.Found{}, err)
			return
		}
		for _, b := range all {
			if f, ours := found(b, scope); ours && !yield(f, nil) {
				return
			}
		}
	}
}

// found is a sandbox of the service as the driver contract tells of it.
func found(b box, scope string) (f driver.Found, ours bool) {
	f = driver.Found{ID: sandbox.ID(b.Metadata[metaID]), State: stateOf(b.Status), Created: b.Created, Labels: map[string]string{}, Engine: Name}
	for k, v := range b.Metadata {
		if name, ok := strings.CutPrefix(k, metaLabel); ok {
			f.Labels[name] = v
		}
	}
	if f.State == sandbox.Failed {
		f.Exit = &sandbox.Exit{Code: -1, Reason: sandbox.ReasonCrashed, Detail: "the service says that the sandbox has failed"}
	}
	return f, f.State != sandbox.Gone && b.Metadata[metaScope] == scope && sandbox.ValidateName(string(f.ID)) == nil
}

// State implements driver.StateTeller: the service pauses a sandbox when its
// active time is over, or when another client asks for it.
func (p *Provider) State(ctx context.Context, id sandbox.ID) (sandbox.State, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	b, err := p.find(ctx, id)
	if err == nil {
		err = p.api.usable(id, b)
	}
	if err != nil {
		return "", err
	}
	return stateOf(b.Status), nil
}
