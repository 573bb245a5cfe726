package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Leases stores leases. Apply loads the lease of a group, applies op and stores
// the result in one transaction. Operations on a lease never overlap.
type Leases interface {
	Load(ctx context.Context, group string) (lease.Lease, error)
	Apply(ctx context.Context, group string, op lease.Op) (lease.Lease, lease.Effect, error)
	// Groups returns all groups that have a lease.
	Groups(ctx context.Context) ([]string, error)
}

// Config configures a Manager.
type Config struct {
	Leases    Leases
	Sandboxes Sandboxes
	// Key returns the key of an attempt to create a sandbox.
	Key func(group string, attempt int64) string
	// Poll is the interval at which a caller checks for a spawner's result. Zero:
	// 250 ms.
	Poll time.Duration
	// Patience limits the wait for a spawner. Zero: lease.Default().Warming.
	Patience time.Duration
	// Sleep replaces a timer in tests; nil: a timer.
	Sleep func(ctx context.Context, d time.Duration) error
	// PauseOnExit pauses a drained sandbox instead of ending it, if the provider
	// can. Its data is captured in both cases.
	PauseOnExit bool
	// Now returns the time, nil: time.Now.
	Now func() time.Time
	// Busy reports whether the sandbox of a lease is serving requests. Before its
	// deadline, a sandbox is replaced only when it is not busy, or when there is
	// no more time. Nil: never busy.
	Busy func(ctx context.Context, l lease.Lease) bool
	// Cut ends the requests in the sandbox of a lease. It is called for those that
	// take too long for a replacement, so that none succeeds whose changes are not
	// saved. Nil: no call.
	Cut func(l lease.Lease)
	// Alert is called if a sandbox could not be saved and its deadline is near.
	// The sandbox continues to run. Nil: no call.
	Alert func(ctx context.Context, l lease.Lease, err error)
	// Spawner names this daemon in the leases of the sandboxes that it makes. A
	// daemon that starts ends the attempts of its own name; see lease.Restart.
	Spawner string
	// Progress is called with what a waiting Acquire waits for. Nil: no call.
	Progress func(group, what string)
}

// Manager acquires and drains the sandboxes of groups. It is safe for
// concurrent use, also by several daemons with the same Leases.
type Manager struct{ cfg Config }

