package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/cpuid"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/gvisor/kernel"
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
	var m *manifest
	finish := func() error {
		if err := m.write(ctx, dir); err != nil {
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
		m, err = in.save(ctx, dir, opts, rest)
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

// describeSnapshot reads a manifest without checking for damage.
func describeSnapshot(dir string) (driver.SnapshotKind, string, error) {
	f, err := os.Open(filepath.Join(dir, snapManifest))
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	js, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err != nil {
		return "", "", err
	}
	var s saved
	if err := s.parse(js); err != nil {
		return "", "", err
	}
	if s.Memory == nil {
		return driver.SnapshotFilesystem, "", nil
	}
	return driver.SnapshotMemory, s.Memory.Engine, nil
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
// The sandbox continues afterwards unless it is to be stopped.
func (in *Instance) save(ctx context.Context, dir string, opts driver.SnapshotOptions, rest string) (m *manifest, err error) {
	err = in.hold(ctx, rest, opts.Stop, func(conn *urpc.Client) (err error) {
		if m, err = in.saveParts(conn, dir, opts); err != nil {
			return err
		}
		if err := in.saveKnown(ctx, m); err != nil {
			return err
		}
		return in.p.opts.Fault("snapshot.saved")
	})
	return m, err
}

// saveKnown records the programs' knowledge about the network: its authority
// and, with memory, its addresses.
func (in *Instance) saveKnown(ctx context.Context, m *manifest) error {
	if in.p.opts.Network == nil {
		return nil
	}
	known, err := in.p.opts.Network.Known(ctx, in.rec.ID)
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
	err := withKernel(ctx, in.box.dir, func(conn *urpc.Client) error {
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
	return in.box.setRest(awake)
}

// stop ends the sandbox because its state is in a snapshot.
func (in *Instance) stop() error {
	if err := in.p.opts.Fault("snapshot.written"); err != nil {
		return err
	}
	if err := in.box.setRest(stopped); err != nil {
		return err
	}
	if err := in.p.opts.Fault("snapshot.stopping"); err != nil {
		return err
	}
	in.end(sandbox.ReasonKilled)
	if !in.box.awaitDeath(killTime) {
		return errors.New("the sandbox's kernel does not end")
	}
	return nil
}

// saveParts makes the kernel write and returns the descriptions of the parts.
func (in *Instance) saveParts(conn *urpc.Client, dir string, opts driver.SnapshotOptions) (*manifest, error) {
	m := &manifest{Format: manifestFormat, Created: time.Now().UTC(), Image: in.rec.Spec.Image, Digest: in.rec.Spec.Digest, Transient: opts.Transient && !opts.Stop}
	if opts.Memory {
		m.Memory = &memory{Engine: in.rec.Engine, Guest: in.rec.Guest, CPU: cpuFeatures(), Mounts: in.rec.Mounts, Group: in.rec.group()}
		if err := in.saveMemory(conn, dir); err != nil {
			return nil, fmt.Errorf("saving the memory: %w", err)
		}
		if err := in.saveGuest(dir, opts.Transient); err != nil {
			return nil, fmt.Errorf("saving the guest's program: %w", err)
		}
	}
	if err := in.p.opts.Fault("snapshot.memory"); err != nil {
		return nil, err
	}
	if err := saveFiles(conn, in.box, dir); err != nil {
		return nil, fmt.Errorf("saving the files: %w", err)
	}
	return m, nil
}

// saveMemory makes the kernel write its state and all of its memory. The kernel
// continues afterwards, even after an error.
func (in *Instance) saveMemory(conn *urpc.Client, dir string) error {
	files, err := createParts(dir, snapPages, snapKernel, snapIndex)
	if err != nil {
		return err
	}
	defer closeAll(files)
	surplus, err := in.allocate(files[0])
	if err != nil {
		return err
	}
	defer surplus()
	files = append(files[1:], files[0]) // in the kernel's order
	err = conn.Call(boot.ContMgrCheckpoint, &control.SaveOpts{
		Metadata:      statefile.CompressionLevelNone.ToMetadata(),
		HavePagesFile: true,
		Resume:        true,
		FilePayload:   urpc.FilePayload{Files: files},
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

// saveMargin is the disk space, besides its memory, for a kernel's data and for
// the writes of its programs meanwhile.
const saveMargin = 16 << 20

// allocate reserves disk space for the memory before the kernel writes, because
// a kernel does not survive running out of space. surplus returns the unused
// space.
func (in *Instance) allocate(pages *os.File) (surplus func(), err error) {
	fd := int(pages.Fd())
	need := max(in.memoryUsed(), 0)
	err = unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, max(need, 1))
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = nil // free space was checked, but is not reserved
	}
	var fs unix.Statfs_t
	if err == nil {
		err = unix.Fstatfs(fd, &fs)
	}
	if err == nil && int64(fs.Bavail)*fs.Bsize < saveMargin {
		err = unix.ENOSPC
	}
	if err != nil {
		return nil, fmt.Errorf("making room for %d bytes: %w", need, err)
	}
	return func() {
		if info, err := pages.Stat(); err == nil {
			_ = pages.Truncate(info.Size()) // frees the space beyond
		}
	}, nil
}

// saveGuest adds the program that the memory needs. A permanent snapshot gets a
// copy: damage to its files must not affect those of sandboxes.
func (in *Instance) saveGuest(dir string, transient bool) error {
	image, err := os.Open(in.box.path(fileGuest))
	if err != nil {
		return err
	}
	defer image.Close()
	if transient {
		return linkOrCopy(image, filepath.Join(dir, snapGuest))
	}
	files, err := createParts(dir, snapGuest)
	if err != nil {
		return err
	}
	_, err = io.Copy(files[0], image)
	return errors.Join(err, files[0].Close())
}

// createParts creates new files for the kernel to write to.
func createParts(dir string, names ...string) (files []*os.File, err error) {
	for _, name := range names {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			closeAll(files)
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// cpuFeatures returns the features of this machine's processor.
var cpuFeatures = sync.OnceValue(func() []string {
	cpuid.Initialize()
	return strings.Fields(cpuid.HostFeatureSet().Fixed().FlagString())
})
