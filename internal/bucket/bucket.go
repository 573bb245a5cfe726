// Package bucket mounts buckets of S3 services on this machine, for sandboxes to
// see as workspaces. See package bucketfs for what they see.
//
// Each mount is served by a process of its own, which outlives this one as
// sandboxes do: it is nobody, in namespaces of its own but for the network,
// with a root directory that holds nothing but how names are looked up, and
// without capabilities. It gets the credentials over a pipe, and ends when it
// is unmounted. The kernel's list of mounts is the only record, so it is always
// right.
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

// DefaultSpool is how many bytes of files that are being written a mount keeps
// on this machine, unless something else is said.
const DefaultSpool = 16 << 30

// aliveTimeout is how long the process of a mount may take to answer.
const aliveTimeout = 10 * time.Second

// Options configure Buckets.
type Options struct {
	// Dir is a directory of its own. It is made if missing.
	Dir string
	// Named are the addresses of buckets that may be mounted, as blob.ParseS3
	// takes them, by their names.
	Named map[string]string
	// Spool bounds what a mount keeps on this machine, in bytes; zero:
	// DefaultSpool.
	Spool int64
	// Executable is the program file of the processes. Empty: this program.
	Executable string
}

// Buckets are the buckets that can be mounted on this machine. Its methods may be
// called concurrently, but for one id by one at a time. Close does not unmount.
type Buckets struct {
	opts  Options
	named map[string]blob.S3
	work  sync.WaitGroup
}

// Open checks the addresses. Nothing is mounted or asked for.
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
			e := sandbox.Error{Code: sandbox.CodeInvalid, Op: "bucket.open", Message: "its address is not one of a bucket", Cause: err}
			e.Subject, e.Hint = name, "use s3://BUCKET/PREFIX?endpoint=URL&region=NAME, and keep credentials out of it"
			return nil, &e
		}
		b.named[name] = where
	}
	return b, nil
}

// Names lists the buckets that may be mounted.
func (b *Buckets) Names() []string { return slices.Sorted(maps.Keys(b.named)) }

// Known is CodeNotFound for a bucket that is not among them, and CodeUnsupported
// where nothing can be mounted.
func (b *Buckets) Known(name string) error {
	if _, ok := b.named[name]; !ok {
		return &sandbox.Error{
			Code: sandbox.CodeNotFound, Op: "bucket", Subject: name, Message: "this daemon has no bucket of that name for the tenant",
			Hint: "the owner of the machine names buckets with: atoll up --bucket NAME=s3://BUCKET/PREFIX",
		}
	}
	return Possible()
}

// Possible says why no bucket can be mounted on this machine, if so.
func Possible() error {
	unsupported := func(message, hint string) error {
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Op: "bucket", Message: message, Hint: hint}
	}
	if os.Geteuid() != 0 || !mayMount() {
		return unsupported("only root can mount a bucket, with CAP_SYS_ADMIN", "run the daemon as root")
	}
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return unsupported("there is no FUSE on this machine ("+device+")", "load the module fuse, and give the daemon "+device)
	}
	return f.Close()
}

func (b *Buckets) path(id string) string { return filepath.Join(b.opts.Dir, id) }

// Mount returns the directory where the bucket of that name is mounted for id. It
// is mounted if it is not, or if the process that served it is gone.
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
		_ = os.Remove(at) // the error is the news
		return "", err
	}
	return at, nil
}

// Settle waits until the bucket has everything that was written to the mount of
// id. Without a mount, or without a process that could tell, there is nothing to
// wait for.
func (b *Buckets) Settle(ctx context.Context, id string) error {
	at := b.path(id)
	mounted, err := mounts(at)
	if err != nil {
		return failed("settle", err)
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
			Code: sandbox.CodeUnavailable, Op: "bucket.settle", Message: "the bucket rejects the files that were written (" + err.Error() + ")", Cause: err,
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

// plain drops the path of an error, which is of no use to whoever reads it.
func plain(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Unmount ends the mount of id, whether or not its process is there. Changes
// that were not uploaded by then are lost; see Settle.
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

// Sweep unmounts what an earlier process has mounted and nobody wants: all but
// the ids that wanted returns true for. Pending writes are uploaded first, if
// that is possible before ctx ends.
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
			if err := b.Settle(ctx, id); err != nil {
				all = append(all, fmt.Errorf("%s: %w", id, err)) // it stays, and is tried again
				continue
			}
			all = append(all, b.Unmount(id))
		}
	}
	return errors.Join(all...)
}

// Close waits for what it has started and that ends by itself. Mounts stay.
func (b *Buckets) Close() { b.work.Wait() }

func failed(op string, err error) error {
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "bucket." + op, Message: "the bucket cannot be mounted or unmounted here", Cause: err,
		Hint: "see the log of the daemon for the cause",
	}
}

// ParseNamed reads [TENANT/]NAME=ADDRESS, as the command line has it. Without a
// tenant it is the owner's. The name that it returns always has one.
func ParseNamed(text, owner string) (name, address string, err error) {
	name, address, ok := strings.Cut(text, "=")
	if !ok || !strings.HasPrefix(address, "s3://") {
		return "", "", &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "bucket.open", Message: "not of the form NAME=s3://BUCKET/PREFIX?endpoint=URL&region=NAME",
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
