package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/cpuid"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/gvisor/kernel"
	"github.com/atoll-run/atoll/provider/gvisor/layer"
	"github.com/atoll-run/atoll/provider/gvisor/snapshot"
	"github.com/atoll-run/atoll/sandbox"
)

// Snapshot saves the state of the sandbox. See driver.Snapshotter.
//
// The sandbox is paused while its kernel writes. The checksums are computed
// when it runs again.
func (in *Instance) Snapshot(ctx context.Context, opts driver.SnapshotOptions) (driver.Snapshot, error) {
	if opts.Memory {
		if err := in.memoryLost(); err != nil {
			return driver.Snapshot{}, err
		}
	}
	dir, err := in.p.snapshots.Draft(opts.ID)
	if err != nil {
		return driver.Snapshot{}, err
	}
	snap, err := in.snapshotInto(ctx, dir, opts)
	if err != nil {
		return driver.Snapshot{}, in.explain(withCause(ctx, errors.Join(err, in.p.snapshots.Discard(opts.ID))))
	}
	snap.Engine = in.rec.Engine
	return snap, nil
}

// snapshotInto writes a draft and completes it before the sandbox ends, if it
// is to end.
func (in *Instance) snapshotInto(ctx context.Context, dir string, opts driver.SnapshotOptions) (snap driver.Snapshot, err error) {
	var d *snapshot.Draft
	finish := func() error {
		if err := d.Finish(ctx); err != nil {
			return err
		}
		snap, err = in.p.snapshots.Finish(ctx, opts)
		return err
	}
	err = in.locked(ctx, func(ctx context.Context, rest string) (err error) {
		if rest != awake && rest != paused {
			if err := in.settleRest(ctx); err != nil {
				return err
			}
			rest = awake
		}
		d, err = in.save(ctx, dir, opts, rest)
		if err == nil && opts.Stop {
			if err = finish(); err == nil {
				err = in.stop()
			}
			if err != nil {
				err = errors.Join(err, in.letGo(ctx, rest))
			}
		}
		return err
	})
	if err == nil && !opts.Stop {
		err = finish()
	}
	return snap, err
}

// FindSnapshot implements driver.SnapshotKeeper.
func (p *Provider) FindSnapshot(ctx context.Context, id string) (driver.Snapshot, error) {
	return p.snapshots.Find(ctx, id)
}

// RemoveSnapshot implements driver.SnapshotKeeper.
func (p *Provider) RemoveSnapshot(ctx context.Context, ref driver.SnapshotRef) error {
	return p.snapshots.Remove(ctx, ref)
}

// Snapshots implements driver.SnapshotKeeper.
func (p *Provider) Snapshots(ctx context.Context) iter.Seq2[driver.FoundSnapshot, error] {
	return p.snapshots.List(ctx)
}

// CopySnapshot implements driver.SnapshotCopier.
func (p *Provider) CopySnapshot(ctx context.Context, ref driver.SnapshotRef, id string) (driver.Snapshot, error) {
	return p.snapshots.Copy(ctx, ref, id)
}

// ExportSnapshot implements driver.SnapshotExporter.
func (p *Provider) ExportSnapshot(ctx context.Context, ref driver.SnapshotRef, w io.Writer) error {
	return p.snapshots.Export(ctx, ref, w)
}

// ImportSnapshot implements driver.SnapshotExporter.
func (p *Provider) ImportSnapshot(ctx context.Context, id string, r io.Reader) (driver.Snapshot, error) {
	return p.snapshots.Import(ctx, id, r)
}

// save writes all of a snapshot except its manifest, with the sandbox paused.
// The sandbox continues afterwards, unless the caller stops it.
func (in *Instance) save(ctx context.Context, dir string, opts driver.SnapshotOptions, rest string) (*snapshot.Draft, error) {
	d := snapshot.New(dir, snapshot.Manifest{Image: in.rec.Spec.Image, Digest: in.rec.Spec.Digest, Transient: opts.Transient && !opts.Stop})
	if opts.Memory {
		d.Memory = &snapshot.Memory{Engine: in.rec.Engine, Guest: in.rec.Guest, CPU: cpuFeatures(), Mounts: in.rec.Mounts, Group: in.rec.group()}
	}
	return d, in.hold(ctx, rest, opts.Stop, func(conn *urpc.Client) error {
		from := saver{conn, in.stateDir, opts.Transient}
		if opts.Memory {
			if err := d.SaveMemory(from, max(in.memoryUsed(), 0)); err != nil {
				return err
			}
		}
		if err := in.p.opts.Fault("snapshot.memory"); err != nil {
			return err
		}
		if err := d.SaveFiles(from); err != nil {
			return err
		}
		if in.p.opts.Network != nil {
			if err := addKnown(ctx, &d.Manifest, in.p.opts.Network, in.rec.ID); err != nil {
				return err
			}
		}
		return in.p.opts.Fault("snapshot.saved")
	})
}

