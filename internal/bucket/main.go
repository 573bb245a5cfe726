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

// memoryLimit is above what the process should ever need, in bytes. It is a
// soft limit for the garbage collector.
const memoryLimit = 512 << 20

// lastTimeout limits the uploads at the end of a mount that was not flushed.
const lastTimeout = time.Minute

// tries is the number of attempts per request, because callers in the kernel
// block.
const tries = 3

// Main serves a bucket if this process was started for that, and then does not
// return. Otherwise it returns immediately.
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

// prepare reads the settings, gives up all unneeded privileges, and checks that
// the bucket can be accessed.
func prepare() (*bucketfs.FileSystem, error) {
	var s settings
	if err := json.NewDecoder(os.Stdin).Decode(&s); err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	_ = os.Stdin.Close() // everything was read
	// Load these while the file system is still visible.
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

// describe returns why a bucket cannot be served, without the service's
// message, which may repeat parts of the request.
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
	return report{sandbox.CodeUnavailable, "the process that serves the bucket cannot start"}
}
