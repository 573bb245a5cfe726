package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// stampFile adds to h the properties of a file that change when the file does.
func stampFile(h io.Writer, name string, fi fs.FileInfo) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return
	}
	fmt.Fprintf(h, "%q %d %d %o %d %d.%d %d.%d %d %d\n", name, st.Dev, st.Ino, st.Mode, st.Size,
		st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec, st.Uid, st.Gid)
}

// stampPath returns the stamp of one file.
func stampPath(name string) (string, error) {
	fi, err := os.Stat(name)
	if err != nil {
		return "", missingSource(name, err)
	}
	h := sha256.New()
	stampFile(h, name, fi)
	return hex.EncodeToString(h.Sum(nil)), nil
}

// missingSource returns the error for a local source that cannot be read.
func missingSource(name string, err error) error {
	var typed *sandbox.Error
	switch {
	case errors.As(err, &typed):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return fail(sandbox.CodeNotFound, "image.import", name, "", "no such file or directory")
	case errors.Is(err, fs.ErrPermission):
		return fail(sandbox.CodeDenied, "image.import", name, "", "permission denied")
	}
	return internal("image.import", name, err)
}

// openDir opens a directory as a local source.
func openDir(dir string) (*os.Root, error) {
	fi, err := os.Stat(dir)
	if err != nil {
		return nil, missingSource(dir, err)
	}
	if !fi.IsDir() {
		return nil, fail(sandbox.CodeInvalid, "image.import", dir, "", "not a directory")
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, missingSource(dir, err)
	}
	return root, nil
}

// dirSource is a directory with a root file system: dir:.
type dirSource struct{ path string }

func (d *dirSource) stamp(ctx context.Context) (string, error) {
	h := sha256.New()
	err := walkRoot(ctx, d.path, func(_ *os.Root, name string, fi fs.FileInfo) error {
		stampFile(h, name, fi)
		return nil
	})
	if err != nil {
		return "", missingSource(d.path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func (d *dirSource) load(context.Context, *job) (*content, error) {
	open := func(ctx context.Context) (io.ReadCloser, error) {
		return tarStream(func(w *tar.Writer) error {
			t := &treeWriter{w: w, links: map[inodeID]string{}}
			err := walkRoot(ctx, d.path, t.add)
			if err != nil && !errors.Is(err, io.ErrClosedPipe) {
				return missingSource(d.path, err)
			}
			return err
		}), nil
	}
	return &content{layers: []layerBlob{{open: open}}, literal: true}, nil
}

// walkRoot calls f for everything below a directory, parents first, in a fixed
// order. It does not follow links and does not leave the directory, even if
// files are renamed meanwhile. The directory itself is ".".
func walkRoot(ctx context.Context, dir string, f func(root *os.Root, name string, fi fs.FileInfo) error) error {
	root, err := openDir(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		fi, err := root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			return nil
		}
		if err != nil {
			return err
		}
		return f(root, name, fi)
	})
}

// tarStream runs write in a goroutine and returns the tar. Closing the reader
// ends the goroutine and waits for it.
func tarStream(write func(*tar.Writer) error) io.ReadCloser {
	pr, pw := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w := tar.NewWriter(pw)
		err := write(w)
		if err == nil {
			err = w.Close()
		}
		pw.CloseWithError(err)
	}()
	return &pipeReader{pr, done}
}

type pipeReader struct {
	*io.PipeReader
	done <-chan struct{}
}

func (p *pipeReader) Close() error {
	err := p.PipeReader.Close()
	<-p.done
	return err
}

type inodeID struct{ dev, ino uint64 }

// treeWriter writes files of this machine to a tar.
type treeWriter struct {
	w     *tar.Writer
	links map[inodeID]string // first name of files with several names
}

// add writes one file. Sockets are left out, because they are useless in an
// image.
func (t *treeWriter) add(root *os.Root, name string, fi fs.FileInfo) error {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("no owner is known of %q", name)
	}
	hdr := &tar.Header{
		Format: tar.FormatPAX, Name: name, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid), ModTime: fi.ModTime(),
	}
	switch fi.Mode().Type() {
	case 0:
		return t.addRegular(root, hdr, st)
	case fs.ModeDir:
		hdr.Typeflag = tar.TypeDir
	case fs.ModeSymlink:
		target, err := root.Readlink(name)
		if err != nil {
			return err
		}
		hdr.Typeflag, hdr.Linkname = tar.TypeSymlink, target
	case fs.ModeNamedPipe:
		hdr.Typeflag = tar.TypeFifo
	default:
		return nil
	}
	return t.w.WriteHeader(hdr)
}

// addRegular writes a regular file, or a hard link to its first name.
func (t *treeWriter) addRegular(root *os.Root, hdr *tar.Header, st *syscall.Stat_t) error {
	id := inodeID{uint64(st.Dev), st.Ino}
	if first, ok := t.links[id]; ok && st.Nlink > 1 {
		hdr.Typeflag, hdr.Linkname = tar.TypeLink, first
		return t.w.WriteHeader(hdr)
	}
	f, now, err := openRegular(root, hdr.Name)
	if err != nil {
		return err
	}
	defer f.Close()
	size := now.Size
	if now.Ino != st.Ino || now.Dev != st.Dev {
		return fail(sandbox.CodeConflict, "image.import", hdr.Name, "try again when the directory is not being changed", "the file was replaced while it was read")
	}
	hdr.Typeflag, hdr.Size = tar.TypeReg, size
	if err := t.w.WriteHeader(hdr); err != nil {
		return err
	}
	if _, err := io.CopyN(t.w, f, size); err != nil {
		if errors.Is(err, io.EOF) {
			return fail(sandbox.CodeConflict, "image.import", hdr.Name, "try again when the directory is not being changed", "the file shrank while it was read")
		}
		return err
	}
	if st.Nlink > 1 {
		t.links[id] = hdr.Name
	}
	return nil
}

// openRegular opens a regular file below root and returns its stat. It does not
// block if a FIFO has replaced the file.
func openRegular(root *os.Root, name string) (*os.File, *unix.Stat_t, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(f.Fd()), &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = fail(sandbox.CodeInvalid, "image.import", name, "", "not a regular file")
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, &st, nil
}

// openSource opens a local source, which must be a regular file.
func openSource(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, missingSource(name, err)
	}
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		f.Close()
		return nil, fail(sandbox.CodeInvalid, "image.import", name, "", "not a regular file")
	}
	return f, nil
}

// tarSource is a tar of a root file system: tar:.
type tarSource struct{ path string }

func (t *tarSource) stamp(context.Context) (string, error) { return stampPath(t.path) }

func (t *tarSource) load(context.Context, *job) (*content, error) {
	f, err := openSource(t.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	blob := layerBlob{size: fi.Size(), open: func(context.Context) (io.ReadCloser, error) { return openSource(t.path) }}
	return &content{layers: []layerBlob{blob}, literal: true}, nil
}
