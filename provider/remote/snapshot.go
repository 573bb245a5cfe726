package remote

import (
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// snapshots implements driver.Snapshotter. The other daemon stores a snapshot
// under its ID here.
type snapshots struct {
	*remoteSandbox
	can driver.Capabilities
}

// Snapshot implements driver.Snapshotter.
func (s snapshots) Snapshot(ctx context.Context, opts driver.SnapshotOptions) (snap driver.Snapshot, err error) {
	switch {
	case ctx.Err() != nil:
		return snap, ctx.Err()
	case sandbox.ValidateName(opts.ID) != nil:
		return snap, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "remote.snapshot", Subject: "id", Message: "is not a valid id"}
	case opts.Memory && !s.can.Memory:
		return snap, s.unsupported("memory", "the snapshots of the other daemon's provider hold no memory")
	}
	back, err := s.still(ctx, opts)
	if err != nil {
		return snap, err
	}
	if snap, err = s.take(ctx, opts); err == nil && opts.Stop {
		if err = s.Destroy(ctx); err == nil {
			return snap, nil
		}
		err = errors.Join(err, s.p.RemoveSnapshot(context.WithoutCancel(ctx), snap.Ref))
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleaning)
	defer cancel()
	return snap, errors.Join(err, back(late))
}

// still brings the sandbox into the state in which the other daemon writes the
// snapshot, and returns a function that undoes this. It refuses a sandbox that
// is paused in memory. A sandbox that is to end is paused to disk, so that no
// change after the snapshot is lost.
func (s snapshots) still(ctx context.Context, opts driver.SnapshotOptions) (back func(context.Context) error, err error) {
	state, err := s.state(ctx)
	if err != nil {
		return nil, err
	}
	stands := pauses{s.remoteSandbox}
	was := func(context.Context) error { return nil }
	if state == sandbox.Paused {
		if err := stands.Resume(ctx); err != nil {
			return nil, err
		}
		was = stands.Pause
	}
	switch {
	case !opts.Stop:
		return was, nil
	case opts.Memory:
		if _, err := s.s.Pause(ctx, sandbox.PauseDisk); err != nil {
			return nil, errors.Join(s.explain(ctx, err), was(context.WithoutCancel(ctx)))
		}
		return func(ctx context.Context) error { return errors.Join(stands.Resume(ctx), was(ctx)) }, nil
	}
	if _, err := s.s.Stop(ctx, 0); err != nil {
		return nil, errors.Join(s.explain(ctx, err), was(context.WithoutCancel(ctx)))
	}
	return func(ctx context.Context) error {
		_, err := s.s.Start(ctx)
		return errors.Join(s.explain(ctx, err), was(ctx))
	}, nil
}

func (s snapshots) unsupported(subject, message string) error {
	return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "remote.snapshot", Subject: subject, Message: message}
}

// take makes the other daemon write a snapshot.
func (s snapshots) take(ctx context.Context, opts driver.SnapshotOptions) (driver.Snapshot, error) {
	scope, err := s.p.scope()
	if err != nil {
		return driver.Snapshot{}, err
	}
	now, err := s.p.client.Get(ctx, string(s.s.ID()))
	if err != nil {
		return driver.Snapshot{}, s.explain(ctx, err)
	}
	labels := map[string]string{labelScope: scope, labelID: opts.ID}
	for k, v := range now.Info().Labels {
		if strings.HasPrefix(k, labelEnv) {
			labels[k] = v
		}
	}
	made, err := s.s.Snapshot(ctx, durable.SnapshotRequest{Name: opts.ID, Memory: opts.Memory, Labels: labels})
	if err != nil {
		err = s.explain(ctx, err)
		if code := sandbox.CodeOf(err); code != sandbox.CodeAlreadyExists && (ctx.Err() != nil || code == sandbox.CodeUnavailable) {
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleaning)
			defer cancel()
			_ = s.p.client.RemoveSnapshot(late, opts.ID) // List shows it if this fails
		}
		return driver.Snapshot{}, err
	}
	return described(&made), nil
}

func described(s *durable.Snapshot) driver.Snapshot {
	ref := driver.SnapshotRef{Provider: Name, Kind: driver.SnapshotFilesystem, Data: s.ID}
	if s.Memory {
		ref.Kind = driver.SnapshotMemory
	}
	return driver.Snapshot{Ref: ref, Engine: cmp.Or(s.Engine, Name), Size: s.Size}
}

// Restore implements driver.Restorer.
func (p *Provider) Restore(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, driver.Restored, error) {
	snap, err := p.snapshot(ctx, ref)
	if err != nil {
		return nil, driver.Restored{}, err
	}
	in, err := p.create(ctx, spec, &snap)
	if err != nil {
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			if _, gone := p.snapshot(ctx, ref); gone != nil { // otherwise its image is missing, for example
				err = gone
			}
		}
		return nil, driver.Restored{}, err
	}
	return in, driver.Restored{Memory: snap.Memory}, nil
}

// RestoreFiles implements driver.FileRestorer. The other daemon always restores
// memory if there is any, so the sandbox is then stopped and started, which
// keeps only its files.
func (p *Provider) RestoreFiles(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, error) {
	in, how, err := p.Restore(ctx, spec, ref)
	if err != nil || !how.Memory {
		return in, err
	}
	b, _ := driver.As[*remoteSandbox](in)
	if _, err = b.s.Stop(ctx, 0); err == nil {
		_, err = b.s.Start(ctx)
	}
	if err == nil {
		return in, nil
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleaning)
	defer cancel()
	return nil, errors.Join(b.explain(ctx, err), b.Destroy(late))
}

