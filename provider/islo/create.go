package islo

import (
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"maps"
	"math"
	"net/http"
	"regexp"
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

// prefix begins the names of what this directory has made. The service has no
// other place for what marks a sandbox as ours.
func (p *Provider) prefix() (string, error) {
	scope, err := p.boxes.Scope()
	return "atoll-" + scope + "-", err
}

// named is the service's name for something of ours. The prefix is there by now.
func (p *Provider) named(id string) (string, error) {
	prefix, err := p.prefix()
	return prefix + id, err
}

// ownProfile in a record says that a sandbox has a gateway profile of its own.
const ownProfile = "profile"

// Create implements driver.Provider.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	if err := p.CheckImage(spec.Image); err != nil {
		return nil, err
	}
	image := spec.Image
	if image == "" || image == "host" {
		image = p.opts.Image
	}
	return p.make(ctx, spec, creation{Image: image})
}

// reference is an image of a registry.
var reference = regexp.MustCompile(`^[a-z0-9][A-Za-z0-9._-]*(:[0-9]+)?(/[a-z0-9][A-Za-z0-9._-]*)*(:[A-Za-z0-9._-]+)?(@sha256:[0-9a-f]{64})?$`)

// CheckImage implements driver.ImageChecker: the service fetches images.
func (p *Provider) CheckImage(image string) error {
	if image == "" || reference.MatchString(image) {
		return nil
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnsupported, Op: "islo.create", Subject: image, Message: "the service makes sandboxes from images of registries",
		Hint: "use a reference such as docker.io/library/python:3.12-slim, or leave the image out",
	}
}

// complete fills in what a new sandbox has of its spec, and refuses what the
// service does not have.
func (p *Provider) complete(c *creation, spec *sandbox.Spec) (own *profile, err error) {
	refuse := func(subject, message, hint string) (*profile, error) {
		return nil, &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "islo.create", Subject: subject, Message: message, Hint: hint}
	}
	cpus := spec.Resources.CPUs
	switch {
	case len(spec.Mounts) > 0:
		return refuse("mounts", "directories of this machine are not where the sandbox is", "")
	case spec.Network.Asked() && spec.Network.Plain == nil:
		return refuse("network", "the rules were not translated into what the service enforces", "leave the network out: the sandbox has none")
	case cpus != math.Trunc(cpus):
		return refuse("cpus", "the service has whole processors only", "ask for a whole number")
	}
	up := func(n, unit int64) int64 { return (n + unit - 1) / unit }
	c.size = size{CPUs: int64(cpus), Memory: up(spec.Resources.Memory, 1<<20), Disk: up(spec.Resources.Disk, 1<<30)}
	// Using a sandbox does not wake it: that is for whoever resumes it. The service
	// counts lifetimes in minutes.
	c.Lifecycle = lifecycle{AutoResume: "never", DeleteAfter: 60 * up(int64(spec.Lifetime.HardTimeout()), int64(time.Minute))}
	c.Request = rand.Text()
	internet := false
	if c.Name, err = p.named(string(spec.ID)); err != nil {
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

// make makes a sandbox. Nothing is left of one that is not returned.
func (p *Provider) make(ctx context.Context, spec *sandbox.Spec, c creation) (driver.Instance, error) {
	own, err := p.complete(&c, spec)
	if err != nil {
		return nil, err
	}
	find := func() error {
		_, err := p.find(ctx, spec.ID)
		return err
	}
	in, err := hosted.Create(ctx, p.boxes, &p.work, "islo.create", spec.ID, find, func(l *records.Locked[hosted.Record]) (*Instance, error) {
		return p.settle(ctx, l, spec, &c, own)
	})
	if err != nil {
		return nil, err
	}
	return in, nil
}

// settle makes a sandbox ready for commands, or nothing: first its gateway
// profile, then itself. What cannot be taken back is in the record, and goes
// when somebody lists sandboxes.
func (p *Provider) settle(ctx context.Context, l *records.Locked[hosted.Record], spec *sandbox.Spec, c *creation, own *profile) (*Instance, error) {
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), hosted.Making)
	defer cancel()
	r := hosted.Record{Labels: spec.Labels}
	var err error
	if r.Binding, err = p.Binding(asking); err != nil {
		return nil, err
	}
	if own != nil {
		r.Network = ownProfile
	}
	if err := l.Write(r); err != nil {
		return nil, errors.Join(err, l.Remove())
	}
	undo := func(err error, made bool) (*Instance, error) {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		var left error
		if made {
			left = p.eraseBox(asking, spec.ID)
		}
		if left == nil && own != nil {
			left = p.api.removeProfile(asking, c.Name)
		}
		if left == nil {
			left = l.Remove()
		}
		return nil, errors.Join(err, left)
	}
	if own != nil {
		if c.Profile, err = p.api.addProfile(asking, own); err != nil {
			return undo(err, false)
		}
	}
	b, made, err := p.request(asking, spec.ID, c)
	if err != nil {
		return undo(err, made)
	}
	if life := spec.Lifetime.HardTimeout(); life > 0 {
		r.Ends = time.Now().Add(life)
	}
	in := p.instance(spec.ID, b, r.Ends)
	if err = ctx.Err(); err == nil {
		err = p.confirm(b, c)
	}
	if err == nil {
		r.Box = b.ID
		err = l.Write(r)
	}
	if err == nil && c.Snapshot != "" {
		_, err = in.inside.run(ctx, hosted.Inherited(true))
	}
	if err == nil {
		def := guest.Defaults{Env: spec.Env, User: spec.User, Workdir: spec.Workdir, Hostname: spec.Hostname}
		err = in.Use(ctx, false, func(ctx context.Context, g *guest.Client) error { return g.Configure(ctx, def) })
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		return in, nil
	}
	in.Finish(guestkit.Killed)
	return undo(err, true)
}

