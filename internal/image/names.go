package image

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// A daemon can share the names that Import gave with stores of other machines. It
// keeps them elsewhere; the store keeps what has changed here, and since when.

// NameState is a name of an image, for sharing it.
type NameState struct {
	Name     string
	Platform string
	Digest   string // empty: the name was removed, or was never here
	Own      bool   // the image is of files: neither a registry has it, nor does it show this machine
	// Change identifies the Import or Remove that made it so, here or in another
	// store. It is empty if the name was pulled, or given by an earlier version.
	Change string
	// Agreed is the last change that this store and the others agreed about.
	Agreed string
	// New means that the change was made here and that nobody has looked at it yet.
	New bool
}

// changes are the parts of a NameState in its record.
type changes struct {
	Change string `json:"change,omitempty"`
	Agreed string `json:"agreed,omitempty"`
	New    bool   `json:"new,omitempty"`
}

// shared reports whether other stores may know the name.
func (c changes) shared() bool { return c.Agreed != "" || c.Change != "" && !c.New }

// changed returns the changes after an Import or Remove.
func (c changes) changed() changes {
	if c.shared() {
		c.Agreed = cmp.Or(c.Agreed, c.Change)
	}
	return changes{Change: rand.Text(), Agreed: c.Agreed, New: true}
}

// Names returns all names that Import gave, and those that were removed and may be
// known to others. With ref, it returns only that name, for this machine's platform,
// also one that a registry gave or that is not here; a ref that cannot be a name of
// an image gives nothing.
func (s *Store) Names(ref string) (names []NameState, err error) {
	const op = "image.names"
	if ref != "" {
		r, err := parseReference(ref)
		if err != nil || r.kind != kindRegistry || strings.Contains(r.name, "@") {
			return nil, nil //nolint:nilerr // see above
		}
		n, err := s.nameOf(r.name, "linux/"+runtime.GOARCH)
		if err != nil {
			return nil, internal(op, ref, err)
		}
		return []NameState{n}, nil
	}
	err = eachRecord(s.path("refs"), func(_ string, r *refRecord) error {
		if r.Version != recordVersion || !IsName(r.Name) || Name(r.Name) != r.Name || strings.Contains(r.Name, "@") {
			return nil // not one that Import gives
		}
		n, err := s.nameOf(r.Name, r.Platform)
		if err == nil && (n.Own || n.Change != "") {
			names = append(names, n)
		}
		return err
	})
	if err != nil {
		return nil, internal(op, s.dir, err)
	}
	return names, nil
}

// nameOf reads a name. One that is not here has no digest.
func (s *Store) nameOf(name, platform string) (NameState, error) {
	n := NameState{Name: name, Platform: platform}
	r, err := s.readAnyRef(name, platform)
	if err != nil || r == nil {
		return n, err
	}
	if !r.removed() {
		rec, err := s.readImage(r.Digest)
		if errors.Is(err, fs.ErrNotExist) {
			return n, nil // the image was lost, which removes no name elsewhere
		}
		if err != nil {
			return n, err
		}
		n.Own = len(rec.Blobs) == 0 && len(rec.Binds) == 0
	}
	n.Digest, n.Change, n.Agreed, n.New = r.Digest, r.Change, r.Agreed, r.New
	return n, nil
}

// readAnyRef is readRef, also of a name that was removed. Nil: there is no record.
func (s *Store) readAnyRef(name, platform string) (*refRecord, error) {
	r, err := readRecord(s.path("refs", refFile(name, platform)), func(r *refRecord) bool {
		_, ok := digestHex(r.Digest)
		return (ok || r.removed()) && r.Version == recordVersion && r.Name == name && r.Platform == platform
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return r, err
}

// SetName replaces a name that Names returned by another one with the same name and
// platform, whose image must be here. A name without a digest and
// a change is forgotten. SetName reports whether it did that: not if the name was changed
// meanwhile, or the image is not here.
func (s *Store) SetName(ctx context.Context, old, to NameState) (bool, error) {
	done, err := s.setName(ctx, old, to)
	return done, classify("image.names", to.Name, err)
}

func (s *Store) setName(ctx context.Context, old, to NameState) (bool, error) {
	gc, err := s.lock(ctx, lockGC, unix.LOCK_SH, nil)
	if err != nil {
		return false, err
	}
	defer gc.Close()
	l, err := s.lock(ctx, lockIndex, unix.LOCK_EX, nil)
	if err != nil {
		return false, err
	}
	defer l.Close()
	now, err := s.nameOf(old.Name, old.Platform)
	if err != nil || now != old {
		return false, err
	}
	file := refFile(to.Name, to.Platform)
	if to.Digest != "" {
		if _, err := s.ready(to.Digest, to.Digest); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
			return false, err
		}
	}
	if to.Digest == "" && to.Change == "" {
		if err := os.Remove(s.path("refs", file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		if err := syncDir(s.path("refs")); err != nil {
			return false, err
		}
	} else if err := s.writeRecord(&refRecord{
		Version: recordVersion, Name: to.Name, Platform: to.Platform, Digest: to.Digest,
		changes: changes{Change: to.Change, Agreed: to.Agreed, New: to.New},
	}, "refs", file); err != nil {
		return false, err
	}
	if old.Change != "" && old.Digest != to.Digest {
		s.dropUnnamed(old.Digest)
	}
	return true, nil
}

// NamesStamp returns a value that changes when names change.
func (s *Store) NamesStamp() string {
	fi, err := os.Stat(s.path("refs"))
	if err != nil {
		return ""
	}
	return fi.ModTime().String()
}

// removed records that a user has removed names that others may know. The caller
// holds the index lock.
func (s *Store) removed(ctx context.Context, refs []*refRecord) error {
	gc, err := s.lock(ctx, lockGC, unix.LOCK_SH, nil)
	if err != nil {
		return err
	}
	defer gc.Close()
	for _, r := range refs {
		if !r.shared() {
			continue
		}
		gone := &refRecord{Version: recordVersion, Name: r.Name, Platform: r.Platform, changes: r.changed()}
		if err := s.writeRecord(gone, "refs", refFile(r.Name, r.Platform)); err != nil {
			return err
		}
	}
	return nil
}

// removed reports whether the record is of a name that was removed.
func (r *refRecord) removed() bool { return r.Digest == "" && r.Change != "" }
