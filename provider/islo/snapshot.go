package islo

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/records"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// saved is the service's description of a snapshot. Snapshots are found by name.
type saved struct {
	Name    string    `json:"name"`
	Status  string    `json:"status"`
	Size    int64     `json:"size_bytes"`
	Created time.Time `json:"created_at"`
}

// capturing limits how long a snapshot may take.
const capturing = 15 * time.Minute

// state reports whether a snapshot is complete, and whether it still can be.
func (s saved) state() (ready, coming bool) {
	switch s.Status {
	case "ready", "completed", "available", "active":
		return true, false
	case "saving", "creating", "pending":
		return false, true
	}
	return false, false
}

func (s saved) describe() driver.Snapshot {
	return driver.Snapshot{Ref: driver.SnapshotRef{Provider: Name, Kind: driver.SnapshotFilesystem, Data: s.Name}, Engine: Name, Size: s.Size}
}

func lost(id, message string) error {
	return &sandbox.Error{Code: sandbox.CodeNotFound, Subject: id, Message: message, Cause: driver.ErrSnapshotLost}
}

func (a *api) snapshot(ctx context.Context, name string) (s saved, err error) {
	err = a.Call(ctx, http.MethodGet, "/snapshots/"+name, nil, &s)
	switch {
	case missing(err):
		err = lost(name, "the service has no such snapshot")
	case err == nil && s.Name != name:
		err = a.Strange("the service answers for another snapshot")
	}
	return s, err
}

// forget removes a snapshot. A missing snapshot is success.
func (a *api) forget(ctx context.Context, name string) error {
	if err := a.Remove(ctx, "/snapshots/"+name); !missing(err) {
		return err
	}
	return nil
}

// Snapshot implements driver.Snapshotter. The service saves running sandboxes.
// It is not known whether it saves memory, so a snapshot counts as files only.
func (in *Instance) Snapshot(ctx context.Context, opts driver.SnapshotOptions) (driver.Snapshot, error) {
	if err := sandbox.ValidateName(opts.ID); err != nil {
		return driver.Snapshot{}, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "islo.snapshot", Message: "the ID is invalid", Cause: err}
	}
	if opts.Memory {
		return driver.Snapshot{}, &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "islo.snapshot", Message: "the service does not guarantee to save memory", Hint: "save the files only"}
	}
	if err := ctx.Err(); err != nil {
		return driver.Snapshot{}, err
	}
	if _, ended := in.Ended(); ended {
		return driver.Snapshot{}, guestkit.Gone(in.ID())
	}
	l, err := in.p.saved.Lock(ctx, opts.ID)
	if err != nil {
		return driver.Snapshot{}, err
	}
	return records.Finish(ctx, &in.p.Work, func() (driver.Snapshot, error) {
		defer l.Unlock()
		defer func() { _ = l.Remove() }() // only a lock
		return in.capture(ctx, opts)
	})
}

func (in *Instance) capture(ctx context.Context, opts driver.SnapshotOptions) (driver.Snapshot, error) {
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), capturing)
	defer cancel()
	name, err := in.p.api.own(opts.ID)
	if err != nil {
		return driver.Snapshot{}, err
	}
	switch _, err := in.p.api.snapshot(asking, name); {
	case err == nil:
		return driver.Snapshot{}, &sandbox.Error{Code: sandbox.CodeAlreadyExists, Op: "islo.snapshot", Subject: opts.ID, Message: "a snapshot with this ID already exists"}
	case !errors.Is(err, driver.ErrSnapshotLost):
		return driver.Snapshot{}, in.Explain(ctx, err)
	}
	s, err := in.save(asking, name)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil && opts.Stop {
		err = in.Destroy(ctx)
	}
	if err == nil {
		return s.describe(), nil
	}
	undone := in.p.api.forget(asking, name)
	if ctx.Err() != nil {
		return driver.Snapshot{}, ctx.Err()
	}
	return driver.Snapshot{}, errors.Join(in.Explain(ctx, err), undone)
}

