package bucket

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/bucket/bucketfs"
	"github.com/atoll-run/atoll/internal/confine"
	"github.com/atoll-run/atoll/sandbox"
)

// memoryLimit is above what the process should ever need, in bytes. It makes the
// garbage collector work harder before that, and is no hard limit.
const memoryLimit = 512 << 20

// lastTimeout bounds the uploads of a mount that was ended without having been
// settled.
const lastTimeout = time.Minute

// tries is how often a request is made: whoever waits stands still in the kernel.
const tries = 3

// Main runs this process as the server of a bucket if that is what it was started
// for, and does not return then. In any other process it returns at once.
func Main() {
	if len(os.Args) == 0 || os.Args[0] != argv0 {
		return
	}
	if run() != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// run serves until the mount is gone.
func run() error {
	debug.SetMemoryLimit(memoryLimit)
	f, err := prepare()
	answer := json.NewEncoder(os.Stdout)
	if err != nil {
		return errors.Join(err, answer.Encode(describe(err)))
	}
	o := f.Options()
	server, err := fuse.NewServer(fs.NewNodeFS(f.Root(), o), "/dev/fd/3", &o.MountOptions)
	if err != nil {
		return errors.Join(err, answer.Encode(describe(err)))
	}
	if err := errors.Join(answer.Encode(report{}), os.Stdout.Close()); err != nil {
		return err
	}
	server.Serve()
	ctx, cancel := context.WithTimeout(context.Background(), lastTimeout)
	defer cancel()
	return f.Flush(ctx)
}

// prepare reads what is to be served, gives up everything that is not needed for
// that, and makes sure that it is there.
func prepare() (*bucketfs.FileSystem, error) {
	var s settings
	if err := json.NewDecoder(os.Stdin).Decode(&s); err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	_ = os.Stdin.Close() // all was read
	// Read while there still is a file system; later they are remembered.
	_, _ = x509.SystemCertPool()
	if err := confine.Enter(os.NewFile(4, "root"), confine.Keeps{Files: true}); err != nil {
		return nil, fmt.Errorf("confining the process: %w", err)
	}
	spool, err := os.Open("/spool")
	if err != nil {
		return nil, err
	}
	creds := credentials.NewStaticV4(s.AccessKey, s.SecretKey, s.Token)
	if s.AccessKey == "" {
		creds = credentials.New(&credentials.IAM{})
	}
	client, err := blob.Dial(blob.S3{Bucket: s.Bucket, Endpoint: s.Endpoint, Region: s.Region, Credentials: creds, Tries: tries})
	if err != nil {
		return nil, err
	}
	b := &bucketfs.Bucket{Client: client, Name: s.Bucket, Prefix: s.Prefix}
	if err := b.Check(context.Background()); err != nil {
		return nil, err
	}
	return bucketfs.New(context.Background(), b, spool, s.Spool), nil
}

// describe says in the words of the vocabulary why a bucket cannot be served,
// and none of what the service said, which may repeat parts of the request.
func describe(err error) report {
	var known syscall.Errno
	switch errors.As(err, &known); known {
	case syscall.ENOENT:
		return report{sandbox.CodeNotFound, "there is no such bucket"}
	case syscall.EACCES:
		return report{sandbox.CodeDenied, "the service refuses the bucket"}
	case syscall.EIO, syscall.ETIMEDOUT:
		return report{sandbox.CodeUnavailable, "the service of the bucket cannot be reached"}
	}
	return report{sandbox.CodeUnavailable, "the process that serves the bucket cannot begin"}
}
