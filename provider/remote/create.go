package remote

import (
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Create implements driver.Provider.
func (p *Provider) Create(ctx context.Context, spec *sandbox.Spec) (driver.Instance, error) {
	return p.create(ctx, spec, nil)
}

// create creates a sandbox, from a snapshot if one is given.
func (p *Provider) create(ctx context.Context, spec *sandbox.Spec, from *durable.Snapshot) (driver.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	k, err := p.known(ctx)
	if err != nil {
		return nil, err
	}
	scope, err := p.scope()
	if err != nil {
		return nil, err
	}
	want, err := p.outward(spec, scope)
	if err != nil {
		return nil, err
	}
	if from != nil {
		want.Snapshot, want.Image, want.Provider = from.ID, "", ""
		want.Env = overEnv(spec.Env, envNames(from.Labels))
	}
	s, err := p.make(ctx, want)
	if err != nil {
		return nil, p.explain(err)
	}
	return p.instance(spec.ID, s, capabilities(&k.provider)), nil
}

// outward converts a Spec to the one for the other daemon.
func (p *Provider) outward(spec *sandbox.Spec, scope string) (want sandbox.Spec, err error) {
	refuse := func(subject, message string) error {
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "remote.create", Subject: subject, Message: message}
	}
	switch {
	case slices.ContainsFunc(spec.Secrets, func(s sandbox.SecretRef) bool { return !driver.Holds(p, s) }):
		return want, refuse("secrets", "the other daemon's secrets can be used only if ATOLL_REMOTE_SECRETS names them")
	case len(spec.Mounts) > 0:
		return want, refuse("mounts", "directories of this machine are not where the sandbox is")
	case loops(scope, spec.Labels):
		return want, &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "remote.create", Subject: p.host, Message: "the other daemon creates its sandboxes with this daemon",
			Hint: "name a daemon in ATOLL_REMOTE_HOST that has a provider of its own",
		}
	}
	if err := p.CheckImage(spec.Image); err != nil {
		return want, err
	}
	want = sandbox.Spec{
		Name: string(spec.ID), Provider: p.opts.Provider, Isolation: spec.Isolation, Image: spec.Image, Resources: spec.Resources, Env: spec.Env, User: spec.User,
		Workdir: spec.Workdir, Secrets: spec.Secrets, Hostname: spec.Hostname, Lifetime: sandbox.Lifetime{Timeout: spec.Lifetime.HardTimeout()},
		Labels: outward(scope, string(spec.ID), spec.Env, spec.Labels),
	}
	if want.Hostname == "" {
		want.Hostname = spec.Name
	}
	want.Network, err = network(spec.Network)
	return want, err
}

// HoldsSecret implements driver.SecretHolder. The other daemon's gateway sends
// the value, which this daemon never gets.
func (p *Provider) HoldsSecret(name string) bool {
	for allowed := range strings.SplitSeq(p.opts.Secrets, ",") {
		if strings.TrimSpace(allowed) == name {
			return true
		}
	}
	return false
}

// overEnv adds empty values for the variables of a snapshot that env lacks. The
// other daemon would otherwise keep them.
func overEnv(env map[string]string, had []string) map[string]string {
	all := map[string]string{}
	for _, name := range had {
		all[name] = ""
	}
	for k, v := range env {
		all[k] = v
	}
	return all
}

// CheckImage implements driver.ImageChecker. The other daemon fetches images.
func (*Provider) CheckImage(image string) error {
	for _, scheme := range []string{"dir:", "tar:", "oci:", "docker-archive:"} {
		if strings.HasPrefix(image, scheme) {
			return &sandbox.Error{
				Code: sandbox.CodeUnsupported, Op: "remote.create", Subject: image, Message: "the other daemon cannot read files of this machine",
				Hint: "push the image to a registry that the other daemon reaches, and use its name there",
			}
		}
	}
	return nil
}

// A request whose answer was lost is repeated after a delay, up to this number
// of times. It has an idempotency key, so it creates one sandbox.
const (
	attempts  = 3
	firstWait = 100 * time.Millisecond
	// cleaning limits the search for a sandbox whose caller gave up.
	cleaning = 30 * time.Second
)

