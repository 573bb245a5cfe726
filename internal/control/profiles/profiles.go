// Package profiles stores the egress profiles of tenants, and configures the
// gateway.
package profiles

import (
	"cmp"
	"context"
	"fmt"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/keyed"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Policies provides the machine's policies.
type Policies interface {
	// Set returns the policies in force.
	Set() *policyset.Set
}

// Secrets reads the values of secrets.
type Secrets interface {
	// Open returns the value of a secret. The caller clears it.
	Open(ctx context.Context, s *store.Secret) (secret.Value, error)
	// SealProfile returns a profile whose proxy password is encrypted.
	SealProfile(tenant string, p sandbox.Profile) (sandbox.Profile, error)
	// OpenProxy returns the password of a proxy. The caller clears it.
	OpenProxy(tenant string, p *sandbox.UpstreamProxy) (secret.Value, error)
}

// Sandboxes provides access to the sandboxes of this node.
type Sandboxes interface {
	// Recorded returns the records of sandboxes that are not gone.
	Recorded(ctx context.Context) ([]store.Sandbox, error)
	// HasGateway reports whether a sandbox is connected to the gateway. An error
	// means that its provider cannot be used.
	HasGateway(ctx context.Context, b *store.Sandbox) (bool, error)
}

// Identities issues the identity tokens of sandboxes.
type Identities interface {
	// Available reports, as an error, that it issues none.
	Available() error
	// Token issues one. The caller clears it.
	Token(tenant string, id sandbox.ID, audience string) (secret.Value, error)
}

// Config is what a Service works with.
type Config struct {
	// Gateway enforces network rules. Nil: there is no gateway.
	Gateway Gateway
	// Operator has the machine owner's settings for all profiles.
	Operator  policy.Operator
	Policies  Policies
	Secrets   Secrets
	Sandboxes Sandboxes
	// Identities issues identity tokens. Nil: there are none.
	Identities Identities
}

// Service stores egress profiles. It is safe for concurrent use.
type Service struct {
	*core.Core
	cfg     Config
	telling keyed.Locks[sandbox.ID] // held while the gateway is updated for a sandbox
}

// New returns a Service.
func New(c *core.Core, cfg Config) *Service { return &Service{Core: c, cfg: cfg} }

// check refuses a profile that cannot be stored or enforced.
func (s *Service) check(ctx context.Context, tx *store.Tx, tenant string, doc sandbox.Profile) error {
	if err := (sandbox.Network{Profile: doc.Name}).Validate(); err != nil || doc.Name == "" {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "name", Message: "a stored profile needs a name of 1 to 63 characters of a-z, 0-9 and -"}
	}
	r := policyset.Request{About: policyset.About{Tenant: tenant}}
	for _, name := range doc.Secrets() {
		r.Secrets = append(r.Secrets, policyset.Grant{Name: name})
	}
	if err := s.cfg.Policies.Set().Check(r, policyset.Secrets); err != nil {
		return err
	}
	return s.compiles(ctx, tx, tenant, doc, true, nil)
}

// Create stores a profile of the caller's tenant.
func (s *Service) Create(ctx context.Context, doc sandbox.Profile) (durable.StoredProfile, error) {
	var out store.Profile
	err := s.ChangeTx(ctx, ops.ProfileCreate, doc.Name, func(ctx context.Context, tx *store.Tx, tenant string) (_ string, err error) {
		if err := s.check(ctx, tx, tenant, doc); err != nil {
			return "", err
		}
		if doc, err = s.cfg.Secrets.SealProfile(tenant, doc); err != nil {
			return "", err
		}
		out, err = tx.Profiles().Create(ctx, tenant, doc)
		return doc.Name, err
	})
	return out.StoredProfile, err
}

// Apply stores a new version of a profile, or its first one, and applies it to
// the sandboxes that use it. expect is the version that the profile must have; 0
// accepts any. If the profile was stored and could not be applied to all
// sandboxes, Apply returns CodeUnavailable.
func (s *Service) Apply(ctx context.Context, expect int64, doc sandbox.Profile) (durable.StoredProfile, error) {
	const op = ops.ProfileApply
	var out store.Profile
	var users []store.Sandbox
	err := s.ChangeTx(ctx, op, doc.Name, func(ctx context.Context, tx *store.Tx, tenant string) (_ string, err error) {
		if err := s.check(ctx, tx, tenant, doc); err != nil {
			return "", err
		}
		if doc, err = s.cfg.Secrets.SealProfile(tenant, doc); err != nil {
			return "", err
		}
		out, err = tx.Profiles().Update(ctx, tenant, expect, doc)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound && expect == 0 {
			out, err = tx.Profiles().Create(ctx, tenant, doc)
		}
		if err != nil {
			return "", err
		}
		users, err = tx.Profiles().Users(ctx, tenant, doc.Name)
		return fmt.Sprintf("%s@%d", doc.Name, out.Version), err
	})
	if err != nil {
		return out.StoredProfile, err
	}
	return out.StoredProfile, core.Named(op, s.Enforce(ctx, users))
}

// Remove removes a profile that no sandbox uses.
func (s *Service) Remove(ctx context.Context, name string) error {
	return s.ChangeTx(ctx, ops.ProfileRemove, name, func(ctx context.Context, tx *store.Tx, tenant string) (string, error) {
		return name, tx.Profiles().Remove(ctx, tenant, name)
	})
}

