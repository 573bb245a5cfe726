// Package audit guards every audited action. [Recorder.Do] checks that the
// action is allowed, records the attempt, runs the action, and records the
// outcome. If the attempt cannot be written durably, the action does not run.
// The outcome is written shortly after the action; if it cannot be written, the
// attempt stays open, and the daemon closes it as unknown at its next start
// ([Recorder.CloseAttempts]).
//
// Records never contain secret values or output. For a command they contain the
// program's name and the number of arguments; the operator can enable recording
// of the arguments.
package audit

import (
	"context"
	"errors"
	"path"
	"sync"

	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Action is an operation that a caller requests.
type Action struct {
	Tenant  string
	Actor   eventlog.Actor
	Op      ops.Op
	Sandbox sandbox.ID // empty if the action has no sandbox
	Name    string     // the sandbox's name
	Subject string     // what is accessed: a path, a process, a key; never a secret
	Policy  string     // the policy that decided
	Command *sandbox.Command
	Bytes   int64 // number of bytes to be moved, if known in advance
	// Request and Trace are the ids of the request and of its trace. Empty: taken
	// from the context, see package span.
	Request, Trace string
}

// of returns the action with the request and trace ids of ctx filled in.
func (a Action) of(ctx context.Context) Action {
	if a.Request == "" {
		a.Request, a.Trace = span.IDs(ctx)
	}
	return a
}

// Outcome is the result of an action.
type Outcome struct {
	Err     error // nil: the action succeeded
	Bytes   int64 // number of bytes moved
	Subject string
	// Sandbox and Name complete those of the action if it created the sandbox.
	Sandbox sandbox.ID
	Name    string
}

// Options configures a Recorder. The zero value suits a daemon that runs alone.
type Options struct {
	// Node is the name of this daemon. Empty: "local".
	Node string
	// RecordArgs records the arguments of commands. They may contain secrets.
	RecordArgs bool
	// OnError is called for outcomes that could not be written. Nil ignores these
	// errors: CloseAttempts closes the attempts at the next start.
	OnError func(context.Context, error)
}

// Recorder authorises and records actions. It is safe for concurrent use.
type Recorder struct {
	log  *eventlog.Log
	opts Options
}

// New returns a Recorder that writes to log. The caller still owns the log.
func New(log *eventlog.Log, opts Options) *Recorder {
	if opts.Node == "" {
		opts.Node = "local"
	}
	return &Recorder{log: log, opts: opts}
}

// Do calls authorise, records the attempt, calls act, and records the outcome.
// A nil authorise allows the action. Do returns the error of authorise or of
// act, or a *sandbox.Error if the attempt could not be recorded and the action
// was therefore not run.
func (r *Recorder) Do(ctx context.Context, a Action, authorise func() error, act func(context.Context) (Outcome, error)) error {
	if authorise != nil {
		if err := authorise(); err != nil {
			r.report(ctx, r.Denied(ctx, a, err)) // the action is refused even if the refusal cannot be recorded
			return err
		}
	}
	if a.Op.Frees() {
		ctx = store.WithReserve(ctx)
	}
	intent, err := r.Begin(ctx, a)
	if err != nil {
		return err
	}
	// If act panics, record a failure instead of leaving the attempt open.
	out := Outcome{Err: &sandbox.Error{Code: sandbox.CodeInternal, Message: "the action panicked"}}
	defer func() { r.report(ctx, intent.End(out)) }()
	done, err := act(ctx)
	done.Err = err
	out = done
	return err
}

func (r *Recorder) report(ctx context.Context, err error) {
	if err != nil && r.opts.OnError != nil {
		r.opts.OnError(ctx, err)
	}
}

// Denied records that an action was refused, with reason as the error.
func (r *Recorder) Denied(ctx context.Context, a Action, reason error) error {
	e := r.event(a.of(ctx), eventlog.Denied)
	e.Code = sandbox.CodeOf(reason)
	_, err := r.log.Append(ctx, e)
	return err
}

// Fact records something that happened without a request, such as the end of a
// command. The event has type t; change fills in the rest.
func (r *Recorder) Fact(ctx context.Context, a Action, t eventlog.Type, change func(*eventlog.Event)) error {
	e := r.event(a.of(ctx), t)
	if change != nil {
		change(&e)
	}
	_, err := r.log.Append(ctx, e)
	return err
}

// FactLater is Fact without waiting for the write; see
// eventlog.Log.AppendLater.
func (r *Recorder) FactLater(a Action, t eventlog.Type, change func(*eventlog.Event)) error {
	e := r.event(a, t)
	if change != nil {
		change(&e)
	}
	return r.log.AppendLater(e)
}

// Intent is a recorded attempt. Its End must be called.
type Intent struct {
	r      *Recorder
	action Action
	ref    int64

	mu    sync.Mutex
	ended bool
}

// Begin records an attempt. If it fails, the action must not run.
func (r *Recorder) Begin(ctx context.Context, a Action) (*Intent, error) {
	a = a.of(ctx)
	ctx, end := span.Start(ctx, "record", string(a.Op), a.Sandbox)
	e, err := r.log.Announce(ctx, r.opts.Node, r.event(a, eventlog.Attempted))
	end(err)
	i, err := r.begun(a, e, err)
	if err == nil && ctx.Err() != nil {
		// The caller has gone: the action does not run.
		err = &sandbox.Error{Code: sandbox.CodeOf(ctx.Err()), Op: string(a.Op), Subject: a.Name, Cause: ctx.Err()}
		r.report(ctx, i.End(Outcome{Err: err}))
		return nil, err
	}
	return i, err
}

// BeginTx is Begin as part of a transaction, and should be its last step. The
// record is written only if the transaction commits. The action must not run
// before that.
func (r *Recorder) BeginTx(ctx context.Context, tx *store.Tx, a Action) (*Intent, error) {
	a = a.of(ctx)
	ctx, end := span.Start(ctx, "record", string(a.Op), a.Sandbox)
	e, err := r.log.AnnounceTx(ctx, tx, r.opts.Node, r.event(a, eventlog.Attempted))
	end(err)
	return r.begun(a, e, err)
}

func (r *Recorder) begun(a Action, e eventlog.Event, err error) (*Intent, error) {
	if err != nil {
		return nil, notRecorded(a, err)
	}
	return &Intent{r: r, action: a, ref: e.Seq}, nil
}

// notRecorded returns the error of an action that was not run because its
// attempt could not be recorded.
func notRecorded(a Action, err error) error {
	code := sandbox.CodeOf(err)
	if code == sandbox.CodeInternal {
		code = sandbox.CodeUnavailable
	}
	hint := "see the daemon's log for the cause"
	var known *sandbox.Error
	if errors.As(err, &known) && known.Hint != "" {
		hint = known.Hint
	}
	return &sandbox.Error{Code: code, Op: string(a.Op), Subject: a.Name, Cause: err, Message: "not done, because it could not be recorded", Hint: hint}
}

// End records the outcome. It does not wait for the disk, so an action costs
// one disk write and not two. If the daemon is killed before the outcome is
// written, the attempt stays open, and CloseAttempts records the outcome as unknown. A
// second call does nothing.
func (i *Intent) End(out Outcome) error {
	if i.over() {
		return nil
	}
	return i.r.log.AppendLater(i.outcome(out))
}

// EndTx is End as part of a transaction, and should be its last step. If the
// transaction fails, End must still be called.
func (i *Intent) EndTx(ctx context.Context, tx *store.Tx, out Outcome) error {
	_, err := i.r.log.AppendTx(ctx, tx, i.outcome(out))
	if err == nil {
		tx.OnCommit(func() { i.over() })
	}
	return err
}

// over marks the intent as ended and reports whether it had already ended.
func (i *Intent) over() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	was := i.ended
	i.ended = true
	return was
}

