package tenants

import (
	"context"
	"slices"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Authenticate returns the principal of a key; see key.Ring.Authenticate.
func (s *Service) Authenticate(ctx context.Context, token string) (key.Principal, error) {
	return s.ring.Authenticate(ctx, token)
}

// CreateKey creates a key for a tenant, by default the caller's. Only the owner
// of the machine can create keys for other tenants; a missing tenant is
// created. The result contains the token, which cannot be read again.
func (s *Service) CreateKey(ctx context.Context, n operator.NewKey) (operator.Key, error) {
	return s.createKey(ctx, n)
}

// CreatePageKey creates the key of a page that a link of the owner of the machine
// signed in.
func (s *Service) CreatePageKey(ctx context.Context, n operator.NewKey) (operator.Key, error) {
	return s.createKey(ctx, n, ops.Page)
}

func (s *Service) createKey(ctx context.Context, n operator.NewKey, marks ...key.Verb) (operator.Key, error) {
	const op = ops.KeyCreate
	who, err := guard.Principal(ctx)
	if err != nil {
		return operator.Key{}, err
	}
	if n.Tenant == "" {
		n.Tenant = who.Tenant
	}
	others := func(who key.Principal) error {
		if (n.Tenant != who.Tenant || len(marks) > 0) && who.UID == nil {
			return &sandbox.Error{Code: sandbox.CodeDenied, Subject: "tenant", Message: "only the owner of the machine may create keys for other tenants"}
		}
		return nil
	}
	var made operator.Key
	err = s.Change(ctx, op, guard.Subject{Subject: n.Name}, func(ctx context.Context) (string, error) {
		err := s.Store.Update(ctx, func(tx *store.Tx) (err error) {
			if who.UID != nil {
				if _, err := tx.Tenants().Ensure(ctx, n.Tenant); err != nil {
					return err
				}
			}
			made, err = s.ring.Create(ctx, tx, n, marks...)
			return err
		})
		return made.ID, err
	}, others)
	if err != nil {
		return operator.Key{}, err
	}
	return made, nil
}

// Caller returns who makes a request. It needs no permission.
func (s *Service) Caller(ctx context.Context) (operator.Caller, error) {
	who, err := guard.Principal(ctx)
	if err != nil {
		return operator.Caller{}, err
	}
	c := operator.Caller{Tenant: who.Tenant, Key: who.Key, Owner: who.UID != nil, Nodes: who.Allow(ops.NodeList) == nil, Tenants: who.Allow(ops.TenantList) == nil}
	for _, v := range who.Verbs {
		if v != ops.Page {
			c.Verbs = append(c.Verbs, string(v))
		}
	}
	return c, nil
}

// Keys lists the keys of the caller's tenant, oldest first.
func (s *Service) Keys(ctx context.Context) ([]operator.Key, error) {
	stored, err := core.Read(ctx, s.Core, ops.KeyList, "", func(tx *store.Tx, tenant string) ([]store.Key, error) { return tx.Tenants().Keys(ctx, tenant) })
	keys := make([]operator.Key, len(stored))
	for i := range stored {
		keys[i] = stored[i].Key
		keys[i].Verbs = slices.DeleteFunc(keys[i].Verbs, func(v string) bool { return v == string(ops.Page) })
		keys[i].Page = len(keys[i].Verbs) < len(stored[i].Verbs)
	}
	return keys, err
}

// RevokeKey revokes a key of the caller's tenant, and ends requests in progress
// that use it.
func (s *Service) RevokeKey(ctx context.Context, id string) error {
	const op = ops.KeyRevoke
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	err = s.Do(ctx, op, guard.Subject{Subject: id}, func(ctx context.Context) error {
		return s.Store.Update(ctx, func(tx *store.Tx) error { return tx.Tenants().RevokeKey(ctx, who.Tenant, id) })
	})
	s.review(context.WithoutCancel(ctx), s.requests.matching(func(c credential) bool { return c.key == id }))
	return err
}

// ImportKey accepts a key that another daemon made until it is called with
// another one, or with "" for none; see key.Imports. In a shared store "" changes
// nothing, because another daemon may have the key. The caller must be the owner
// of the machine.
func (s *Service) ImportKey(ctx context.Context, token string) error {
	if token == "" && s.Store.Shared() {
		return nil
	}
	var add string
	var replaced []string
	err := s.Store.View(ctx, func(tx *store.Tx) (err error) {
		add, replaced, err = key.Imports(ctx, tx, token)
		return err
	})
	if err != nil {
		return err
	}
	for _, id := range replaced {
		err := s.Do(ctx, ops.KeyRevoke, guard.Subject{Subject: id}, func(ctx context.Context) error {
			return s.Store.Update(ctx, func(tx *store.Tx) error { return tx.Tenants().RemoveKey(ctx, key.DefaultTenant, id) })
		})
		if err != nil {
			return err
		}
	}
	if add == "" {
		return nil
	}
	return s.Do(ctx, ops.KeyCreate, guard.Subject{Subject: add}, func(ctx context.Context) error {
		return s.Store.Update(ctx, func(tx *store.Tx) error { return key.Import(ctx, tx, token) })
	})
}
