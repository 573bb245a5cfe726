package hosted

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/records"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// Saved is the service's description of a snapshot.
type Saved struct {
	Data    string // names it in references
	ID      string // ours
	Kind    driver.SnapshotKind
	Status  string // in the service's words
	Ready   bool
	Coming  bool  // it may still become ready
	Size    int64 // bytes, when it is ready
	Created time.Time
}

// SavedRecord is the stored data of a snapshot, for services that do not report
// everything. A driver may set what is not set.
type SavedRecord struct {
	ServiceID string              `json:"box"`                // the service's ID of the sandbox
	Key       string              `json:"key,omitempty"`      // of the request: for its repetition, or to find the snapshot
	Snapshot  string              `json:"snapshot,omitempty"` // the Data
	Kind      driver.SnapshotKind `json:"kind,omitempty"`
	Size      int64               `json:"size,omitempty"`
	Network   string              `json:"network,omitempty"`  // of copies
	AutoStop  int64               `json:"autoStop,omitempty"` // of copies, in seconds
	Binding   string              `json:"binding"`
}

// Saver is a driver's access to snapshots. The methods may be called
// concurrently. They return ErrNone or *sandbox.Error.
type Saver interface {
	// Save takes a snapshot with our ID and waits until it is ready. On an error
	// the result may be what was made.
	Save(ctx context.Context, in *Instance, id string, r *SavedRecord) (Saved, error)
	// Saved returns our snapshots. With an ID, only that one is needed.
	Saved(ctx context.Context, id string) ([]Saved, error)
	// Referred returns the snapshot with the Data of a reference.
	Referred(ctx context.Context, data string) (Saved, error)
	// Owns reports whether Data in a reference can be ours. It makes no network
	// call.
	Owns(data string) bool
	// Forget removes a snapshot.
	Forget(ctx context.Context, data string) error
	// Copy makes a sandbox from a snapshot. With bare, its processes are ended.
	Copy(ctx context.Context, spec *sandbox.Spec, s Saved, bare bool) (driver.Instance, error)
}

// Stiller is implemented by a Saver that pauses or stops a sandbox that ends
// with its snapshot, so that nothing changes in between. It is resumed if the
// snapshot fails.
type Stiller interface {
	Still(ctx context.Context, in *Instance, memory bool) error
}

// Preparer is implemented by a Saver that notes in the record how it finds a
// snapshot whose answer is lost. Prepare is called before the snapshot is taken.
// undo, which may be nil, is called if the snapshot fails.
type Preparer interface {
	Prepare(ctx context.Context, in *Instance, r *SavedRecord) (undo func(context.Context) error, err error)
}

// Keeper keeps the snapshots of a provider. A driver embeds it. Its methods may
// be called concurrently.
type Keeper struct {
	Saver  Saver
	Memory bool // snapshots can have memory
	AtRest bool // only sandboxes that sleep can be saved
	// Records: the service does not report everything.
	Records bool
	// Unseen: a new snapshot may be restored before the service lists it.
	Unseen bool

	core *Core
	dir  records.Dir[SavedRecord]
}

var (
	_ driver.SnapshotKeeper = (*Keeper)(nil)
	_ driver.Restorer       = (*Keeper)(nil)
	_ driver.FileRestorer   = MemoryKeeper{}
	_ driver.Snapshotter    = Savable{}
)

// Keep connects a keeper with its core, before Start.
func (c *Core) Keep(k *Keeper) *Keeper {
	k.core, c.keeper = c, k
	k.dir = records.Dir[SavedRecord]{Root: c.Root, Name: "snapshots"}
	return k
}

// capturing limits how long a snapshot may take.
const capturing = 15 * time.Minute

// Record returns the record of a snapshot, or an empty one.
func (k *Keeper) Record(id string) SavedRecord {
	r, _ := k.dir.Get(id)
	return r
}

