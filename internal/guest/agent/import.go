package agent

import (
	"archive/tar"
	"errors"
	"io"
	"path"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/internal/sparse"
	"github.com/atoll-run/atoll/sandbox"
)

// importer unpacks one tar stream. Its walker is rooted at the destination, so
// that no member can leave it.
type importer struct {
	s    *fileServer
	op   *wire.Op
	w    walker
	own  *owner // owner of everything, if set
	self owner  // owner of files created without chown
	disk uint64 // the device that a layer is unpacked on
	dirs []dirLooks
	// buffer is reused for every file, because page faults are expensive in a
	// sandbox.
	buffer [128 << 10]byte
	// stage hides new files until the import is complete. A layer has none:
	// nothing else runs until it is unpacked.
	stage *stage

	// The directory of the last member: consecutive members often share one.
	lastName string
	last     int
	lastPath string
	lastNew  bool // it was created by this import
	lastACL  bool // it has a default ACL, which sets the modes of files in it
}

// dirLooks is the mode and time that a directory gets once it is complete. Its
// mode may forbid adding files, and adding files changes its time.
type dirLooks struct {
	rel    string
	isNew  bool
	mode   uint32
	own    owner
	time   time.Time
	xattrs map[string]string
}

const maxDirLooks = 1 << 20

// maxDepth limits the directories in the name of a member. The work to create
// them grows with the square of the depth.
const maxDepth = 256

// unpack unpacks the client's tar stream completely or not at all.
func (s *fileServer) unpack(op *wire.Op, d *wire.Decoder) error {
	p, spec := d.String(), d.String()
	if err := d.End(); err != nil {
		return err
	}
	x := &importer{s: s, op: op, last: -1, self: owner{unix.Geteuid(), unix.Getegid()}}
	def, err := s.ownerOf(spec)
	if err != nil {
		return err
	}
	if spec != "" {
		x.own = &def
	}
	undo, err := x.open(p, def)
	if err != nil {
		undo()
		return named(p, err)
	}
	defer unix.Close(x.w.fd)
	x.stage = newStage(s, &x.w)
	err = x.everything()
	x.keep("", -1)
	x.stage.drop()
	if err != nil {
		undo()
	}
	return named(p, err)
}

// everything unpacks all members and publishes them.
func (x *importer) everything() error {
	if err := x.all(tar.NewReader(x.op.In(0)), x.member); err != nil {
		return err
	}
	// Data after the archive, usually padding, is ignored, but read: it can show
	// that the stream was cut off.
	if _, err := x.op.In(0).WriteTo(io.Discard); err != nil {
		return err
	}
	if err := x.finishDirs(true); err != nil {
		return err
	}
	if err := x.stage.publish(); err != nil {
		return err
	}
	return x.finishDirs(false)
}

// open creates and opens the destination. undo removes the created directories
// if they are empty.
func (x *importer) open(p string, own owner) (undo func(), err error) {
	var made []string
	undo = func() {
		for _, rel := range made {
			if at, err := x.s.root.findBelow(rel, false); err == nil {
				_ = unix.Unlinkat(at.dir, at.name, unix.AT_REMOVEDIR) // keeps a directory that another process has filled
				at.close()
			}
		}
	}
	rel, err := x.s.root.relative(path.Clean(p))
	if err != nil {
		return undo, err
	}
	for up := rel; up != "." && up != "/"; up = path.Dir(up) {
		fd, err := x.s.root.openDirBelow(up)
		if err == nil {
			unix.Close(fd)
			break
		}
		made = append(made, up)
	}
	if err := x.s.root.makeDirs(rel, 0o755, own); err != nil {
		return undo, err
	}
	at, err := x.s.root.find(p, true)
	if err != nil {
		return undo, err
	}
	defer at.close()
	fd, err := unix.Openat(at.dir, at.name, openDir, 0)
	if err != nil {
		return undo, err
	}
	x.w = walker{fd: fd, path: at.path, code: sandbox.CodeInvalid}
	return undo, nil
}

func (x *importer) all(tr *tar.Reader, each func(*tar.Reader, *tar.Header) error) error {
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return badArchive(err)
		}
		if err := each(tr, h); err != nil {
			return memberError(h.Name, err)
		}
	}
}

// badArchive distinguishes a malformed archive from an interrupted stream.
func badArchive(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrFieldTooLong) {
		return fail(sandbox.CodeInvalid, "", "not a proper tar archive: "+err.Error())
	}
	return err
}

// memberError adds the name of the member to an error.
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
	if err := checkDepth(rel); err != nil {
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
	at, err := x.parent(rel)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		return x.file(at, tr, h, mode, own)
	case tar.TypeSymlink:
		return x.special(at, h, own, func(name string) error { return unix.Symlinkat(h.Linkname, at.dir, name) })
	case tar.TypeFifo:
		return x.special(at, h, own, func(name string) error { return makeFIFO(at.dir, name, mode&0o777) })
	case tar.TypeLink:
		return x.hardLink(at, rel, h)
	case tar.TypeChar, tar.TypeBlock:
		return fail(sandbox.CodeInvalid, "", "device nodes are refused")
	}
	return fail(sandbox.CodeInvalid, "", "members of this kind are refused")
}

