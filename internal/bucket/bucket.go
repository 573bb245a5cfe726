// Package bucket mounts S3 buckets on this machine, for sandboxes that use them
// as workspaces. Package bucketfs implements the file system.
//
// Each mount is served by a separate process, which outlives this one, as
// sandboxes do. It runs as nobody without capabilities, in its own namespaces
// except for the network, with a root directory that contains only the resolver
// configuration. It gets the credentials over a pipe, and ends when it is
// unmounted. The kernel's list of mounts is the only record.
package bucket

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/sandbox"
)

// DefaultSpool is the default limit, in bytes, for files of a mount being
// written on this machine.
const DefaultSpool = 16 << 30

// aliveTimeout is how long the process of a mount may take to respond.
const aliveTimeout = 10 * time.Second

// Options configures Buckets.
type Options struct {
	// Dir is a directory for this package alone. It is created if missing.
	Dir string
	// Named are the addresses of buckets that may be mounted, by name, as for
	// blob.ParseS3.
	Named map[string]string
	// Spool limits what a mount stores on this machine, in bytes; zero:
	// DefaultSpool.
	Spool int64
	// Executable is the program of the processes. Empty: this program.
	Executable string
}

// Buckets are the buckets that can be mounted on this machine. It is safe for
// concurrent use with different ids. Close does not unmount.
type Buckets struct {
	opts  Options
	named map[string]blob.S3
	work  sync.WaitGroup
}

// Open checks the addresses. It does not mount or connect to anything.
func Open(opts Options) (*Buckets, error) {
	b := &Buckets{opts: opts, named: map[string]blob.S3{}}
	if b.opts.Executable == "" {
		b.opts.Executable = "/proc/self/exe"
	}
	if b.opts.Spool == 0 {
		b.opts.Spool = DefaultSpool
	}
	for name, address := range opts.Named {
		where, err := blob.ParseS3(address)
		if err == nil {
			_, err = blob.Dial(where)
		}
		if err != nil {
			e := sandbox.Error{Code: sandbox.CodeInvalid, Op: "bucket.open", Message: "the address is not that of a bucket", Cause: err}
			e.Subject, e.Hint = name, "use s3://BUCKET/PREFIX?endpoint=URL&region=NAME, without credentials"
			return nil, &e
		}
		b.named[name] = where
	}
	return b, nil
}

// Names lists the buckets that may be mounted.
func (b *Buckets) Names() []string { return slices.Sorted(maps.Keys(b.named)) }

// Known returns CodeNotFound for an unknown bucket, and CodeUnsupported if
// buckets cannot be mounted here.
func (b *Buckets) Known(name string) error {
	if _, ok := b.named[name]; !ok {
		return &sandbox.Error{
			Code: sandbox.CodeNotFound, Op: "bucket", Subject: name, Message: "this daemon has no bucket with that name for the tenant",
			Hint: "the owner of the machine configures buckets with: atoll up --bucket NAME=s3://BUCKET/PREFIX",
		}
	}
	return Possible()
}

// Possible returns why buckets cannot be mounted on this machine, nil if they
// can.
func Possible() error {
	unsupported := func(message, hint string) error {
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "bucket", Message: message, Hint: hint}
	}
	if os.Geteuid() != 0 || !mayMount() {
		return unsupported("only root can mount a bucket, with CAP_SYS_ADMIN", "run the daemon as root")
	}
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return unsupported("FUSE is not available on this machine ("+device+")", "load the module fuse, and give the daemon "+device)
	}
	return f.Close()
}

func (b *Buckets) path(id string) string { return filepath.Join(b.opts.Dir, id) }

// Mount returns the directory where a bucket is mounted for id. It mounts the
// bucket if it is not mounted, or if the process of the mount is gone.
func (b *Buckets) Mount(ctx context.Context, id, name string) (string, error) {
	if err := b.Known(name); err != nil {
		return "", err
	}
	at := b.path(id)
	mounted, err := mounts(at)
	if err != nil {
		return "", failed("mount", err)
	}
	if mounted > 0 && alive(at) == nil {
		return at, nil
	}
	if err := detach(at, mounted); err != nil {
		return "", failed("mount", err)
	}
	if err := os.MkdirAll(at, 0o700); err != nil {
		return "", failed("mount", err)
	}
	if err := b.serve(ctx, at, b.named[name]); err != nil {
		_ = os.Remove(at) // return the first error
		return "", err
	}
	return at, nil
}

// Flush waits until the bucket has everything written to the mount of id. It
// returns nil if there is no mount, or if its process is gone.
func (b *Buckets) Flush(ctx context.Context, id string) error {
	at := b.path(id)
	mounted, err := mounts(at)
	if err != nil {
		return failed("flush", err)
	}
	if mounted == 0 || errors.Is(alive(at), syscall.ENOTCONN) {
		return nil
	}
	done := make(chan error, 1)
	b.work.Go(func() { done <- syncDir(at) })
	select {
	case err := <-done:
		if err == nil {
			return nil
		}
		return &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "bucket.flush", Message: "the bucket rejects the files that were written (" + err.Error() + ")", Cause: err,
			Hint: "make the bucket reachable and writable; the upload is retried",
		}
	case <-ctx.Done():
		return ctx.Err()
	}
}

func syncDir(at string) error {
	f, err := os.Open(at)
	if err != nil {
		return plain(err)
	}
	return errors.Join(plain(f.Sync()), f.Close())
}

// plain removes the path from an error.
func plain(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Unmount removes the mount of id, even if its process is gone. Changes that
// were not uploaded are lost; see Flush.
func (b *Buckets) Unmount(id string) error {
	at := b.path(id)
	mounted, err := mounts(at)
	if err == nil {
		err = detach(at, mounted)
	}
	if err == nil {
		err = os.Remove(at)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return failed("unmount", err)
	}
	return nil
}

// Sweep unmounts mounts of an earlier process, except those for whose ids
// wanted returns true. Pending writes are uploaded first, if possible before
// ctx ends.
func (b *Buckets) Sweep(ctx context.Context, wanted func(id string) bool) error {
	entries, err := os.ReadDir(b.opts.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return failed("sweep", err)
	}
	var all []error
	for _, e := range entries {
		if id := e.Name(); id != rootName && !wanted(id) {
			if err := b.Flush(ctx, id); err != nil {
				all = append(all, fmt.Errorf("%s: %w", id, err)) // it stays mounted, and is tried again
				continue
			}
			all = append(all, b.Unmount(id))
		}
	}
	return errors.Join(all...)
}

// Close waits for background work. Mounts stay.
func (b *Buckets) Close() { b.work.Wait() }

func failed(op string, err error) error {
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "bucket." + op, Message: "the bucket cannot be mounted or unmounted here", Cause: err,
		Hint: "see the daemon's log for the cause",
	}
}

// ParseNamed parses [TENANT/]NAME=ADDRESS from the command line. The returned
// name always has a tenant, by default owner.
func ParseNamed(text, owner string) (name, address string, err error) {
	name, address, ok := strings.Cut(text, "=")
	if !ok || !strings.HasPrefix(address, "s3://") {
		return "", "", &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "bucket.open", Message: "is not of the form NAME=s3://BUCKET/PREFIX?endpoint=URL&region=NAME",
		}
	}
	tenant, own, both := strings.Cut(name, "/")
	if !both {
		tenant, own = owner, name
	}
	if err := errors.Join(sandbox.ValidateName(tenant), sandbox.ValidateName(own)); err != nil {
		return "", "", err
	}
	return tenant + "/" + own, address, nil
}
