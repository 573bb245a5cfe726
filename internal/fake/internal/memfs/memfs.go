// Package memfs is a POSIX file system in memory: inodes, hard and symbolic
// links, permissions, sparse files, and watches. It belongs to the fake
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

// Cred says on whose behalf a call is made. User 0 may do everything.
type Cred struct{ UID, GID uint32 }

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
	aux     any // what the kernel keeps with a fifo
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
	f.root = f.node(Dir, 0o755, Cred{})
	f.root.parent, f.root.nlink = f.root, 1
	return f
}

func (f *FS) node(typ Type, mode uint32, c Cred) *Node {
	f.inodes++
	n := &Node{typ: typ, ino: f.inodes, mode: mode & 0o7777, uid: c.UID, gid: c.GID, mtime: time.Now()}
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

// The permission bits of one class.
const (
	mayRead  = 4
	mayWrite = 2
	mayExec  = 1
)

func (n *Node) allows(c Cred, want uint32) bool {
	switch {
	case c.UID == 0:
		return want != mayExec || n.typ == Dir || n.mode&0o111 != 0
	case c.UID == n.uid:
		return n.mode>>6&want == want
	case c.GID == n.gid:
		return n.mode>>3&want == want
	}
	return n.mode&want == want
}

func fail(op, path string, errno syscall.Errno) error {
	return &fs.PathError{Op: op, Path: path, Err: errno}
}

// place is where a path leads: a directory, a name in it, and the node with
// that name, nil if there is none.
type place struct {
	dir  *Node
	name string
	node *Node
}

// walk resolves a path. If follow is false, a link in the last element is not
// followed.
func (f *FS) walk(c Cred, path string, follow bool) (place, syscall.Errno) {
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
		case !dir.allows(c, mayExec):
			return place{}, syscall.EACCES
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
func (f *FS) find(op string, c Cred, path string, follow bool) (place, error) {
	at, errno := f.walk(c, path, follow)
	if errno == 0 && at.node == nil {
		errno = syscall.ENOENT
	}
	if errno != 0 {
		return place{}, fail(op, path, errno)
	}
	return at, nil
}

// vacancy resolves a path that must lead to nothing yet, in a directory where
// c may write.
func (f *FS) vacancy(op string, c Cred, path string) (place, error) {
	at, errno := f.walk(c, strings.TrimRight(path, "/"), false)
	switch {
	case strings.Trim(path, "/") == "":
		errno = syscall.EEXIST
	case errno != 0:
	case at.node != nil:
		errno = syscall.EEXIST
	case !at.dir.allows(c, mayWrite):
		errno = syscall.EACCES
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
func (f *FS) Stat(c Cred, path string, follow bool) (Info, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.find("stat", c, path, follow)
	if err != nil {
		return Info{}, err
	}
	return at.node.info(), nil
}

// RealPath returns the path of what a path leads to, without links.
func (f *FS) RealPath(path string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.find("realpath", Cred{}, path, true)
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

// Access reports whether c may read (4), write (2) or execute (1) a file.
func (f *FS) Access(c Cred, path string, want uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.find("access", c, path, true)
	if err == nil && !at.node.allows(c, want) {
		err = fail("access", path, syscall.EACCES)
	}
	return err
}

// Names returns the sorted names in a directory.
func (f *FS) Names(c Cred, path string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.find("open", c, path, true)
	switch {
	case err != nil:
		return nil, err
	case at.node.typ != Dir:
		return nil, fail("readdir", path, syscall.ENOTDIR)
	case !at.node.allows(c, mayRead):
		return nil, fail("open", path, syscall.EACCES)
	}
	return slices.Sorted(maps.Keys(at.node.entries)), nil
}

// Mkdir makes a directory.
func (f *FS) Mkdir(c Cred, path string, mode uint32) error {
	return f.make("mkdir", c, path, Dir, mode, func(n *Node) {})
}

// Symlink makes a symbolic link to target.
func (f *FS) Symlink(c Cred, target, path string) error {
	return f.make("symlink", c, path, Symlink, 0o777, func(n *Node) { n.target = target })
}

// Mkfifo makes a named pipe.
func (f *FS) Mkfifo(c Cred, path string, mode uint32) error {
	return f.make("mkfifo", c, path, FIFO, mode, func(n *Node) {})
}

// Mkdev makes a device that the kernel knows by its name.
func (f *FS) Mkdev(c Cred, path string, mode uint32, device string) error {
	return f.make("mknod", c, path, Device, mode, func(n *Node) { n.device = device })
}

func (f *FS) make(op string, c Cred, path string, typ Type, mode uint32, fill func(*Node)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.vacancy(op, c, path)
	if err != nil {
		return err
	}
	n := f.node(typ, mode, c)
	fill(n)
	f.attach(at, n)
	return nil
}

// Link makes a hard link.
func (f *FS) Link(c Cred, old, path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	from, err := f.find("link", c, old, false)
	if err != nil {
		return err
	}
	if from.node.typ == Dir {
		return fail("link", old, syscall.EPERM)
	}
	at, err := f.vacancy("link", c, path)
	if err != nil {
		return err
	}
	f.attach(at, from.node)
	return nil
}

// Remove removes a file or, if dir is set, an empty directory.
func (f *FS) Remove(c Cred, path string, dir bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.find("remove", c, path, false)
	if err != nil {
		return err
	}
	var errno syscall.Errno
	switch {
	case at.node == f.root:
		errno = syscall.EBUSY
	case at.name == "." || at.name == "..":
		errno = syscall.EINVAL
	case !at.dir.removable(c, at.node):
		errno = syscall.EACCES
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

// removable reports whether c may take a name for node out of the directory n.
func (n *Node) removable(c Cred, node *Node) bool {
	sticky := n.mode&0o1000 != 0 && c.UID != 0 && c.UID != node.uid && c.UID != n.uid
	return n.allows(c, mayWrite) && n.allows(c, mayExec) && !sticky
}

// RemoveAll removes a file or a tree, not following links.
func (f *FS) RemoveAll(c Cred, path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.find("remove", c, path, false)
	if err != nil {
		return err
	}
	if at.node == f.root || at.name == "." || at.name == ".." {
		return fail("remove", path, syscall.EINVAL)
	}
	if !f.removeTree(c, at) {
		return fail("remove", path, syscall.EACCES)
	}
	return nil
}

func (f *FS) removeTree(c Cred, at place) bool {
	for _, name := range slices.Sorted(maps.Keys(at.node.entries)) {
		if !f.removeTree(c, place{at.node, name, at.node.entries[name]}) {
			return false
		}
	}
	if !at.dir.removable(c, at.node) {
		return false
	}
	f.detach(at)
	return true
}

// Rename moves a file. What is there already is replaced, if it may be; with
// keep set it is EEXIST instead.
func (f *FS) Rename(c Cred, old, path string, keep bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	from, err := f.find("rename", c, old, false)
	if err != nil {
		return err
	}
	to, errno := f.walk(c, "/"+strings.Trim(path, "/"), false)
	if errno == 0 {
		errno = f.mayRename(c, from, to, keep)
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

func (f *FS) mayRename(c Cred, from, to place, keep bool) syscall.Errno {
	if from.node == f.root || to.node == f.root || from.name == "." || from.name == ".." || to.name == "." || to.name == ".." {
		return syscall.EBUSY
	}
	for d := to.dir; from.node.typ == Dir; d = d.parent {
		if d == from.node {
			return syscall.EINVAL
		}
		if d == f.root {
			break
		}
	}
	if !from.dir.removable(c, from.node) || !to.dir.allows(c, mayWrite) {
		return syscall.EACCES
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
func (f *FS) Chmod(c Cred, path string, mode uint32) error {
	return f.change("chmod", c, path, true, func(n *Node) { n.mode = mode & 0o7777 })
}

// Chown sets the owner. Only user 0 may. A link itself is changed, not what it
// leads to.
func (f *FS) Chown(c Cred, path string, to Cred) error {
	if c.UID != 0 {
		return fail("chown", path, syscall.EPERM)
	}
	return f.change("chown", c, path, false, func(n *Node) { n.uid, n.gid = to.UID, to.GID })
}

// Chtimes sets the time of modification, of a link itself.
func (f *FS) Chtimes(c Cred, path string, mtime time.Time) error {
	return f.change("chtimes", c, path, false, func(n *Node) { n.mtime = mtime })
}

func (f *FS) change(op string, c Cred, path string, follow bool, set func(*Node)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.find(op, c, path, follow)
	if err != nil {
		return err
	}
	if c.UID != 0 && c.UID != at.node.uid {
		return fail(op, path, syscall.EPERM)
	}
	set(at.node)
	f.notify(Chmod, at.node)
	return nil
}
