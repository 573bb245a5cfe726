package agent

import (
	"archive/tar"
	"errors"
	"io"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// importer unpacks one tar stream. Its walker begins at the destination, so
// that no member gets out of it.
type importer struct {
	s    *fileServer
	w    walker
	own  *owner // of everything, if set
	disk uint64 // the device that a layer is for
	dirs []dirTime

	// The directory of the last member: those of one directory follow each
	// other.
	lastName string
	last     int
}

// dirTime is a time to be set when nothing more is put into a directory.
type dirTime struct {
	rel  string
	time time.Time
}

const maxDirTimes = 1 << 20

// unpack unpacks what the client sends.
func (s *fileServer) unpack(op *wire.Op, d *wire.Decoder) error {
	p, spec := d.String(), d.String()
	if err := d.End(); err != nil {
		return err
	}
	x := &importer{s: s, last: -1}
	def, err := s.ownerOf(spec)
	if err != nil {
		return err
	}
	if spec != "" {
		x.own = &def
	}
	if err := x.open(p, def); err != nil {
		return named(p, err)
	}
	defer unix.Close(x.w.fd)
	defer func() { x.keep("", -1) }()
	if err := x.all(tar.NewReader(op.In(0))); err != nil {
		return named(p, err)
	}
	// What follows the archive, usually padding, is of no interest.
	_, err = op.In(0).WriteTo(io.Discard)
	return err
}

// open makes and opens the destination.
func (x *importer) open(p string, own owner) error {
	if err := x.s.makeDirs(p, 0o755, own); err != nil {
		return err
	}
	at, err := x.s.root.find(p, true)
	if err != nil {
		return err
	}
	defer at.close()
	fd, err := unix.Openat(at.dir, at.name, openDir, 0)
	if err != nil {
		return err
	}
	x.w = walker{fd: fd, path: at.path, code: sandbox.CodeInvalid}
	return nil
}

func (x *importer) all(tr *tar.Reader) error {
	for {
		h, err := tr.Next()
		if err == io.EOF {
			x.setDirTimes()
			return nil
		}
		if err != nil {
			return badArchive(err)
		}
		if err := x.member(tr, h); err != nil {
			return memberError(h.Name, err)
		}
	}
}

// badArchive tells a malformed archive from a stream that broke off.
func badArchive(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrFieldTooLong) {
		return fail(sandbox.CodeInvalid, "", "not a proper tar archive: "+err.Error())
	}
	return err
}

// memberError names the member that an error is about.
func memberError(name string, err error) error {
	e := *remote(badArchive(err))
	e.Subject, e.Message = "", "member "+quote(name)+": "+e.Message
	if e.Code == sandbox.CodeDenied && errors.Is(err, unix.ELOOP) {
		e.Code = sandbox.CodeInvalid
	}
	return &e
}

// member unpacks one member.
func (x *importer) member(tr *tar.Reader, h *tar.Header) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	rel, err := memberName(h.Name)
	if err != nil {
		return err
	}
	own := owner{h.Uid, h.Gid}
	switch {
	case x.own != nil:
		own = *x.own
	case unix.Geteuid() != 0:
		own = unchanged
	}
	mode := uint32(h.Mode) & 0o7777
	if h.Typeflag == tar.TypeDir {
		return x.directory(rel, mode, own, h)
	}
	if rel == "." {
		return fail(sandbox.CodeInvalid, "", "it would replace the directory itself")
	}
	dir, err := x.parent(path.Dir(rel))
	if err != nil {
		return err
	}
	at := place{dir: dir, name: path.Base(rel)}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		return x.file(at, tr, h, mode, own)
	case tar.TypeSymlink:
		return x.special(at, h, own, 0, func(name string) error { return unix.Symlinkat(h.Linkname, dir, name) })
	case tar.TypeFifo:
		return x.special(at, h, own, mode, func(name string) error { return unix.Mknodat(dir, name, unix.S_IFIFO|mode&0o777, 0) })
	case tar.TypeLink:
		return x.hardLink(at, h)
	case tar.TypeChar, tar.TypeBlock:
		return fail(sandbox.CodeInvalid, "", "device nodes are refused")
	}
	return fail(sandbox.CodeInvalid, "", "members of this kind are refused")
}

// memberName checks the name of a member.
func memberName(name string) (string, error) {
	if strings.HasPrefix(name, "/") {
		return "", fail(sandbox.CodeInvalid, "", "the name is absolute")
	}
	for _, e := range strings.Split(name, "/") {
		if e == ".." {
			return "", fail(sandbox.CodeInvalid, "", "the name climbs with \"..\"")
		}
	}
	if strings.IndexByte(name, 0) >= 0 {
		return "", fail(sandbox.CodeInvalid, "", "the name holds a NUL byte")
	}
	return path.Clean(name), nil
}

// parent opens the directory of a member, and makes it where it is missing.
func (x *importer) parent(rel string) (int, error) {
	if x.last >= 0 && x.lastName == rel {
		return x.last, nil
	}
	own := unchanged
	if x.own != nil {
		own = *x.own
	}
	if err := x.w.makeDirs(rel, 0o755, own); err != nil {
		return -1, err
	}
	fd, err := x.w.openDirBelow(rel)
	if err != nil {
		return -1, err
	}
	x.keep(rel, fd)
	return fd, nil
}

