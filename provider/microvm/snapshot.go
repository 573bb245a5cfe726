package microvm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/sandbox"
)

// A snapshot consists of the data of the disk with the writable layer, without
// its holes, a description, and with memory the state that QEMU writes when it
// migrates a machine.
const (
	snapDescription = "machine.json"
	snapDisk        = "files"
	snapMemory      = "memory"
)

// saved describes a snapshot.
type saved struct {
	Image     string            `json:"image"`
	Digest    string            `json:"digest"`
	Engine    string            `json:"engine"`
	Memory    bool              `json:"memory,omitempty"`
	Shape     shape             `json:"shape"`
	Resources sandbox.Resources `json:"resources"`
	Known     Known             `json:"known,omitzero"`
	Disk      int64             `json:"disk"`    // bytes, with holes
	Extents   []extent          `json:"extents"` // where the data belongs, in order

	dir string
}

// extent is a range of a disk with data.
type extent struct {
	At     int64 `json:"at"`
	Length int64 `json:"length"`
}

func readSaved(dir string) (*saved, error) {
	text, err := os.ReadFile(filepath.Join(dir, snapDescription))
	if err != nil {
		return nil, err
	}
	s := &saved{dir: dir}
	return s, json.Unmarshal(text, s)
}

// describeSnapshot implements snapshotstore.Describe.
func describeSnapshot(dir string) (driver.SnapshotKind, string, error) {
	s, err := readSaved(dir)
	if err != nil {
		return "", "", err
	}
	if s.Memory {
		return driver.SnapshotMemory, s.Engine, nil
	}
	return driver.SnapshotFilesystem, "", nil
}

// Pause implements driver.Pauser.
func (in *Instance) Pause(ctx context.Context) error {
	asleep, err := in.Sleeps(ctx)
	if err != nil || asleep {
		return err
	}
	if err := in.stateDir.freeze(ctx); err != nil {
		return in.ended(ctx, err)
	}
	return nil
}

// syncTime limits writing the files of a sandbox to its disk.
const syncTime = 2 * time.Minute

// sync makes the guest write its files to the disk. Without it, a snapshot would
// lack what was just written.
func (in *Instance) sync(ctx context.Context) error {
	syncing, cancel := context.WithTimeout(ctx, syncTime)
	defer cancel()
	client, err := in.Reach(syncing)
	if err == nil {
		err = client.Sync(syncing)
	}
	if err != nil && ctx.Err() == nil {
		err = &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "microvm.snapshot", Subject: string(in.id), Message: "the guest did not write its files to the disk", Cause: err,
		}
	}
	return err
}

// Resume implements driver.Pauser.
func (in *Instance) Resume(ctx context.Context) error {
	asleep, err := in.Sleeps(ctx)
	if err != nil || !asleep {
		return err
	}
	if err := in.stateDir.thaw(ctx); err != nil {
		return in.ended(ctx, err)
	}
	if door, err := dialIn(ctx, in.stateDir.dir, guest.PortDoor); err == nil {
		_ = guest.SetTime(door)
		door.Close()
	}
	return nil
}

// ended replaces the error of a call to a machine that has ended.
func (in *Instance) ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if _, ended, _ := in.Ask(ctx); ended {
		return gone(in.id)
	}
	return err
}

// Snapshot implements driver.Snapshotter.
func (in *Instance) Snapshot(ctx context.Context, opts driver.SnapshotOptions) (driver.Snapshot, error) {
	asleep, err := in.Sleeps(ctx)
	if err != nil {
		return driver.Snapshot{}, err
	}
	dir, err := in.p.snapshots.Draft(opts.ID)
	if err != nil {
		return driver.Snapshot{}, err
	}
	snap, err := in.capture(ctx, dir, opts, asleep)
	if err != nil {
		err = errors.Join(in.ended(ctx, err), in.p.snapshots.Discard(opts.ID))
		return driver.Snapshot{}, err
	}
	snap.Engine = in.rec.Engine
	return snap, nil
}

// capture writes a draft while the machine is stopped, and completes it. With
// opts.Stop, the machine ends only after that.
func (in *Instance) capture(ctx context.Context, dir string, opts driver.SnapshotOptions, asleep bool) (snap driver.Snapshot, err error) {
	if asleep { // what is in the memory alone must be on the disk
		if err := in.stateDir.thaw(ctx); err != nil {
			return snap, err
		}
	}
	err = in.sync(ctx)
	if err == nil || asleep {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		err = errors.Join(err, in.stateDir.freeze(late))
	}
	if err != nil {
		return snap, err
	}
	awake := func() error {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		if asleep {
			return nil
		}
		return in.stateDir.thaw(late)
	}
	err = in.save(ctx, dir, opts)
	if err != nil || !opts.Stop {
		err = errors.Join(err, awake())
	}
	if err == nil {
		snap, err = in.p.snapshots.Finish(ctx, opts)
		if err != nil && opts.Stop {
			err = errors.Join(err, awake())
		}
	}
	if err == nil && opts.Stop {
		err = in.stop()
	}
	return snap, err
}

// stop ends the machine because its state is in a snapshot.
func (in *Instance) stop() error {
	err := in.stateDir.update(func(r *record) error {
		r.Stopped = true
		return nil
	})
	if err != nil {
		return err
	}
	in.rec.Machine.kill()
	if !in.rec.Machine.awaitEnd(patience) {
		return errors.New("the virtual machine does not end")
	}
	return nil
}

