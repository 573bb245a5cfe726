package template

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// Limits of the build files.
const (
	maxFiles = 1 << 20
	maxBytes = 16 << 30
	// maxDepth is the maximum nesting of directories. The time and open files to
	// create and remove them grow with it.
	maxDepth = 256
)

// Unpack unpacks a tar of build files into a directory. It accepts only files,
// directories and symbolic links. A name outside the directory, directly or
// through a link, is CodeInvalid. The caller removes the files.
func Unpack(ctx context.Context, r io.Reader, root *os.Root) error {
	tr := tar.NewReader(r)
	var bytes int64
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // names are checked here
			return broken(err)
		}
		if n >= maxFiles || h.Size > maxBytes-bytes { // a sum could overflow
			return &sandbox.Error{Code: sandbox.CodeExhausted, Op: "template.build", Message: "the build has too many files", Hint: "list unneeded files in " + ignoreFile}
		}
		bytes += h.Size
		if err := unpackOne(tr, h, root); err != nil {
			return err
		}
	}
}

func broken(err error) error {
	var known *sandbox.Error
	if errors.As(err, &known) {
		return err
	}
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "template.build", Message: "the build's files are not a valid tar stream", Cause: err}
}

func unpackOne(r io.Reader, h *tar.Header, root *os.Root) error {
	if strings.HasPrefix(h.Name, "/") || strings.IndexByte(h.Name, 0) >= 0 {
		return invalid("files", "%q is not a relative name", clip(h.Name))
	}
	name, err := inContext(h.Name)
	if err != nil {
		return invalid("files", "%q is outside the build files", clip(h.Name))
	}
	switch {
	case name == ".":
		return nil
	case strings.Count(name, "/") > maxDepth:
		return invalid("files", "%q has more than %d parent directories", clip(h.Name), maxDepth)
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return invalid("files", "%q: %v", clip(h.Name), pathError(err))
	}
	switch h.Typeflag {
	case tar.TypeDir:
		err = root.MkdirAll(name, 0o755)
		if err == nil {
			err = root.Chmod(name, os.FileMode(h.Mode&0o777|0o700))
		}
	case tar.TypeSymlink:
		err = root.Symlink(h.Linkname, name)
	case tar.TypeReg:
		return unpackFile(r, h, root, name)
	default:
		return invalid("files", "%q is neither a file nor a directory nor a link", clip(h.Name))
	}
	if err != nil {
		return invalid("files", "%q: %v", clip(h.Name), pathError(err))
	}
	return nil
}

func unpackFile(r io.Reader, h *tar.Header, root *os.Root, name string) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return invalid("files", "%q: %v", clip(h.Name), pathError(err))
	}
	_, err = io.Copy(f, r)
	if err == nil {
		err = f.Chmod(os.FileMode(h.Mode & 0o777))
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	var typed *sandbox.Error
	switch {
	case err == nil, errors.As(err, &typed):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, tar.ErrHeader):
		return broken(err)
	}
	return &sandbox.Error{Code: sandbox.CodeExhausted, Op: "template.build", Subject: clip(h.Name), Message: "cannot be stored: " + pathError(err).Error(), Cause: err}
}

// Pack writes the files of a directory as a tar, without ignored files.
func Pack(ctx context.Context, root *os.Root, w io.Writer) error {
	f, err := NewFiles(root)
	if err != nil {
		return err
	}
	p := &packer{ctx: ctx, files: f, out: tar.NewWriter(w)}
	if err := p.dir("."); err != nil {
		return err
	}
	return p.out.Close()
}
