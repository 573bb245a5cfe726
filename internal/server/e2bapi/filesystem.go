package e2bapi

import (
	"context"
	"fmt"
	"io/fs"
	"iter"
	"path"
	"strings"

	"connectrpc.com/connect"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// filesystemAPI serves the filesystem service.
type filesystemAPI struct {
	*guest
	watchers watchers
}

// register registers the procedures of the filesystem service.
func (h *filesystemAPI) register(rpc procedures) {
	unary(rpc, envd.FilesystemStat, ops.FilesStat, h.stat)
	unary(rpc, envd.FilesystemMakeDir, ops.FilesMkdir, h.makeDir)
	unary(rpc, envd.FilesystemMove, ops.FilesMove, h.move)
	unary(rpc, envd.FilesystemListDir, ops.FilesList, h.listDir)
	unary(rpc, envd.FilesystemRemove, ops.FilesRemove, h.remove)
	unary(rpc, envd.FilesystemCreateWatcher, ops.FilesWatch, h.createWatcher)
	unary(rpc, envd.FilesystemGetWatcherEvents, ops.FilesWatch, h.watcherEvents)
	unary(rpc, envd.FilesystemRemoveWatcher, ops.FilesWatch, h.removeWatcher)
	serverStream(rpc, envd.FilesystemWatchDir, ops.FilesWatch, h.watchDir)
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
	if err := c.sandbox.Files().Mkdir(ctx, p, driver.MkdirOptions{Parents: true, Owner: c.user.name}); err != nil {
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
	files := c.sandbox.Files()
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
	if err = c.sandbox.Files().Remove(ctx, p, true); sandbox.CodeOf(err) == sandbox.CodeNotFound {
		err = nil
	}
	return &envd.Empty{}, err
}

// maxDepth limits the depth of a listing.
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
	for info, err := range c.below(ctx, root.Path, int(max(1, min(req.Depth, maxDepth)))) {
		if err != nil {
			return nil, err
		}
		info.Path = path.Join(p, info.Path)
		res.Entries = append(res.Entries, c.entry(ctx, &info))
	}
	return res, nil
}

// entryAt describes the file at a path.
func (c *call) entryAt(ctx context.Context, p string) (*envd.EntryResponse, error) {
	info, err := c.details(ctx, p)
	if err != nil {
		return nil, err
	}
	return &envd.EntryResponse{Entry: c.entry(ctx, &info)}, nil
}

// details describes the file at a path. It does not follow a link in the last element.
func (c *call) details(ctx context.Context, p string) (sandbox.FileDetails, error) {
	for all, err := range c.sandbox.Files().Describe(ctx, p, 0) {
		if sandbox.CodeOf(err) == sandbox.CodeUnsupported {
			break
		}
		all.Path = p
		return all, err
	}
	info, err := c.sandbox.Files().Stat(ctx, p)
	info.Path = p
	return sandbox.FileDetails{FileInfo: info, StatSize: info.Size}, err
}

// below describes the files below a directory.
func (c *call) below(ctx context.Context, p string, depth int) iter.Seq2[sandbox.FileDetails, error] {
	return func(yield func(sandbox.FileDetails, error) bool) {
		for all, err := range c.sandbox.Files().Describe(ctx, p, depth) {
			if sandbox.CodeOf(err) == sandbox.CodeUnsupported {
				c.listed(ctx, p, depth, yield)
				return
			}
			if !yield(all, err) {
				return
			}
		}
	}
}

// listed yields entries of sandboxes that do not support Describe.
func (c *call) listed(ctx context.Context, p string, depth int, yield func(sandbox.FileDetails, error) bool) {
	for info, err := range c.sandbox.Files().List(ctx, p, driver.ListOptions{Depth: depth}) {
		if !yield(sandbox.FileDetails{FileInfo: info, StatSize: info.Size}, err) {
			return
		}
	}
}

// entry is a file in E2B's format: a link has the type, mode and metadata of
// its target.
func (c *call) entry(ctx context.Context, info *sandbox.FileDetails) *envd.EntryInfo {
	at, modified := info.Path, info.ModTime.UTC()
	e := &envd.EntryInfo{
		Name: path.Base(at), Path: at, Type: fileType(info.Type), Size: info.StatSize, Mode: info.Mode & 0o777, Permissions: permissions(info.FileInfo),
		Owner: nameOf(c.user.names.users, info.UID), Group: nameOf(c.user.names.groups, info.GID), ModifiedTime: &modified, Metadata: metadataOf(info),
	}
	if info.Type == sandbox.TypeSymlink {
		c.follow(ctx, e)
	}
	return e
}

// follow completes the entry of a link.
func (c *call) follow(ctx context.Context, e *envd.EntryInfo) {
	e.Mode, e.SymlinkTarget = 0, &e.Path
	target, err := c.resolve(ctx, e.Path)
	if err != nil {
		return // a dangling link has no known target
	}
	e.Type, e.Mode, e.SymlinkTarget = fileType(target.Type), target.Mode&0o777, &target.Path
	if all, err := c.details(ctx, target.Path); err == nil {
		e.Metadata = metadataOf(&all)
	}
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

// permissions formats permissions as Go does.
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

// resolve follows all links of a path, and returns the target's description and
// path.
func (c *call) resolve(ctx context.Context, p string) (sandbox.FileInfo, error) {
	files := c.sandbox.Files()
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
