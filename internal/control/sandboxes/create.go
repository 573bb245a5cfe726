package sandboxes

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// CreateRequest is a request to create a sandbox for the caller's tenant.
type CreateRequest struct {
	Spec     sandbox.Spec // without an ID, which the server assigns
	Pull     control.Pull
	Platform string
	// Idempotency makes a repeated request return the sandbox of the first one. If
	// the first attempt failed, the sandbox is created now. If the sandbox was
	// removed since, the error is CodeGone.
	Idempotency store.Create
	// Timeout, if set, removes the sandbox this long after the request, provided
	// that a daemon is running. Unlike Spec.Lifetime.Timeout, it can be changed.
	Timeout time.Duration
	// Replaces is a sandbox whose workspaces the new one gets, although the old
	// one still has them: the caller removes one of the two.
	Replaces sandbox.ID

	// base are the names of the image that a build step began with. Policies are
	// checked against these names, because the image of the step has no name.
	base []string
	// bound: the sandbox must not outlive this process.
	bound bool
}

const opCreate = ops.SandboxCreate

// Create creates a sandbox.
func (s *makers) Create(ctx context.Context, req CreateRequest) (_ Made, err error) {
	ctx, end := span.Start(ctx, "control", string(opCreate), "")
	defer func() { end(err) }()
	who, action, err := s.Admit(ctx, opCreate, guard.Subject{Name: req.Spec.Name, Subject: req.Spec.Name},
		func(who key.Principal) error { return guard.AllowSpec(who, &req.Spec) })
	if err != nil {
		return Made{}, core.Named(opCreate, err)
	}
	if req.Spec.Network, err = s.Secrets.SealProxy(who.Tenant, req.Spec.Network); err != nil {
		return Made{}, core.Named(opCreate, err)
	}
	images, err := s.Policies.AskedImage(ctx, who.Tenant, &req.Spec)
	if err != nil {
		return Made{}, core.Named(opCreate, err)
	}
	if req.base != nil {
		images = req.base
	}
	spec := req.Spec
	spec.Isolation = cmp.Or(spec.Isolation, s.Policies.Isolation(who.Tenant, spec.Labels)) // decides what a template is made from
	of, owner, err := s.Templates.Complete(ctx, who.Tenant, &spec)
	if err != nil {
		return Made{}, core.Named(opCreate, err)
	}
	spec, origin, err := s.Snapshots.Origin(ctx, owner, spec)
	if err != nil {
		return Made{}, core.Named(opCreate, err)
	}
	s.Policies.Fill(who.Tenant, &spec, req.Timeout)
	if err := s.Policies.Permit(ctx, action, &spec, images, policyset.Isolation); err != nil {
		return Made{}, core.Named(opCreate, err)
	}
	if req.bound || of.Name != "" {
		s.Providers.KeepHere(&spec)
	}
	be, chosen, err := s.Providers.Select(ctx, who, &spec)
	if err != nil {
		return Made{}, core.Named(opCreate, err)
	}
	spec.Provider = be.Name
	rules, err := s.egress(ctx, be, who.Tenant, &spec)
	if err != nil {
		return Made{}, core.Named(opCreate, err)
	}
	want, err := be.Control.Prepare(ctx, control.CreateRequest{
		Spec: spec, Egress: rules, Pull: req.Pull, Platform: req.Platform, Tenant: who.Tenant, Reserved: true, Bound: req.bound,
	})
	if err != nil {
		return Made{}, err
	}
	landed := s.inflight.Begin(want.Spec.ID)
	defer landed()
	action.Sandbox, action.Name, action.Subject = want.Spec.ID, want.Spec.Name, want.Spec.Name
	if origin == "" && req.base == nil {
		if images, err = s.Policies.FetchSigned(ctx, action, &want.Spec, images, control.ImageRequest{Pull: req.Pull, Platform: req.Platform}); err != nil {
			return Made{}, core.Named(opCreate, err)
		}
	}
	allowed := want.Spec
	allowed.Lifetime.Timeout = max(allowed.Lifetime.Timeout, req.Timeout)
	if err := s.Policies.Permit(ctx, action, &allowed, images); err != nil {
		return Made{}, core.Named(opCreate, err)
	}
	if err := s.enforceable(ctx, be, who.Tenant, &want); err != nil {
		return Made{}, core.Named(opCreate, err)
	}
	if err := s.Workspaces.Ensure(ctx, want.Spec.Workspaces); err != nil {
		return Made{}, err
	}
	leave, err := s.admitted(ctx, be, who.Tenant)
	if err != nil {
		return Made{}, core.Named(opCreate, err)
	}
	defer leave()
	if chosen != "" && s.Providers.OnNode(be.Name) {
		fact := audit.Action{Tenant: who.Tenant, Actor: action.Actor, Op: ops.NodePlace, Sandbox: want.Spec.ID, Name: want.Spec.Name, Subject: be.Name}
		s.Report(ctx, s.Audit.FactLater(fact, eventlog.NodePlaced, func(e *eventlog.Event) { e.Policy = chosen }))
	}
	box, intent, err := s.announce(ctx, be, who.Tenant, &want, images[0], origin, req, action)
	switch {
	case err != nil:
		return Made{}, core.Named(opCreate, err)
	case intent == nil: // an earlier request created it
		if err := s.inflight.Wait(ctx, box.ID); err != nil {
			return Made{}, core.Named(opCreate, err)
		}
		box, err = s.record(ctx, who.Tenant, box.ID)
		if err == nil && box.State == sandbox.Gone {
			err = madeEarlier(&box)
		}
		return Made{Sandbox: box, Replayed: true}, core.Named(opCreate, err)
	}
	box, image, err := s.make(ctx, be, who.Tenant, &want, origin, chosen, intent)
	if err == nil && box.Spec.Main != nil {
		if err = s.startMain(ctx, &box, image); err != nil {
			s.Report(ctx, ignoreGone(s.destroy(ownerOf(context.WithoutCancel(ctx), who.Tenant), string(box.ID), ops.SandboxDestroy, reasonUnmade)))
		}
	}
	if err == nil && of.Start != "" && (origin == "" || box.Reason != "") {
		err = core.Named(opCreate, s.Templates.StartCold(ctx, box.ID, &of))
	}
	return Made{Sandbox: box, Image: image}, err
}

