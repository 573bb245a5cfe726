package superserve

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"regexp"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/records"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// savedRecord is the record of a snapshot. The service finds snapshots only by
// their sandbox.
type savedRecord struct {
	Box      string              `json:"box"`
	Key      string              `json:"key"`                // the idempotency key of the request
	Snapshot string              `json:"snapshot,omitempty"` // the service's id
	Kind     driver.SnapshotKind `json:"kind"`
	Binding  string              `json:"binding"`
}

// saved is the service's description of a snapshot. It always has memory.
type saved struct {
	ID      string    `json:"id"`
	Box     string    `json:"sandbox_id"`
	Status  string    `json:"status"`
	Name    string    `json:"name"`
	Size    int64     `json:"size_bytes"`
	Created time.Time `json:"created_at"`
}

// The statuses of a snapshot.
const (
	savedCreating = "creating"
	savedReady    = "ready"
	savedDeleting = "deleting"
)

// capturing limits how long a snapshot may take.
const capturing = 15 * time.Minute

// usableID matches ids of the service that are valid in a path.
var usableID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

func (r savedRecord) describe(s saved) driver.Snapshot {
	return driver.Snapshot{Ref: driver.SnapshotRef{Provider: Name, Kind: r.Kind, Data: s.ID}, Engine: Name, Size: s.Size}
}

func lost(id, message string) error {
	return &sandbox.Error{Code: sandbox.CodeNotFound, Subject: id, Message: message, Cause: driver.ErrSnapshotLost}
}

func (a *api) snapshot(ctx context.Context, id string) (s saved, err error) {
	err = a.Call(ctx, http.MethodGet, "/snapshots/"+id, nil, &s)
	switch {
	case missing(err), err == nil && s.Status == savedDeleting:
		err = lost(id, "the service has no such snapshot")
	case err == nil && s.ID != id:
		err = a.Strange("the service answers for another snapshot")
	}
	return s, err
}

// forget removes a snapshot. A missing snapshot is success.
func (a *api) forget(ctx context.Context, id string) error {
	if err := a.Call(ctx, http.MethodDelete, "/snapshots/"+id, nil, nil); !missing(err) {
		return err
	}
	return nil
}

// Snapshot implements driver.Snapshotter. The service saves memory and files. A
// restore of files only ends the processes.
func (in *Instance) Snapshot(ctx context.Context, opts driver.SnapshotOptions) (driver.Snapshot, error) {
	if err := sandbox.ValidateName(opts.ID); err != nil {
		return driver.Snapshot{}, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "superserve.snapshot", Message: "the ID is invalid", Cause: err}
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
		return in.capture(ctx, l, opts)
	})
}

func (in *Instance) capture(ctx context.Context, l *records.Locked[savedRecord], opts driver.SnapshotOptions) (driver.Snapshot, error) {
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), capturing)
	defer cancel()
	binding, err := in.p.Binding(asking)
	if err != nil {
		return driver.Snapshot{}, err
	}
	if r := l.Read(); r.Key != "" {
		return driver.Snapshot{}, &sandbox.Error{Code: sandbox.CodeAlreadyExists, Op: "superserve.snapshot", Subject: opts.ID, Message: "a snapshot with this ID already exists"}
	}
	r := savedRecord{Box: in.Box, Key: hosted.NewKey(), Kind: driver.SnapshotFilesystem, Binding: binding}
	if opts.Memory {
		r.Kind = driver.SnapshotMemory
	}
	if err := l.Write(r); err != nil {
		return driver.Snapshot{}, err
	}
	s, err := in.save(asking, opts.ID, r.Key)
	if err == nil {
		r.Snapshot = s.ID
		err = l.Write(r)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil && opts.Stop {
		err = in.Destroy(ctx)
	}
	if err == nil {
		return r.describe(s), nil
	}
	if s.ID == "" { // the answer may have been lost
		s, _ = in.p.search(asking, opts.ID, r)
	}
	var undone error
	if s.ID != "" {
		undone = in.p.api.forget(asking, s.ID)
	}
	if undone == nil {
		undone = l.Remove()
	}
	if ctx.Err() != nil {
		return driver.Snapshot{}, ctx.Err()
	}
	return driver.Snapshot{}, errors.Join(in.Explain(ctx, err), undone)
}

// save requests a snapshot with the same idempotency key until there is an
// answer, and waits until it is ready.
func (in *Instance) save(ctx context.Context, id, key string) (s saved, err error) {
	resume, err := in.stay(ctx)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, resume()) }()
	body := map[string]string{"kind": "mem+fs", "idempotency_key": key, "name": id}
	for n := range tries {
		if n > 0 {
			if err := rest.Sleep(ctx, slowPoll); err != nil {
				return s, err
			}
		}
		err = in.p.api.Call(ctx, http.MethodPost, "/sandboxes/"+in.Box+"/snapshot", body, &s)
		if sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			break
		}
	}
	if err == nil && (!usableID.MatchString(s.ID) || s.Box != in.Box) {
		err = in.p.Strange("the service's response contains no snapshot of the sandbox")
	}
	for wait := fastPoll; err == nil && s.Status == savedCreating; wait = min(2*wait, slowPoll) {
		if err = rest.Sleep(ctx, wait); err == nil {
			s, err = in.p.api.snapshot(ctx, s.ID)
		}
	}
	if err == nil && s.Status != savedReady {
		err = in.p.Strange("the service could not take the snapshot")
	}
	return s, err
}