// save writes the parts of a snapshot of a stopped machine.
func (in *Instance) save(ctx context.Context, dir string, opts driver.SnapshotOptions) error {
	r := in.current()
	s := &saved{Image: r.Image, Digest: r.Digest, Engine: r.Engine, Memory: opts.Memory, Shape: r.Shape, Resources: r.Resources}
	if in.p.opts.Network != nil && r.Shape.Link {
		known, err := in.p.opts.Network.Known(ctx, in.id)
		if err != nil {
			return fmt.Errorf("asking for the names that the sandbox knows: %w", err)
		}
		s.Known.CA = known.CA
		if opts.Memory {
			s.Known.Names = known.Names
		}
	}
	if opts.Memory {
		if err := in.saveMemory(ctx, filepath.Join(dir, snapMemory)); err != nil {
			return fmt.Errorf("saving the memory: %w", err)
		}
	}
	if err := s.saveDisk(ctx, in.stateDir.path(fileDisk), filepath.Join(dir, snapDisk)); err != nil {
		return fmt.Errorf("saving the disk: %w", err)
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, snapDescription), text, 0o600)
}

// saveMemory makes QEMU write the state of the machine to a file.
func (in *Instance) saveMemory(ctx context.Context, file string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	return in.stateDir.withMonitor(ctx, func(m *monitor) error {
		if err := m.call("getfd", map[string]string{"fdname": "memory"}, nil, int(f.Fd())); err != nil {
			return err
		}
		limits := map[string]any{"max-bandwidth": int64(64) << 30}
		if err := m.call("migrate-set-parameters", limits, nil); err != nil {
			return err
		}
		if err := m.call("migrate", map[string]string{"uri": "fd:memory"}, nil); err != nil {
			return err
		}
		return m.awaitMigration(ctx)
	})
}

// awaitMigration waits until the state was written or read.
func (m *monitor) awaitMigration(ctx context.Context) error {
	for {
		var s struct {
			Status string
			Error  string `json:"error-desc"`
		}
		if err := m.call("query-migrate", nil, &s); err != nil {
			return err
		}
		switch s.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("QEMU: %s %s", s.Status, s.Error)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			_ = m.call("migrate_cancel", nil, nil)
			return ctx.Err()
		}
	}
}

// copyStep is how many bytes are copied between two looks at the context.
const copyStep = 64 << 20

// saveDisk writes the data of a disk to a file.
func (s *saved) saveDisk(ctx context.Context, disk, to string) (err error) {
	from, err := os.Open(disk)
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	s.Disk = info.Size()
	for at := int64(0); at < s.Disk; {
		if err := ctx.Err(); err != nil {
			return err
		}
		begin, err := from.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // only a hole follows
		}
		if err != nil {
			return err
		}
		end, err := from.Seek(begin, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		at = min(end, begin+copyStep)
		if _, err := io.Copy(out, io.NewSectionReader(from, begin, at-begin)); err != nil {
			return err
		}
		s.Extents = append(s.Extents, extent{begin, at - begin})
	}
	return nil
}

// loadDisk makes the disk of a snapshot. The caller closes it.
func (s *saved) loadDisk(ctx context.Context, file string) (_ *os.File, err error) {
	from, err := os.Open(filepath.Join(s.dir, snapDisk))
	if err != nil {
		return nil, err
	}
	defer from.Close()
	out, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	err = out.Truncate(s.Disk)
	for _, e := range s.Extents {
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			_, err = io.CopyN(io.NewOffsetWriter(out, e.At), from, e.Length)
		}
	}
	if err != nil {
		out.Close()
		return nil, err
	}
	return out, nil
}

// Restore implements driver.Restorer.
func (p *Provider) Restore(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, driver.Restored, error) {
	in, restored, err := p.restore(ctx, spec, ref, true)
	if err != nil {
		return nil, driver.Restored{}, canceled(ctx, err)
	}
	return in, restored, nil
}

// RestoreFiles implements driver.FileRestorer.
func (p *Provider) RestoreFiles(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, error) {
	in, _, err := p.restore(ctx, spec, ref, false)
	if err != nil {
		return nil, canceled(ctx, err)
	}
	return in, nil
}

func (p *Provider) restore(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef, memory bool) (*Instance, driver.Restored, error) {
	var done driver.Restored
	if err := ctx.Err(); err != nil {
		return nil, done, err
	}
	p.sweepOnce()
	dir, release, err := p.snapshots.Use(ctx, ref)
	if err != nil {
		return nil, done, err
	}
	defer release()
	s, err := readSaved(dir)
	if err != nil {
		return nil, done, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "microvm.restore", Subject: ref.Data, Message: "the snapshot cannot be read", Cause: errors.Join(driver.ErrSnapshotLost, err)}
	}
	like := *spec
	like.Image = s.Image
	if err := p.supported(&like); err != nil {
		return nil, done, err
	}
	img, err := p.opts.Images.Get(ctx, s.Digest, image.GetOptions{})
	if err != nil {
		img, err = p.opts.Images.Get(ctx, p.image(s.Image), image.GetOptions{})
	}
	if err != nil {
		return nil, done, err
	}
	if img.Digest != s.Digest {
		return nil, done, &sandbox.Error{
			Code: sandbox.CodeConflict, Op: "microvm.restore", Subject: s.Image, Message: "the image is not the one that the snapshot was made with: " + s.Digest,
		}
	}
	m := &creation{p: p, spec: &like, img: img, from: s, wantMemory: memory && s.Memory}
	in, err := m.make(ctx)
	if err != nil {
		return nil, done, err
	}
	done.Memory, done.Why = m.memory, m.why
	return in, done, nil
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
