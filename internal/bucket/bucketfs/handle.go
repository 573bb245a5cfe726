package bucketfs

import (
	"context"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// handle is an open file.
type handle struct {
	fs   *FileSystem
	node *node // for a read-only handle
	file *file // for a writing handle

	mu     sync.Mutex
	opened bool
	object object        // the object being read
	body   io.ReadCloser // positioned at offset at
	at     int64
	stop   context.CancelFunc
}

var _ = (interface {
	fs.FileReader
	fs.FileWriter
	fs.FileFlusher
	fs.FileReleaser
})((*handle)(nil))

// maxSkip is how many bytes are skipped by reading instead of with a new
// request.
const maxSkip = 1 << 20

func (h *handle) key() string {
	if h.file != nil {
		return h.file.name()
	}
	return h.node.key()
}

// Read reads from the spool or from the bucket.
func (h *handle) Read(_ context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	f := h.file
	if f == nil {
		f = h.fs.writing(h.key())
	}
	if f != nil {
		if n, there, err := f.read(dest, off); there || err != nil {
			return fuse.ReadResultData(dest[:n]), number(err)
		}
	}
	n, err := h.stream(dest, off)
	return fuse.ReadResultData(dest[:n]), number(err)
}

// stream reads from the bucket. Sequential reads use the same response.
func (h *handle) stream(dest []byte, off int64) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.opened || h.file != nil { // a writer sees uploaded changes
		o, err := h.fs.bucket.head(h.fs.life, h.key())
		if err != nil {
			return 0, err
		}
		if o.etag != h.object.etag {
			h.close()
		}
		h.object, h.opened = o, true
	}
	if off >= h.object.size {
		return 0, nil
	}
	if h.body != nil && off > h.at && off-h.at <= maxSkip {
		n, err := io.CopyN(io.Discard, h.body, off-h.at)
		if h.at += n; err != nil {
			h.close()
		}
	}
	if h.body == nil || off != h.at {
		h.close()
		life, stop := context.WithCancel(h.fs.life)
		body, err := h.fs.bucket.get(life, h.object, off)
		if err != nil {
			stop()
			return 0, err
		}
		h.body, h.at, h.stop = body, off, stop
	}
	return h.fill(dest)
}

// fill reads from the response, with a timeout for stalls.
func (h *handle) fill(dest []byte) (int, error) {
	stuck := time.AfterFunc(lookTimeout, h.stop)
	defer stuck.Stop()
	want := min(int64(len(dest)), h.object.size-h.at)
	n, err := io.ReadFull(h.body, dest[:want])
	h.at += int64(n)
	if err != nil {
		h.close()
		return 0, errno(err)
	}
	return n, nil
}

// close closes the response. The caller holds h.mu.
func (h *handle) close() {
	if h.body != nil {
		h.stop()
		_ = h.body.Close() // errors after reading do not matter
		h.body = nil
	}
}

// Write writes to the file.
func (h *handle) Write(_ context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	if h.file == nil {
		return 0, syscall.EBADF
	}
	n, err := h.file.write(h.fs.life, data, off)
	return uint32(n), number(err)
}

// Flush is called when a descriptor is closed.
func (h *handle) Flush(context.Context) syscall.Errno {
	if h.file == nil {
		return 0
	}
	return number(h.file.upload(h.fs.life))
}

// Release is called when the last descriptor is closed.
func (h *handle) Release(context.Context) syscall.Errno {
	h.mu.Lock()
	h.close()
	h.mu.Unlock()
	if h.file != nil {
		h.file.release()
	}
	return 0
}
