package fake

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/sparse"
	"github.com/atoll-run/atoll/internal/testing/fake/internal/memfs"
	"github.com/atoll-run/atoll/sandbox"
)

// Export writes a tree as a tar stream.
func (i *instance) Export(ctx context.Context, p string, w io.Writer, opts driver.ExportOptions) error {
	const op = "archive.export"
	if err := i.beginFile(ctx, op, p); err != nil {
		return err
	}
	for _, pattern := range opts.Exclude {
		if _, err := path.Match(pattern, ""); err != nil {
			return fail(sandbox.CodeInvalid, op, "exclude", "a pattern is malformed")
		}
	}
	p = path.Clean(p)
	base := path.Base(p)
	if p == "/" {
		base = "."
	}
	e := &exporter{instance: i, ctx: ctx, out: w, tar: tar.NewWriter(w), top: p, base: base, exclude: opts.Exclude, seen: map[uint64]string{}}
	if err := e.add(""); err != nil {
		return i.fileError(op, p, err)
	}
	return e.tar.Close()
}

// exporter writes one tree to out.
type exporter struct {
	*instance
	ctx     context.Context
	out     io.Writer
	tar     *tar.Writer
	top     string
	base    string
	exclude []string
	seen    map[uint64]string // members by inode, for hard links
}

var tarTypes = map[memfs.Type]byte{
	memfs.File: tar.TypeReg, memfs.Dir: tar.TypeDir, memfs.Symlink: tar.TypeSymlink, memfs.FIFO: tar.TypeFifo, memfs.Device: tar.TypeChar,
}

// add writes the member at rel, relative to the top, and what is below it.
func (e *exporter) add(rel string) error {
	if err := errors.Join(e.ctx.Err(), e.gone("archive.export")); err != nil {
		return err
	}
	full := path.Join(e.top, rel)
	info, err := e.files.Stat(full, false)
	if err != nil {
		return err
	}
	h := &tar.Header{
		Typeflag: tarTypes[info.Type], Name: path.Join(e.base, rel), Linkname: info.Target, Mode: int64(info.Mode),
		Uid: int(info.UID), Gid: int(info.GID), ModTime: info.ModTime, Size: info.Size,
		Format: tar.FormatPAX, // Others round times and cannot hold every name.
	}
	if first, ok := e.seen[info.Inode]; ok {
		h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
	} else if info.Type != memfs.Dir && info.Nlink > 1 {
		e.seen[info.Inode] = h.Name
	}
	if info.Type == memfs.Dir {
		h.Name += "/"
	}
	if h.Typeflag == tar.TypeReg {
		return e.content(full, h)
	}
	if err := e.tar.WriteHeader(h); err != nil {
		return err
	}
	if info.Type != memfs.Dir {
		return nil
	}
	return e.below(full, rel)
}

func (e *exporter) below(full, rel string) error {
	names, err := e.files.Names(full)
	if err != nil {
		return err
	}
	for _, name := range names {
		below := path.Join(rel, name)
		excluded := slices.ContainsFunc(e.exclude, func(pattern string) bool {
			ok, _ := path.Match(pattern, below) // The pattern was checked.
			return ok
		})
		if excluded {
			continue
		}
		if err := e.add(below); err != nil {
			return err
		}
	}
	return nil
}

func (e *exporter) content(full string, h *tar.Header) error {
	opened, err := e.files.Open(full, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	file := seekReader{opened}
	extents, err := sparse.Scan(file, h.Size)
	if err != nil {
		return err
	}
	if len(extents) != 1 || extents[0].Length < h.Size {
		return sparse.Write(e.out, e.tar, h, file, extents)
	}
	if err := e.tar.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(e.tar, io.NewSectionReader(file, 0, h.Size))
	return err
}

// seekReader reads a file anywhere. It has one user.
type seekReader struct{ io.ReadSeeker }

func (r seekReader) ReadAt(p []byte, off int64) (int, error) {
	if _, err := r.Seek(off, io.SeekStart); err != nil {
		return 0, err
	}
	n, err := io.ReadFull(r, p)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return n, err
}

// Import unpacks a tar stream into a directory.
func (i *instance) Import(ctx context.Context, p string, r io.Reader, opts driver.ImportOptions) error {
	const op = "archive.import"
	if err := i.beginFile(ctx, op, p); err != nil {
		return err
	}
	who, err := i.owner(op, opts.Owner)
	if err != nil {
		return err
	}
	p = path.Clean(p)
	restore := i.files.Checkpoint(p)
	if err := i.unpack(ctx, op, p, r, who, opts.Owner != ""); err != nil {
		restore()
		return err
	}
	return nil
}

func (i *instance) unpack(ctx context.Context, op, p string, r io.Reader, who owner, given bool) error {
	if err := i.mkdirAll(p, 0o755, who); err != nil {
		return i.fileError(op, p, err)
	}
	top, err := i.files.RealPath(p)
	if err != nil {
		return i.fileError(op, p, err)
	}
	source := &notingReader{r: r}
	m := &importer{instance: i, ctx: ctx, top: top, tar: tar.NewReader(source), owner: who, given: given}
	if err := m.run(); err != nil {
		if source.err != nil {
			return source.err // The caller's reader failed, not the archive.
		}
		return i.fileError(op, m.name, err)
	}
	return nil
}

// notingReader remembers why its reader failed.
type notingReader struct {
	r   io.Reader
	err error
}

func (n *notingReader) Read(b []byte) (int, error) {
	k, err := n.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		n.err = err
	}
	return k, err
}

