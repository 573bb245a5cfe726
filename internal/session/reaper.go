package session

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Sweep checks every lease once and drains sandboxes that are not needed. An
// error with one lease does not affect the others. Sweeps may overlap, in one
// daemon or several.
func (m *Manager) Sweep(ctx context.Context) error {
	groups, err := m.cfg.Leases.Groups(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, g := range groups {
		failed = append(failed, m.SweepGroup(ctx, g))
	}
	return errors.Join(failed...)
}

// SweepGroup is Sweep for one group.
func (m *Manager) SweepGroup(ctx context.Context, group string) error {
	l, effect, err := m.cfg.Leases.Apply(ctx, group, lease.Tick{})
	if err == nil && m.near(l, 1) && !l.Rotating {
		if l, _, err = m.cfg.Leases.Apply(ctx, group, lease.Rotate{Epoch: l.Epoch}); err == nil {
			l, effect, err = m.cfg.Leases.Apply(ctx, group, lease.Tick{})
		}
	}
	if err == nil && l.Rotating && l.State == lease.Warm && m.near(l, 2) && !m.waits(ctx, l) {
		_, effect, err = m.cfg.Leases.Apply(ctx, group, lease.Evict{Epoch: l.Epoch})
		effect.Due = effect.Done
	}
	if err != nil || !effect.Due {
		return err
	}
	return m.Drain(ctx, group)
}

// near reports whether the deadline of a sandbox is closer than a fraction of
// the time needed to replace it.
func (m *Manager) near(l lease.Lease, fraction time.Duration) bool {
	now := m.cfg.Now()
	return l.Serves() && !l.Deadline.IsZero() && !now.Before(l.Retry) && !now.Before(l.Deadline.Add(-l.Lead()/fraction))
}

// waits reports whether the replacement of a sandbox waits for requests in
// progress. The last quarter of the time is reserved for saving the sandbox.
func (m *Manager) waits(ctx context.Context, l lease.Lease) bool {
	return m.cfg.Now().Before(l.Deadline.Add(-l.Lead()/4)) && m.cfg.Busy(ctx, l)
}

// Drain ends the sandbox of a group without holders: it captures the data,
// stores the archive, and only then ends the sandbox. If a step fails, the
// sandbox continues to run until the next sweep.
func (m *Manager) Drain(ctx context.Context, group string) error {
	l, err := m.cfg.Leases.Load(ctx, group)
	if err != nil || l.State != lease.Draining || len(l.Holders) > 0 && !l.Ending && !l.Evicting {
		return err
	}
	if l.Evicting && !l.Ending {
		if m.waits(ctx, l) { // a request started first
			return m.keep(ctx, l)
		}
		if err := m.quiet(ctx, l); err != nil {
			return err
		}
	}
	err = m.drain(ctx, l)
	if err == nil || !l.Rotating {
		return err
	}
	m.cfg.Alert(ctx, l, err)
	return errors.Join(err, m.keep(ctx, l))
}

// quietTime is how long requests in progress may take once the sandbox accepts
// no new ones. After that, they fail.
const quietTime = 15 * time.Second

// quiet waits for the requests in a sandbox that is being evicted, so that
// their results are saved, and ends those that take too long.
func (m *Manager) quiet(ctx context.Context, l lease.Lease) error {
	limit := min(quietTime, l.Lead()/8, l.Deadline.Sub(m.cfg.Now())/4) // most of the time is for saving
	busy, err := m.waitQuiet(ctx, l, limit)
	if err != nil || !busy {
		return err
	}
	m.cfg.Cut(l)
	_, err = m.waitQuiet(ctx, l, limit)
	return err
}

// waitQuiet waits until a sandbox serves no requests, and reports whether it
// still does after the limit.
func (m *Manager) waitQuiet(ctx context.Context, l lease.Lease, limit time.Duration) (busy bool, err error) {
	for waited := time.Duration(0); m.cfg.Busy(ctx, l); waited += m.cfg.Poll / 10 {
		if waited >= limit {
			return true, nil
		}
		if err := m.cfg.Sleep(ctx, m.cfg.Poll/10); err != nil {
			return true, err
		}
	}
	return false, nil
}

// keep cancels the rotation of a sandbox, unless it is being ended.
func (m *Manager) keep(ctx context.Context, l lease.Lease) error {
	_, _, err := m.cfg.Leases.Apply(context.WithoutCancel(ctx), l.Group, lease.Keep{Epoch: l.Epoch, Drain: l.Drains})
	return err
}

func (m *Manager) drain(ctx context.Context, l lease.Lease) error {
	if l.Ref == nil {
		return m.confirm(ctx, l, false)
	}
	e, err := durable.ParseEnvelope(l.Ref)
	if err != nil {
		return err
	}
	if m.cfg.Sandboxes.Permanent(ctx, e.Backend) { // the next holder finds it again
		return m.confirm(ctx, l, true)
	}
	if l.Ending { // already captured by a reaper that did not finish
		return m.end(ctx, l, Sandbox{ID: sandbox.ID(e.Sandbox), Provider: e.Backend, Binding: e.Binding, State: e.State})
	}
	b, _, err := resume(ctx, m.cfg.Sandboxes, e)
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeGone:
		return m.confirm(ctx, l, false)
	case err != nil:
		return err
	}
	saved, err := m.cfg.Sandboxes.Capture(ctx, b, e)
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeGone:
		return m.confirm(ctx, l, false)
	case err != nil:
		return err // the sandbox must not end before the capture
	}
	kept, err := m.persist(ctx, l, saved)
	if err != nil || !kept {
		return err
	}
	return m.end(ctx, l, b)
}