// checkDepth rejects a member name with too many directories.
func checkDepth(rel string) error {
	if strings.Count(rel, "/") >= maxDepth {
		return fail(sandbox.CodeInvalid, "", "the name leads through more than "+strconv.Itoa(maxDepth)+" directories")
	}
	return nil
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
		return "", fail(sandbox.CodeInvalid, "", "the name contains a NUL byte")
	}
	return path.Clean(name), nil
}

// parent returns the place of a member and creates missing directories. The
// place is valid until the next call. The caller must not close it.
func (x *importer) parent(rel string) (place, error) {
	dir, name := path.Dir(rel), path.Base(rel)
	if x.last < 0 || x.lastName != dir {
		fd, full, err := x.enter(dir)
		if err != nil {
			return place{}, err
		}
		x.keep(dir, fd)
		x.lastPath, x.lastNew = full, x.stage == nil || x.stage.isNew(full)
		_, err = unix.Fgetxattr(fd, "system.posix_acl_default", nil)
		x.lastACL = err == nil
	}
	return place{dir: x.last, name: name, path: path.Join(x.lastPath, name)}, nil
}

func (x *importer) keep(rel string, fd int) {
	if x.last >= 0 {
		unix.Close(x.last)
	}
	x.lastName, x.last = rel, fd
}

// enter opens a directory, creates it if it is missing, and returns its path
// without links.
func (x *importer) enter(rel string) (fd int, full string, err error) {
	if err := x.stopped(); err != nil {
		return -1, "", err
	}
	at, err := x.w.findBelow(rel, true)
	if err == unix.ENOENT && rel != "." {
		above, _, err := x.enter(path.Dir(rel))
		if err != nil {
			return -1, "", err
		}
		unix.Close(above)
		if at, err = x.w.findBelow(rel, true); err != nil {
			return -1, "", err
		}
	} else if err != nil {
		return -1, "", err
	}
	defer at.close()
	full = at.path
	fd, err = unix.Openat(at.dir, at.name, openDir, 0)
	if err == unix.ENOENT {
		var name string
		if name, err = x.makeDir(at); err == nil {
			full = path.Join(path.Dir(at.path), name)
			fd, err = unix.Openat(at.dir, name, openDir, 0)
		}
	}
	if err == unix.ENOTDIR || err == unix.ELOOP {
		err = unix.EEXIST
	}
	return fd, full, err
}

// makeDir creates a directory and returns its current name.
func (x *importer) makeDir(at place) (name string, err error) {
	name = at.name
	if x.stage != nil && !x.stage.isNew(path.Dir(at.path)) {
		if name, err = x.stage.reserve(at); err != nil {
			return "", err
		}
	}
	if err := unix.Mkdirat(at.dir, name, 0o700); err != nil {
		return "", err
	}
	own := unchanged
	if x.own != nil {
		own = *x.own
	}
	return name, setDir(at.dir, name, 0o755, own)
}

// directory creates a directory, or records the attributes of an existing one
// for later.
func (x *importer) directory(rel string, mode uint32, own owner, h *tar.Header) error {
	fd, full, err := x.enter(rel)
	if err != nil {
		return err
	}
	unix.Close(fd)
	looks := dirLooks{rel: rel, isNew: x.stage == nil || x.stage.isNew(full), mode: mode, own: own, time: h.ModTime, xattrs: onlyXattrs(h.PAXRecords)}
	switch {
	case len(x.dirs) < maxDirLooks:
		x.dirs = append(x.dirs, looks)
		return nil
	case looks.isNew:
		return x.finishDir(&looks)
	}
	return fail(sandbox.CodeExhausted, "", "the archive has too many directories that exist")
}

// onlyXattrs returns the extended attribute records, or nil if there are none.
func onlyXattrs(records map[string]string) map[string]string {
	for k := range records {
		if strings.HasPrefix(k, xattrRecord) {
			return records
		}
	}
	return nil
}

// finishDirs applies the recorded attributes to the directories that were
// created, or to the others. Deeper paths come first, because they are reached
// through their parents.
func (x *importer) finishDirs(isNew bool) error {
	for i := len(x.dirs) - 1; i >= 0; i-- {
		if d := &x.dirs[i]; d.isNew == isNew {
			if err := x.finishDir(d); err != nil {
				return memberError(d.rel, err)
			}
		}
	}
	return nil
}

