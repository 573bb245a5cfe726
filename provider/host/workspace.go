package host

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"iter"
	"path"
	"strconv"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// workspace maps the paths of a sandbox of a Workdir: callers see the directory
// at the path that every sandbox has for its workspace, too. It is the directory's
// own path; empty: nothing is mapped.
type workspace string

// within returns what follows top in a path: empty, or a path that begins with a
// slash.
func within(top, p string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(path.Clean(p), top)
	return rest, ok && (rest == "" || rest[0] == '/')
}

// real returns the path on the machine of a caller's path, and whether the
// directory was named as the workspace. All other paths stay as they are.
func (w workspace) real(p string) (real string, mapped bool) {
	rest, ok := within(sandbox.WorkspaceDir, p)
	if !ok || w == "" || p == "" {
		return p, false
	}
	return string(w) + rest, true
}

// shown returns the caller's path of a path on the machine.
func (w workspace) shown(p string) string {
	rest, ok := within(string(w), p)
	if !ok || p == "" {
		return p
	}
	return sandbox.WorkspaceDir + rest
}

// failed returns an error with the paths as the caller sees them.
func (w workspace) failed(err error) error {
	e, ok := errors.AsType[*sandbox.Error](err)
	if !ok || w == "" {
		return err
	}
	out, dir := *e, string(w)
	out.Subject = w.shown(e.Subject)
	out.Message = strings.NewReplacer(dir+"/", sandbox.WorkspaceDir+"/", strconv.Quote(dir), strconv.Quote(sandbox.WorkspaceDir)).Replace(e.Message)
	return &out
}

// at returns the path on the machine of a caller's path, and what returns errors
// about it in the caller's words.
func (in *Instance) at(p string) (real string, failed func(error) error) {
	w := workspace(in.provider.workdir)
	real, mapped := w.real(p)
	if !mapped {
		return real, func(err error) error { return err }
	}
	return real, w.failed
}

// Stat implements driver.FileSystem.
func (in *Instance) Stat(ctx context.Context, p string) (sandbox.FileInfo, error) {
	real, failed := in.at(p)
	info, err := in.Client.Stat(ctx, real)
	return named(info, p), failed(err)
}

// named is a description of a file with the path that a caller gave.
func named(info sandbox.FileInfo, p string) sandbox.FileInfo {
	if info.Path != "" {
		info.Path = p
	}
	return info
}

// List implements driver.FileSystem.
func (in *Instance) List(ctx context.Context, p string, opts driver.ListOptions) iter.Seq2[sandbox.FileInfo, error] {
	real, failed := in.at(p)
	return mapped(in.Client.List(ctx, real, opts), failed)
}

// Describe implements driver.Describer.
func (in *Instance) Describe(ctx context.Context, p string, depth int) iter.Seq2[sandbox.FileDetails, error] {
	real, failed := in.at(p)
	return mapped(in.Client.Describe(ctx, real, depth), failed)
}

func mapped[T any](all iter.Seq2[T, error], failed func(error) error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for one, err := range all {
			if !yield(one, failed(err)) {
				return
			}
		}
	}
}

// Read implements driver.FileSystem.
func (in *Instance) Read(ctx context.Context, p string, opts driver.ReadOptions) (io.ReadCloser, sandbox.FileInfo, error) {
	real, failed := in.at(p)
	r, info, err := in.Client.Read(ctx, real, opts)
	return r, named(info, p), failed(err)
}

// Write implements driver.FileSystem.
func (in *Instance) Write(ctx context.Context, p string, r io.Reader, opts driver.WriteOptions) (sandbox.FileInfo, error) {
	real, failed := in.at(p)
	info, err := in.Client.Write(ctx, real, r, opts)
	return named(info, p), failed(err)
}

// Overwrite implements driver.Overwriter.
func (in *Instance) Overwrite(ctx context.Context, p string, r io.Reader, opts driver.OverwriteOptions) (sandbox.FileInfo, error) {
	real, failed := in.at(p)
	info, err := in.Client.Overwrite(ctx, real, r, opts)
	return named(info, p), failed(err)
}

// Mkdir implements driver.FileSystem.
func (in *Instance) Mkdir(ctx context.Context, p string, opts driver.MkdirOptions) error {
	real, failed := in.at(p)
	return failed(in.Client.Mkdir(ctx, real, opts))
}