// Recorded returns the IDs of the snapshots with a record of this account.
func (k *Keeper) Recorded(ctx context.Context) (ids []string, err error) {
	ours, err := k.core.Ours(ctx)
	for _, id := range k.dir.IDs() {
		if r, ok := k.dir.Get(id); ok && err == nil && ours(r.Binding) {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// Seeker finds a snapshot whose answer was lost, by its record.
type Seeker func(ctx context.Context, id string, r SavedRecord) (Saved, error)

// Search returns the snapshots with a record of this account: see Saver.Saved.
func (k *Keeper) Search(ctx context.Context, id string, lost Seeker) (all []Saved, err error) {
	ids, err := k.Recorded(ctx)
	for _, name := range ids {
		if err != nil || id != "" && name != id {
			continue
		}
		s, looked := k.recorded(ctx, name, k.Record(name), lost)
		switch {
		case looked == nil:
			all = append(all, s)
		case !errors.Is(looked, ErrNone):
			err = looked
		}
	}
	return all, err
}

// recorded returns the snapshot of a record.
func (k *Keeper) recorded(ctx context.Context, id string, r SavedRecord, lost Seeker) (s Saved, err error) {
	switch {
	case r.Snapshot != "":
		s, err = k.Saver.Referred(ctx, r.Snapshot)
	case r.ServiceID != "":
		s, err = lost(ctx, id, r)
	default: // the record was removed meanwhile
		err = ErrNone
	}
	s.ID, s.Kind = id, r.Kind
	return s, err
}

func (k *Keeper) describe(s Saved) driver.Snapshot {
	return driver.Snapshot{Ref: driver.SnapshotRef{Provider: k.core.Name, Kind: s.Kind, Data: s.Data}, Engine: k.core.Name, Size: s.Size}
}

// lost is the error for a missing snapshot.
func lost(id, message string, cause error) error {
	return &sandbox.Error{Code: sandbox.CodeNotFound, Subject: id, Message: message, Cause: errors.Join(driver.ErrSnapshotLost, cause)}
}

func (k *Keeper) refuse(code sandbox.Code, subject, message, hint string) error {
	return &sandbox.Error{Code: code, Op: k.core.Name + ".snapshot", Subject: subject, Message: message, Hint: hint}
}

// find returns our snapshot with an ID, or ErrNone.
func (k *Keeper) find(ctx context.Context, id string) (Saved, error) {
	if err := ctx.Err(); err != nil {
		return Saved{}, err
	}
	all, err := k.Saver.Saved(ctx, id)
	if err != nil {
		return Saved{}, err
	}
	for _, s := range all {
		if s.ID == id {
			return s, nil
		}
	}
	return Saved{}, ErrNone
}

// Savable is an instance whose service is a Saver.
type Savable struct{ *Instance }

// Snapshot implements driver.Snapshotter.
func (in Savable) Snapshot(ctx context.Context, opts driver.SnapshotOptions) (none driver.Snapshot, err error) {
	k := in.core.keeper
	if opts.Memory && !k.Memory {
		return none, k.refuse(sandbox.CodeUnsupported, "memory", "the service does not guarantee to save memory", "save the files only")
	}
	status, ended, err := in.Ask(ctx)
	switch {
	case ctx.Err() != nil:
		return none, ctx.Err()
	case ended:
		return none, guestkit.Gone(in.ID())
	case err != nil:
		return none, err
	}
	return k.taking(ctx, opts.ID, func(asking context.Context, l *records.Locked[SavedRecord]) (driver.Snapshot, error) {
		return k.capture(ctx, asking, l, in.Instance, opts, status.State == sandbox.Running)
	})
}

// taking calls f to take a snapshot with an ID that there must not be. A
// request cannot be canceled, so f continues after its caller gave up.
func (k *Keeper) taking(ctx context.Context, id string, f func(context.Context, *records.Locked[SavedRecord]) (driver.Snapshot, error)) (none driver.Snapshot, err error) {
	if sandbox.ValidateName(id) != nil {
		return none, k.refuse(sandbox.CodeInvalid, "id", "is not a valid id", "")
	}
	l, err := k.dir.Lock(ctx, id)
	if err != nil {
		return none, err
	}
	return records.Finish(ctx, &k.core.Work, func() (driver.Snapshot, error) {
		defer l.Unlock()
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), capturing)
		defer cancel()
		_, err := k.find(asking, id)
		if err == nil {
			return none, k.refuse(sandbox.CodeAlreadyExists, id, "a snapshot with this ID already exists", "")
		}
		s := none
		if errors.Is(err, ErrNone) {
			s, err = f(asking, l)
		}
		if !k.Records || err != nil && l.Read().Binding == "" {
			_ = l.Remove() // only a lock
		}
		return s, err
	})
}

// capture takes a snapshot of a sandbox. If that fails, nothing is left of it
// and the sandbox continues.
func (k *Keeper) capture(ctx, asking context.Context, l *records.Locked[SavedRecord], in *Instance, opts driver.SnapshotOptions, running bool) (none driver.Snapshot, err error) {
	if k.AtRest && running && !opts.Stop {
		return none, k.refuse(sandbox.CodeConflict, string(in.ID()), "the service saves only what is stopped, and stopping ends the processes", "save and stop it with: atoll pause --to-disk")
	}
	r := SavedRecord{ServiceID: in.Sandbox, Kind: driver.SnapshotFilesystem}
	if opts.Memory {
		r.Kind = driver.SnapshotMemory
	}
	stiller, still := k.Saver.(Stiller)
	still = still && running && opts.Stop
	unprepare := func(context.Context) error { return nil }
	if p, ok := k.Saver.(Preparer); ok {
		undo, err := p.Prepare(asking, in, &r)
		if undo != nil {
			unprepare = undo
		}
		if err != nil {
			return none, errors.Join(err, unprepare(asking))
		}
	}
	var s Saved
	s, err = k.save(asking, l, r, func(r *SavedRecord) (Saved, error) {
		if still {
			in.SetDying(true) // commands that end now are killed
			if err := stiller.Still(asking, in, opts.Memory); err != nil {
				return Saved{}, err
			}
		}
		return k.Saver.Save(asking, in, opts.ID, r)
	})
	if err == nil {
		err = ctx.Err()
	}
	if err == nil && opts.Stop {
		err = in.Destroy(asking)
	}
	if err == nil {
		return k.describe(s), nil
	}
	undone := errors.Join(k.undo(asking, l, opts.ID, s), unprepare(asking))
	if still {
		in.SetDying(false)
		undone = errors.Join(undone, in.Resume(asking))
	}
	if running {
		err = in.Explain(ctx, err)
	}
	if ctx.Err() != nil {
		return none, ctx.Err()
	}
	return none, errors.Join(err, undone)
}

// save records a snapshot and takes it.
func (k *Keeper) save(ctx context.Context, l *records.Locked[SavedRecord], r SavedRecord, take func(*SavedRecord) (Saved, error)) (s Saved, err error) {
	if r.Key == "" {
		r.Key = NewKey()
	}
	if r.Binding, err = k.core.Binding(ctx); err == nil {
		err = l.Write(r)
	}
	if err == nil {
		s, err = take(&r)
	}
	if err == nil {
		r.Snapshot, r.Size = s.Data, s.Size
		err = l.Write(r)
	}
	return s, err
}

// undo removes what a failed attempt left. The record identifies what cannot be
// removed.
func (k *Keeper) undo(ctx context.Context, l *records.Locked[SavedRecord], id string, s Saved) error {
	if s.Data == "" { // the answer may have been lost
		s, _ = k.find(ctx, id)
	}
	if s.Data != "" {
		if err := k.Saver.Forget(ctx, s.Data); err != nil && !errors.Is(err, ErrNone) {
			return err
		}
	}
	return l.Remove()
}

// Await looks for a snapshot until it is ready. asked is the error of a request
// without an answer, or nil.
func (k *Keeper) Await(ctx context.Context, asked error, look func() (Saved, error)) (Saved, error) {
	for n, wait := 0, fastPoll; ; wait = min(2*wait, slowPoll) {
		s, err := look()
		switch {
		case errors.Is(err, ErrNone) && n < searches:
			n++ // not made, or not yet
		case errors.Is(err, ErrNone) && asked != nil:
			return s, asked
		case errors.Is(err, ErrNone):
			return s, k.core.ProtocolError("the service accepted the request, but does not list the snapshot")
		case err != nil || s.Ready:
			return s, err
		case !s.Coming:
			return s, k.core.ProtocolError("the service says that the snapshot is " + s.Status)
		}
		if err := rest.Sleep(ctx, wait); err != nil {
			return s, err
		}
	}
}

// CopyAs takes a copy of a snapshot, with another ID.
func (k *Keeper) CopyAs(ctx context.Context, ref driver.SnapshotRef, id string, take func(ctx context.Context, from Saved, r *SavedRecord) (Saved, error)) (driver.Snapshot, error) {
	from, err := k.referred(ctx, ref)
	if err != nil {
		return driver.Snapshot{}, err
	}
	return k.taking(ctx, id, func(asking context.Context, l *records.Locked[SavedRecord]) (driver.Snapshot, error) {
		s, err := k.save(asking, l, SavedRecord{Kind: from.Kind}, func(r *SavedRecord) (Saved, error) { return take(asking, from, r) })
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			return k.describe(s), nil
		}
		return driver.Snapshot{}, errors.Join(err, k.undo(asking, l, id, s))
	})
}

