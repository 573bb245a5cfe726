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

// Remove removes an image by name, digest, or prefix of its digest. If the
// image has other names, only this name is removed. For an image that a running
// sandbox uses, or that is pinned (see [Store.Protect]), Remove returns
// CodeConflict and changes nothing.
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
		this := func(r *refRecord) bool { return r.Name == name && r.Digest == rec.Digest }
		gone := x.refsOf(this)
		err := s.removeRefs(x, &sweeper{}, this)
		if err == nil {
			err = s.removed(ctx, gone)
		}
		return classify(op, ref, err)
	}
	gone := x.refsOf(func(r *refRecord) bool { return r.Digest == rec.Digest })
	sweep, err := s.newSweeper(ctx, x)
	if err != nil {
		return classify(op, ref, err)
	}
	if err := s.removeImage(x, rec, sweep); err != nil {
		return classify(op, ref, err)
	}
	if err := s.removed(ctx, gone); err != nil {
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
	seen  map[string]bool // for a dry run, which may visit a file twice

	pinned map[string]string // what needs an image, by digest
}

// remove removes a file, which may be gone already.
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
// caller holds the index lock; x is updated.
func (s *Store) removeImage(x *index, rec *imageRecord, sweep *sweeper) error {
	if err := sweep.spare(rec); err != nil {
		return err
	}
	unused := x.onlyIn(rec)
	locked := unused
	if !slices.Contains(unused, rec.Rootfs) { // sandboxes of the image still use it
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

// lockLayer takes the exclusive lock of a layer, or returns errLocked if a
// sandbox holds the shared one.
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

// refsOf returns the names that match.
func (x *index) refsOf(match func(*refRecord) bool) []*refRecord {
	return slices.DeleteFunc(slices.Clone(x.refs), func(r *refRecord) bool { return !match(r) })
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

// pinTime limits the call of the function of Protect when an old image is
// removed automatically.
const pinTime = 10 * time.Second

// dropUnnamed removes an unused image that has lost its last name to a newer
// version of the same source. The caller holds the index lock.
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

// PruneOptions select what Prune removes in addition to images without a name
// and unreferenced files.
type PruneOptions struct {
	All    bool // all images that no running sandbox uses
	Blobs  bool // compressed layers of images that are kept: they are downloaded again when needed
	DryRun bool // only report
}

// PruneReport is what was, or would be, removed.
type PruneReport struct {
	Images []string // digests
	Files  int
	Bytes  int64 // bytes on disk
	// Busy means that unreferenced files were kept because a Get was in progress.
	Busy bool
}

// Prune frees disk space. Images in use are kept without an error.
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

// collect removes files without a record in x, unless a Get is in progress,
// which may be about to record them. The caller holds the index lock.
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

// sweepDir removes matching files of a directory. A file system in use is kept,
// even if it has no record.
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