// stay ensures that a sandbox with a lifetime is not removed while it is paused
// for a snapshot. It returns a function that undoes that.
func (in *Instance) stay(ctx context.Context) (undo func() error, err error) {
	none := func() error { return nil }
	b, err := in.p.api.get(ctx, in.Box)
	if err != nil || b.AutoDelete == nil {
		return none, err
	}
	was := *b.AutoDelete
	if err := in.p.api.patch(ctx, b.ID, map[string]any{"auto_delete_seconds": nil}); err != nil {
		return none, err
	}
	return func() error { return in.p.api.patch(ctx, b.ID, map[string]any{"auto_delete_seconds": was}) }, nil
}

// search finds the snapshot of a record without an id.
func (p *Provider) search(ctx context.Context, id string, r savedRecord) (saved, error) {
	if r.Snapshot != "" {
		return p.api.snapshot(ctx, r.Snapshot)
	}
	var all []saved
	err := p.api.Call(ctx, http.MethodGet, "/sandboxes/"+r.Box+"/snapshots", nil, &all)
	if err != nil && !missing(err) {
		return saved{}, err
	}
	for _, s := range all {
		if s.Name == id && usableID.MatchString(s.ID) && s.Status != savedDeleting {
			return s, nil
		}
	}
	return saved{}, lost(id, "there is no such snapshot")
}

// FindSnapshot implements driver.SnapshotKeeper.
func (p *Provider) FindSnapshot(ctx context.Context, id string) (driver.Snapshot, error) {
	r, ok := p.saved.Get(id)
	ours, err := p.Ours(ctx)
	if err != nil {
		return driver.Snapshot{}, err
	}
	if sandbox.ValidateName(id) != nil || !ok || !ours(r.Binding) {
		return driver.Snapshot{}, lost(id, "there is no such snapshot")
	}
	s, err := p.search(ctx, id, r)
	if err == nil && s.Status != savedReady {
		err = lost(id, "the snapshot is not complete")
	}
	if err != nil {
		return driver.Snapshot{}, err
	}
	return r.describe(s), nil
}

// Snapshots implements driver.SnapshotKeeper.
func (p *Provider) Snapshots(ctx context.Context) iter.Seq2[driver.FoundSnapshot, error] {
	return func(yield func(driver.FoundSnapshot, error) bool) {
		ours, err := p.Ours(ctx)
		for _, id := range p.saved.IDs() {
			r, ok := p.saved.Get(id)
			if err != nil || !ok || !ours(r.Binding) {
				continue
			}
			var s saved
			if s, err = p.search(ctx, id, r); errors.Is(err, driver.ErrSnapshotLost) {
				err = nil
				continue
			}
			if err != nil {
				break
			}
			f := driver.FoundSnapshot{ID: id, Ref: r.describe(s).Ref, Used: s.Created}
			if s.Status == savedReady {
				f.Size = s.Size
			}
			if !yield(f, nil) {
				return
			}
		}
		if err != nil {
			yield(driver.FoundSnapshot{}, err)
		}
	}
}

func check(ref driver.SnapshotRef) error {
	if ref.Provider == Name && usableID.MatchString(ref.Data) && (ref.Kind == driver.SnapshotMemory || ref.Kind == driver.SnapshotFilesystem) {
		return nil
	}
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "superserve.restore", Message: "the reference belongs to another provider"}
}

// RemoveSnapshot implements driver.SnapshotKeeper.
func (p *Provider) RemoveSnapshot(ctx context.Context, ref driver.SnapshotRef) error {
	if err := check(ref); err != nil {
		return err
	}
	if err := p.api.forget(ctx, ref.Data); err != nil {
		return err
	}
	p.saved.Sweep(func(r savedRecord) bool { return r.Snapshot == ref.Data })
	return nil
}

// Restore implements driver.Restorer.
func (p *Provider) Restore(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, driver.Restored, error) {
	memory := ref.Kind == driver.SnapshotMemory
	in, err := p.restore(ctx, spec, ref, !memory)
	return in, driver.Restored{Memory: err == nil && memory}, err
}

// RestoreFiles implements driver.FileRestorer.
func (p *Provider) RestoreFiles(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, error) {
	return p.restore(ctx, spec, ref, true)
}

func (p *Provider) restore(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef, bare bool) (driver.Instance, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := check(ref); err != nil {
		return nil, err
	}
	s, err := p.api.snapshot(ctx, ref.Data)
	if err == nil && s.Status != savedReady {
		err = &sandbox.Error{Code: sandbox.CodeInvalid, Subject: ref.Data, Message: "the snapshot is " + s.Status, Cause: driver.ErrSnapshotLost}
	}
	if err != nil {
		return nil, err
	}
	in, err := p.make(ctx, spec, creation{Snapshot: ref.Data}, bare)
	if missing(err) { // removed in the meantime
		err = lost(ref.Data, "the service has no such snapshot")
	}
	return in, err
}
