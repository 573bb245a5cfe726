package guestkit

import (
	"context"
	"io"
	"iter"
	"net"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// Calls forwards calls to the guest. It is meant to be embedded: it implements
// driver.FileSystem, Archiver, Watcher, ProcessManager, Rejoiner and Dialer,
// and has Exec.
type Calls struct {
	// Use calls f with the guest's client when it is connected. It may replace the
	// error of f and end f's context. With lasting, the result of f stays in use,
	// so f's context must live as long as the caller's.
	Use func(ctx context.Context, lasting bool, f func(context.Context, *guest.Client) error) error
}

// call is Use for a call with a result.
func call[T any](ctx context.Context, c *Calls, lasting bool, f func(context.Context, *guest.Client) (T, error)) (out T, err error) {
	err = c.Use(ctx, lasting, func(ctx context.Context, client *guest.Client) (err error) {
		out, err = f(ctx, client)
		return err
	})
	return out, err
}

// Exec implements driver.Instance.
func (c *Calls) Exec(ctx context.Context, cmd *sandbox.Command) (driver.Process, error) {
	return call(ctx, c, false, func(ctx context.Context, g *guest.Client) (driver.Process, error) { return g.Exec(ctx, cmd) })
}

// Processes implements driver.ProcessManager.
func (c *Calls) Processes(ctx context.Context) ([]sandbox.ProcessInfo, error) {
	return call(ctx, c, false, func(ctx context.Context, g *guest.Client) ([]sandbox.ProcessInfo, error) { return g.Processes(ctx) })
}

// Reconnect implements driver.ProcessManager.
func (c *Calls) Reconnect(ctx context.Context, id string) (driver.Process, error) {
	return call(ctx, c, false, func(ctx context.Context, g *guest.Client) (driver.Process, error) { return g.Reconnect(ctx, id) })
}

// Rejoin implements driver.Rejoiner.
func (c *Calls) Rejoin(ctx context.Context, id string, from driver.Cursor, skip bool) (p driver.Process, at driver.Cursor, err error) {
	at = from
	err = c.Use(ctx, false, func(ctx context.Context, g *guest.Client) (err error) {
		p, at, err = g.Rejoin(ctx, id, from, skip)
		return err
	})
	return p, at, err
}

// Logs implements driver.ProcessManager.
func (c *Calls) Logs(ctx context.Context, id string, opts driver.LogOptions) (driver.LogReader, error) {
	return call(ctx, c, false, func(ctx context.Context, g *guest.Client) (driver.LogReader, error) { return g.Logs(ctx, id, opts) })
}

// Kill implements driver.ProcessManager.
func (c *Calls) Kill(ctx context.Context, id string, sig int) error {
	return c.Use(ctx, false, func(ctx context.Context, g *guest.Client) error { return g.Kill(ctx, id, sig) })
}

// Dial implements driver.Dialer. It reaches services that speak anything, and
// those that listen on the loopback only.
func (c *Calls) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	return call(ctx, c, false, func(ctx context.Context, g *guest.Client) (net.Conn, error) { return g.Dial(ctx, port) })
}

// Stat implements driver.FileSystem.
func (c *Calls) Stat(ctx context.Context, path string) (sandbox.FileInfo, error) {
	return call(ctx, c, false, func(ctx context.Context, g *guest.Client) (sandbox.FileInfo, error) { return g.Stat(ctx, path) })
}

// List implements driver.FileSystem.
func (c *Calls) List(ctx context.Context, path string, opts driver.ListOptions) iter.Seq2[sandbox.FileInfo, error] {
	return each(ctx, c, func(ctx context.Context, g *guest.Client) iter.Seq2[sandbox.FileInfo, error] {
		return g.List(ctx, path, opts)
	})
}

// Describe implements driver.Describer.
func (c *Calls) Describe(ctx context.Context, path string, depth int) iter.Seq2[sandbox.FileDetails, error] {
	return each(ctx, c, func(ctx context.Context, g *guest.Client) iter.Seq2[sandbox.FileDetails, error] {
		return g.Describe(ctx, path, depth)
	})
}

// each yields the guest's descriptions of files.
func each[T any](ctx context.Context, c *Calls, tell func(context.Context, *guest.Client) iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		err := c.Use(ctx, false, func(ctx context.Context, g *guest.Client) error {
			for info, err := range tell(ctx, g) {
				if err != nil {
					return err
				}
				if !yield(info, nil) {
					return nil
				}
			}
			return nil
		})
		if err != nil {
			var none T
			yield(none, err)
		}
	}
}

// Read implements driver.FileSystem.
func (c *Calls) Read(ctx context.Context, path string, opts driver.ReadOptions) (r io.ReadCloser, info sandbox.FileInfo, err error) {
	err = c.Use(ctx, true, func(ctx context.Context, g *guest.Client) (err error) {
		r, info, err = g.Read(ctx, path, opts)
		return err
	})
	return r, info, err
}

// Write implements driver.FileSystem.
func (c *Calls) Write(ctx context.Context, path string, r io.Reader, opts driver.WriteOptions) (sandbox.FileInfo, error) {
	return call(ctx, c, false, func(ctx context.Context, g *guest.Client) (sandbox.FileInfo, error) {
		return g.Write(ctx, path, r, opts)
	})
}

// Overwrite implements driver.Overwriter.
func (c *Calls) Overwrite(ctx context.Context, path string, r io.Reader, opts driver.OverwriteOptions) (sandbox.FileInfo, error) {
	return call(ctx, c, false, func(ctx context.Context, g *guest.Client) (sandbox.FileInfo, error) {
		return g.Overwrite(ctx, path, r, opts)
	})
}

// Mkdir implements driver.FileSystem.
func (c *Calls) Mkdir(ctx context.Context, path string, opts driver.MkdirOptions) error {
	return c.Use(ctx, false, func(ctx context.Context, g *guest.Client) error { return g.Mkdir(ctx, path, opts) })
}

// Remove implements driver.FileSystem.
func (c *Calls) Remove(ctx context.Context, path string, recursive bool) error {
	return c.Use(ctx, false, func(ctx context.Context, g *guest.Client) error { return g.Remove(ctx, path, recursive) })
}

// Move implements driver.FileSystem.
func (c *Calls) Move(ctx context.Context, from, to string, overwrite bool) error {
	return c.Use(ctx, false, func(ctx context.Context, g *guest.Client) error { return g.Move(ctx, from, to, overwrite) })
}

// Export implements driver.Archiver.
func (c *Calls) Export(ctx context.Context, path string, w io.Writer, opts driver.ExportOptions) error {
	return c.Use(ctx, false, func(ctx context.Context, g *guest.Client) error { return g.Export(ctx, path, w, opts) })
}

// Import implements driver.Archiver.
func (c *Calls) Import(ctx context.Context, path string, r io.Reader, opts driver.ImportOptions) error {
	return c.Use(ctx, false, func(ctx context.Context, g *guest.Client) error { return g.Import(ctx, path, r, opts) })
}

// Watch implements driver.Watcher.
func (c *Calls) Watch(ctx context.Context, path string, recursive bool) (<-chan sandbox.FileEvent, error) {
	return call(ctx, c, true, func(ctx context.Context, g *guest.Client) (<-chan sandbox.FileEvent, error) {
		return g.Watch(ctx, path, recursive)
	})
}