// save requests a snapshot once, and waits until it is ready. If the answer is
// lost, it looks for the snapshot by name.
func (in *Instance) save(ctx context.Context, name string) (s saved, err error) {
	err = in.p.api.Call(ctx, http.MethodPost, "/snapshots/", map[string]string{"sandbox_name": in.name, "name": name}, &s)
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		return s, err
	}
	for n, wait := 0, fastPoll; ; wait = min(2*wait, slowPoll) {
		s, looked := in.p.api.snapshot(ctx, name)
		ready, coming := s.state()
		switch {
		case errors.Is(looked, driver.ErrSnapshotLost) && n < tries:
			n++ // not created, or not yet
		case errors.Is(looked, driver.ErrSnapshotLost) && err != nil:
			return s, err
		case looked != nil:
			return s, looked
		case ready:
			return s, nil
		case !coming:
			return s, in.p.Strange("the service says that the snapshot is " + s.Status)
		}
		if err := rest.Sleep(ctx, wait); err != nil {
			return s, err
		}
	}
}

// FindSnapshot implements driver.SnapshotKeeper.
func (p *Provider) FindSnapshot(ctx context.Context, id string) (driver.Snapshot, error) {
	if sandbox.ValidateName(id) != nil {
		return driver.Snapshot{}, lost(id, "there is no such snapshot")
	}
	name, err := p.api.own(id)
	if err != nil {
		return driver.Snapshot{}, err
	}
	s, err := p.api.snapshot(ctx, name)
	if ready, _ := s.state(); err == nil && !ready {
		err = lost(id, "the snapshot is not complete")
	}
	if err != nil {
		return driver.Snapshot{}, err
	}
	return s.describe(), nil
}

// Snapshots implements driver.SnapshotKeeper.
func (p *Provider) Snapshots(ctx context.Context) iter.Seq2[driver.FoundSnapshot, error] {
	return func(yield func(driver.FoundSnapshot, error) bool) {
		prefix, err := p.api.own("")
		var items []saved
		if err == nil {
			items, err = all[saved](ctx, p.api, "/snapshots/", url.Values{})
		}
		if err != nil {
			yield(driver.FoundSnapshot{}, err)
			return
		}
		for _, s := range items {
			id, ours := strings.CutPrefix(s.Name, prefix)
			if !ours || sandbox.ValidateName(id) != nil {
				continue
			}
			f := driver.FoundSnapshot{ID: id, Ref: s.describe().Ref, Used: s.Created}
			if ready, _ := s.state(); ready {
				f.Size = s.Size
			}
			if !yield(f, nil) {
				return
			}
		}
	}
}

// check refuses a reference of another directory.
func (p *Provider) check(ref driver.SnapshotRef) error {
	prefix, err := p.api.own("")
	if err != nil {
		return err
	}
	id, ours := strings.CutPrefix(ref.Data, prefix)
	if ref.Provider == Name && ref.Kind == driver.SnapshotFilesystem && ours && sandbox.ValidateName(id) == nil {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "islo.restore", Message: "the reference belongs to another provider"}
}

// RemoveSnapshot implements driver.SnapshotKeeper.
func (p *Provider) RemoveSnapshot(ctx context.Context, ref driver.SnapshotRef) error {
	if err := p.check(ref); err != nil {
		return err
	}
	return p.api.forget(ctx, ref.Data)
}

// Restore implements driver.Restorer.
func (p *Provider) Restore(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, driver.Restored, error) {
	if err := ctx.Err(); err != nil {
		return nil, driver.Restored{}, err
	}
	if err := p.check(ref); err != nil {
		return nil, driver.Restored{}, err
	}
	s, err := p.api.snapshot(ctx, ref.Data)
	if ready, _ := s.state(); err == nil && !ready {
		err = &sandbox.Error{Code: sandbox.CodeInvalid, Subject: ref.Data, Message: "the snapshot is " + s.Status, Cause: driver.ErrSnapshotLost}
	}
	if err != nil {
		return nil, driver.Restored{}, err
	}
	in, err := p.make(ctx, spec, creation{Snapshot: ref.Data})
	if missing(err) { // removed in the meantime
		err = lost(ref.Data, "the service has no such snapshot")
	}
	return in, driver.Restored{}, err
}
