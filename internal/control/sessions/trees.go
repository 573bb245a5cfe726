package sessions

import (
	"archive/tar"
	"context"
	"io"
	"path"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// trees copies files between sandboxes.
type trees struct{ sandboxes Sandboxes }

// carriesTree reports whether the files below /workspace are copied when a
// session moves: workspaces and directories of the machine are mounted again.
func carriesTree(row *store.Session) bool {
	for _, mount := range row.Spec.Mounts {
		if mount.Target == sandbox.WorkspaceDir || strings.HasPrefix(mount.Target, sandbox.WorkspaceDir+"/") {
			return false
		}
	}
	return len(row.Spec.Workspaces) == 0
}

// copyTree replaces the files below /workspace in one sandbox with those of
// another.
func (s trees) copyTree(ctx context.Context, from, to sandbox.ID) error {
	r, w := io.Pipe()
	exported := make(chan error, 1)
	go func() {
		err := s.exportTree(ctx, from, w)
		_ = w.CloseWithError(err)
		exported <- err
	}()
	err := s.importTree(ctx, to, r)
	_ = r.CloseWithError(err) // also ends the export
	if failed := <-exported; failed != nil && err == nil {
		err = failed
	}
	return err
}

// exportTree writes the files below /workspace of a sandbox as a tar stream
// that begins with the directory itself. Without that directory, there are no
// files.
func (s trees) exportTree(ctx context.Context, from sandbox.ID, w io.Writer) error {
	ctx, cancel := context.WithCancel(ctx) // the sandbox is in use until it ends
	defer cancel()
	files, err := s.sandboxes.Files(ctx, string(from))
	if err != nil {
		return err
	}
	switch _, err := files.Stat(ctx, sandbox.WorkspaceDir); {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound:
		return tar.NewWriter(w).Close()
	case err != nil:
		return err
	}
	return files.Export(ctx, sandbox.WorkspaceDir, w, driver.ExportOptions{})
}

// importTree replaces the files below /workspace of a sandbox with those of a
// tar stream of exportTree.
func (s trees) importTree(ctx context.Context, to sandbox.ID, r io.Reader) error {
	ctx, cancel := context.WithCancel(ctx) // the sandbox is in use until it ends
	defer cancel()
	files, err := s.sandboxes.Files(ctx, string(to))
	if err != nil {
		return err
	}
	switch err := files.Remove(ctx, sandbox.WorkspaceDir, true); sandbox.CodeOf(err) {
	case "", sandbox.CodeNotFound:
	case sandbox.CodeDenied: // the directory of a machine's owner, who has other files there
	default:
		return err
	}
	return files.Import(ctx, path.Dir(sandbox.WorkspaceDir), r, driver.ImportOptions{})
}