func (i *Intent) outcome(out Outcome) eventlog.Event {
	a := i.action
	e := i.r.event(a, eventlog.SuccessOf(string(a.Op)))
	e.Ref = i.ref
	if out.Err != nil {
		e.Type, e.Code = eventlog.Failed, sandbox.CodeOf(out.Err)
	}
	if out.Sandbox != "" {
		e.Sandbox = out.Sandbox
	}
	if out.Name != "" {
		e.Name = out.Name
	}
	if out.Subject != "" {
		e.Subject = out.Subject
	}
	if out.Bytes != 0 {
		e.Bytes = out.Bytes
	}
	return e
}

// event returns the record of an action.
func (r *Recorder) event(a Action, t eventlog.Type) eventlog.Event {
	e := eventlog.Event{Tenant: a.Tenant, Event: sandbox.Event{
		Type: t, Op: string(a.Op), Key: a.Actor.Key, UID: a.Actor.UID, Node: r.opts.Node, Sandbox: a.Sandbox, Name: a.Name,
		Subject: a.Subject, Policy: a.Policy, Bytes: a.Bytes, Request: a.Request, Trace: a.Trace,
	}}
	if c := a.Command; c != nil {
		r.describe(&e, c)
	}
	return e
}

// describe adds a command to a record: the program and the number of arguments,
// and the arguments only with RecordArgs. It never adds the environment or the
// input.
func (r *Recorder) describe(e *eventlog.Event, c *sandbox.Command) {
	if c.Shell != "" {
		e.Program = "sh"
		if r.opts.RecordArgs {
			e.Args = []string{"-c", c.Shell}
		}
		return
	}
	if len(c.Args) == 0 {
		return
	}
	e.Program, e.Argc = path.Base(c.Args[0]), len(c.Args)-1
	if r.opts.RecordArgs {
		e.Args = c.Args[1:]
	}
}

// settleBatch is how many open intents are closed at a time.
const settleBatch = 500

// CloseAttempts closes attempts that an earlier run of this daemon left open, with the
// outcome unknown. Call it at the start, before the first Begin. It returns the
// number of closed attempts.
func (r *Recorder) CloseAttempts(ctx context.Context) (int, error) {
	for n := 0; ; {
		open, err := r.log.Open(ctx, r.opts.Node, settleBatch)
		if err != nil || len(open) == 0 {
			return n, err
		}
		var errs []error
		for _, o := range open {
			_, err := r.log.Append(ctx, eventlog.Event{Tenant: o.Tenant, Event: sandbox.Event{
				Type: eventlog.Unknown, Op: o.Op, Sandbox: o.Sandbox, Ref: o.Seq, Code: sandbox.CodeUnavailable, Node: r.opts.Node,
			}})
			errs = append(errs, err)
		}
		if err := errors.Join(errs...); err != nil {
			return n, err
		}
		n += len(open)
	}
}
