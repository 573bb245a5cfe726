package plane

import (
	"context"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/workspace"
	"github.com/atoll-run/atoll/internal/workspace/worktree"
	"github.com/atoll-run/atoll/sandbox"
)

// claim records that a sandbox gets the workspaces it asks for. They are locked
// in the order of their names, so that two sandboxes never wait for each other.
func (p *Plane) claim(ctx context.Context, tx *store.Tx, tenant string, spec *sandbox.Spec) error {
	if len(spec.Workspaces) == 0 {
		return nil
	}
	if err := p.shelved(); err != nil {
		return err
	}
	byName := func(a, b sandbox.WorkspaceMount) int { return strings.Compare(a.Name, b.Name) }
	for _, ref := range slices.SortedFunc(slices.Values(spec.Workspaces), byName) {
		if err := p.claimOne(ctx, tx, tenant, spec.ID, &ref); err != nil {
			return err
		}
	}
	return nil
}

func (p *Plane) claimOne(ctx context.Context, tx *store.Tx, tenant string, id sandbox.ID, ref *sandbox.WorkspaceMount) error {
	w, err := tx.LockWorkspace(ctx, tenant, ref.Name)
	if err != nil {
		return err
	}
	if w.Removing {
		return &sandbox.Error{Code: sandbox.CodeConflict, Subject: ref.Name, Message: "the workspace is being removed"}
	}
	mode := ref.Mode
	if mode == "" {
		mode = sandbox.WorkspaceExclusive
	}
	return tx.Attach(ctx, w, store.Attachment{Attachment: sandbox.Attachment{Sandbox: id, Mode: mode}, Node: p.Node})
}

// mount makes the directories of claimed workspaces ready and puts them into
// what the provider is asked for. The record of the sandbox does not know where
// they are.
func (p *Plane) mount(ctx context.Context, want control.CreateRequest) (control.CreateRequest, error) {
	refs := want.Spec.Workspaces
	if len(refs) == 0 {
		return want, nil
	}
	want.Spec.Workspaces = nil
	held, err := store.Read(ctx, p.Store, func(tx *store.Tx) ([]store.Held, error) { return tx.Held(ctx, want.Spec.ID) })
	if err != nil {
		return want, err
	}
	for i := range refs {
		at := slices.IndexFunc(held, func(h store.Held) bool { return h.Workspace.Name == refs[i].Name })
		if at < 0 {
			return want, core.Named(opCreate, &sandbox.Error{Code: sandbox.CodeConflict, Subject: refs[i].Name, Message: "the workspace is not attached any more"})
		}
		err := p.withWorkspace(ctx, held[at].Workspace, func(w *workspace.Workspace) error {
			mounts, err := p.mounts(ctx, held[at].Workspace, w, &refs[i])
			want.Spec.Mounts = slices.Concat(want.Spec.Mounts, mounts)
			return err
		})
		if err != nil {
			return want, core.Named(opCreate, err)
		}
	}
	return want, nil
}

// mounts returns what to show of a workspace. What may not be written is a
// mount of its own, so that it is the file server outside that refuses.
func (p *Plane) mounts(ctx context.Context, row store.Workspace, w *workspace.Workspace, ref *sandbox.WorkspaceMount) ([]sandbox.Mount, error) {
	if row.Bucket != "" {
		return p.bucketMounts(ctx, row, ref)
	}
	if ref.Mode == sandbox.WorkspaceRead {
		dir, err := p.cfg.Workspaces.Reading(ctx, w)
		return []sandbox.Mount{{Source: dir, Target: ref.Target(), ReadOnly: true}}, err
	}
	dir, err := p.cfg.Workspaces.Checkout(ctx, w)
	if err != nil {
		return nil, err
	}
	if err := core.FirstError(worktree.Subdirs(dir, ref.Writable, true), worktree.Subdirs(dir, ref.ReadOnly, false)); err != nil {
		return nil, err
	}
	return mountsOf(dir, ref), nil
}

