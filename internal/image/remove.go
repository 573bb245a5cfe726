package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// Remove removes an image by a name, its digest, or the beginning of its
// digest. If it has other names, only the name goes. An image that a living
// sandbox uses, or that somebody else needs (see [Store.Protect]), is
// CodeConflict, and nothing changes.
func (s *Store) Remove(ctx context.Context, ref string) error {
	const op = "image.rm"
	l, err := s.lock(ctx, lockIndex, unix.LOCK_EX, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	x, err := s.readIndex()
	if err != nil {
		return internal(op, ref, err)
	}
	rec, name, err := x.find(op, ref)
	if err != nil {
		return err
	}
	if name != "" && len(x.names(rec.Digest)) > 1 {
		return classify(op, ref, s.removeRefs(x, &sweeper{}, func(r *refRecord) bool { return r.Name == name && r.Digest == rec.Digest }))
	}
	sweep, err := s.newSweeper(ctx, x)
	if err != nil {
		return classify(op, ref, err)
	}
	if err := s.removeImage(x, rec, sweep); err != nil {
		return classify(op, ref, err)
	}
	return classify(op, ref, s.collect(x, sweep, false))
}

// sweeper removes files and counts them.
type sweeper struct {
	dry   bool
	files int
	bytes int64
	busy  bool
	seen  map[string]bool // of a dry run, which meets some files twice

	pinned map[string]string // who needs an image, by digest
}

// remove removes a file that may be gone already.
func (w *sweeper) remove(path string) error {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	switch {
	case err != nil:
	case !w.dry:
		err = os.Remove(path)
	case w.seen[path]:
		return nil
	default:
		w.seen[path] = true
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		w.files++
		w.bytes += st.Blocks * 512
	}
	return err
}

// removeImage removes an image with all its names, unless it is in use. The
// index lock is held; x is brought up to date.
func (s *Store) removeImage(x *index, rec *imageRecord, sweep *sweeper) error {
	if err := sweep.spare(rec); err != nil {
		return err
	}
	unused := x.onlyIn(rec)
	locked := unused
	if !slices.Contains(unused, rec.Rootfs) { // sandboxes of the image use it all the same
		locked = append([]string{rec.Rootfs}, unused...)
	}
	for _, key := range locked {
		unlock, err := s.lockLayer(key)
		if errors.Is(err, errLocked) {
			return fail(sandbox.CodeConflict, "image.rm", rec.Digest, "remove the sandboxes that use it, or an image made of it, first", "the image is in use")
		}
		if err != nil {
			return err
		}
		defer unlock()
	}
	if err := s.removeRefs(x, sweep, func(r *refRecord) bool { return r.Digest == rec.Digest }); err != nil {
		return err
	}
	h, _ := digestHex(rec.Digest)
	if err := sweep.remove(s.path("images", h+".json")); err != nil {
		return err
	}
	x.images = slices.DeleteFunc(x.images, func(o *imageRecord) bool { return o.Digest == rec.Digest })
	for _, key := range unused {
		if err := sweep.remove(s.rootfsPath(key)); err != nil {
			return err
		}
	}
	return nil
}

// onlyIn returns the layers of an image that no other image has.
func (x *index) onlyIn(rec *imageRecord) []string {
	return slices.DeleteFunc(rec.layers(), func(key string) bool {
		return slices.ContainsFunc(x.images, func(o *imageRecord) bool {
			return o.Digest != rec.Digest && slices.Contains(o.layers(), key)
		})
	})
}

// lockLayer takes the exclusive lock of a layer, or returns errLocked: nobody can
// have it while a sandbox holds the shared one.
func (s *Store) lockLayer(key string) (unlock func(), err error) {
	f, err := os.Open(s.rootfsPath(key))
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, err
	}
	return func() { f.Close() }, nil
}

// removeRefs removes names.
func (s *Store) removeRefs(x *index, sweep *sweeper, match func(*refRecord) bool) error {
	for _, r := range x.refs {
		if match(r) {
			if err := sweep.remove(s.path("refs", refFile(r.Name, r.Platform))); err != nil {
				return err
			}
		}
	}
	x.refs = slices.DeleteFunc(x.refs, match)
	return nil
}

