package boxlite

import (
	"context"
	"errors"
	"iter"
	"maps"
	"net/http"
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

// creation asks for a box. What is not set is not sent.
type creation struct {
	Name       string   `json:"name"`
	Image      string   `json:"image,omitempty"`
	CPUs       int64    `json:"cpus,omitempty"`
	Memory     int64    `json:"memory_mib,omitempty"`
	Disk       int64    `json:"disk_size_gb,omitempty"`
	User       string   `json:"user"`
	Volumes    []volume `json:"volumes,omitempty"`
	Network    network  `json:"network"`
	Detach     bool     `json:"detach"`
	AutoStop   int64    `json:"auto_stop"`
	AutoDelete int64    `json:"auto_delete"`
	AutoResume bool     `json:"auto_resume"`
}

// volume is a managed volume at a path.
type volume struct {
	Managed string `json:"managed_volume"`
	Path    string `json:"guest_path"`
}

type network struct {
	Outbound flow `json:"outbound"`
	Inbound  flow `json:"inbound"`
}

// flow is what may pass in a direction. With an empty list of an enabled one,
// everything may.
type flow struct {
	Mode  string   `json:"mode"`
	Allow []string `json:"allow_net,omitempty"`
}

const (
	enabled  = "enabled"
	disabled = "disabled"
)

// EgressAbility implements driver.EgressEnforcer: names and addresses, with all
// their ports.
func (*Provider) EgressAbility() sandbox.EgressAbility {
	return sandbox.EgressAbility{Kind: sandbox.EgressHost, Wildcards: true}
}

// egress says in the server's words what a sandbox may reach. Nothing is a mode
// and not an empty list, which would be everything.
func egress(rules *sandbox.EgressRules) flow {
	f := flow{Mode: disabled}
	if rules == nil {
		return f
	}
	for _, t := range rules.Allow {
		if t.Host != "" {
			f.Allow = append(f.Allow, t.Host)
		} else {
			f.Allow = append(f.Allow, t.Prefix.String())
		}
	}
	switch {
	case rules.Open:
		return flow{Mode: enabled}
	case len(f.Allow) > 0:
		f.Mode = enabled
	}
	return f
}

// CheckImage implements driver.ImageChecker. The server fetches images; it
// cannot read those that are files of this machine.
func (p *Provider) CheckImage(image string) error {
	for _, scheme := range []string{"dir:", "tar:", "oci:"} {
		if strings.HasPrefix(image, scheme) {
			return &sandbox.Error{
				Code: sandbox.CodeUnsupported, Op: "boxlite.create", Subject: image, Message: "the server cannot read images of this machine", Hint: "name an image of a registry",
			}
		}
	}
	return nil
}

const (
	mib       = 1 << 20
	gib       = 1 << 30
	maxCPUs   = 32
	minMemory = 128 * mib
)

// complete fills in what a new box has of a spec, and refuses what the server
// does not have.
func (p *Provider) complete(c *creation, spec *sandbox.Spec, scope string) error {
	refuse := func(subject, message, hint string) error {
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "boxlite.create", Subject: subject, Message: message, Hint: hint}
	}
	r := spec.Resources
	switch {
	case len(spec.Mounts) > 0:
		return refuse("mounts", "directories of this machine are not where the sandbox is", "")
	case spec.Network.Asked() && spec.Network.Plain == nil:
		return refuse("network", "the rules were not translated into what the server enforces", "leave the network out: the sandbox has none")
	case r.CPUs != float64(int64(r.CPUs)) || r.CPUs > maxCPUs:
		return refuse("cpus", "the server gives whole processors, and at most 32", "ask for a whole number")
	case r.Memory > 0 && r.Memory < minMemory:
		return refuse("memory", "the server gives at least 128 MiB", "ask for more")
	}
	if c.Image = p.opts.Image; spec.Image != "" && spec.Image != "host" {
		c.Image = spec.Image
	}
	c.Name, c.User, c.Volumes, c.Detach = boxName(scope, spec.ID), "0:0", p.volumes, true
	c.CPUs, c.Memory, c.Disk = int64(r.CPUs), r.Memory/mib, (r.Disk+gib-1)/gib
	c.Network = network{Outbound: egress(spec.Network.Plain), Inbound: flow{Mode: disabled}}
	if life := spec.Lifetime.HardTimeout(); life > 0 {
		// A box that was idle for as long as its lifetime is older than that: the
		// server stops those that nobody else ends. It must not remove them, as it
		// would remove snapshots, too.
		c.AutoStop = int64((life + time.Second - 1) / time.Second)
	}
	return nil
}