// Remove implements driver.FileSystem.
func (in *Instance) Remove(ctx context.Context, p string, recursive bool) error {
	real, failed := in.at(p)
	if in.provider.workdir != "" && path.Clean(real) == in.provider.workdir {
		return &sandbox.Error{Code: sandbox.CodeDenied, Op: "remove", Subject: p, Message: "the directory belongs to the machine's owner, and is not removed"}
	}
	return failed(in.Client.Remove(ctx, real, recursive))
}

// Move implements driver.FileSystem.
func (in *Instance) Move(ctx context.Context, from, to string, overwrite bool) error {
	realFrom, failed := in.at(from)
	realTo, also := in.at(to)
	return failed(also(in.Client.Move(ctx, realFrom, realTo, overwrite)))
}

// Watch implements driver.Watcher.
func (in *Instance) Watch(ctx context.Context, p string, recursive bool) (<-chan sandbox.FileEvent, error) {
	real, failed := in.at(p)
	events, err := in.Client.Watch(ctx, real, recursive)
	return events, failed(err)
}

// top is the name of the workspace in the archive of its parent.
var top = path.Base(sandbox.WorkspaceDir)

// Export implements driver.Archiver.
func (in *Instance) Export(ctx context.Context, p string, w io.Writer, opts driver.ExportOptions) error {
	real, failed := in.at(p)
	if in.provider.workdir == "" || real == p || real != in.provider.workdir {
		return failed(in.Client.Export(ctx, real, w, opts))
	}
	return failed(renamed(w, func(w io.Writer) error { return in.Client.Export(ctx, real, w, opts) }, func(name string) (string, error) {
		return path.Join(top, name), nil
	}))
}

// Import implements driver.Archiver. The parent of the workspace has nothing else.
func (in *Instance) Import(ctx context.Context, p string, r io.Reader, opts driver.ImportOptions) error {
	real, failed := in.at(p)
	if in.provider.workdir == "" || path.Clean(p) != path.Dir(sandbox.WorkspaceDir) {
		return failed(in.Client.Import(ctx, real, r, opts))
	}
	out, into := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := rename(into, r, func(name string) (string, error) {
			rest, ok := within(top, name)
			if !ok || name == "" || name[0] == '/' {
				return "", &sandbox.Error{Code: sandbox.CodeDenied, Op: "import", Subject: name, Message: "is outside " + sandbox.WorkspaceDir + ", which is all that the machine offers"}
			}
			return strings.TrimPrefix(rest, "/"), nil
		})
		_ = into.CloseWithError(err)
		done <- err
	}()
	err := in.Client.Import(ctx, in.provider.workdir, out, opts)
	_ = out.CloseWithError(err)
	if renaming := <-done; renaming != nil && err != nil && !errors.Is(renaming, io.ErrClosedPipe) {
		err = renaming
	}
	return workspace(in.provider.workdir).failed(err)
}

// renamed writes an archive with other names.
func renamed(w io.Writer, write func(io.Writer) error, name func(string) (string, error)) error {
	out, into := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := write(into)
		_ = into.CloseWithError(err)
		written <- err
	}()
	err := rename(w, out, name)
	_ = out.CloseWithError(err)
	if failed := <-written; failed != nil && (err == nil || errors.Is(err, failed)) {
		err = failed
	}
	return err
}

// rename copies an archive with other names. A member whose name becomes empty is
// left out.
func rename(to io.Writer, from io.Reader, name func(string) (string, error)) (err error) {
	in, out := tar.NewReader(from), tar.NewWriter(to)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return out.Close()
		}
		if err != nil {
			return err
		}
		dir := strings.HasSuffix(h.Name, "/")
		if h.Name, err = name(h.Name); err != nil {
			return err
		}
		if h.Name == "" {
			continue
		}
		if dir {
			h.Name += "/"
		}
		if h.Typeflag == tar.TypeLink {
			if h.Linkname, err = name(h.Linkname); err != nil {
				return err
			}
		}
		if h.Typeflag == tar.TypeGNUSparse {
			h.Typeflag = tar.TypeReg
		}
		h.Format = tar.FormatPAX
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
}
