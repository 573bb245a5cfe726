package engine

import (
	"context"
	"io"
	"iter"
	"path"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// Files accesses the files of a sandbox. Paths must be absolute and are
// cleaned; the sandbox's own kernel resolves them. Files implements
// driver.FileSystem, driver.Archiver, driver.Watcher, driver.Overwriter and
// driver.Describer. Methods that the provider does not support return
// CodeUnsupported.
type Files struct{ sandbox *Sandbox }

// Files returns the sandbox's files.
func (s *Sandbox) Files() Files { return Files{s} }

// with runs an operation of the optional interface T on a cleaned path.
func with[T any](ctx context.Context, f Files, op ops.Op, p *string, act func(context.Context, T) error) error {
	return f.sandbox.e.do(ctx, f.sandbox.action(op, *p), func(ctx context.Context) error {
		if err := sandbox.ValidatePath("path", *p); err != nil {
			return err
		}
		*p = path.Clean(*p)
		t, ok := driver.As[T](f.sandbox.inst)
		if !ok {
			return &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "this provider does not support this file operation"}
		}
		return act(ctx, t)
	})
}

// Stat describes a file. It does not follow a symbolic link at the end of p.
func (f Files) Stat(ctx context.Context, p string) (info sandbox.FileInfo, err error) {
	err = with(ctx, f, ops.FilesStat, &p, func(ctx context.Context, fs driver.FileSystem) (err error) {
		info, err = fs.Stat(ctx, p)
		return err
	})
	return info, err
}

// List yields the files below a directory, and stops at the first error.
func (f Files) List(ctx context.Context, p string, opts driver.ListOptions) iter.Seq2[sandbox.FileInfo, error] {
	return each(ctx, f, ops.FilesList, p, func(ctx context.Context, fs driver.FileSystem, p string) iter.Seq2[sandbox.FileInfo, error] {
		return fs.List(ctx, p, opts)
	})
}

// Describe yields the files below a directory or, if depth is 0, only the file
// itself. It stops at the first error.
func (f Files) Describe(ctx context.Context, p string, depth int) iter.Seq2[sandbox.FileDetails, error] {
	return each(ctx, f, ops.FilesList, p, func(ctx context.Context, d driver.Describer, p string) iter.Seq2[sandbox.FileDetails, error] {
		return d.Describe(ctx, p, depth)
	})
}

// each yields the results of the optional interface D.
func each[D, T any](ctx context.Context, f Files, op ops.Op, p string, tell func(context.Context, D, string) iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		more, at := true, p
		err := with(ctx, f, op, &at, func(ctx context.Context, d D) error {
			for info, err := range tell(ctx, d, at) {
				if err != nil {
					return err
				}
				if more = yield(info, nil); !more {
					return nil
				}
			}
			return nil
		})
		if err != nil && more {
			var none T
			yield(none, err)
		}
	}
}

// Read opens a regular file. The caller closes the reader.
func (f Files) Read(ctx context.Context, p string, opts driver.ReadOptions) (r io.ReadCloser, info sandbox.FileInfo, err error) {
	err = with(ctx, f, ops.FilesRead, &p, func(ctx context.Context, fs driver.FileSystem) (err error) {
		if opts.Offset < 0 || opts.Length < 0 {
			return invalid("", "range", "negative offset or length", "")
		}
		r, info, err = fs.Read(ctx, p, opts)
		return err
	})
	return r, info, err
}

// Write creates or replaces a regular file with the content of r, atomically.
func (f Files) Write(ctx context.Context, p string, r io.Reader, opts driver.WriteOptions) (info sandbox.FileInfo, err error) {
	err = with(ctx, f, ops.FilesWrite, &p, func(ctx context.Context, fs driver.FileSystem) (err error) {
		if err := validateAttributes(opts.Mode, opts.Owner); err != nil {
			return err
		}
		info, err = fs.Write(ctx, p, r, opts)
		return err
	})
	return info, err
}

