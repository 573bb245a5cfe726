package session

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/sandbox"
)

// Sweep looks at every lease once and drains the sandboxes that nobody needs. A
// failure with one lease does not keep others from being looked at. Sweeps may
// overlap, of one daemon or many.
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
	if err == nil && m.old(l) {
		if _, effect, err = m.cfg.Leases.Apply(ctx, group, lease.Rotate{Epoch: l.Epoch}); err == nil {
			_, effect, err = m.cfg.Leases.Apply(ctx, group, lease.Tick{})
		}
	}
	if err != nil || !effect.Due {
		return err
	}
	return m.Drain(ctx, group)
}

// old reports whether the lifetime of a sandbox ends soon and it was not yet
// told to make place for another.
func (m *Manager) old(l lease.Lease) bool {
	if l.Deadline.IsZero() || l.Rotating || (l.State != lease.Warm && l.State != lease.Draining) {
		return false
	}
	return !m.cfg.Now().Before(l.Deadline.Add(-m.cfg.Lead(l)))
}

// Drain ends the sandbox of a group that nobody holds: it captures what the
// sandbox has, stores that, and only then ends it. Whatever fails leaves the
// sandbox as it is, for the next sweep.
func (m *Manager) Drain(ctx context.Context, group string) error {
	l, err := m.cfg.Leases.Load(ctx, group)
	if err != nil || l.State != lease.Draining || len(l.Holders) > 0 && !l.Ending {
		return err
	}
	if l.Box == nil {
		return m.confirm(ctx, l, false)
	}
	e, err := sandbox.ParseEnvelope(l.Box)
	if err != nil {
		return err
	}
	if l.Ending { // captured already, by a reaper that did not get to the end
		return m.end(ctx, l, Box{ID: sandbox.ID(e.Box), Provider: e.Backend, Binding: e.Binding, State: e.State})
	}
	b, _, err := resume(ctx, m.cfg.Boxes, e)
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeGone:
		return m.confirm(ctx, l, false)
	case err != nil:
		return err
	}
	saved, err := m.cfg.Boxes.Capture(ctx, b, e)
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeGone:
		return m.confirm(ctx, l, false)
	case err != nil:
		return err // capture comes before the end
	}
	kept, err := m.persist(ctx, l, saved)
	if err != nil || !kept {
		return err
	}
	return m.end(ctx, l, b)
}

// persist stores what was captured. It reports whether the sandbox is still to
// be ended.
func (m *Manager) persist(ctx context.Context, l lease.Lease, saved sandbox.Envelope) (bool, error) {
	saved.Box, saved.State = "", nil
	sealed, err := saved.Sealed()
	if err != nil {
		return false, err
	}
	data, err := json.Marshal(sealed)
	if err != nil {
		return false, err
	}
	_, effect, err := m.cfg.Leases.Apply(ctx, l.Group, lease.Persist{Epoch: l.Epoch, Drain: l.Drains, Archive: data})
	if err != nil {
		return false, err
	}
	if !effect.Done { // somebody wants the sandbox again; the capture is not needed
		return false, m.cfg.Boxes.Discard(ctx, sealed)
	}
	if effect.Prior != nil {
		if prior, err := sandbox.ParseEnvelope(effect.Prior); err == nil {
			_ = m.cfg.Boxes.Discard(ctx, prior) // the ledger tries again
		}
	}
	return true, nil
}

// end ends or pauses a captured sandbox, unless somebody wants it again.
func (m *Manager) end(ctx context.Context, l lease.Lease, b Box) error {
	_, still, err := m.cfg.Leases.Apply(ctx, l.Group, lease.Begin{Epoch: l.Epoch, Drain: l.Drains})
	if err != nil || !still.Done {
		return err
	}
	ctx = context.WithoutCancel(ctx) // others wait for the end now
	if m.cfg.PauseOnExit {
		switch err := m.cfg.Boxes.Pause(ctx, b); sandbox.CodeOf(err) {
		case "":
			return m.confirm(ctx, l, true)
		case sandbox.CodeGone:
			return m.confirm(ctx, l, false)
		case sandbox.CodeUnsupported:
		default:
			return err
		}
	}
	if err := m.cfg.Boxes.Delete(ctx, b); err != nil {
		return err
	}
	return m.confirm(ctx, l, false)
}

func (m *Manager) confirm(ctx context.Context, l lease.Lease, paused bool) error {
	_, _, err := m.cfg.Leases.Apply(ctx, l.Group, lease.Confirm{Epoch: l.Epoch, Drain: l.Drains, Paused: paused})
	return err
}

// Orphan reports whether a sandbox that carries the key of an attempt is wanted
// by nobody: its attempt is over and its lease names another sandbox. Attempts
// are counted up, so one that is over never commits.
func Orphan(l lease.Lease, id sandbox.ID, attempt int64) bool {
	if l.Sandbox == id {
		return false
	}
	return attempt < l.Attempt || l.State != lease.Warming && l.Moving.IsZero()
}

// SplitKey takes the default form of an attempt's key apart.
func SplitKey(key string) (group string, attempt int64, ok bool) {
	i := strings.LastIndexByte(key, '.')
	if i < 0 {
		return "", 0, false
	}
	attempt, err := strconv.ParseInt(key[i+1:], 10, 64)
	return key[:i], attempt, err == nil
}
