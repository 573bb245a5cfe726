package workspace

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"

	chunkers "github.com/PlakarKorp/go-cdc-chunkers"
	_ "github.com/PlakarKorp/go-cdc-chunkers/chunkers/fastcdc" // the algorithm used by cut
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/workspace/chunk"
)

// Files up to whole bytes are one chunk. Larger files are cut at
// content-defined borders into pieces of these sizes, so that an insertion
// changes only nearby pieces.
const (
	whole     = 1 << 20
	leastCut  = 256 << 10
	normalCut = 1 << 20
	mostCut   = 4 << 20
)

// keeper stores contents. It is used by one goroutine at a time.
type keeper struct {
	root   *os.Root
	codec  *chunk.Codec
	keep   func([]byte) (chunk.ID, error)
	buffer []byte
	cutter *chunkers.Chunker
}

// attempts is how often a file is read that changes during reading. After that,
// the last read is stored, and the next Persist reads the file again.
const attempts = 3

// read stores a regular file and completes its entry. It reports whether the
// file was unchanged during reading. If the file was removed or replaced by
// something else, it returns errVanished.
func (k *keeper) read(ctx context.Context, e *entry) (stable bool, err error) {
	for range attempts {
		if stable, err = k.try(ctx, e); stable || err != nil && !errors.Is(err, errVanished) {
			break
		}
	}
	return stable, err
}

var errVanished = errors.New("the file is gone")

func (k *keeper) try(ctx context.Context, e *entry) (stable bool, err error) {
	f, before, err := k.open(e.path)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }() // errors of closing a read file do not matter
	stat := before.Sys().(*syscall.Stat_t)
	fresh := newEntry("", e.name, before)
	e.mode, e.uid, e.gid, e.modified, e.state = fresh.mode, fresh.uid, fresh.gid, fresh.modified, fresh.state
	if e.xattrs, err = readXattrs(f); err != nil {
		return false, unreadable(e.path, err)
	}
	if e.content, err = k.content(ctx, f, stat); err != nil {
		return false, err
	}
	after, err := f.Stat()
	if err != nil {
		return false, unreadable(e.path, err)
	}
	return stateOf(after.Sys().(*syscall.Stat_t)) == e.state, nil
}

// open opens a regular file by name. If it was replaced, open must neither
// block (FIFO) nor follow a link.
func (k *keeper) open(name string) (*os.File, fs.FileInfo, error) {
	f, err := k.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	named, lookErr := k.root.Lstat(name)
	if err != nil {
		if displaced(err) || lookErr != nil || !named.Mode().IsRegular() {
			return nil, nil, errVanished
		}
		return nil, nil, unreadable(name, err)
	}
	info, err := f.Stat()
	if err == nil && (lookErr != nil || !info.Mode().IsRegular() || !os.SameFile(named, info)) {
		err = errVanished
	}
	if err != nil {
		_ = f.Close() // it was not read
		return nil, nil, err
	}
	return f, info, nil
}

// displaced reports whether opening a name failed because it was removed or
// replaced by another type of file. The file may exist again by now. A link
// that leads outside is the only error of an os.Root without an errno.
func displaced(err error) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return !errors.Is(err, fs.ErrClosed)
	}
	switch errno {
	case unix.ENOENT, unix.ELOOP, unix.ENXIO, unix.ENOTDIR:
		return true
	}
	return false
}

// content stores the content of an open file. Holes are detected and not read.
func (k *keeper) content(ctx context.Context, f *os.File, stat *syscall.Stat_t) (pieces []piece, err error) {
	if stat.Size == 0 {
		return nil, nil
	}
	if stat.Blocks*512 >= stat.Size {
		return k.extent(ctx, f, nil, 0, stat.Size)
	}
	for at := int64(0); at < stat.Size; {
		start, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			start = stat.Size // the rest is a hole
		} else if err != nil {
			return nil, unreadable(f.Name(), err)
		}
		if start = min(start, stat.Size); start > at {
			pieces = append(pieces, piece{length: start - at})
		}
		if start == stat.Size {
			break
		}
		end, err := f.Seek(start, unix.SEEK_HOLE)
		if err != nil {
			return nil, unreadable(f.Name(), err)
		}
		if end = min(end, stat.Size); end <= start {
			break // truncated meanwhile
		}
		if pieces, err = k.extent(ctx, f, pieces, start, end-start); err != nil {
			return nil, err
		}
		at = end
	}
	return pieces, nil
}

// extent stores a part of a file, or what still exists of it.
func (k *keeper) extent(ctx context.Context, f *os.File, pieces []piece, offset, length int64) ([]piece, error) {
	more, err := k.stream(ctx, io.NewSectionReader(f, offset, length), length)
	var errno syscall.Errno
	if errors.As(err, &errno) {
		err = unreadable(f.Name(), err)
	}
	return append(pieces, more...), err
}

// stream stores at most length bytes.
func (k *keeper) stream(ctx context.Context, source io.Reader, length int64) (pieces []piece, err error) {
	next := k.whole(source)
	if length > whole {
		if err := k.cut(source); err != nil {
			return nil, err
		}
		next = k.cutter.Next
	}
	for ctx.Err() == nil {
		part, err := next()
		if err != nil && err != io.EOF {
			return nil, err
		}
		if len(part) > 0 {
			id, err := k.keep(part)
			if err != nil {
				return nil, err
			}
			pieces = append(pieces, piece{id, int64(len(part))})
		}
		if err == io.EOF {
			return pieces, nil
		}
	}
	return nil, ctx.Err()
}

// whole reads a file that is not cut.
func (k *keeper) whole(source io.Reader) func() ([]byte, error) {
	return func() ([]byte, error) {
		if k.buffer == nil {
			k.buffer = make([]byte, whole)
		}
		n, err := io.ReadFull(source, k.buffer)
		if err == io.ErrUnexpectedEOF || err == nil {
			err = io.EOF
		}
		return k.buffer[:n], err
	}
}

// cut resets the cutter to a new source, reusing its large buffers.
func (k *keeper) cut(source io.Reader) (err error) {
	if k.cutter != nil {
		k.cutter.Reset(source)
		return nil
	}
	k.cutter, err = chunkers.NewChunker("fastcdc-v1.0.0", source, &chunkers.ChunkerOpts{
		MinSize: leastCut, NormalSize: normalCut, MaxSize: mostCut, Key: k.codec.Borders(),
	})
	return err
}
