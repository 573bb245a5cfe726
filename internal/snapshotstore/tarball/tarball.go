// Package tarball packs a directory of regular files to a tar archive and
// unpacks it. Holes of files are preserved.
package tarball

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/internal/sparse"
	"github.com/atoll-run/atoll/sandbox"
)

// Write writes the files below dir. Anything except files and directories is an
// error.
func Write(ctx context.Context, w io.Writer, dir string) error {
	tw := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil || name == "." {
			return err
		}
		name = filepath.ToSlash(name)
		if d.IsDir() {
			return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o700})
		}
		return writeFile(ctx, w, tw, path, name)
	})
	return errors.Join(err, tw.Close())
}

func writeFile(ctx context.Context, w io.Writer, tw *tar.Writer, path, name string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%q is neither a file nor a directory", name)
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: info.Size(), Mode: 0o600, ModTime: time.Unix(0, 0)}
	allocated := info.Size()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		allocated = st.Blocks * 512
	}
	extents, worth, err := sparse.Find(f, info.Size(), allocated)
	switch {
	case err != nil:
		return err
	case worth:
		return sparse.Write(w, tw, h, f, extents)
	}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(tw, &reader{ctx: ctx, r: io.NewSectionReader(f, 0, info.Size())})
	return err
}

// trailer is the length of the end mark of an archive.
const trailer = 1024

// Read unpacks an archive into an empty directory. If it is incomplete, or
// contains anything except files and directories, Read returns CodeInvalid.
func Read(ctx context.Context, r io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	in := &reader{ctx: ctx, r: r}
	tr := tar.NewReader(in)
	for {
		in.zeros = 0
		h, err := tr.Next()
		switch {
		case err == io.EOF && in.zeros < trailer:
			return broken("it is incomplete")
		case err == io.EOF:
			return nil
		case err == nil:
			err = readMember(ctx, root, tr, h)
		}
		switch {
		case err == nil:
		case in.err != nil:
			return in.err
		case errors.Is(err, io.ErrUnexpectedEOF):
			return broken("it is incomplete")
		case errors.Is(err, tar.ErrHeader), errors.Is(err, tar.ErrInsecurePath):
			return broken(err.Error())
		default:
			return err
		}
	}
}

func broken(what string) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "archive", Message: "the archive is damaged: " + what}
}

func readMember(ctx context.Context, root *os.Root, tr *tar.Reader, h *tar.Header) error {
	name := filepath.FromSlash(h.Name)
	if !filepath.IsLocal(name) {
		return broken("it has a file outside the directory")
	}
	switch {
	case h.Typeflag == tar.TypeDir:
		return root.MkdirAll(name, 0o700)
	case h.Typeflag != tar.TypeReg && !sparse.Is(h):
		return broken("it contains something other than files and directories")
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(sparse.Copy(f, tr, h.Size, ctx.Err), f.Close())
}

// reader fails when its context ends, and stores its error.
type reader struct {
	ctx   context.Context
	r     io.Reader
	zeros int   // number of zero bytes at the end of what was read
	err   error // except io.EOF
}

func (r *reader) Read(p []byte) (int, error) {
	if r.err = r.ctx.Err(); r.err != nil {
		return 0, r.err
	}
	n, err := r.r.Read(p)
	kept := len(bytes.TrimRight(p[:n], "\x00"))
	if kept > 0 {
		r.zeros = 0
	}
	r.zeros += n - kept
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}
