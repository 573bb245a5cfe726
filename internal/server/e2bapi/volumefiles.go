package e2bapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// volumeFiles are the files of a volume. Sandboxes may change them at any time,
// so every path is resolved below the directory of the workspace, and never
// cached.
type volumeFiles struct {
	workspaces Workspaces
	name       string
}

// volumeUser is the user of E2B's sandboxes. It owns files that are created without
// an owner.
const volumeUser = 1000

// local returns the path within a volume.
func local(given string) string {
	return cmp.Or(strings.TrimPrefix(path.Clean("/"+given), "/"), ".")
}

// fileError returns an error that callers may see.
func fileError(err error, given string) error {
	var known *sandbox.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	e := &sandbox.Error{Code: sandbox.CodeInvalid, Op: "volume", Subject: given, Message: "this cannot be done with it"}
	var errno syscall.Errno
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.Code, e.Message = sandbox.CodeNotFound, "there is no such file"
	case errors.Is(err, fs.ErrExist):
		e.Code, e.Message = sandbox.CodeAlreadyExists, "there is such a file already"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		e.Code, e.Message = sandbox.CodeExhausted, "there is no space left"
	case errors.Is(err, fs.ErrPermission):
		e.Code, e.Message = sandbox.CodeDenied, "the daemon may not do that"
	case errors.As(err, &errno):
		e.Message = errno.Error()
	}
	return e
}

// volumeEntryOf describes a file.
func volumeEntryOf(root *os.Root, name string) (e volumeEntry, err error) {
	info, err := root.Lstat(name)
	if err != nil {
		return e, err
	}
	stat := info.Sys().(*syscall.Stat_t)
	at := func(t syscall.Timespec) time.Time { return time.Unix(t.Unix()).UTC().Truncate(time.Microsecond) }
	e = volumeEntry{
		Name: path.Base(name), Type: "unknown", Path: path.Join("/", name), Size: info.Size(), Mode: uint32(info.Mode().Perm()), UID: stat.Uid, GID: stat.Gid,
		ATime: at(stat.Atim), MTime: at(stat.Mtim), CTime: at(stat.Ctim),
	}
	switch {
	case info.Mode().IsRegular():
		e.Type = "file"
	case info.IsDir():
		e.Type = "directory"
	case info.Mode()&fs.ModeSymlink != 0:
		e.Type = "symlink"
		e.Target, err = root.Readlink(name)
	}
	if name == "." {
		e.Name = "/"
	}
	return e, err
}

func (v volumeFiles) read(ctx context.Context, given string, do func(root *os.Root, name string) error) error {
	return v.workspaces.ReadWorkspace(ctx, v.name, func(root *os.Root) error { return fileError(do(root, local(given)), given) })
}

func (v volumeFiles) write(ctx context.Context, given string, do func(root *os.Root, name string) error) (e volumeEntry, err error) {
	err = v.workspaces.WriteWorkspace(ctx, v.name, func(root *os.Root) error {
		name := local(given)
		err := do(root, name)
		if err == nil {
			e, err = volumeEntryOf(root, name)
		}
		return fileError(err, given)
	})
	return e, err
}

func (v volumeFiles) Stat(ctx context.Context, given string) (e volumeEntry, err error) {
	err = v.read(ctx, given, func(root *os.Root, name string) error {
		e, err = volumeEntryOf(root, name)
		return err
	})
	return e, err
}

// maxVolumeList limits a listing.
const maxVolumeList = 100_000

func (v volumeFiles) List(ctx context.Context, given string, depth int) (all []volumeEntry, err error) {
	err = v.read(ctx, given, func(root *os.Root, name string) error {
		info, err := root.Stat(name)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return syscall.ENOTDIR
		}
		return listBelow(ctx, root, name, depth, &all)
	})
	return all, err
}