// importer unpacks one stream.
type importer struct {
	*instance
	ctx   context.Context
	top   string // without links
	tar   *tar.Reader
	owner owner
	given bool   // the owner is the caller's wish
	name  string // of the member at hand
	times []func()
}

func (m *importer) invalid(message string) error {
	return fail(sandbox.CodeInvalid, "archive.import", m.name, message)
}

func (m *importer) run() error {
	for {
		if err := errors.Join(m.ctx.Err(), m.gone("archive.import")); err != nil {
			return err
		}
		h, err := m.tar.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return m.invalid("not a tar stream, or a damaged one")
		}
		m.name = h.Name
		if err := m.member(h); err != nil {
			return err
		}
	}
	for _, set := range slices.Backward(m.times) {
		set() // Last, because making members changes their directory's time.
	}
	return nil
}

// inside returns where a member's name leads. The directory it is in exists
// and, links resolved, is the top or below it.
func (m *importer) inside(name string, create bool) (string, error) {
	if path.IsAbs(name) || slices.Contains(strings.Split(name, "/"), "..") {
		return "", m.invalid("leads out of the directory")
	}
	dir, last := path.Split(path.Clean(name))
	at := m.top
	for _, element := range strings.Split(path.Clean(dir), "/") {
		if element == "." || element == "" {
			continue
		}
		next := path.Join(at, element)
		if _, err := m.files.Stat(next, false); err != nil && create {
			if err := m.mkdir(next, 0o755, m.owner); err != nil {
				return "", err
			}
		}
		real, err := m.files.RealPath(next)
		if err != nil {
			return "", m.invalid("leads through what does not exist")
		}
		if real != m.top && !strings.HasPrefix(real, strings.TrimSuffix(m.top, "/")+"/") {
			return "", m.invalid("leads through a link out of the directory")
		}
		at = real
	}
	if last == "." {
		return at, nil
	}
	return path.Join(at, last), nil
}

func (m *importer) member(h *tar.Header) error {
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeFifo:
	default:
		return m.invalid("neither a file, a directory, a link nor a fifo")
	}
	at, err := m.inside(h.Name, true)
	if err != nil {
		return err
	}
	who := owner{uint32(h.Uid), uint32(h.Gid)}
	if m.given {
		who = m.owner
	}
	if err := m.place(h, at, who); err != nil || h.Typeflag == tar.TypeLink {
		return err
	}
	if err := m.files.Chown(at, who.uid, who.gid); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeSymlink {
		if err := m.files.Chmod(at, uint32(h.Mode)); err != nil {
			return err
		}
	}
	mtime := h.ModTime
	if mtime.IsZero() || mtime.Equal(time.Unix(0, 0)) {
		return nil
	}
	m.times = append(m.times, func() { _ = m.files.Chtimes(at, mtime) }) // What is gone needs no time.
	return nil
}

// place makes a member.
func (m *importer) place(h *tar.Header, at string, who owner) error {
	if h.Typeflag == tar.TypeDir {
		info, err := m.files.Stat(at, false)
		if err == nil && info.Type == memfs.Dir {
			return nil
		}
		if err := m.clear(at); err != nil {
			return err
		}
		return m.files.Mkdir(at, uint32(h.Mode))
	}
	if at == m.top {
		return m.invalid("is not a directory")
	}
	if h.Typeflag == tar.TypeReg {
		return m.file(h, at, who)
	}
	target := ""
	if h.Typeflag == tar.TypeLink {
		var err error
		if target, err = m.inside(h.Linkname, false); err != nil {
			return err
		}
		if info, err := m.files.Stat(target, false); err != nil || info.Type == memfs.Dir {
			return m.invalid("a hard link to what is not there")
		}
		if target == at {
			return nil
		}
	}
	if err := m.clear(at); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeLink:
		return m.files.Link(target, at)
	case tar.TypeSymlink:
		return m.files.Symlink(h.Linkname, at)
	}
	return m.files.Mkfifo(at, uint32(h.Mode))
}

// clear removes what is in the way of a member, if it is no directory.
func (m *importer) clear(at string) error {
	info, err := m.files.Stat(at, false)
	if err != nil {
		return nil // Nothing is there.
	}
	if info.Type == memfs.Dir {
		return m.invalid("a directory is in the way")
	}
	return m.files.Remove(at, false)
}

// file writes a regular file, replacing what is there.
func (m *importer) file(h *tar.Header, at string, who owner) error {
	draft := m.files.Draft(0o600)
	if err := m.fill(m.ctx, draft, m.tar); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrHeader) {
			return m.invalid("the stream ends in the middle of it")
		}
		return err
	}
	_, err := m.files.Publish(draft, at, false, false, func(*memfs.Info) (mode, uid, gid uint32) {
		return uint32(h.Mode), who.uid, who.gid
	})
	return err
}
