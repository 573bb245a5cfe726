package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/provider/gvisor"
	"github.com/atoll-run/atoll/sandbox"
)

// library uses Atoll from a Go program. It shares the state directory of the
// command line and starts its kernels from the same executable.
type library struct {
	image    string
	images   *image.Store
	provider *gvisor.Provider
	count    atomic.Int64
}

func openLibrary(state, executable, img string) (*library, error) {
	images, err := image.Open(filepath.Join(state, "images"), image.Options{})
	if err != nil {
		return nil, err
	}
	p, err := gvisor.New(gvisor.Options{
		StateDir: filepath.Join(state, gvisor.Name), Images: images, Attached: true, Kernel: executable,
	})
	if err != nil {
		return nil, errors.Join(err, images.Close())
	}
	return &library{image: img, images: images, provider: p}, nil
}

func (l *library) close() error { return errors.Join(l.provider.Close(), l.images.Close()) }

func (l *library) spec(img string) *sandbox.Spec {
	id := fmt.Sprintf("sandbox-%d", l.count.Add(1))
	return &sandbox.Spec{ID: sandbox.ID(id), Image: img, Hostname: id}
}

func (l *library) create(ctx context.Context) (driver.Instance, error) {
	return l.provider.Create(ctx, l.spec(l.image))
}

// run creates a sandbox, runs a command that writes something, and destroys it.
func (l *library) run(img string, argv []string) func(context.Context) (timing, error) {
	return func(ctx context.Context) (t timing, err error) {
		began := time.Now()
		in, err := l.provider.Create(ctx, l.spec(img))
		if err != nil {
			return t, err
		}
		p, err := in.Exec(ctx, &sandbox.Command{Args: argv})
		if err == nil {
			_, err = io.ReadFull(p.Stdout(), make([]byte, 1))
			t.first = time.Since(began)
			err = errors.Join(err, succeeded(ctx, p))
		}
		err = errors.Join(err, in.Destroy(context.WithoutCancel(ctx)))
		t.whole = time.Since(began)
		return t, err
	}
}

// succeeded waits for a command that must exit with 0.
func succeeded(ctx context.Context, p driver.Process) error {
	defer p.Close()
	if _, err := io.Copy(io.Discard, p.Stdout()); err != nil {
		return err
	}
	exit, err := p.Wait(ctx)
	if err == nil && exit.Code != 0 {
		err = fmt.Errorf("the command exited with %d: %s", exit.Code, exit.Detail)
	}
	return err
}

// execIn runs a command in a running sandbox.
func execIn(in driver.Instance, argv []string) func(context.Context) (timing, error) {
	return func(ctx context.Context) (t timing, err error) {
		began := time.Now()
		p, err := in.Exec(ctx, &sandbox.Command{Args: argv})
		if err != nil {
			return t, err
		}
		err = succeeded(ctx, p)
		t.whole = time.Since(began)
		return t, err
	}
}

// answers checks that a sandbox runs commands and is not mistaken for another.
func answers(ctx context.Context, in driver.Instance) error {
	p, err := in.Exec(ctx, &sandbox.Command{Args: []string{"hostname"}})
	if err != nil {
		return err
	}
	defer p.Close()
	out, err := io.ReadAll(p.Stdout())
	if err == nil && string(out) != string(in.ID())+"\n" {
		err = fmt.Errorf("sandbox %s says it is %q", in.ID(), out)
	}
	return err
}

// writeFile writes size bytes into a file of the sandbox, and readFile reads
// them.
func writeFile(in driver.Instance, size int64) func(context.Context) (timing, error) {
	return func(ctx context.Context) (t timing, err error) {
		files, _ := driver.As[driver.FileSystem](in)
		began := time.Now()
		info, err := files.Write(ctx, bigFile, io.LimitReader(&pattern{}, size), driver.WriteOptions{})
		t.whole = time.Since(began)
		if err == nil && info.Size != size {
			err = fmt.Errorf("%d bytes arrived of %d", info.Size, size)
		}
		return t, err
	}
}

func readFile(in driver.Instance, size int64) func(context.Context) (timing, error) {
	return func(ctx context.Context) (t timing, err error) {
		files, _ := driver.As[driver.FileSystem](in)
		began := time.Now()
		r, _, err := files.Read(ctx, bigFile, driver.ReadOptions{})
		if err != nil {
			return t, err
		}
		n, err := io.Copy(io.Discard, r)
		t.whole = time.Since(began)
		if err == nil && n != size {
			err = fmt.Errorf("%d bytes arrived of %d", n, size)
		}
		return t, errors.Join(err, r.Close())
	}
}

const bigFile = "/root/big"

// pattern is an endless reader of varying bytes.
type pattern struct{ next byte }

func (p *pattern) Read(b []byte) (int, error) {
	n := copy(b, patternBytes[p.next:])
	p.next += byte(n)
	return n, nil
}

var patternBytes = func() (b [1 << 20]byte) {
	for i := range b {
		b[i] = byte(i)
	}
	return b
}()
