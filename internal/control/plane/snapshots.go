package plane

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/control/lifecycle"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	opSnapshot       = ops.SnapshotCreate
	opSnapshotRemove = ops.SnapshotRemove
	opSnapshotGet    = ops.SnapshotGet
	opSnapshotList   = ops.SnapshotList
)

// Snapshot writes the state of a sandbox down under a name. One that runs goes
// on; one that was put to disk is copied from there. Sandboxes can be made of it
// at once on this node, and on others when it is in the blob store.
func (p *Plane) Snapshot(ctx context.Context, ref string, req sandbox.SnapshotRequest) (store.Snapshot, error) {
	if req.Save && p.cfg.Archive == nil {
		return store.Snapshot{}, &sandbox.Error{Code: sandbox.CodeUnsupported, Op: string(opSnapshot), Message: "this daemon has no blob store"}
	}
	s, err := p.snapshotTurn(ctx, ref, req)
	defer p.archive.soon()
	if err != nil || !req.Save {
		return s, core.Named(opSnapshot, err)
	}
	if err := p.save(ctx, s.ID); err != nil {
		return s, core.Named(opSnapshot, err)
	}
	s, err = p.findSnapshot(ctx, s.Tenant, s.ID)
	return s, core.Named(opSnapshot, err)
}

func (p *Plane) snapshotTurn(ctx context.Context, ref string, req sandbox.SnapshotRequest) (store.Snapshot, error) {
	t, err := p.turn(ctx, ref, opSnapshot, lifecycle.Snapshot)
	if err != nil {
		return store.Snapshot{}, err
	}
	defer t.release()
	return p.snapshot(ctx, t, req)
}

func (p *Plane) snapshot(ctx context.Context, t *turn, req sandbox.SnapshotRequest) (store.Snapshot, error) {
	if t.box.Spec.ID == "" {
		return store.Snapshot{}, p.cannotKeep(&t.box)
	}
	id := newSnapshotID()
	s := p.snapshotOf(&t.box, store.Snapshot{Snapshot: sandbox.Snapshot{ID: id, Name: cmp.Or(req.Name, id), Memory: req.Memory, Labels: req.Labels}})
	t.action.Subject = s.Name
	defer p.writing.Begin(id)()
	var intent *audit.Intent
	err := p.Store.Update(ctx, func(tx *store.Tx) (err error) {
		if s, err = tx.CreateSnapshot(ctx, t.box.Tenant, s); err != nil {
			return err
		}
		intent, err = p.Audit.BeginTx(ctx, tx, t.action)
		return err
	})
	if err != nil {
		return s, err
	}
	if err := p.Fault("snapshot.recorded"); err != nil {
		return s, err
	}
	snap, err := p.take(ctx, t, id, req.Memory)
	if err == nil {
		err = p.keepEnvironment(&t.box, id)
	}
	if fault := p.Fault("snapshot.kept"); fault != nil {
		return s, fault
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if err == nil {
		err = p.Store.Update(late, func(tx *store.Tx) error {
			if err := tx.FinishSnapshot(late, t.box.Tenant, id, taken(snap)); err != nil {
				return err
			}
			return intent.EndTx(late, tx, audit.Outcome{})
		})
	}
	if err != nil {
		p.Report(ctx, intent.End(audit.Outcome{Err: err}))
		p.Report(ctx, p.Store.Update(late, func(tx *store.Tx) error { return tx.DeleteSnapshot(late, t.box.Tenant, id) }))
		p.drop(late, t.box.Provider, id)
		return s, err
	}
	got := taken(snap)
	s.Ready, s.Memory, s.Engine, s.Size, s.Ref = true, got.Memory, got.Engine, got.Size, got.Ref
	return s, nil
}

// keepEnvironment seals the environment of a sandbox once more, for a snapshot
// of it.
func (p *Plane) keepEnvironment(b *store.Sandbox, id string) error {
	env, err := p.environment(b)
	if err != nil || len(env) == 0 {
		return err
	}
	return p.cfg.Environments.Put(sandbox.ID(id), env)
}

// handOn completes env by the environment that a snapshot was taken with.
// Variables whose values are not here must be in env.
func (p *Plane) handOn(s *store.Snapshot, env map[string]string) (map[string]string, error) {
	if len(s.Spec.Env) == 0 {
		return env, nil
	}
	var had map[string]string
	if p.cfg.Environments != nil {
		var err error
		if had, err = p.cfg.Environments.Get(sandbox.ID(s.ID)); err != nil {
			return nil, err
		}
	}
	all := maps.Clone(had)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, env)
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(s.Spec.Env)) {
		if _, ok := all[name]; !ok {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: s.Name, Message: "this machine does not have the values of the snapshot's environment variables " + strings.Join(missing, ", "),
			Hint: "give values for them; on the command line with --env",
		}
	}
	return all, nil
}

