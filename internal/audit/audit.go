// Package audit is the one choke point between being allowed to do something
// and doing it: [Recorder.Do] asks whether the action is allowed, writes down
// that it is about to happen, lets it happen, and writes down what became of
// it. If the first record is not on the disk, the action does not happen; the
// second follows within a moment, and if it cannot, the first stays open, and
// the next start of the daemon closes it as unknown ([Recorder.Settle]).
//
// Records never contain values of secrets or output. For a command they contain
// the name of the program and the number of arguments; the operator can ask for
// the arguments.
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

// Action is something that somebody wants to do.
type Action struct {
	Tenant  string
	Actor   eventlog.Actor
	Op      ops.Op
	Sandbox sandbox.ID // to which sandbox; empty: to none
	Name    string     // of that sandbox
	Subject string     // what is touched: a path, a process, a key; never a secret
	Policy  string     // which policy decides
	Command *sandbox.Command
	Bytes   int64 // that are moved, if that is known before
	// Request and Trace name the request that wants it and the trace that is
	// part of. Empty: those of the context, see package span.
	Request, Trace string
}

// of completes an action that is done for the request of ctx.
func (a Action) of(ctx context.Context) Action {
	if a.Request == "" {
		a.Request, a.Trace = span.IDs(ctx)
	}
	return a
}

// Outcome is the result of an action.
type Outcome struct {
	Err     error // nil: it was done
	Bytes   int64 // that were moved
	Subject string
	// Sandbox and Name complete those of the action, if it made the sandbox.
	Sandbox sandbox.ID
	Name    string
}

// Options of a Recorder. The zero value is usable, for a daemon alone.
type Options struct {
	// Node is the name of this daemon. Empty: "local".
	Node string
	// RecordArgs records the arguments of commands, which may hold secrets
	// that their users put there.
	RecordArgs bool
	// OnError is told about outcomes that could not be written. Nil ignores
	// them: they are settled at the next start.
	OnError func(context.Context, error)
}

// Recorder authorises and records. It may be used concurrently.
type Recorder struct {
	log  *eventlog.Log
	opts Options
}

// New makes a Recorder over a log.
func New(log *eventlog.Log, opts Options) *Recorder {
	if opts.Node == "" {
		opts.Node = "local"
	}
	return &Recorder{log: log, opts: opts}
}

// Do authorises, records, acts, and records the outcome, in this order. A nil
// authorise allows. The error is authorise's, act's, or, when the action was
// not done because it could not be recorded, an *sandbox.Error that says so.
func (r *Recorder) Do(ctx context.Context, a Action, authorise func() error, act func(context.Context) (Outcome, error)) error {
	if authorise != nil {
		if err := authorise(); err != nil {
			r.report(ctx, r.Denied(ctx, a, err)) // the refusal stands even if it cannot be written
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
	// A panic must not leave the impression that nothing happened.
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

// Denied records that an action was refused, for reason.
func (r *Recorder) Denied(ctx context.Context, a Action, reason error) error {
	e := r.event(a.of(ctx), eventlog.Denied)
	e.Code = sandbox.CodeOf(reason)
	_, err := r.log.Append(ctx, e)
	return err
}

// Fact records what happened without anybody asking for it here, such as the
// end of a command: t and what change adds.
func (r *Recorder) Fact(ctx context.Context, a Action, t eventlog.Type, change func(*eventlog.Event)) error {
	e := r.event(a.of(ctx), t)
	if change != nil {
		change(&e)
	}
	_, err := r.log.Append(ctx, e)
	return err
}

// FactLater is Fact for what nobody has to wait for; see
// eventlog.Log.AppendLater.
func (r *Recorder) FactLater(a Action, t eventlog.Type, change func(*eventlog.Event)) error {
	e := r.event(a, t)
	if change != nil {
		change(&e)
	}
	return r.log.AppendLater(e)
}

// Intent is an action that was announced. Its End must be called.
type Intent struct {
	r      *Recorder
	action Action
	ref    int64

	mu    sync.Mutex
	ended bool
}

// Begin records that an action is about to happen. If it fails, the action
// must not be done.
func (r *Recorder) Begin(ctx context.Context, a Action) (*Intent, error) {
	a = a.of(ctx)
	ctx, end := span.Start(ctx, "record", string(a.Op), a.Sandbox)
	e, err := r.log.Announce(ctx, r.opts.Node, r.event(a, eventlog.Attempted))
	end(err)
	i, err := r.begun(a, e, err)
	if err == nil && ctx.Err() != nil {
		// The caller has gone meanwhile: nothing will be done.
		err = &sandbox.Error{Code: sandbox.CodeOf(ctx.Err()), Op: string(a.Op), Subject: a.Name, Cause: ctx.Err()}
		r.report(ctx, i.End(Outcome{Err: err}))
		return nil, err
	}
	return i, err
}

// BeginTx is Begin within a transaction, of which it should be the last step:
// what the transaction changes and the record of it come together or not at
// all. The action must not be done before the transaction is committed.
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

// notRecorded says that an action was not done because there is no record.
func notRecorded(a Action, err error) error {
	code := sandbox.CodeOf(err)
	if code == sandbox.CodeInternal {
		code = sandbox.CodeUnavailable
	}
	hint := "see the log of the daemon for the cause"
	var known *sandbox.Error
	if errors.As(err, &known) && known.Hint != "" {
		hint = known.Hint
	}
	return &sandbox.Error{Code: code, Op: string(a.Op), Subject: a.Name, Cause: err, Message: "not done, because it could not be recorded", Hint: hint}
}

// End records what became of the action. It does not wait for the disk, so
// that an action costs one wait and not two: a daemon that is killed within the
// next moment leaves the intent open, and its successor records the outcome as
// unknown. A second call does nothing.
func (i *Intent) End(out Outcome) error {
	if i.over() {
		return nil
	}
	return i.r.log.AppendLater(i.outcome(out))
}

// EndTx is End within a transaction, of which it should be the last step. If
// the transaction fails, End must still be called.
func (i *Intent) EndTx(ctx context.Context, tx *store.Tx, out Outcome) error {
	_, err := i.r.log.AppendTx(ctx, tx, i.outcome(out))
	if err == nil {
		tx.OnCommit(func() { i.over() })
	}
	return err
}

// over marks the intent as ended and reports whether it was before.
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

// event makes the record of an action.
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

// describe records a command: never its environment or its input, and what
// follows the program's name only if that was asked for.
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

// Settle closes what an earlier run of this daemon announced and never
// reported: whether it happened is unknown. It is called at the start, before
// anything is announced, and returns how many there were.
func (r *Recorder) Settle(ctx context.Context) (int, error) {
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
