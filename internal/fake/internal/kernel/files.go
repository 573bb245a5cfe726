package kernel

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/atoll-run/atoll/internal/fake/internal/memfs"
)

// File is an open file of any kind. Blocking calls end with ErrKilled when
// their context does.
type File interface {
	Read(ctx context.Context, p []byte) (int, error)
	Write(ctx context.Context, p []byte) (int, error)
	Close()
}

// desc is an open file description, shared by the descriptors that refer to it.
type desc struct {
	File
	refs atomic.Int32
}

func newDesc(f File) *desc {
	d := &desc{File: f}
	d.refs.Store(1)
	return d
}

func (d *desc) dup() *desc {
	d.refs.Add(1)
	return d
}

func (d *desc) release() {
	if d.refs.Add(-1) == 0 {
		d.Close()
	}
}

// regular is an open regular file.
type regular struct{ *memfs.Handle }

func (r regular) Read(_ context.Context, p []byte) (int, error)  { return r.Handle.Read(p) }
func (r regular) Write(_ context.Context, p []byte) (int, error) { return r.Handle.Write(p) }
func (r regular) Close()                                         {}

// Regular returns the open regular file behind f, if it is one.
func Regular(f File) (*memfs.Handle, bool) {
	r, ok := f.(regular)
	return r.Handle, ok
}

type dirFile struct{}

func (dirFile) Read(context.Context, []byte) (int, error)  { return 0, syscall.EISDIR }
func (dirFile) Write(context.Context, []byte) (int, error) { return 0, syscall.EBADF }
func (dirFile) Close()                                     {}

type nullFile struct{}

// Null returns an open /dev/null.
func Null() File { return nullFile{} }

func (nullFile) Read(context.Context, []byte) (int, error)      { return 0, io.EOF }
func (nullFile) Write(_ context.Context, p []byte) (int, error) { return len(p), nil }
func (nullFile) Close()                                         {}

type zeroFile struct{}

func (zeroFile) Read(ctx context.Context, p []byte) (int, error) {
	if ctx.Err() != nil {
		return 0, ErrKilled
	}
	clear(p)
	return len(p), nil
}
func (zeroFile) Write(_ context.Context, p []byte) (int, error) { return len(p), nil }
func (zeroFile) Close()                                         {}

// Bytes returns a file to read from, for here-documents.
func Bytes(text string) File { return &bytesFile{rest: text} }

type bytesFile struct {
	mu   sync.Mutex
	rest string
}

func (b *bytesFile) Read(_ context.Context, p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rest == "" {
		return 0, io.EOF
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}
func (*bytesFile) Write(context.Context, []byte) (int, error) { return 0, syscall.EBADF }
func (*bytesFile) Close()                                     {}

// pipeSize is how much a pipe holds, as in Linux.
const pipeSize = 64 << 10

// Pipe is a byte stream of bounded size with counted ends.
type Pipe struct {
	mu      sync.Mutex
	buf     []byte // a ring
	start   int
	length  int
	readers int
	writers int
	everR   int // readers and writers ever, for the opening of a fifo
	everW   int
	wake    chan struct{} // closed at the next change, nil if nobody waits
}

// NewPipe returns a pipe without ends.
func NewPipe() *Pipe { return &Pipe{} }

func (p *Pipe) changed() {
	if p.wake != nil {
		close(p.wake)
		p.wake = nil
	}
}

// wait unlocks the pipe until something changes. It returns with the lock
// held, and reports whether ctx still lives.
func (p *Pipe) wait(ctx context.Context) bool {
	if p.wake == nil {
		p.wake = make(chan struct{})
	}
	wake := p.wake
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-wake:
		return true
	case <-ctx.Done():
		return false
	}
}

// Reader adds a reading end.
func (p *Pipe) Reader() File {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reader()
}

func (p *Pipe) reader() File {
	p.readers++
	p.everR++
	p.changed()
	return &pipeEnd{Pipe: p, reads: true}
}

// Writer adds a writing end.
func (p *Pipe) Writer() File {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.writer()
}

func (p *Pipe) writer() File {
	p.writers++
	p.everW++
	p.changed()
	return &pipeEnd{Pipe: p}
}

// openReader opens a fifo: it waits for a writer.
func (p *Pipe) openReader(ctx context.Context) (File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.reader()
	for before := p.everW; p.writers == 0 && p.everW == before; {
		if !p.wait(ctx) {
			p.readers--
			p.changed()
			return nil, ErrKilled
		}
	}
	return f, nil
}

// openWriter opens a fifo: it waits for a reader.
func (p *Pipe) openWriter(ctx context.Context) (File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.writer()
	for before := p.everR; p.readers == 0 && p.everR == before; {
		if !p.wait(ctx) {
			p.writers--
			p.changed()
			return nil, ErrKilled
		}
	}
	return f, nil
}

func (p *Pipe) read(ctx context.Context, b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.length == 0 {
		if p.writers == 0 || p.readers == 0 {
			return 0, io.EOF
		}
		if !p.wait(ctx) {
			return 0, ErrKilled
		}
	}
	n := copy(b, p.buf[p.start:min(p.start+p.length, len(p.buf))])
	p.start = (p.start + n) % len(p.buf)
	p.length -= n
	p.changed()
	return n, nil
}

func (p *Pipe) write(ctx context.Context, b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.buf == nil {
		p.buf = make([]byte, pipeSize)
	}
	done := 0
	for done < len(b) {
		if p.readers == 0 {
			return done, syscall.EPIPE
		}
		if p.length == len(p.buf) {
			if !p.wait(ctx) {
				return done, ErrKilled
			}
			continue
		}
		end := (p.start + p.length) % len(p.buf)
		room := len(p.buf) - p.length
		n := copy(p.buf[end:min(end+room, len(p.buf))], b[done:])
		p.length += n
		done += n
		p.changed()
	}
	return done, nil
}

// pipeEnd is one end of a pipe.
type pipeEnd struct {
	*Pipe
	reads  bool
	closed atomic.Bool
}

func (e *pipeEnd) Read(ctx context.Context, p []byte) (int, error) {
	if !e.reads {
		return 0, syscall.EBADF
	}
	return e.read(ctx, p)
}

func (e *pipeEnd) Write(ctx context.Context, p []byte) (int, error) {
	if e.reads {
		return 0, syscall.EBADF
	}
	if e.closed.Load() {
		return 0, syscall.EPIPE
	}
	return e.write(ctx, p)
}

func (e *pipeEnd) Close() {
	if e.closed.Swap(true) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reads {
		e.readers--
	} else {
		e.writers--
	}
	e.changed()
}
