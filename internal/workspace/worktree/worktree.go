// Package worktree manages the working directories of workspaces on this
// machine.
//
// Each workspace has its own directory:
//
//	tree       the working directory of the exclusive sandbox, once it is complete
//	base       the number of the version that tree was created from or last persisted as
//	dirty      exists while tree may contain unsaved changes
//	cache      the cache of the last persist
//	read/N     version N, for read-only sandboxes
//	new-*      incomplete directories of killed processes
//	unsaved-N  a tree created from version N with unsaved changes, while another machine
//	           has persisted a newer version; kept for a person to inspect
//
// New directories get their name when they are complete. The caller decides who
// may use a workspace, and must not use one workspace from two goroutines at
// once.
package worktree

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/workspace"
	"github.com/atoll-run/atoll/sandbox"
)

// Store is a directory with the workspaces in use on this machine, and the blob
// store with all workspaces.
type Store struct {
	dir   string
	blobs blob.Store
	key   []byte
}

// Open opens the directory, and creates it if missing. key encrypts encrypted
// workspaces; see [Key].
func Open(dir string, blobs blob.Store, key []byte) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, failed("open", err)
	}
	return &Store{dir: dir, blobs: blobs, key: key}, nil
}

// Key reads a key from a file that only its owner can read, and creates both if
// the file is missing. The key decrypts all encrypted workspaces; without it
// they are lost.
func Key(name string) ([]byte, error) {
	key, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return makeKey(name)
	}
	if err != nil {
		return nil, failed("key", err)
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, failed("key", err)
	}
	if info.Mode().Perm()&0o077 != 0 || len(key) != 32 {
		return nil, &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "workspace.key", Subject: name, Message: "must be a file of 32 bytes that only its owner can read",
			Hint: "restore the original file; without it encrypted workspaces are lost",
		}
	}
	return key, nil
}

// makeKey creates the key file atomically.
func makeKey(name string) ([]byte, error) {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	tmp := name + ".new"
	if err := os.WriteFile(tmp, key, 0o600); err != nil {
		return nil, failed("key", err)
	}
	if err := errors.Join(syncFile(tmp), os.Rename(tmp, name), syncFile(filepath.Dir(name))); err != nil {
		return nil, failed("key", err)
	}
	return key, nil
}

func syncFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Create creates a workspace in the blob store.
func (s *Store) Create(ctx context.Context, id string, encrypted bool) error {
	opts := workspace.CreateOptions{ID: id}
	if encrypted {
		opts.Key = s.key
	}
	_, err := workspace.Create(ctx, s.part(id), opts)
	return err
}

// begin completes a Create that was killed before anything was persisted.
func (s *Store) begin(ctx context.Context, id string, encrypted bool, lost error) (*workspace.Workspace, error) {
	for _, err := range s.part(id).List(ctx, "") {
		if err != nil {
			return nil, err
		}
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "workspace.open", Message: "the store is damaged: its description is missing", Cause: lost}
	}
	if err := s.Create(ctx, id, encrypted); err != nil {
		return nil, err
	}
	return s.Open(ctx, id, encrypted)
}

func (s *Store) part(id string) blob.Store { return blob.Below(s.blobs, "workspaces/"+id) }

// Open opens a workspace.
func (s *Store) Open(ctx context.Context, id string, encrypted bool) (*workspace.Workspace, error) {
	var key []byte
	if encrypted {
		key = s.key
	}
	w, err := workspace.Open(ctx, s.part(id), key)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		w, err = s.begin(ctx, id, encrypted, err)
	}
	if err == nil && w.ID() != id {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "workspace.open", Message: "the store is damaged: another workspace is in its place"}
	}
	return w, err
}

// Remove removes a workspace, here and from the blob store. It may be repeated.
func (s *Store) Remove(ctx context.Context, id string) error {
	if err := workspace.Delete(ctx, s.part(id)); err != nil {
		return err
	}
	return failed("remove", os.RemoveAll(s.path(id)))
}

func (s *Store) path(id string, elements ...string) string {
	return filepath.Join(append([]string{s.dir, id}, elements...)...)
}

