package plane

import (
	"context"
	"fmt"
	"slices"

	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/policy"
	bundle "github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// NewSecret says what a secret is to be. Its value is given, or its source
// names where the daemon finds it.
type NewSecret struct {
	Name        string
	Description string
	Source      secret.Source
	Hosts       []string // to whom it may be sent; none: to whoever a rule names
	AllowEnv    bool     // sandboxes may get the value itself
	Labels      map[string]string
}

func (n *NewSecret) validate(who key.Principal, v secret.Value) error {
	if err := sandbox.ValidateSecretName(n.Name); err != nil {
		return err
	}
	if len(n.Description) > 1000 {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "description", Message: "is longer than 1000 bytes"}
	}
	if err := policy.CheckSecretHosts(n.Hosts); err != nil {
		return err
	}
	if err := n.Source.Validate(); err != nil {
		return err
	}
	if n.Source.Kind == secret.Stored {
		return secret.Check(v)
	}
	if who.UID == nil {
		return &sandbox.Error{Code: sandbox.CodeDenied, Subject: "source", Message: "only the owner of the machine may use files and variables of it", Hint: "give the value instead"}
	}
	if v.Len() > 0 {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "value", Message: "is given although the source says where it is"}
	}
	return nil
}

// CreateSecret stores a secret of the caller's tenant. The value is cleared.
func (p *Plane) CreateSecret(ctx context.Context, n NewSecret, v secret.Value) (out store.Secret, err error) {
	defer v.Clear()
	who, err := guard.Principal(ctx)
	if err != nil {
		return out, err
	}
	err = p.changeTx(ctx, control.Action{Op: ops.SecretCreate, Subject: n.Name}, func(ctx context.Context, tx *store.Tx, tenant string) (string, error) {
		if err := n.validate(who, v); err != nil {
			return "", err
		}
		if n.AllowEnv {
			w := bundle.Request{About: bundle.About{Tenant: tenant}, Secrets: []bundle.Grant{{Name: n.Name, Mode: sandbox.SecretEnv}}}
			if err := p.policies().Check(w, bundle.SecretModes); err != nil {
				return "", err
			}
		}
		out = store.Secret{StoredSecret: sandbox.StoredSecret{Name: n.Name, Description: n.Description, Source: n.Source.String(), Hosts: n.Hosts, AllowEnv: n.AllowEnv}, Tenant: tenant, Labels: n.Labels}
		if n.Source.Kind == secret.Stored {
			if out.KeyID, out.Sealed, err = p.seal(secret.Owner{Tenant: tenant, Name: n.Name, Version: 1}, v); err != nil {
				return "", err
			}
		}
		out, err = tx.CreateSecret(ctx, out)
		return n.Name, err
	})
	return hushed(out), err
}

// RotateSecret gives a secret a new value, which the gateway uses from the next
// request on. Of one that the store does not hold, it only raises the version,
// which makes the gateway read it anew. The value is cleared.
func (p *Plane) RotateSecret(ctx context.Context, name string, v secret.Value) (store.Secret, error) {
	return p.UpdateSecret(ctx, name, v, nil)
}

// UpdateSecret is RotateSecret with new labels; nil leaves them.
func (p *Plane) UpdateSecret(ctx context.Context, name string, v secret.Value, labels map[string]string) (out store.Secret, err error) {
	defer v.Clear()
	const op = ops.SecretRotate
	var boxes []store.Sandbox
	err = p.changeTx(ctx, control.Action{Op: op, Subject: name}, func(ctx context.Context, tx *store.Tx, tenant string) (string, error) {
		s, err := tx.Secret(ctx, tenant, name)
		if err != nil {
			return "", err
		}
		if err := rotatable(&s, v); err != nil {
			return "", err
		}
		var keyID string
		var sealed []byte
		if s.Source == "" {
			if keyID, sealed, err = p.seal(secret.Owner{Tenant: tenant, Name: name, Version: s.Version + 1}, v); err != nil {
				return "", err
			}
		}
		if err := tx.RotateSecret(ctx, tenant, name, s.Version, keyID, sealed); err != nil {
			return "", err
		}
		if labels != nil {
			if err := tx.SetSecretLabels(ctx, tenant, name, labels); err != nil {
				return "", err
			}
		}
		if out, err = tx.Secret(ctx, tenant, name); err != nil {
			return "", err
		}
		boxes, err = p.affected(ctx, tx, tenant, name)
		return fmt.Sprintf("%s@%d", name, out.Version), err
	})
	if err != nil {
		return store.Secret{}, err
	}
	return hushed(out), core.Named(op, p.enforce(ctx, boxes))
}

func rotatable(s *store.Secret, v secret.Value) error {
	if s.Source == "" {
		return secret.Check(v)
	}
	if v.Len() > 0 {
		return &sandbox.Error{
			Code: sandbox.CodeInvalid, Subject: s.Name, Message: "its value is kept outside, in " + s.Source,
			Hint: "change it there, and rotate without a value",
		}
	}
	return nil
}

