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
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

const opCreate = ops.SandboxCreate

// extras are what only this daemon's own parts ask for.
type extras struct {
	// timeout, if set, removes the sandbox this long after the request, provided
	// that a daemon is running. Unlike Spec.Lifetime.Timeout, it can be changed.
	timeout time.Duration
	// ofSession means that a session asks, and replaces is a sandbox whose workspaces
	// the new one gets, although the old one still has them: the caller removes one
	// of the two.
	ofSession bool
	replaces  sandbox.ID
	// base are the names of the image that a build step began with. Policies are
	// checked against these names, because the image of the step has no name.
	base []string
	// bound: the sandbox must not outlive this process.
	bound bool
}

// Create creates a sandbox for the caller's tenant. A request with an idempotency
// key that was made before returns the sandbox of the first one. If the first
// attempt failed, the sandbox is created now. If the sandbox was removed since, the
// error is CodeGone.
func (s *creator) Create(ctx context.Context, req sandbox.CreateRequest) (Made, error) {
	return s.create(ctx, req, extras{})
}

// CreateFor creates a sandbox that is removed after timeout, unless Expire
// changes the time. A missing image is pulled.
func (s *creator) CreateFor(ctx context.Context, spec sandbox.Spec, timeout time.Duration) (sandbox.Sandbox, error) {
	made, err := s.create(ctx, sandbox.CreateRequest{Spec: spec, Pull: string(control.PullMissing)}, extras{timeout: timeout})
	return made.Sandbox.Info(), err
}

// CreateForBuild creates a sandbox for a build. It does not outlive this
// process. Policies are checked against the image names in base.
func (s *creator) CreateForBuild(ctx context.Context, spec sandbox.Spec, base []string) (sandbox.ID, error) {
	made, err := s.create(ctx, sandbox.CreateRequest{Spec: spec, Pull: string(control.PullNever)}, extras{base: base, bound: true})
	return made.ID, err
}

// CreateForSession creates a sandbox for a session, or returns the one that it
// created with the same key. replaces is a sandbox whose workspaces the new one
// gets, although the old one still has them: the caller removes one of the two.
func (s *creator) CreateForSession(ctx context.Context, spec sandbox.Spec, key string, replaces sandbox.ID) (sandbox.ID, error) {
	made, err := s.create(ctx, sandbox.CreateRequest{Spec: spec, IdempotencyKey: key, Raw: []byte(key)}, extras{ofSession: true, replaces: replaces})
	return made.ID, err
}

// create creates a sandbox. If another daemon has just closed the node that was
// chosen, it is made on another one.
func (s *creator) create(ctx context.Context, req sandbox.CreateRequest, more extras) (Made, error) {
	made, err := s.createOnce(ctx, req, more)
	if !errors.Is(err, store.ErrNodeClosed) {
		return made, err
	}
	s.Report(ctx, s.Providers.ReloadNodes(ctx))
	if req.Spec.Provider != "" {
		return made, err
	}
	return s.createOnce(ctx, req, more)
}

// createOnce plans a sandbox, records it, makes it with the provider, and records
// the outcome.
func (s *creator) createOnce(ctx context.Context, req sandbox.CreateRequest, more extras) (_ Made, err error) {
	ctx, end := span.Start(ctx, "control", string(opCreate), "")
	defer func() { err = core.Named(opCreate, err); end(err) }()
	who, action, err := s.Admit(ctx, opCreate, guard.Subject{Name: req.Spec.Name, Subject: req.Spec.Name},
		func(who key.Principal) error { return guard.AllowSpec(who, &req.Spec) })
	if err != nil {
		return Made{}, err
	}
	p, err := s.draft(ctx, who.Tenant, action, req, &more)
	if err != nil {
		return Made{}, err
	}
	be, p, chosen, err := s.place(ctx, who, p, &more)
	if err != nil {
		return Made{}, err
	}
	defer s.inflight.Begin(p.Spec.ID)()
	action.Sandbox, action.Name, action.Subject = p.Spec.ID, p.Spec.Name, p.Spec.Name
	if err := s.affords(ctx, be, &p, action); err != nil {
		return Made{}, err
	}
	leave, err := s.admitted(ctx, be, who.Tenant)
	if err != nil {
		return Made{}, err
	}
	defer leave()
	if chosen != "" && s.Providers.OnNode(be.Name) {
		fact := audit.Action{Tenant: who.Tenant, Actor: action.Actor, Op: ops.NodePlace, Sandbox: p.Spec.ID, Name: p.Spec.Name, Subject: be.Name}
		s.Report(ctx, s.Audit.FactLater(fact, eventlog.NodePlaced, func(e *eventlog.Event) { e.Policy = chosen }))
	}
	box, intent, err := s.announce(ctx, be, &p, &req, &more, action)
	switch {
	case err != nil:
		return Made{}, err
	case intent == nil: // an earlier request created it
		return s.replay(ctx, box)
	}
	box, image, err := s.make(ctx, be, &p, chosen, intent)
	if err == nil && box.Spec.Main != nil {
		if err = s.startMain(ctx, &box, image); err != nil {
			s.Report(ctx, ignoreGone(s.destroy(ownerOf(context.WithoutCancel(ctx), who.Tenant), string(box.ID), ops.SandboxDestroy, reasonUnmade)))
		}
	}
	if t := p.Template; err == nil && t != nil && t.Start != "" && (p.Origin == "" || box.Reason != "") {
		err = s.Templates.StartCold(ctx, box.ID, t)
	}
	return Made{Sandbox: box, Image: image}, err
}

