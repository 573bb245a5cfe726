package daemon

import (
	"context"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/bucket"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/workspace/worktree"
)

// openBlobs opens the blob stores of workspaces, snapshots and recordings, and the working
// directories of workspaces.
func (d *Daemon) openBlobs(ctx context.Context) (*worktree.Store, *archive.Archive, error) {
	address := d.opts.Blobs
	if address == "" {
		address = "dir:" + filepath.Join(d.node.Dir(), blobsName)
	}
	blobs, err := blob.Open(ctx, address)
	if err != nil {
		return nil, nil, err
	}
	key, err := worktree.Key(filepath.Join(d.node.Dir(), "workspace.key"))
	if err != nil {
		return nil, nil, err
	}
	d.blobs = blobs
	workspaces, err := worktree.Open(filepath.Join(d.node.Dir(), "workspaces"), blobs, key)
	return workspaces, archive.New(blobs, key), err
}

// openBuckets opens the buckets that can be mounted.
func (d *Daemon) openBuckets() (*bucket.Buckets, error) {
	named := map[string]string{}
	for _, text := range d.opts.Buckets {
		name, address, err := bucket.ParseNamed(text, key.DefaultTenant)
		if err != nil {
			return nil, err
		}
		named[name] = address
	}
	kernel, _ := d.opts.LookupEnv("ATOLL_KERNEL")
	b, err := bucket.Open(bucket.Options{Dir: filepath.Join(d.node.Dir(), "buckets"), Named: named, Executable: kernel})
	if err == nil {
		d.onClose(func() error { b.Close(); return nil })
	}
	return b, err
}

// sharedImages are the parts of images in the blob store. It implements
// image.Blobs.
type sharedImages struct{ blobs blob.Store }

// Get implements image.Blobs.
func (s sharedImages) Get(ctx context.Context, key string) (io.ReadCloser, error) {
	return s.blobs.Get(ctx, key, 0, -1)
}

// Put implements image.Blobs.
func (s sharedImages) Put(ctx context.Context, key string, r io.Reader, size int64) error {
	return s.blobs.Put(ctx, key, r, blob.PutOptions{Size: size})
}

// Modified implements image.Blobs.
func (s sharedImages) Modified(ctx context.Context, key string) (time.Time, error) {
	info, err := s.blobs.Stat(ctx, key)
	return info.Modified, err
}

const (
	imagesPrefix = "images" // of the parts of images in a blob store
	// shareTries is how often a bucket is asked for a part of an image before the
	// registry is asked.
	shareTries = 3
	// expirePeriod is the interval between removals of shared parts of images that
	// are no longer used.
	expirePeriod = 24 * time.Hour
)

// MinImagesKeep is the minimum of Options.ShareImagesKeep other than zero: what is
// in use is written again when it is read and older than image.Renewal.
const MinImagesKeep = 2 * image.Renewal

// shareImages makes the images of this daemon those that it shares with others.
// Nothing depends on a bucket that only images are in, also not the start.
func (d *Daemon) shareImages(ctx context.Context, images *image.Store) error {
	blobs := d.blobs
	switch address := d.opts.ShareImages; {
	case address == "" && d.opts.Blobs == "": // only this machine would have them
		return nil
	case strings.HasPrefix(address, "s3:"):
		where, err := blob.ParseS3(address)
		if err != nil {
			return err
		}
		where.Unchecked, where.Tries = true, shareTries
		if blobs, err = blob.OpenS3(ctx, where); err != nil {
			return err
		}
	case address != "":
		var err error
		if blobs, err = blob.Open(ctx, address); err != nil {
			return err
		}
	}
	images.Share(sharedImages{blob.Below(blobs, imagesPrefix)})
	return nil
}

// expireImages removes the parts of images from Blobs that nobody read or wrote for
// keep, until ctx ends. Of daemons that share records, one does it.
func (d *Daemon) expireImages(ctx context.Context, keep time.Duration) {
	for {
		first, err := d.isFirst(ctx)
		if err == nil && first {
			var n int
			n, err = blob.Expire(ctx, blob.Below(d.blobs, imagesPrefix), keep)
			d.opts.Logger.DebugContext(ctx, "removed shared parts of images that are no longer used", "number", n)
		}
		if err != nil && ctx.Err() == nil {
			d.opts.Logger.ErrorContext(ctx, "removing shared parts of images failed", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(expirePeriod):
		}
	}
}

// isFirst reports whether this daemon has the first name of those that live and
// share its records.
func (d *Daemon) isFirst(ctx context.Context) (bool, error) {
	if !d.store.Shared() {
		return true, nil
	}
	all, err := store.Read(ctx, d.store, func(tx *store.Tx) ([]store.Node, error) { return tx.Operator().Nodes(ctx) })
	now := d.store.Now()
	return err == nil && !slices.ContainsFunc(all, func(n store.Node) bool {
		return n.ID < d.member.Node && now.Sub(n.Heartbeat) < core.StaleAfter
	}), err
}
