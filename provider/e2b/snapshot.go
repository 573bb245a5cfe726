package e2b

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
)

var (
	_ driver.Snapshotter    = (*Instance)(nil)
	_ driver.SnapshotPauser = (*Provider)(nil)
	_ driver.Restorer       = (*Provider)(nil)
	_ driver.FileRestorer   = (*Provider)(nil)
	_ driver.SnapshotKeeper = (*Provider)(nil)
)

// A snapshot of ours has the name atoll-SCOPE-ID and the tag KIND-SIZE. The
// service reports neither kind nor size.
const namePrefix = "atoll-"

// The kinds in a tag.
const (
	tagFiles  = "files"
	tagMemory = "memory"
)

// making limits how long the cleanup of a failed snapshot may take.
const making = 2 * time.Minute

// shot is the service's description of a snapshot.
type shot struct {
	ID    string   `json:"snapshotID"`
	Names []string `json:"names"`
}

// SnapshotPauses implements driver.SnapshotPauser: the service pauses a sandbox
// while it takes a snapshot, and drops its connections.
func (p *Provider) SnapshotPauses() bool { return true }

// Snapshot implements driver.Snapshotter. The sandbox continues after the
// snapshot. With opts.Stop it is paused first, so that nothing changes between
// the snapshot and its end.
func (in *Instance) Snapshot(ctx context.Context, opts driver.SnapshotOptions) (s driver.Snapshot, err error) {
	if err := ctx.Err(); err != nil {
		return s, err
	}
	if sandbox.ValidateName(opts.ID) != nil {
		return s, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "e2b.snapshot", Subject: "id", Message: "is not a valid id"}
	}
	status, ended, err := in.Ask(ctx)
	if ended {
		return s, guestkit.Gone(in.ID())
	}
	if err != nil {
		return s, err
	}
	// Lock the snapshot's ID, which no sandbox uses.
	l, err := in.p.Lock(ctx, opts.ID)
	if err != nil {
		return s, err
	}
	defer l.Unlock()
	defer func() { _ = l.Remove() }()
	switch _, err := in.p.FindSnapshot(ctx, opts.ID); {
	case err == nil:
		return s, &sandbox.Error{Code: sandbox.CodeAlreadyExists, Op: "e2b.snapshot", Subject: opts.ID, Message: "a snapshot with this ID already exists"}
	case sandbox.CodeOf(err) != sandbox.CodeNotFound:
		return s, err
	}
	if !opts.Stop || status.State == sandbox.Paused {
		s, err = in.take(ctx, opts)
	} else {
		s, err = in.takeStill(ctx, opts)
	}
	if err == nil && opts.Stop {
		err = in.Destroy(ctx)
	}
	return s, err
}

// takeStill pauses the sandbox and takes a snapshot of it. If that fails, the
// sandbox continues.
func (in *Instance) takeStill(ctx context.Context, opts driver.SnapshotOptions) (driver.Snapshot, error) {
	if err := in.p.api.pause(ctx, in.Box, opts.Memory); err != nil {
		return driver.Snapshot{}, in.Explain(ctx, err)
	}
	s, err := in.take(ctx, opts)
	if err != nil {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), making)
		defer cancel()
		err = errors.Join(err, in.Resume(late))
	}
	return s, err
}

// take makes the service write a snapshot. If the caller gave up, the snapshot
// is removed.
func (in *Instance) take(ctx context.Context, opts driver.SnapshotOptions) (driver.Snapshot, error) {
	scope, err := in.p.Scope()
	if err != nil {
		return driver.Snapshot{}, err
	}
	size := int64(1) // of a paused sandbox, which cannot be measured
	if m, err := in.inside.metrics(ctx); err == nil {
		size = max(size, int64(m.DiskUsed))
		if opts.Memory {
			size += int64(m.MemUsed)
		}
	}
	kind := tagFiles
	if opts.Memory {
		kind = tagMemory
	}
	name := fmt.Sprintf("%s%s-%s:%s-%d", namePrefix, scope, opts.ID, kind, size)
	made, err := in.p.api.snapshot(ctx, in.Box, name, opts.Memory)
	if err == nil {
		made.Names = []string{name} // the service may change it
		found, _ := describe(made, scope)
		return driver.Snapshot{Ref: found.Ref, Engine: Name, Size: found.Size}, nil
	}
	if ctx.Err() != nil || sandbox.CodeOf(err) == sandbox.CodeUnavailable {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), making)
		defer cancel()
		if left, err := in.p.FindSnapshot(late, opts.ID); err == nil {
			_ = in.p.RemoveSnapshot(late, left.Ref) // Snapshots lists it if this fails
		}
	}
	return driver.Snapshot{}, in.Explain(ctx, err)
}

// describe converts a snapshot of the service for the driver contract.
func describe(s shot, scope string) (f driver.FoundSnapshot, ours bool) {
	for _, whole := range s.Names {
		name, tag, _ := strings.Cut(whole[strings.LastIndexByte(whole, '/')+1:], ":")
		id, ok := strings.CutPrefix(name, namePrefix+scope+"-")
		kind, size, _ := strings.Cut(tag, "-")
		if !ok || sandbox.ValidateName(id) != nil {
			continue
		}
		f = driver.FoundSnapshot{ID: id, Ref: driver.SnapshotRef{Provider: Name, Kind: driver.SnapshotFilesystem, Data: s.ID}}
		if kind == tagMemory {
			f.Ref.Kind = driver.SnapshotMemory
		}
		f.Size, _ = strconv.ParseInt(size, 10, 64)
		return f, true
	}
	return f, false
}