// Checkout returns the working directory for an exclusive sandbox, with the
// content left by the last one, or the newest version if that is newer.
func (s *Store) Checkout(ctx context.Context, w *workspace.Workspace) (string, error) {
	id := w.ID()
	if err := s.sweep(id); err != nil {
		return "", err
	}
	latest, err := w.Latest(ctx)
	if err != nil {
		return "", err
	}
	tree := s.path(id, "tree")
	base, there := s.base(id)
	if there && base == latest.Number {
		return tree, s.mark(id)
	}
	if there {
		if err := s.setAside(id, base); err != nil {
			return "", err
		}
	}
	if err := s.restore(ctx, w, latest.Number, tree); err != nil {
		return "", err
	}
	if err := s.setBase(id, latest.Number); err != nil {
		return "", err
	}
	return tree, s.mark(id)
}

// base returns the version that the tree was created from, and whether a
// complete tree exists.
func (s *Store) base(id string) (int, bool) {
	text, err := os.ReadFile(s.path(id, "base"))
	if err != nil {
		return 0, false
	}
	n, err := strconv.Atoi(string(text))
	if err != nil {
		return 0, false
	}
	_, err = os.Lstat(s.path(id, "tree"))
	return n, err == nil
}

func (s *Store) setBase(id string, n int) error {
	tmp := s.path(id, "new-base")
	err := os.WriteFile(tmp, []byte(strconv.Itoa(n)), 0o600)
	return failed("checkout", errors.Join(err, os.Rename(tmp, s.path(id, "base"))))
}

func (s *Store) mark(id string) error {
	return failed("checkout", os.WriteFile(s.path(id, "dirty"), nil, 0o600))
}

// setAside moves or removes the tree to make room for a newer one. A tree with
// unsaved changes is kept.
func (s *Store) setAside(id string, base int) error {
	if _, err := os.Lstat(s.path(id, "dirty")); err == nil {
		kept := s.path(id, "unsaved-"+strconv.Itoa(base)+"-"+rand.Text()[:6])
		if err := os.Rename(s.path(id, "tree"), kept); err != nil {
			return failed("checkout", err)
		}
	}
	return failed("checkout", errors.Join(
		os.RemoveAll(s.path(id, "base")), os.RemoveAll(s.path(id, "cache")), os.RemoveAll(s.path(id, "dirty")), os.RemoveAll(s.path(id, "tree")),
	))
}

// restore creates a directory with a version, atomically.
func (s *Store) restore(ctx context.Context, w *workspace.Workspace, number int, at string) error {
	tmp := s.path(w.ID(), "new-"+rand.Text())
	if err := os.RemoveAll(at); err != nil {
		return failed("checkout", err)
	}
	// Any user of the sandbox may write there. Only sandboxes can access it.
	if err := errors.Join(os.MkdirAll(tmp, 0o700), os.MkdirAll(filepath.Dir(at), 0o700)); err != nil {
		return failed("checkout", err)
	}
	err := func() error {
		if number == 0 {
			return os.Chmod(tmp, 0o777)
		}
		root, err := os.OpenRoot(tmp)
		if err != nil {
			return err
		}
		_, err = w.Restore(ctx, number, root)
		return errors.Join(err, root.Close())
	}()
	if err == nil {
		err = os.Rename(tmp, at)
	}
	if err != nil {
		_ = os.RemoveAll(tmp) // otherwise the next sweep removes it
	}
	return failed("checkout", err)
}

// sweep removes what killed processes left.
func (s *Store) sweep(id string) error {
	if err := os.MkdirAll(s.path(id), 0o700); err != nil {
		return failed("checkout", err)
	}
	entries, err := os.ReadDir(s.path(id))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "new-") {
			err = errors.Join(err, os.RemoveAll(s.path(id, e.Name())))
		}
	}
	return failed("checkout", err)
}

// Subdirs checks that paths below a tree are real directories and not symbolic
// links, which could make a mount lead anywhere. It creates missing ones if mk
// is set.
func Subdirs(tree string, paths []string, mk bool) error {
	root, err := os.OpenRoot(tree)
	if err != nil {
		return failed("checkout", err)
	}
	defer func() { _ = root.Close() }() // nothing was written to it
	for _, p := range paths {
		at := ""
		for element := range strings.SplitSeq(p, "/") {
			at = filepath.Join(at, element)
			info, err := root.Lstat(at)
			if errors.Is(err, fs.ErrNotExist) && mk {
				if err = root.Mkdir(at, 0o777); err == nil {
					err = root.Chmod(at, 0o777) // regardless of the umask
				}
				if err == nil {
					info, err = root.Lstat(at)
				}
			}
			if err != nil || !info.IsDir() {
				return &sandbox.Error{
					Code: sandbox.CodeInvalid, Op: "workspace.attach", Subject: p, Message: "is not a directory of the workspace", Cause: err,
				}
			}
		}
	}
	return nil
}

