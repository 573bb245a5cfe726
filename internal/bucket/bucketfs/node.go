package bucketfs

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"path"
	"slices"
	"syscall"
	"unicode/utf8"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// node is a file or directory known to the kernel. Its key is its path.
type node struct {
	fs.Inode
	fs *FileSystem
}

var _ = (interface {
	fs.NodeLookuper
	fs.NodeGetattrer
	fs.NodeSetattrer
	fs.NodeReaddirer
	fs.NodeCreater
	fs.NodeOpener
	fs.NodeMkdirer
	fs.NodeUnlinker
	fs.NodeRmdirer
	fs.NodeRenamer
	fs.NodeFsyncer
	fs.NodeStatfser
})((*node)(nil))

// Options returns the FUSE options.
func (sys *FileSystem) Options() *fs.Options {
	attr, entry := remember, remember
	return &fs.Options{
		AttrTimeout: &attr, EntryTimeout: &entry, RootStableAttr: &fs.StableAttr{Ino: 1},
		MountOptions: fuse.MountOptions{
			FsName: "atoll-bucket", Name: "atoll-bucket", AllowOther: true, DisableXAttrs: true, MaxWrite: MaxRequest,
			// Reads come one at a time and in order, because they use one stream.
			SyncRead: true, DisableReadDirPlus: true, DisableSplice: true, MaxInflightRequestBytes: 64 << 20,
		},
	}
}

// MaxRequest is the maximum size of the kernel's reads and writes in bytes.
const MaxRequest = 128 << 10

// Calls are not interrupted by signals, because Go programs get signals all the
// time and treat EINTR as a failure. Each call has a timeout instead.

// Root returns the root directory for the kernel.
func (sys *FileSystem) Root() fs.InodeEmbedder { return &node{fs: sys} }

func (n *node) key() string { return n.Path(nil) }

// child returns the key of a name in this directory.
func (n *node) child(name string) (string, syscall.Errno) {
	key := path.Join(n.key(), name)
	if len(name) > 255 || len(n.fs.bucket.full(key)) >= maxKey { // a directory's key has a slash at the end
		return "", syscall.ENAMETOOLONG
	}
	if !utf8.ValidString(name) {
		return "", syscall.EILSEQ
	}
	return key, 0
}

// stable returns the identity of a file for the kernel. It depends only on the
// key, because kernels of sandboxes identify files by it.
func stable(key string, k kind) fs.StableAttr {
	sum := sha256.Sum256([]byte(key))
	mode := uint32(syscall.S_IFREG)
	if k == directory {
		mode = syscall.S_IFDIR
	}
	return fs.StableAttr{Mode: mode, Ino: binary.LittleEndian.Uint64(sum[:])>>1 | 2}
}

// show sets the attributes for the kernel.
func show(o object, k kind, out *fuse.Attr) {
	out.Nlink, out.Blksize = 1, MaxRequest
	if k == directory {
		out.Mode = syscall.S_IFDIR | 0o777
		return
	}
	out.Mode = syscall.S_IFREG | 0o777
	out.Size = uint64(o.size)
	out.SetTimes(&o.modified, &o.modified, &o.modified)
}

// Lookup finds a file in the directory.
func (n *node) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	key, bad := n.child(name)
	if bad != 0 {
		return nil, bad
	}
	o, k, err := n.fs.stat(n.fs.life, key)
	if err != nil {
		return nil, number(err)
	}
	show(o, k, &out.Attr)
	return n.NewInode(ctx, &node{fs: n.fs}, stable(key, k)), 0
}

// Getattr returns the attributes of the file.
func (n *node) Getattr(ctx context.Context, h fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	if n.IsDir() {
		show(object{}, directory, &out.Attr)
		return 0
	}
	if open, ok := h.(*handle); ok && open.file != nil {
		o, err := open.file.stat(n.fs.life)
		show(o, regular, &out.Attr)
		return number(err)
	}
	o, k, err := n.fs.stat(n.fs.life, n.key())
	if err == nil && k == directory {
		err = syscall.ENOENT // the name now refers to something else
	}
	if err != nil {
		return number(err)
	}
	show(o, k, &out.Attr)
	return 0
}

// Setattr sets the size. Owners, modes and times are ignored.
func (n *node) Setattr(ctx context.Context, h fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if size, ok := in.GetSize(); ok {
		if n.IsDir() {
			return syscall.EISDIR
		}
		if size > 1<<50 {
			return syscall.EFBIG
		}
		var err error
		if open, ok := h.(*handle); ok && open.file != nil {
			err = open.file.truncate(n.fs.life, int64(size))
		} else {
			f := n.fs.acquire(n.key())
			err = f.truncate(n.fs.life, int64(size))
			n.fs.delayUpload(f)
		}
		if err != nil {
			return number(err)
		}
	}
	return n.Getattr(ctx, h, out)
}

// delayUpload releases a file and delays its upload, because a caller that sets the
// size is about to write.
func (sys *FileSystem) delayUpload(of *file) {
	sys.mu.Lock()
	of.writers--
	sys.mu.Unlock()
	sys.drop(of)
}

