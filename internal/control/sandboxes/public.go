package sandboxes

import (
	"context"
	"slices"
	"time"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Public are the Services for APIs: its methods return sandbox.Sandbox values
// without internal details, instead of records.
type Public struct{ of *Services }

// Public returns the Services for APIs.
func (s *Services) Public() Public { return Public{s} }

// public returns the public view of a record.
func public(b store.Sandbox, err error) (sandbox.Sandbox, error) { return nameless(b.Info()), err }

// nameless removes the node name if there is only one node. A running sandbox
// whose main command has ended is shown as exited.
func nameless(s sandbox.Sandbox) sandbox.Sandbox {
	if s.Node == core.LocalNode {
		s.Node = ""
	}
	if s.State == sandbox.Running && s.Exit != nil {
		s.State = sandbox.Exited
	}
	return s
}

// Create creates a sandbox. replayed means that an earlier request with the
// same idempotency key created it.
func (p Public) Create(ctx context.Context, req sandbox.CreateRequest) (s sandbox.Sandbox, replayed bool, err error) {
	made, err := p.of.Creator.Create(ctx, plan.Request{CreateRequest: req})
	s = nameless(made.Info())
	s.Entrypoint, s.Cmd = made.Image.Entrypoint, made.Image.Cmd
	return s, made.Replayed, err
}

// Get returns a sandbox, by name or id.
func (p Public) Get(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	return public(p.of.Records.Get(ctx, ref))
}

// List returns a page of the tenant's sandboxes, newest first.
func (p Public) List(ctx context.Context, q sandbox.ListQuery) (page []sandbox.Sandbox, next string, err error) {
	states := slices.Clone(q.States)
	for i, state := range states {
		if state == sandbox.Exited { // recorded as running
			states[i] = sandbox.Running
		}
	}
	all, next, err := p.of.Reader.List(ctx, store.Filter{States: states, Labels: q.Labels}, store.Page{Cursor: q.Cursor, Limit: q.Limit})
	page = make([]sandbox.Sandbox, 0, len(all))
	for i := range all {
		if s := nameless(all[i].Sandbox); len(q.States) == 0 || slices.Contains(q.States, s.State) {
			page = append(page, s)
		}
	}
	return page, next, err
}

// Fork creates copies of a sandbox.
func (p Public) Fork(ctx context.Context, ref string, req durable.ForkRequest) ([]sandbox.Sandbox, error) {
	made, err := p.of.Creator.Fork(ctx, ref, req)
	out := make([]sandbox.Sandbox, len(made))
	for i := range made {
		out[i] = nameless(made[i].Info())
	}
	return out, err
}

// Stop ends a sandbox and keeps its files.
func (p Public) Stop(ctx context.Context, ref string, grace time.Duration) (sandbox.Sandbox, error) {
	return public(p.of.Pauser.Stop(ctx, ref, grace))
}

// Start starts a stopped sandbox again.
func (p Public) Start(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	return public(p.of.Pauser.Start(ctx, ref))
}

// Pause pauses a sandbox, in memory or to disk.
func (p Public) Pause(ctx context.Context, ref string, toDisk bool) (sandbox.Sandbox, error) {
	return public(p.of.Pauser.Pause(ctx, ref, toDisk))
}

// Resume resumes a paused sandbox.
func (p Public) Resume(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	return public(p.of.Pauser.Resume(ctx, ref))
}

// Reboot resumes a paused or stopped sandbox with its files only.
func (p Public) Reboot(ctx context.Context, ref string) (sandbox.Sandbox, error) {
	return public(p.of.Pauser.Reboot(ctx, ref))
}

// Update changes the limits, labels or lifetime of a sandbox.
func (p Public) Update(ctx context.Context, ref string, c sandbox.Change) (sandbox.Sandbox, error) {
	return public(p.of.Updater.Update(ctx, ref, c))
}

// Expire sets the time at which a sandbox ends. With extend, a time before the
// current one changes nothing.
func (p Public) Expire(ctx context.Context, ref string, at time.Time, extend bool) (sandbox.Sandbox, error) {
	return public(p.of.Expirer.Expire(ctx, ref, at, extend))
}

// Network returns the rules with which a sandbox was made or that it got since.
// A password of a proxy is left out.
func (p Public) Network(ctx context.Context, ref string) (sandbox.Network, error) {
	b, err := p.of.Records.Get(ctx, ref)
	n := b.Spec.Network
	if err == nil && n.Inline != nil && n.Inline.Proxy != nil {
		inline, proxy := *n.Inline, *n.Inline.Proxy
		proxy.Password, proxy.Sealed = "", nil
		inline.Proxy = &proxy
		n.Inline = &inline
	}
	return n, err
}

// SetNetwork changes the rules of a sandbox that has its own rules.
func (p Public) SetNetwork(ctx context.Context, ref string, n sandbox.Network) (sandbox.Sandbox, error) {
	return public(p.of.Updater.SetNetwork(ctx, ref, n))
}

// CreateFor creates a sandbox that is removed after timeout, unless Expire
// changes the time. A missing image is pulled.
func (p Public) CreateFor(ctx context.Context, spec sandbox.Spec, timeout time.Duration) (sandbox.Sandbox, error) {
	made, err := p.of.Creator.Create(ctx, plan.Request{CreateRequest: sandbox.CreateRequest{Spec: spec}, Timeout: timeout})
	return made.Info(), err
}

// Inspect returns a sandbox with the request that created it.
func (p Public) Inspect(ctx context.Context, ref string) (sandbox.Detail, error) {
	return p.of.Reader.Inspect(ctx, ref)
}

// InspectAll returns the sandboxes of the caller's tenant that have the labels,
// newest first.
func (p Public) InspectAll(ctx context.Context, labels map[string]string) ([]sandbox.Detail, error) {
	return p.of.Reader.InspectAll(ctx, labels)
}

// Usage returns the resource usage of a running sandbox.
func (p Public) Usage(ctx context.Context, ref string) (sandbox.Usage, error) {
	return p.of.Reader.Usage(ctx, ref)
}

// Wait waits until a sandbox has ended, and returns the reason.
func (p Public) Wait(ctx context.Context, ref string) (sandbox.Exit, error) {
	return p.of.Ends.Wait(ctx, ref)
}

// Destroy removes a sandbox with its files.
func (p Public) Destroy(ctx context.Context, ref string) error {
	return p.of.Remover.Destroy(ctx, ref)
}