// addKnown adds the programs' knowledge about the network: its authority and,
// with memory, its addresses.
func addKnown(ctx context.Context, m *snapshot.Manifest, n Network, id sandbox.ID) error {
	known, err := n.Known(ctx, id)
	if err != nil {
		return fmt.Errorf("asking the kernel about its network: %w", err)
	}
	m.CA = known.CA
	if m.Memory != nil {
		m.Memory.Names = known.Names
	}
	return nil
}

// hold calls do while the sandbox is paused, and resumes it unless do succeeds
// and stay is set. The lock is held, and rest is awake or paused.
func (in *Instance) hold(ctx context.Context, rest string, stay bool, do func(*urpc.Client) error) error {
	// As in Pause: if this process is killed, another one settles the state.
	if rest == awake {
		if err := in.stand(ctx); err != nil {
			return err
		}
	}
	err := withKernel(ctx, in.stateDir.dir, func(conn *urpc.Client) error {
		if err := in.p.opts.Fault("snapshot.held"); err != nil {
			return err
		}
		return do(conn)
	})
	if err == nil && stay {
		return nil
	}
	return errors.Join(err, in.letGo(context.WithoutCancel(ctx), rest))
}

// letGo undoes hold.
func (in *Instance) letGo(ctx context.Context, rest string) error {
	if rest != awake {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	if err := in.changeRest(ctx, boot.ContMgrResume); err != nil {
		return err
	}
	return in.stateDir.setRest(awake)
}

// stop ends the sandbox because its state is in a snapshot.
func (in *Instance) stop() error {
	if err := in.p.opts.Fault("snapshot.written"); err != nil {
		return err
	}
	if err := in.stateDir.setRest(stopped); err != nil {
		return err
	}
	if err := in.p.opts.Fault("snapshot.stopping"); err != nil {
		return err
	}
	in.end(sandbox.ReasonKilled)
	if !in.stateDir.awaitDeath(killTime) {
		return errors.New("the sandbox's kernel does not end")
	}
	return nil
}

// saver is a paused sandbox that is saved; see snapshot.Sandbox.
type saver struct {
	conn     *urpc.Client
	stateDir stateDir
	link     bool // to the guest's program; otherwise it is copied
}

// SaveMemory implements snapshot.Sandbox.
func (s saver) SaveMemory(state, index, pages *os.File) error {
	err := s.conn.Call(boot.ContMgrCheckpoint, &control.SaveOpts{
		Metadata:      statefile.CompressionLevelNone.ToMetadata(),
		HavePagesFile: true,
		Resume:        true,
		FilePayload:   urpc.FilePayload{Files: []*os.File{state, index, pages}},
	}, nil)
	if err != nil && strings.Contains(err.Error(), kernel.StillShared) {
		return &sandbox.Error{
			Code: sandbox.CodeExhausted, Message: "the memory that it shares with its snapshot does not fit into its own memory limit",
			Hint: "end some of its programs, or take a snapshot of its files only",
		}
	}
	// The kernel reports errors as text, without their type.
	if err != nil && strings.Contains(err.Error(), unix.ENOSPC.Error()) {
		return fmt.Errorf("%w: %w", err, unix.ENOSPC)
	}
	return err
}

// SaveGuest implements snapshot.Sandbox. A permanent snapshot gets a copy: damage
// to its files must not affect those of sandboxes.
func (s saver) SaveGuest(path string) error {
	image, err := os.Open(s.stateDir.path(fileGuest))
	if err != nil {
		return err
	}
	defer image.Close()
	if s.link {
		return linkOrCopy(image, path)
	}
	return copyFile(image, path)
}

// SaveFiles implements snapshot.Sandbox.
func (s saver) SaveFiles(w io.Writer) error {
	return withChanges(s.conn, s.stateDir, func(c layer.Source) error { return c.Save(w) })
}

// cpuFeatures returns the features of this machine's processor.
var cpuFeatures = sync.OnceValue(func() []string {
	cpuid.Initialize()
	return strings.Fields(cpuid.HostFeatureSet().Fixed().FlagString())
})