// make requests a sandbox until there is an answer. Without one, it removes the
// sandbox that may have been created.
func (p *Provider) make(ctx context.Context, want sandbox.Spec) (*atoll.Sandbox, error) {
	key := rand.Text()
	var s *atoll.Sandbox
	err := repeat(ctx, func() (err error) {
		s, err = p.client.Create(ctx, want, atoll.CreateOptions{IdempotencyKey: key})
		return err
	})
	if err == nil {
		return s, nil
	}
	if ctx.Err() != nil || sandbox.CodeOf(err) == sandbox.CodeUnavailable {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleaning)
		defer cancel()
		err = errors.Join(err, p.unmake(late, want, key))
	}
	return nil, err
}

// unmake removes the sandbox of a request whose answer was lost. Repeating the
// request returns the sandbox. If the other daemon does not answer now, List
// shows the sandbox later.
func (p *Provider) unmake(ctx context.Context, want sandbox.Spec, key string) error {
	s, err := p.client.Create(ctx, want, atoll.CreateOptions{IdempotencyKey: key})
	if err != nil {
		return nil // it was refused, or the daemon does not answer
	}
	return s.Destroy(ctx)
}

// repeat repeats a request that was not answered.
func repeat(ctx context.Context, request func() error) error {
	for try, wait := 1, firstWait; ; try, wait = try+1, 2*wait {
		err := request()
		if err == nil || try == attempts || ctx.Err() != nil || !unanswered(err) {
			return err
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

// unanswered reports whether err means that the other daemon did not answer.
func unanswered(err error) bool {
	e, ok := errors.AsType[*sandbox.Error](err)
	return ok && e.Code == sandbox.CodeUnavailable && e.Op == "client.request"
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// find looks up a sandbox by its ID. It returns CodeGone if the other daemon,
// after its identity was checked, does not have it.
func (p *Provider) find(ctx context.Context, id sandbox.ID) (*atoll.Sandbox, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if p.client == nil {
		return nil, errNoAddress
	}
	s, err := p.client.Get(ctx, string(id))
	switch code := sandbox.CodeOf(err); {
	case code == sandbox.CodeNotFound || code == sandbox.CodeGone:
		return nil, p.absent(ctx, id)
	case err != nil:
		return nil, p.explain(err)
	case s.Info().State == sandbox.Gone || s.Info().Labels[labelID] != string(id):
		return nil, p.absent(ctx, id) // names are unique
	}
	return s, nil
}

// mine is find, but refuses a sandbox that belongs to another directory.
func (p *Provider) mine(ctx context.Context, id sandbox.ID) (*atoll.Sandbox, error) {
	s, err := p.find(ctx, id)
	if err != nil {
		return nil, err
	}
	scope, err := p.scope()
	if err == nil && s.Info().Labels[labelScope] != scope {
		err = driver.Elsewhere(id)
	}
	return s, err
}

// Adopt implements driver.Adopter by changing a label.
func (p *Provider) Adopt(ctx context.Context, spec *sandbox.Spec) error {
	s, err := p.find(ctx, spec.ID)
	if err != nil {
		return err
	}
	scope, err := p.scope()
	if err == nil && s.Info().Labels[labelScope] != scope {
		_, err = s.Update(ctx, sandbox.Change{Labels: map[string]*string{labelScope: &scope}})
		err = p.explain(err)
	}
	return err
}

// Attach implements driver.Provider.
func (p *Provider) Attach(ctx context.Context, id sandbox.ID) (driver.Instance, error) {
	s, err := p.mine(ctx, id)
	if err != nil {
		return nil, err
	}
	k, err := p.known(ctx)
	if err != nil {
		return nil, err
	}
	return p.instance(id, s, capabilities(&k.provider)), nil
}

// List implements driver.Provider.
func (p *Provider) List(ctx context.Context) iter.Seq2[driver.Found, error] {
	return func(yield func(driver.Found, error) bool) {
		scope, err := p.scope()
		if err == nil && p.client == nil {
			err = errNoAddress
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			yield(driver.Found{}, err)
			return
		}
		for s, err := range p.client.List(ctx, atoll.ListOptions{Labels: map[string]string{labelScope: scope}}) {
			if err != nil {
				yield(driver.Found{}, p.explain(err))
				return
			}
			id := sandbox.ID(s.Labels[labelID])
			if id == "" || string(id) != s.Name {
				continue // not created by this provider
			}
			found := driver.Found{ID: id, State: s.State, Created: s.Created, Labels: inward(s.Labels), Exit: s.Exit}
			if found.State == sandbox.Running || found.State == sandbox.Paused {
				found.Exit = nil
			}
			if !yield(found, nil) {
				return
			}
		}
	}
}
