package agent

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// stage is the part of an import that is not visible yet. New entries next to
// existing files have temporary names; entries below a new directory have their
// final names. When the stream has ended without an error, the temporary names
// are replaced with the final ones; otherwise the entries are removed.
//
// Entries are created in their final directories and not in a common one,
// because they may be on several file systems and because existing links
// determine where they go.
type stage struct {
	s       *fileServer
	w       *walker
	aliases map[slotKey]int // indexes in entries by final name
	entries []staged
	owned   map[string]bool // the temporary names
	// inherits says that new entries may get the group of their directory.
	inherits bool
}

// slotKey identifies a name in an existing directory.
type slotKey struct {
	dev, ino uint64
	name     string
}

type staged struct {
	dir  string // absolute, without links
	key  slotKey
	temp string
	gone bool // published, or replaced by a later entry
}

func newStage(s *fileServer, w *walker) *stage {
	st := &stage{s: s, w: w, aliases: map[slotKey]int{}, owned: map[string]bool{}}
	w.alias = st.alias
	return st
}

// alias returns the temporary name of the entry staged for a name.
func (st *stage) alias(dir int, name string) string {
	if len(st.aliases) == 0 {
		return name
	}
	key, err := keyOf(dir, name)
	if err != nil {
		return name
	}
	if i, ok := st.aliases[key]; ok {
		return st.entries[i].temp
	}
	return name
}

func keyOf(dir int, name string) (slotKey, error) {
	var info unix.Stat_t
	err := unix.Fstat(dir, &info)
	return slotKey{info.Dev, info.Ino, name}, err
}

// isNew reports whether this import created the directory, given by its path
// without links.
func (st *stage) isNew(dir string) bool {
	if len(st.owned) == 0 {
		return false
	}
	for e := range strings.SplitSeq(dir, "/") {
		if st.owned[e] {
			return true
		}
	}
	return false
}

// reserve returns the temporary name for an entry whose final place is at, in a
// directory that existed before.
func (st *stage) reserve(at place) (string, error) {
	var info unix.Stat_t
	if err := unix.Fstat(at.dir, &info); err != nil {
		return "", err
	}
	st.inherits = st.inherits || info.Mode&unix.S_ISGID != 0
	key := slotKey{info.Dev, info.Ino, at.name}
	if old, ok := st.aliases[key]; ok { // the archive contains it twice
		if err := unlinkFile(at.dir, st.entries[old].temp); err != nil {
			return "", err
		}
		st.entries[old].gone = true
	} else if isDir(at.dir, at.name) {
		return "", errInTheWay
	}
	temp, err := st.s.tempName()
	if err != nil {
		return "", err
	}
	st.owned[temp] = true
	st.aliases[key] = len(st.entries)
	st.entries = append(st.entries, staged{dir: path.Dir(at.path), key: key, temp: temp})
	return temp, nil
}

// unlinkFile removes anything except a directory.
func unlinkFile(dir int, name string) error {
	if isDir(dir, name) {
		return errInTheWay
	}
	return ignoreGone(unix.Unlinkat(dir, name, 0))
}

var errInTheWay = fail(sandbox.CodeConflict, "", "a directory is in the way")

// publish renames all entries to their final names.
func (st *stage) publish() error {
	st.w.alias = nil
	dirs := lastDir{w: st.w, fd: -1}
	defer dirs.close()
	for i := range st.entries {
		e := &st.entries[i]
		if e.gone {
			continue
		}
		dir, err := dirs.open(e)
		if err == nil {
			err = replaceWith(place{dir: dir, name: e.temp}, place{dir: dir, name: e.key.name})
		}
		if err != nil {
			return memberError(e.key.name, err)
		}
		e.gone = true
	}
	return nil
}

// drop removes the unpublished entries and forgets all temporary names.
func (st *stage) drop() {
	st.w.alias = nil
	dirs := lastDir{w: st.w, fd: -1}
	defer dirs.close()
	for i := range st.entries {
		if e := &st.entries[i]; !e.gone {
			if dir, err := dirs.open(e); err == nil {
				_ = removeAny(dir, e.temp) // best effort: the import has failed already
			}
		}
	}
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	for name := range st.owned {
		delete(st.s.temps, name)
	}
}

// lastDir opens directories and keeps the last one open.
type lastDir struct {
	w  *walker
	of *staged
	fd int
}

// open returns the directory of an entry, if it is still the same directory.
func (l *lastDir) open(e *staged) (int, error) {
	if l.of != nil && l.of.dir == e.dir && l.of.key.dev == e.key.dev && l.of.key.ino == e.key.ino {
		return l.fd, nil
	}
	l.close()
	rel, err := l.w.relative(e.dir)
	if err != nil {
		return -1, err
	}
	fd, err := l.w.openDirBelow(rel)
	if err != nil {
		return -1, err
	}
	var info unix.Stat_t
	if err := unix.Fstat(fd, &info); err != nil || info.Dev != e.key.dev || info.Ino != e.key.ino {
		unix.Close(fd)
		return -1, fail(sandbox.CodeConflict, "", "its directory was replaced meanwhile")
	}
	l.of, l.fd = e, fd
	return fd, nil
}

func (l *lastDir) close() {
	if l.fd >= 0 {
		unix.Close(l.fd)
	}
	l.of, l.fd = nil, -1
}
