package workspaces

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/tree"
	"github.com/atoll-run/atoll/internal/workspace"
	"github.com/atoll-run/atoll/sandbox"
)

// If a provider cannot mount workspaces, its sandboxes use copies. The working
// directory is copied to the sandbox before the first command. It is copied
// back whenever the workspace is saved: on request, before the sandbox is
// paused, stopped or removed, and periodically. So versions and history work as
// for mounted workspaces.

// prepareCopy prepares a workspace for Load. The caller holds its lock.
func (s *Service) prepareCopy(ctx context.Context, h store.Held, w *workspace.Workspace, ref *sandbox.WorkspaceMount, can *driver.Facts) error {
	refuse := func(message string) error {
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Subject: ref.Name, Message: message, Hint: "choose another provider; see: atoll provider ls"}
	}
	switch {
	case can.SharesFiles:
		return refuse("sandboxes of the provider " + can.Provider + " use the files of the machine, so they cannot have workspaces")
	case !can.Capabilities.Archive || !can.Capabilities.Files:
		return refuse("the provider " + can.Provider + " can neither mount workspaces nor copy directories")
	case h.Workspace.Bucket != "":
		return refuse("the workspace is a bucket, which the provider " + can.Provider + " cannot mount")
	case ref.Mode == sandbox.WorkspaceShared:
		return refuse("sandboxes of the provider " + can.Provider + " work on copies of workspaces, which cannot be shared")
	case len(ref.Writable) > 0 || len(ref.ReadOnly) > 0:
		return refuse("sandboxes of the provider " + can.Provider + " work on copies of workspaces, which are writable everywhere")
	case h.Attachment.Bridge == store.Copied:
		return nil // the snapshot that the sandbox starts from has the copy
	}
	return s.setBridge(ctx, h.Attachment, store.Copying)
}

func (s *Service) setBridge(ctx context.Context, a store.Attachment, to store.Bridge) error {
	a.Bridge = to
	return s.Store.Update(ctx, func(tx *store.Tx) error { return tx.Workspaces().SetBridge(ctx, a) })
}

func (s *Service) held(ctx context.Context, id sandbox.ID) ([]store.Held, error) {
	return store.Read(ctx, s.Store, func(tx *store.Tx) ([]store.Held, error) { return tx.Workspaces().Held(ctx, id) })
}

// Load copies workspaces to a new sandbox, except those that were already
// copied. It is called before the first command.
func (s *Service) Load(ctx context.Context, sb *engine.Sandbox) error {
	all, err := s.held(ctx, sb.ID())
	if err != nil {
		return err
	}
	for _, h := range all {
		if h.Attachment.Bridge != store.Copying {
			continue
		}
		err := s.withWorkspace(ctx, h.Workspace, func(w *workspace.Workspace) error { return s.load(ctx, sb, h, w) })
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) load(ctx context.Context, sb *engine.Sandbox, h store.Held, w *workspace.Workspace) error {
	at, err := s.target(ctx, h)
	if err != nil {
		return err
	}
	from := s.trees.Checkout
	if h.Attachment.Mode == sandbox.WorkspaceRead {
		from = s.trees.Reading
	}
	dir, err := from(ctx, w)
	if err != nil {
		return err
	}
	files := sb.Files()
	if err := files.Remove(ctx, at, true); err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return err
	}
	r, out := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		_, err := tree.PackOwned(ctx, out, dir, path.Base(at))
		_ = out.CloseWithError(err)
		packed <- err
	}()
	err = files.Import(ctx, path.Dir(at), r, driver.ImportOptions{})
	_ = r.CloseWithError(err)
	if failed := <-packed; failed != nil && err == nil {
		err = failed
	}
	if err != nil {
		return err
	}
	return s.setBridge(ctx, h.Attachment, store.Copied)
}

// target returns the mount point of a workspace in a sandbox.
func (s *Service) target(ctx context.Context, h store.Held) (string, error) {
	sb, err := store.Read(ctx, s.Store, func(tx *store.Tx) (store.Sandbox, error) { return tx.Operator().Sandbox(ctx, h.Attachment.Sandbox) })
	if err != nil {
		return "", err
	}
	for _, ref := range sb.Spec.Workspaces {
		if ref.Name == h.Workspace.Name {
			return path.Clean(ref.Target()), nil
		}
	}
	return "", &sandbox.Error{Code: sandbox.CodeConflict, Subject: h.Workspace.Name, Message: "the sandbox does not have this workspace"}
}

