package snapshotstore

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// Has reports whether a snapshot is here, whole or damaged, and not only a draft
// of it.
func (s *Snapshots) Has(id string) bool {
	_, err := os.Lstat(s.kept(id))
	return err == nil
}

// Trim removes copies until all together have at most so many bytes, those
// first that were not used for longest. Only what spare returns true of counts,
// and may go: it is kept elsewhere too. Snapshots in use stay.
func (s *Snapshots) Trim(ctx context.Context, most int64, spare func(id string) bool) error {
	copies, err := s.copies(spare)
	if err != nil {
		return err
	}
	var total int64
	for _, c := range copies {
		total += c.size
	}
	slices.SortFunc(copies, func(a, b cachedCopy) int { return a.used.Compare(b.used) })
	var failed []error
	for _, c := range copies {
		if total <= most {
			break
		}
		gone, err := s.evict(c.id)
		failed = append(failed, err)
		if gone {
			total -= c.size
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return errors.Join(failed...)
}

// cachedCopy is a snapshot that could be fetched again.
type cachedCopy struct {
	id   string
	size int64
	used time.Time
}

func (s *Snapshots) copies(spare func(id string) bool) (all []cachedCopy, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		id := e.Name()
		if strings.HasPrefix(id, draftPrefix) || !spare(id) {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // removed meanwhile
		}
		c := cachedCopy{id: id, used: info.ModTime()}
		if m, err := readManifest(s.kept(id)); err == nil {
			c.size = m.size()
		}
		all = append(all, c)
	}
	return all, nil
}

// evict removes a snapshot unless somebody uses it. It goes under a name of its
// own, because it may be fetched again meanwhile.
func (s *Snapshots) evict(id string) (gone bool, err error) {
	going := s.draft("old-" + id)
	if err := os.RemoveAll(going); err != nil {
		return false, err
	}
	s.mu.Lock()
	if s.users[id] > 0 {
		s.mu.Unlock()
		return false, nil
	}
	err = os.Rename(s.kept(id), going)
	s.mu.Unlock()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return true, os.RemoveAll(going)
}

// touch remembers that a snapshot was used just now. A copy whose time cannot
// be set goes earlier than it should, which is no harm.
func (s *Snapshots) touch(id string) {
	now := time.Now()
	_ = os.Chtimes(s.kept(id), now, now)
}
