package daemon

import (
	"context"
	"io"
	"path/filepath"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/bucket"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
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