// request asks for a sandbox and waits until it runs. If the answer does not
// come, or is about another sandbox, the one that was made is found by its name,
// which no other has: it is never asked for twice. made says that there may be
// one.
func (p *Provider) request(ctx context.Context, id sandbox.ID, c *creation) (b box, made bool, err error) {
	_, err = p.api.sandbox(ctx, http.MethodPost, "/sandboxes", c.Name, c)
	code := sandbox.CodeOf(err)
	if err != nil && code != sandbox.CodeUnavailable && code != sandbox.CodeTimeout && !errors.Is(err, context.DeadlineExceeded) {
		return b, false, err // it was refused
	}
	for n := range tries {
		if n > 0 {
			if err := rest.Sleep(ctx, slowPoll); err != nil {
				return b, true, err
			}
		}
		var looked error
		if b, looked = p.api.settled(ctx, id, c.Name); looked == nil && b.Status != "running" {
			looked = p.api.strange("the new sandbox is " + b.Status)
		}
		if looked == nil || !missing(looked) {
			return b, true, looked
		}
	}
	if err == nil {
		err = p.api.strange("the service does not show the sandbox that it made")
	}
	return b, true, err
}

// confirm checks that the service enforces what it was asked for.
func (p *Provider) confirm(b box, c *creation) error {
	same := func(got, asked int64) bool { return asked == 0 || got == asked }
	switch {
	case !same(b.Spec.CPUs, c.CPUs) || !same(b.Spec.Memory, c.Memory) || !same(b.Spec.Disk, c.Disk):
		return p.api.strange("the service does not confirm the size of the sandbox")
	case b.Lifecycle.DeleteAfter != c.Lifecycle.DeleteAfter:
		return p.api.strange("the service does not confirm the lifetime of the sandbox")
	}
	return nil
}

// eraseBox ends a sandbox. That the service does not know it counts only if it
// does not list it either.
func (p *Provider) eraseBox(ctx context.Context, id sandbox.ID) error {
	name, err := p.named(string(id))
	if err != nil {
		return err
	}
	if err := p.api.Remove(ctx, "/sandboxes/"+name); err != nil && !missing(err) {
		return err
	}
	_, err = p.look(ctx, name)
	switch {
	case missing(err):
		return nil
	case err == nil:
		return p.api.strange("the sandbox is still there")
	}
	return err
}

// erase ends a sandbox, and removes its gateway profile then.
func (p *Provider) erase(ctx context.Context, id sandbox.ID) error {
	if err := p.eraseBox(ctx, id); err != nil {
		return err
	}
	if r, ok := p.boxes.Get(string(id)); ok && r.Network != ownProfile {
		return nil
	}
	name, err := p.named(string(id))
	if err != nil {
		return err
	}
	return p.api.removeProfile(ctx, name)
}

