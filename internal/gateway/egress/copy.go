package egress

import (
	"io"
	"net"
	"sync"
	"sync/atomic"

	"github.com/atoll-run/atoll/internal/gateway/wire"
)

// Sizes of buffers, in bytes. A flow that rests, or says little, has a small
// one in each direction: there may be thousands of them.
const (
	smallBuffer  = 2 << 10
	mediumBuffer = 16 << 10
	// A multiple of what a packet to a sandbox carries beside its headers, so
	// that no crumbs are left over.
	largeBuffer = 4 * (wire.MTU - 52)
)

// maxLarge is how many large buffers are lent at once, to all sandboxes.
const maxLarge = heldBack / 2 / largeBuffer

var (
	mediumBuffers = sync.Pool{New: func() any { b := make([]byte, mediumBuffer); return &b }}
	largeBuffers  = sync.Pool{New: func() any { b := make([]byte, largeBuffer); return &b }}
	lentLarge     atomic.Int64
)

// splice copies both ways until both have ended.
func (f *flow) splice(in net.Conn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.copy(f.out, in, f.d.Limits.RequestBytes)
	}()
	f.copy(in, f.out, f.d.Limits.ResponseBytes)
	<-done
	f.finish()
}

// copy copies one way, at most so many bytes if there is a limit, and ends the
// direction.
func (f *flow) copy(dst, src net.Conn, limit int64) {
	n, err := pump(dst, src, limit)
	switch {
	case err != nil:
		f.end() // one side is gone, and so is the connection
	case limit > 0 && n == limit:
		f.cut(bytesReached)
	default:
		_ = closeWrite(dst)
	}
}

// pump copies until the end, or up to a limit if that is positive. It holds more
// than a small buffer only while there is much to copy.
func pump(dst io.Writer, src io.Reader, limit int64) (total int64, err error) {
	small := make([]byte, smallBuffer)
	var more *[]byte
	defer func() { giveBack(more) }()
	for buf := small; limit <= 0 || total < limit; {
		part := buf
		if left := limit - total; limit > 0 && int64(len(part)) > left {
			part = part[:left]
		}
		n, rerr := src.Read(part)
		if n > 0 {
			written, werr := dst.Write(part[:n])
			total += int64(written)
			if werr != nil {
				return total, werr
			}
		}
		switch {
		case rerr == io.EOF:
			return total, nil
		case rerr != nil:
			return total, rerr
		case more == nil && n == len(small):
			more = take()
			buf = *more
		case more != nil && n < len(small):
			giveBack(more)
			more, buf = nil, small
		}
	}
	return total, nil
}

// take lends a large buffer, or a medium one if too many of those are lent.
func take() *[]byte {
	if lentLarge.Add(1) <= maxLarge {
		return largeBuffers.Get().(*[]byte)
	}
	lentLarge.Add(-1)
	return mediumBuffers.Get().(*[]byte)
}

func giveBack(b *[]byte) {
	switch {
	case b == nil:
	case len(*b) == largeBuffer:
		lentLarge.Add(-1)
		largeBuffers.Put(b)
	default:
		mediumBuffers.Put(b)
	}
}

// copyBuffers lends buffers to a proxy, each for as long as a body lasts.
type copyBuffers struct{}

func (copyBuffers) Get() []byte  { return *take() }
func (copyBuffers) Put(b []byte) { giveBack(&b) }
