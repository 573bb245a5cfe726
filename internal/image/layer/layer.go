// Package layer converts a stack of tar layers into one tree of files, without
// creating files on this machine. Names, links and whiteouts are resolved in
// memory, and the content of files is streamed into an EROFS image.
//
// A layer is untrusted input. Unusual members are handled as follows:
//
//   - A leading "/" is dropped, as Docker does; "." and empty elements too. A
//     name with ".." is refused, and so is one that is too long or holds NUL.
//   - A member below a symbolic link goes where the link leads inside the
//     image, whether the link is of this layer or of a lower one; it cannot
//     lead out, because there is no outside. A member that is itself a link's
//     name replaces the link.
//   - A hard link shares the inode of its target, which may be in a lower layer
//     or come later in this one. A missing target, a directory or a cycle is
//     refused.
//   - Of two members with one name the later wins. Whiteouts and opaque marks
//     hide what is in lower layers only, wherever in the layer they stand.
//   - Device nodes are dropped: the sandbox has its own /dev. A character
//     device 0/0 is a whiteout, as overlayfs writes it.
//   - Extended attributes, file capabilities among them, are dropped, because
//     the sandbox kernel cannot read them from an image. Setuid and setgid bits
//     are kept: they can only give rights inside the sandbox.
//   - Names are bytes. Names that differ in case or Unicode form are different.
//
// Everything is bounded by [Limits]. Errors are *sandbox.Error and name the
// layer and the member.
package layer

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/image/mkfs"
	"github.com/atoll-run/atoll/sandbox"
)

// Applier applies layers, lowest first. It is not safe for concurrent use.
type Applier struct {
	limits  Limits
	out     *mkfs.Writer
	root    *mkfs.Node
	entries int
	bytes   int64
}

// New returns an Applier that streams the content of files to out.
func New(out *mkfs.Writer, limits Limits) *Applier {
	return &Applier{limits: limits.WithDefaults(), out: out, root: newDir(time.Time{})}
}

// Over starts with a tree instead of an empty one, and takes ownership of it.
// Call it before Apply.
func (a *Applier) Over(root *mkfs.Node) {
	a.root = root
	a.count(root)
}

// count counts the files of a tree against the limits.
func (a *Applier) count(n *mkfs.Node) {
	a.entries += len(n.Children)
	for _, c := range n.Children {
		a.bytes += c.Size
		a.count(c)
	}
}

// Root returns the tree, for [mkfs.Writer.Finish].
func (a *Applier) Root() *mkfs.Node { return a.root }

// Options are the options for one layer.
type Options struct {
	// Name is the name of the layer in errors, e.g. "layer 2 of 5 (sha256:…)".
	Name string
	// Literal disables whiteouts: the tar is a complete root file system.
	Literal bool
}

// Apply reads the uncompressed tar r to its end and applies it. After an error
// the Applier must not be used.
func (a *Applier) Apply(ctx context.Context, r io.Reader, opts Options) error {
	p := &parser{Applier: a, opts: opts, root: &entry{node: newDir(time.Time{}), implicit: true}}
	tr := tar.NewReader(r)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // names are checked here
			return p.broken(err)
		}
		if a.entries++; a.entries > a.limits.Entries {
			return p.fail(sandbox.CodeExhausted, hdr.Name, "the image has more than %d files", a.limits.Entries)
		}
		if err := p.member(hdr, tr); err != nil {
			return err
		}
	}
	// Data after the end mark counts for the digest.
	if _, err := io.Copy(io.Discard, r); err != nil {
		return p.broken(err)
	}
	if err := p.resolveLinks(); err != nil {
		return err
	}
	if err := p.merge([]*mkfs.Node{a.root}, p.root); err != nil {
		return p.fail(sandbox.CodeInvalid, "/", "%v", err)
	}
	return nil
}

// parser reads one layer into a separate tree.
type parser struct {
	*Applier
	opts    Options
	root    *entry
	pending []*entry // hard links with a target that has not been read yet
}

const (
	whiteoutPrefix = ".wh."
	opaqueMark     = ".wh..wh..opq"
	aufsPrefix     = ".wh..wh." // metadata of aufs
)

