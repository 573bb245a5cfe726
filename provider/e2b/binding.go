package e2b

import (
	"context"
	"fmt"

	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/identity"
	"github.com/atoll-run/atoll/sandbox"
)

// Binding implements driver.Binder. The API has no account id, so a fingerprint
// of the key identifies the account. Without a key, the binding names this
// directory.
func (p *Provider) Binding(ctx context.Context) (string, error) {
	if p.api.key != "" {
		return identity.Account(p.api.base, p.api.key), ctx.Err()
	}
	return p.former(ctx)
}

// former returns the binding of earlier versions.
func (p *Provider) former(ctx context.Context) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	scope, err := p.boxes.Scope()
	return identity.Local(p.api.base, scope, p.api.key), err
}

// FormerBindings implements driver.FormerBinder.
func (p *Provider) FormerBindings(ctx context.Context) ([]string, error) {
	former, err := p.former(ctx)
	return []string{former}, err
}

// ours reports whether a record may belong to the present account.
func (p *Provider) ours(r record) (bool, error) {
	now, err := p.Binding(context.Background())
	if err != nil || r.Binding == "" || r.Binding == now {
		return err == nil, err
	}
	former, err := p.former(context.Background())
	return r.Binding == former, err
}

// absent is the error for a sandbox that the service does not list. If the
// sandbox was made with another key or address, that does not show that it is
// gone.
func (p *Provider) absent(id sandbox.ID) error {
	r, _ := p.boxes.Get(string(id))
	ours, err := p.ours(r)
	switch {
	case err != nil:
		return err
	case ours:
		return guestkit.Gone(id)
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnauthorized, Subject: string(id), Message: "the sandbox belongs to another API key or address (" + r.Binding + ")",
		Hint: "use its original E2B_API_KEY and E2B_API_URL or E2B_DOMAIN",
	}
}

// scopeOf returns the scope in the metadata of a sandbox of this directory.
func (p *Provider) scopeOf(id sandbox.ID) (string, error) {
	if r, ok := p.boxes.Get(string(id)); ok && r.Scope != "" {
		return r.Scope, nil
	}
	return p.boxes.Scope()
}

// Adopt implements driver.Adopter. Metadata cannot be changed, so only the
// record in this directory shows who owns the sandbox.
func (p *Provider) Adopt(ctx context.Context, spec *sandbox.Spec) error {
	l, err := p.boxes.Lock(ctx, string(spec.ID))
	if err != nil {
		return err
	}
	defer l.Unlock()
	err = p.adopt(ctx, l, spec)
	if err != nil && l.Read().Box == "" {
		_ = l.Remove() // it is empty
	}
	return err
}

func (p *Provider) adopt(ctx context.Context, l *lockedRecord, spec *sandbox.Spec) error {
	all, err := p.named(ctx, spec.ID)
	if err != nil {
		return err
	}
	own, err := p.scopeOf(spec.ID)
	if err != nil {
		return err
	}
	for _, b := range all {
		if b.Metadata[metaScope] == own {
			return nil
		}
	}
	switch len(all) {
	case 0:
		return p.absent(spec.ID)
	case 1:
	default:
		return &sandbox.Error{
			Code: sandbox.CodeConflict, Op: "e2b.adopt", Subject: string(spec.ID), Message: fmt.Sprintf("%d installations have a sandbox with this ID", len(all)),
		}
	}
	r := record{Box: all[0].ID, Ends: all[0].Ends, Life: spec.Lifetime.Timeout, Scope: all[0].Metadata[metaScope]}
	if r.Binding, err = p.Binding(ctx); err != nil {
		return err
	}
	return l.Write(r)
}
