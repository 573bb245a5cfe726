package hosted

import (
	"context"
	"errors"
	"fmt"

	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/sandbox"
)

// Adopt implements driver.Adopter. A Claimer is told; otherwise only the record of
// this directory says that it has the sandbox.
func (c *Core) Adopt(ctx context.Context, spec *sandbox.Spec) error {
	id := spec.ID
	l, err := c.Lock(ctx, string(id))
	if err != nil {
		return err
	}
	defer l.Unlock()
	switch _, err := c.Find(ctx, id); {
	case err == nil:
		return nil // it is ours
	case sandbox.CodeOf(err) != sandbox.CodeGone:
		return err
	}
	b, from, err := c.foreign(ctx, id)
	if err != nil {
		return c.unadopted(l, err)
	}
	r := Record{Box: b.ID, Scope: from, More: c.More, Labels: spec.Labels}
	if life := spec.Lifetime.HardTimeout(); life > 0 {
		r.Ends = b.Created.Add(life)
	}
	if r.Binding, err = c.Binding(ctx); err == nil {
		r.Account, err = c.Service.Account(ctx)
	}
	if claimer, ok := c.Service.(Claimer); ok && err == nil {
		r.Scope = ""
		var own string
		if own, err = c.Scope(); err == nil {
			err = claimer.Claim(ctx, id, b.ID, own)
		}
	}
	if err == nil {
		err = l.Write(r)
	}
	if err != nil {
		return c.unadopted(l, err)
	}
	if c.Expires {
		c.expiry.Watch(id, r.Ends)
	}
	return nil
}

// unadopted removes the lock of a sandbox that this directory has no record of.
func (c *Core) unadopted(l *Locked, err error) error {
	if l.Read().Binding == "" {
		_ = l.Remove() // it is empty
	}
	return err
}

// foreign returns the one sandbox with an ID that another directory has, and that
// directory's scope.
func (c *Core) foreign(ctx context.Context, id sandbox.ID) (b Box, scope string, err error) {
	scopes, err := c.Service.Scopes(ctx, id)
	switch {
	case err != nil:
		return b, "", err
	case len(scopes) == 0:
		return b, "", guestkit.Gone(id)
	case len(scopes) > 1:
		return b, "", &sandbox.Error{
			Code: sandbox.CodeConflict, Op: c.Name + ".adopt", Subject: string(id), Message: fmt.Sprintf("%d installations have a sandbox with this ID", len(scopes)),
		}
	}
	if b, err = c.Service.Find(ctx, scopes[0], id); err == nil {
		b.Scope = "" // it is about to change
		err = c.Usable(b)
	}
	if errors.Is(err, ErrNone) {
		err = guestkit.Gone(id)
	}
	return b, scopes[0], err
}

// adopted adds the sandboxes to a list that the service lists under the scopes of
// others.
func (c *Core) adopted(ctx context.Context, all []Box) ([]Box, error) {
	for _, name := range c.IDs() {
		r, ok := c.Get(name)
		if !ok || r.Scope == "" || r.Box == "" {
			continue
		}
		switch b, err := c.Find(ctx, sandbox.ID(name)); sandbox.CodeOf(err) {
		case "":
			all = append(all, b)
		case sandbox.CodeGone, sandbox.CodeUnauthorized: // it ended, or is another account's
		default:
			return nil, err
		}
	}
	return all, nil
}