// take writes the bytes of a snapshot.
func (p *Plane) take(ctx context.Context, t *turn, id string, memory bool) (snap driver.Snapshot, err error) {
	if kept := t.box.Rest.Kept; kept != "" {
		return p.copyKept(ctx, t, id, memory)
	}
	box, err := p.attach(ctx, &t.box)
	if err != nil {
		return snap, err
	}
	return box.Snapshot(ctx, driver.SnapshotOptions{ID: id, Memory: memory})
}

// copyKept makes a snapshot of a sandbox that is on disk already.
func (p *Plane) copyKept(ctx context.Context, t *turn, id string, memory bool) (snap driver.Snapshot, err error) {
	kept, err := p.snapshotRecord(ctx, t.box.Rest.Kept)
	if err != nil {
		return snap, err
	}
	if kept.Memory != memory {
		what := map[bool]string{true: "memory too: say so", false: "files only"}[kept.Memory]
		return snap, &sandbox.Error{
			Code: sandbox.CodeConflict, Subject: t.box.Name, Message: "what is on disk of the sandbox is " + what,
			Hint: "bring it back first, or ask for what there is",
		}
	}
	be, keeper, err := p.keeperOf(ctx, &t.box)
	if err != nil {
		return snap, err
	}
	ref, err := p.locate(ctx, be, &kept)
	if err != nil {
		return snap, err
	}
	if snap, err = copySnapshot(ctx, keeper, ref, id); err != nil {
		return snap, err
	}
	snap.Engine = cmp.Or(snap.Engine, kept.Engine)
	return snap, nil
}

// GetSnapshot returns what is recorded of a snapshot, by name or id.
func (p *Plane) GetSnapshot(ctx context.Context, ref string) (store.Snapshot, error) {
	who, err := p.Look(ctx, opSnapshotGet, ref)
	if err != nil {
		return store.Snapshot{}, err
	}
	s, err := p.findSnapshot(ctx, who.Tenant, ref)
	return s, core.Named(opSnapshotGet, err)
}

func (p *Plane) findSnapshot(ctx context.Context, tenant, ref string) (store.Snapshot, error) {
	if err := sandbox.ValidateName(ref); err != nil {
		return store.Snapshot{}, err
	}
	s, err := store.Read(ctx, p.Store, func(tx *store.Tx) (store.Snapshot, error) { return tx.Snapshot(ctx, tenant, ref) })
	if e := new(sandbox.Error); errors.As(err, &e) && e.Code == sandbox.CodeNotFound {
		e.Hint = "see what there is with: atoll snapshot ls"
	}
	return s, err
}

// Snapshots returns a page of the tenant's snapshots, newest first.
func (p *Plane) Snapshots(ctx context.Context, labels map[string]string, page store.Page) (all []store.Snapshot, next string, err error) {
	who, err := p.Look(ctx, opSnapshotList, "")
	if err != nil {
		return nil, "", err
	}
	err = p.Store.View(ctx, func(tx *store.Tx) (err error) {
		all, next, err = tx.Snapshots(ctx, who.Tenant, labels, page)
		return err
	})
	return all, next, core.Named(opSnapshotList, err)
}

// RemoveSnapshot removes a snapshot. Sandboxes that were made from it do not
// need it. One that is not there is CodeNotFound.
func (p *Plane) RemoveSnapshot(ctx context.Context, ref string) error {
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	return core.Named(opSnapshotRemove, p.Act(ctx, control.Action{Op: opSnapshotRemove, Subject: ref}, func(ctx context.Context) error {
		s, err := p.findSnapshot(ctx, who.Tenant, ref)
		if err != nil {
			return err
		}
		return p.removeSnapshot(ctx, &s)
	}))
}

