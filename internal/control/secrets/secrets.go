// Package secrets manages the secrets of tenants: their values, which sandboxes
// use them, and their redaction from output.
package secrets

import (
	"context"
	"fmt"
	"slices"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Sources reads secret values that are kept outside the store. Package source
// implements it.
type Sources interface {
	Read(ctx context.Context, s secret.Source) (secret.Value, error)
}

// Policies provides the machine's policies.
type Policies interface {
	// Set returns the policies in force.
	Set() *policyset.Set
}

// Enforcer updates the network configuration of sandboxes in the gateway.
type Enforcer interface {
	Enforce(ctx context.Context, all []store.Sandbox) error
}

// Config is what a Service works with.
type Config struct {
	// Sealer encrypts values for the store. Nil: values cannot be stored.
	Sealer *secret.Sealer
	// Sources reads secrets that are kept outside the store. Nil: there are none.
	Sources  Sources
	Policies Policies
	// Gateway is updated when a secret changes.
	Gateway Enforcer
}

// Service manages secrets. It is safe for concurrent use.
type Service struct {
	*core.Core
	cfg       Config
	redactors redactors
}

// New returns a Service.
func New(c *core.Core, cfg Config) *Service { return &Service{Core: c, cfg: cfg} }

// Limits of the labels of a secret.
const (
	maxLabels     = 64
	maxLabelBytes = 16 << 10 // of all keys and values
)

func checkLabels(labels map[string]string) error {
	total := 0
	for k, v := range labels {
		total += len(k) + len(v)
	}
	if _, empty := labels[""]; empty || len(labels) > maxLabels || total > maxLabelBytes {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "labels", Message: fmt.Sprintf("more than %d labels or %d bytes, or a label without a name", maxLabels, maxLabelBytes)}
	}
	return nil
}

// validate checks a request, and returns the source of the value.
func validate(n *durable.NewSecret, who key.Principal, v secret.Value) (secret.Source, error) {
	source, err := secret.ParseSource(n.Source)
	switch {
	case err != nil:
		return source, err
	case len(n.Description) > 1000:
		return source, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "description", Message: "is longer than 1000 bytes"}
	}
	if err := core.FirstError(sandbox.ValidateSecretName(n.Name), policy.CheckSecretHosts(n.Hosts), checkLabels(n.Labels)); err != nil {
		return source, err
	}
	switch {
	case source.Kind == secret.Stored:
		return source, secret.Check(v)
	case who.UID == nil:
		return source, &sandbox.Error{Code: sandbox.CodeDenied, Subject: "source", Message: "only the owner of the machine may use its files and variables", Hint: "give the value instead"}
	case v.Len() > 0:
		return source, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "value", Message: "must not be given together with a source"}
	}
	return source, nil
}

// Create stores a secret of the caller's tenant. It clears n.Value.
func (s *Service) Create(ctx context.Context, n durable.NewSecret) (durable.StoredSecret, error) {
	v := secret.NewValue(n.Bytes())
	defer v.Clear()
	who, err := guard.Principal(ctx)
	if err != nil {
		return durable.StoredSecret{}, err
	}
	var out store.Secret
	err = s.ChangeTx(ctx, ops.SecretCreate, n.Name, func(ctx context.Context, tx *store.Tx, tenant string) (string, error) {
		source, err := validate(&n, who, v)
		if err != nil {
			return "", err
		}
		if n.AllowEnv {
			r := policyset.Request{About: policyset.About{Tenant: tenant}, Secrets: []policyset.Grant{{Name: n.Name, Mode: sandbox.SecretEnv}}}
			if err := s.cfg.Policies.Set().Check(r, policyset.SecretModes); err != nil {
				return "", err
			}
		}
		out = store.Secret{Tenant: tenant, StoredSecret: durable.StoredSecret{
			Name: n.Name, Description: n.Description, Source: source.String(), Hosts: n.Hosts, Labels: n.Labels, AllowEnv: n.AllowEnv,
		}}
		if source.Kind == secret.Stored {
			if out.KeyID, out.Sealed, err = s.seal(secret.Owner{Tenant: tenant, Name: n.Name, Version: 1}, v); err != nil {
				return "", err
			}
		}
		out, err = tx.Secrets().Create(ctx, out)
		return n.Name, err
	})
	return out.StoredSecret, err
}