func listBelow(ctx context.Context, root *os.Root, name string, depth int, all *[]volumeEntry) error {
	entries, err := fs.ReadDir(root.FS(), name)
	if err != nil {
		return err
	}
	for _, d := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		e, err := volumeEntryOf(root, path.Join(name, d.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a sandbox removed it meanwhile
		}
		if err != nil {
			return err
		}
		if *all = append(*all, e); len(*all) > maxVolumeList {
			return &sandbox.Error{Code: sandbox.CodeExhausted, Op: "volume", Subject: name, Message: "holds too many files to list", Hint: "list its directories one by one"}
		}
		if e.Type == "directory" && depth > 1 {
			if err := listBelow(ctx, root, path.Join(name, d.Name()), depth-1, all); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v volumeFiles) Read(ctx context.Context, given string, use func(io.ReadSeeker, volumeEntry) error) error {
	var f *os.File
	var e volumeEntry
	// An open file stays readable, so the workspace is not locked during a slow download.
	err := v.read(ctx, given, func(root *os.Root, name string) (err error) {
		// O_NONBLOCK: a pipe that a sandbox created must not block.
		if f, err = root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0); err != nil {
			return err
		}
		info, err := f.Stat()
		if err == nil && !info.Mode().IsRegular() {
			err = syscall.EISDIR
		}
		if err != nil {
			_ = f.Close() // it was not read
			return err
		}
		e.MTime, e.Size = info.ModTime(), info.Size()
		return nil
	})
	if err != nil {
		return err
	}
	defer f.Close()
	return use(f, e)
}

// setOwner sets the owner and the permissions of a file.
func setOwner(root *os.Root, name string, how volumeWrite, fresh bool) error {
	uid, gid := -1, -1
	if fresh {
		uid, gid = volumeUser, volumeUser
	}
	if how.UID != nil {
		uid = *how.UID
	}
	if how.GID != nil {
		gid = *how.GID
	}
	if uid >= 0 || gid >= 0 {
		err := root.Lchown(name, uid, gid)
		if asked := how.UID != nil || how.GID != nil; err != nil && (asked || !errors.Is(err, fs.ErrPermission)) {
			return err // a daemon that is not root owns everything itself
		}
	}
	if how.Mode != nil {
		return root.Chmod(name, fs.FileMode(*how.Mode))
	}
	return nil
}

// makeParents makes the directories above a file.
func makeParents(root *os.Root, name string) error {
	dir := path.Dir(name)
	if dir == "." {
		return nil
	}
	if _, err := root.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeParents(root, dir); err != nil {
		return err
	}
	if err := root.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return setOwner(root, dir, volumeWrite{}, true)
}

// Write to another file first, so that no partial file is visible and the
// workspace is not locked during a slow upload.
func (v volumeFiles) Write(ctx context.Context, given string, from io.Reader, how volumeWrite) (e volumeEntry, err error) {
	const op = ".atoll-upload-"
	tmp, done := op+strings.ToLower(rand.Text()), false
	var f *os.File
	_, err = v.write(ctx, tmp, func(root *os.Root, name string) (err error) {
		f, err = root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	})
	if err != nil {
		return e, err
	}
	defer func() {
		_ = f.Close() // it may be closed already
		if !done {
			late := context.WithoutCancel(ctx)
			_ = v.Remove(late, tmp)
		}
	}()
	if _, err := io.Copy(f, from); err != nil {
		return e, fileError(err, given)
	}
	if err := f.Close(); err != nil {
		return e, fileError(err, given)
	}
	return v.write(ctx, given, func(root *os.Root, name string) error {
		if how.Force {
			if err := makeParents(root, name); err != nil {
				return err
			}
		}
		if info, err := root.Stat(name); err == nil && info.IsDir() {
			return syscall.EISDIR
		}
		if how.Mode == nil {
			mode := uint32(0o644)
			how.Mode = &mode
		}
		if err := setOwner(root, tmp, how, true); err != nil {
			return err
		}
		err := root.Rename(tmp, name)
		done = err == nil
		return err
	})
}

func (v volumeFiles) Mkdir(ctx context.Context, given string, how volumeWrite) (volumeEntry, error) {
	return v.write(ctx, given, func(root *os.Root, name string) error {
		if how.Force {
			if err := makeParents(root, name); err != nil {
				return err
			}
			if info, err := root.Stat(name); err == nil && info.IsDir() {
				return setOwner(root, name, how, false)
			}
		}
		if err := root.Mkdir(name, 0o755); err != nil {
			return err
		}
		return setOwner(root, name, how, true)
	})
}

func (v volumeFiles) Change(ctx context.Context, given string, how volumeWrite) (volumeEntry, error) {
	return v.write(ctx, given, func(root *os.Root, name string) error {
		if _, err := root.Lstat(name); err != nil {
			return err
		}
		return setOwner(root, name, how, false)
	})
}

func (v volumeFiles) Remove(ctx context.Context, given string) error {
	return v.workspaces.WriteWorkspace(ctx, v.name, func(root *os.Root) error {
		name := local(given)
		if name == "." {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "volume", Subject: given, Message: "a volume is removed as a whole"}
		}
		_, err := root.Lstat(name)
		if err == nil {
			err = root.RemoveAll(name)
		}
		return fileError(err, given)
	})
}
