package agent

import (
	"path"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// fileServer performs file operations below its root.
type fileServer struct {
	root        walker
	broken      error // why the root cannot be opened
	users       *accounts
	defaultUser func() string

	mu    sync.Mutex
	temps map[string]bool // names of files being written, hidden from clients
}

func newFileServer(root string, users *accounts, defaultUser func() string) *fileServer {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return &fileServer{
		root:   walker{fd: fd, path: path.Clean(root), code: sandbox.CodeDenied},
		broken: err, users: users, defaultUser: defaultUser, temps: map[string]bool{},
	}
}

// handle carries out one file operation.
func (s *fileServer) handle(op *wire.Op, d *wire.Decoder) ([]byte, error) {
	if s.broken != nil {
		return nil, s.broken
	}
	switch op.Method {
	case wire.Stat:
		return s.stat(d)
	case wire.List:
		return nil, s.list(op, d)
	case wire.Read:
		return nil, s.read(op, d)
	case wire.Write:
		return s.write(op, d)
	case wire.Mkdir:
		return nil, s.mkdir(d)
	case wire.Remove:
		return nil, s.remove(d)
	case wire.Move:
		return nil, s.move(d)
	case wire.Export:
		return nil, s.export(op, d)
	case wire.Import:
		return nil, s.unpack(op, d)
	case wire.ImportLayer:
		return nil, s.unpackLayer(op, d)
	case wire.Watch:
		return nil, s.watch(op, d)
	case wire.Describe:
		return nil, s.describe(op, d)
	}
	return nil, fail(sandbox.CodeUnsupported, "", "unknown operation")
}

func (s *fileServer) stat(d *wire.Decoder) ([]byte, error) {
	p := d.String()
	if err := d.End(); err != nil {
		return nil, err
	}
	at, err := s.anywhere(p)
	if err != nil {
		return nil, about(p, err)
	}
	defer at.close()
	info, err := describe(at.dir, at.name, p)
	if err != nil {
		return nil, about(p, err)
	}
	return fileResult(&info), nil
}

// anywhere finds a file inside or outside the root without following a last
// link. Files outside may be listed but not read or changed. Commands can see
// them, too.
func (s *fileServer) anywhere(p string) (place, error) {
	if _, err := s.root.relative(path.Clean(p)); err == nil {
		return s.root.find(p, false)
	}
	m, err := machine()
	if err != nil {
		return place{}, err
	}
	defer unix.Close(m.fd)
	return m.find(p, false)
}

func fileResult(info *sandbox.FileInfo) []byte {
	var e wire.Encoder
	wire.PutFile(&e, info)
	return e.B
}

// describe returns the description of a directory entry.
func describe(dir int, name, as string) (sandbox.FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return sandbox.FileInfo{}, err
	}
	info := fileInfo(&st, as)
	if info.Type == sandbox.TypeSymlink {
		target, err := readLink(dir, name)
		if err != nil {
			return sandbox.FileInfo{}, err
		}
		info.Target = target
	}
	return info, nil
}

func fileInfo(st *unix.Stat_t, as string) sandbox.FileInfo {
	info := sandbox.FileInfo{
		Path: as, Type: fileType(st.Mode), Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid,
		ModTime: time.Unix(st.Mtim.Unix()), Nlink: uint64(st.Nlink), Identity: st.Ino,
	}
	if info.Type == sandbox.TypeFile {
		info.Size = st.Size
	}
	return info
}

func fileType(mode uint32) sandbox.FileType {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return sandbox.TypeFile
	case unix.S_IFDIR:
		return sandbox.TypeDir
	case unix.S_IFLNK:
		return sandbox.TypeSymlink
	case unix.S_IFIFO:
		return sandbox.TypeFIFO
	case unix.S_IFSOCK:
		return sandbox.TypeSocket
	}
	return sandbox.TypeDevice
}

// owner is the owner of a new file; -1 leaves the default.
type owner struct{ uid, gid int }

var unchanged = owner{-1, -1}

// ownerOf resolves an Owner option; empty is the sandbox's user.
func (s *fileServer) ownerOf(spec string) (owner, error) {
	if spec == "" {
		spec = s.defaultUser()
	}
	acc, err := s.users.lookup(spec)
	if err != nil {
		return unchanged, fail(sandbox.CodeInvalid, spec, err.Error())
	}
	return acc.owner(), nil
}

// owner returns the account as far as this process may change owners.
func (acc account) owner() owner {
	if unix.Geteuid() != 0 && acc.uid == 0 {
		return unchanged
	}
	return owner{int(acc.uid), int(acc.gid)}
}

// makeWorkdir creates the directory that commands start in. It may be outside
// the root, which limits file operations but not commands.
func (s *fileServer) makeWorkdir(dir string, acc account) error {
	if s.broken != nil {
		return s.broken
	}
	if _, err := s.root.relative(path.Clean(dir)); err == nil {
		return about(dir, s.makeDirs(dir, 0o755, acc.owner()))
	}
	w, err := machine()
	if err != nil {
		return err
	}
	defer unix.Close(w.fd)
	return about(dir, w.makeDirs(dir, 0o755, acc.owner()))
}

// machine returns a walker for the whole file system. The caller closes its
// descriptor.
func machine() (*walker, error) {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return &walker{fd: fd, path: "/", code: sandbox.CodeDenied}, err
}
