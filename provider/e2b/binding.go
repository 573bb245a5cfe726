package e2b

import (
	"context"
	"fmt"

	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/identity"
	"github.com/atoll-run/atoll/sandbox"
)

// Binding implements driver.Binder. The API tells a key nothing about its
// account, so the account is known by a fingerprint of the key. Without a key
// nothing is known that another directory could know, too.
func (p *Provider) Binding(ctx context.Context) (string, error) {
	if p.api.key != "" {
		return identity.Account(p.api.base, p.api.key), ctx.Err()
	}
	return p.former(ctx)
}

// former is what earlier versions called the binding.
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

// ours reports whether a record is of the present account, as far as is known.
func (p *Provider) ours(r record) (bool, error) {
	now, err := p.Binding(context.Background())
	if err != nil || r.Binding == "" || r.Binding == now {
		return err == nil, err
	}
	former, err := p.former(context.Background())
	return r.Binding == former, err
}

// absent is why the service does not list a sandbox. That is no evidence when
// the sandbox was made with another key or at another address.
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
		Code: sandbox.CodeUnauthorized, Subject: string(id), Message: "the sandbox was made with another API key or at another address (" + r.Binding + ")",
		Hint: "use the E2B_API_KEY and the E2B_API_URL or E2B_DOMAIN that it was made with",
	}
}

// scopeOf returns the scope that the service says of a sandbox of this directory.
func (p *Provider) scopeOf(id sandbox.ID) (string, error) {
	if r, ok := p.boxes.Get(string(id)); ok && r.Scope != "" {
		return r.Scope, nil
	}
	return p.boxes.Scope()
}

// Adopt implements driver.Adopter. Metadata cannot be changed, so only the record
// of this directory says that it has the sandbox.
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