// NewManager returns a Manager.
func NewManager(cfg Config) *Manager {
	if cfg.Poll == 0 {
		cfg.Poll = 250 * time.Millisecond
	}
	if cfg.Patience == 0 {
		cfg.Patience = lease.Default().Warming
	}
	if cfg.Sleep == nil {
		cfg.Sleep = sleep
	}
	if cfg.Key == nil {
		cfg.Key = func(group string, attempt int64) string { return fmt.Sprintf("%s.%d", group, attempt) }
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Busy == nil {
		cfg.Busy = func(context.Context, lease.Lease) bool { return false }
	}
	if cfg.Alert == nil {
		cfg.Alert = func(context.Context, lease.Lease, error) {}
	}
	if cfg.Cut == nil {
		cfg.Cut = func(lease.Lease) {}
	}
	if cfg.Progress == nil {
		cfg.Progress = func(string, string) {}
	}
	return &Manager{cfg}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Held is a sandbox as acquired by a holder.
type Held struct {
	Sandbox Sandbox
	Epoch   int64
	Role    lease.Role
	Receipt durable.Receipt
}

// Acquire makes the caller a holder of the group's sandbox, and waits until the
// sandbox is ready. prior is the envelope of a session that comes from
// elsewhere; it is used if the lease has no state. If Acquire fails, the caller
// is not a holder.
func (m *Manager) Acquire(ctx context.Context, p Plan, op lease.Acquire, prior *durable.Envelope) (Held, error) {
	held, err := m.acquire(ctx, p, op, prior)
	if err != nil {
		giveUp := lease.GiveUp{Kind: op.Kind, ID: op.ID, Err: lasting(err)}
		if _, _, relErr := m.cfg.Leases.Apply(context.WithoutCancel(ctx), p.Group, giveUp); relErr != nil {
			err = errors.Join(err, relErr)
		}
	}
	return held, err
}

// recovery is an error of finding or creating the sandbox, not of becoming a
// holder.
type recovery struct{ error }

func (r *recovery) Unwrap() error { return r.error }

// lasting returns the error of a recovery that would fail again. Nil: a retry
// may help.
func lasting(err error) *sandbox.Error {
	if _, ok := errors.AsType[*recovery](err); !ok {
		return nil
	}
	switch sandbox.CodeOf(err) {
	case sandbox.CodeInvalid, sandbox.CodeNotFound, sandbox.CodeUnsupported, sandbox.CodeUnauthorized, sandbox.CodeDenied:
		e, _ := errors.AsType[*sandbox.Error](err)
		return e
	}
	return nil
}

func (m *Manager) acquire(ctx context.Context, p Plan, op lease.Acquire, prior *durable.Envelope) (Held, error) {
	op.Spawner = m.cfg.Spawner
	var gone error // why the sandbox that the lease named is gone
	for waited := time.Duration(0); ; waited += m.cfg.Poll {
		l, effect, err := m.cfg.Leases.Apply(ctx, p.Group, op)
		if err != nil {
			return Held{}, err
		}
		switch {
		case effect.Role == lease.Spawner:
			return m.spawn(ctx, p, l, prior, gone)
		case l.State == lease.Warm && !m.cfg.Now().Before(l.Moving): // while it is moved or saved, do not wake it
			held, err := m.attach(ctx, l, effect.Role)
			if err == nil {
				return held, nil
			}
			if sandbox.CodeOf(err) != sandbox.CodeGone {
				return held, &recovery{err}
			}
			gone = err // this caller or another one replaces it
		}
		if waited >= m.cfg.Patience {
			return Held{}, &sandbox.Error{Code: sandbox.CodeTimeout, Op: "session.acquire", Subject: p.Group, Message: "the sandbox is still " + string(l.State)}
		}
		m.cfg.Progress(p.Group, string(l.State))
		if err := m.cfg.Sleep(ctx, m.cfg.Poll); err != nil {
			return Held{}, err
		}
	}
}

// spawn creates or resumes the sandbox, and commits it.
func (m *Manager) spawn(ctx context.Context, p Plan, l lease.Lease, prior *durable.Envelope, gone error) (Held, error) {
	e, err := Known(l, prior)
	if err != nil {
		return Held{}, &recovery{m.fail(ctx, l, err)}
	}
	p.Key = m.cfg.Key(p.Group, l.Attempt)
	b, receipt, err := Establish(ctx, m.cfg.Sandboxes, p, e)
	if err != nil {
		return Held{}, &recovery{m.fail(ctx, l, err)}
	}
	sb, err := pointer(p, b)
	if err != nil {
		return Held{}, m.abandon(ctx, l, b, receipt, err)
	}
	commit := lease.Commit{Epoch: l.Epoch, Attempt: l.Attempt, Provider: b.Provider, Binding: b.Binding, Sandbox: b.ID, Image: p.Spec.Image, Ref: sb, Deadline: b.Deadline}
	now, effect, err := m.cfg.Leases.Apply(context.WithoutCancel(ctx), p.Group, commit)
	switch {
	case err != nil:
		// It is unknown whether the Commit took effect. If it did, the sandbox must
		// not be removed. If not, the reaper removes it by its key.
		return Held{}, err
	case !effect.Done:
		return Held{}, m.abandon(ctx, l, b, receipt, &sandbox.Error{
			Code: sandbox.CodeStale, Op: "session.acquire", Subject: p.Group, Message: "another caller took over while the sandbox was being made",
		})
	}
	receipt.Epoch = now.Epoch
	if gone != nil && receipt.Why == "" {
		receipt.Why = gone.Error()
	}
	if receipt.Why != "" && receipt.From.Archive != nil { // it ended before it could be saved
		receipt.Lost = append(receipt.Lost, durable.LostChanges)
	}
	if receipt.Outcome == durable.OutcomeCreated && (now.Epoch > 1 || receipt.Why != "") {
		receipt.Lost = []string{durable.LostWorkspace} // an empty sandbox does not have the old files
	}
	return Held{Sandbox: b, Epoch: now.Epoch, Role: lease.Spawner, Receipt: receipt}, nil
}

// Known returns what a spawner starts from: the sandbox that the lease names,
// otherwise its archive, otherwise the session's envelope. Nil: there is no
// earlier state.
func Known(l lease.Lease, prior *durable.Envelope) (*durable.Envelope, error) {
	data := l.Ref
	if data == nil {
		data = l.Archive
	}
	if data == nil {
		return prior, nil
	}
	e, err := durable.ParseEnvelope(data)
	if err != nil {
		return nil, err
	}
	if l.Ref != nil && l.Archive != nil { // the archive is used if the sandbox is gone
		a, err := durable.ParseEnvelope(l.Archive)
		if err != nil {
			return nil, err
		}
		e.Archive, e.Workspaces = a.Archive, a.Workspaces
	}
	return &e, nil
}

// fail ends an attempt that created no sandbox.
func (m *Manager) fail(ctx context.Context, l lease.Lease, cause error) error {
	_, _, err := m.cfg.Leases.Apply(context.WithoutCancel(ctx), l.Group, lease.Fail{Epoch: l.Epoch, Attempt: l.Attempt})
	return errors.Join(cause, err)
}

// abandon gives up a sandbox that could not be committed. It removes the
// sandbox only if this attempt created it.
func (m *Manager) abandon(ctx context.Context, l lease.Lease, b Sandbox, receipt durable.Receipt, cause error) error {
	if receipt.Outcome == durable.OutcomeCreated || receipt.Outcome == durable.OutcomeRebuilt {
		cause = errors.Join(cause, m.cfg.Sandboxes.Delete(context.WithoutCancel(ctx), b))
	}
	return m.fail(ctx, l, cause)
}

// attach returns the sandbox that a warm lease names. It checks that the
// sandbox is alive. If the sandbox is gone, it records that in the lease and
// returns CodeGone.
func (m *Manager) attach(ctx context.Context, l lease.Lease, role lease.Role) (Held, error) {
	e, err := Known(l, nil)
	if err != nil {
		return Held{}, err
	}
	b, how, err := resume(ctx, m.cfg.Sandboxes, *e)
	if sandbox.CodeOf(err) == sandbox.CodeGone {
		lost := lease.Lost{Epoch: l.Epoch, Sandbox: l.Sandbox}
		if _, _, storeErr := m.cfg.Leases.Apply(context.WithoutCancel(ctx), l.Group, lost); storeErr != nil {
			return Held{}, storeErr
		}
	}
	if err != nil {
		return Held{}, err
	}
	receipt := durable.Receipt{Outcome: how, Provider: b.Provider, Sandbox: b.ID, Epoch: l.Epoch}
	return Held{Sandbox: b, Epoch: l.Epoch, Role: role, Receipt: receipt}, nil
}
