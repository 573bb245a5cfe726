package template

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/atoll-run/atoll/sandbox"
)

// Cache stores the layers of steps in a directory, compressed. There is a
// subdirectory for each tenant, with a file for each key. A file appears only
// when it is complete and synced, so a crash leaves only temporary files, which
// the next OpenCache removes. It is safe for concurrent use, also by several
// processes.
type Cache struct{ root *os.Root }

// OpenCache opens the cache in dir, which is created if missing. The caller
// closes it.
func OpenCache(dir string) (*Cache, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	c := &Cache{root}
	if err := c.sweep(); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return c, nil
}

// Close closes the directory.
func (c *Cache) Close() error { return c.root.Close() }

const layerExt = ".tar.zst"

// pending is the prefix of the names of layers being written. The writer holds
// a lock on the file.
const pending = ".pending-"

// dir returns the directory of a tenant. It is a hash, because tenant names
// must not be used as paths.
func dir(tenant string) string { return string(hash(tenant))[:32] }

func layerPath(tenant string, k key) string { return filepath.Join(dir(tenant), string(k)+layerExt) }

// has reports whether the cache has the layer, and updates its time of use.
func (c *Cache) has(tenant string, k key) bool {
	now := time.Now()
	return c.root.Chtimes(layerPath(tenant, k), now, now) == nil
}

// open returns the stored, compressed layer. The caller closes it.
func (c *Cache) open(tenant string, k key) (io.ReadCloser, error) {
	f, err := c.root.Open(layerPath(tenant, k))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &sandbox.Error{
			Code: sandbox.CodeConflict, Op: "template.build", Message: "a cached step was removed during the build", Hint: "build again",
		}
	}
	return f, err
}

// put stores the output of write.
func (c *Cache) put(tenant string, k key, write func(io.Writer) error) (err error) {
	if err := c.root.MkdirAll(dir(tenant), 0o700); err != nil {
		return err
	}
	f, tmp, err := c.create(tenant)
	if err != nil {
		return err
	}
	defer func() {
		_ = f.Close()
		if err != nil {
			_ = c.root.Remove(tmp)
		}
	}()
	z, err := zstd.NewWriter(f, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	if err := write(z); err != nil {
		_ = z.Close()
		return err
	}
	if err := errors.Join(z.Close(), f.Sync()); err != nil {
		return err
	}
	return c.root.Rename(tmp, layerPath(tenant, k))
}

// create creates and locks a temporary file.
func (c *Cache) create(tenant string) (*os.File, string, error) {
	for {
		name := filepath.Join(dir(tenant), pending+rand.Text())
		f, err := c.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, "", err
		}
		// A sweep may have removed it between creation and lock.
		if lock(f) {
			own, err := f.Stat()
			now, gone := c.root.Lstat(name)
			if err == nil && gone == nil && os.SameFile(own, now) {
				return f, name, nil
			}
		}
		_ = f.Close() // it was removed and is empty
	}
}

// sweep removes files of killed writers.
func (c *Cache) sweep() error {
	return fs.WalkDir(c.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil || !d.Type().IsRegular() || filepath.Ext(name) == ".zst" {
			return err
		}
		f, err := c.root.Open(name)
		if err != nil {
			return nil //nolint:nilerr // completed meanwhile
		}
		if lock(f) {
			_ = c.root.Remove(name) // another sweep may have removed it
		}
		return f.Close()
	})
}

// Prune removes the layers that no build has used since the given time, and
// returns the number of bytes freed.
func (c *Cache) Prune(tenant string, since time.Time) (freed int64, err error) {
	entries, err := fs.ReadDir(c.root.FS(), dir(tenant))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			continue // another process removed it
		}
		if filepath.Ext(e.Name()) == ".zst" && fi.ModTime().Before(since) && c.root.Remove(filepath.Join(dir(tenant), e.Name())) == nil {
			freed += fi.Size()
		}
	}
	return freed, nil
}
