package agent

import (
	"encoding/hex"
	"errors"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// openRegular opens a regular file for reading without blocking. It checks the
// type before opening, because opening a device can have side effects, and
// again afterwards, because the file may have been replaced.
func openRegular(at place) (int, *unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(at.dir, at.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return -1, nil, err
	}
	if err := mustBeRegular(&st); err != nil {
		return -1, nil, err
	}
	fd, err := unix.Openat(at.dir, at.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, nil, err
	}
	err = unix.Fstat(fd, &st)
	if err == nil {
		err = mustBeRegular(&st)
	}
	if err != nil {
		unix.Close(fd)
		return -1, nil, err
	}
	return fd, &st, nil
}

func mustBeRegular(st *unix.Stat_t) error {
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		return nil
	}
	return fail(sandbox.CodeInvalid, "", "not a regular file but a "+string(fileType(st.Mode)))
}

// outside returns CodeInvalid if p, a path outside the root, is not a regular
// file: reading or writing it is invalid whatever the root is. Otherwise it
// returns err.
func (s *fileServer) outside(p string, err error) error {
	if _, rel := s.root.relative(path.Clean(p)); rel == nil {
		return err
	}
	m, merr := machine()
	if merr != nil {
		return err
	}
	defer unix.Close(m.fd)
	at, merr := m.find(p, true)
	if merr != nil {
		return err
	}
	defer at.close()
	var st unix.Stat_t
	if unix.Fstatat(at.dir, at.name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		if kind := mustBeRegular(&st); kind != nil {
			return kind
		}
	}
	return err
}

// named adds a subject to an error that has none.
func named(p string, err error) error {
	var re *wire.RemoteError
	if errors.As(err, &re) && re.Subject == "" {
		e := *re
		e.Subject = p
		return &e
	}
	return about(p, err)
}

// read sends the description of a file and then its content.
func (s *fileServer) read(op *wire.Op, d *wire.Decoder) error {
	p, offset, length := d.String(), d.Int(), d.Int()
	if err := d.End(); err != nil {
		return err
	}
	if offset < 0 || length < 0 {
		return fail(sandbox.CodeInvalid, p, "negative offset or length")
	}
	at, err := s.root.find(p, true)
	if err != nil {
		return named(p, s.outside(p, err))
	}
	defer at.close()
	fd, st, err := openRegular(at)
	if err != nil {
		return named(p, err)
	}
	defer unix.Close(fd)
	info := fileInfo(st, p)
	if err := op.Message(append([]byte{wire.MsgInfo}, fileResult(&info)...)); err != nil {
		return err
	}
	if offset > 0 {
		if _, err := unix.Seek(fd, offset, 0); err != nil {
			return named(p, err)
		}
	}
	return named(p, sendFile(op, fd, length))
}

// sendFile sends at most length bytes of a file; 0 means all of it.
func sendFile(op *wire.Op, fd int, length int64) error {
	for sent := int64(0); length == 0 || sent < length; {
		frame := op.NextFrame(sent)
		room := int64(len(frame) - wire.HeaderLen)
		if length > 0 {
			room = min(room, length-sent)
		}
		n, err := readFD(fd, frame[wire.HeaderLen:wire.HeaderLen+room])
		if err != nil || n == 0 {
			wire.PutFrame(frame)
			return err
		}
		if err := op.SendFrame(0, frame[:wire.HeaderLen+n]); err != nil {
			return err
		}
		sent += int64(n)
	}
	return nil
}