// member handles a member of the tar.
func (p *parser) member(hdr *tar.Header, content io.Reader) error {
	parts, err := p.split(hdr.Name)
	if err != nil {
		return p.fail(sandbox.CodeInvalid, hdr.Name, "%v", err)
	}
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if len(parts) == 0 {
		return p.rootMember(hdr)
	}
	base := parts[len(parts)-1]
	if !p.opts.Literal && strings.HasPrefix(base, whiteoutPrefix) {
		return p.whiteout(hdr, parts)
	}
	if hdr.Typeflag == tar.TypeChar || hdr.Typeflag == tar.TypeBlock {
		if !p.opts.Literal && hdr.Typeflag == tar.TypeChar && hdr.Devmajor == 0 && hdr.Devminor == 0 {
			return p.mark(hdr, parts[:len(parts)-1], base)
		}
		return nil
	}
	e, err := p.newEntry(hdr, content)
	if err != nil {
		return err
	}
	parent, err := p.mkdirs(parts[:len(parts)-1], hdr.ModTime, true)
	if err != nil {
		return p.fail(sandbox.CodeInvalid, hdr.Name, "%v", err)
	}
	parent.put(base, e)
	return nil
}

// rootMember sets the attributes of the root directory.
func (p *parser) rootMember(hdr *tar.Header) error {
	if hdr.Typeflag != tar.TypeDir {
		return p.fail(sandbox.CodeInvalid, hdr.Name, "the root can only be a directory")
	}
	n, err := p.node(hdr, unix.S_IFDIR)
	if err != nil {
		return err
	}
	p.root.node, p.root.implicit = n, false
	return nil
}

// whiteout handles a member whose name begins with ".wh.".
func (p *parser) whiteout(hdr *tar.Header, parts []string) error {
	dir, base := parts[:len(parts)-1], parts[len(parts)-1]
	if base == opaqueMark {
		d, err := p.mkdirs(dir, hdr.ModTime, false)
		if err != nil {
			return p.fail(sandbox.CodeInvalid, hdr.Name, "%v", err)
		}
		d.opaque = true
		return nil
	}
	if strings.HasPrefix(base, aufsPrefix) {
		return nil
	}
	return p.mark(hdr, dir, base[len(whiteoutPrefix):])
}

// mark records that dir/name of lower layers is removed.
func (p *parser) mark(hdr *tar.Header, dir []string, name string) error {
	if name == "" || name == "." || name == ".." {
		return p.fail(sandbox.CodeInvalid, hdr.Name, "an invalid whiteout: it names nothing, its own directory or its parent")
	}
	d, err := p.mkdirs(dir, hdr.ModTime, false)
	if err != nil {
		return p.fail(sandbox.CodeInvalid, hdr.Name, "%v", err)
	}
	if d.gone == nil {
		d.gone = map[string]struct{}{}
	}
	d.gone[name] = struct{}{}
	return nil
}

// newEntry creates the entry of a member, and stores its content.
func (p *parser) newEntry(hdr *tar.Header, content io.Reader) (*entry, error) {
	switch hdr.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		n, err := p.node(hdr, unix.S_IFREG)
		if err != nil {
			return nil, err
		}
		return &entry{node: n}, p.store(n, hdr, content)
	case tar.TypeDir:
		n, err := p.node(hdr, unix.S_IFDIR)
		return &entry{node: n}, err
	case tar.TypeFifo:
		n, err := p.node(hdr, unix.S_IFIFO)
		return &entry{node: n}, err
	case tar.TypeSymlink:
		n, err := p.node(hdr, unix.S_IFLNK)
		if err == nil && (hdr.Linkname == "" || len(hdr.Linkname) > mkfs.MaxTarget || strings.IndexByte(hdr.Linkname, 0) >= 0) {
			err = p.fail(sandbox.CodeInvalid, hdr.Name, "a symbolic link with an invalid target")
		}
		if err == nil {
			n.Target, n.Mode = hdr.Linkname, unix.S_IFLNK|0o777
		}
		return &entry{node: n}, err
	case tar.TypeLink:
		return p.hardLink(hdr)
	}
	return nil, p.fail(sandbox.CodeInvalid, hdr.Name, "members of type %q are not supported", hdr.Typeflag)
}

// node returns a node with the attributes of a member.
func (p *parser) node(hdr *tar.Header, typ uint16) (*mkfs.Node, error) {
	if !isID(hdr.Uid) || !isID(hdr.Gid) {
		return nil, p.fail(sandbox.CodeInvalid, hdr.Name, "invalid owner %d:%d", hdr.Uid, hdr.Gid)
	}
	n := &mkfs.Node{Mode: typ | uint16(hdr.Mode&0o7777), UID: uint32(hdr.Uid), GID: uint32(hdr.Gid)}
	setTime(n, hdr.ModTime)
	return n, nil
}

// isID reports whether a number is a valid user or group id. 2^32-1 means
// "none".
func isID(id int) bool { return id >= 0 && int64(id) < math.MaxUint32 }

func setTime(n *mkfs.Node, t time.Time) {
	if sec := t.Unix(); sec > 0 {
		n.MTime, n.MTimeNsec = sec, uint32(t.Nanosecond())
	}
}

