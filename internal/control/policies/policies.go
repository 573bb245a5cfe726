// Package policies applies the machine's policies to the sandboxes of its
// tenants. Package policyset evaluates them; this package loads them, fills in
// requests, and records refusals.
package policies

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Files is the source of the machine's policies.
type Files struct {
	Source string // a file or a directory, for display
	// Load reads the policies. Nil: there are none.
	Load func() (*policyset.Set, error)
}

// Config is what a Service works with.
type Config struct {
	Files
	// Defaults are the limits of sandboxes that request none.
	Defaults sandbox.Resources
	// Images provides the images of this machine. Nil: there are none.
	Images engine.Images
	// Snapshot returns a snapshot of a tenant by its name or id.
	Snapshot func(ctx context.Context, tenant, ref string) (store.Snapshot, error)
	// Changed applies changed policies to the networks of sandboxes.
	Changed func(ctx context.Context) error
}

// Service holds the policies in force. It is safe for concurrent use.
type Service struct {
	*core.Core
	cfg     Config
	loading sync.Mutex // held while reading the files

	mu      sync.Mutex
	set     *policyset.Set
	loaded  time.Time
	problem string // why the current files are invalid
}

// New returns a Service without policies; see Load.
func New(c *core.Core, cfg Config) *Service { return &Service{Core: c, cfg: cfg} }

// Set returns the policies in force.
func (s *Service) Set() *policyset.Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set
}

// notApplied is the error of Load for policies that are in force and could not
// be applied to the network of every sandbox.
type notApplied struct{ error }

func (n notApplied) Unwrap() error { return n.error }

// InForce reports whether new policies are in force although Load returned err,
// which says for which sandboxes the network has the old rules.
func InForce(err error) bool {
	_, ok := errors.AsType[notApplied](err)
	return ok
}

// Load reads the policies again. If one is invalid, the old policies stay in
// force; see also InForce. Changes and errors are recorded in the log of the
// default tenant, a change after networks have the new rules, with a code if some
// do not. Load is for the daemon and has no guard.
func (s *Service) Load(ctx context.Context) error {
	if s.cfg.Load == nil {
		return nil
	}
	s.loading.Lock()
	defer s.loading.Unlock()
	set, err := s.cfg.Load()
	if err != nil {
		return s.keep(ctx, err)
	}
	s.mu.Lock()
	same := s.set.Digest() == set.Digest() && s.problem == ""
	if !same {
		s.set, s.loaded, s.problem = set, s.Store.Now(), ""
	}
	s.mu.Unlock()
	if same {
		return nil
	}
	err = s.cfg.Changed(ctx)
	if err != nil {
		err = notApplied{err}
	}
	fact := audit.Action{Tenant: key.DefaultTenant, Op: ops.PolicyReload, Subject: s.cfg.Source, Policy: set.Digest()[:12]}
	return errors.Join(s.Audit.Fact(ctx, fact, eventlog.PoliciesLoaded, func(e *eventlog.Event) { e.Code = sandbox.CodeOf(err) }), err)
}

// keep keeps the current policies, and records the reason unless it was already
// recorded.
func (s *Service) keep(ctx context.Context, why error) error {
	s.mu.Lock()
	known := s.problem == why.Error()
	s.problem = why.Error()
	s.mu.Unlock()
	if known {
		return why
	}
	fact := audit.Action{Tenant: key.DefaultTenant, Op: ops.PolicyReload, Subject: why.Error()}
	s.Report(ctx, s.Audit.Fact(ctx, fact, eventlog.PoliciesKept, func(e *eventlog.Event) { e.Code = sandbox.CodeOf(why) }))
	return why
}

// Reload is Load for the owner of the machine.
func (s *Service) Reload(ctx context.Context) (operator.Policies, error) {
	err := s.AsOwner(ctx, ops.PolicyReload, s.cfg.Source, func(ctx context.Context) error {
		if s.cfg.Load == nil {
			return &sandbox.Error{Code: sandbox.CodeUnsupported, Subject: "policies", Message: "this daemon has none", Hint: "start it with: atoll up --policy DIR"}
		}
		return s.Load(ctx)
	})
	return s.state(""), err
}

// Get returns the policies that may apply to sandboxes of the caller's tenant.
// The owner of the machine sees all.
func (s *Service) Get(ctx context.Context) (operator.Policies, error) {
	who, err := s.Look(ctx, ops.PolicyGet, "")
	if err != nil {
		return operator.Policies{}, err
	}
	if who.UID != nil {
		return s.state(""), nil
	}
	return s.state(who.Tenant), nil
}

// state describes the policies, for a tenant or, if tenant is empty, for the
// owner of the machine. Only the owner sees file names.
func (s *Service) state(tenant string) operator.Policies {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := operator.Policies{Digest: s.set.Digest(), Loaded: s.loaded}
	if tenant != "" {
		out.Policies = s.set.PoliciesOf(tenant)
		return out
	}
	out.Source, out.Problem, out.Policies = s.cfg.Source, s.problem, s.set.Policies()
	return out
}

// Explain returns the decision of the policies about a sandbox, without
// creating it.
func (s *Service) Explain(ctx context.Context, spec sandbox.Spec) (_ operator.PolicyAnswer, err error) {
	const op = ops.PolicyExplain
	defer core.Name(op, &err)
	who, err := s.Look(ctx, op, "")
	if err != nil {
		return operator.PolicyAnswer{}, err
	}
	if err := spec.Validate(); err != nil {
		return operator.PolicyAnswer{}, err
	}
	asked, err := s.AskedImage(ctx, who.Tenant, &spec)
	if err != nil {
		return operator.PolicyAnswer{}, err
	}
	k, err := s.Known(ctx, who.Tenant, &spec, asked)
	if err != nil {
		return operator.PolicyAnswer{}, err
	}
	r := k.Request(who.Tenant, &spec, asked)
	r.Resources = spec.Resources
	r.Complete(k.Set.Caps(r.About), k.Defaults)
	if k.Set.AsksWho(r.About) {
		r.Signatures, r.Unfetched = s.localSignatures(ctx, &spec, asked)
	}
	return k.Set.Answer(r), nil
}