// Get returns a version of a profile of the caller's tenant. 0 means the
// current version.
func (s *Service) Get(ctx context.Context, name string, version int64) (durable.StoredProfile, error) {
	found, err := s.get(ctx, name, version)
	return found.StoredProfile, err
}

func (s *Service) get(ctx context.Context, name string, version int64) (store.Profile, error) {
	return core.Read(ctx, s.Core, ops.ProfileGet, name, func(tx *store.Tx, tenant string) (store.Profile, error) {
		if version != 0 {
			return tx.Profiles().Version(ctx, tenant, name, version)
		}
		return tx.Profiles().Get(ctx, tenant, name)
	})
}

// List returns the profiles of the caller's tenant, by name.
func (s *Service) List(ctx context.Context) ([]durable.StoredProfile, error) {
	all, err := core.Read(ctx, s.Core, ops.ProfileList, "", func(tx *store.Tx, tenant string) ([]store.Profile, error) { return tx.Profiles().List(ctx, tenant) })
	out := make([]durable.StoredProfile, len(all))
	for i := range all {
		out[i] = all[i].StoredProfile
	}
	return out, err
}

// Test returns what would happen to a request under a profile, without sending
// it. An empty method is GET.
func (s *Service) Test(ctx context.Context, name, method, target string) (_ operator.Explanation, err error) {
	const op = ops.ProfileTest
	defer core.Name(op, &err)
	stored, err := s.get(ctx, name, 0)
	if err != nil {
		return operator.Explanation{}, err
	}
	compiled, err := policy.Compile(stored.Profile, policy.Options{
		Operator: s.cfg.Operator, EgressLimits: s.cfg.Policies.Set().EgressLimits(policyset.About{Tenant: stored.Tenant}),
	})
	if err != nil {
		return operator.Explanation{}, err
	}
	e, err := compiled.Explain(cmp.Or(method, "GET"), target)
	return e, err
}

// Bind records the use of a profile by a new sandbox, in the transaction that
// records the sandbox. See Check for swaps.
func (s *Service) Bind(ctx context.Context, tx *store.Tx, tenant string, spec *sandbox.Spec, swaps []policy.Swap) error {
	if spec.Network.Profile != "" {
		if err := tx.Profiles().Use(ctx, tenant, spec.ID, spec.Network.Profile); err != nil {
			return core.Hinted(err, "see which there are with: atoll profile ls")
		}
	}
	return s.Check(ctx, tx, tenant, spec.Network, swaps)
}

// Check refuses a network that cannot be enforced with the tenant's secrets.
// swaps are the placeholders and where they are replaced.
func (s *Service) Check(ctx context.Context, tx *store.Tx, tenant string, n sandbox.Network, swaps []policy.Swap) error {
	profile, err := tx.Profiles().ForNetwork(ctx, tenant, n)
	if err != nil {
		return err
	}
	return s.compiles(ctx, tx, tenant, profile, trusted(ctx, n), swaps)
}

// trusted reports whether a network may send a secret without hosts to any
// host. A stored profile may, and so may a caller who can store profiles.
func trusted(ctx context.Context, n sandbox.Network) bool {
	who, err := guard.Principal(ctx)
	return n.Profile != "" || err == nil && who.Allow(ops.ProfileCreate) == nil
}

// compiles refuses a profile that cannot be enforced with the tenant's secrets.
// Unless the profile is trusted, secrets that its rules add must have hosts.
func (s *Service) compiles(ctx context.Context, tx *store.Tx, tenant string, profile sandbox.Profile, trusted bool, swaps []policy.Swap) error {
	if err := core.FirstError(policy.CheckReach(profile), s.identifies(profile)); err != nil {
		return err
	}
	secrets := map[string][]string{}
	for _, name := range profile.Secrets() {
		found, err := tx.Secrets().Get(ctx, tenant, name)
		switch {
		case sandbox.CodeOf(err) == sandbox.CodeNotFound:
			continue
		case err != nil:
			return err
		case !trusted && len(found.Hosts) == 0:
			return secret.NoHosts(name)
		}
		secrets[name] = append([]string{}, found.Hosts...)
	}
	for _, swap := range swaps {
		found, err := tx.Secrets().Get(ctx, tenant, swap.Secret)
		if err != nil {
			return err
		}
		secrets[swap.Secret] = append([]string{}, found.Hosts...)
	}
	compiled, err := policy.Compile(profile, policy.Options{Secrets: secrets, Swaps: swaps, Operator: s.cfg.Operator})
	if err != nil || !compiled.Steered() {
		return err
	}
	if s.cfg.Operator.Proxied {
		return &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: "network", Message: "this machine connects through a proxy, so a profile cannot have dnsServers or a proxy",
		}
	}
	return checkUpstream(compiled)
}

// checkUpstream refuses DNS servers and proxies that the gateway would never
// connect to. The addresses of names and the machine's policies are only
// checked later.
func checkUpstream(p *policy.Policy) error {
	upstream := p.Upstream()
	var flows []policy.Flow
	for _, server := range upstream.Servers {
		flows = append(flows, policy.Flow{Addr: server.Addr(), Port: server.Port()})
	}
	if proxy := upstream.Proxy; proxy != nil {
		flows = append(flows, policy.Flow{Name: proxy.Host.Name, Addr: proxy.Host.Addr, Port: proxy.Port})
	}
	for _, f := range flows {
		if d := p.MayAsk(f); !d.Allow {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "network", Message: d.Message()}
		}
	}
	return nil
}
