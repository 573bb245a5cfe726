package drivertest

import (
	"context"
	"iter"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// stateInstance replaces the methods for pauses and snapshots that are set.
type stateInstance struct {
	driver.Instance
	pause    func(ctx context.Context, next driver.Pauser) error
	resume   func(ctx context.Context, next driver.Pauser) error
	snapshot func(ctx context.Context, opts driver.SnapshotOptions, next driver.Snapshotter) (driver.Snapshot, error)
}

func (i stateInstance) Unwrap() any { return i.Instance }

func (i stateInstance) Pause(ctx context.Context) error {
	next, _ := driver.As[driver.Pauser](i.Instance)
	if i.pause != nil {
		return i.pause(ctx, next)
	}
	return next.Pause(ctx)
}

func (i stateInstance) Resume(ctx context.Context) error {
	next, _ := driver.As[driver.Pauser](i.Instance)
	if i.resume != nil {
		return i.resume(ctx, next)
	}
	return next.Resume(ctx)
}

func (i stateInstance) Snapshot(ctx context.Context, opts driver.SnapshotOptions) (driver.Snapshot, error) {
	next, _ := driver.As[driver.Snapshotter](i.Instance)
	if i.snapshot != nil {
		return i.snapshot(ctx, opts, next)
	}
	return next.Snapshot(ctx, opts)
}

func withState(s stateInstance) func(driver.Provider) driver.Provider {
	return withInstance(func(inst driver.Instance) driver.Instance {
		s := s
		s.Instance = inst
		return s
	})
}

// restoringProvider replaces Restore.
type restoringProvider struct {
	passProvider
	restore func(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef, next driver.Provider) (driver.Instance, driver.Restored, error)
}

func (p restoringProvider) Unwrap() any { return p.Provider }

func (p restoringProvider) Restore(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, driver.Restored, error) {
	return p.restore(ctx, spec, ref, p.Provider)
}

func withRestore(f func(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef, next driver.Provider) (driver.Instance, driver.Restored, error)) func(driver.Provider) driver.Provider {
	return func(p driver.Provider) driver.Provider { return restoringProvider{passProvider{p}, f} }
}

// forgetfulProvider never removes a snapshot.
type forgetfulProvider struct{ passProvider }

func (p forgetfulProvider) Unwrap() any { return p.passProvider }

func (p forgetfulProvider) keeper() driver.SnapshotKeeper {
	k, _ := driver.As[driver.SnapshotKeeper](p.Provider)
	return k
}

func (p forgetfulProvider) FindSnapshot(ctx context.Context, id string) (driver.Snapshot, error) {
	return p.keeper().FindSnapshot(ctx, id)
}

func (p forgetfulProvider) RemoveSnapshot(context.Context, driver.SnapshotRef) error { return nil }

func (p forgetfulProvider) Snapshots(ctx context.Context) iter.Seq2[driver.FoundSnapshot, error] {
	return p.keeper().Snapshots(ctx)
}

func restoreBy(ctx context.Context, p driver.Provider, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, driver.Restored, error) {
	r, _ := driver.As[driver.Restorer](p)
	return r.Restore(ctx, spec, ref)
}

var brokenStates = []sabotage{
	{"declares pausing", true, withFacts(func(f *driver.Facts) { f.Capabilities.Pause = true }), []string{"capabilities/pause", "pause/continues"}},
	{"hides pausing", false, withFacts(func(f *driver.Facts) { f.Capabilities.Pause = false }), []string{"capabilities/pause"}},
	{"declares snapshots", true, withFacts(func(f *driver.Facts) { f.Capabilities.Snapshot = true }), []string{"capabilities/snapshot", "snapshot/files"}},
	{"hides snapshots", false, withFacts(func(f *driver.Facts) { f.Capabilities.Snapshot = false }), []string{"capabilities/snapshot"}},
	{"declares memory", false, withFacts(func(f *driver.Facts) { f.Capabilities.Memory = true }), []string{"fork/processes", "fork/files-only", "fork/stopped", "fork/of-a-fork", "fork/callers", "fork/random", "fork/exact", "fork/at-once", "fork/transient", "fork/timer", "fork/clock", "fork/listener", "fork/descendants"}},
	{"pauses nothing", false, withState(stateInstance{
		pause:  func(context.Context, driver.Pauser) error { return nil },
		resume: func(context.Context, driver.Pauser) error { return nil },
	}), []string{"pause/stands-still", "pause/listed", "pause/destroy"}},
	{"never resumes", false, withState(stateInstance{
		resume: func(context.Context, driver.Pauser) error { return nil },
	}), []string{"pause/listed", "pause/destroy", "pause/in-flight", "pause/timer"}},
	{"does not pause twice", false, withState(stateInstance{
		resume: func(ctx context.Context, next driver.Pauser) error {
			_ = next.Resume(ctx)
			return next.Pause(ctx)
		},
	}), []string{"pause/listed"}},
	{"saves nothing", false, withState(stateInstance{
		snapshot: func(_ context.Context, opts driver.SnapshotOptions, _ driver.Snapshotter) (driver.Snapshot, error) {
			ref := driver.SnapshotRef{Provider: "fake", Kind: driver.SnapshotFilesystem, Data: opts.ID}
			return driver.Snapshot{Ref: ref, Engine: "none", Size: 1}, nil
		},
	}), []string{"snapshot/files", "snapshot/stop", "snapshot/destroyed", "snapshot/fails", "snapshot/found", "snapshot/taken-id", "restore/independent", "restore/elsewhere"}},
	{"describes nothing", false, withState(stateInstance{
		snapshot: func(ctx context.Context, opts driver.SnapshotOptions, next driver.Snapshotter) (driver.Snapshot, error) {
			_, err := next.Snapshot(ctx, opts)
			return driver.Snapshot{}, err
		},
	}), []string{"snapshot/files", "snapshot/size"}},
	{"stops always", false, withState(stateInstance{
		snapshot: func(ctx context.Context, opts driver.SnapshotOptions, next driver.Snapshotter) (driver.Snapshot, error) {
			opts.Stop = true
			return next.Snapshot(ctx, opts)
		},
	}), []string{"snapshot/goes-on", "restore/independent"}},
	{"stops never", false, withState(stateInstance{
		snapshot: func(ctx context.Context, opts driver.SnapshotOptions, next driver.Snapshotter) (driver.Snapshot, error) {
			opts.Stop = false
			return next.Snapshot(ctx, opts)
		},
	}), []string{"snapshot/stop", "snapshot/in-flight"}},
	{"resumes what it saves", false, withState(stateInstance{
		snapshot: func(ctx context.Context, opts driver.SnapshotOptions, next driver.Snapshotter) (driver.Snapshot, error) {
			s, err := next.Snapshot(ctx, opts)
			if p, ok := driver.As[driver.Pauser](next); ok {
				_ = p.Resume(ctx)
			}
			return s, err
		},
	}), []string{"snapshot/paused"}},
	{"restores from nothing", false, withRestore(func(ctx context.Context, spec *sandbox.Spec, _ driver.SnapshotRef, next driver.Provider) (driver.Instance, driver.Restored, error) {
		inst, err := next.Create(ctx, spec)
		return inst, driver.Restored{}, err
	}), []string{"snapshot/files", "snapshot/exact", "restore/foreign", "restore/removed", "restore/damaged", "snapshot/exported"}},
	{"restores without its context", false, withRestore(func(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef, next driver.Provider) (driver.Instance, driver.Restored, error) {
		return restoreBy(context.WithoutCancel(ctx), next, spec, ref)
	}), []string{"restore/canceled"}},
	{"forgets the environment", false, withRestore(func(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef, next driver.Provider) (driver.Instance, driver.Restored, error) {
		own := *spec
		own.Env = nil
		return restoreBy(ctx, next, &own, ref)
	}), []string{"restore/identity"}},
	{"forgets the host name", false, withRestore(func(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef, next driver.Provider) (driver.Instance, driver.Restored, error) {
		own := *spec
		own.Hostname = "source"
		return restoreBy(ctx, next, &own, ref)
	}), []string{"restore/hostname"}},
	{"removes no snapshot", false, func(p driver.Provider) driver.Provider {
		return forgetfulProvider{passProvider{p}}
	}, []string{"restore/removed", "snapshot/found", "snapshot/exported"}},
	{"claims to restore memory", false, withRestore(func(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef, next driver.Provider) (driver.Instance, driver.Restored, error) {
		inst, _, err := restoreBy(ctx, next, spec, ref)
		return inst, driver.Restored{Memory: true}, err
	}), []string{"snapshot/files"}},
}