// Reading returns a directory with the newest version, for read-only sandboxes.
func (s *Store) Reading(ctx context.Context, w *workspace.Workspace) (string, error) {
	if err := s.sweep(w.ID()); err != nil {
		return "", err
	}
	latest, err := w.Latest(ctx)
	if err != nil {
		return "", err
	}
	at := s.path(w.ID(), "read", strconv.Itoa(latest.Number))
	if _, err := os.Lstat(at); err == nil {
		return at, nil
	}
	return at, s.restore(ctx, w, latest.Number, at)
}

// Unread removes the directory of Reading. No sandbox may be using it.
func (s *Store) Unread(id string) error {
	return failed("detach", os.RemoveAll(s.path(id, "read")))
}

// Persist stores the tree as the newest version. If there is no tree, it
// returns the newest version. rest means that no sandbox uses the tree any
// more.
func (s *Store) Persist(ctx context.Context, w *workspace.Workspace, opts workspace.PersistOptions, rest bool) (workspace.Version, error) {
	id := w.ID()
	base, there := s.base(id)
	if !there {
		return w.Latest(ctx)
	}
	root, err := os.OpenRoot(s.path(id, "tree"))
	if err != nil {
		return workspace.Version{}, failed("persist", err)
	}
	defer func() { _ = root.Close() }() // errors after reading do not matter
	opts.Base, opts.Cache = base, s.path(id, "cache")
	v, err := w.Persist(ctx, root, opts)
	if sandbox.CodeOf(err) == sandbox.CodeConflict {
		// If we were killed after the commit and before recording it here, the newest
		// version is our own.
		if same, sameErr := s.become(ctx, w, root, opts); sameErr == nil {
			v, err = same, nil
		}
	}
	if err != nil {
		return v, err
	}
	if v.Number != base {
		if err := s.setBase(id, v.Number); err != nil {
			return v, err
		}
	}
	if rest {
		err = os.RemoveAll(s.path(id, "dirty"))
	}
	return v, failed("persist", err)
}

// become reports whether the tree equals the newest version.
func (s *Store) become(ctx context.Context, w *workspace.Workspace, root *os.Root, opts workspace.PersistOptions) (workspace.Version, error) {
	latest, err := w.Latest(ctx)
	if err != nil {
		return latest, err
	}
	if latest.Note != opts.Note || latest.Number < opts.Base {
		return latest, errors.New("another one's")
	}
	opts.Base, opts.Unchanged = latest.Number, true
	return w.Persist(ctx, root, opts)
}

// failed classifies errors of this machine's files; it returns other errors
// unchanged.
func failed(op string, err error) error {
	var known *sandbox.Error
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &known):
		return known
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "workspace." + op, Message: "the directories of workspaces cannot be used", Cause: err,
		Hint: "see the daemon's log for the cause",
	}
}

// Replace atomically replaces the tree of a workspace by the directory "tree"
// that fill creates in dir. The next version is still derived from the base of
// the old tree. There must be a tree, and no sandbox may be using it.
func (s *Store) Replace(id string, fill func(dir string) error) error {
	if _, there := s.base(id); !there {
		return &sandbox.Error{Code: sandbox.CodeConflict, Op: "workspace.replace", Subject: id, Message: "the workspace has no working directory here"}
	}
	tmp := s.path(id, "new-"+rand.Text())
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return failed("replace", err)
	}
	defer func() { _ = os.RemoveAll(tmp) }() // otherwise the next sweep removes it
	if err := fill(tmp); err != nil {
		return failed("replace", err)
	}
	if err := s.mark(id); err != nil {
		return err
	}
	made, tree := filepath.Join(tmp, "tree"), s.path(id, "tree")
	return failed("replace", unix.Renameat2(unix.AT_FDCWD, made, unix.AT_FDCWD, tree, unix.RENAME_EXCHANGE))
}