func (x *importer) keep(rel string, fd int) {
	if x.last >= 0 {
		unix.Close(x.last)
	}
	x.lastName, x.last = rel, fd
}

// directory makes a directory, or gives an existing one its looks.
func (x *importer) directory(rel string, mode uint32, own owner, h *tar.Header) error {
	x.keep("", -1) // it may be about to change
	if err := x.w.makeDirs(rel, mode, own); err != nil {
		return err
	}
	at, err := x.w.findBelow(rel, true)
	if err != nil {
		return err
	}
	defer at.close()
	fd, err := unix.Openat(at.dir, at.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := setFile(fd, mode, own); err != nil {
		return err
	}
	if len(x.dirs) < maxDirTimes {
		x.dirs = append(x.dirs, dirTime{rel, h.ModTime})
	}
	return setXattrs(fd, h.PAXRecords)
}

func (x *importer) setDirTimes() {
	for i := len(x.dirs) - 1; i >= 0; i-- {
		if at, err := x.w.findBelow(x.dirs[i].rel, true); err == nil {
			setTimeAt(at.dir, at.name, x.dirs[i].time)
			at.close()
		}
	}
}

// file unpacks a regular file beside what may be there, and then puts it into
// its place.
func (x *importer) file(at place, r io.Reader, h *tar.Header, mode uint32, own owner) error {
	tmp, fd, err := x.s.temp(at.dir)
	if err != nil {
		return err
	}
	defer x.s.dropTemp(at.dir, tmp)
	defer unix.Close(fd)
	if err := fill(fd, r, h); err != nil {
		return err
	}
	if err := setFile(fd, mode, own); err != nil {
		return err
	}
	if err := setXattrs(fd, h.PAXRecords); err != nil {
		return err
	}
	setTimeAt(at.dir, tmp, h.ModTime)
	return replaceWith(place{dir: at.dir, name: tmp}, at)
}

// fill writes the content of a file.
func fill(fd int, r io.Reader, h *tar.Header) error {
	sparse, ok := h.PAXRecords[wire.SparseRecord]
	if !ok {
		_, err := io.Copy(fdWriter(fd), r)
		return err
	}
	total, pieces, _ := strings.Cut(sparse, " ")
	size, err := strconv.ParseInt(total, 10, 64)
	if err != nil || size < 0 {
		return errSparse
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		return err
	}
	for piece := range strings.SplitSeq(pieces, ",") {
		off, n, ok := strings.Cut(piece, ":")
		if !ok {
			continue
		}
		at, err1 := strconv.ParseInt(off, 10, 64)
		length, err2 := strconv.ParseInt(n, 10, 64)
		if err1 != nil || err2 != nil || at < 0 || length < 0 || at > size || length > size-at {
			return errSparse
		}
		if _, err := unix.Seek(fd, at, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.CopyN(fdWriter(fd), r, length); err != nil {
			return err
		}
	}
	return nil
}

var errSparse = fail(sandbox.CodeInvalid, "", "its "+wire.SparseRecord+" record makes no sense")

// special makes something that has no content.
func (x *importer) special(at place, h *tar.Header, own owner, mode uint32, make func(name string) error) error {
	tmp, fd, err := x.s.temp(at.dir) // for the name alone
	if err != nil {
		return err
	}
	unix.Close(fd)
	defer x.s.dropTemp(at.dir, tmp)
	if err := unix.Unlinkat(at.dir, tmp, 0); err != nil {
		return err
	}
	if err := make(tmp); err != nil {
		return err
	}
	if own != unchanged {
		if err := unix.Fchownat(at.dir, tmp, own.uid, own.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	setTimeAt(at.dir, tmp, h.ModTime)
	return replaceWith(place{dir: at.dir, name: tmp}, at)
}

// hardLink links to what an earlier member, or the destination, holds.
func (x *importer) hardLink(at place, h *tar.Header) error {
	rel, err := memberName(h.Linkname)
	if err != nil {
		return err
	}
	target, err := x.w.findBelow(rel, false)
	if err != nil {
		return err
	}
	defer target.close()
	err = unix.Linkat(target.dir, target.name, at.dir, at.name, 0)
	if err != unix.EEXIST {
		return err
	}
	if isDir(at.dir, at.name) {
		return fail(sandbox.CodeConflict, "", "a directory is in the way")
	}
	if err := unix.Unlinkat(at.dir, at.name, 0); err != nil {
		return err
	}
	return unix.Linkat(target.dir, target.name, at.dir, at.name, 0)
}

// replaceWith renames over anything but a directory.
func replaceWith(from, to place) error {
	if err := renameOver(from, to); err != unix.EEXIST {
		return err
	}
	return fail(sandbox.CodeConflict, "", "a directory is in the way")
}

func setTimeAt(dir int, name string, t time.Time) {
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(t.UnixNano())}
	_ = unix.UtimesNanoAt(dir, name, ts, unix.AT_SYMLINK_NOFOLLOW)
}
