// Package tree converts local file trees to tar streams and back, to copy them
// into and out of a sandbox. Streams from a sandbox are not trusted: Unpack
// writes nothing outside its directory, follows no links, and creates only
// files, directories and links, without set-id bits.
package tree

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/atoll-run/atoll/internal/sparse"
	"github.com/atoll-run/atoll/sandbox"
)

// permissions are the mode bits that are copied.
const permissions = 0o777

// Pack writes the file or tree at root as a tar stream whose members begin with
// name. Symbolic links are kept as links, except for root itself, which is
// followed. Sockets, pipes and devices are left out. All owners are root; the
// receiver decides who owns the files.
func Pack(ctx context.Context, w io.Writer, root, name string) error {
	return packTree(ctx, w, root, name, func(fs.FileInfo, *tar.Header) {})
}

// PackOwned is Pack with the numeric owners.
func PackOwned(ctx context.Context, w io.Writer, root, name string) error {
	return packTree(ctx, w, root, name, func(info fs.FileInfo, h *tar.Header) {
		h.Uid, h.Gid = owner(info)
	})
}

// owned sets the owner in a header.
type owned func(fs.FileInfo, *tar.Header)

func packTree(ctx context.Context, w io.Writer, root, name string, own owned) error {
	resolved, err := filepath.EvalSymlinks(root)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	err = filepath.WalkDir(resolved, func(p string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(resolved, p)
		if err != nil {
			return err
		}
		return pack(w, tw, p, filepath.ToSlash(filepath.Join(name, rel)), d, own)
	})
	if err != nil {
		return err
	}
	return tw.Close()
}

func pack(w io.Writer, tw *tar.Writer, file, name string, d fs.DirEntry, own owned) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return packOther(tw, file, name, info, own)
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	// The file may have been replaced since it was listed.
	if info, err = f.Stat(); err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s changed while it was read", file)
	}
	h := header(info, name, "", own)
	whole, ok, err := sparse.Whole(f, info.Size())
	if err == nil && ok {
		h.Size = int64(len(whole))
		if err = tw.WriteHeader(h); err == nil {
			_, err = tw.Write(whole)
		}
	}
	if ok || err != nil {
		return err
	}
	extents, worth, err := sparse.Find(f, info.Size(), stored(info))
	switch {
	case err != nil:
		return err
	case worth:
		return sparse.Write(w, tw, h, f, extents)
	}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if _, err = io.CopyN(tw, f, info.Size()); err == io.EOF {
		return fmt.Errorf("%s became shorter while it was read", file)
	}
	return err
}

// packOther packs anything except a regular file, if possible.
func packOther(tw *tar.Writer, file, name string, info fs.FileInfo, own owned) error {
	switch {
	case info.IsDir():
		return tw.WriteHeader(header(info, name+"/", "", own))
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(file)
		if err != nil {
			return err
		}
		return tw.WriteHeader(header(info, name, target, own))
	}
	return nil
}

func header(info fs.FileInfo, name, link string, own owned) *tar.Header {
	h := &tar.Header{
		Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX,
	}
	switch {
	case info.IsDir():
		h.Typeflag = tar.TypeDir
	case link != "":
		h.Typeflag, h.Linkname = tar.TypeSymlink, link
	default:
		h.Typeflag, h.Size = tar.TypeReg, info.Size()
	}
	own(info, h)
	return h
}

func hostile(member, message string) error {
	if len(member) > 200 {
		member = member[:200] + "…"
	}
	return &sandbox.Error{Code: sandbox.CodeDenied, Op: "copy.out", Subject: member, Message: message}
}

// rename replaces the first element of a member's path by name, and refuses
// paths that leave it.
func rename(member, name string) (string, error) {
	if member == "" || strings.HasPrefix(member, "/") || strings.IndexByte(member, 0) >= 0 {
		return "", hostile(member, "the sandbox sent a member with a bad name")
	}
	parts := strings.Split(strings.TrimSuffix(member, "/"), "/")
	for _, part := range parts {
		if part == ".." {
			return "", hostile(member, "the sandbox sent a member that leads out of the destination")
		}
	}
	if parts[0] == "." && len(parts) > 1 { // root itself was exported
		return filepath.Join(append([]string{name}, parts[1:]...)...), nil
	}
	parts[0] = name
	return filepath.Join(parts...), nil
}