// mountsOf returns what to show of a workspace that is in dir. A directory above
// a mount has one too, because whoever may rename it would move the mount away,
// and make what is read-only anew in its place.
func mountsOf(dir string, ref *sandbox.WorkspaceMount) []sandbox.Mount {
	readOnly := map[string]bool{".": len(ref.Writable) > 0}
	for _, sub := range ref.Writable {
		readOnly[sub] = false
	}
	for _, sub := range ref.ReadOnly {
		readOnly[sub] = true
	}
	for _, sub := range slices.Concat(ref.Writable, ref.ReadOnly) {
		above := path.Dir(sub)
		for above != "." {
			if _, ok := readOnly[above]; ok {
				break
			}
			above = path.Dir(above)
		}
		if readOnly[above] {
			continue // nothing there can be renamed
		}
		for between := path.Dir(sub); between != above; between = path.Dir(between) {
			readOnly[between] = false
		}
	}
	mounts := make([]sandbox.Mount, 0, len(readOnly))
	for _, sub := range slices.Sorted(maps.Keys(readOnly)) {
		mounts = append(mounts, sandbox.Mount{Source: path.Join(dir, sub), Target: path.Join(ref.Target(), sub), ReadOnly: readOnly[sub]})
	}
	return mounts
}

// persistTimeout bounds the persist of a sandbox that ended, which nobody may
// be waiting for.
const persistTimeout = time.Hour

// detach persists what a sandbox that has ended left in its workspaces, and lets
// others have them. If the blob store cannot be reached the workspace stays
// attached, and the next reconciliation tries again; what can never be
// persisted stays where it is until somebody mends that.
func (p *Plane) detach(ctx context.Context, id sandbox.ID, name string) error {
	if p.cfg.Workspaces == nil {
		return nil
	}
	held, err := store.Read(ctx, p.Store, func(tx *store.Tx) ([]store.Held, error) { return tx.Held(ctx, id) })
	if err != nil {
		return err
	}
	var failed []error
	for _, h := range held {
		fact := audit.Action{Tenant: h.Workspace.Tenant, Op: ops.WorkspaceDetach, Sandbox: id, Name: name, Subject: h.Workspace.Name}
		allowed := func() error { return nil }
		failed = append(failed, p.Audit.Do(ctx, fact, allowed, func(ctx context.Context) (audit.Outcome, error) {
			return audit.Outcome{}, p.withWorkspace(ctx, h.Workspace, func(w *workspace.Workspace) error { return p.letGo(ctx, h.Attachment, h.Workspace, w) })
		}))
	}
	return errors.Join(failed...)
}

func (p *Plane) letGo(ctx context.Context, a store.Attachment, row store.Workspace, w *workspace.Workspace) error {
	if row.Bucket != "" {
		if err := p.settleBucket(ctx, a, row); err != nil {
			return err
		}
	} else if a.Mode != sandbox.WorkspaceRead {
		all, err := p.attachments(ctx, row)
		if err != nil {
			return err
		}
		_, err = p.persist(ctx, row, w, "the sandbox "+string(a.Sandbox)+" ended", len(all) == 1)
		switch sandbox.CodeOf(err) {
		case "":
		case sandbox.CodeExhausted, sandbox.CodeInvalid, sandbox.CodeConflict, sandbox.CodeDenied, sandbox.CodeUnsupported:
			p.Report(ctx, err) // the problem is written down, and the files stay
		default:
			p.unsettled.Store(true)
			return err
		}
	}
	var left []store.Attachment
	err := p.Store.Update(ctx, func(tx *store.Tx) (err error) {
		if err = tx.Detach(ctx, a); err == nil {
			left, err = tx.Attachments(ctx, row.ID)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, other := range left {
		if other.Node == p.Node {
			return nil
		}
	}
	if row.Bucket != "" {
		return p.unmountBucket(row)
	}
	return p.cfg.Workspaces.Unread(row.ID)
}

// detachEnded lets go of the workspaces of sandboxes that are gone.
func (p *Plane) detachEnded(ctx context.Context) error {
	if p.cfg.Workspaces == nil {
		return nil
	}
	ended, err := store.Read(ctx, p.Store, func(tx *store.Tx) ([]store.Attachment, error) {
		return tx.Operator().Ended(ctx, p.Node)
	})
	if err != nil {
		return err
	}
	var failed []error
	for _, a := range ended {
		if !p.making.Has(a.Sandbox) {
			failed = append(failed, p.detach(ctx, a.Sandbox, ""))
		}
	}
	return errors.Join(failed...)
}

// detachLater is detach for whoever does not wait.
func (p *Plane) detachLater(id sandbox.ID, name string) {
	p.Go(func() { p.Report(p.Life, p.detach(p.Life, id, name)) })
}

// detachNow is detach for whoever removed the sandbox and may be gone himself.
func (p *Plane) detachNow(ctx context.Context, id sandbox.ID, name string) error {
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), persistTimeout)
	defer cancel()
	stop := context.AfterFunc(p.Life, cancel)
	defer stop()
	return p.detach(late, id, name)
}
