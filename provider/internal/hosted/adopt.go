package hosted

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/sandbox"
)

// Adopt implements driver.Adopter. If the service is a Claimer, it records the
// new owner; otherwise only the record of this directory does.
func (c *Core) Adopt(ctx context.Context, spec *sandbox.Spec) error {
	id := spec.ID
	l, err := c.Lock(ctx, string(id))
	if err != nil {
		return err
	}
	defer l.Unlock()
	switch b, err := c.Find(ctx, id); {
	case err == nil:
		return c.returned(ctx, l, id, b) // it belongs to this directory already
	case sandbox.CodeOf(err) != sandbox.CodeGone:
		return err
	}
	b, from, err := c.foreign(ctx, id)
	if err != nil {
		return c.unadopted(l, err)
	}
	_, more := c.Service.(Clearer)
	r := Record{ServiceID: b.ID, Scope: from, More: more, Labels: spec.Labels, Life: spec.Lifetime.Timeout, Ends: b.Ends}
	if life := spec.Lifetime.HardTimeout(); life > 0 && b.Ends.IsZero() {
		r.Ends = b.Created.Add(life)
	}
	if r.Binding, err = c.Binding(ctx); err == nil {
		r.Account, err = c.account(ctx)
	}
	if claimer, ok := c.Service.(Claimer); ok && err == nil {
		r.Scope = ""
		var own string
		if own, err = c.Scope(); err == nil {
			err = c.claim(ctx, claimer, id, b.ID, own)
		}
	}
	if err == nil {
		err = l.Write(r)
	}
	if err != nil {
		return c.unadopted(l, err)
	}
	if err := c.returned(ctx, l, id, b); err != nil {
		return errors.Join(err, l.Remove())
	}
	if c.Expires {
		c.expiry.Watch(id, r.Ends)
	}
	return nil
}

// claim stores the owner of a sandbox with the service, which has to confirm it.
func (c *Core) claim(ctx context.Context, claimer Claimer, id sandbox.ID, sb, scope string) error {
	b, err := c.Service.Get(ctx, id, sb)
	if err == nil && b.Sandbox != id {
		err = c.ProtocolError("the service answers for another sandbox")
	}
	if err == nil {
		metadata := map[string]string{}
		maps.Copy(metadata, b.Metadata)
		metadata[MetaScope] = scope
		err = claimer.Claim(ctx, b, metadata)
	}
	if err == nil {
		b, err = c.Service.Get(ctx, id, sb)
	}
	switch {
	case errors.Is(err, ErrNone):
		err = guestkit.Gone(id)
	case err == nil && b.Scope != scope:
		err = c.ProtocolError("the service does not confirm whose the sandbox is")
	}
	return err
}

// returned marks a sandbox that this directory has a record of as its own. One
// that sleeps keeps its mark.
func (c *Core) returned(ctx context.Context, l *Locked, id sandbox.ID, b Sandbox) (err error) {
	r := l.Read()
	if !c.Marks || r.ServiceID != b.ID {
		return nil
	}
	if b.State == sandbox.Running {
		if r.Adoptions, err = c.setMark(ctx, b, r.Adoptions); err != nil {
			return err
		}
	}
	r.AdoptedElsewhere = false
	return l.Write(r)
}

// unadopted removes the lock of a sandbox without a record in this directory.
func (c *Core) unadopted(l *Locked, err error) error {
	if l.Read().Binding == "" {
		_ = l.Remove() // the record is empty
	}
	return err
}

// foreign returns the only sandbox with an ID that belongs to another
// directory, and the scope of that directory.
func (c *Core) foreign(ctx context.Context, id sandbox.ID) (b Sandbox, scope string, err error) {
	all, err := c.list(ctx, "", id)
	switch {
	case err != nil:
		return b, "", err
	case len(all) == 0:
		return b, "", guestkit.Gone(id)
	case len(all) > 1:
		return b, "", &sandbox.Error{
			Code: sandbox.CodeConflict, Op: c.Name + ".adopt", Subject: string(id), Message: fmt.Sprintf("%d installations have a sandbox with this ID", len(all)),
		}
	}
	b, scope = all[0], all[0].Scope
	b.Scope = "" // Adopt is about to change it
	return b, scope, c.Usable(b)
}

// adopted adds the adopted sandboxes, which the service lists under other
// scopes, to a list.
func (c *Core) adopted(ctx context.Context, all []Sandbox) ([]Sandbox, error) {
	for _, name := range c.IDs() {
		r, ok := c.Get(name)
		if !ok || r.Scope == "" || r.ServiceID == "" {
			continue
		}
		switch b, err := c.Find(ctx, sandbox.ID(name)); sandbox.CodeOf(err) {
		case "":
			all = append(all, b)
		case sandbox.CodeGone, sandbox.CodeUnauthorized: // it has ended, or belongs to another account
		default:
			return nil, err
		}
	}
	return all, nil
}
