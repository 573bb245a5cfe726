package workspaces

import (
	"context"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/workspace"
	"github.com/atoll-run/atoll/internal/workspace/worktree"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Claim records that a sandbox has the workspaces of its spec. They are locked
// in the order of their names to avoid deadlocks. The sandbox that it replaces,
// if any, may have them, too.
func (s *Service) Claim(ctx context.Context, tx *store.Tx, tenant string, spec *sandbox.Spec, replaces sandbox.ID) error {
	if len(spec.Workspaces) == 0 {
		return nil
	}
	if err := s.enabled(); err != nil {
		return err
	}
	byName := func(a, b sandbox.WorkspaceMount) int { return strings.Compare(a.Name, b.Name) }
	for _, ref := range slices.SortedFunc(slices.Values(spec.Workspaces), byName) {
		if err := s.claimOne(ctx, tx, tenant, spec.ID, &ref, replaces); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) claimOne(ctx context.Context, tx *store.Tx, tenant string, id sandbox.ID, ref *sandbox.WorkspaceMount, replaces sandbox.ID) error {
	w, err := tx.Workspaces().Lock(ctx, tenant, ref.Name)
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
	return tx.Workspaces().Attach(ctx, w, store.Attachment{Attachment: durable.Attachment{Sandbox: id, Mode: mode}, Node: s.Node}, replaces)
}

// Mount prepares the directories of claimed workspaces and returns a plan
// that mounts them. These directories are not recorded with the sandbox. If the
// provider cannot mount, the caller calls Load after the sandbox was created.
func (s *Service) Mount(ctx context.Context, want plan.Plan, facts func(context.Context) (driver.Facts, error)) (plan.Plan, error) {
	refs := want.Spec.Workspaces
	if len(refs) == 0 {
		return want, nil
	}
	can, err := facts(ctx)
	if err != nil {
		return want, err
	}
	want.Spec.Workspaces = nil
	held, err := store.Read(ctx, s.Store, func(tx *store.Tx) ([]store.Held, error) { return tx.Workspaces().Held(ctx, want.Spec.ID) })
	if err != nil {
		return want, err
	}
	for i := range refs {
		at := slices.IndexFunc(held, func(h store.Held) bool { return h.Workspace.Name == refs[i].Name })
		if at < 0 {
			return want, &sandbox.Error{Code: sandbox.CodeConflict, Subject: refs[i].Name, Message: "the workspace is not attached any more"}
		}
		err := s.withWorkspace(ctx, held[at].Workspace, func(w *workspace.Workspace) error {
			if !can.Capabilities.Mounts {
				return s.prepareCopy(ctx, held[at], w, &refs[i], &can)
			}
			mounts, err := s.mounts(ctx, held[at].Workspace, w, &refs[i])
			want.Spec.Mounts = slices.Concat(want.Spec.Mounts, mounts)
			return err
		})
		if err != nil {
			return want, err
		}
	}
	return want, nil
}

// mounts returns the mounts of a workspace. A read-only directory is a separate
// mount, so that the file server outside the sandbox refuses writes.
func (s *Service) mounts(ctx context.Context, row store.Workspace, w *workspace.Workspace, ref *sandbox.WorkspaceMount) ([]sandbox.Mount, error) {
	if row.Bucket != "" {
		return s.bucketMounts(ctx, row, ref)
	}
	if ref.Mode == sandbox.WorkspaceRead {
		dir, err := s.trees.Reading(ctx, w)
		return []sandbox.Mount{{Source: dir, Target: ref.Target(), ReadOnly: true}}, err
	}
	dir, err := s.trees.Checkout(ctx, w)
	if err != nil {
		return nil, err
	}
	if err := core.FirstError(worktree.Subdirs(dir, ref.Writable, true), worktree.Subdirs(dir, ref.ReadOnly, false)); err != nil {
		return nil, err
	}
	return mountsOf(dir, ref), nil
}

// mountsOf returns the mounts of a workspace in dir. A directory above a mount
// is a mount, too. Otherwise it could be renamed together with the mount, and a
// writable directory could replace a read-only one.
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

// persistTimeout limits saving the workspaces of a sandbox that ended.
const persistTimeout = time.Hour

// detach persists the workspaces of a sandbox that has ended, and releases
// them. If the blob store cannot be reached, a workspace stays attached until
// the next reconciliation. If its content cannot be persisted at all, it stays
// in the working directory, and the problem is recorded.
func (s *Service) detach(ctx context.Context, id sandbox.ID, name string) error {
	if s.trees == nil {
		return nil
	}
	held, err := store.Read(ctx, s.Store, func(tx *store.Tx) ([]store.Held, error) { return tx.Workspaces().Held(ctx, id) })
	if err != nil {
		return err
	}
	var failed []error
	for _, h := range held {
		fact := audit.Action{Tenant: h.Workspace.Tenant, Op: ops.WorkspaceDetach, Sandbox: id, Name: name, Subject: h.Workspace.Name}
		allowed := func() error { return nil }
		failed = append(failed, s.Audit.Do(ctx, fact, allowed, func(ctx context.Context) (audit.Outcome, error) {
			return audit.Outcome{}, s.withWorkspace(ctx, h.Workspace, func(w *workspace.Workspace) error { return s.release(ctx, h.Attachment, h.Workspace, w) })
		}))
	}
	return errors.Join(failed...)
}

func (s *Service) release(ctx context.Context, a store.Attachment, row store.Workspace, w *workspace.Workspace) error {
	if row.Bucket != "" {
		if err := s.flushBucket(ctx, a, row); err != nil {
			return err
		}
	} else if a.Mode != sandbox.WorkspaceRead {
		all, err := s.attachments(ctx, row)
		if err != nil {
			return err
		}
		_, err = s.persist(ctx, row, w, "the sandbox "+string(a.Sandbox)+" ended", len(all) == 1)
		switch sandbox.CodeOf(err) {
		case "":
		case sandbox.CodeExhausted, sandbox.CodeInvalid, sandbox.CodeConflict, sandbox.CodeDenied, sandbox.CodeUnsupported:
			s.Report(ctx, err) // persist has recorded the problem
		default:
			s.sandboxes.RecheckSoon()
			return err
		}
	}
	var left []store.Attachment
	err := s.Store.Update(ctx, func(tx *store.Tx) (err error) {
		if err = tx.Workspaces().Detach(ctx, a); err == nil {
			left, err = tx.Workspaces().Attachments(ctx, row.ID)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, other := range left {
		if other.Node == s.Node {
			return nil
		}
	}
	if row.Bucket != "" {
		return s.unmountBucket(row)
	}
	return s.trees.Unread(row.ID)
}

// DetachEnded releases the workspaces of sandboxes that are gone.
func (s *Service) DetachEnded(ctx context.Context) error {
	if s.trees == nil {
		return nil
	}
	ended, err := store.Read(ctx, s.Store, func(tx *store.Tx) ([]store.Attachment, error) {
		return tx.Operator().Ended(ctx, s.Node)
	})
	if err != nil {
		return err
	}
	var failed []error
	for _, a := range ended {
		if !s.sandboxes.Creating(a.Sandbox) {
			failed = append(failed, s.detach(ctx, a.Sandbox, ""))
		}
	}
	return errors.Join(failed...)
}

// DetachLater persists and releases the workspaces of an ended sandbox in the
// background.
func (s *Service) DetachLater(id sandbox.ID, name string) {
	s.Go(func() { s.Report(s.Life, s.detach(s.Life, id, name)) })
}

// DetachNow persists and releases the workspaces of a sandbox that was removed, even
// if ctx ends meanwhile.
func (s *Service) DetachNow(ctx context.Context, id sandbox.ID, name string) error {
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), persistTimeout)
	defer cancel()
	stop := context.AfterFunc(s.Life, cancel)
	defer stop()
	return s.detach(late, id, name)
}