// FindSnapshot implements driver.SnapshotKeeper.
func (p *Provider) FindSnapshot(ctx context.Context, id string) (driver.Snapshot, error) {
	for f, err := range p.Snapshots(ctx) {
		if err != nil {
			return driver.Snapshot{}, err
		}
		if f.ID == id {
			return driver.Snapshot{Ref: f.Ref, Engine: Name, Size: f.Size}, nil
		}
	}
	return driver.Snapshot{}, lost(nil)
}

// lost is the error for a missing snapshot.
func lost(err error) error {
	return &sandbox.Error{
		Code: sandbox.CodeNotFound, Op: "e2b.snapshot", Subject: "snapshot", Message: "the service has no such snapshot", Cause: errors.Join(driver.ErrSnapshotLost, err),
	}
}

// Snapshots implements driver.SnapshotKeeper.
func (p *Provider) Snapshots(ctx context.Context) iter.Seq2[driver.FoundSnapshot, error] {
	return func(yield func(driver.FoundSnapshot, error) bool) {
		scope, err := p.Scope()
		var items []shot
		if err == nil {
			items, err = all[shot](ctx, p.api, "/snapshots", url.Values{})
		}
		if err != nil {
			yield(driver.FoundSnapshot{}, err)
			return
		}
		for _, s := range items {
			if f, ours := describe(s, scope); ours && !yield(f, nil) {
				return
			}
		}
	}
}

// checkRef refuses a reference that this provider did not make.
func checkRef(ref driver.SnapshotRef) error {
	id, tag, _ := strings.Cut(ref.Data, ":")
	if ref.Provider == Name && id != "" && len(ref.Data) <= 2*sandbox.MaxLabelLen && !strings.ContainsAny(id+tag, "?#%\\") && strings.Trim(id, "./") == id && !strings.Contains(id, "..") {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "e2b.snapshot", Subject: "snapshot", Message: "the reference belongs to another provider"}
}

// RemoveSnapshot implements driver.SnapshotKeeper.
func (p *Provider) RemoveSnapshot(ctx context.Context, ref driver.SnapshotRef) error {
	if err := checkRef(ref); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	id, _, _ := strings.Cut(ref.Data, ":")
	err := p.api.Call(ctx, http.MethodDelete, "/templates/"+url.PathEscape(id), nil, nil)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return nil
	}
	return err
}

// Restore implements driver.Restorer. To the service a snapshot is a template.
func (p *Provider) Restore(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, driver.Restored, error) {
	none := driver.Restored{}
	if err := checkRef(ref); err != nil {
		return nil, none, err
	}
	in, err := p.copy(ctx, spec, ref, false)
	if err != nil {
		return nil, none, err
	}
	return in, driver.Restored{Memory: ref.Kind == driver.SnapshotMemory}, nil
}

// copy makes a sandbox from a snapshot. With bare, its processes are ended: the
// service cannot discard the memory.
func (p *Provider) copy(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef, bare bool) (driver.Instance, error) {
	in, err := p.make(ctx, spec, ref.Data, func(ctx context.Context, in hosted.Inside) error {
		_, err := in.Run(ctx, hosted.Inherited(bare))
		return err
	})
	if sandbox.CodeOf(err) == sandbox.CodeNotFound || sandbox.CodeOf(err) == sandbox.CodeInvalid {
		err = p.whyNot(ctx, ref, err)
	}
	return in, err
}

// whyNot returns why no sandbox was made from a snapshot: the snapshot is
// missing if the service does not list it.
func (p *Provider) whyNot(ctx context.Context, ref driver.SnapshotRef, err error) error {
	for f, failed := range p.Snapshots(ctx) {
		if failed != nil || f.Ref.Data == ref.Data {
			return errors.Join(err, failed)
		}
	}
	return lost(err)
}

// RestoreFiles implements driver.FileRestorer.
func (p *Provider) RestoreFiles(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, error) {
	if err := checkRef(ref); err != nil {
		return nil, err
	}
	return p.copy(ctx, spec, ref, true)
}

// pauseWait limits requests to pause or to take a snapshot. The service answers
// them when everything is written.
const pauseWait = 5 * time.Minute

// pause pauses a sandbox, with or without its memory. A paused sandbox is
// success.
func (a *api) pause(ctx context.Context, id string, memory bool) error {
	ctx, cancel := context.WithTimeout(ctx, pauseWait)
	defer cancel()
	err := a.post(ctx, id, "pause", map[string]bool{"memory": memory})
	if sandbox.CodeOf(err) == sandbox.CodeConflict {
		if b, asked := a.get(ctx, id); asked == nil && b.State == statePaused {
			err = nil
		}
	}
	return err
}

func (a *api) snapshot(ctx context.Context, id, name string, memory bool) (s shot, err error) {
	ctx, cancel := context.WithTimeout(ctx, pauseWait)
	defer cancel()
	err = a.Call(ctx, http.MethodPost, "/sandboxes/"+id+"/snapshots", map[string]any{"name": name, "memory": memory}, &s)
	if err == nil && s.ID == "" {
		err = a.Strange("the service's response contains no snapshot id")
	}
	return s, err
}