// snapshot looks up a reference. A malformed one is CodeInvalid.
func (p *Provider) snapshot(ctx context.Context, ref driver.SnapshotRef) (s durable.Snapshot, err error) {
	if err := checkRef(ref); err != nil {
		return s, err
	}
	return p.lookup(ctx, ref.Data)
}

func checkRef(ref driver.SnapshotRef) error {
	if ref.Provider != Name || sandbox.ValidateName(ref.Data) != nil {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "remote.snapshot", Subject: "snapshot", Message: "the reference belongs to another provider"}
	}
	return nil
}

// lookup finds a complete snapshot by its name or ID on the other daemon.
func (p *Provider) lookup(ctx context.Context, name string) (s durable.Snapshot, err error) {
	switch {
	case ctx.Err() != nil:
		return s, ctx.Err()
	case p.client == nil:
		return s, errNoAddress
	}
	s, err = p.client.GetSnapshot(ctx, name)
	if err == nil && !s.Ready {
		err = &sandbox.Error{Code: sandbox.CodeNotFound, Subject: name, Message: "the snapshot is not complete"}
	}
	if sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return s, p.explain(err)
	}
	if gone := p.absent(ctx, sandbox.ID(name)); sandbox.CodeOf(gone) != sandbox.CodeGone {
		return s, gone
	}
	return s, lost(err)
}

// lost returns the error for a missing snapshot.
func lost(err error) error {
	return &sandbox.Error{Code: sandbox.CodeNotFound, Op: "remote.snapshot", Subject: "snapshot", Message: "the other daemon has no such snapshot", Cause: errors.Join(driver.ErrSnapshotLost, err)}
}

// FindSnapshot implements driver.SnapshotKeeper.
func (p *Provider) FindSnapshot(ctx context.Context, id string) (driver.Snapshot, error) {
	s, err := p.lookup(ctx, id)
	if err != nil {
		return driver.Snapshot{}, err
	}
	return described(&s), nil
}

// RemoveSnapshot implements driver.SnapshotKeeper.
func (p *Provider) RemoveSnapshot(ctx context.Context, ref driver.SnapshotRef) error {
	if err := checkRef(ref); err != nil {
		return err
	}
	if p.client == nil {
		return errNoAddress
	}
	err := repeat(ctx, func() error { return p.client.RemoveSnapshot(ctx, ref.Data) })
	if sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return p.explain(err)
	}
	if gone := p.absent(ctx, sandbox.ID(ref.Data)); sandbox.CodeOf(gone) != sandbox.CodeGone {
		return gone
	}
	return nil
}

// Lender is a Provider whose snapshots may leave the other daemon, for others of
// its kind. Those of other Providers stay there: it may be a person's machine.
type Lender struct {
	*Provider
	Images Images // that may be sent to the other daemon; nil: none
}

var _ driver.SnapshotExporter = Lender{}

// ExportSnapshot implements driver.SnapshotExporter.
func (p Lender) ExportSnapshot(ctx context.Context, ref driver.SnapshotRef, w io.Writer) error {
	s, err := p.snapshot(ctx, ref)
	if err != nil {
		return err
	}
	err = p.client.ExportSnapshot(ctx, s.ID, w)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		if _, gone := p.snapshot(ctx, ref); gone != nil {
			return gone
		}
		err = &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "remote.snapshot", Subject: p.host, Message: "the other daemon cannot export snapshots: its release is older"}
	}
	return p.explain(err)
}

// ImportSnapshot implements driver.SnapshotExporter.
func (p Lender) ImportSnapshot(ctx context.Context, id string, r io.Reader) (driver.Snapshot, error) {
	switch {
	case ctx.Err() != nil:
		return driver.Snapshot{}, ctx.Err()
	case p.client == nil:
		return driver.Snapshot{}, errNoAddress
	}
	scope, err := p.scope()
	if err != nil {
		return driver.Snapshot{}, err
	}
	s, err := p.client.ImportSnapshot(ctx, id, map[string]string{labelScope: scope, labelID: id}, r)
	if err != nil {
		return driver.Snapshot{}, p.explain(err)
	}
	return described(&s), nil
}

// Snapshots implements driver.SnapshotKeeper.
func (p *Provider) Snapshots(ctx context.Context) iter.Seq2[driver.FoundSnapshot, error] {
	return func(yield func(driver.FoundSnapshot, error) bool) {
		scope, err := p.scope()
		if err == nil && p.client == nil {
			err = errNoAddress
		}
		if err != nil {
			yield(driver.FoundSnapshot{}, err)
			return
		}
		for s, err := range p.client.Snapshots(ctx, map[string]string{labelScope: scope}) {
			if err != nil {
				yield(driver.FoundSnapshot{}, p.explain(err))
				return
			}
			found := driver.FoundSnapshot{ID: s.Labels[labelID], Ref: described(&s).Ref, Used: s.Created}
			if s.Ready {
				found.Size = s.Size
			}
			if !yield(found, nil) {
				return
			}
		}
	}
}
