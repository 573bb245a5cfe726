// Package policies applies the policies of a machine: what the sandboxes of its
// tenants may be, use and reach. Package policyset decides; this package loads
// the policies, completes requests for them, and records refusals.
package policies

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Files are where the policies of a machine come from.
type Files struct {
	Source string // a file or a directory, for people
	// Load reads them. Nil: there are none.
	Load func() (*policyset.Set, error)
}

// Config is what a Service works with.
type Config struct {
	Files
	// Defaults are the limits of sandboxes that ask for none.
	Defaults sandbox.Resources
	// Images finds the images of this machine. Nil: there are none.
	Images control.Images
	// Snapshot finds a snapshot of a tenant by its name or id.
	Snapshot func(ctx context.Context, tenant, ref string) (store.Snapshot, error)
	// Changed is called after other policies were loaded.
	Changed func(ctx context.Context) error
}

// Service holds the policies in force. Its methods may be called concurrently.
type Service struct {
	*core.Core
	cfg     Config
	loading sync.Mutex // held while the files are read

	mu      sync.Mutex
	set     *policyset.Set
	loaded  time.Time
	problem string // why the files as they are now cannot be used
}

// New returns a Service without policies; see Load.
func New(c *core.Core, cfg Config) *Service { return &Service{Core: c, cfg: cfg} }

// Set returns the policies in force.
func (s *Service) Set() *policyset.Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set
}

// Load reads the policies again. If any of them is wrong, the earlier ones stay
// in force. Changes and errors are recorded in the log of the default tenant.
// Load is for the daemon, and asks for no permission.
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
	fact := audit.Action{Tenant: core.DefaultTenant, Op: ops.PolicyReload, Subject: s.cfg.Source, Policy: set.Digest()[:12]}
	return errors.Join(s.Audit.Fact(ctx, fact, eventlog.PoliciesLoaded, nil), s.cfg.Changed(ctx))
}

// keep leaves the policies as they are, and records why, once for each reason.
func (s *Service) keep(ctx context.Context, why error) error {
	s.mu.Lock()
	known := s.problem == why.Error()
	s.problem = why.Error()
	s.mu.Unlock()
	if known {
		return why
	}
	fact := audit.Action{Tenant: core.DefaultTenant, Op: ops.PolicyReload, Subject: why.Error()}
	s.Report(ctx, s.Audit.Fact(ctx, fact, eventlog.PoliciesKept, func(e *eventlog.Event) { e.Code = sandbox.CodeOf(why) }))
	return why
}

// Reload is Load for the owner of the machine.
func (s *Service) Reload(ctx context.Context) (sandbox.Policies, error) {
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
func (s *Service) Get(ctx context.Context) (sandbox.Policies, error) {
	who, err := s.Look(ctx, ops.PolicyGet, "")
	if err != nil {
		return sandbox.Policies{}, err
	}
	if who.UID != nil {
		return s.state(""), nil
	}
	return s.state(who.Tenant), nil
}

// state describes the policies, for a tenant or, if that is empty, for the owner
// of the machine. Only the owner sees names of files.
func (s *Service) state(tenant string) sandbox.Policies {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := sandbox.Policies{Digest: s.set.Digest(), Loaded: s.loaded}
	if tenant != "" {
		out.Policies = s.set.PoliciesOf(tenant)
		return out
	}
	out.Source, out.Problem, out.Policies = s.cfg.Source, s.problem, s.set.Policies()
	return out
}

// Explain returns what the policies say about a sandbox, without making it.
func (s *Service) Explain(ctx context.Context, spec sandbox.Spec) (sandbox.PolicyAnswer, error) {
	const op = ops.PolicyExplain
	who, err := s.Look(ctx, op, "")
	if err != nil {
		return sandbox.PolicyAnswer{}, err
	}
	if err := spec.Validate(); err != nil {
		return sandbox.PolicyAnswer{}, core.Named(op, err)
	}
	asked, err := s.AskedImage(ctx, who.Tenant, &spec)
	if err != nil {
		return sandbox.PolicyAnswer{}, core.Named(op, err)
	}
	s.Fill(who.Tenant, &spec, 0)
	r, err := s.request(ctx, who.Tenant, &spec, asked)
	if err != nil {
		return sandbox.PolicyAnswer{}, core.Named(op, err)
	}
	set := s.Set()
	if set.AsksWho(r.About) {
		r.Signatures, r.Unfetched = s.localSignatures(ctx, &spec, asked)
	}
	return set.Answer(r), nil
}
