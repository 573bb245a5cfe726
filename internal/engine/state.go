package engine

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// optional runs an operation of the optional interface T of the sandbox's
// provider.
func optional[T any](ctx context.Context, s *Sandbox, op ops.Op, lacks string, act func(context.Context, T) error) error {
	return s.e.do(ctx, s.action(op, ""), func(ctx context.Context) error {
		t, ok := driver.As[T](s.inst)
		if !ok {
			return &sandbox.Error{Code: sandbox.CodeUnsupported, Message: lacks}
		}
		return act(ctx, t)
	})
}

// Can reports whether the sandbox's provider implements the optional interface
// T.
func Can[T any](s *Sandbox) bool {
	_, ok := driver.As[T](s.inst)
	return ok
}

// Pause freezes the sandbox in memory.
func (s *Sandbox) Pause(ctx context.Context) error {
	return optional(ctx, s, ops.SandboxPause, "this provider cannot pause", func(ctx context.Context, p driver.Pauser) error { return p.Pause(ctx) })
}

// Resume resumes a paused sandbox.
func (s *Sandbox) Resume(ctx context.Context) error {
	return optional(ctx, s, ops.SandboxResume, "this provider cannot pause", func(ctx context.Context, p driver.Resumer) error { return p.Resume(ctx) })
}

// Snapshot saves the state of the sandbox with its provider.
func (s *Sandbox) Snapshot(ctx context.Context, opts driver.SnapshotOptions) (snap driver.Snapshot, err error) {
	err = optional(ctx, s, ops.SandboxSnapshot, "this provider makes no snapshots", func(ctx context.Context, p driver.Snapshotter) (err error) {
		snap, err = p.Snapshot(ctx, opts)
		return err
	})
	return snap, err
}

// Resize changes the limits that are not zero.
func (s *Sandbox) Resize(ctx context.Context, limits sandbox.Resources) error {
	return optional(ctx, s, ops.SandboxUpdate, "this provider cannot change the limits of a running sandbox", func(ctx context.Context, p driver.Resizer) error {
		if err := limits.Validate(); err != nil {
			return err
		}
		return p.Resize(ctx, limits)
	})
}

// SetDeadline replaces the time at which the provider ends the sandbox; the
// zero time means never.
func (s *Sandbox) SetDeadline(ctx context.Context, at time.Time) error {
	return optional(ctx, s, ops.SandboxUpdate, "this provider cannot change the lifetime of a running sandbox", func(ctx context.Context, p driver.DeadlineSetter) error {
		return p.SetDeadline(ctx, at)
	})
}

// Restore creates a sandbox from a snapshot of the same provider. It works like
// Create, except that the image is not pulled: the plan names the exact image of
// the first sandbox.
func (e *Engine) Restore(ctx context.Context, p plan.Plan, ref driver.SnapshotRef) (sb *Sandbox, how driver.Restored, err error) {
	sb, err = e.make(ctx, &p, nil, func(ctx context.Context, spec *sandbox.Spec) (inst driver.Instance, err error) {
		restorer, ok := driver.As[driver.Restorer](e.cfg.Provider)
		if !ok {
			return nil, &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "this provider cannot create sandboxes from snapshots"}
		}
		inst, how, err = restore(ctx, restorer, p.FilesOnly, spec, ref)
		return inst, err
	})
	return sb, how, err
}

// restore makes a provider restore a snapshot. If the provider's snapshots
// contain no memory, only files are restored.
func restore(ctx context.Context, r driver.Restorer, filesOnly bool, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, driver.Restored, error) {
	if files, ok := driver.As[driver.FileRestorer](r); ok && filesOnly {
		inst, err := files.RestoreFiles(ctx, spec, ref)
		return inst, driver.Restored{}, err
	}
	return r.Restore(ctx, spec, ref)
}
