package daemon

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

	"github.com/atoll-run/atoll/internal/control/plane"
	"github.com/atoll-run/atoll/internal/server/e2bapi"
	"github.com/atoll-run/atoll/sandbox"
)

func e2bVolume(w sandbox.Workspace) e2bapi.Volume { return e2bapi.Volume{ID: w.ID, Name: w.Name} }

func (s e2bService) CreateVolume(ctx context.Context, name string) (e2bapi.Volume, error) {
	w, err := s.plane.Workspaces.CreateWorkspace(ctx, sandbox.NewWorkspace{Name: name})
	return e2bVolume(w), err
}

func (s e2bService) Volumes(ctx context.Context) ([]e2bapi.Volume, error) {
	all, err := s.plane.Workspaces.Workspaces(ctx)
	out := make([]e2bapi.Volume, len(all))
	for i, w := range all {
		out[i] = e2bVolume(w)
	}
	return out, err
}

func (s e2bService) RemoveVolume(ctx context.Context, name string) error {
	return s.plane.Workspaces.RemoveWorkspace(ctx, name)
}

func (s e2bService) EnterVolume(ctx context.Context, id string) (context.Context, e2bapi.Volume, error) {
	ctx, w, err := s.plane.Workspaces.EnterWorkspace(ctx, id)
	return ctx, e2bVolume(w), err
}

func (s e2bService) VolumeFiles(v e2bapi.Volume) e2bapi.VolumeFiles {
	return volumeFiles{s.plane, v.Name}
}

// volumeFiles are the files of a workspace. Sandboxes may be changing them, so
// that no name is trusted to lead where it did: all are followed below the
// directory that is the workspace.
type volumeFiles struct {
	plane *plane.Plane
	name  string
}

// The user of E2B's sandboxes, to whom files belong that name nobody.
const volumeUser = 1000

// local returns the path within a volume.
func local(given string) string {
	return cmp.Or(strings.TrimPrefix(path.Clean("/"+given), "/"), ".")
}

// fileError is an error of a file as a caller may see it.
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

// entry describes a file.
func entry(root *os.Root, name string) (e e2bapi.VolumeEntry, err error) {
	info, err := root.Lstat(name)
	if err != nil {
		return e, err
	}
	stat := info.Sys().(*syscall.Stat_t)
	at := func(t syscall.Timespec) time.Time { return time.Unix(t.Unix()).UTC().Truncate(time.Microsecond) }
	e = e2bapi.VolumeEntry{
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
	return v.plane.Workspaces.ReadWorkspace(ctx, v.name, func(root *os.Root) error { return fileError(do(root, local(given)), given) })
}

func (v volumeFiles) write(ctx context.Context, given string, do func(root *os.Root, name string) error) (e e2bapi.VolumeEntry, err error) {
	err = v.plane.Workspaces.WriteWorkspace(ctx, v.name, func(root *os.Root) error {
		name := local(given)
		err := do(root, name)
		if err == nil {
			e, err = entry(root, name)
		}
		return fileError(err, given)
	})
	return e, err
}

func (v volumeFiles) Stat(ctx context.Context, given string) (e e2bapi.VolumeEntry, err error) {
	err = v.read(ctx, given, func(root *os.Root, name string) error {
		e, err = entry(root, name)
		return err
	})
	return e, err
}

// maxVolumeList bounds a listing.
const maxVolumeList = 100_000

func (v volumeFiles) List(ctx context.Context, given string, depth int) (all []e2bapi.VolumeEntry, err error) {
	err = v.read(ctx, given, func(root *os.Root, name string) error {
		info, err := root.Stat(name)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return syscall.ENOTDIR
		}
		return list(ctx, root, name, depth, &all)
	})
	return all, err
}

func list(ctx context.Context, root *os.Root, name string, depth int, all *[]e2bapi.VolumeEntry) error {
	entries, err := fs.ReadDir(root.FS(), name)
	if err != nil {
		return err
	}
	for _, d := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		e, err := entry(root, path.Join(name, d.Name()))
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
			if err := list(ctx, root, path.Join(name, d.Name()), depth-1, all); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v volumeFiles) Read(ctx context.Context, given string, use func(io.ReadSeeker, e2bapi.VolumeEntry) error) error {
	var f *os.File
	var e e2bapi.VolumeEntry
	// What is open stays readable, so that a slow reader keeps nobody waiting.
	err := v.read(ctx, given, func(root *os.Root, name string) (err error) {
		// A pipe that a sandbox put there must not make us wait.
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

// give sets the owner and the permissions of a file.
func give(root *os.Root, name string, how e2bapi.VolumeWrite, fresh bool) error {
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

// parents makes the directories above a file.
func parents(root *os.Root, name string) error {
	dir := path.Dir(name)
	if dir == "." {
		return nil
	}
	if _, err := root.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := parents(root, dir); err != nil {
		return err
	}
	if err := root.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return give(root, dir, e2bapi.VolumeWrite{}, true)
}

// Write takes what is written to a file beside it first, so that nobody sees a
// part, and waiting for a slow sender keeps nobody from the volume.
func (v volumeFiles) Write(ctx context.Context, given string, from io.Reader, how e2bapi.VolumeWrite) (e e2bapi.VolumeEntry, err error) {
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
		_ = f.Close() // it was closed, or is given up
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
			if err := parents(root, name); err != nil {
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
		if err := give(root, tmp, how, true); err != nil {
			return err
		}
		err := root.Rename(tmp, name)
		done = err == nil
		return err
	})
}

func (v volumeFiles) Mkdir(ctx context.Context, given string, how e2bapi.VolumeWrite) (e2bapi.VolumeEntry, error) {
	return v.write(ctx, given, func(root *os.Root, name string) error {
		if how.Force {
			if err := parents(root, name); err != nil {
				return err
			}
			if info, err := root.Stat(name); err == nil && info.IsDir() {
				return give(root, name, how, false)
			}
		}
		if err := root.Mkdir(name, 0o755); err != nil {
			return err
		}
		return give(root, name, how, true)
	})
}

func (v volumeFiles) Change(ctx context.Context, given string, how e2bapi.VolumeWrite) (e2bapi.VolumeEntry, error) {
	return v.write(ctx, given, func(root *os.Root, name string) error {
		if _, err := root.Lstat(name); err != nil {
			return err
		}
		return give(root, name, how, false)
	})
}

func (v volumeFiles) Remove(ctx context.Context, given string) error {
	return v.plane.Workspaces.WriteWorkspace(ctx, v.name, func(root *os.Root) error {
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