// CreateForBuild creates a sandbox for a build. It does not outlive this
// process. Policies are checked against the image names in base.
func (s *makers) CreateForBuild(ctx context.Context, spec sandbox.Spec, base []string) (sandbox.ID, error) {
	made, err := s.Create(ctx, CreateRequest{Spec: spec, Pull: control.PullNever, base: base, bound: true})
	return made.ID, err
}

// Made is the result of Create.
type Made struct {
	store.Sandbox
	// Image is the configuration of the image. It is empty if Replayed is set.
	Image control.ImageConfig
	// Replayed means that an earlier request with the same idempotency key created
	// the sandbox.
	Replayed bool
}

// enforceable refuses limits that a policy or a quota requires and the provider
// does not enforce.
func (s *makers) enforceable(ctx context.Context, be *providers.Backend, tenant string, want *control.CreateRequest) error {
	if len(want.Limits) == 0 {
		return nil
	}
	return s.demanded(ctx, be, tenant, want.Spec.Labels, want.Limits)
}

// demanded refuses those limits in loose, which the provider does not enforce,
// that a policy or a quota requires.
func (s *records) demanded(ctx context.Context, be *providers.Backend, tenant string, labels map[string]string, loose map[string]sandbox.Enforcement) error {
	quotas, err := s.Tenants.Limits(ctx, tenant)
	if err != nil {
		return err
	}
	return be.Enforceable(loose, s.Policies.Set().Caps(policyset.About{Tenant: tenant, Labels: labels}).Resources, quotas)
}