// look asks for a sandbox by its name. That it is missing is evidence only if it
// is not listed either.
func (p *Provider) look(ctx context.Context, name string) (box, error) {
	b, err := p.api.get(ctx, name)
	gone := missing(err)
	if err == nil && stateOf(b.Status) == sandbox.Gone {
		gone = true
		err = &sandbox.Error{Code: sandbox.CodeNotFound, Subject: name, Message: "the sandbox was deleted", Cause: &rest.Refusal{Status: http.StatusNotFound, Code: "NOT_FOUND", Ours: true}}
	}
	if !gone {
		return b, err
	}
	listed, lookup := p.api.list(ctx, name)
	if lookup != nil {
		return box{}, lookup
	}
	for _, other := range listed {
		if other.Name == name {
			return box{}, p.api.strange("the service lists the sandbox and says that it does not know it")
		}
	}
	return box{}, err
}

// find asks the service for a sandbox of ours. One whose lifetime is over is
// ended on the way.
func (p *Provider) find(ctx context.Context, id sandbox.ID) (box, error) {
	name, err := p.named(string(id))
	if err != nil {
		return box{}, err
	}
	b, err := p.look(ctx, name)
	if err == nil && p.over(id, b) {
		if err = p.erase(ctx, id); err == nil {
			return box{}, guestkit.Gone(id)
		}
	}
	if missing(err) {
		binding, lookup := p.Binding(ctx)
		if lookup != nil {
			return box{}, lookup
		}
		err = p.boxes.Absent(id, binding, "", "use the ISLO_API_KEY and the ISLO_BASE_URL that it was made with")
	}
	return b, err
}

// over reports whether the lifetime of a sandbox is over.
func (p *Provider) over(id sandbox.ID, b box) bool {
	ends := p.boxes.Of(id, b.ID).Ends
	return !ends.IsZero() && time.Now().After(ends)
}

// Binding implements driver.Binder. The account is known by a keyed hash of the
// key, or by where it comes from.
func (p *Provider) Binding(ctx context.Context) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	scope, err := p.boxes.Scope()
	return hosted.Binding(p.api.Base, scope, p.opts.Key.Account()), err
}

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
		prefix, err := p.prefix()
		if err == nil {
			err = ctx.Err()
		}
		var living []box
		if err == nil {
			living, err = p.api.list(ctx, prefix)
		}
		if err == nil {
			err = p.tidy(ctx, prefix, living)
		}
		if err != nil {
			yield(driver.Found{}, err)
			return
		}
		for _, b := range living {
			id := sandbox.ID(strings.TrimPrefix(b.Name, prefix))
			if sandbox.ValidateName(string(id)) != nil {
				continue
			}
			if p.over(id, b) && p.erase(ctx, id) == nil {
				continue
			}
			if !yield(p.found(id, b), nil) {
				return
			}
		}
	}
}

// tidy removes the gateway profiles of sandboxes that the service has ended, and
// of those that a process began to make and did not live to finish.
func (p *Provider) tidy(ctx context.Context, prefix string, living []box) error {
	there := map[string]bool{}
	for _, b := range living {
		there[b.Name] = true
	}
	binding, err := p.Binding(ctx)
	if err != nil {
		return err
	}
	for _, id := range p.boxes.IDs() {
		if r, ok := p.boxes.Get(id); !ok || r.Network != ownProfile || r.Binding != binding || there[prefix+id] {
			continue
		}
		once, cancel := context.WithCancel(ctx)
		cancel() // one try
		l, err := p.boxes.Lock(once, id)
		if err != nil {
			continue // it is being made, or removed
		}
		r := l.Read()
		if _, err = p.look(ctx, prefix+id); missing(err) {
			if err = p.api.removeProfile(ctx, prefix+id); err == nil {
				r.Network = ""
				if r.Box == "" {
					err = l.Remove()
				} else {
					err = l.Write(r)
				}
			}
		}
		l.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// found is a sandbox of the service as the driver contract tells of it.
func (p *Provider) found(id sandbox.ID, b box) driver.Found {
	f := driver.Found{ID: id, State: stateOf(b.Status), Created: b.Created, Labels: map[string]string{}, Engine: Name}
	maps.Copy(f.Labels, p.boxes.Of(id, b.ID).Labels)
	if f.State == sandbox.Failed {
		f.Exit = &sandbox.Exit{Code: -1, Reason: sandbox.ReasonCrashed, Detail: "the service says that the sandbox has failed"}
	}
	return f
}

// State implements driver.StateTeller: the service pauses and stops sandboxes by
// itself, or when another client asks for it.
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
