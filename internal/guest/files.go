package guest

import (
	"context"
	"errors"
	"io"
	"iter"
	"sync"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest/wire"
	"github.com/atoll-run/atoll/sandbox"
)

// maxFileInfo limits the bytes that a guest may send about one file.
const maxFileInfo = 64 << 10

var (
	_ driver.FileSystem     = (*Client)(nil)
	_ driver.Archiver       = (*Client)(nil)
	_ driver.Watcher        = (*Client)(nil)
	_ driver.Overwriter     = (*Client)(nil)
	_ driver.Describer      = (*Client)(nil)
	_ driver.ProcessManager = (*Client)(nil)
)

// Stat implements driver.FileSystem.
func (c *Client) Stat(ctx context.Context, path string) (sandbox.FileInfo, error) {
	var e wire.Encoder
	e.String(path)
	b, err := c.callFile(ctx, wire.Stat, e.B, path)
	if err != nil {
		return sandbox.FileInfo{}, c.failed("stat", path, err)
	}
	info, err := takeFile(b, path)
	return info, c.failed("stat", path, err)
}

// openFile is open for requests with paths.
func (c *Client) openFile(ctx context.Context, m wire.Method, request []byte, paths ...string) (*wire.Op, error) {
	for _, p := range paths {
		if err := sandbox.ValidatePath("path", p); err != nil {
			return nil, err
		}
	}
	return c.open(ctx, m, request)
}

// callFile is call for requests with paths.
func (c *Client) callFile(ctx context.Context, m wire.Method, request []byte, paths ...string) ([]byte, error) {
	op, err := c.openFile(ctx, m, request, paths...)
	if err != nil {
		return nil, err
	}
	return await(ctx, op)
}

// takeFile decodes the guest's description of the file at path.
func takeFile(b []byte, path string) (sandbox.FileInfo, error) {
	d := wire.Decoder{B: b}
	info := wire.TakeFile(&d)
	info.Path = path
	return info, d.End()
}

// List implements driver.FileSystem.
func (c *Client) List(ctx context.Context, path string, opts driver.ListOptions) iter.Seq2[sandbox.FileInfo, error] {
	return func(yield func(sandbox.FileInfo, error) bool) {
		each := func(d *wire.Decoder) (bool, error) {
			info := wire.TakeFile(d)
			if err := checkEntry(d, &info); err != nil {
				return false, err
			}
			return yield(info, nil), nil
		}
		if err := c.listing(ctx, wire.List, path, opts.Depth, each); err != nil {
			yield(sandbox.FileInfo{}, c.failed("list", path, err))
		}
	}
}

// Describe implements driver.Describer.
func (c *Client) Describe(ctx context.Context, path string, depth int) iter.Seq2[sandbox.FileDetails, error] {
	return func(yield func(sandbox.FileDetails, error) bool) {
		each := func(d *wire.Decoder) (bool, error) {
			info := wire.TakeDetails(d)
			if err := checkEntry(d, &info.FileInfo); err != nil {
				return false, err
			}
			return yield(info, nil), nil
		}
		if err := c.listing(ctx, wire.Describe, path, depth, each); err != nil {
			yield(sandbox.FileDetails{}, c.failed("stat", path, err))
		}
	}
}

func checkEntry(d *wire.Decoder, info *sandbox.FileInfo) error {
	err := d.End()
	if err == nil && !wire.LocalPath(info.Path) {
		err = errNonsense
	}
	return err
}

// listing calls each for every record that an operation sends, until there are
// no more or each returns false.
func (c *Client) listing(ctx context.Context, m wire.Method, path string, depth int, each func(*wire.Decoder) (bool, error)) error {
	var e wire.Encoder
	e.String(path)
	e.Int(int64(depth))
	op, err := c.openFile(ctx, m, e.B, path)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, op.Abandon)
	defer stop()
	defer op.Abandon()
	err = records(op, maxFileInfo, func(d *wire.Decoder) error {
		more, err := each(d)
		if err == nil && !more {
			err = errStopped
		}
		return err
	})
	if err == errStopped {
		return nil
	}
	return because(ctx, err)
}

var errStopped = errors.New("stopped")