// boxName is the name of a sandbox for the server, which gives each name once.
func boxName(scope string, id sandbox.ID) string { return namesOf(scope) + string(id) }

// namesOf is how the names of all our boxes begin.
func namesOf(scope string) string { return "atoll-" + scope + "-box-" }

// Create implements driver.Provider.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	if err := p.CheckImage(spec.Image); err != nil {
		return nil, err
	}
	return p.make(ctx, spec, p.request)
}

// make makes a sandbox whose box ask asks for. Nothing is left of one that is
// not returned.
func (p *Provider) make(ctx context.Context, spec *sandbox.Spec, ask func(context.Context, *creation) (box, error)) (driver.Instance, error) {
	var c creation
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
	in, err := hosted.Create(ctx, p.boxes, &p.work, "boxlite.create", spec.ID, find, func(l *records.Locked[hosted.Record]) (*Instance, error) {
		return p.settle(ctx, l, spec, &c, ask)
	})
	if err != nil {
		return nil, err
	}
	return in, nil
}

// settle makes a sandbox ready for commands, or nothing.
func (p *Provider) settle(ctx context.Context, l *records.Locked[hosted.Record], spec *sandbox.Spec, c *creation, ask func(context.Context, *creation) (box, error)) (*Instance, error) {
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), hosted.Making)
	defer cancel()
	b, err := ask(asking, c)
	if err != nil {
		return nil, errors.Join(err, l.Remove())
	}
	var ends time.Time
	if life := spec.Lifetime.HardTimeout(); life > 0 {
		ends = time.Now().Add(life)
	}
	in := p.instance(spec.ID, b.ID, ends)
	if err = ctx.Err(); err == nil {
		err = p.confirm(b, c)
	}
	if err == nil {
		err = p.remember(asking, l, hosted.Record{Box: b.ID, Ends: ends, Network: c.Network.Outbound.digest(), Labels: spec.Labels})
	}
	if err == nil {
		err = p.api.start(asking, spec.ID, b.ID)
	}
	if err == nil && c.Network.Outbound.Mode == disabled {
		err = in.inside.isolated(ctx)
	}
	if err == nil {
		// The guest keeps it in the box: whoever starts that again, with whatever
		// client, starts a guest that knows it.
		def := guest.Defaults{Env: spec.Env, User: spec.User, Workdir: spec.Workdir, Hostname: spec.Hostname}
		err = in.Use(ctx, false, func(ctx context.Context, g *guest.Client) error { return g.Configure(ctx, def) })
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err == nil {
		p.expiry.Watch(spec.ID, ends)
		return in, nil
	}
	in.Finish(guestkit.Killed)
	return nil, errors.Join(err, p.erase(asking, spec.ID, b.ID), l.Remove())
}

// remember writes the record of a sandbox of the present account.
func (p *Provider) remember(ctx context.Context, l *records.Locked[hosted.Record], r hosted.Record) (err error) {
	who, err := p.api.account(ctx)
	if err == nil {
		r.Account = who.name()
		r.Binding, err = p.Binding(ctx)
	}
	if err != nil {
		return err
	}
	return l.Write(r)
}

// searches is how often a box is looked for whose making was not answered.
const searches = 3

// request asks for a box, with a key by which the server knows the same request.
// If the answer does not come, or is about another box, the one that was made is
// found by its name: it is never asked for with another key.
func (p *Provider) request(ctx context.Context, c *creation) (box, error) {
	where, err := p.api.path(ctx, "/boxes")
	if err != nil {
		return box{}, err
	}
	client, key := p.api.Client, hosted.NewKey()
	client.Sign = func(h http.Header) {
		p.api.Sign(h)
		h.Set("Idempotency-Key", key)
	}
	var b box
	err = client.Call(ctx, http.MethodPost, where, c, &b)
	return p.api.made(ctx, c.Name, b, p.api.check(b, c.Name, err))
}

