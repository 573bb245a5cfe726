package secrets

import (
	"context"
	"sync"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// redactors store the secret values that each sandbox with redacted output has
// received. Values from before a rotation are kept, because processes may still
// use them.
type redactors struct {
	mu        sync.Mutex
	sandboxes map[sandbox.ID]*redactions
}

// redactions are the values of one sandbox, by name and version of the secret.
type redactions struct {
	values map[redactedKey]secret.Value
	r      *secret.Redactor
}

type redactedKey struct {
	name    string
	version int64
}

// Redactor returns a redactor for a sandbox's output. It is nil if neither the
// sandbox nor a policy requires redaction, or if the sandbox has no secret
// values. It returns an error if a value cannot be read, because output might
// contain it.
func (s *Service) Redactor(ctx context.Context, b *store.Sandbox) (*secret.Redactor, error) {
	if !b.Spec.Redact && !s.cfg.Policies.Set().Redacts(policyset.About{Tenant: b.Tenant, Labels: b.Labels}) {
		return nil, nil
	}
	var wanted []store.Secret
	err := s.Store.View(ctx, func(tx *store.Tx) error {
		wanted = nil
		for _, ref := range b.Spec.Secrets {
			if ref.Mode != sandbox.SecretEnv {
				continue // the sandbox has a placeholder, which is not secret
			}
			found, err := tx.Secrets().Get(ctx, b.Tenant, ref.Name)
			if sandbox.CodeOf(err) == sandbox.CodeNotFound {
				continue
			} else if err != nil {
				return err
			}
			wanted = append(wanted, found)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	fresh := map[redactedKey]secret.Value{}
	for _, w := range wanted {
		k := redactedKey{w.Name, w.Version}
		if s.redactors.knows(b.ID, k) {
			continue
		}
		if fresh[k], err = s.Open(ctx, &w); err != nil {
			return nil, core.Hinted(&sandbox.Error{
				Code: sandbox.CodeOf(err), Subject: w.Name, Message: "the value cannot be read, and output might show it", Cause: err,
			}, "fix the source of the secret, or create the sandbox without redaction")
		}
	}
	return s.redactors.learn(b.ID, fresh), nil
}

func (r *redactors) knows(id sandbox.ID, k redactedKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.sandboxes[id]
	if known == nil {
		return false
	}
	_, ok := known.values[k]
	return ok
}

// learn adds values of a sandbox, and returns the redactor for all its values.
func (r *redactors) learn(id sandbox.ID, fresh map[redactedKey]secret.Value) *secret.Redactor {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.sandboxes[id]
	if known == nil {
		if len(fresh) == 0 {
			return nil
		}
		known = &redactions{values: map[redactedKey]secret.Value{}}
		if r.sandboxes == nil {
			r.sandboxes = map[sandbox.ID]*redactions{}
		}
		r.sandboxes[id] = known
	}
	if len(fresh) > 0 {
		all := make([]secret.Value, 0, len(known.values)+len(fresh))
		for k, v := range fresh {
			known.values[k] = v
		}
		for _, v := range known.values {
			all = append(all, v)
		}
		known.r = secret.NewRedactor(all...)
	}
	return known.r
}

// Forget drops the values of a sandbox that is gone. Streams in use keep
// theirs.
func (s *Service) Forget(id sandbox.ID) { s.redactors.forget(id) }

func (r *redactors) forget(id sandbox.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sandboxes, id)
}
