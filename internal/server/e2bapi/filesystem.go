package e2bapi

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"

	"connectrpc.com/connect"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/sandbox"
)

// filesystemAPI serves the filesystem service.
type filesystemAPI struct {
	*guest
	entrance Entrance
	watchers watchers
}

// routes returns the handler of the filesystem service.
func (h *filesystemAPI) routes() http.Handler {
	mux := http.NewServeMux()
	unary(mux, envd.FilesystemStat, h.stat, h.guest)
	unary(mux, envd.FilesystemMakeDir, h.makeDir, h.guest)
	unary(mux, envd.FilesystemMove, h.move, h.guest)
	unary(mux, envd.FilesystemListDir, h.listDir, h.guest)
	unary(mux, envd.FilesystemRemove, h.remove, h.guest)
	unary(mux, envd.FilesystemCreateWatcher, h.createWatcher, h.guest)
	unary(mux, envd.FilesystemGetWatcherEvents, h.watcherEvents, h.guest)
	unary(mux, envd.FilesystemRemoveWatcher, h.removeWatcher, h.guest)
	serverStream(mux, envd.FilesystemWatchDir, h.watchDir, h.guest)
	return mux
}

func (h *filesystemAPI) stat(ctx context.Context, c *call, req *envd.PathRequest) (*envd.EntryResponse, error) {
	p, err := c.user.path(req.Path)
	if err != nil {
		return nil, err
	}
	return c.entryAt(ctx, p)
}

func (h *filesystemAPI) makeDir(ctx context.Context, c *call, req *envd.PathRequest) (*envd.EntryResponse, error) {
	p, err := c.user.path(req.Path)
	if err != nil {
		return nil, err
	}
	switch info, err := c.resolve(ctx, p); {
	case err == nil && info.Type == sandbox.TypeDir:
		return nil, &sandbox.Error{Code: sandbox.CodeAlreadyExists, Subject: p, Message: "the directory already exists"}
	case err == nil:
		return nil, invalid("path", "%.200q is a file", p)
	case sandbox.CodeOf(err) != sandbox.CodeNotFound:
		return nil, err
	}
	if err := c.box.Files().Mkdir(ctx, p, driver.MkdirOptions{Parents: true, Owner: c.user.name}); err != nil {
		return nil, err
	}
	return c.entryAt(ctx, p)
}

func (h *filesystemAPI) move(ctx context.Context, c *call, req *envd.MoveRequest) (*envd.EntryResponse, error) {
	from, err := c.user.path(req.Source)
	if err != nil {
		return nil, err
	}
	to, err := c.user.path(req.Destination)
	if err != nil {
		return nil, err
	}
	files := c.box.Files()
	if _, err := files.Stat(ctx, from); err != nil {
		return nil, err
	}
	if err := files.Mkdir(ctx, path.Dir(to), driver.MkdirOptions{Parents: true, Owner: c.user.name}); err != nil {
		return nil, err
	}
	if err := files.Move(ctx, from, to, true); err != nil {
		return nil, err
	}
	return c.entryAt(ctx, to)
}

func (h *filesystemAPI) remove(ctx context.Context, c *call, req *envd.PathRequest) (*envd.Empty, error) {
	p, err := c.user.path(req.Path)
	if err != nil {
		return nil, err
	}
	if err = c.box.Files().Remove(ctx, p, true); sandbox.CodeOf(err) == sandbox.CodeNotFound {
		err = nil
	}
	return &envd.Empty{}, err
}

// maxDepth bounds a listing.
const maxDepth = 1 << 10

func (h *filesystemAPI) listDir(ctx context.Context, c *call, req *envd.ListDirRequest) (*envd.ListDirResponse, error) {
	p, err := c.user.path(req.Path)
	if err != nil {
		return nil, err
	}
	root, err := c.resolve(ctx, p)
	if err != nil {
		return nil, err
	}
	if root.Type != sandbox.TypeDir {
		return nil, invalid("path", "%.200q is not a directory", p)
	}
	res := &envd.ListDirResponse{}
	for info, err := range c.box.Files().List(ctx, root.Path, driver.ListOptions{Depth: int(max(1, min(req.Depth, maxDepth)))}) {
		if err != nil {
			return nil, err
		}
		info.Path = path.Join(p, info.Path)
		res.Entries = append(res.Entries, c.entry(ctx, info))
	}
	return res, nil
}

// entryAt describes the file at a path.
func (c *call) entryAt(ctx context.Context, p string) (*envd.EntryResponse, error) {
	info, err := c.box.Files().Stat(ctx, p)
	if err != nil {
		return nil, err
	}
	info.Path = p
	return &envd.EntryResponse{Entry: c.entry(ctx, info)}, nil
}

// entry is a file as E2B describes it: a link by what it leads to.
func (c *call) entry(ctx context.Context, info sandbox.FileInfo) *envd.EntryInfo {
	shown, at := info, info.Path
	e := &envd.EntryInfo{Name: path.Base(at), Path: at, Type: fileType(info.Type)}
	if info.Type == sandbox.TypeSymlink {
		e.Type = envd.TypeUnspecified
		if target, err := c.resolve(ctx, at); err == nil {
			e.Type, e.SymlinkTarget = fileType(target.Type), &target.Path
			shown = target
		} else {
			e.SymlinkTarget = &info.Target
		}
	}
	modified := shown.ModTime.UTC()
	e.Size, e.Mode, e.ModifiedTime = shown.Size, shown.Mode&0o777, &modified
	e.Permissions = permissions(info)
	e.Owner, e.Group = nameOf(c.user.names.users, shown.UID), nameOf(c.user.names.groups, shown.GID)
	return e
}

func fileType(t sandbox.FileType) envd.FileType {
	switch t {
	case sandbox.TypeFile:
		return envd.TypeFile
	case sandbox.TypeDir:
		return envd.TypeDirectory
	}
	return envd.TypeUnspecified
}

// permissions are written as Go writes them.
func permissions(info sandbox.FileInfo) string {
	mode := fs.FileMode(info.Mode & 0o777)
	switch info.Type {
	case sandbox.TypeDir:
		mode |= fs.ModeDir
	case sandbox.TypeSymlink:
		mode |= fs.ModeSymlink
	case sandbox.TypeFIFO:
		mode |= fs.ModeNamedPipe
	case sandbox.TypeSocket:
		mode |= fs.ModeSocket
	case sandbox.TypeDevice:
		mode |= fs.ModeDevice
	}
	for bit, m := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if info.Mode&bit != 0 {
			mode |= m
		}
	}
	return mode.String()
}

// maxLinks is how many links are followed, as in Linux.
const maxLinks = 40

// resolve describes what a path leads to when all links are followed, and where
// that is.
func (c *call) resolve(ctx context.Context, p string) (sandbox.FileInfo, error) {
	files := c.box.Files()
	rest, at := strings.Split(strings.Trim(p, "/"), "/"), "/"
	info, err := files.Stat(ctx, p)
	if err != nil || info.Type != sandbox.TypeSymlink {
		info.Path = p
		return info, err
	}
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		next := path.Join(at, name)
		if info, err = files.Stat(ctx, next); err != nil {
			return info, err
		}
		if info.Type != sandbox.TypeSymlink {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return info, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("%.200q leads through too many links", p))
		}
		if strings.HasPrefix(info.Target, "/") {
			at = "/"
		}
		rest = append(strings.Split(strings.Trim(path.Clean(info.Target), "/"), "/"), rest...)
	}
	if info, err = files.Stat(ctx, at); err != nil {
		return info, err
	}
	info.Path = at
	return info, nil
}
