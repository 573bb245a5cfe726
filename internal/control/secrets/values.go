package secrets

import (
	"context"

	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

var errNoSealer = &sandbox.Error{Code: sandbox.CodeUnsupported, Subject: "secrets", Message: "this daemon does not store secrets"}

func (s *Service) seal(o secret.Owner, v secret.Value) (keyID string, sealed []byte, err error) {
	if s.cfg.Sealer == nil {
		return "", nil, errNoSealer
	}
	sealed, err = s.cfg.Sealer.Seal(o, v)
	return s.cfg.Sealer.KeyID(), sealed, err
}

// Open returns the value of a secret from the store or its source. It may run a
// program or call a server. The caller clears the value.
func (s *Service) Open(ctx context.Context, stored *store.Secret) (secret.Value, error) {
	if stored.Source != "" {
		src, err := secret.ParseSource(stored.Source)
		if err != nil {
			return secret.Value{}, err
		}
		if s.cfg.Sources == nil {
			return secret.Value{}, errNoSealer
		}
		return s.cfg.Sources.Read(ctx, src)
	}
	if s.cfg.Sealer == nil {
		return secret.Value{}, errNoSealer
	}
	return s.cfg.Sealer.Open(secret.Owner{Tenant: stored.Tenant, Name: stored.Name, Version: stored.Version}, stored.KeyID, stored.Sealed)
}

// Revealed holds values read before the transaction that needs them: reading
// may take long, and a transaction blocks other writers.
type Revealed map[string]revealed

type revealed struct {
	version int64
	value   secret.Value
}

// Reveal reads the values of the secrets that a sandbox requests. Secrets that
// do not exist are left out. The caller clears the values.
func (s *Service) Reveal(ctx context.Context, tenant string, refs []sandbox.SecretRef) (Revealed, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	stored := map[string]store.Secret{}
	err := s.Store.View(ctx, func(tx *store.Tx) error {
		for _, ref := range refs {
			found, err := tx.Secrets().Get(ctx, tenant, ref.Name)
			if sandbox.CodeOf(err) == sandbox.CodeNotFound {
				continue
			}
			if err != nil {
				return err
			}
			stored[ref.Name] = found
		}
		return nil
	})
	out := Revealed{}
	for name, found := range stored {
		v, openErr := s.Open(ctx, &found)
		if openErr != nil {
			err = openErr
			break
		}
		out[name] = revealed{found.Version, v}
	}
	if err != nil {
		out.Clear()
		return nil, err
	}
	return out, nil
}

// of returns the value of a secret, unless it has changed since it was read.
func (r Revealed) of(s *store.Secret) (secret.Value, error) {
	if v, ok := r[s.Name]; ok && v.version == s.Version {
		return v.value, nil
	}
	return secret.Value{}, &sandbox.Error{Code: sandbox.CodeConflict, Subject: s.Name, Message: "the secret was changed at the same time", Hint: "try again"}
}

// Clear overwrites the values.
func (r Revealed) Clear() {
	for _, v := range r {
		v.value.Clear()
	}
}
