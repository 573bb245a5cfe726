package memfs

import (
	"maps"
	"path"
)

// Checkpoint remembers the names and attributes at and below path, or below the
// nearest directory above it if it does not exist. Restore restores them, and
// undoes everything that was created, replaced or removed since. It does not
// change contents of files.
func (f *FS) Checkpoint(p string) (restore func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, errno := f.walk(p, true)
	for (errno != 0 || at.node == nil) && p != "/" {
		p = path.Dir(p)
		at, errno = f.walk(p, true)
	}
	saved := map[*Node]Node{}
	at.node.save(saved)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for n, was := range saved {
			n.mode, n.uid, n.gid, n.nlink, n.mtime, n.parent, n.name = was.mode, was.uid, was.gid, was.nlink, was.mtime, was.parent, was.name
			n.entries = was.entries
		}
	}
}

func (n *Node) save(into map[*Node]Node) {
	if _, ok := into[n]; ok {
		return // another name of a file
	}
	was := *n
	was.entries = maps.Clone(n.entries)
	into[n] = was
	for _, child := range was.entries {
		child.save(into)
	}
}
