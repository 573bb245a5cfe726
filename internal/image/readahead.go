package image

import "io"

// readAhead reads from a reader in a goroutine, so that one core decompresses
// while another hashes and writes.
type readAhead struct {
	full chan chunk
	free chan []byte
	stop chan struct{}
	cur  chunk
	pos  int
}

// chunk is data, and the error that followed it.
type chunk struct {
	data []byte
	err  error
}

const (
	aheadChunk  = 256 << 10
	aheadChunks = 4
)

// newReadAhead starts to read r. r must not be used before Close has returned.
func newReadAhead(r io.Reader) *readAhead {
	// Both channels have room for all chunks, so sending never blocks.
	a := &readAhead{full: make(chan chunk, aheadChunks), free: make(chan []byte, aheadChunks), stop: make(chan struct{})}
	for range aheadChunks {
		a.free <- make([]byte, aheadChunk)
	}
	go a.run(r)
	return a
}

func (a *readAhead) run(r io.Reader) {
	defer close(a.full)
	for {
		select {
		case <-a.stop:
			return
		case buf := <-a.free:
			n, err := fill(r, buf)
			a.full <- chunk{buf[:n], err}
			if err != nil {
				return
			}
		}
	}
}

// fill reads until buf is full or r fails. It returns r's own error, unlike
// io.ReadFull.
func fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

// Read returns what was read ahead.
func (a *readAhead) Read(p []byte) (int, error) {
	for a.pos == len(a.cur.data) {
		if a.cur.err != nil {
			return 0, a.cur.err
		}
		if a.cur.data != nil {
			a.free <- a.cur.data[:aheadChunk]
		}
		a.cur, a.pos = <-a.full, 0
	}
	n := copy(p, a.cur.data[a.pos:])
	a.pos += n
	return n, nil
}

// Close stops reading ahead and waits until r is no longer used.
func (a *readAhead) Close() error {
	close(a.stop)
	for range a.full {
	}
	return nil
}
