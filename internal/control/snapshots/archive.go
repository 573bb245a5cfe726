package snapshots

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/keyed"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// DefaultCache is the default limit in bytes for copies of saved snapshots on
// this machine.
const DefaultCache = 16 << 30

// Intervals for retrying failed saves, for looking whether names of images have
// changed, and for sweeping the archives for remains of other daemons.
const (
	archivePeriod = time.Minute
	namesPeriod   = time.Second
	sweepPeriod   = time.Hour
)

// archiving is the state of saving snapshots.
type archiving struct {
	locks   keyed.Locks[string] // per snapshot, for saving and fetching
	wake    chan struct{}
	mu      sync.Mutex
	running map[string]context.CancelFunc // saves in progress, by snapshot
	broken  map[string]bool               // snapshots that can never be saved
	dirty   map[string]bool               // tenants with removed snapshots
}

func newArchiving() archiving {
	return archiving{
		wake: make(chan struct{}, 1), running: map[string]context.CancelFunc{}, broken: map[string]bool{}, dirty: map[string]bool{},
	}
}

// soon makes Watch run soon.
func (a *archiving) soon() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// begin registers a save that forget can cancel.
func (a *archiving) begin(ctx context.Context, id string) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running[id] = cancel
	return ctx, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.running, id)
		cancel()
	}
}

// forget cancels the save of a snapshot that is being removed, and schedules a
// sweep of its tenant's archives.
func (a *archiving) forget(id, tenant string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cancel := a.running[id]; cancel != nil {
		cancel()
	}
	delete(a.broken, id)
	a.dirty[tenant] = true
	a.soon()
}

// isBroken reports whether a snapshot can never be saved. With mark, it sets
// that.
func (a *archiving) isBroken(id string, mark bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if mark {
		a.broken[id] = true
	}
	return a.broken[id]
}

// takeDirty returns the tenants whose archives must be swept.
func (a *archiving) takeDirty() map[string]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	dirty := a.dirty
	a.dirty = map[string]bool{}
	return dirty
}

// Watch saves named snapshots and the images of templates and imported names to the blob store, one at a
// time, removes unreferenced ones there, and limits the copies on this machine, until ctx
// ends.
func (svc *Service) Watch(ctx context.Context) {
	if svc.cfg.Archive == nil {
		return
	}
	svc.Report(ctx, os.RemoveAll(svc.transfers())) // left by a killed daemon
	var swept time.Time                            // zero: an earlier daemon may have left something
	for ctx.Err() == nil {
		all := time.Since(swept) > sweepPeriod
		if all {
			swept = time.Now()
		}
		names := svc.namesStamp() // before looking at them
		for _, err := range []error{svc.saveAll(ctx), svc.agreeAll(ctx, all), svc.saveImages(ctx), svc.sweepArchives(ctx, all), svc.trimCopies(ctx)} {
			if ctx.Err() == nil {
				svc.Report(ctx, err)
			}
		}
		svc.rest(ctx, names)
	}
}

// rest waits until there is something to do, or it is time to retry.
func (svc *Service) rest(ctx context.Context, names string) {
	for end := time.Now().Add(archivePeriod); time.Now().Before(end) && svc.namesStamp() == names; {
		select {
		case <-ctx.Done():
			return
		case <-svc.archive.wake:
			return
		case <-time.After(namesPeriod):
		}
	}
}

// saveAll saves the snapshots of this node that are not in the archives.
func (svc *Service) saveAll(ctx context.Context) error {
	const batch = 100
	var failed []error
	for after := ""; ; {
		part, err := store.Read(ctx, svc.Store, func(tx *store.Tx) ([]store.Snapshot, error) {
			return tx.Operator().Unsaved(ctx, svc.Node, after, batch)
		})
		if err != nil {
			return errors.Join(append(failed, err)...)
		}
		for _, s := range part {
			if svc.archive.isBroken(s.ID, false) {
				continue
			}
			if err := svc.save(ctx, s.ID); sandbox.CodeOf(err) != sandbox.CodeUnsupported { // a service keeps its own
				failed = append(failed, err)
			}
		}
		if len(part) < batch || ctx.Err() != nil {
			return errors.Join(failed...)
		}
		after = part[len(part)-1].ID
	}
}

