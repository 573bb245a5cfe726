package e2b

import (
	"context"
	"io"
	"iter"
	"net"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// This file hands to the guest what is done inside the sandbox, connecting with
// it first if the connection was lost or not made yet.

// use calls f with the guest.
func use[T any](ctx context.Context, in *Instance, f func(*guest.Client) (T, error)) (T, error) {
	c, err := in.reach(ctx)
	if err != nil {
		var zero T
		return zero, err
	}
	return f(c)
}

// do is use for what returns only an error.
func do(ctx context.Context, in *Instance, f func(*guest.Client) error) error {
	_, err := use(ctx, in, func(c *guest.Client) (struct{}, error) { return struct{}{}, f(c) })
	return err
}

// Exec implements driver.Instance.
func (in *Instance) Exec(ctx context.Context, cmd *sandbox.Command) (driver.Process, error) {
	return use(ctx, in, func(c *guest.Client) (driver.Process, error) { return c.Exec(ctx, cmd) })
}

// Processes implements driver.ProcessManager.
func (in *Instance) Processes(ctx context.Context) ([]sandbox.ProcessInfo, error) {
	return use(ctx, in, func(c *guest.Client) ([]sandbox.ProcessInfo, error) { return c.Processes(ctx) })
}

// Rejoin implements driver.Rejoiner.
func (in *Instance) Rejoin(ctx context.Context, id string, from driver.Cursor, skip bool) (driver.Process, driver.Cursor, error) {
	at := from
	p, err := use(ctx, in, func(c *guest.Client) (p driver.Process, err error) {
		p, at, err = c.Rejoin(ctx, id, from, skip)
		return p, err
	})
	return p, at, err
}

// Reconnect implements driver.ProcessManager.
func (in *Instance) Reconnect(ctx context.Context, id string) (driver.Process, error) {
	return use(ctx, in, func(c *guest.Client) (driver.Process, error) { return c.Reconnect(ctx, id) })
}

// Logs implements driver.ProcessManager.
func (in *Instance) Logs(ctx context.Context, id string, opts driver.LogOptions) (driver.LogReader, error) {
	return use(ctx, in, func(c *guest.Client) (driver.LogReader, error) { return c.Logs(ctx, id, opts) })
}

// Kill implements driver.ProcessManager.
func (in *Instance) Kill(ctx context.Context, id string, sig int) error {
	return do(ctx, in, func(c *guest.Client) error { return c.Kill(ctx, id, sig) })
}

// Dial implements driver.Dialer. It reaches services that speak anything, and
// those that listen on the loopback only.
func (in *Instance) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	return use(ctx, in, func(c *guest.Client) (net.Conn, error) { return c.Dial(ctx, port) })
}

// Stat implements driver.FileSystem.
func (in *Instance) Stat(ctx context.Context, path string) (sandbox.FileInfo, error) {
	return use(ctx, in, func(c *guest.Client) (sandbox.FileInfo, error) { return c.Stat(ctx, path) })
}

// List implements driver.FileSystem.
func (in *Instance) List(ctx context.Context, path string, opts driver.ListOptions) iter.Seq2[sandbox.FileInfo, error] {
	return func(yield func(sandbox.FileInfo, error) bool) {
		c, err := in.reach(ctx)
		if err != nil {
			yield(sandbox.FileInfo{}, err)
			return
		}
		c.List(ctx, path, opts)(yield)
	}
}

// Read implements driver.FileSystem.
func (in *Instance) Read(ctx context.Context, path string, opts driver.ReadOptions) (r io.ReadCloser, info sandbox.FileInfo, err error) {
	err = do(ctx, in, func(c *guest.Client) error {
		r, info, err = c.Read(ctx, path, opts)
		return err
	})
	return r, info, err
}

// Write implements driver.FileSystem.
func (in *Instance) Write(ctx context.Context, path string, r io.Reader, opts driver.WriteOptions) (sandbox.FileInfo, error) {
	return use(ctx, in, func(c *guest.Client) (sandbox.FileInfo, error) { return c.Write(ctx, path, r, opts) })
}

// Mkdir implements driver.FileSystem.
func (in *Instance) Mkdir(ctx context.Context, path string, opts driver.MkdirOptions) error {
	return do(ctx, in, func(c *guest.Client) error { return c.Mkdir(ctx, path, opts) })
}

// Remove implements driver.FileSystem.
func (in *Instance) Remove(ctx context.Context, path string, recursive bool) error {
	return do(ctx, in, func(c *guest.Client) error { return c.Remove(ctx, path, recursive) })
}

// Move implements driver.FileSystem.
func (in *Instance) Move(ctx context.Context, from, to string, overwrite bool) error {
	return do(ctx, in, func(c *guest.Client) error { return c.Move(ctx, from, to, overwrite) })
}

// Export implements driver.Archiver.
func (in *Instance) Export(ctx context.Context, path string, w io.Writer, opts driver.ExportOptions) error {
	return do(ctx, in, func(c *guest.Client) error { return c.Export(ctx, path, w, opts) })
}

// Import implements driver.Archiver.
func (in *Instance) Import(ctx context.Context, path string, r io.Reader, opts driver.ImportOptions) error {
	return do(ctx, in, func(c *guest.Client) error { return c.Import(ctx, path, r, opts) })
}

// Watch implements driver.Watcher.
func (in *Instance) Watch(ctx context.Context, path string, recursive bool) (<-chan sandbox.FileEvent, error) {
	return use(ctx, in, func(c *guest.Client) (<-chan sandbox.FileEvent, error) { return c.Watch(ctx, path, recursive) })
}