// RemoveSecret removes a secret. One that a sandbox or a profile works with is
// CodeConflict, unless force is set: they then go on without it, at once.
func (p *Plane) RemoveSecret(ctx context.Context, name string, force bool) error {
	const op = ops.SecretRemove
	var boxes []store.Sandbox
	err := p.changeTx(ctx, control.Action{Op: op, Subject: name}, func(ctx context.Context, tx *store.Tx, tenant string) (string, error) {
		profiles, err := tx.Profiles(ctx, tenant)
		if err != nil {
			return "", err
		}
		for _, profile := range profiles {
			if !force && slices.Contains(injected(profile.Profile), name) {
				return "", &sandbox.Error{
					Code: sandbox.CodeConflict, Subject: name, Message: "the profile " + profile.Name + " adds the secret to requests",
					Hint: "change the profile first, or force it",
				}
			}
		}
		if boxes, err = p.affected(ctx, tx, tenant, name); err != nil {
			return "", err
		}
		if len(boxes) > 0 && !force {
			return "", &sandbox.Error{
				Code: sandbox.CodeConflict, Subject: name, Message: "the secret is in use by " + clipNames(boxes),
				Hint: "remove those sandboxes first, or force it",
			}
		}
		return name, tx.RemoveSecret(ctx, tenant, name, force)
	})
	if err != nil {
		return err
	}
	return core.Named(op, p.enforce(ctx, boxes))
}

// Secrets lists the secrets of the caller's tenant, without their values.
func (p *Plane) Secrets(ctx context.Context) ([]store.Secret, error) {
	const op = ops.SecretList
	who, err := p.Look(ctx, op, "")
	if err != nil {
		return nil, err
	}
	all, err := store.Read(ctx, p.Store, func(tx *store.Tx) ([]store.Secret, error) { return tx.Secrets(ctx, who.Tenant) })
	for i := range all {
		all[i] = hushed(all[i])
	}
	return all, core.Named(op, err)
}

// hushed is a secret without its value, not even sealed.
func hushed(s store.Secret) store.Secret {
	s.Sealed = nil
	return s
}

var errNoSealer = &sandbox.Error{Code: sandbox.CodeUnsupported, Subject: "secrets", Message: "this daemon keeps no secrets"}

func (p *Plane) seal(o secret.Owner, v secret.Value) (keyID string, sealed []byte, err error) {
	if p.cfg.Sealer == nil {
		return "", nil, errNoSealer
	}
	sealed, err = p.cfg.Sealer.Seal(o, v)
	return p.cfg.Sealer.KeyID(), sealed, err
}

// open returns the value of a secret, wherever it is, which may take a while.
// The caller clears it.
func (p *Plane) open(ctx context.Context, s *store.Secret) (secret.Value, error) {
	if s.Source != "" {
		src, err := secret.ParseSource(s.Source)
		if err != nil {
			return secret.Value{}, err
		}
		if p.cfg.Sources == nil {
			return secret.Value{}, errNoSealer
		}
		return p.cfg.Sources.Read(ctx, src)
	}
	if p.cfg.Sealer == nil {
		return secret.Value{}, errNoSealer
	}
	return p.cfg.Sealer.Open(secret.Owner{Tenant: s.Tenant, Name: s.Name, Version: s.Version}, s.KeyID, s.Sealed)
}

// revealed are values that were read before the transaction that needs them:
// a command or another machine may have to be asked, while nobody else could
// write.
type revealed map[string]revealedSecret

type revealedSecret struct {
	version int64
	value   secret.Value
}

// reveal reads the values of the secrets that a sandbox asks for. One that does
// not exist is left out. The caller clears them.
func (p *Plane) reveal(ctx context.Context, tenant string, refs []sandbox.SecretRef) (revealed, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	stored := map[string]store.Secret{}
	err := p.Store.View(ctx, func(tx *store.Tx) error {
		for _, ref := range refs {
			s, err := tx.Secret(ctx, tenant, ref.Name)
			if sandbox.CodeOf(err) == sandbox.CodeNotFound {
				continue
			}
			if err != nil {
				return err
			}
			stored[ref.Name] = s
		}
		return nil
	})
	out := revealed{}
	for name, s := range stored {
		v, openErr := p.open(ctx, &s)
		if openErr != nil {
			err = openErr
			break
		}
		out[name] = revealedSecret{s.Version, v}
	}
	if err != nil {
		out.clear()
		return nil, err
	}
	return out, nil
}

// of returns the value of a secret as it is in the transaction.
func (r revealed) of(s *store.Secret) (secret.Value, error) {
	if v, ok := r[s.Name]; ok && v.version == s.Version {
		return v.value, nil
	}
	return secret.Value{}, &sandbox.Error{Code: sandbox.CodeConflict, Subject: s.Name, Message: "the secret was changed at the same time", Hint: "try again"}
}

func (r revealed) clear() {
	for _, v := range r {
		v.value.Clear()
	}
}

// useSubject is how the use of a secret is recorded.
func useSubject(u SecretUse) string { return fmt.Sprintf("%s@%d → %s", u.Secret, u.Version, u.Host) }
