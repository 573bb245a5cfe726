package agent

import (
	"archive/tar"
	"errors"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/internal/sparse"
	"github.com/atoll-run/atoll/sandbox"
)

const xattrRecord = "SCHILY.xattr." // the prefix of extended attributes in tar

// exporter writes one tree as a tar stream.
type exporter struct {
	s       *fileServer
	out     *laneWriter
	tw      *tar.Writer
	base    string // name of the first member
	exclude []string
	links   map[[2]uint64]string // first names of files with several links
}

// export sends a file or a tree as a tar stream.
func (s *fileServer) export(op *wire.Op, d *wire.Decoder) error {
	p, exclude := d.String(), d.Strings()
	if err := d.End(); err != nil {
		return err
	}
	for _, pattern := range exclude {
		if _, err := path.Match(pattern, ""); err != nil {
			return fail(sandbox.CodeInvalid, pattern, "malformed pattern")
		}
	}
	at, err := s.root.find(p, false)
	if err != nil {
		return named(p, err)
	}
	defer at.close()
	x := &exporter{s: s, out: &laneWriter{op: op}, base: at.name, exclude: exclude, links: map[[2]uint64]string{}}
	x.tw = tar.NewWriter(x.out)
	if err := x.run(at); err != nil {
		return named(p, err)
	}
	if err := x.tw.Close(); err != nil {
		return named(p, err)
	}
	return x.out.Flush()
}

func (x *exporter) run(at place) error {
	info, err := x.member(at.dir, at.name, x.base)
	if err != nil || info.Type != sandbox.TypeDir {
		return err
	}
	t, err := openTree(at.dir, at.name)
	if err != nil {
		return err
	}
	defer t.close()
	return t.walk(func(dir int, name string, _ int) (bool, error) {
		rel := t.rel(name)
		if x.s.isTemp(name) || x.excluded(rel) {
			return false, nil
		}
		if len(rel) > maxListPath {
			return false, fail(sandbox.CodeExhausted, "", "a path below it is too long to export")
		}
		member := rel
		if x.base != "." {
			member = x.base + "/" + rel
		}
		info, err := x.member(dir, name, member)
		if err != nil {
			return false, ignoreGone(err)
		}
		return info.Type == sandbox.TypeDir, nil
	})
}

func (x *exporter) excluded(rel string) bool {
	for _, pattern := range x.exclude {
		if ok, _ := path.Match(pattern, rel); ok {
			return true
		}
	}
	return false
}

// member writes one member.
func (x *exporter) member(dir int, name, as string) (sandbox.FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return sandbox.FileInfo{}, err
	}
	info := fileInfo(&st, as)
	h := &tar.Header{
		Name: as, Mode: int64(info.Mode), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: info.ModTime, Format: tar.FormatPAX,
	}
	var err error
	switch info.Type {
	case sandbox.TypeFile:
		err = x.file(dir, name, h, &st)
	case sandbox.TypeDir:
		h.Typeflag = tar.TypeDir
		h.Name += "/"
		err = x.withXattrs(dir, name, unix.O_DIRECTORY, h)
	case sandbox.TypeSymlink:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = readLink(dir, name); err == nil {
			err = x.header(h)
		}
	case sandbox.TypeFIFO:
		h.Typeflag = tar.TypeFifo
		err = x.header(h)
	case sandbox.TypeDevice:
		h.Typeflag = tar.TypeChar
		if st.Mode&unix.S_IFMT == unix.S_IFBLK {
			h.Typeflag = tar.TypeBlock
		}
		h.Devmajor, h.Devminor = int64(unix.Major(uint64(st.Rdev))), int64(unix.Minor(uint64(st.Rdev)))
		err = x.header(h)
	}
	return info, err
}

func (x *exporter) header(h *tar.Header) error {
	if err := x.tw.WriteHeader(h); err != nil {
		return fail(sandbox.CodeInvalid, h.Name, "cannot be put into a tar archive: "+err.Error())
	}
	return nil
}

// withXattrs writes a member that has no content.
func (x *exporter) withXattrs(dir int, name string, flags int, h *tar.Header) error {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	h.PAXRecords = xattrs(fd)
	return x.header(h)
}

// file writes a regular file, or a hard link if the file is already in the
// archive under another name.
func (x *exporter) file(dir int, name string, h *tar.Header, st *unix.Stat_t) error {
	h.Typeflag = tar.TypeReg
	key := [2]uint64{st.Dev, st.Ino}
	if first, ok := x.links[key]; ok && st.Nlink > 1 {
		h.Typeflag, h.Linkname = tar.TypeLink, first
		return x.header(h)
	}
	fd, now, err := openRegular(place{dir: dir, name: name})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	h.Size, h.PAXRecords = now.Size, xattrs(fd)
	if st.Nlink > 1 {
		x.links[key] = h.Name
	}
	whole, ok, err := sparse.Whole(fdFile{fd}, h.Size)
	if err == nil && ok {
		h.Size = int64(len(whole))
		if err = x.header(h); err == nil {
			_, err = x.tw.Write(whole)
		}
	}
	if ok || err != nil {
		return err
	}
	extents, worth, err := sparse.Find(fdFile{fd}, h.Size, now.Blocks*512)
	switch {
	case err != nil:
		return err
	case worth:
		return sparse.Write(x.out, x.tw, h, fdFile{fd}, extents)
	}
	if err := x.header(h); err != nil {
		return err
	}
	return x.content(fd, h)
}

// content copies exactly as many bytes as the header announces. Like tar, it
// pads a file that shrinks meanwhile.
func (x *exporter) content(fd int, h *tar.Header) error {
	n, err := io.Copy(x.tw, io.NewSectionReader(fdFile{fd}, 0, h.Size))
	if err != nil {
		return err
	}
	_, err = io.CopyN(x.tw, zeros{}, h.Size-n)
	return err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// xattrs reads the extended attributes of an open file. It returns nil if there
// are none or the file system does not support them.
func xattrs(fd int) map[string]string {
	size, err := unix.Flistxattr(fd, nil)
	if err != nil || size == 0 {
		return nil
	}
	b := make([]byte, size)
	if size, err = unix.Flistxattr(fd, b); err != nil {
		return nil
	}
	var records map[string]string
	for _, name := range strings.Split(strings.TrimRight(string(b[:size]), "\x00"), "\x00") {
		n, err := unix.Fgetxattr(fd, name, nil)
		if err != nil {
			continue
		}
		value := make([]byte, n)
		if n, err = unix.Fgetxattr(fd, name, value); err != nil || strings.Contains(name, "=") {
			continue
		}
		if records == nil {
			records = map[string]string{}
		}
		records[xattrRecord+name] = string(value[:n])
	}
	return records
}

// setXattrs sets the attributes of a member on a file. It leaves out attributes
// that the file system or this process cannot store.
func setXattrs(fd int, records map[string]string) error {
	for key, value := range records {
		name, ok := strings.CutPrefix(key, xattrRecord)
		if !ok {
			continue
		}
		err := unix.Fsetxattr(fd, name, []byte(value), 0)
		if err != nil && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
			return err
		}
	}
	return nil
}
