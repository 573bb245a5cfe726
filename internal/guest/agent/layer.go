package agent

import (
	"archive/tar"
	"io"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// Names with a special meaning in a layer.
const (
	whiteout     = ".wh."
	opaqueMarker = ".wh..wh..opq"
)

// unpackLayer unpacks the files that a sandbox had changed over its image.
func (s *fileServer) unpackLayer(op *wire.Op, d *wire.Decoder) error {
	if err := d.End(); err != nil {
		return err
	}
	x := &importer{s: s, op: op, last: -1}
	if _, err := x.open("/", unchanged); err != nil {
		return named("/", err)
	}
	defer unix.Close(x.w.fd)
	defer func() { x.keep("", -1) }()
	var st unix.Stat_t
	if err := unix.Fstat(x.w.fd, &st); err != nil {
		return named("/", err)
	}
	x.disk = st.Dev
	err := x.all(tar.NewReader(op.In(0)), x.layerMember)
	if err == nil {
		err = x.finishDirs(true)
	}
	if err != nil {
		return named("/", err)
	}
	_, err = op.In(0).WriteTo(io.Discard)
	return err
}

// layerMember unpacks one member and replaces whatever is in its place.
func (x *importer) layerMember(tr *tar.Reader, h *tar.Header) error {
	rel, err := memberName(h.Name)
	if err != nil {
		return err
	}
	if rel == "." {
		return x.directory(rel, uint32(h.Mode)&0o7777, owner{h.Uid, h.Gid}, h)
	}
	if slices.ContainsFunc(elements(rel), looksTemp) {
		return nil // a temporary file of an interrupted write
	}
	at, err := x.parent(rel)
	if err != nil {
		return err
	}
	switch mounted, err := x.isMounted(at); {
	case err != nil:
		return err
	case mounted:
		return nil
	}
	switch {
	case at.name == opaqueMarker:
		return removeBelow(at.dir)
	case strings.HasPrefix(at.name, whiteout):
		return removeAny(at.dir, strings.TrimPrefix(at.name, whiteout))
	}
	if err := makeWay(at, h.Typeflag == tar.TypeDir); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeChar && h.Typeflag != tar.TypeBlock {
		return x.member(tr, h)
	}
	mode := uint32(h.Mode) & 0o777
	if h.Typeflag == tar.TypeChar {
		mode |= unix.S_IFCHR
	} else {
		mode |= unix.S_IFBLK
	}
	dev := unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))
	return x.special(at, h, owner{h.Uid, h.Gid}, func(name string) error { return unix.Mknodat(at.dir, name, mode, int(dev)) })
}

// isMounted reports whether a place is on another file system than the layer.
// Nothing is restored on mounted file systems.
func (x *importer) isMounted(at place) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(at.dir, &st); err != nil {
		return false, err
	}
	if st.Dev != x.disk {
		return true, nil
	}
	err := unix.Fstatat(at.dir, at.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Dev != x.disk, nil
}

// makeWay removes an existing entry of a different kind.
func makeWay(at place, forDir bool) error {
	var st unix.Stat_t
	if err := unix.Fstatat(at.dir, at.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil //nolint:nilerr // nothing is there, or creating the entry will fail with the reason
	}
	if (st.Mode&unix.S_IFMT == unix.S_IFDIR) == forDir {
		return nil
	}
	return removeAny(at.dir, at.name)
}

// removeAny removes the entry of any kind with this name, if it exists.
func removeAny(dir int, name string) error {
	if name == "" || name == "." || name == ".." {
		return fail(sandbox.CodeInvalid, "", "it names nothing that could be removed")
	}
	err := unix.Unlinkat(dir, name, 0)
	if err != unix.EISDIR && err != unix.EPERM {
		if err == unix.ENOENT {
			err = nil
		}
		return err
	}
	return removeTree(dir, name)
}

// removeBelow empties a directory.
func removeBelow(dir int) error {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	names, err := readNames(fd)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := removeAny(dir, name); err != nil {
			return err
		}
	}
	return nil
}
