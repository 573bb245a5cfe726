// Package memfs is a POSIX file system in memory: inodes, hard and symbolic
// links, sparse files, and watches. It belongs to the fake
// provider and knows nothing of processes.
//
// Paths are absolute. Errors are *fs.PathError around a syscall.Errno, as from
// package os. All methods may be called concurrently.
package memfs

import (
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Type is the kind of a node.
type Type byte

// The kinds of nodes.
const (
	File Type = iota
	Dir
	Symlink
	FIFO
	Device
)

const (
	maxName  = 255
	maxLinks = 40 // symbolic links in one path, as in Linux
)

// FS is a file system. Make one with New.
type FS struct {
	mu      sync.Mutex
	root    *Node
	inodes  uint64
	watches map[*Watch]struct{}
}

// Node is an inode. Its fields belong to the FS.
type Node struct {
	typ     Type
	ino     uint64
	mode    uint32
	uid     uint32
	gid     uint32
	nlink   uint64
	mtime   time.Time
	target  string           // of a symlink
	device  string           // of a device: its name
	data    content          // of a file
	entries map[string]*Node // of a directory
	parent  *Node            // the directory of the last name given to it
	name    string
}

// Info describes a node.
type Info struct {
	Type     Type
	Mode     uint32 // permission, set-id and sticky bits
	UID, GID uint32
	Size     int64
	Nlink    uint64
	Inode    uint64
	ModTime  time.Time
	Target   string // of a symlink
	Device   string // of a device
}

// New returns a file system with nothing but a root that belongs to user 0.
func New() *FS {
	f := &FS{watches: map[*Watch]struct{}{}}
	f.root = f.node(Dir, 0o755)
	f.root.parent, f.root.nlink = f.root, 1
	return f
}

func (f *FS) node(typ Type, mode uint32) *Node {
	f.inodes++
	n := &Node{typ: typ, ino: f.inodes, mode: mode & 0o7777, mtime: time.Now()}
	if typ == Dir {
		n.entries = map[string]*Node{}
	}
	return n
}

func (n *Node) info() Info {
	i := Info{Type: n.typ, Mode: n.mode, UID: n.uid, GID: n.gid, Nlink: n.nlink, Inode: n.ino, ModTime: n.mtime, Target: n.target, Device: n.device}
	if n.typ == File {
		i.Size = n.data.size
	}
	return i
}

func fail(op, path string, errno syscall.Errno) error {
	return &fs.PathError{Op: op, Path: path, Err: errno}
}

// place is a resolved path: a directory, a name in it, and the node with that
// name; nil if there is none.
type place struct {
	dir  *Node
	name string
	node *Node
}

// walk resolves a path. If follow is false, a link in the last element is not
// followed.
func (f *FS) walk(path string, follow bool) (place, syscall.Errno) {
	if !strings.HasPrefix(path, "/") {
		return place{}, syscall.ENOENT
	}
	at := place{dir: f.root, name: ".", node: f.root}
	todo := elements(path)
	for links := 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		dir := at.node
		switch {
		case dir == nil:
			return place{}, syscall.ENOENT
		case dir.typ != Dir:
			return place{}, syscall.ENOTDIR
		case len(name) > maxName:
			return place{}, syscall.ENAMETOOLONG
		}
		at = dir.lookup(name)
		if at.node == nil || at.node.typ != Symlink || (len(todo) == 0 && !follow) {
			continue
		}
		if links++; links > maxLinks {
			return place{}, syscall.ELOOP
		}
		target := at.node.target
		todo = append(elements(target), todo...)
		at = place{dir: dir, name: ".", node: dir}
		if strings.HasPrefix(target, "/") {
			at = place{dir: f.root, name: ".", node: f.root}
		}
	}
	return at, 0
}

func (n *Node) lookup(name string) place {
	switch name {
	case ".":
		return place{n, name, n}
	case "..":
		return place{n, name, n.parent}
	}
	return place{n, name, n.entries[name]}
}

// elements splits a path; a trailing slash asks for a directory.
func elements(path string) []string {
	var e []string
	for name := range strings.SplitSeq(path, "/") {
		if name != "" {
			e = append(e, name)
		}
	}
	if strings.HasSuffix(path, "/") {
		e = append(e, ".")
	}
	return e
}

// find resolves a path that must lead to something.
func (f *FS) find(op string, path string, follow bool) (place, error) {
	at, errno := f.walk(path, follow)
	if errno == 0 && at.node == nil {
		errno = syscall.ENOENT
	}
	if errno != 0 {
		return place{}, fail(op, path, errno)
	}
	return at, nil
}

// vacancy resolves a path that must lead to nothing yet,.
func (f *FS) vacancy(op string, path string) (place, error) {
	at, errno := f.walk(strings.TrimRight(path, "/"), false)
	switch {
	case strings.Trim(path, "/") == "":
		errno = syscall.EEXIST
	case errno != 0:
	case at.node != nil:
		errno = syscall.EEXIST
	}
	if errno != 0 {
		return place{}, fail(op, path, errno)
	}
	return at, nil
}

// attach gives a node a name.
func (f *FS) attach(at place, n *Node) {
	at.dir.entries[at.name] = n
	at.dir.mtime = time.Now()
	n.parent, n.name = at.dir, at.name
	n.nlink++
	f.notify(Create, n)
}

// detach takes a name away.
func (f *FS) detach(at place) {
	n := at.dir.entries[at.name]
	f.notifyAt(Remove, at.dir, at.name, n)
	delete(at.dir.entries, at.name)
	at.dir.mtime = time.Now()
	n.nlink--
}

// Stat describes a file.
func (f *FS) Stat(path string, follow bool) (Info, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.find("stat", path, follow)
	if err != nil {
		return Info{}, err
	}
	return at.node.info(), nil
}