// Rotate gives a secret a new value, which the gateway uses from the next
// request on. For a value kept outside the store, Rotate takes no value: it
// increments the version, so that the gateway reads the value again. It clears
// change.Value.
func (s *Service) Rotate(ctx context.Context, name string, change durable.SecretValue) (durable.StoredSecret, error) {
	const op = ops.SecretRotate
	v := secret.NewValue(change.Bytes())
	defer v.Clear()
	var out store.Secret
	var users []store.Sandbox
	err := s.ChangeTx(ctx, op, name, func(ctx context.Context, tx *store.Tx, tenant string) (string, error) {
		if err := s.rotate(ctx, tx, tenant, name, v); err != nil {
			return "", err
		}
		if change.Labels != nil {
			if err := checkLabels(change.Labels); err != nil {
				return "", err
			}
			if err := tx.Secrets().SetLabels(ctx, tenant, name, change.Labels); err != nil {
				return "", err
			}
		}
		var err error
		if out, err = tx.Secrets().Get(ctx, tenant, name); err != nil {
			return "", err
		}
		users, err = affected(ctx, tx, tenant, name)
		return fmt.Sprintf("%s@%d", name, out.Version), err
	})
	if err != nil {
		return durable.StoredSecret{}, err
	}
	return out.StoredSecret, core.Named(op, s.cfg.Gateway.Enforce(ctx, users))
}

// rotate stores the next version of a secret.
func (s *Service) rotate(ctx context.Context, tx *store.Tx, tenant, name string, v secret.Value) error {
	old, err := tx.Secrets().Get(ctx, tenant, name)
	if err != nil {
		return err
	}
	if err := rotatable(&old, v); err != nil {
		return err
	}
	var keyID string
	var sealed []byte
	if old.Source == "" {
		if keyID, sealed, err = s.seal(secret.Owner{Tenant: tenant, Name: name, Version: old.Version + 1}, v); err != nil {
			return err
		}
	}
	return tx.Secrets().Rotate(ctx, tenant, name, old.Version, keyID, sealed)
}

func rotatable(s *store.Secret, v secret.Value) error {
	if s.Source == "" {
		return secret.Check(v)
	}
	if v.Len() > 0 {
		return &sandbox.Error{
			Code: sandbox.CodeInvalid, Subject: s.Name, Message: "its value is kept outside the store, in " + s.Source,
			Hint: "change it there, and rotate without a value",
		}
	}
	return nil
}

// Remove removes a secret. If a sandbox or profile uses it, Remove returns
// CodeConflict. With force, it is removed anyway, and they immediately lose it.
func (s *Service) Remove(ctx context.Context, name string, force bool) error {
	const op = ops.SecretRemove
	var users []store.Sandbox
	err := s.ChangeTx(ctx, op, name, func(ctx context.Context, tx *store.Tx, tenant string) (string, error) {
		profiles, err := tx.Profiles().List(ctx, tenant)
		if err != nil {
			return "", err
		}
		for _, profile := range profiles {
			if !force && slices.Contains(profile.Profile.Secrets(), name) {
				return "", &sandbox.Error{
					Code: sandbox.CodeConflict, Subject: name, Message: "the profile " + profile.Name + " adds the secret to requests",
					Hint: "change the profile first, or use --force",
				}
			}
		}
		if users, err = affected(ctx, tx, tenant, name); err != nil {
			return "", err
		}
		if len(users) > 0 && !force {
			return "", &sandbox.Error{
				Code: sandbox.CodeConflict, Subject: name, Message: "the secret is in use by " + core.NamesOf(users),
				Hint: "remove those sandboxes first, or use --force",
			}
		}
		return name, tx.Secrets().Remove(ctx, tenant, name, force)
	})
	if err != nil {
		return err
	}
	return core.Named(op, s.cfg.Gateway.Enforce(ctx, users))
}

// List returns the secrets of the caller's tenant, by name.
func (s *Service) List(ctx context.Context) ([]durable.StoredSecret, error) {
	all, err := core.Read(ctx, s.Core, ops.SecretList, "", func(tx *store.Tx, tenant string) ([]store.Secret, error) { return tx.Secrets().List(ctx, tenant) })
	out := make([]durable.StoredSecret, len(all))
	for i := range all {
		out[i] = all[i].StoredSecret
	}
	return out, err
}

// affected returns the sandboxes of a tenant whose network rules or
// placeholders use a secret.
func affected(ctx context.Context, tx *store.Tx, tenant, name string) ([]store.Sandbox, error) {
	users, err := tx.Secrets().Users(ctx, tenant, name)
	if err != nil {
		return nil, err
	}
	also := func(more ...store.Sandbox) {
		for _, m := range more {
			if !slices.ContainsFunc(users, func(b store.Sandbox) bool { return b.ID == m.ID }) {
				users = append(users, m)
			}
		}
	}
	own, err := tx.Profiles().InlineUsers(ctx, tenant)
	if err != nil {
		return nil, err
	}
	for _, b := range own {
		if slices.Contains(b.Spec.Network.Inline.Secrets(), name) {
			also(b)
		}
	}
	profiles, err := tx.Profiles().List(ctx, tenant)
	if err != nil {
		return nil, err
	}
	for _, profile := range profiles {
		if !slices.Contains(profile.Profile.Secrets(), name) {
			continue
		}
		more, err := tx.Profiles().Users(ctx, tenant, profile.Name)
		if err != nil {
			return nil, err
		}
		also(more...)
	}
	return users, nil
}