// announce records the sandbox and the attempt to create it in one transaction.
// A nil intent means that an earlier request created the sandbox.
func (s *makers) announce(ctx context.Context, be *providers.Backend, tenant string, want *control.CreateRequest, image, origin string, req CreateRequest, a audit.Action) (box store.Sandbox, intent *audit.Intent, err error) {
	spec := want.Spec
	if spec.Main != nil {
		m := *spec.Main
		m.Process, m.Restarts = "", 0
		spec.Main = &m
	}
	bound := be.Bound(spec)
	values, err := s.Secrets.Reveal(ctx, tenant, bound.Secrets)
	if err != nil {
		return box, nil, err
	}
	defer values.Clear()
	err = s.Store.Update(ctx, func(tx *store.Tx) error {
		intent = nil
		b := store.Sandbox{
			Summary: store.Summary{
				Sandbox: sandbox.Sandbox{
					ID: spec.ID, Name: spec.Name, Provider: be.Name, Isolation: be.Isolation(ctx), Node: s.Node, Image: image,
					Resources: spec.Resources, Limits: want.Limits, Labels: spec.Labels, Origin: origin,
				},
				Binding: be.Binding,
			},
			Spec: spec,
		}
		setLifetime(&b, spec.Lifetime, tx.Now())
		if req.Timeout > spec.Lifetime.Timeout {
			b.Expires = tx.Now().Add(req.Timeout)
		}
		var replayed bool
		var err error
		req.Idempotency.Retry = neverMade
		box, replayed, err = tx.Sandboxes().Create(ctx, tenant, b, req.Idempotency)
		if err != nil || replayed {
			return err
		}
		if want.Hidden, err = s.bind(ctx, tx, tenant, &bound, values); err != nil {
			return err
		}
		if err := s.Workspaces.Claim(ctx, tx, tenant, &spec, req.Replaces); err != nil {
			return err
		}
		intent, err = s.Audit.BeginTx(ctx, tx, a)
		return err
	})
	return box, intent, err
}

// neverMade reports whether the creation of a sandbox failed, so that no caller
// ever used it.
func neverMade(b *store.Sandbox) bool {
	return b.State == sandbox.Gone && (b.Reason == reasonUnmade || b.Reason == reasonUnfinished)
}

// madeEarlier is the error for a repeated request whose sandbox is gone.
func madeEarlier(b *store.Sandbox) error {
	return &sandbox.Error{
		Code: sandbox.CodeGone, Subject: string(b.ID), Message: "the sandbox that this request created no longer exists: " + b.Reason,
		Hint: "use a new idempotency key to create another",
	}
}

// setLifetime sets the lifetime in a record, starting now.
func setLifetime(b *store.Sandbox, l sandbox.Lifetime, now time.Time) {
	b.Spec.Lifetime, b.Expires, b.Idle = l, time.Time{}, store.Idle{}
	if l.Timeout > 0 {
		b.Expires = now.Add(l.Timeout)
	}
	if l.Idle > 0 {
		b.Idle = store.Idle{After: l.Idle, Action: string(cmp.Or(l.IdleAction, sandbox.IdleStop))}
	}
}

// finalizeTimeout limits the recording of an outcome when the caller has gone.
const finalizeTimeout = 10 * time.Second