// pinTime bounds how long it may take to find out who needs an image that
// nobody asked to remove.
const pinTime = 10 * time.Second

// dropUnnamed removes an image that has lost its last name to a newer version
// of the same source, if nobody uses it. The index lock is held.
func (s *Store) dropUnnamed(digest string) {
	x, err := s.readIndex()
	if err != nil {
		return
	}
	i := slices.IndexFunc(x.images, func(r *imageRecord) bool { return r.Digest == digest })
	if i < 0 || len(x.names(digest)) > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), pinTime)
	defer cancel()
	sweep, err := s.newSweeper(ctx, x)
	if err == nil {
		err = s.removeImage(x, x.images[i], sweep)
	}
	if err != nil {
		s.opts.Logger.Debug("removing an old image failed", "digest", digest, "error", err)
	}
}

// PruneOptions say what Prune removes beyond images without a name and files
// that belong to nothing.
type PruneOptions struct {
	All    bool // every image that no living sandbox uses
	Blobs  bool // layers of images that are kept: getting a related image will transfer them again
	DryRun bool // only report
}

// PruneReport says what was, or would be, removed.
type PruneReport struct {
	Images []string // digests
	Files  int
	Bytes  int64 // of disk
	// Busy says that files of no image were left alone because a Get was
	// under way.
	Busy bool
}

// Prune frees space. Images in use stay, and are not an error.
func (s *Store) Prune(ctx context.Context, opts PruneOptions) (PruneReport, error) {
	const op = "image.prune"
	var report PruneReport
	l, err := s.lock(ctx, lockIndex, unix.LOCK_EX, nil)
	if err != nil {
		return report, err
	}
	defer l.Close()
	x, err := s.readIndex()
	if err != nil {
		return report, internal(op, s.dir, err)
	}
	sweep, err := s.newSweeper(ctx, x)
	if err != nil {
		return report, classify(op, s.dir, err)
	}
	sweep.dry, sweep.seen = opts.DryRun, map[string]bool{}
	for _, rec := range slices.Clone(x.images) {
		if err := ctx.Err(); err != nil {
			return report, err
		}
		if !opts.All && len(x.names(rec.Digest)) > 0 {
			continue
		}
		err := s.removeImage(x, rec, sweep)
		if sandbox.CodeOf(err) == sandbox.CodeConflict {
			continue
		}
		if err != nil {
			return report, classify(op, s.dir, err)
		}
		report.Images = append(report.Images, rec.Digest)
	}
	err = s.collect(x, sweep, opts.Blobs)
	report.Files, report.Bytes, report.Busy = sweep.files, sweep.bytes, sweep.busy
	return report, classify(op, s.dir, err)
}

// collect removes the files that no record of x mentions, unless a Get is
// under way, which may be about to mention them. The index lock is held.
func (s *Store) collect(x *index, sweep *sweeper, blobs bool) error {
	gc, err := s.tryLock(lockGC, unix.LOCK_EX)
	if errors.Is(err, errLocked) {
		sweep.busy = true
		return nil
	}
	if err != nil {
		return err
	}
	defer gc.Close()
	keep := map[string]bool{lockGC: true, lockIndex: true}
	for _, rec := range x.images {
		for _, key := range rec.layers() {
			keep[key+".erofs"] = true
		}
		for _, b := range rec.Blobs {
			keep[b] = !blobs
		}
	}
	for _, dir := range []string{"tmp", "partial", "locks", "rootfs", "blobs/sha256"} {
		if err := s.sweepDir(dir, sweep, func(name string) bool { return !keep[name] }); err != nil {
			return err
		}
	}
	return nil
}

// sweepDir removes the files of a directory that match. A file system that is
// in use stays, even if its record was lost.
func (s *Store) sweepDir(dir string, sweep *sweeper, match func(name string) bool) error {
	entries, err := os.ReadDir(s.path(dir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !match(e.Name()) {
			continue
		}
		if key, ok := strings.CutSuffix(e.Name(), ".erofs"); ok && dir == "rootfs" {
			unlock, err := s.lockLayer(key)
			if err != nil {
				continue
			}
			defer unlock()
		}
		if err := sweep.remove(filepath.Join(s.path(dir), e.Name())); err != nil {
			return err
		}
	}
	return nil
}