// persist stores the captured archive. It reports whether the sandbox should
// still be ended.
func (m *Manager) persist(ctx context.Context, l lease.Lease, saved durable.Envelope) (bool, error) {
	saved.Sandbox, saved.State = "", nil
	sealed := saved.Sealed()
	data, err := json.Marshal(sealed)
	if err != nil {
		return false, err
	}
	_, effect, err := m.cfg.Leases.Apply(ctx, l.Group, lease.Persist{Epoch: l.Epoch, Drain: l.Drains, Archive: data})
	if err != nil { // Discard keeps an archive that was stored anyway
		return false, errors.Join(err, m.cfg.Sandboxes.Discard(context.WithoutCancel(ctx), sealed))
	}
	if !effect.Done { // the sandbox is needed again; the capture is not
		return false, m.cfg.Sandboxes.Discard(ctx, sealed)
	}
	if effect.Prior != nil {
		if prior, err := durable.ParseEnvelope(effect.Prior); err == nil {
			_ = m.cfg.Sandboxes.Discard(ctx, prior) // the ledger tries again
		}
	}
	return true, nil
}

// end ends or pauses a captured sandbox, unless it is needed again.
func (m *Manager) end(ctx context.Context, l lease.Lease, b Sandbox) error {
	_, still, err := m.cfg.Leases.Apply(ctx, l.Group, lease.Begin{Epoch: l.Epoch, Drain: l.Drains})
	if err != nil || !still.Done {
		return err
	}
	ctx = context.WithoutCancel(ctx)      // callers wait for the end now
	if m.cfg.PauseOnExit && !l.Rotating { // a paused sandbox ends at its deadline, too
		switch err := m.cfg.Sandboxes.Pause(ctx, b); sandbox.CodeOf(err) {
		case "":
			return m.confirm(ctx, l, true)
		case sandbox.CodeGone:
			return m.confirm(ctx, l, false)
		case sandbox.CodeUnsupported:
		default:
			return err
		}
	}
	if err := m.cfg.Sandboxes.Delete(ctx, b); err != nil {
		return err
	}
	return m.confirm(ctx, l, false)
}

func (m *Manager) confirm(ctx context.Context, l lease.Lease, paused bool) error {
	_, _, err := m.cfg.Leases.Apply(ctx, l.Group, lease.Confirm{Epoch: l.Epoch, Drain: l.Drains, Paused: paused})
	return err
}

// Orphan reports whether a sandbox with the key of an attempt is an orphan: the
// attempt is over and the lease names another sandbox. Attempt numbers
// increase, so an attempt that is over can never commit.
func Orphan(l lease.Lease, id sandbox.ID, attempt int64) bool {
	if l.Sandbox == id {
		return false
	}
	return attempt < l.Attempt || l.State != lease.Warming && l.Moving.IsZero()
}

// SplitKey parses the default form of an attempt's key.
func SplitKey(key string) (group string, attempt int64, ok bool) {
	i := strings.LastIndexByte(key, '.')
	if i < 0 {
		return "", 0, false
	}
	attempt, err := strconv.ParseInt(key[i+1:], 10, 64)
	return key[:i], attempt, err == nil
}
