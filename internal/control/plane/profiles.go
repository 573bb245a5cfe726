package plane

import (
	"context"
	"fmt"
	"strings"

	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/policy"
	bundle "github.com/atoll-run/atoll/internal/policy/policyset"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// checkProfile refuses a profile that cannot be stored or enforced.
func (p *Plane) checkProfile(ctx context.Context, tx *store.Tx, tenant string, doc sandbox.Profile) error {
	if err := (sandbox.Network{Profile: doc.Name}).Validate(); err != nil || doc.Name == "" {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "name", Message: "a stored profile needs a name of 1 to 63 characters of a-z, 0-9 and -"}
	}
	w := bundle.Request{About: bundle.About{Tenant: tenant}}
	for _, name := range injected(doc) {
		w.Secrets = append(w.Secrets, bundle.Grant{Name: name})
	}
	if err := p.policies().Check(w, bundle.Secrets); err != nil {
		return err
	}
	return p.compiles(ctx, tx, tenant, doc, true, nil)
}

// CreateProfile stores a profile of the caller's tenant.
func (p *Plane) CreateProfile(ctx context.Context, doc sandbox.Profile) (out store.Profile, err error) {
	err = p.changeTx(ctx, control.Action{Op: ops.ProfileCreate, Subject: doc.Name}, func(ctx context.Context, tx *store.Tx, tenant string) (string, error) {
		if err := p.checkProfile(ctx, tx, tenant, doc); err != nil {
			return "", err
		}
		out, err = tx.CreateProfile(ctx, tenant, doc)
		return doc.Name, err
	})
	return out, err
}

// ApplyProfile stores a new version of a profile, or its first, and applies it
// to the sandboxes that work by it. expect is the version it must be at; 0
// stands for any. That it could not be applied everywhere is CodeUnavailable.
func (p *Plane) ApplyProfile(ctx context.Context, expect int64, doc sandbox.Profile) (out store.Profile, err error) {
	var users []store.Sandbox
	const op = ops.ProfileApply
	err = p.changeTx(ctx, control.Action{Op: op, Subject: doc.Name}, func(ctx context.Context, tx *store.Tx, tenant string) (string, error) {
		if err := p.checkProfile(ctx, tx, tenant, doc); err != nil {
			return "", err
		}
		out, err = tx.UpdateProfile(ctx, tenant, expect, doc)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound && expect == 0 {
			out, err = tx.CreateProfile(ctx, tenant, doc)
		}
		if err != nil {
			return "", err
		}
		users, err = tx.ProfileUsers(ctx, tenant, doc.Name)
		return fmt.Sprintf("%s@%d", doc.Name, out.Version), err
	})
	if err != nil {
		return out, err
	}
	return out, core.Named(op, p.enforce(ctx, users))
}

// RemoveProfile removes a profile that no sandbox works by.
func (p *Plane) RemoveProfile(ctx context.Context, name string) error {
	return p.changeTx(ctx, control.Action{Op: ops.ProfileRemove, Subject: name}, func(ctx context.Context, tx *store.Tx, tenant string) (string, error) {
		return name, tx.RemoveProfile(ctx, tenant, name)
	})
}

// Profile returns a profile of the caller's tenant, at a version or, with 0, as
// it is now.
func (p *Plane) Profile(ctx context.Context, name string, version int64) (store.Profile, error) {
	const op = ops.ProfileGet
	who, err := p.Look(ctx, op, name)
	if err != nil {
		return store.Profile{}, err
	}
	out, err := store.Read(ctx, p.Store, func(tx *store.Tx) (store.Profile, error) {
		if version != 0 {
			return tx.ProfileVersion(ctx, who.Tenant, name, version)
		}
		return tx.Profile(ctx, who.Tenant, name)
	})
	return out, core.Named(op, err)
}

// Profiles lists the profiles of the caller's tenant.
func (p *Plane) Profiles(ctx context.Context) ([]store.Profile, error) {
	const op = ops.ProfileList
	who, err := p.Look(ctx, op, "")
	if err != nil {
		return nil, err
	}
	all, err := store.Read(ctx, p.Store, func(tx *store.Tx) ([]store.Profile, error) { return tx.Profiles(ctx, who.Tenant) })
	return all, core.Named(op, err)
}

// TestProfile tells what would become of a request under a profile. Nothing is
// sent.
func (p *Plane) TestProfile(ctx context.Context, name, method, target string) (sandbox.Explanation, error) {
	const op = ops.ProfileTest
	stored, err := p.Profile(ctx, name, 0)
	if err != nil {
		return sandbox.Explanation{}, err
	}
	compiled, err := policy.Compile(stored.Profile, policy.Options{
		Operator: p.cfg.Operator, Ceilings: p.policies().Ceilings(bundle.About{Tenant: stored.Tenant}),
	})
	if err != nil {
		return sandbox.Explanation{}, core.Named(op, err)
	}
	e, err := compiled.Explain(method, target)
	return e, core.Named(op, err)
}

// changeTx carries out a change of the store that takes one transaction:
// authorised, announced, done, and its outcome recorded. change returns what
// the record is to name.
func (p *Plane) changeTx(ctx context.Context, a control.Action, change func(ctx context.Context, tx *store.Tx, tenant string) (subject string, err error)) error {
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	err = p.Change(ctx, a.Op, core.SubjectOf(a), func(ctx context.Context) (subject string, err error) {
		err = p.Store.Update(ctx, func(tx *store.Tx) (err error) {
			subject, err = change(ctx, tx, who.Tenant)
			return err
		})
		return subject, err
	})
	return core.Named(a.Op, err)
}

func clipNames(boxes []store.Sandbox) string {
	names := make([]string, len(boxes))
	for i, b := range boxes {
		names[i] = b.Name
	}
	return clipList(names)
}

// clipList names some of many.
func clipList(names []string) string {
	const shown = 5
	if len(names) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return strings.Join(names, ", ")
}