// store streams the content of a regular file into the image.
func (p *parser) store(n *mkfs.Node, hdr *tar.Header, content io.Reader) error {
	if hdr.Size > p.limits.FileSize {
		return p.fail(sandbox.CodeExhausted, hdr.Name, "a file of %d bytes, at most %d", hdr.Size, p.limits.FileSize)
	}
	if p.bytes += hdr.Size; p.bytes > p.limits.ImageSize {
		return p.fail(sandbox.CodeExhausted, hdr.Name, "the image has more than %d bytes", p.limits.ImageSize)
	}
	var err error
	n.Block, n.Size, err = p.out.WriteFile(content)
	if err != nil {
		return p.broken(err)
	}
	return nil
}

// hardLink finds the target of a hard link: in this layer, otherwise in a lower
// one, otherwise later in this layer.
func (p *parser) hardLink(hdr *tar.Header) (*entry, error) {
	parts, err := p.split(hdr.Linkname)
	if err != nil || len(parts) == 0 {
		return nil, p.fail(sandbox.CodeInvalid, hdr.Name, "a hard link to an invalid name")
	}
	target := p.find(parts)
	if target != nil && target.node != nil {
		return p.share(hdr.Name, target.node)
	}
	if n := lookup(p.Applier.root, parts); target == nil && n != nil {
		return p.share(hdr.Name, n)
	}
	e := &entry{link: parts, name: hdr.Name}
	p.pending = append(p.pending, e)
	return e, nil
}

func (p *parser) share(name string, n *mkfs.Node) (*entry, error) {
	if n.IsDir() {
		return nil, p.fail(sandbox.CodeInvalid, name, "a hard link to a directory")
	}
	return &entry{node: n}, nil
}

// resolveLinks resolves links whose targets came later.
func (p *parser) resolveLinks() error {
	for _, e := range p.pending {
		if err := p.resolve(e); err != nil {
			return err
		}
	}
	return nil
}

// resolve resolves a chain of links. Links already visited have no target name
// any more, so a cycle ends with an error.
func (p *parser) resolve(e *entry) error {
	var chain []*entry
	for e.node == nil && e.link != nil {
		parts := e.link
		e.link = nil
		chain = append(chain, e)
		next := p.find(parts)
		if next == nil {
			break
		}
		e = next
	}
	for _, c := range chain {
		if e.node == nil {
			return p.fail(sandbox.CodeInvalid, c.name, "a hard link to a file that is not in the image")
		}
		if e.node.IsDir() {
			return p.fail(sandbox.CodeInvalid, c.name, "a hard link to a directory")
		}
		c.node = e.node
	}
	return nil
}

// split checks a name and returns its elements.
func (p *parser) split(name string) ([]string, error) {
	if len(name) > p.limits.PathLen {
		return nil, fmt.Errorf("a name of %d bytes, at most %d", len(name), p.limits.PathLen)
	}
	if strings.IndexByte(name, 0) >= 0 {
		return nil, errors.New("the name contains a NUL byte")
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
		case part == "..":
			return nil, errors.New(`the name climbs with ".."`)
		case len(part) > mkfs.MaxName:
			return nil, fmt.Errorf("a name element of %d bytes, at most %d", len(part), mkfs.MaxName)
		default:
			parts = append(parts, part)
		}
	}
	if !p.opts.Literal && len(parts) > 1 {
		for _, part := range parts[:len(parts)-1] {
			if strings.HasPrefix(part, whiteoutPrefix) {
				return nil, errors.New("a whiteout cannot be a directory")
			}
		}
	}
	return parts, nil
}

// fail returns the error for a member. Names are shortened and quoted, because
// they are untrusted.
func (p *parser) fail(code sandbox.Code, member, format string, args ...any) error {
	if len(member) > 128 {
		member = member[:128] + "…"
	}
	return &sandbox.Error{
		Code: code, Op: "image.unpack", Subject: p.opts.Name,
		Message: fmt.Sprintf("%q: %s", member, fmt.Sprintf(format, args...)),
	}
}

// broken returns the error for a stream that cannot be read, unless it already
// has a code.
func (p *parser) broken(err error) error {
	var typed *sandbox.Error
	switch {
	case errors.As(err, &typed), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
		return &sandbox.Error{Code: sandbox.CodeExhausted, Op: "image.unpack", Subject: p.opts.Name, Message: "no space left for the image", Cause: err}
	case errors.Is(err, tar.ErrHeader), errors.Is(err, tar.ErrFieldTooLong), errors.Is(err, io.ErrUnexpectedEOF):
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "image.unpack", Subject: p.opts.Name, Message: "not a usable tar: " + err.Error(), Cause: err}
	}
	return &sandbox.Error{Code: sandbox.CodeInternal, Op: "image.unpack", Subject: p.opts.Name, Message: "the layer could not be read", Cause: err}
}
