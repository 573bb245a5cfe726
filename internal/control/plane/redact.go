package plane

import (
	"context"
	"sync"

	bundle "github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// redactors remember, for each sandbox whose output is redacted, the values
// that it got. One that was rotated since stays: processes may still have it.
type redactors struct {
	mu    sync.Mutex
	boxes map[sandbox.ID]*redactions
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

// Redactor returns what takes the values of secrets out of a sandbox's output,
// nil if nobody asked for that or it has none. A value that cannot be read is
// an error: its output would show it.
func (p *Plane) Redactor(ctx context.Context, b *store.Sandbox) (*secret.Redactor, error) {
	if !b.Spec.Redact && !p.policies().Redacts(bundle.About{Tenant: b.Tenant, Labels: b.Labels}) {
		return nil, nil
	}
	var wanted []store.Secret
	err := p.Store.View(ctx, func(tx *store.Tx) error {
		wanted = nil
		for _, ref := range b.Spec.Secrets {
			if ref.Mode != sandbox.SecretEnv {
				continue // what is inside is a placeholder, which is no secret
			}
			s, err := tx.Secret(ctx, b.Tenant, ref.Name)
			if sandbox.CodeOf(err) == sandbox.CodeNotFound {
				continue
			} else if err != nil {
				return err
			}
			wanted = append(wanted, s)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	fresh := map[redactedKey]secret.Value{}
	for _, s := range wanted {
		k := redactedKey{s.Name, s.Version}
		if p.redactors.knows(b.ID, k) {
			continue
		}
		if fresh[k], err = p.open(ctx, &s); err != nil {
			return nil, hinted(&sandbox.Error{
				Code: sandbox.CodeOf(err), Subject: s.Name, Message: "the value cannot be read, and output might show it", Cause: err,
			}, "fix the source of the secret, or make the sandbox without redaction")
		}
	}
	return p.redactors.learn(b.ID, fresh), nil
}

func (r *redactors) knows(id sandbox.ID, k redactedKey) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.boxes[id]
	if known == nil {
		return false
	}
	_, ok := known.values[k]
	return ok
}

// learn adds values of a sandbox, and returns the redactor for all that are
// known.
func (r *redactors) learn(id sandbox.ID, fresh map[redactedKey]secret.Value) *secret.Redactor {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.boxes[id]
	if known == nil {
		if len(fresh) == 0 {
			return nil
		}
		known = &redactions{values: map[redactedKey]secret.Value{}}
		if r.boxes == nil {
			r.boxes = map[sandbox.ID]*redactions{}
		}
		r.boxes[id] = known
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

// forget lets go of the values of a sandbox that is gone. Streams that still
// run keep what they have.
func (r *redactors) forget(id sandbox.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.boxes, id)
}