// Overwrite creates or truncates a regular file and writes r into it.
func (f Files) Overwrite(ctx context.Context, p string, r io.Reader, opts driver.OverwriteOptions) (info sandbox.FileInfo, err error) {
	err = with(ctx, f, ops.FilesWrite, &p, func(ctx context.Context, fs driver.Overwriter) (err error) {
		if err := validateAttributes(0, opts.Owner); err != nil {
			return err
		}
		info, err = fs.Overwrite(ctx, p, r, opts)
		return err
	})
	return info, err
}

// Mkdir creates a directory.
func (f Files) Mkdir(ctx context.Context, p string, opts driver.MkdirOptions) error {
	return with(ctx, f, ops.FilesMkdir, &p, func(ctx context.Context, fs driver.FileSystem) error {
		if err := validateAttributes(opts.Mode, opts.Owner); err != nil {
			return err
		}
		return fs.Mkdir(ctx, p, opts)
	})
}

// Remove removes a file or, if recursive, a tree.
func (f Files) Remove(ctx context.Context, p string, recursive bool) error {
	return with(ctx, f, ops.FilesRemove, &p, func(ctx context.Context, fs driver.FileSystem) error {
		return fs.Remove(ctx, p, recursive)
	})
}

// Move renames a file or directory.
func (f Files) Move(ctx context.Context, from, to string, overwrite bool) error {
	return with(ctx, f, ops.FilesMove, &from, func(ctx context.Context, fs driver.FileSystem) error {
		if err := sandbox.ValidatePath("path", to); err != nil {
			return err
		}
		return fs.Move(ctx, from, path.Clean(to), overwrite)
	})
}

// Export writes the file or tree at p as a tar stream. The stream comes from
// inside the sandbox, so it must not be trusted.
func (f Files) Export(ctx context.Context, p string, w io.Writer, opts driver.ExportOptions) error {
	return with(ctx, f, ops.FilesExport, &p, func(ctx context.Context, fs driver.Archiver) error {
		for _, pattern := range opts.Exclude {
			if _, err := path.Match(pattern, ""); err != nil {
				return invalid("", "exclude", "malformed pattern", "")
			}
		}
		if !opts.Zstd {
			return fs.Export(ctx, p, w, opts)
		}
		opts.Zstd = false
		return compressed(w, func(w io.Writer) error { return fs.Export(ctx, p, w, opts) })
	})
}

// Import unpacks a tar stream, optionally compressed with zstd, into the
// directory at p, which is created if missing.
func (f Files) Import(ctx context.Context, p string, r io.Reader, opts driver.ImportOptions) error {
	return with(ctx, f, ops.FilesImport, &p, func(ctx context.Context, fs driver.Archiver) error {
		if err := validateAttributes(0, opts.Owner); err != nil {
			return err
		}
		plain, err := uncompressed(r)
		if err != nil {
			return err
		}
		return fs.Import(ctx, p, plain, opts)
	})
}

// Watch reports changes below p until ctx ends, then closes the channel.
func (f Files) Watch(ctx context.Context, p string, recursive bool) (events <-chan sandbox.FileEvent, err error) {
	err = with(ctx, f, ops.FilesWatch, &p, func(ctx context.Context, fs driver.Watcher) (err error) {
		events, err = fs.Watch(ctx, p, recursive)
		return err
	})
	return events, err
}

// validateAttributes checks the mode and owner of a file. The owner has the
// same format as the user of a command.
func validateAttributes(mode uint32, owner string) error {
	if mode > 0o7777 {
		return invalid("", "mode", "contains bits other than permission, set-id and sticky bits", "")
	}
	cmd := sandbox.Command{Args: []string{"-"}, User: owner}
	return cmd.Validate()
}

var (
	_ driver.FileSystem = Files{}
	_ driver.Archiver   = Files{}
	_ driver.Watcher    = Files{}
	_ driver.Overwriter = Files{}
	_ driver.Describer  = Files{}
)
