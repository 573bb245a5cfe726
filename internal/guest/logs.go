package guest

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// Limits of a guest's lists.
const (
	maxProcesses   = 100_000
	maxProcessInfo = 128 << 10
)

// Processes implements driver.ProcessManager. Arguments are cut after 16 KiB.
func (c *Client) Processes(ctx context.Context) ([]sandbox.ProcessInfo, error) {
	op, err := c.open(ctx, wire.Processes, nil)
	if err != nil {
		return nil, c.failed("processes", "", err)
	}
	stop := context.AfterFunc(ctx, op.Abandon)
	defer stop()
	var list []sandbox.ProcessInfo
	err = records(op, maxProcessInfo, func(d *wire.Decoder) error {
		if len(list) == maxProcesses {
			return errNonsense
		}
		list = append(list, wire.TakeProcess(d))
		return d.End()
	})
	if err != nil {
		op.Abandon()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, c.failed("processes", "", err)
	}
	return list, nil
}

// records reads the length-prefixed records that a guest sends on lane 0.
func records(op *wire.Op, most int, each func(*wire.Decoder) error) error {
	r := &byteReader{r: op.In(0)}
	var buf []byte
	for {
		n, err := binary.ReadUvarint(r)
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case n > uint64(most):
			return errNonsense
		}
		if uint64(cap(buf)) < n {
			buf = make([]byte, n)
		}
		buf = buf[:n]
		if err := r.full(buf); err != nil {
			return err
		}
		if err := each(&wire.Decoder{B: buf}); err != nil {
			return err
		}
	}
}

// byteReader reads single bytes through a buffer.
type byteReader struct {
	r    io.Reader
	buf  [8 << 10]byte
	a, b int
}

func (r *byteReader) ReadByte() (byte, error) {
	if r.a == r.b {
		n, err := r.r.Read(r.buf[:])
		if err != nil {
			return 0, err
		}
		r.a, r.b = 0, n
	}
	r.a++
	return r.buf[r.a-1], nil
}

func (r *byteReader) full(p []byte) error {
	n := copy(p, r.buf[r.a:r.b])
	r.a += n
	_, err := io.ReadFull(r.r, p[n:])
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// Logs implements driver.ProcessManager.
func (c *Client) Logs(ctx context.Context, id string, opts driver.LogOptions) (driver.LogReader, error) {
	var e wire.Encoder
	e.String(id)
	e.Uint(uint64(max(0, opts.Tail)))
	e.Bool(opts.Follow)
	op, err := c.open(ctx, wire.Logs, e.B)
	if err != nil {
		return nil, c.failed("logs", id, err)
	}
	if _, err := message(ctx, op, wire.MsgReady); err != nil {
		return nil, c.failed("logs", id, err)
	}
	return &logReader{client: c, op: op, id: id}, nil
}

// logReader reads a log. Next and Close may be called concurrently.
type logReader struct {
	client *Client
	op     *wire.Op
	id     string
	mu     sync.Mutex
}

func (l *logReader) Next() (sandbox.LogChunk, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var h [wire.LogHeaderLen]byte
	if _, err := io.ReadFull(l.op.In(0), h[:]); err != nil {
		return sandbox.LogChunk{}, l.failed(err)
	}
	stream, dropped, n, err := wire.ParseLogHeader(h[:])
	if err != nil {
		l.op.Abandon()
		return sandbox.LogChunk{}, l.failed(err)
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(l.op.In(0), data); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return sandbox.LogChunk{}, l.failed(err)
	}
	return sandbox.LogChunk{Stream: stream, Data: data, Dropped: dropped}, nil
}

func (l *logReader) failed(err error) error {
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return l.client.failed("logs", l.id, err)
}

func (l *logReader) Close() error {
	l.op.Abandon()
	return nil
}
