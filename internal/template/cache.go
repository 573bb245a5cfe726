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

// Cache keeps the layers of steps in a directory, compressed: for each tenant
// a directory, in it a file for each key. A file is there when it is complete
// and synced, so that a crash leaves nothing but temporary files, which the next
// who opens the cache removes. Its methods may be called concurrently, and in
// several processes.
type Cache struct{ root *os.Root }

// OpenCache opens the cache in dir, making it if it is missing. The caller
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

// Close releases the directory.
func (c *Cache) Close() error { return c.root.Close() }

const layerExt = ".tar.zst"

// pending begins the names of layers that are being written. The writer holds a
// lock on it.
const pending = ".pending-"

// dir is where the layers of a tenant are. It is a hash, so that no name of a
// tenant can be a path.
func dir(tenant string) string { return string(hash(tenant))[:32] }

func layerPath(tenant string, k key) string { return filepath.Join(dir(tenant), string(k)+layerExt) }

// has reports whether the layer is there, and marks it as used.
func (c *Cache) has(tenant string, k key) bool {
	now := time.Now()
	return c.root.Chtimes(layerPath(tenant, k), now, now) == nil
}

// open returns the layer as it is stored, compressed. The caller closes it.
func (c *Cache) open(tenant string, k key) (io.ReadCloser, error) {
	f, err := c.root.Open(layerPath(tenant, k))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &sandbox.Error{
			Code: sandbox.CodeConflict, Op: "template.build", Message: "a cached step was removed meanwhile", Hint: "build again",
		}
	}
	return f, err
}

// put stores what write writes.
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

// create makes a file that only its writer has, and locks it.
func (c *Cache) create(tenant string) (*os.File, string, error) {
	for {
		name := filepath.Join(dir(tenant), pending+rand.Text())
		f, err := c.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, "", err
		}
		// Between the two calls a sweep may have taken it for abandoned.
		if lock(f) {
			own, err := f.Stat()
			now, gone := c.root.Lstat(name)
			if err == nil && gone == nil && os.SameFile(own, now) {
				return f, name, nil
			}
		}
		_ = f.Close() // it has no name and no content
	}
}

// sweep removes what killed writers left.
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
			return nil //nolint:nilerr // it was finished meanwhile
		}
		if lock(f) {
			_ = c.root.Remove(name) // whoever swept it too was faster
		}
		return f.Close()
	})
}

// Prune removes the layers that no build has used since then, and returns how
// many bytes that freed.
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
			continue // somebody else removed it
		}
		if filepath.Ext(e.Name()) == ".zst" && fi.ModTime().Before(since) && c.root.Remove(filepath.Join(dir(tenant), e.Name())) == nil {
			freed += fi.Size()
		}
	}
	return freed, nil
}