func (x *importer) finishDir(d *dirLooks) error {
	at, err := x.w.findBelow(d.rel, true)
	if err != nil {
		return err
	}
	defer at.close()
	fd, err := unix.Openat(at.dir, at.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := setFile(fd, d.mode, d.own); err != nil {
		return err
	}
	if err := setXattrs(fd, d.xattrs); err != nil {
		return err
	}
	setTimeAt(at.dir, at.name, d.time)
	return nil
}

// make calls make with the current name for at and returns that name.
func (x *importer) make(at place, make func(name string) error) (string, error) {
	if !x.lastNew {
		name, err := x.stage.reserve(at)
		if err != nil {
			return "", err
		}
		return name, make(name)
	}
	err := make(at.name)
	if err == unix.EEXIST { // the archive contains it twice, or a layer replaces it
		if err = unlinkFile(at.dir, at.name); err == nil {
			err = make(at.name)
		}
	}
	return at.name, err
}

// umasked is the part of a mode that the guest's umask keeps.
const umasked = 0o755

// file unpacks a regular file.
func (x *importer) file(at place, r io.Reader, h *tar.Header, mode uint32, own owner) error {
	if own == x.self && x.stage != nil && !x.stage.inherits {
		own = unchanged // it has that owner already
	}
	fd, first := -1, uint32(0o600)
	if x.lastNew && !x.lastACL && own == unchanged && mode&^umasked == 0 {
		first = mode // the mode at creation is the final one
	}
	_, err := x.make(at, func(name string) (err error) {
		fd, err = unix.Openat(at.dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, first)
		return err
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := x.fill(fd, r, h); err != nil {
		return err
	}
	if first != mode || own != unchanged {
		if err := setFile(fd, mode, own); err != nil {
			return err
		}
	}
	if err := setXattrs(fd, h.PAXRecords); err != nil {
		return err
	}
	setTime(fd, h.ModTime)
	return nil
}

// stopped returns an error if the client has cancelled the import.
func (x *importer) stopped() error {
	select {
	case <-x.op.Over():
		return unix.ECANCELED
	default:
		return nil
	}
}

// fill writes the content of a file.
func (x *importer) fill(fd int, r io.Reader, h *tar.Header) error {
	holes, ok := h.PAXRecords[wire.SparseRecord]
	switch {
	case sparse.Is(h):
		return sparse.Copy(fdFile{fd}, r, h.Size, x.stopped)
	case !ok:
		_, err := io.CopyBuffer(fdWriter(fd), r, x.buffer[:])
		return err
	}
	total, pieces, _ := strings.Cut(holes, " ")
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

var errSparse = fail(sandbox.CodeInvalid, "", "its "+wire.SparseRecord+" record is invalid")

// special creates an entry that has no content.
func (x *importer) special(at place, h *tar.Header, own owner, make func(name string) error) error {
	defer x.keep("", -1) // a changed link may invalidate the cached directory
	name, err := x.make(at, make)
	if err != nil {
		return err
	}
	if own != unchanged {
		if err := unix.Fchownat(at.dir, name, own.uid, own.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	setTimeAt(at.dir, name, h.ModTime)
	return nil
}

// makeFIFO creates a FIFO whose mode is not reduced by the umask. It sets the
// mode through a descriptor, because the name could have become a link.
func makeFIFO(dir int, name string, mode uint32) error {
	if mode&^umasked == 0 {
		return unix.Mknodat(dir, name, unix.S_IFIFO|mode, 0)
	}
	if err := unix.Mknodat(dir, name, unix.S_IFIFO|0o600, 0); err != nil {
		return err
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fchmod(fd, mode)
}

// hardLink links to an earlier member or to an existing file in the
// destination.
func (x *importer) hardLink(at place, rel string, h *tar.Header) error {
	to, err := memberName(h.Linkname)
	if err != nil {
		return err
	}
	target, err := x.w.findBelow(to, false)
	if err != nil {
		return err
	}
	defer target.close()
	var info unix.Stat_t
	if err := unix.Fstatat(target.dir, target.name, &info, unix.AT_SYMLINK_NOFOLLOW); err != nil || to == rel {
		return err
	}
	defer x.keep("", -1) // as above
	_, err = x.make(at, func(name string) error { return unix.Linkat(target.dir, target.name, at.dir, name, 0) })
	return err
}

// replaceWith renames over anything except a directory.
func replaceWith(from, to place) error {
	if err := renameOver(from, to); err != unix.EEXIST {
		return err
	}
	return errInTheWay
}

// setTime sets the time of an open file without resolving its name again.
func setTime(fd int, t time.Time) {
	ts := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(t.UnixNano())}
	_, _, _ = unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&ts)), 0, 0, 0) // a nil path means the descriptor itself
}

func setTimeAt(dir int, name string, t time.Time) {
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(t.UnixNano())}
	_ = unix.UtimesNanoAt(dir, name, ts, unix.AT_SYMLINK_NOFOLLOW)
}
