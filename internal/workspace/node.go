package workspace

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/workspace/chunk"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/bounds"
)

// kind is the type of a node. The values are part of the format.
type kind byte

const (
	file    kind = 'f'
	dir     kind = 'd'
	symlink kind = 'l'
	fifo    kind = 'p'
	same    kind = 'h' // hard link; the target is the path of the file
)

// node is a directory entry. The content of a directory is the encoding of its
// entries, so unchanged trees are not stored again.
type node struct {
	name     string // any bytes but NUL and '/'
	kind     kind
	mode     uint32 // as in chmod, 0o7777 at most
	uid, gid uint32
	modified time.Time
	content  []piece
	target   string
	xattrs   []xattr // ordered by name
}

// piece is a part of a file's content.
type piece struct {
	id     chunk.ID // zero: a hole
	length int64
}

func (p piece) hole() bool { return p.id == chunk.ID{} }

// maxFile is the largest size of a file, in bytes: the largest disk of a sandbox.
// A file of nothing but a hole may be larger than any disk.
const maxFile = bounds.MaxDisk

// size returns the size of a node's content in bytes.
func (n *node) size() (total int64) {
	for _, p := range n.content {
		total += p.length
	}
	return total
}

type xattr struct {
	name  string
	value []byte
}

// Limits of one node and one tree. A store that exceeds them is damaged.
const (
	maxName    = 255
	maxTarget  = 64 << 10 // the path of a hard link may be longer than system calls accept
	maxXattrs  = 64 << 10 // bytes per node
	maxDepth   = 1000
	maxListing = 256 << 20 // bytes of a directory's encoding
)

const format = 1 // of a directory's encoding, its first byte

// encode encodes the entries of a directory, ordered by name.
func encode(nodes []*node) []byte {
	out := []byte{format}
	for _, n := range nodes {
		out = n.append(out)
	}
	return out
}

func (n *node) append(out []byte) []byte {
	out = append(out, byte(n.kind))
	out = appendString(out, n.name)
	out = binary.AppendUvarint(out, uint64(n.mode))
	out = binary.AppendUvarint(out, uint64(n.uid))
	out = binary.AppendUvarint(out, uint64(n.gid))
	out = binary.AppendVarint(out, n.modified.Unix())
	out = binary.AppendUvarint(out, uint64(n.modified.Nanosecond()))
	out = appendString(out, n.target)
	out = appendPieces(out, n.content)
	out = binary.AppendUvarint(out, uint64(len(n.xattrs)))
	for _, x := range n.xattrs {
		out = appendString(appendString(out, x.name), string(x.value))
	}
	return out
}

func appendString(out []byte, s string) []byte {
	return append(binary.AppendUvarint(out, uint64(len(s))), s...)
}

func appendPieces(out []byte, pieces []piece) []byte {
	out = binary.AppendUvarint(out, uint64(len(pieces)))
	for _, p := range pieces {
		// The lowest bit marks holes, which have no chunk.
		if p.hole() {
			out = binary.AppendUvarint(out, uint64(p.length)<<1|1)
			continue
		}
		out = append(binary.AppendUvarint(out, uint64(p.length)<<1), p.id[:]...)
	}
	return out
}

// parser parses an encoding. After the first error, its methods return zero
// values.
type parser struct {
	rest []byte
	bad  error
}

func (p *parser) fail(format string, args ...any) {
	if p.bad == nil {
		p.bad = damaged(format, args...)
	}
	p.rest = nil
}

func (p *parser) uvarint(most uint64) uint64 {
	v, n := binary.Uvarint(p.rest)
	if n <= 0 || v > most {
		p.fail("a number in a directory is too large")
		return 0
	}
	p.rest = p.rest[n:]
	return v
}

func (p *parser) varint() int64 {
	v, n := binary.Varint(p.rest)
	if n <= 0 {
		p.fail("a number in a directory is too large")
		return 0
	}
	p.rest = p.rest[n:]
	return v
}

func (p *parser) string(most uint64) string { return string(p.bytes(p.uvarint(most))) }

func (p *parser) bytes(n uint64) []byte {
	if n > uint64(len(p.rest)) {
		p.fail("a directory ends in the middle")
		return nil
	}
	b := p.rest[:n]
	p.rest = p.rest[n:]
	return b
}

func (p *parser) pieces() (pieces []piece) {
	var total int64
	for range p.uvarint(uint64(len(p.rest))) {
		v := p.uvarint(1<<63 - 1)
		next := piece{length: int64(v >> 1)}
		if v&1 == 0 {
			copy(next.id[:], p.bytes(uint64(len(next.id))))
		}
		if total += next.length; total < 0 || p.bad == nil && !next.hole() && next.length > chunk.MaxSize {
			p.fail("a file in a directory has an invalid size")
		}
		if p.bad != nil {
			return nil
		}
		pieces = append(pieces, next)
	}
	return pieces
}

func (p *parser) node() *node {
	n := &node{kind: kind(p.uvarint(255))}
	n.name = p.string(maxName)
	n.mode = uint32(p.uvarint(0o7777))
	n.uid = uint32(p.uvarint(1<<32 - 1))
	n.gid = uint32(p.uvarint(1<<32 - 1))
	n.modified = time.Unix(p.varint(), int64(p.uvarint(999_999_999)))
	n.target = p.string(maxTarget)
	n.content = p.pieces()
	for range p.uvarint(maxXattrs) {
		x := xattr{name: p.string(maxName), value: p.bytes(p.uvarint(maxXattrs))}
		if p.bad != nil {
			break
		}
		if !keptXattr(x.name) {
			p.fail("an unsupported extended attribute: %.40q", x.name)
		}
		n.xattrs = append(n.xattrs, x)
	}
	return n
}

// parse parses and validates the output of encode.
func parse(encoded []byte) ([]*node, error) {
	if len(encoded) == 0 || encoded[0] != format {
		return nil, damaged("a directory is of an unknown format")
	}
	p := &parser{rest: encoded[1:]}
	var nodes []*node
	for len(p.rest) > 0 {
		n := p.node()
		if p.bad == nil {
			n.check(p)
		}
		if p.bad == nil && len(nodes) > 0 && nodes[len(nodes)-1].name >= n.name {
			p.fail("the names in a directory are not in order")
		}
		nodes = append(nodes, n)
	}
	return nodes, p.bad
}

// check refuses an invalid or harmful node.
func (n *node) check(p *parser) {
	if n.name == "" || n.name == "." || n.name == ".." || strings.ContainsAny(n.name, "/\x00") {
		p.fail("%.80q cannot be the name of a file", n.name)
	}
	switch n.kind {
	case file:
		if size := n.size(); size < 0 || size > maxFile {
			p.fail("%.80q is too large", n.name)
		}
	case dir, fifo:
	case symlink, same:
		if n.target == "" || strings.ContainsRune(n.target, 0) {
			p.fail("%.80q leads to no path", n.name)
		}
	default:
		p.fail("%.80q is of an unknown kind", n.name)
	}
}

// damaged returns an error that describes damaged data in a store.
func damaged(format string, args ...any) error {
	return &sandbox.Error{
		Code: sandbox.CodeInvalid, Op: "workspace", Message: "the store is damaged: " + fmt.Sprintf(format, args...),
		Hint: "restore the blob store from a backup, or an older version of the workspace",
	}
}