// FindSnapshot implements driver.SnapshotKeeper.
func (k *Keeper) FindSnapshot(ctx context.Context, id string) (driver.Snapshot, error) {
	if sandbox.ValidateName(id) != nil {
		return driver.Snapshot{}, lost(id, "there is no such snapshot", nil)
	}
	s, err := k.find(ctx, id)
	switch {
	case errors.Is(err, ErrNone):
		return driver.Snapshot{}, lost(id, "the service has no such snapshot", nil)
	case err != nil:
		return driver.Snapshot{}, err
	case !s.Ready:
		return driver.Snapshot{}, lost(id, "the snapshot is not complete", nil)
	}
	return k.describe(s), nil
}

// Snapshots implements driver.SnapshotKeeper.
func (k *Keeper) Snapshots(ctx context.Context) iter.Seq2[driver.FoundSnapshot, error] {
	return func(yield func(driver.FoundSnapshot, error) bool) {
		err := ctx.Err()
		var all []Saved
		if err == nil {
			all, err = k.Saver.Saved(ctx, "")
		}
		for _, s := range all {
			if sandbox.ValidateName(s.ID) != nil {
				continue
			}
			f := driver.FoundSnapshot{ID: s.ID, Ref: k.describe(s).Ref, Used: s.Created}
			if s.Ready {
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

// check refuses a reference that is not ours.
func (k *Keeper) check(ref driver.SnapshotRef) error {
	kind := ref.Kind == driver.SnapshotFilesystem || ref.Kind == driver.SnapshotMemory && k.Memory
	if ref.Provider == k.core.Name && kind && k.Saver.Owns(ref.Data) {
		return nil
	}
	return k.refuse(sandbox.CodeInvalid, "snapshot", "the reference belongs to another provider", "")
}

// referred returns the snapshot of a reference, which must be ready.
func (k *Keeper) referred(ctx context.Context, ref driver.SnapshotRef) (s Saved, err error) {
	if err = ctx.Err(); err == nil {
		err = k.check(ref)
	}
	if err != nil {
		return s, err
	}
	if s, err = k.Saver.Referred(ctx, ref.Data); errors.Is(err, ErrNone) {
		err = lost(ref.Data, "the service has no such snapshot", nil)
	}
	if err == nil && !s.Ready {
		err = &sandbox.Error{Code: sandbox.CodeInvalid, Subject: ref.Data, Message: "the snapshot is " + s.Status, Cause: driver.ErrSnapshotLost}
	}
	return s, err
}

// RemoveSnapshot implements driver.SnapshotKeeper. A missing snapshot is
// success.
func (k *Keeper) RemoveSnapshot(ctx context.Context, ref driver.SnapshotRef) error {
	err := ctx.Err()
	if err == nil {
		err = k.check(ref)
	}
	if err == nil {
		err = k.Saver.Forget(ctx, ref.Data)
	}
	if err != nil && !errors.Is(err, ErrNone) {
		return err
	}
	k.dir.Sweep(func(r SavedRecord) bool { return r.Snapshot == ref.Data || r.ServiceID == ref.Data })
	return nil
}

// Restore implements driver.Restorer.
func (k *Keeper) Restore(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, driver.Restored, error) {
	memory := ref.Kind == driver.SnapshotMemory
	in, err := k.restore(ctx, spec, ref, !memory)
	return in, driver.Restored{Memory: err == nil && memory}, err
}

func (k *Keeper) restore(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef, bare bool) (driver.Instance, error) {
	s, err := Saved{Data: ref.Data, Kind: ref.Kind}, ctx.Err()
	if err == nil {
		err = k.check(ref)
	}
	if err == nil && !k.Unseen {
		s, err = k.referred(ctx, ref)
	}
	if err != nil {
		return nil, err
	}
	in, err := k.Saver.Copy(ctx, spec, s, bare)
	if code := sandbox.CodeOf(err); code == sandbox.CodeNotFound || code == sandbox.CodeInvalid {
		if _, looked := k.Saver.Referred(ctx, ref.Data); errors.Is(looked, ErrNone) { // removed in the meantime
			err = lost(ref.Data, "the service has no such snapshot", err)
		}
	}
	return in, err
}

// MemoryKeeper is a keeper of snapshots with memory. A driver embeds it.
type MemoryKeeper struct{ *Keeper }

// RestoreFiles implements driver.FileRestorer.
func (k MemoryKeeper) RestoreFiles(ctx context.Context, spec *sandbox.Spec, ref driver.SnapshotRef) (driver.Instance, error) {
	return k.restore(ctx, spec, ref, true)
}

// Copied prepares the copy of a running sandbox, before the guest is used.
func Copied(bare bool) func(context.Context, Inside) error {
	return func(ctx context.Context, in Inside) error {
		_, err := in.Run(ctx, Inherited(bare))
		return err
	}
}

// ByData returns the snapshot with a reference's Data, or ErrNone.
func ByData(all []Saved, data string) (Saved, error) {
	for _, s := range all {
		if s.Data == data {
			return s, nil
		}
	}
	return Saved{}, ErrNone
}
