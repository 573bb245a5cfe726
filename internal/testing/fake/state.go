package fake

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"os"
	"path"
	"path/filepath"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

var (
	_ driver.Pauser      = (*instance)(nil)
	_ driver.Snapshotter = (*instance)(nil)
	_ driver.Restorer    = (*Provider)(nil)

	_ driver.SnapshotKeeper   = (*Provider)(nil)
	_ driver.SnapshotCopier   = (*Provider)(nil)
	_ driver.SnapshotExporter = (*Provider)(nil)
)

// Pause freezes the sandbox.
func (i *instance) Pause(ctx context.Context) error {
	if err := errors.Join(i.provider.begin(ctx, "pause"), i.gone("pause")); err != nil {
		return err
	}
	i.freeze()
	return nil
}

// Resume continues the sandbox.
func (i *instance) Resume(ctx context.Context) error {
	if err := errors.Join(i.provider.begin(ctx, "resume"), i.gone("resume")); err != nil {
		return err
	}
	i.thaw()
	return nil
}

// The files of a snapshot: all files of the sandbox except devices, and
// checksums.
const (
	treeFile     = "tree.tar"
	manifestFile = "fake.json"
	engine       = "fake 1"
)

type manifest struct {
	Engine string `json:"engine"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

var errNoSnapshots = fail(sandbox.CodeUnsupported, "snapshot", "snapshot", "this fake keeps no snapshots")

// Snapshot saves the files of the sandbox. Processes are goroutines and cannot
// be saved.
func (i *instance) Snapshot(ctx context.Context, opts driver.SnapshotOptions) (driver.Snapshot, error) {
	if err := errors.Join(i.provider.begin(ctx, "snapshot"), i.gone("snapshot")); err != nil {
		return driver.Snapshot{}, err
	}
	if i.provider.snapshots == nil {
		return driver.Snapshot{}, errNoSnapshots
	}
	if opts.Memory {
		return driver.Snapshot{}, fail(sandbox.CodeUnsupported, "snapshot", string(i.spec.ID), "the fake keeps no memory")
	}
	if i.freeze() {
		defer i.thaw()
	}
	dir, err := i.provider.snapshots.Draft(opts.ID)
	if err != nil {
		return driver.Snapshot{}, err
	}
	var snap driver.Snapshot
	if err = i.writeTree(ctx, dir); err == nil {
		snap, err = i.provider.snapshots.Finish(ctx, opts)
	}
	if err != nil {
		return driver.Snapshot{}, errors.Join(err, i.provider.snapshots.Discard(opts.ID))
	}
	if opts.Stop {
		i.end(killedExit("its state was written down and it was ended"))
	}
	return snap, nil
}

func (i *instance) writeTree(ctx context.Context, dir string) (err error) {
	f, err := os.OpenFile(filepath.Join(dir, treeFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sum := sha256.New()
	out := io.MultiWriter(f, sum)
	e := &exporter{
		instance: i, ctx: ctx, out: out, tar: tar.NewWriter(out), top: "/", base: ".",
		exclude: []string{"dev"}, seen: map[uint64]string{},
	}
	if err := errors.Join(e.add(""), e.tar.Close()); err != nil {
		return i.fileError("snapshot", "/", err)
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	text, err := json.Marshal(manifest{Engine: engine, Size: info.Size(), SHA256: hex.EncodeToString(sum.Sum(nil))})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, manifestFile), text, 0o600)
}

// Restore makes a sandbox with the files of a snapshot.
func (p *Provider) Restore(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, driver.Restored, error) {
	none := driver.Restored{}
	if err := p.begin(ctx, "restore"); err != nil {
		return nil, none, err
	}
	if p.bare || p.snapshots == nil {
		return nil, none, errNoSnapshots
	}
	if err := p.supports(spec); err != nil {
		return nil, none, err
	}
	dir, release, err := p.snapshots.Use(ctx, ref)
	if err != nil {
		return nil, none, err
	}
	defer release()
	if err := verifyTree(dir); err != nil {
		return nil, none, err
	}
	plain := *spec
	plain.Workdir = "" // it may be there already in the files to come
	b, err := newFakeSandbox(&plain)
	if err != nil {
		return nil, none, err
	}
	b.spec.Workdir = spec.Workdir
	if err := p.fill(ctx, b, dir); err != nil {
		return nil, none, err
	}
	inst, err := p.add(b)
	return inst, none, err
}

func damaged(what string) error {
	return fail(sandbox.CodeInvalid, "restore", "snapshot", "the snapshot is damaged: "+what)
}

// describeTree checks whether a snapshot is complete.
func describeTree(dir string) (driver.SnapshotKind, string, error) {
	text, err := os.ReadFile(filepath.Join(dir, manifestFile))
	var m manifest
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err == nil && m.Engine != engine {
		err = damaged("it has no manifest")
	}
	return driver.SnapshotFilesystem, m.Engine, err
}

// FindSnapshot implements driver.SnapshotKeeper.
func (p *Provider) FindSnapshot(ctx context.Context, id string) (driver.Snapshot, error) {
	if p.snapshots == nil {
		return driver.Snapshot{}, errNoSnapshots
	}
	return p.snapshots.Find(ctx, id)
}

// RemoveSnapshot implements driver.SnapshotKeeper.
func (p *Provider) RemoveSnapshot(ctx context.Context, ref driver.SnapshotRef) error {
	if p.snapshots == nil {
		return errNoSnapshots
	}
	return p.snapshots.Remove(ctx, ref)
}

// Snapshots implements driver.SnapshotKeeper.
func (p *Provider) Snapshots(ctx context.Context) iter.Seq2[driver.FoundSnapshot, error] {
	if p.snapshots == nil {
		return func(func(driver.FoundSnapshot, error) bool) {}
	}
	return p.snapshots.List(ctx)
}

// CopySnapshot implements driver.SnapshotCopier.
func (p *Provider) CopySnapshot(ctx context.Context, ref driver.SnapshotRef, id string) (driver.Snapshot, error) {
	if p.snapshots == nil {
		return driver.Snapshot{}, errNoSnapshots
	}
	return p.snapshots.Copy(ctx, ref, id)
}

// ExportSnapshot implements driver.SnapshotExporter.
func (p *Provider) ExportSnapshot(ctx context.Context, ref driver.SnapshotRef, w io.Writer) error {
	if p.snapshots == nil {
		return errNoSnapshots
	}
	return p.snapshots.Export(ctx, ref, w)
}

// ImportSnapshot implements driver.SnapshotExporter.
func (p *Provider) ImportSnapshot(ctx context.Context, id string, r io.Reader) (driver.Snapshot, error) {
	if p.snapshots == nil {
		return driver.Snapshot{}, errNoSnapshots
	}
	return p.snapshots.Import(ctx, id, r)
}

// verifyTree checks that a snapshot is as it was written.
func verifyTree(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, manifestFile))
	var m manifest
	if err != nil || json.Unmarshal(text, &m) != nil || m.Engine != engine {
		return damaged("it has no manifest")
	}
	f, err := os.Open(filepath.Join(dir, treeFile))
	if err != nil {
		return damaged("it has no files")
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	if err != nil {
		return damaged("its files cannot be read")
	}
	if n != m.Size || hex.EncodeToString(sum.Sum(nil)) != m.SHA256 {
		return damaged("its files were changed")
	}
	return nil
}

// fill replaces the tree of a new sandbox with a snapshot's, except devices,
// and sets its own identity.
func (p *Provider) fill(ctx context.Context, b *fakeSandbox, dir string) error {
	f, err := os.Open(filepath.Join(dir, treeFile))
	if err != nil {
		return damaged("it has no files")
	}
	defer f.Close()
	names, err := b.files.Names("/")
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == "dev" {
			continue
		}
		if err := b.files.RemoveAll("/" + name); err != nil {
			return err
		}
	}
	m := &importer{instance: &instance{p, b}, ctx: ctx, top: "/", tar: tar.NewReader(f)}
	if err := m.run(); err != nil {
		return b.fileError("restore", m.name, err)
	}
	return b.identify()
}

// identify makes the files that tell who a sandbox is its own.
func (s *fakeSandbox) identify() error {
	if err := s.put("/etc/hostname", s.hostname+"\n", 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
		return s.fileError("restore", "/etc/hostname", err)
	}
	if s.spec.Workdir == "" {
		return nil
	}
	return s.fileError("restore", s.spec.Workdir, s.mkdirAll(path.Clean(s.spec.Workdir), 0o755, owner{}))
}
