package mkfs

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"golang.org/x/sys/unix"
)

// On-disk sizes and numbers.
const (
	superOffset   = 1024
	superMagic    = 0xe0f5e1e2
	compatChksum  = 1
	inodeSize     = 64 // the extended form, with a time and 32-bit ids
	inodeSlot     = 32 // the unit of inode numbers
	direntSize    = 12
	formatPlain   = 0<<1 | 1 // extended inode, data in separate blocks
	formatInline  = 2<<1 | 1 // extended inode, data directly after it
	maxInlineTail = BlockSize - inodeSize
)

// plan is where and how a node is written.
type plan struct {
	nid     uint64 // inode number: its position in units of inodeSlot
	ino     uint32 // serial number, for 32-bit stat
	nlink   uint32
	inline  bool
	block   uint32   // of a directory or symbolic link that is not inline
	names   []string // of a directory, sorted, including "." and ".."
	dirSize int64
	parent  *Node // of a directory
}

// layout is the order in which nodes are written.
type layout struct {
	nodes []*Node // each once, ordered by nid
	large []*Node // directories and links with separate blocks
	files []*Node // regular files with data
	end   int64   // current size of the inode area in bytes
}

// newLayout walks the tree, checks that the format supports it, and assigns a
// position to every node.
func newLayout(root *Node) (*layout, error) {
	if !root.IsDir() {
		return nil, fmt.Errorf("the root is not a directory")
	}
	l := &layout{}
	if err := l.add(root, root); err != nil {
		return nil, err
	}
	return l, nil
}

// add assigns positions to a new node and everything below it.
func (l *layout) add(n, parent *Node) error {
	if len(l.nodes) == math.MaxUint32 {
		return fmt.Errorf("more than 2^32 files")
	}
	p := &plan{nlink: 1, ino: uint32(len(l.nodes) + 1), parent: parent}
	n.plan = p
	l.nodes = append(l.nodes, n)
	tail := 0
	switch n.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		if err := p.addNames(n); err != nil {
			return err
		}
		tail = int(p.dirSize)
	case unix.S_IFLNK:
		if len(n.Target) == 0 || len(n.Target) > MaxTarget {
			return fmt.Errorf("target of a symbolic link of %d bytes", len(n.Target))
		}
		tail = len(n.Target)
	case unix.S_IFREG:
		if n.Size > 0 {
			l.files = append(l.files, n)
		}
	}
	l.place(n, tail)
	for _, name := range p.names {
		if name == "." || name == ".." {
			continue
		}
		c := n.Children[name]
		if c.IsDir() {
			p.nlink++
		}
		if c.plan != nil {
			if c.IsDir() {
				return fmt.Errorf("directory %q is in two places", name)
			}
			c.plan.nlink++
			continue
		}
		if err := l.add(c, n); err != nil {
			return err
		}
	}
	return nil
}

// place assigns an inode number, so that neither the inode nor inline data
// crosses a block boundary, which the format forbids.
func (l *layout) place(n *Node, tail int) {
	need := int64(inodeSize)
	if tail > maxInlineTail {
		l.large = append(l.large, n)
	} else if tail > 0 {
		n.plan.inline = true
		need += int64(tail)
	}
	if l.end%BlockSize+need > BlockSize {
		l.end = roundUp(l.end, BlockSize)
	}
	n.plan.nid = uint64(l.end / inodeSlot)
	l.end = roundUp(l.end+need, inodeSlot)
}

// addNames sorts a directory's names and computes the size of its entries.
func (p *plan) addNames(n *Node) error {
	p.nlink = 2
	p.names = make([]string, 0, len(n.Children)+2)
	p.names = append(p.names, ".", "..")
	for name := range n.Children {
		if name == "" || name == "." || name == ".." || len(name) > MaxName {
			return fmt.Errorf("a name of %d bytes cannot be stored", len(name))
		}
		p.names = append(p.names, name)
	}
	slices.Sort(p.names)
	blocks := 0
	p.eachBlock(func(names []string, used int) {
		p.dirSize = int64(blocks*BlockSize + used)
		blocks++
	})
	return nil
}

// eachBlock splits the names into groups that fit into a block, in order.
func (p *plan) eachBlock(f func(names []string, used int)) {
	start, used := 0, 0
	for i, name := range p.names {
		need := direntSize + len(name)
		if used+need > BlockSize {
			f(p.names[start:i], used)
			start, used = i, 0
		}
		used += need
	}
	f(p.names[start:], used)
}