// save copies a snapshot to its tenant's archive, and records that. It succeeds
// if the snapshot is already there, or is removed meanwhile.
func (svc *Service) save(ctx context.Context, id string) error {
	release, err := svc.archive.locks.Take(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	saving, end := svc.archive.begin(ctx, id)
	defer end()
	s, err := svc.record(saving, id)
	if err == nil && s.Archived.Archive == "" {
		err = svc.saveLocked(saving, &s)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case saving.Err() != nil, sandbox.CodeOf(err) == sandbox.CodeNotFound:
		return nil // it was removed; its remains are swept
	case err != nil:
		svc.blame(ctx, &s, err)
	}
	return err
}

func (svc *Service) saveLocked(ctx context.Context, s *store.Snapshot) error {
	be, keeper, err := svc.providerOf(ctx, s)
	if err != nil {
		return err
	}
	from, err := exporter(keeper)
	if err != nil {
		return err
	}
	ref, err := svc.locate(ctx, be, s)
	if err != nil {
		return err
	}
	set, err := svc.archiveOf(ctx, s.Tenant)
	if err != nil {
		return err
	}
	if err := svc.Fault("save.begun"); err != nil {
		return err
	}
	at, err := svc.cfg.Archive.SaveFrom(ctx, set, s.ID, svc.transfers(), func(w io.Writer) error { return from.ExportSnapshot(ctx, ref, w) })
	if err != nil {
		return err
	}
	if err := svc.Fault("save.stored"); err != nil {
		return err
	}
	err = svc.Store.Update(ctx, func(tx *store.Tx) error {
		return tx.Snapshots().Archive(ctx, s.Tenant, s.ID, store.Archived{
			Archive: set.ID, Encrypted: set.Encrypted, Version: at.Version, Digest: at.Digest, Stored: at.Stored,
		})
	})
	return core.FirstError(err, svc.Fault("save.recorded"))
}

// blame records why a snapshot cannot be saved. Damage, and a provider that does
// not give its snapshots away, are permanent.
func (svc *Service) blame(ctx context.Context, s *store.Snapshot, why error) {
	code := sandbox.CodeOf(why)
	svc.archive.isBroken(s.ID, code == sandbox.CodeInvalid || code == sandbox.CodeUnsupported)
	problem := "it could not be saved: " + string(code)
	var known *sandbox.Error
	if errors.As(why, &known) {
		problem += ", " + known.Message
	}
	if code == sandbox.CodeUnsupported {
		problem = durable.ProblemKept
	}
	if s.Problem == problem {
		return
	}
	svc.Report(ctx, svc.Store.Update(ctx, func(tx *store.Tx) error { return tx.Snapshots().Blame(ctx, s.Tenant, s.ID, problem) }))
}

// archiveOf returns the archive for a tenant's new snapshots.
func (svc *Service) archiveOf(ctx context.Context, tenant string) (archive.Set, error) {
	a, err := store.Write(ctx, svc.Store, func(tx *store.Tx) (store.Archive, error) {
		return tx.Snapshots().EnsureArchive(ctx, store.Archive{
			ID: "ar-" + strings.ToLower(rand.Text()[:16]), Tenant: tenant, Encrypted: !svc.cfg.Plain,
		})
	})
	return archive.Set{ID: a.ID, Encrypted: a.Encrypted}, err
}

// sweepArchives removes unreferenced snapshots from the archives: of all
// tenants, or only of those with removed snapshots. Of all, it also looks for lost ones.
func (svc *Service) sweepArchives(ctx context.Context, all bool) error {
	dirty := svc.archive.takeDirty()
	if !all && len(dirty) == 0 {
		return nil
	}
	archives, err := store.Read(ctx, svc.Store, func(tx *store.Tx) ([]store.Archive, error) { return tx.Operator().Archives(ctx) })
	if err != nil {
		return err
	}
	var failed []error
	for _, a := range archives {
		if !all && !dirty[a.Tenant] {
			continue
		}
		if err := errors.Join(svc.sweepArchive(ctx, a, all), svc.sweepImages(ctx, a, all)); err != nil {
			failed = append(failed, err)
			if sandbox.CodeOf(err) != sandbox.CodeInvalid { // what is damaged stays so
				svc.archive.mu.Lock()
				svc.archive.dirty[a.Tenant] = true // retry in the next round
				svc.archive.mu.Unlock()
			}
		}
		if all {
			failed = append(failed, svc.findLost(ctx, a))
		}
	}
	return errors.Join(failed...)
}

// sweepArchive removes unreferenced snapshots from one archive and, with
// rubbish, also the remains of killed daemons.
func (svc *Service) sweepArchive(ctx context.Context, a store.Archive, rubbish bool) error {
	set := archive.Set{ID: a.ID, Encrypted: a.Encrypted}
	there, err := svc.cfg.Archive.List(ctx, set) // before the records, so that newly saved snapshots are not removed
	if err != nil {
		return err
	}
	var unwanted []int
	err = svc.Store.View(ctx, func(tx *store.Tx) error {
		unwanted = nil
		for _, k := range there {
			s, err := tx.Operator().Snapshot(ctx, k.Note)
			if err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
				return err
			}
			// While a snapshot is being saved, its archive is not recorded yet.
			at := s.Archived
			if err != nil || at.Archive != "" && (at.Archive != a.ID || at.Version != k.Version) {
				unwanted = append(unwanted, k.Version)
			}
		}
		return nil
	})
	if err != nil || len(unwanted) == 0 && !rubbish {
		return err
	}
	if err := svc.Fault("sweep.begun"); err != nil {
		return err
	}
	return core.FirstError(svc.cfg.Archive.Sweep(ctx, set, unwanted), svc.Fault("sweep.done"))
}

