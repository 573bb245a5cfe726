package egress

import (
	"io"
	"net"
	"sync"
	"sync/atomic"

	"github.com/atoll-run/atoll/internal/gateway/messages"
)

// Buffer sizes in bytes. Idle or slow flows have a small buffer in each
// direction, because there may be thousands of them.
const (
	smallBuffer  = 2 << 10
	mediumBuffer = 16 << 10
	// A multiple of a packet's payload, so that packets to the sandbox are full.
	largeBuffer = 4 * (messages.MTU - 52)
)

// maxLarge is the number of large buffers in use at once, for all sandboxes.
const maxLarge = heldBack / 2 / largeBuffer

var (
	mediumBuffers = sync.Pool{New: func() any { b := make([]byte, mediumBuffer); return &b }}
	largeBuffers  = sync.Pool{New: func() any { b := make([]byte, largeBuffer); return &b }}
	lentLarge     atomic.Int64
)

// splice copies in both directions until both have ended.
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

// copy copies in one direction, at most limit bytes if limit is positive, and
// then closes that direction.
func (f *flow) copy(dst, src net.Conn, limit int64) {
	n, err := pump(dst, src, limit)
	switch {
	case err != nil:
		f.end() // the connection has failed
	case limit > 0 && n == limit:
		f.cut(bytesReached)
	default:
		_ = closeWrite(dst)
	}
}

// pump copies until EOF, or up to a limit if that is positive. It uses a large
// buffer only while there is much to copy.
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

// take returns a large buffer, or a medium one if too many large ones are in
// use.
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

// copyBuffers lends buffers to a reverse proxy, each for one body.
type copyBuffers struct{}

func (copyBuffers) Get() []byte  { return *take() }
func (copyBuffers) Put(b []byte) { giveBack(&b) }