// Readdir lists the directory.
func (n *node) Readdir(ctx context.Context) (fs.DirStream, syscall.Errno) {
	dir := n.key()
	names, err := n.fs.names(n.fs.life, dir)
	if err != nil {
		return nil, number(err)
	}
	entries := make([]fuse.DirEntry, 0, len(names))
	for name, k := range names {
		attr := stable(path.Join(dir, name), k)
		entries = append(entries, fuse.DirEntry{Name: name, Mode: attr.Mode, Ino: attr.Ino})
	}
	slices.SortFunc(entries, func(a, b fuse.DirEntry) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return fs.NewListDirStream(entries), 0
}

// Create creates and opens a file.
func (n *node) Create(ctx context.Context, name string, flags, _ uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	key, bad := n.child(name)
	if bad != 0 {
		return nil, nil, 0, bad
	}
	_, k, err := n.fs.stat(n.fs.life, key)
	switch {
	case err == nil && k == directory:
		return nil, nil, 0, syscall.EISDIR
	case err == nil && flags&syscall.O_EXCL != 0:
		return nil, nil, 0, syscall.EEXIST
	case err != nil && err != syscall.ENOENT:
		return nil, nil, 0, number(err)
	}
	f := n.fs.acquire(key)
	if err != nil || flags&syscall.O_TRUNC != 0 {
		if err := f.truncate(n.fs.life, 0); err != nil {
			f.release()
			return nil, nil, 0, number(err)
		}
	}
	o, err := f.stat(n.fs.life)
	if err != nil {
		f.release()
		return nil, nil, 0, number(err)
	}
	show(o, regular, &out.Attr)
	return n.NewInode(ctx, &node{fs: n.fs}, stable(key, regular)), &handle{fs: n.fs, file: f}, 0, 0
}

// Open opens a file.
func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	key := n.key()
	if flags&syscall.O_ACCMODE == syscall.O_RDONLY {
		return &handle{fs: n.fs, node: n}, 0, 0
	}
	f := n.fs.acquire(key)
	if flags&syscall.O_TRUNC != 0 {
		if err := f.truncate(n.fs.life, 0); err != nil {
			f.release()
			return nil, 0, number(err)
		}
	}
	return &handle{fs: n.fs, file: f}, 0, 0
}

// Mkdir makes a directory.
func (n *node) Mkdir(ctx context.Context, name string, _ uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	key, bad := n.child(name)
	if bad != 0 {
		return nil, bad
	}
	if err := n.fs.mkdir(n.fs.life, key); err != nil {
		return nil, number(err)
	}
	show(object{}, directory, &out.Attr)
	return n.NewInode(ctx, &node{fs: n.fs}, stable(key, directory)), 0
}

// Unlink removes a file.
func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	key, bad := n.child(name)
	if bad != 0 {
		return bad
	}
	return number(n.fs.unlink(n.fs.life, key))
}

// Rmdir removes a directory.
func (n *node) Rmdir(ctx context.Context, name string) syscall.Errno {
	key, bad := n.child(name)
	if bad != 0 {
		return bad
	}
	return number(n.fs.rmdir(n.fs.life, key))
}

const (
	renameNoReplace = 1
)

// Rename renames a file. The target is replaced atomically; both names exist
// for a short time.
func (n *node) Rename(ctx context.Context, name string, newParent fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	parent, ok := newParent.(*node)
	if !ok || flags&^renameNoReplace != 0 {
		return syscall.EINVAL
	}
	from, bad := n.child(name)
	if bad != 0 {
		return bad
	}
	to, bad := parent.child(newName)
	if bad != 0 {
		return bad
	}
	_, k, err := n.fs.stat(n.fs.life, from)
	switch {
	case err != nil:
		return number(err)
	case k == directory:
		return syscall.EXDEV
	}
	_, k, err = n.fs.stat(n.fs.life, to)
	switch {
	case err == nil && flags&renameNoReplace != 0:
		return syscall.EEXIST
	case err == nil && k == directory:
		return syscall.EISDIR
	case err != nil && err != syscall.ENOENT:
		return number(err)
	}
	return number(n.fs.rename(n.fs.life, from, to))
}

// Fsync waits until the file is uploaded, or all files for a directory.
func (n *node) Fsync(ctx context.Context, h fs.FileHandle, _ uint32) syscall.Errno {
	if n.IsDir() {
		return number(n.fs.Flush(n.fs.life))
	}
	if open, ok := h.(*handle); ok {
		return open.Flush(n.fs.life)
	}
	return 0
}

// Statfs always reports free space, because the real amount is unknown.
func (n *node) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	const blocks = 1 << 40
	out.Bsize, out.Frsize, out.NameLen = 4096, 4096, 255
	out.Blocks, out.Bfree, out.Bavail = blocks, blocks, blocks
	out.Files, out.Ffree = blocks, blocks
	return 0
}