// because returns the context's error if there is one, else err.
func because(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Read implements driver.FileSystem.
func (c *Client) Read(ctx context.Context, path string, opts driver.ReadOptions) (io.ReadCloser, sandbox.FileInfo, error) {
	var e wire.Encoder
	e.String(path)
	e.Int(opts.Offset)
	e.Int(opts.Length)
	op, err := c.openFile(ctx, wire.Read, e.B, path)
	if err != nil {
		return nil, sandbox.FileInfo{}, c.failed("read", path, err)
	}
	b, err := message(ctx, op, wire.MsgInfo)
	if err != nil {
		return nil, sandbox.FileInfo{}, c.failed("read", path, err)
	}
	info, err := takeFile(b, path)
	if err != nil {
		op.Abandon()
		return nil, sandbox.FileInfo{}, c.failed("read", path, err)
	}
	r := &fileReader{client: c, ctx: ctx, op: op, path: path}
	r.stop = context.AfterFunc(ctx, op.Abandon)
	return r, info, nil
}

// fileReader reads the content of a file. Canceling the context of Read ends
// it.
type fileReader struct {
	client *Client
	ctx    context.Context
	op     *wire.Op
	path   string
	stop   func() bool
	once   sync.Once
}

func (r *fileReader) Read(p []byte) (int, error) {
	n, err := r.op.In(0).Read(p)
	return n, r.failed(err)
}

// WriteTo saves io.Copy a buffer.
func (r *fileReader) WriteTo(w io.Writer) (int64, error) {
	sink := &sinkErr{w: w}
	n, err := r.op.In(0).WriteTo(sink)
	if sink.err != nil {
		return n, sink.err
	}
	return n, r.failed(err)
}

func (r *fileReader) failed(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return r.client.failed("read", r.path, because(r.ctx, err))
}

func (r *fileReader) Close() error {
	r.once.Do(func() {
		r.stop()
		r.op.Abandon()
	})
	return nil
}

// Write implements driver.FileSystem.
func (c *Client) Write(ctx context.Context, path string, r io.Reader, opts driver.WriteOptions) (sandbox.FileInfo, error) {
	var e wire.Encoder
	e.String(path)
	e.Uint(uint64(opts.Mode))
	e.String(opts.Owner)
	e.Bool(opts.NoParents)
	e.Bool(opts.NoReplace)
	return c.write(ctx, path, r, &e)
}

// Overwrite implements driver.Overwriter.
func (c *Client) Overwrite(ctx context.Context, path string, r io.Reader, opts driver.OverwriteOptions) (sandbox.FileInfo, error) {
	if !c.conn.Overwrites() {
		return sandbox.FileInfo{}, c.failed("write", path, &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "the sandbox was started by an earlier version"})
	}
	var e wire.Encoder
	e.String(path)
	e.Uint(0)
	e.String(opts.Owner)
	e.Bool(false)
	e.Bool(false)
	(&wire.Overwrite{Namespace: opts.Namespace, Attributes: opts.Attributes}).Encode(&e)
	return c.write(ctx, path, r, &e)
}

// write sends a write request and the content.
func (c *Client) write(ctx context.Context, path string, r io.Reader, e *wire.Encoder) (sandbox.FileInfo, error) {
	b, err := c.upload(ctx, wire.Write, e.B, path, r)
	if err != nil {
		return sandbox.FileInfo{}, c.uploadFailed("write", path, err)
	}
	info, err := takeFile(b, path)
	return info, c.failed("write", path, err)
}

// sourceError is an error of the caller's reader.
type sourceError struct{ error }

func (c *Client) uploadFailed(op, path string, err error) error {
	var source sourceError
	if errors.As(err, &source) {
		return source.error
	}
	return c.failed(op, path, err)
}

// upload performs an operation that sends all of r. The guest acts on it only
// after the end of r.
func (c *Client) upload(ctx context.Context, m wire.Method, request []byte, path string, r io.Reader) ([]byte, error) {
	op, err := c.openFile(ctx, m, request, path)
	if err != nil {
		return nil, err
	}
	// In a goroutine, because the reader may block forever although the guest has
	// already refused.
	source := make(chan error, 1)
	go func() { source <- feed(op, r) }()
	select {
	case err = <-source:
	case <-op.Over():
		return op.Result()
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		op.Abandon()
		return nil, because(ctx, err)
	}
	return await(ctx, op)
}

