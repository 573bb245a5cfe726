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
	"path"
	"path/filepath"
	"strings"

	"github.com/atoll-run/atoll/internal/sparse"
	"github.com/atoll-run/atoll/sandbox"
)

// permissions are the mode bits that are copied.
const permissions = 0o777

// Pack writes the file or tree at root as a tar stream whose members begin with
// name; with the name "." they are what the directory root contains, without
// itself. Symbolic links are kept as links, except for root itself, which is
// followed. Files with several names in the tree are linked in the stream.
// Sockets, pipes and devices are left out, and some of them returned; such a root
// is CodeUnsupported. All owners are root; the receiver decides who owns the files.
func Pack(ctx context.Context, w io.Writer, root, name string) (skipped []string, err error) {
	return packTree(ctx, w, root, name, func(fs.FileInfo, *tar.Header) {})
}

// PackOwned is Pack with the numeric owners.
func PackOwned(ctx context.Context, w io.Writer, root, name string) (skipped []string, err error) {
	return packTree(ctx, w, root, name, func(info fs.FileInfo, h *tar.Header) {
		h.Uid, h.Gid = owner(info)
	})
}

// owned sets the owner in a header.
type owned func(fs.FileInfo, *tar.Header)

// packer writes one tree. It reaches every file from root, name by name, so that
// a path may be longer than a system call takes.
type packer struct {
	w       io.Writer
	tw      *tar.Writer
	root    *os.Root
	own     owned
	names   map[identity]string // members of files with several names
	skipped []string
}

func packTree(ctx context.Context, w io.Writer, root, name string, own owned) (skipped []string, err error) {
	resolved, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(resolved)
	if err != nil {
		return nil, err
	}
	dir, first := resolved, "."
	if !info.IsDir() {
		dir, first = filepath.Dir(resolved), filepath.Base(resolved)
		if !info.Mode().IsRegular() {
			return nil, special(root)
		}
	}
	p := &packer{w: w, tw: tar.NewWriter(w), own: own, names: map[identity]string{}}
	if p.root, err = os.OpenRoot(dir); err != nil {
		return nil, err
	}
	defer p.root.Close()
	err = fs.WalkDir(anyNames{p.root}, first, func(at string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		member := path.Join(name, at)
		if at == first {
			member = name
		}
		return p.pack(filepath.FromSlash(at), member)
	})
	if err != nil {
		return p.skipped, err
	}
	return p.skipped, p.tw.Close()
}

// anyNames are the files of a root. The file system of the root itself refuses
// names that are not UTF-8, which Linux allows.
type anyNames struct{ root *os.Root }

func (n anyNames) Open(name string) (fs.File, error) { return n.root.Open(filepath.FromSlash(name)) }

func (n anyNames) Stat(name string) (fs.FileInfo, error) {
	return n.root.Lstat(filepath.FromSlash(name))
}

func (n anyNames) Lstat(name string) (fs.FileInfo, error) { return n.Stat(name) }

func (n anyNames) ReadLink(name string) (string, error) {
	return n.root.Readlink(filepath.FromSlash(name))
}

// special is the error for something that cannot be copied.
func special(name string) error {
	return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "copy", Subject: name, Message: "is neither a file nor a directory, so there is nothing to copy"}
}

func (p *packer) pack(file, member string) error {
	info, err := p.root.Lstat(file)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		if member == "." {
			return nil
		}
		return p.tw.WriteHeader(header(info, member+"/", "", p.own))
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := p.root.Readlink(file)
		if err != nil {
			return err
		}
		return p.tw.WriteHeader(header(info, member, target, p.own))
	case info.Mode().IsRegular():
		return p.file(file, member)
	}
	if len(p.skipped) < maxSkipped {
		p.skipped = append(p.skipped, member)
	}
	return nil
}

func (p *packer) file(file, member string) error {
	f, err := p.root.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	// The file may have been replaced since it was listed.
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s changed while it was read", file)
	}
	h := header(info, member, "", p.own)
	if id, several := identify(info); several {
		if first, ok := p.names[id]; ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return p.tw.WriteHeader(h)
		}
		p.names[id] = member
	}
	return p.content(f, info, h)
}

// content writes a file.
func (p *packer) content(f *os.File, info fs.FileInfo, h *tar.Header) error {
	whole, ok, err := sparse.Whole(f, info.Size())
	if err == nil && ok {
		h.Size = int64(len(whole))
		if err = p.tw.WriteHeader(h); err == nil {
			_, err = p.tw.Write(whole)
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
		return sparse.Write(p.w, p.tw, h, f, extents)
	}
	if err := p.tw.WriteHeader(h); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if _, err = io.CopyN(p.tw, f, info.Size()); err == io.EOF {
		return fmt.Errorf("%s became shorter while it was read", h.Name)
	}
	return err
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

// rename replaces the first element of a member's path by name, or puts name
// before it if the stream is of the whole root. It refuses paths that leave it.
func rename(member, name string, whole bool) (string, error) {
	if member == "" || strings.HasPrefix(member, "/") || strings.IndexByte(member, 0) >= 0 {
		return "", hostile(member, "the sandbox sent a member with a bad name")
	}
	parts := strings.Split(strings.TrimSuffix(member, "/"), "/")
	for _, part := range parts {
		if part == ".." {
			return "", hostile(member, "the sandbox sent a member that leads out of the destination")
		}
	}
	if whole {
		return filepath.Join(append([]string{name}, parts...)...), nil
	}
	parts[0] = name
	return filepath.Join(parts...), nil
}