// made reads back what there is of a box that was asked for.
func (a *api) made(ctx context.Context, name string, b box, err error) (box, error) {
	switch code := sandbox.CodeOf(err); {
	case err == nil:
		if now, err := a.get(ctx, b.ID); err == nil && now.Name == name {
			return now, nil
		}
	case code == sandbox.CodeUnavailable, code == sandbox.CodeTimeout, code == sandbox.CodeConflict, errors.Is(err, context.DeadlineExceeded):
	default:
		return box{}, err // it was refused
	}
	for n := range searches {
		if n > 0 {
			if err := rest.Sleep(ctx, slowPoll); err != nil {
				return box{}, err
			}
		}
		if now, lookup := a.named(ctx, name); lookup == nil {
			return now, nil
		}
	}
	if err == nil {
		err = a.strange("the server does not show the box that it made")
	}
	return box{}, err
}

// confirm checks that a box is as it was asked for.
func (p *Provider) confirm(b box, c *creation) error {
	switch {
	case c.CPUs > 0 && b.CPUs != c.CPUs, c.Memory > 0 && b.Memory != c.Memory:
		return p.api.strange("the server does not confirm the size of the box")
	case b.AutoStop != c.AutoStop || b.AutoDelete != c.AutoDelete:
		return p.api.strange("the server does not confirm the lifetime of the box")
	}
	return nil
}

// erase ends a box. That the server does not know it counts only if it does not
// list it either.
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
		return p.api.strange("the server lists the box and says that it does not know it")
	}
	return err
}

// named returns the box with a name. That there is none is CodeNotFound: the
// server says so, and does not list it.
func (a *api) named(ctx context.Context, name string) (box, error) {
	b, err := a.get(ctx, name)
	if !missing(err) {
		return b, err
	}
	all, listing := a.list(ctx, name)
	if listing != nil {
		return box{}, listing
	}
	for _, b := range all {
		if b.Name == name {
			return b, nil
		}
	}
	return box{}, err
}

// find asks the server for a sandbox of ours.
func (p *Provider) find(ctx context.Context, id sandbox.ID) (box, error) {
	if err := ctx.Err(); err != nil {
		return box{}, err
	}
	scope, err := p.boxes.Scope()
	if err != nil {
		return box{}, err
	}
	b, err := p.api.named(ctx, boxName(scope, id))
	if !missing(err) {
		return b, err
	}
	who, err := p.api.account(ctx)
	if err != nil {
		return box{}, err
	}
	return box{}, p.boxes.Absent(id, p.api.binding(scope), who.name(), "use the BOXLITE_REST_URL and the BOXLITE_API_KEY that it was made with")
}

// Binding implements driver.Binder. It asks nobody, so the account is known by
// the key, or by the file or command that a key comes from.
func (p *Provider) Binding(ctx context.Context) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	scope, err := p.boxes.Scope()
	return p.api.binding(scope), err
}

func (a *api) binding(scope string) string {
	return hosted.Binding(a.Base, scope, a.prefix+"\n"+a.key.Account())
}

// Attach implements driver.Provider. It leaves a stopped sandbox stopped.
func (p *Provider) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	b, err := p.find(ctx, id)
	if err == nil {
		err = p.api.usable(id, b)
	}
	if err != nil {
		return nil, err
	}
	ends := p.boxes.Of(id, b.ID).Ends
	p.expiry.Watch(id, ends)
	return p.instance(id, b.ID, ends), nil
}

// List implements driver.Provider. Labels are from the records: the server keeps
// none.
func (p *Provider) List(ctx context.Context) iter.Seq2[driver.Found, error] {
	return func(yield func(driver.Found, error) bool) {
		var all []box
		scope, err := p.boxes.Scope()
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			all, err = p.api.list(ctx, namesOf(scope))
		}
		if err != nil {
			yield(driver.Found{}, err)
			return
		}
		for _, b := range all {
			id := sandbox.ID(strings.TrimPrefix(b.Name, namesOf(scope)))
			f := driver.Found{ID: id, State: stateOf(b.Status), Created: b.Created, Labels: map[string]string{}, Engine: Name}
			maps.Copy(f.Labels, p.boxes.Of(id, b.ID).Labels)
			if f.State == sandbox.Failed {
				f.Exit = &sandbox.Exit{Code: -1, Reason: sandbox.ReasonCrashed, Detail: "the server says that the box has failed"}
			}
			if sandbox.ValidateName(string(id)) == nil && !yield(f, nil) {
				return
			}
		}
	}
}

// State implements driver.StateTeller: others stop and start boxes, too.
func (p *Provider) State(ctx context.Context, id sandbox.ID) (sandbox.State, error) {
	b, err := p.find(ctx, id)
	if err == nil {
		err = p.api.usable(id, b)
	}
	if err != nil {
		return "", err
	}
	return stateOf(b.Status), nil
}