// RealPath returns the path of what a path leads to, without links.
func (f *FS) RealPath(path string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.find("realpath", path, true)
	if err != nil {
		return "", err
	}
	var names []string
	for n := at.node; n != f.root; n = n.parent {
		names = append(names, n.name)
	}
	slices.Reverse(names)
	return "/" + strings.Join(names, "/"), nil
}

// Names returns the sorted names in a directory.
func (f *FS) Names(path string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.find("open", path, true)
	switch {
	case err != nil:
		return nil, err
	case at.node.typ != Dir:
		return nil, fail("readdir", path, syscall.ENOTDIR)
	}
	return slices.Sorted(maps.Keys(at.node.entries)), nil
}

// Mkdir makes a directory.
func (f *FS) Mkdir(path string, mode uint32) error {
	return f.make("mkdir", path, Dir, mode, func(n *Node) {})
}

// Symlink makes a symbolic link to target.
func (f *FS) Symlink(target, path string) error {
	return f.make("symlink", path, Symlink, 0o777, func(n *Node) { n.target = target })
}

// Mkfifo makes a named pipe.
func (f *FS) Mkfifo(path string, mode uint32) error {
	return f.make("mkfifo", path, FIFO, mode, func(n *Node) {})
}

// Mkdev makes a device that the kernel knows by its name.
func (f *FS) Mkdev(path string, mode uint32, device string) error {
	return f.make("mknod", path, Device, mode, func(n *Node) { n.device = device })
}

func (f *FS) make(op string, path string, typ Type, mode uint32, fill func(*Node)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.vacancy(op, path)
	if err != nil {
		return err
	}
	n := f.node(typ, mode)
	fill(n)
	f.attach(at, n)
	return nil
}

// Link makes a hard link.
func (f *FS) Link(old, path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	from, err := f.find("link", old, false)
	if err != nil {
		return err
	}
	if from.node.typ == Dir {
		return fail("link", old, syscall.EPERM)
	}
	at, err := f.vacancy("link", path)
	if err != nil {
		return err
	}
	f.attach(at, from.node)
	return nil
}

// Remove removes a file or, if dir is set, an empty directory.
func (f *FS) Remove(path string, dir bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.find("remove", path, false)
	if err != nil {
		return err
	}
	var errno syscall.Errno
	switch {
	case at.node == f.root:
		errno = syscall.EBUSY
	case at.name == "." || at.name == "..":
		errno = syscall.EINVAL
	case dir && at.node.typ != Dir:
		errno = syscall.ENOTDIR
	case !dir && at.node.typ == Dir:
		errno = syscall.EISDIR
	case len(at.node.entries) > 0:
		errno = syscall.ENOTEMPTY
	}
	if errno != 0 {
		return fail("remove", path, errno)
	}
	f.detach(at)
	return nil
}

// RemoveAll removes a file or a tree, not following links.
func (f *FS) RemoveAll(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.find("remove", path, false)
	if err != nil {
		return err
	}
	if at.node == f.root || at.name == "." || at.name == ".." {
		return fail("remove", path, syscall.EINVAL)
	}
	f.removeTree(at)
	return nil
}

func (f *FS) removeTree(at place) {
	for _, name := range slices.Sorted(maps.Keys(at.node.entries)) {
		f.removeTree(place{at.node, name, at.node.entries[name]})
	}
	f.detach(at)
}

// Rename moves a file. It replaces an existing file if that is allowed; with
// keep, the error is EEXIST instead.
func (f *FS) Rename(old, path string, keep bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	from, err := f.find("rename", old, false)
	if err != nil {
		return err
	}
	to, errno := f.walk("/"+strings.Trim(path, "/"), false)
	if errno == 0 {
		errno = mayRename(f.root, from, to, keep)
	}
	if errno != 0 {
		return fail("rename", path, errno)
	}
	if from.node == to.node {
		return nil
	}
	f.detach(from)
	if to.node != nil {
		to.node.nlink--
	}
	f.attach(to, from.node)
	return nil
}

func mayRename(root *Node, from, to place, keep bool) syscall.Errno {
	if from.node == root || to.node == root || from.name == "." || from.name == ".." || to.name == "." || to.name == ".." {
		return syscall.EBUSY
	}
	for d := to.dir; from.node.typ == Dir; d = d.parent {
		if d == from.node {
			return syscall.EINVAL
		}
		if d == root {
			break
		}
	}
	switch n := to.node; {
	case n == nil || n == from.node:
	case keep:
		return syscall.EEXIST
	case n.typ == Dir && from.node.typ != Dir:
		return syscall.EISDIR
	case n.typ != Dir && from.node.typ == Dir:
		return syscall.ENOTDIR
	case len(n.entries) > 0:
		return syscall.ENOTEMPTY
	}
	return 0
}

// Chmod sets permission bits.
func (f *FS) Chmod(path string, mode uint32) error {
	return f.change("chmod", path, true, func(n *Node) { n.mode = mode & 0o7777 })
}

// Chown sets the owner. It changes a link itself, not its target.
func (f *FS) Chown(path string, uid, gid uint32) error {
	return f.change("chown", path, false, func(n *Node) { n.uid, n.gid = uid, gid })
}

// Chtimes sets the time of modification, of a link itself.
func (f *FS) Chtimes(path string, mtime time.Time) error {
	return f.change("chtimes", path, false, func(n *Node) { n.mtime = mtime })
}

func (f *FS) change(op string, path string, follow bool, set func(*Node)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.find(op, path, follow)
	if err != nil {
		return err
	}
	set(at.node)
	f.notify(Chmod, at.node)
	return nil
}