// feed sends all of r and its end. If the other side stops reading, feed
// returns nil.
func feed(op *wire.Op, r io.Reader) error {
	for sent := int64(0); ; {
		frame := op.NextFrame(sent)
		n, err := fill(r, frame[wire.HeaderLen:])
		sent += int64(n)
		if n > 0 {
			if op.SendFrame(0, frame[:wire.HeaderLen+n]) != nil {
				return nil
			}
		} else {
			wire.PutFrame(frame)
		}
		switch {
		case err == io.EOF:
			_ = op.CloseWrite(0)
			return nil
		case err != nil:
			return sourceError{err}
		}
	}
}

// fill is io.ReadFull, but returns the reader's own error.
func fill(r io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var k int
		k, err = r.Read(p[n:])
		n += k
	}
	return n, err
}

// Mkdir implements driver.FileSystem.
func (c *Client) Mkdir(ctx context.Context, path string, opts driver.MkdirOptions) error {
	var e wire.Encoder
	e.String(path)
	e.Uint(uint64(opts.Mode))
	e.String(opts.Owner)
	e.Bool(opts.Parents)
	_, err := c.callFile(ctx, wire.Mkdir, e.B, path)
	return c.failed("mkdir", path, err)
}

// Remove implements driver.FileSystem.
func (c *Client) Remove(ctx context.Context, path string, recursive bool) error {
	var e wire.Encoder
	e.String(path)
	e.Bool(recursive)
	_, err := c.callFile(ctx, wire.Remove, e.B, path)
	return c.failed("remove", path, err)
}

// Move implements driver.FileSystem.
func (c *Client) Move(ctx context.Context, from, to string, overwrite bool) error {
	var e wire.Encoder
	e.String(from)
	e.String(to)
	e.Bool(overwrite)
	_, err := c.callFile(ctx, wire.Move, e.B, from, to)
	return c.failed("move", from, err)
}

// Export implements driver.Archiver.
func (c *Client) Export(ctx context.Context, path string, w io.Writer, opts driver.ExportOptions) error {
	var e wire.Encoder
	e.String(path)
	e.Strings(opts.Exclude)
	op, err := c.openFile(ctx, wire.Export, e.B, path)
	if err != nil {
		return c.failed("export", path, err)
	}
	stop := context.AfterFunc(ctx, op.Abandon)
	defer stop()
	defer op.Abandon()
	sink := &sinkErr{w: w}
	_, err = op.In(0).WriteTo(sink)
	if sink.err != nil {
		return sink.err
	}
	return c.failed("export", path, because(ctx, err))
}

// Import implements driver.Archiver.
func (c *Client) Import(ctx context.Context, path string, r io.Reader, opts driver.ImportOptions) error {
	var e wire.Encoder
	e.String(path)
	e.String(opts.Owner)
	_, err := c.upload(ctx, wire.Import, e.B, path, r)
	return c.uploadFailed("import", path, err)
}

// ImportLayer unpacks a tar stream over the root of the sandbox as a layer of
// an image: it replaces existing entries, applies whiteouts and creates device
// nodes. It leaves out members below mounted file systems.
func (c *Client) ImportLayer(ctx context.Context, r io.Reader) error {
	_, err := c.upload(ctx, wire.ImportLayer, nil, "/", r)
	return c.uploadFailed("import", "/", err)
}

// Watch implements driver.Watcher.
func (c *Client) Watch(ctx context.Context, path string, recursive bool) (<-chan sandbox.FileEvent, error) {
	var e wire.Encoder
	e.String(path)
	e.Bool(recursive)
	op, err := c.openFile(ctx, wire.Watch, e.B, path)
	if err != nil {
		return nil, c.failed("watch", path, err)
	}
	if _, err := message(ctx, op, wire.MsgReady); err != nil {
		return nil, c.failed("watch", path, err)
	}
	events := make(chan sandbox.FileEvent, 64)
	stop := context.AfterFunc(ctx, op.Abandon)
	go func() {
		defer close(events)
		defer op.Abandon()
		defer stop()
		_ = records(op, maxFileInfo, func(d *wire.Decoder) error {
			ev := wire.TakeEvent(d)
			if err := d.End(); err != nil {
				return err
			}
			select {
			case events <- ev:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	return events, nil
}
