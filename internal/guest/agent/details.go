package agent

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// describe sends all details of a file, or of everything below a directory.
func (s *fileServer) describe(op *wire.Op, d *wire.Decoder) error {
	p, depth := d.String(), int(d.Int())
	if err := d.End(); err != nil {
		return err
	}
	if depth != 0 {
		return s.sendTree(op, p, depth, putDetails)
	}
	at, err := s.anywhere(p)
	if err != nil {
		return about(p, err)
	}
	defer at.close()
	var one, e wire.Encoder
	if _, err := putDetails(&one, at.dir, at.name, "."); err != nil {
		return about(p, err)
	}
	e.Bytes(one.B)
	out := &laneWriter{op: op}
	if _, err := out.Write(e.B); err != nil {
		return err
	}
	return out.Flush()
}

// putDetails encodes all details of a directory entry.
func putDetails(e *wire.Encoder, dir int, name, as string) (sandbox.FileType, error) {
	info, err := describe(dir, name, as)
	if err != nil {
		return info.Type, err
	}
	all := sandbox.FileDetails{FileInfo: info, StatSize: info.Size}
	switch info.Type {
	case sandbox.TypeSymlink:
		all.StatSize = int64(len(info.Target))
	case sandbox.TypeFile, sandbox.TypeDir:
		addDetails(&all, dir, name)
	}
	wire.PutDetails(e, &all)
	return info.Type, nil
}

// addDetails adds the details that describe does not set. It leaves out details
// that it cannot read, because the file may be gone.
func addDetails(all *sandbox.FileDetails, dir int, name string) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return
	}
	all.StatSize, all.Attributes = st.Size, userAttributes("/proc/self/fd/"+strconv.Itoa(fd))
}

// maxAttributes limits the bytes of attributes reported for one file.
const maxAttributes = 16 << 10

const userAttribute = "user."

// userAttributes reads a file's user extended attributes.
func userAttributes(at string) map[string]string {
	names := make([]byte, maxAttributes)
	n, err := unix.Listxattr(at, names)
	if err != nil || n == 0 {
		return nil
	}
	var found map[string]string
	left := maxAttributes
	value := make([]byte, maxAttributes)
	for full := range strings.SplitSeq(strings.TrimRight(string(names[:n]), "\x00"), "\x00") {
		name, ok := strings.CutPrefix(full, userAttribute)
		if !ok {
			continue
		}
		n, err := unix.Getxattr(at, full, value)
		if err != nil || len(name)+n > left {
			continue
		}
		if found == nil {
			found = map[string]string{}
		}
		found[name] = string(value[:n])
		left -= len(name) + n
	}
	return found
}

// overwrite writes the client's data into an existing or new file.
func (s *fileServer) overwrite(op *wire.Op, at place, p string, o writeOptions, own owner) (info sandbox.FileInfo, err error) {
	mode, err := replaces(at, &o, &own)
	if err != nil {
		return info, err
	}
	fd, isNew, err := openInto(at)
	if err != nil {
		return info, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return info, err
	}
	if err := mustBeRegular(&st); err != nil {
		return info, err
	}
	if !isNew && st.Size > 0 {
		if err := unix.Ftruncate(fd, 0); err != nil {
			return info, err
		}
	}
	// Set only what changes, because watchers are notified of every change.
	if own != unchanged && (st.Uid != uint32(own.uid) || st.Gid != uint32(own.gid)) || st.Mode&0o7777 != mode {
		if err := setFile(fd, mode, own); err != nil {
			return info, err
		}
	}
	if err := setAttributes(fd, o.over); err != nil {
		return info, err
	}
	if _, err := op.In(0).WriteTo(fdWriter(fd)); err != nil {
		return info, err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return info, err
	}
	return fileInfo(&st, p), nil
}

// openInto opens a file for writing and creates it if it does not exist.
func openInto(at place) (fd int, isNew bool, err error) {
	const flags = unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	for range 10 { // another process may create or remove it
		if fd, err = unix.Openat(at.dir, at.name, flags, 0); err != unix.ENOENT {
			return fd, false, err
		}
		if fd, err = unix.Openat(at.dir, at.name, flags|unix.O_CREAT|unix.O_EXCL, 0o600); err != unix.EEXIST {
			return fd, true, err
		}
	}
	return -1, false, err
}

// setAttributes replaces the attributes of one namespace of an open file. It
// leaves them out if the file system has no attributes or this process may not
// set them.
func setAttributes(fd int, o *wire.Overwrite) error {
	if o.Namespace == "" {
		return nil
	}
	for name := range userAttributes("/proc/self/fd/" + strconv.Itoa(fd)) {
		if key, ok := strings.CutPrefix(name, o.Namespace); ok {
			if _, stays := o.Attributes[key]; !stays {
				_ = unix.Fremovexattr(fd, userAttribute+name)
			}
		}
	}
	records := make(map[string]string, len(o.Attributes))
	for key, value := range o.Attributes {
		records[xattrRecord+userAttribute+o.Namespace+key] = value
	}
	return setXattrs(fd, records)
}