// fetchLast copies the workspace back from the sandbox that attached it last,
// if that sandbox is running and has a writable copy. The caller holds the
// lock.
func (s *Service) fetchLast(ctx context.Context, attached []store.Attachment, row store.Workspace) error {
	last := -1
	for i, a := range attached {
		if a.Mode != sandbox.WorkspaceRead {
			last = i
		}
	}
	if last < 0 || attached[last].Bridge != store.Copied {
		return nil
	}
	sb, err := s.sandboxes.Running(ctx, attached[last].Sandbox)
	if err != nil || sb == nil {
		return err
	}
	at, err := s.target(ctx, store.Held{Attachment: attached[last], Workspace: row})
	if err != nil {
		return err
	}
	return s.trees.Replace(row.ID, func(dir string) error { return fetch(ctx, sb.Files(), at, dir) })
}

// fetch copies a directory of a sandbox to dir, as "tree". A missing directory
// counts as empty.
func fetch(ctx context.Context, files engine.Files, at, dir string) error {
	_, err := files.Stat(ctx, at)
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound:
		made := filepath.Join(dir, "tree")
		return errors.Join(os.Mkdir(made, 0o700), os.Chmod(made, 0o777)) // any user of the sandbox may write to it
	case err != nil:
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, out := io.Pipe()
	exported := make(chan error, 1)
	go func() {
		err := files.Export(ctx, at, out, driver.ExportOptions{})
		_ = out.CloseWithError(err)
		exported <- err
	}()
	_, err = tree.UnpackOwned(ctx, r, dir, "tree")
	if err == nil {
		_, err = io.Copy(io.Discard, r) // data after the end mark
	}
	_ = r.CloseWithError(err)
	if failed := <-exported; failed != nil && (err == nil || sandbox.CodeOf(failed) != "") {
		return failed
	}
	return err
}

// Fetch copies the writable workspaces of a sandbox back to the working
// directories. Call it before the sandbox ends.
func (s *Service) Fetch(ctx context.Context, id sandbox.ID) error {
	return s.eachCopy(ctx, id, func(store.Workspace, *workspace.Workspace) error { return nil })
}

// Save is Fetch, and creates a version of each workspace.
func (s *Service) Save(ctx context.Context, id sandbox.ID, note string) error {
	return s.eachCopy(ctx, id, func(row store.Workspace, w *workspace.Workspace) error {
		_, err := s.persist(ctx, row, w, note, false)
		return err
	})
}

func (s *Service) eachCopy(ctx context.Context, id sandbox.ID, do func(store.Workspace, *workspace.Workspace) error) error {
	if s.trees == nil {
		return nil
	}
	all, err := s.held(ctx, id)
	if err != nil {
		return err
	}
	for _, h := range all {
		if h.Attachment.Bridge != store.Copied || h.Attachment.Mode == sandbox.WorkspaceRead || h.Attachment.Node != s.Node {
			continue
		}
		err := s.withWorkspace(ctx, h.Workspace, func(w *workspace.Workspace) error {
			attached, err := s.attachments(ctx, h.Workspace)
			if err == nil && newer(attached, id) {
				return nil // another sandbox replaced it and has all its files
			}
			if err == nil {
				err = s.fetchLast(ctx, attached, h.Workspace)
			}
			if err != nil {
				return err
			}
			return do(h.Workspace, w)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// newer reports whether another sandbox attached the workspace for writing
// after the given one.
func newer(attached []store.Attachment, id sandbox.ID) (is bool) {
	for _, a := range attached {
		if a.Mode != sandbox.WorkspaceRead {
			is = a.Sandbox != id
		}
	}
	return is
}

// Watch periodically saves the copies that sandboxes write to, until ctx ends.
func (s *Service) Watch(ctx context.Context) {
	if s.trees == nil {
		return
	}
	t := time.NewTicker(s.every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		all, err := store.Read(ctx, s.Store, func(tx *store.Tx) ([]store.Attachment, error) { return tx.Operator().Bridged(ctx, s.Node) })
		for _, a := range all {
			err = errors.Join(err, s.Save(ctx, a.Sandbox, "saved while the sandbox "+string(a.Sandbox)+" was running"))
		}
		if ctx.Err() == nil {
			s.Report(ctx, err)
		}
	}
}
