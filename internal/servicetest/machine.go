package servicetest

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// Output is what a command wrote, and how it ended.
type Output struct {
	Stdout, Stderr []byte
	Exit           sandbox.Exit
	Truncated      bool // there was more
}

// Run runs a command to its end. It keeps the first limit bytes of each stream.
func Run(ctx context.Context, in driver.Instance, cmd sandbox.Command, limit int) (out Output, err error) {
	var mu sync.Mutex
	keep := func(to *[]byte) func([]byte) error {
		return func(b []byte) error {
			mu.Lock()
			defer mu.Unlock()
			room := min(len(b), limit-len(*to))
			*to, out.Truncated = append(*to, b[:room]...), out.Truncated || room < len(b)
			return nil
		}
	}
	out.Exit, err = Stream(ctx, in, cmd, keep(&out.Stdout), keep(&out.Stderr))
	return out, err
}

// Stream runs a command to its end and forwards its output as it arrives. The
// functions are called concurrently with each other. It ends the command when
// the context ends.
func Stream(ctx context.Context, in driver.Instance, cmd sandbox.Command, stdout, stderr func([]byte) error) (sandbox.Exit, error) {
	p, err := in.Exec(ctx, &cmd)
	if err != nil {
		return sandbox.Exit{}, err
	}
	defer p.Close()
	stop := context.AfterFunc(ctx, func() { p.Close() })
	defer stop()
	var readers sync.WaitGroup
	readers.Go(func() { Pump(p.Stdout(), stdout) })
	readers.Go(func() { Pump(p.Stderr(), stderr) })
	readers.Wait()
	return p.Wait(ctx)
}

// Pump passes on what can be read until the end, or until the receiver stops.
func Pump(r io.Reader, to func([]byte) error) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 && to(buf[:n]) != nil || err != nil {
			return
		}
	}
}

// Files returns the file system of a sandbox.
func Files(in driver.Instance) (driver.FileSystem, error) {
	fs, ok := driver.As[driver.FileSystem](in)
	if !ok {
		return nil, &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "the sandboxes of the fake have no files"}
	}
	return fs, nil
}

// Timer calls a function after a while, unless it is set again first. The zero
// value never does. Its method may be called concurrently.
type Timer struct {
	mu sync.Mutex
	t  *time.Timer
}

// Set replaces what the timer does. Zero stops it.
func (t *Timer) Set(d time.Duration, f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.t != nil {
		t.t.Stop()
	}
	if t.t = nil; d > 0 {
		t.t = time.AfterFunc(d, f)
	}
}
