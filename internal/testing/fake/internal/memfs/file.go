package memfs

import (
	"io"
	"os"
	"syscall"
	"time"
)

// chunk is the unit of stored file contents. Unwritten chunks are not stored
// and read as zeros.
const chunk = 64 << 10

// content is the sparse content of a file.
type content struct {
	size   int64
	chunks map[int64][]byte // by index; shorter ones end in zeros
}

func (c *content) readAt(p []byte, off int64) int {
	if off >= c.size {
		return 0
	}
	p = p[:min(int64(len(p)), c.size-off)]
	for done := 0; done < len(p); {
		index, within := (off+int64(done))/chunk, int((off+int64(done))%chunk)
		part := p[done:min(len(p), done+chunk-within)]
		n := 0
		if data := c.chunks[index]; within < len(data) {
			n = copy(part, data[within:])
		}
		clear(part[n:])
		done += len(part)
	}
	return len(p)
}

func (c *content) writeAt(p []byte, off int64) {
	if c.chunks == nil {
		c.chunks = map[int64][]byte{}
	}
	c.size = max(c.size, off+int64(len(p)))
	for len(p) > 0 {
		index, within := off/chunk, int(off%chunk)
		n := min(len(p), chunk-within)
		data := c.chunks[index]
		if need := within + n; need > len(data) {
			data = append(data, make([]byte, need-len(data))...)
			c.chunks[index] = data
		}
		copy(data[within:], p[:n])
		p, off = p[n:], off+int64(n)
	}
}

func (c *content) truncate(size int64) {
	for index, data := range c.chunks {
		switch start := index * chunk; {
		case start >= size:
			delete(c.chunks, index)
		case start+int64(len(data)) > size:
			clear(data[size-start:])
		}
	}
	c.size = size
}

// Handle is an open regular file. Its methods may be called concurrently.
type Handle struct {
	fs       *FS
	node     *Node
	off      int64 // guarded by fs.mu
	append   bool
	readable bool
	writable bool
}

// Open opens a file with the flags of package os. Directories, fifos and
// devices can be opened too; see Info.
func (f *FS) Open(path string, flags int, mode uint32) (*Handle, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.openNode(path, flags, mode)
	if err != nil {
		return nil, err
	}
	if n.typ == File && flags&os.O_TRUNC != 0 {
		n.data.truncate(0)
		n.mtime = time.Now()
		f.notify(Write, n)
	}
	access := flags & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
	return &Handle{
		fs: f, node: n, append: flags&os.O_APPEND != 0,
		readable: access != os.O_WRONLY, writable: access != os.O_RDONLY,
	}, nil
}

// openNode finds or makes the node to open and checks the permissions.
func (f *FS) openNode(path string, flags int, mode uint32) (*Node, error) {
	at, errno := f.walk(path, true)
	if errno != 0 {
		return nil, fail("open", path, errno)
	}
	if at.node == nil {
		if flags&os.O_CREATE == 0 || at.name == "." {
			return nil, fail("open", path, syscall.ENOENT)
		}
		n := f.node(File, mode)
		f.attach(at, n)
		return n, nil
	}
	n := at.node
	if flags&(os.O_CREATE|os.O_EXCL) == os.O_CREATE|os.O_EXCL {
		return nil, fail("open", path, syscall.EEXIST)
	}
	if n.typ == Dir && flags&(os.O_WRONLY|os.O_RDWR) != 0 {
		return nil, fail("open", path, syscall.EISDIR)
	}
	return n, nil
}

// Read reads at the file's offset.
func (h *Handle) Read(p []byte) (int, error) {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	switch {
	case !h.readable:
		return 0, syscall.EBADF
	case h.node.typ == Dir:
		return 0, syscall.EISDIR
	case h.node.typ == Device && h.node.device == "zero":
		clear(p)
		return len(p), nil
	case h.node.typ != File:
		return 0, io.EOF
	}
	n := h.node.data.readAt(p, h.off)
	h.off += int64(n)
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Write writes at the file's offset, or at its end if it was opened so.
func (h *Handle) Write(p []byte) (int, error) {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	switch {
	case !h.writable:
		return 0, syscall.EBADF
	case h.node.typ != File:
		return len(p), nil
	}
	if h.append {
		h.off = h.node.data.size
	}
	h.node.data.writeAt(p, h.off)
	h.off += int64(len(p))
	h.node.mtime = time.Now()
	h.fs.notify(Write, h.node)
	return len(p), nil
}

// Seek sets the offset for the next Read or Write.
func (h *Handle) Seek(offset int64, whence int) (int64, error) {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	switch whence {
	case io.SeekCurrent:
		offset += h.off
	case io.SeekEnd:
		offset += h.node.data.size
	}
	if offset < 0 {
		return 0, syscall.EINVAL
	}
	h.off = offset
	return offset, nil
}

// Truncate sets the size.
func (h *Handle) Truncate(size int64) error {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	if !h.writable || size < 0 {
		return syscall.EINVAL
	}
	h.node.data.truncate(size)
	h.fs.notify(Write, h.node)
	return nil
}

// Info describes the open file.
func (h *Handle) Info() Info {
	h.fs.mu.Lock()
	defer h.fs.mu.Unlock()
	return h.node.info()
}

// Draft returns a file without a name. Publish gives it one.
func (f *FS) Draft(mode uint32) *Handle {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &Handle{fs: f, node: f.node(File, mode), readable: true, writable: true}
}

// Publish puts a draft where path leads, replacing at once a file that is
// there already; with keep set that is EEXIST. Without follow a link in the
// last element is replaced itself. Finish sees the file that will be replaced,
// or nil, and returns the draft's mode and owner.
func (f *FS) Publish(h *Handle, path string, keep, follow bool, finish func(old *Info) (mode, uid, gid uint32)) (Info, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, errno := f.walk(path, follow)
	var old *Info
	switch {
	case errno != 0:
	case at.name == "." || at.name == "..":
		errno = syscall.EISDIR
	case at.node == nil:
	case keep:
		errno = syscall.EEXIST
	case at.node.typ == Dir:
		errno = syscall.EISDIR
	case at.node.typ != File && at.node.typ != Symlink:
		errno = syscall.EINVAL
	case at.node.typ == File:
		info := at.node.info()
		old = &info
	}
	if errno != 0 {
		return Info{}, fail("write", path, errno)
	}
	mode, uid, gid := finish(old)
	h.node.mode, h.node.uid, h.node.gid = mode&0o7777, uid, gid
	if at.node != nil {
		at.node.nlink--
	}
	f.attach(at, h.node)
	return h.node.info(), nil
}