// draft finds what a request is about, and plans it as far as no provider is
// needed for that.
func (s *creator) draft(ctx context.Context, tenant string, a audit.Action, req sandbox.CreateRequest, more *extras) (p plan.Plan, err error) {
	ask := plan.Ask{CreateRequest: req, Tenant: tenant, Timeout: more.timeout}
	if main := ask.Spec.Main; main != nil {
		fresh := *main
		fresh.Process, fresh.Restarts = "", 0
		ask.Spec.Main = &fresh
	}
	if ask.Spec.Network, err = s.Secrets.SealProxy(tenant, ask.Spec.Network); err != nil {
		return p, err
	}
	if ask.Images, err = s.Policies.AskedImage(ctx, tenant, &ask.Spec); err != nil {
		return p, err
	}
	if ask.Template, err = s.Templates.Source(ctx, tenant, &ask.Spec); err != nil {
		return p, err
	}
	if ask.Spec.Snapshot != "" {
		if ask.Snapshot, err = s.Snapshots.Source(ctx, tenant, ask.Spec.Snapshot); err != nil {
			return p, err
		}
	}
	if more.base != nil {
		ask.Images = more.base
	}
	if ask.Policies, err = s.Policies.Known(ctx, tenant, &ask.Spec, ask.Images); err != nil {
		return p, err
	}
	ask.Policies.Fetches = ask.Policies.Fetches && more.base == nil
	p, err = plan.Draft(ask)
	p.Bound = more.bound
	return p, s.Policies.Refused(ctx, a, err)
}

// place chooses the provider of a plan, and says why if that was not asked for. It
// returns the plan for that provider.
func (s *creator) place(ctx context.Context, who key.Principal, p plan.Plan, more *extras) (be *providers.Backend, _ plan.Plan, chosen string, err error) {
	if more.bound || p.Template != nil {
		s.Providers.KeepHere(&p.Spec)
	}
	if be, chosen, err = s.Providers.Select(ctx, who, &p.Spec); err != nil {
		return nil, p, "", err
	}
	p.Spec.Provider = be.Name
	p, err = be.Control.Fit(ctx, p)
	return be, p, chosen, err
}

// affords refuses a plan because of the signatures of its image, of limits that
// are required and would not be enforced, and of its workspaces. It creates new
// workspaces.
func (s *creator) affords(ctx context.Context, be *providers.Backend, p *plan.Plan, a audit.Action) error {
	if p.Unfetched {
		if err := s.Policies.PermitSigned(ctx, a, p); err != nil {
			return err
		}
	}
	if len(p.Limits) > 0 {
		if err := s.demanded(ctx, be, p.Tenant, p.Caps.Resources, p.Limits); err != nil {
			return err
		}
	}
	return s.Workspaces.Ensure(ctx, p.Spec.Workspaces)
}