// removeSnapshot forgets a snapshot, then removes its bytes: what is cut off in
// between is swept.
func (p *Plane) removeSnapshot(ctx context.Context, s *store.Snapshot) error {
	if p.writing.Has(s.ID) {
		return &sandbox.Error{Code: sandbox.CodeConflict, Subject: s.Name, Message: "the snapshot is being written", Hint: "try again"}
	}
	if err := p.Store.Update(ctx, func(tx *store.Tx) error { return tx.DeleteSnapshot(ctx, s.Tenant, s.ID) }); err != nil {
		return err
	}
	p.archive.forget(s.ID, s.Tenant)
	if err := p.Fault("snapshot.forgotten"); err != nil {
		return err
	}
	p.forgetEnvironment(ctx, sandbox.ID(s.ID))
	if _, err := p.Providers.Backend(ctx, s.Provider); err != nil {
		return nil //nolint:nilerr // what is left is swept when that provider is here again
	}
	return p.dropNow(ctx, s.Provider, s.ID)
}

// PruneSnapshots removes the tenant's snapshots with all of the labels from
// which no living sandbox was made, and returns them.
func (p *Plane) PruneSnapshots(ctx context.Context, labels map[string]string) (removed []store.Snapshot, err error) {
	who, err := guard.Principal(ctx)
	if err != nil {
		return nil, err
	}
	err = p.Act(ctx, control.Action{Op: opSnapshotRemove, Subject: "*"}, func(ctx context.Context) error {
		var used map[string]bool
		all, err := store.Read(ctx, p.Store, func(tx *store.Tx) (all []store.Snapshot, err error) {
			if used, err = usedByTemplates(ctx, tx, who.Tenant); err != nil {
				return nil, err
			}
			all, _, err = tx.Snapshots(ctx, who.Tenant, labels, store.Page{Limit: store.MaxPage})
			return all, err
		})
		if err != nil {
			return err
		}
		for _, s := range all {
			if s.Children > 0 || !s.Ready || used[s.ID] {
				continue
			}
			if err := p.removeSnapshot(ctx, &s); err != nil {
				return err
			}
			removed = append(removed, s)
		}
		return nil
	})
	return removed, core.Named(opSnapshotRemove, err)
}

// origin finds the snapshot that a sandbox is to be made from, and fills in
// what the snapshot says and the request does not, the environment included.
func (p *Plane) origin(ctx context.Context, tenant string, spec sandbox.Spec) (_ sandbox.Spec, id string, err error) {
	if spec.Snapshot == "" {
		return spec, "", nil
	}
	if err := spec.Validate(); err != nil {
		return spec, "", err
	}
	s, err := p.findSnapshot(ctx, tenant, spec.Snapshot)
	switch {
	case err != nil:
		return spec, "", err
	case !s.Ready:
		return spec, "", &sandbox.Error{Code: sandbox.CodeConflict, Subject: s.Name, Message: "the snapshot is being made", Hint: "try again"}
	case s.Node != p.Node && s.Archived.Archive == "":
		return spec, "", &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: s.Name, Message: "the snapshot is on another machine, which has not saved it yet",
			Hint: "try again when it is saved; see: atoll snapshot inspect " + s.Name,
		}
	}
	if spec.Provider = cmp.Or(spec.Provider, s.Provider); s.Provider != "" && spec.Provider != s.Provider {
		return spec, "", otherProvider(&s, spec.Provider)
	}
	if spec.Env, err = p.handOn(&s, spec.Env); err != nil {
		return spec, "", err
	}
	spec.Snapshot, spec.Image = "", s.Spec.Image
	spec.User, spec.Workdir = cmp.Or(spec.User, s.Spec.User), cmp.Or(spec.Workdir, s.Spec.Workdir)
	r, had := &spec.Resources, s.Spec.Resources
	r.CPUs, r.Memory, r.Disk, r.PIDs = cmp.Or(r.CPUs, had.CPUs), cmp.Or(r.Memory, had.Memory), cmp.Or(r.Disk, had.Disk), cmp.Or(r.PIDs, had.PIDs)
	return spec, s.ID, nil
}