// isArchived reports whether a snapshot is in an archive.
func (svc *Service) isArchived(ctx context.Context, id string) (bool, error) {
	s, err := svc.record(ctx, id)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return false, nil
	}
	return err == nil && s.Archived.Archive != "", err
}

// Restore creates a sandbox from a named snapshot. A missing or damaged
// snapshot is fetched from the archive.
func (svc *Service) Restore(ctx context.Context, be *providers.Backend, p plan.Plan, id string) (made *engine.Sandbox, how driver.Restored, err error) {
	s, err := svc.record(ctx, id)
	if err != nil {
		return nil, how, err
	}
	err = svc.use(ctx, be, &s, func(ref driver.SnapshotRef) error {
		made, how, err = be.Engine.Restore(ctx, p, ref)
		if name := pinned(s.Image, p.Spec.Image); name != p.Spec.Image && lacks(err, p.Spec.Image) {
			// The snapshot was made on another machine, or the image was removed here. The
			// caller gets it as from any request, by its repository and the same digest.
			with := p
			with.Spec.Image = name
			made, how, err = be.Engine.Restore(ctx, with, ref)
		}
		return err
	})
	return made, how, err
}

// lacks reports whether an error says that an image is not here.
func lacks(err error, image string) bool {
	e, ok := errors.AsType[*sandbox.Error](err)
	return ok && e.Code == sandbox.CodeNotFound && e.Subject == image
}

// use calls do with the reference of a snapshot for a provider. If the snapshot
// is missing there, or damaged, it is fetched from the archive, once for all
// callers, and do is called again.
func (svc *Service) use(ctx context.Context, be *providers.Backend, s *store.Snapshot, do func(driver.SnapshotRef) error) error {
	try := func() error {
		ref, err := svc.locate(ctx, be, s)
		if err == nil {
			err = do(ref)
		}
		return err
	}
	err := try()
	if !errors.Is(err, driver.ErrSnapshotLost) || svc.cfg.Archive == nil || s.Archived.Archive == "" {
		return err
	}
	unlock, err := svc.archive.locks.Take(ctx, s.ID+"\n"+be.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if err = try(); !errors.Is(err, driver.ErrSnapshotLost) {
		return err // another caller fetched it
	}
	defer svc.archive.soon() // other copies may have to be removed
	defer svc.writing.Begin(s.ID)()
	ref, err := svc.fetch(ctx, be, s)
	if err != nil {
		return err
	}
	return do(ref)
}

// fetch replaces the local copy of a snapshot with the one in the archive.
func (svc *Service) fetch(ctx context.Context, be *providers.Backend, s *store.Snapshot) (ref driver.SnapshotRef, err error) {
	keeper, err := keeper(be)
	if err != nil {
		return ref, err
	}
	into, err := exporter(keeper)
	if err != nil {
		return ref, err
	}
	if err := svc.remove(ctx, be.Name, s.ID); err != nil { // the damaged copy
		return ref, err
	}
	at := s.Archived
	var snap driver.Snapshot
	err = svc.cfg.Archive.LoadTo(ctx, archive.Set{ID: at.Archive, Encrypted: at.Encrypted}, archive.Place{Version: at.Version, Digest: at.Digest}, svc.transfers(), func(r io.Reader) (err error) {
		snap, err = into.ImportSnapshot(ctx, s.ID, r)
		return err
	})
	if fault := svc.Fault("fetch.loaded"); fault != nil {
		return ref, fault
	}
	if err != nil || s.Node != svc.Node || s.Provider != "" && s.Provider != be.Name {
		return snap.Ref, err
	}
	return snap.Ref, svc.Store.Update(ctx, func(tx *store.Tx) error {
		return tx.Snapshots().Move(ctx, s.Tenant, s.ID, be.Binding, Taken(snap).Ref)
	})
}

// transfers is the directory for snapshots being copied to or from the archive.
func (svc *Service) transfers() string { return filepath.Join(svc.cfg.Scratch, ".transfers") }