// replay returns the sandbox that an earlier request created.
func (s *creator) replay(ctx context.Context, box store.Sandbox) (Made, error) {
	if err := s.inflight.Wait(ctx, box.ID); err != nil {
		return Made{}, err
	}
	box, err := s.record(ctx, box.Tenant, box.ID)
	if err == nil && box.State == sandbox.Gone {
		err = madeEarlier(&box)
	}
	return Made{Sandbox: box, Replayed: true}, err
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

// demanded refuses those limits in loose, which the provider does not enforce,
// that the policies (caps) or a quota require.
func (s *records) demanded(ctx context.Context, be *providers.Backend, tenant string, caps sandbox.Resources, loose map[string]sandbox.Enforcement) error {
	quotas, err := s.Tenants.Limits(ctx, tenant)
	if err != nil {
		return err
	}
	return plan.Demanded(be.Name, loose, caps, quotas)
}

// announce records the sandbox and the attempt to create it in one transaction.
// A nil intent means that an earlier request created the sandbox.
func (s *creator) announce(ctx context.Context, be *providers.Backend, p *plan.Plan, req *sandbox.CreateRequest, more *extras, a audit.Action) (box store.Sandbox, intent *audit.Intent, err error) {
	bound := be.Bound(p.Spec)
	values, err := s.Secrets.Reveal(ctx, p.Tenant, bound.Secrets)
	if err != nil {
		return box, nil, err
	}
	defer values.Clear()
	once := store.Create{IdempotencyKey: req.IdempotencyKey, Request: req.Raw, OfSession: more.ofSession, Retry: neverMade}
	err = s.Store.Update(ctx, func(tx *store.Tx) error {
		intent = nil
		if err := s.takes(ctx, tx, be.Name); err != nil {
			return err
		}
		b := s.recordOf(p, be.Binding, be.Isolation(ctx), tx.Now())
		if p.Timeout > p.Spec.Lifetime.Timeout {
			b.Expires = tx.Now().Add(p.Timeout)
		}
		var replayed bool
		var err error
		if box, replayed, err = tx.Sandboxes().Create(ctx, p.Tenant, b, once); err != nil || replayed {
			return err
		}
		if p.Hidden, err = s.bind(ctx, tx, p.Tenant, &bound, values); err != nil {
			return err
		}
		if err := s.Workspaces.Claim(ctx, tx, p.Tenant, &p.Spec, more.replaces); err != nil {
			return err
		}
		intent, err = s.Audit.BeginTx(ctx, tx, a)
		return err
	})
	return box, intent, err
}

// recordOf returns the record of a planned sandbox.
func (s *creator) recordOf(p *plan.Plan, binding string, gives sandbox.Isolation, now time.Time) store.Sandbox {
	b := store.Sandbox{
		Summary: store.Summary{
			Sandbox: sandbox.Sandbox{
				ID: p.Spec.ID, Name: p.Spec.Name, Provider: p.Spec.Provider, Isolation: gives, Node: s.Node, Image: p.Images[0],
				Resources: p.Spec.Resources, Limits: p.Limits, Labels: p.Spec.Labels, Origin: p.Origin,
			},
			Binding: binding,
		},
		Spec: p.Spec,
	}
	setLifetime(&b, p.Spec.Lifetime, now)
	return b
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
func (s *creator) make(ctx context.Context, be *providers.Backend, p *plan.Plan, chosen string, intent *audit.Intent) (box store.Sandbox, image control.ImageConfig, err error) {
	if err := s.Fault("create.recorded"); err != nil {
		return box, image, err
	}
	published, makeErr := s.Ports.Reserve(p.Tenant, p.Spec.ID, p.Spec.Name, p.Spec.Ports)
	var made *control.Sandbox
	var how driver.Restored
	if makeErr == nil {
		made, how, makeErr = s.bringUp(ctx, be, p)
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
	box, err = s.finalize(late, p.Tenant, p.Spec.ID, intent, audit.Outcome{Err: makeErr}, func(b *store.Sandbox) {
		b.State, b.Reason = state, reason
		if makeErr == nil {
			// Record the image actually used: its name may later refer to another one.
			b.Spec.Image, b.Spec.Ports = made.Image().Ref, published
		}
	})
	switch {
	case makeErr != nil:
		s.discard(late, &store.Sandbox{Summary: store.Summary{Sandbox: sandbox.Sandbox{ID: p.Spec.ID}}})
		s.Report(ctx, errors.Join(err, s.Workspaces.DetachNow(ctx, p.Spec.ID, p.Spec.Name)))
		return box, image, makeErr
	case err != nil:
		// The sandbox is running, but its record says "creating". The next
		// reconciliation fixes that.
		return box, image, err
	}
	s.follow(p.Tenant, made)
	s.due.soon()
	return box, made.Image(), s.Fault("create.done")
}

// bringUp creates a sandbox from its image or from its snapshot. Before
// that, it stores what must not be in the record elsewhere. It does not load
// copies of workspaces.
func (s *creator) bringUp(ctx context.Context, be *providers.Backend, p *plan.Plan) (*control.Sandbox, driver.Restored, error) {
	if err := s.Snapshots.PutEnvironment(p.Spec.ID, p.Spec.Env); err != nil {
		return nil, driver.Restored{}, err
	}
	mounted, err := s.Workspaces.Mount(ctx, *p, be.Facts)
	if err != nil {
		return nil, driver.Restored{}, err
	}
	if p.Origin != "" {
		return s.Snapshots.Restore(ctx, be, mounted, p.Origin)
	}
	made, err := be.Control.Create(ctx, mounted)
	return made, driver.Restored{}, err
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
		box, err = tx.Sandboxes().Update(ctx, tenant, id, store.Expect{Observed: true, Node: s.Node}, change)
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
