package gvisor

import (
	"context"
	"io"
	"iter"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// Stat describes a file. See driver.FileSystem.
func (in *Instance) Stat(ctx context.Context, path string) (info sandbox.FileInfo, err error) {
	err = in.use(ctx, func(ctx context.Context) error {
		info, err = in.client.Stat(ctx, path)
		return err
	})
	return info, err
}

// List lists a directory. See driver.FileSystem.
func (in *Instance) List(ctx context.Context, path string, opts driver.ListOptions) iter.Seq2[sandbox.FileInfo, error] {
	return func(yield func(sandbox.FileInfo, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		if err := in.reach(ctx); err != nil {
			yield(sandbox.FileInfo{}, in.explain(err))
			return
		}
		defer in.doubt(ctx, cancel, true)()
		for info, err := range in.client.List(ctx, path, opts) {
			if !yield(info, in.explain(answer(ctx, err))) {
				return
			}
		}
	}
}

// Read opens a file. See driver.FileSystem.
func (in *Instance) Read(ctx context.Context, path string, opts driver.ReadOptions) (r io.ReadCloser, info sandbox.FileInfo, err error) {
	own, cancel := context.WithCancelCause(ctx)
	err = in.begin(own, cancel, func(ctx context.Context) error {
		r, info, err = in.client.Read(ctx, path, opts)
		return err
	})
	return r, info, err
}

// Write writes a file. See driver.FileSystem.
func (in *Instance) Write(ctx context.Context, path string, r io.Reader, opts driver.WriteOptions) (info sandbox.FileInfo, err error) {
	err = in.use(ctx, func(ctx context.Context) error {
		info, err = in.client.Write(ctx, path, r, opts)
		return err
	})
	return info, err
}

// Mkdir makes a directory. See driver.FileSystem.
func (in *Instance) Mkdir(ctx context.Context, path string, opts driver.MkdirOptions) error {
	return in.use(ctx, func(ctx context.Context) error { return in.client.Mkdir(ctx, path, opts) })
}

// Remove removes a file or tree. See driver.FileSystem.
func (in *Instance) Remove(ctx context.Context, path string, recursive bool) error {
	return in.use(ctx, func(ctx context.Context) error { return in.client.Remove(ctx, path, recursive) })
}

// Move renames a file. See driver.FileSystem.
func (in *Instance) Move(ctx context.Context, from, to string, overwrite bool) error {
	return in.use(ctx, func(ctx context.Context) error { return in.client.Move(ctx, from, to, overwrite) })
}

// Export writes a tree as a tar stream. See driver.Archiver.
func (in *Instance) Export(ctx context.Context, path string, w io.Writer, opts driver.ExportOptions) error {
	return in.use(ctx, func(ctx context.Context) error { return in.client.Export(ctx, path, w, opts) })
}

// Import unpacks a tar stream. See driver.Archiver.
func (in *Instance) Import(ctx context.Context, path string, r io.Reader, opts driver.ImportOptions) error {
	return in.use(ctx, func(ctx context.Context) error { return in.client.Import(ctx, path, r, opts) })
}

// Watch reports changes of files. See driver.Watcher.
func (in *Instance) Watch(ctx context.Context, path string, recursive bool) (events <-chan sandbox.FileEvent, err error) {
	own, cancel := context.WithCancelCause(ctx)
	err = in.begin(own, cancel, func(ctx context.Context) error {
		events, err = in.client.Watch(ctx, path, recursive)
		return err
	})
	return events, err
}