// make creates a recorded sandbox with the provider, and records the outcome.
// chosen is why it is not the default provider, if it was not asked for.
func (s *makers) make(ctx context.Context, be *providers.Backend, tenant string, want *control.CreateRequest, origin, chosen string, intent *audit.Intent) (box store.Sandbox, image control.ImageConfig, err error) {
	if err := s.Fault("create.recorded"); err != nil {
		return box, image, err
	}
	published, makeErr := s.Ports.Reserve(tenant, want.Spec.ID, want.Spec.Name, want.Spec.Ports)
	var made *control.Sandbox
	var how driver.Restored
	if makeErr == nil {
		made, how, makeErr = s.bringUp(ctx, be, want, origin)
	}
	if err := s.Fault("create.empty"); err != nil {
		return box, image, err
	}
	if makeErr == nil {
		if err := s.Workspaces.Load(ctx, made); err != nil {
			makeErr = errors.Join(err, made.Teardown(ctx))
		}
	}
	if err := s.Fault("create.made"); err != nil {
		return box, image, err
	}
	// The caller may have gone; the outcome must be recorded anyway.
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalizeTimeout)
	defer cancel()
	state, reason := sandbox.Running, cmp.Or(coldReason(how), chosen)
	if makeErr != nil {
		state, reason = sandbox.Gone, reasonUnmade
	}
	box, err = s.finalize(late, tenant, want.Spec.ID, intent, audit.Outcome{Err: makeErr}, func(b *store.Sandbox) {
		b.State, b.Reason = state, reason
		if makeErr == nil {
			// Record the image actually used: its name may later refer to another one.
			b.Spec.Image, b.Spec.Ports = made.Image().Ref, published
		}
	})
	switch {
	case makeErr != nil:
		s.discard(late, &store.Sandbox{Summary: store.Summary{Sandbox: sandbox.Sandbox{ID: want.Spec.ID}}})
		s.Report(ctx, errors.Join(err, s.Workspaces.DetachNow(ctx, want.Spec.ID, want.Spec.Name)))
		return box, image, makeErr
	case err != nil:
		// The sandbox is running, but its record says "creating". The next
		// reconciliation fixes that.
		return box, image, core.Named(opCreate, err)
	}
	s.follow(tenant, made)
	s.due.soon()
	return box, made.Image(), s.Fault("create.done")
}

// bringUp creates a sandbox from its image or from the snapshot origin. Before
// that, it stores what must not be in the record elsewhere. It does not load
// copies of workspaces.
func (s *makers) bringUp(ctx context.Context, be *providers.Backend, want *control.CreateRequest, origin string) (*control.Sandbox, driver.Restored, error) {
	if err := s.Snapshots.PutEnvironment(want.Spec.ID, want.Spec.Env); err != nil {
		return nil, driver.Restored{}, err
	}
	req, err := s.Workspaces.Mount(ctx, *want, be.Facts)
	if err != nil {
		return nil, driver.Restored{}, err
	}
	if origin == "" {
		made, err := be.Control.Create(ctx, req)
		return made, driver.Restored{}, err
	}
	return s.Snapshots.Restore(ctx, be, req, origin)
}

// finalize records the outcome of an action together with its change.
func (s *records) finalize(ctx context.Context, tenant string, id sandbox.ID, intent *audit.Intent, out audit.Outcome, change func(*store.Sandbox)) (box store.Sandbox, err error) {
	return s.finalizeWith(ctx, tenant, id, intent, out, change, nil)
}

// finalizeWith is finalize with additional changes in the transaction, if the
// action succeeded.
func (s *records) finalizeWith(ctx context.Context, tenant string, id sandbox.ID, intent *audit.Intent, out audit.Outcome, change func(*store.Sandbox), also func(*store.Tx) error) (box store.Sandbox, err error) {
	ctx = store.WithReserve(ctx)
	err = s.Store.Update(ctx, func(tx *store.Tx) error {
		var err error
		box, err = tx.Sandboxes().Update(ctx, tenant, id, store.Expect{Observed: true}, change)
		if err != nil {
			return err
		}
		if also != nil && out.Err == nil {
			if err := also(tx); err != nil {
				return err
			}
		}
		return intent.EndTx(ctx, tx, out)
	})
	if err != nil {
		s.Report(ctx, intent.End(out))
		s.doubt()
		return box, err
	}
	s.Ports.Sync(&box)
	return box, nil
}