func readFD(fd int, p []byte) (int, error) {
	for {
		n, err := unix.Read(fd, p)
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

// fdWriter writes to a descriptor, without short writes.
type fdWriter int

func (fd fdWriter) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Write(int(fd), p[done:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// fdFile is an open file with the methods that package sparse needs.
type fdFile struct{ fd int }

func (f fdFile) Write(p []byte) (int, error)                  { return fdWriter(f.fd).Write(p) }
func (f fdFile) Seek(offset int64, whence int) (int64, error) { return unix.Seek(f.fd, offset, whence) }
func (f fdFile) Truncate(size int64) error                    { return unix.Ftruncate(f.fd, size) }

func (f fdFile) ReadAt(p []byte, at int64) (done int, err error) {
	for done < len(p) {
		n, err := unix.Pread(f.fd, p[done:], at+int64(done))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return done, err
		case n == 0:
			return done, io.EOF
		}
		done += n
	}
	return done, nil
}

// writeOptions are a client's options for writing a file.
type writeOptions struct {
	mode                 uint32
	owner                string
	noParents, noReplace bool
	over                 *wire.Overwrite // nil: replace the file atomically
}

// write creates or replaces a file with the client's data.
func (s *fileServer) write(op *wire.Op, d *wire.Decoder) ([]byte, error) {
	p := d.String()
	o := writeOptions{mode: uint32(d.Uint()) & 0o7777, owner: d.String(), noParents: d.Bool(), noReplace: d.Bool(), over: wire.TakeOverwrite(d)}
	if err := d.End(); err != nil {
		return nil, err
	}
	info, err := s.writeFile(op, p, o)
	if err != nil {
		return nil, named(p, err)
	}
	return fileResult(&info), nil
}

func (s *fileServer) writeFile(op *wire.Op, p string, o writeOptions) (info sandbox.FileInfo, err error) {
	own, err := s.ownerOf(o.owner)
	if err != nil {
		return info, err
	}
	if !o.noParents {
		err := s.makeDirs(path.Dir(path.Clean(p)), 0o755, own)
		if err == unix.EEXIST {
			return info, fail(sandbox.CodeConflict, p, "a parent is not a directory")
		}
		if err != nil {
			return info, s.outside(p, err)
		}
	}
	at, err := s.root.find(p, !o.noReplace)
	if err != nil {
		return info, s.outside(p, err)
	}
	defer at.close()
	if o.over != nil {
		return s.overwrite(op, at, p, o, own)
	}
	mode, err := replaces(at, &o, &own)
	if err != nil {
		return info, err
	}
	tmp, fd, err := s.temp(at.dir)
	if err != nil {
		return info, err
	}
	defer s.dropTemp(at.dir, tmp)
	defer unix.Close(fd)
	if _, err := op.In(0).WriteTo(fdWriter(fd)); err != nil {
		return info, err
	}
	if err := setFile(fd, mode, own); err != nil {
		return info, err
	}
	from := place{dir: at.dir, name: tmp}
	if o.noReplace {
		err = renameNew(from, at)
	} else {
		err = renameOver(from, at)
	}
	if err != nil {
		return info, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return info, err
	}
	return fileInfo(&st, p), nil
}

// replaces checks the file that a write replaces and determines the mode and
// owner of the new file.
func replaces(at place, o *writeOptions, own *owner) (mode uint32, err error) {
	mode = o.mode
	var st unix.Stat_t
	switch err := unix.Fstatat(at.dir, at.name, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case err == unix.ENOENT:
		if mode == 0 {
			mode = 0o644
		}
		return mode, nil
	case err != nil:
		return 0, err
	case o.noReplace:
		return 0, unix.EEXIST
	}
	if err := mustBeRegular(&st); err != nil {
		return 0, err
	}
	if mode == 0 {
		mode = st.Mode & 0o7777
	}
	if o.owner == "" {
		*own = owner{int(st.Uid), int(st.Gid)}
		if unix.Geteuid() != 0 {
			*own = unchanged
		}
	}
	return mode, nil
}

const tempPrefix = ".atoll-tmp-"

// tempName returns a new name that listings hide. The caller removes it from
// temps when it is done.
func (s *fileServer) tempName() (string, error) {
	var b [12]byte
	if _, err := unix.Getrandom(b[:], 0); err != nil {
		return "", err
	}
	name := tempPrefix + hex.EncodeToString(b[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	s.temps[name] = true
	return name, nil
}

// looksTemp reports whether a name has the form that tempName produces.
func looksTemp(name string) bool {
	random, ok := strings.CutPrefix(name, tempPrefix)
	_, err := hex.DecodeString(random)
	return ok && len(random) == 24 && err == nil
}

// temp creates a temporary file in dir. It is renamed when it is complete.
func (s *fileServer) temp(dir int) (string, int, error) {
	name, err := s.tempName()
	if err != nil {
		return "", -1, err
	}
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		s.mu.Lock()
		delete(s.temps, name)
		s.mu.Unlock()
		return "", -1, err
	}
	return name, fd, nil
}

// dropTemp removes a temporary file, if it still has that name.
func (s *fileServer) dropTemp(dir int, name string) {
	_ = unix.Unlinkat(dir, name, 0)
	s.mu.Lock()
	delete(s.temps, name)
	s.mu.Unlock()
}