// dirents returns the entries of a directory in on-disk form.
func dirents(n *Node) []byte {
	out := make([]byte, 0, n.plan.dirSize)
	n.plan.eachBlock(func(names []string, _ int) {
		out = append(out, make([]byte, int(roundUp(int64(len(out)), BlockSize))-len(out))...)
		nameOff := len(names) * direntSize
		for _, name := range names {
			c := n
			switch name {
			case ".":
			case "..":
				c = n.plan.parent
			default:
				c = n.Children[name]
			}
			out = binary.LittleEndian.AppendUint64(out, c.plan.nid)
			out = binary.LittleEndian.AppendUint16(out, uint16(nameOff))
			out = append(out, fileType(c.Mode), 0)
			nameOff += len(name)
		}
		for _, name := range names {
			out = append(out, name...)
		}
	})
	return out
}

// fileType returns the type of a directory entry.
func fileType(mode uint16) byte {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return 1
	case unix.S_IFDIR:
		return 2
	case unix.S_IFCHR:
		return 3
	case unix.S_IFBLK:
		return 4
	case unix.S_IFIFO:
		return 5
	case unix.S_IFSOCK:
		return 6
	case unix.S_IFLNK:
		return 7
	}
	return 0
}

// content returns the data of a directory or symbolic link.
func content(n *Node) []byte {
	if n.IsDir() {
		return dirents(n)
	}
	return []byte(n.Target)
}

// writeDirBlocks writes directories and links that are too large to be inline.
func (w *Writer) writeDirBlocks(l *layout) error {
	for _, n := range l.large {
		n.plan.block = uint32(w.Size() / BlockSize)
		if err := w.write(content(n)); err != nil {
			return err
		}
		if err := w.align(); err != nil {
			return err
		}
	}
	return nil
}

// writeInodes writes the inode area.
func (w *Writer) writeInodes(l *layout) error {
	base := w.Size()
	for _, n := range l.nodes {
		if gap := base + int64(n.plan.nid)*inodeSlot - w.Size(); gap > 0 {
			if err := w.write(zeros[:gap]); err != nil {
				return err
			}
		}
		if err := w.write(inode(n)); err != nil {
			return err
		}
		if n.plan.inline {
			if err := w.write(content(n)); err != nil {
				return err
			}
		}
	}
	return nil
}

// inode returns the extended inode of a node.
func inode(n *Node) []byte {
	var b [inodeSize]byte
	p, le := n.plan, binary.LittleEndian
	format, size, block := uint16(formatPlain), n.Size, n.Block
	switch n.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		size, block = p.dirSize, p.block
	case unix.S_IFLNK:
		size, block = int64(len(n.Target)), p.block
	case unix.S_IFREG:
	default: // FIFOs and sockets have neither data nor a device number
		size, block = 0, 0
	}
	if p.inline {
		format = formatInline
	}
	mtime, nsec := n.MTime, n.MTimeNsec
	if mtime < 0 || nsec >= 1e9 {
		mtime, nsec = max(mtime, 0), 0
	}
	le.PutUint16(b[0:], format)
	le.PutUint16(b[4:], n.Mode)
	le.PutUint64(b[8:], uint64(size))
	le.PutUint32(b[16:], block)
	le.PutUint32(b[20:], p.ino)
	le.PutUint32(b[24:], n.UID)
	le.PutUint32(b[28:], n.GID)
	le.PutUint64(b[32:], uint64(mtime))
	le.PutUint32(b[40:], nsec)
	le.PutUint32(b[44:], p.nlink)
	return b[:]
}

// superblock returns block 0. The root is the first inode, so its number is 0.
func superblock(l *layout, metaBlock, blocks uint32) []byte {
	block := make([]byte, BlockSize)
	b, le := block[superOffset:], binary.LittleEndian
	le.PutUint32(b[0:], superMagic)
	le.PutUint32(b[8:], compatChksum)
	b[12] = 12 // log2 of BlockSize
	le.PutUint16(b[14:], uint16(l.nodes[0].plan.nid))
	le.PutUint64(b[16:], uint64(len(l.nodes)))
	le.PutUint32(b[36:], blocks)
	le.PutUint32(b[40:], metaBlock)
	// The checksum is that of the block from the superblock on, with the checksum
	// field as 0, without the final inversion of CRC32C.
	le.PutUint32(b[4:], ^crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return block
}
