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

// Locked is the locked record of a sandbox.
type Locked = records.Locked[Record]

// Creation describes how a provider creates one sandbox. Nil functions do
// nothing.
type Creation struct {
	Spec *sandbox.Spec
	// Life is the requested lifetime; 0: none. With Again the service requires it
	// whenever the sandbox is resumed.
	Life  time.Duration
	Again bool
	// Network describes the permitted network, for the record.
	Network string
	// More means that there are other resources: Prepare creates them, and
	// Clearer removes them.
	More    bool
	Prepare func(context.Context) error
	// Ask requests the sandbox and finds it: see Search.
	Ask func(context.Context) (Sandbox, error)
	// Confirm checks that the service enforces the request.
	Confirm func() error
	// Begin starts the sandbox, before the guest is started.
	Begin func(context.Context, Inside) error
}

// Made is an instance of a new sandbox.
type Made interface {
	driver.Instance
	Configure(ctx context.Context, d guest.Defaults) error
	Finish(exit sandbox.Exit)
	inside() Inside
}

func (in *Instance) inside() Inside { return in.Inside }

// Make creates a sandbox that is ready for commands. If it fails, it leaves
// nothing behind; what cannot be removed at once is removed by the next List. A
// request cannot be canceled, so it continues in c.Work after its caller has
// given up.
func (c *Core) Make(ctx context.Context, m *Creation) (driver.Instance, error) {
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
	in, err := records.Finish(ctx, &c.Work, func() (Made, error) {
		defer l.Unlock()
		return c.finalize(ctx, l, m)
	})
	if err != nil {
		return nil, err
	}
	return in, nil
}

// vacant checks that there is no sandbox with an ID. It ends one whose creation
// was not completed.
func (c *Core) vacant(ctx context.Context, l *Locked, id sandbox.ID) error {
	b, err := c.Find(ctx, id)
	r := l.Read()
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeGone:
		return nil
	case err == nil && r.ServiceID == "" && !r.Asked.IsZero():
		return c.Erase(ctx, id, b.ID)
	case err == nil:
		return &sandbox.Error{Code: sandbox.CodeAlreadyExists, Op: c.Name + ".create", Subject: string(id), Message: "a sandbox with this ID already exists"}
	}
	return err
}

func (c *Core) finalize(ctx context.Context, l *Locked, m *Creation) (in Made, err error) {
	id := m.Spec.ID
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), making)
	defer cancel()
	undo := func(sb string, err error) error {
		undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoing) // asking may be over
		defer cancel()
		return c.undo(ctx, undoing, l, id, sb, err)
	}
	r := Record{Asked: time.Now(), Network: m.Network, More: m.More, Labels: m.Spec.Labels}
	if r.Binding, err = c.Binding(asking); err == nil {
		r.Account, err = c.account(asking)
	}
	if err == nil {
		err = l.Write(r)
	}
	if err == nil && m.Prepare != nil {
		err = m.Prepare(asking)
	}
	if err != nil {
		return in, undo("", err)
	}
	b, err := m.Ask(asking)
	if err != nil {
		return in, undo(b.ID, err)
	}
	if r.ServiceID = b.ID; m.Life > 0 {
		r.Ends = time.Now().Add(m.Life)
	}
	if m.Again {
		r.Life = m.Life
	}
	if b.Ends.IsZero() {
		b.Ends = r.Ends
	}
	in = c.instance(id, b)
	if err = ctx.Err(); err == nil && m.Confirm != nil {
		err = m.Confirm()
	}
	if err == nil {
		err = l.Write(r)
	}
	if err == nil && m.Begin != nil {
		err = m.Begin(ctx, in.inside())
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
		return in, undo(b.ID, err)
	}
	if c.Expires {
		c.expiry.Watch(id, r.Ends)
	}
	return in, nil
}

// undo removes what a failed creation left: a sandbox of the service, if one
// was created, and its other resources. The record identifies what cannot be
// removed now or may still appear.
func (c *Core) undo(ctx, undoing context.Context, l *Locked, id sandbox.ID, sb string, err error) error {
	unanswered := errors.Is(err, errUnanswered)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	r := l.Read()
	r.ServiceID = "" // it was not returned to the caller
	left := l.Write(r)
	switch {
	case left != nil:
	case sb != "":
		left = c.Erase(undoing, id, sb)
	case r.More:
		if left = c.clear(undoing, id, unanswered); unanswered && sandbox.CodeOf(left) == sandbox.CodeConflict {
			left = nil // it was created
		}
	}
	if left == nil && !unanswered {
		left = l.Remove()
	}
	if left == nil {
		return err
	}
	return errors.Join(err, left)
}

// errUnanswered means that it is unknown whether a sandbox was created.
var errUnanswered = errors.New("whether it was made is not known")

// unanswered is the error of a request without an answer. It contains the
// reason.
type unanswered struct{ error }

func (u unanswered) Unwrap() []error { return []error{u.error, errUnanswered} }

// Refused reports whether a service refused a request, so that nothing was
// created. conflict says whether a conflict counts as a refusal.
func Refused(err error) bool {
	code := sandbox.CodeOf(err)
	return err != nil && code != sandbox.CodeUnavailable && code != sandbox.CodeTimeout && !errors.Is(err, context.DeadlineExceeded)
}

// searches is how often to look for the result of an unanswered request.
const searches = 3

// Search looks for the result of a request, answered or not, because a request
// is never repeated. err is the error of the request, or nil.
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
		err = api.ProtocolError("the service accepted the request, but does not list the sandbox")
	}
	return none, unanswered{err}
}
