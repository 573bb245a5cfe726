// Package mkfs writes uncompressed EROFS images for the sandbox kernel.
//
// It is not a general mkfs. It exists because the sandbox kernel's EROFS needs
// three things that the library we use for reading images cannot write: regular
// files that are never inline (the kernel cannot map those into memory), no
// extended attributes (the kernel refuses such inodes), and hard links that
// share an inode. It also writes file data once, to its final position, so that
// layers can be streamed.
//
// The on-disk order is: superblock, data of files, blocks of large directories,
// inodes. The superblock is written last, so an incomplete image is never
// valid. See https://docs.kernel.org/filesystems/erofs.html.
package mkfs

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sort"

	"golang.org/x/sys/unix"
)

// BlockSize is the block size of every image. It must be the page size.
const BlockSize = 4096

// MaxName is the maximum length of a directory entry's name, in bytes.
const MaxName = 255

// MaxTarget is the maximum length of a symbolic link's target, in bytes.
const MaxTarget = 4095

// Node is a file of the tree to write. The same *Node under two names is a hard
// link. Each type uses only some of the fields.
type Node struct {
	Mode      uint16 // type and permission bits, as in stat(2)
	UID, GID  uint32
	MTime     int64 // seconds since 1970; earlier times are written as 1970
	MTimeNsec uint32
	Size      int64            // bytes of a regular file, as returned by WriteFile
	Block     uint32           // its first block, as returned by WriteFile
	Target    string           // of a symbolic link
	Children  map[string]*Node // of a directory

	plan *plan // set by Finish
}

// IsDir, IsRegular and IsSymlink report the type of a node.
func (n *Node) IsDir() bool     { return n.Mode&unix.S_IFMT == unix.S_IFDIR }
func (n *Node) IsRegular() bool { return n.Mode&unix.S_IFMT == unix.S_IFREG }
func (n *Node) IsSymlink() bool { return n.Mode&unix.S_IFMT == unix.S_IFLNK }

// Writer writes one image: call WriteFile any number of times, then Finish
// once. It is not safe for concurrent use.
type Writer struct {
	f    *os.File
	buf  []byte // not written yet; its position is pos
	pos  int64
	done bool
}

// bufSize is the size of writes, and the unit in which zeros become holes.
const bufSize = 1 << 20

// NewWriter returns a Writer to an empty file. The caller syncs and closes the
// file after Finish.
func NewWriter(f *os.File) *Writer {
	// Block 0 is reserved for the superblock.
	return &Writer{f: f, buf: make([]byte, 0, bufSize), pos: BlockSize}
}

// Size returns the current size of the image in bytes.
func (w *Writer) Size() int64 { return w.pos + int64(len(w.buf)) }

// WriteFile stores the content of a regular file and returns its first block
// and size. Data that no node refers to at Finish is freed. After an error the
// image is unusable.
func (w *Writer) WriteFile(r io.Reader) (block uint32, size int64, err error) {
	start := w.Size()
	for {
		if len(w.buf) == cap(w.buf) {
			if err := w.flush(); err != nil {
				return 0, 0, err
			}
		}
		n, err := r.Read(w.buf[len(w.buf):cap(w.buf)])
		w.buf = w.buf[:len(w.buf)+n]
		size += int64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, 0, err
		}
	}
	if size == 0 {
		return 0, 0, nil
	}
	if start/BlockSize > math.MaxUint32-1 {
		return 0, 0, errors.New("erofs image has more than 2^32 blocks")
	}
	return uint32(start / BlockSize), size, w.align()
}

// write appends p.
func (w *Writer) write(p []byte) error {
	for len(p) > 0 {
		if len(w.buf) == cap(w.buf) {
			if err := w.flush(); err != nil {
				return err
			}
		}
		n := copy(w.buf[len(w.buf):cap(w.buf)], p)
		w.buf = w.buf[:len(w.buf)+n]
		p = p[n:]
	}
	return nil
}

var zeros [BlockSize]byte

// align appends zeros up to the next block.
func (w *Writer) align() error {
	if rest := w.Size() % BlockSize; rest != 0 {
		return w.write(zeros[:BlockSize-rest])
	}
	return nil
}

// flush writes the buffer, or leaves a hole if it contains only zeros.
func (w *Writer) flush() error {
	if !allZero(w.buf) {
		if _, err := w.f.WriteAt(w.buf, w.pos); err != nil {
			return fmt.Errorf("write erofs image: %w", err)
		}
	}
	w.pos += int64(len(w.buf))
	w.buf = w.buf[:0]
	return nil
}

func allZero(p []byte) bool {
	for len(p) > 0 {
		n := min(len(p), len(zeros))
		if string(p[:n]) != string(zeros[:n]) {
			return false
		}
		p = p[n:]
	}
	return true
}

// Finish writes the tree and the superblock, and returns the size of the image.
// root must be a directory. The tree must not change meanwhile.
func (w *Writer) Finish(root *Node) (int64, error) {
	if w.done {
		return 0, errors.New("erofs image is finished already")
	}
	w.done = true
	l, err := newLayout(root)
	if err != nil {
		return 0, err
	}
	dataEnd := w.Size()
	if err := w.writeDirBlocks(l); err != nil {
		return 0, err
	}
	metaBlock := w.Size() / BlockSize
	if err := w.writeInodes(l); err != nil {
		return 0, err
	}
	if err := w.align(); err != nil {
		return 0, err
	}
	size := w.Size()
	if size/BlockSize > math.MaxUint32 {
		return 0, errors.New("erofs image has more than 2^32 blocks")
	}
	if err := w.flush(); err != nil {
		return 0, err
	}
	if err := w.f.Truncate(size); err != nil {
		return 0, fmt.Errorf("size erofs image: %w", err)
	}
	w.punch(l, dataEnd)
	if _, err := w.f.WriteAt(superblock(l, uint32(metaBlock), uint32(size/BlockSize)), 0); err != nil {
		return 0, fmt.Errorf("write superblock: %w", err)
	}
	return size, nil
}

// punch frees the blocks of files that a later layer replaced or removed. It
// only saves space, so a file system without support for it is fine.
func (w *Writer) punch(l *layout, dataEnd int64) {
	files := l.files
	sort.Slice(files, func(i, j int) bool { return files[i].Block < files[j].Block })
	at := int64(BlockSize)
	free := func(to int64) {
		if to > at {
			_ = unix.Fallocate(int(w.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, to-at)
		}
	}
	for _, n := range files {
		free(int64(n.Block) * BlockSize)
		at = max(at, int64(n.Block)*BlockSize+roundUp(n.Size, BlockSize))
	}
	free(dataEnd)
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }
