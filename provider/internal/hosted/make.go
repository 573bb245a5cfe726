package hosted

import (
	"context"
	"errors"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/records"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// Locked is the record of a sandbox that nobody else changes.
type Locked = records.Locked[Record]

// Making is how one provider makes one sandbox. Functions that are nil do
// nothing.
type Making[I Made] struct {
	Spec *sandbox.Spec
	// Life is the lifetime that the service was asked for; 0: none.
	Life time.Duration
	// Network in the record is what the sandbox may reach.
	Network string
	// More says that there is more than a sandbox: Prepare makes it, and
	// Service.Clear removes it.
	More    bool
	Prepare func(context.Context) error
	// Ask asks for the sandbox and finds it: see Search.
	Ask func(context.Context) (Box, error)
	// Confirm checks that the service enforces what it was asked for.
	Confirm func() error
	// Instance makes an instance of what Ask has returned.
	Instance func(b Box, ends time.Time) I
	// Begin has the sandbox run, before the guest is started.
	Begin func(context.Context, I) error
}

// Made is an instance of a new sandbox.
type Made interface {
	driver.Instance
	Configure(ctx context.Context, d guest.Defaults) error
	Finish(exit sandbox.Exit)
}

// Make makes a sandbox that is ready for commands. Nothing is left of one that is
// not returned; what cannot be removed at once goes when somebody lists
// sandboxes. What was asked for cannot be taken back, so it goes on in c.Work
// when its caller has given up.
func Make[I Made](ctx context.Context, c *Core, m *Making[I]) (driver.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l, err := c.Lock(ctx, string(m.Spec.ID))
	if err != nil {
		return nil, err
	}
	if err := c.vacant(ctx, l, m.Spec.ID); err != nil {
		l.Unlock()
		return nil, err
	}
	in, err := records.Finish(ctx, &c.Work, func() (I, error) {
		defer l.Unlock()
		return settle(ctx, c, l, m)
	})
	if err != nil {
		return nil, err
	}
	return in, nil
}

// vacant checks that there is no sandbox with an ID. One whose making was not
// finished is ended.
func (c *Core) vacant(ctx context.Context, l *Locked, id sandbox.ID) error {
	b, err := c.Find(ctx, id)
	r := l.Read()
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeGone:
		return nil
	case err == nil && r.Box == "" && !r.Asked.IsZero():
		return c.Erase(ctx, id, b.ID)
	case err == nil:
		return &sandbox.Error{Code: sandbox.CodeAlreadyExists, Op: c.Name + ".create", Subject: string(id), Message: "there is a sandbox with this ID"}
	}
	return err
}

func settle[I Made](ctx context.Context, c *Core, l *Locked, m *Making[I]) (in I, err error) {
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), making)
	defer cancel()
	id, r := m.Spec.ID, Record{Asked: time.Now(), Network: m.Network, More: m.More, Labels: m.Spec.Labels}
	if r.Binding, err = c.Binding(asking); err == nil {
		r.Account, err = c.Service.Account(asking)
	}
	if err == nil {
		err = l.Write(r)
	}
	if err == nil && m.Prepare != nil {
		err = m.Prepare(asking)
	}
	if err != nil {
		return in, c.undo(ctx, asking, l, id, "", err)
	}
	b, err := m.Ask(asking)
	if err != nil {
		return in, c.undo(ctx, asking, l, id, b.ID, err)
	}
	if r.Box = b.ID; m.Life > 0 {
		r.Ends = time.Now().Add(m.Life)
	}
	in = m.Instance(b, r.Ends)
	if err = ctx.Err(); err == nil {
		err = m.Confirm()
	}
	if err == nil {
		err = l.Write(r)
	}
	if err == nil && m.Begin != nil {
		err = m.Begin(ctx, in)
	}
	if err == nil {
		s := m.Spec
		err = in.Configure(ctx, guest.Defaults{Env: s.Env, User: s.User, Workdir: s.Workdir, Hostname: s.Hostname})
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		in.Finish(guestkit.Killed)
		return in, c.undo(ctx, asking, l, id, b.ID, err)
	}
	if c.Expires {
		c.expiry.Watch(id, r.Ends)
	}
	return in, nil
}

// undo removes what there is of a sandbox that is not returned: a box of the
// service, if one was made, and what it has besides. What cannot be removed, and
// what may yet appear, is known for what it is by its record.
func (c *Core) undo(ctx, asking context.Context, l *Locked, id sandbox.ID, box string, err error) error {
	unanswered := errors.Is(err, errUnanswered)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	r := l.Read()
	r.Box = "" // nobody was given it
	left := l.Write(r)
	switch {
	case left != nil:
	case box != "":
		left = c.Erase(asking, id, box)
	case r.More:
		if left = c.Service.Clear(asking, id, unanswered); unanswered && sandbox.CodeOf(left) == sandbox.CodeConflict {
			left = nil // it was made
		}
	}
	if left == nil && !unanswered {
		left = l.Remove()
	}
	return errors.Join(err, left)
}

// errUnanswered says that it is not known whether a sandbox was made.
var errUnanswered = errors.New("whether it was made is not known")

// unanswered is the error of a request that was not answered, which it explains.
type unanswered struct{ error }

func (u unanswered) Unwrap() []error { return []error{u.error, errUnanswered} }

// Refused reports whether a service refused a request, so that nothing was made.
// conflict says whether a conflict is a refusal, too.
func Refused(err error) bool {
	code := sandbox.CodeOf(err)
	return err != nil && code != sandbox.CodeUnavailable && code != sandbox.CodeTimeout && !errors.Is(err, context.DeadlineExceeded)
}

// searches is how often something is looked for whose making was not answered.
const searches = 3

// Search looks for what a request has made, whether it was answered or not: it is
// never asked for twice. err is the error of the request, if there was one.
func Search[B any](ctx context.Context, api *rest.Client, err error, look func() (B, error)) (b B, _ error) {
	for n := range searches {
		if n > 0 {
			if err := rest.Sleep(ctx, slowPoll); err != nil {
				return b, unanswered{err}
			}
		}
		var looked error
		if b, looked = look(); looked == nil {
			return b, nil
		}
	}
	var none B
	if err == nil {
		err = api.Strange("the service does not show what it made")
	}
	return none, unanswered{err}
}
