// Package blob stores named sequences of bytes that are written once and read
// often, such as packs of workspaces and snapshots. A [Store] is a directory or
// an S3 bucket. Package blobtest tests both against the same requirements.
//
// Writes are atomic: if the writer is killed, the disk is full or the network
// fails, the key keeps its old content. With [PutOptions.IfAbsent], exactly one
// of several concurrent writers succeeds, on all machines that share the store.
// Code built on that needs no other lock.
package blob

import (
	"context"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Store stores blobs. It is safe for concurrent use, also by several processes.
// Errors are *sandbox.Error: a missing blob is CodeNotFound, a store that
// cannot be reached is CodeUnavailable, a full one is CodeExhausted.
type Store interface {
	// Put writes all of r under key and replaces an existing blob. When it returns
	// nil, the blob is durable. If r fails, nothing changes, and Put returns r's
	// error.
	Put(ctx context.Context, key string, r io.Reader, opts PutOptions) error
	// Get reads a blob from offset, at most length bytes, or to its end if length
	// is negative. An offset beyond the end reads nothing. The caller closes the
	// reader.
	Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error)
	// Stat describes a blob.
	Stat(ctx context.Context, key string) (Info, error)
	// List yields the blobs whose keys begin with prefix, in byte order of the
	// keys. It stops at the first error.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
	// Delete removes a blob. It succeeds if there is none.
	Delete(ctx context.Context, key string) error
}

// PutOptions are the options of Put.
type PutOptions struct {
	// IfAbsent makes Put return CodeAlreadyExists if the blob exists. More than
	// MaxIfAbsent bytes are CodeInvalid.
	IfAbsent bool
	// Size is the number of bytes to read from r, if known, which saves a buffer.
	// If r has fewer, Put returns CodeInvalid. Zero: read all of r.
	Size int64
}

// Info describes a blob.
type Info struct {
	Key      string
	Size     int64 // bytes
	Modified time.Time
}

// MaxKeyLen is the maximum length of a key in bytes.
const MaxKeyLen = 512

// MaxIfAbsent is the maximum size in bytes of a Put with IfAbsent, which has to
// be a single S3 request.
const MaxIfAbsent = 16 << 20

func errTooLarge() error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "blob.put", Message: "too large for a conditional upload"}
}

// ValidateKey checks a key: elements of [A-Za-z0-9._-] that do not begin with a
// dot, separated by single slashes.
func ValidateKey(key string) error {
	bad := key == "" || len(key) > MaxKeyLen
	for element := range strings.SplitSeq(key, "/") {
		bad = bad || element == "" || element[0] == '.' || strings.ContainsFunc(element, isOdd)
	}
	if bad {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "blob", Message: fmt.Sprintf("%.80q is not a valid key", key)}
	}
	return nil
}

func isOdd(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
}

// Open opens the store at address: a directory's path, "dir:PATH", or
// "s3://BUCKET[/PREFIX][?endpoint=URL&region=NAME]". Credentials for S3 are
// never part of an address. They come from the environment, the shared
// credentials file, or the machine's role, as for AWS's own tools.
func Open(ctx context.Context, address string) (Store, error) {
	if dir, ok := strings.CutPrefix(address, "dir:"); ok || !strings.Contains(address, "://") {
		return OpenDir(dir)
	}
	where, err := ParseS3(address)
	if err != nil {
		return nil, err
	}
	return OpenS3(ctx, where)
}

// Below returns a Store of the blobs whose keys begin with prefix and a slash.
// Its keys omit that prefix.
func Below(s Store, prefix string) Store { return below{s, prefix + "/"} }

type below struct {
	store  Store
	prefix string
}

func (b below) Put(ctx context.Context, key string, r io.Reader, opts PutOptions) error {
	return b.store.Put(ctx, b.prefix+key, r, opts)
}

func (b below) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	return b.store.Get(ctx, b.prefix+key, offset, length)
}

func (b below) Stat(ctx context.Context, key string) (Info, error) {
	info, err := b.store.Stat(ctx, b.prefix+key)
	info.Key = strings.TrimPrefix(info.Key, b.prefix)
	return info, err
}

func (b below) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		for info, err := range b.store.List(ctx, b.prefix+prefix) {
			info.Key = strings.TrimPrefix(info.Key, b.prefix)
			if !yield(info, err) {
				return
			}
		}
	}
}

func (b below) Delete(ctx context.Context, key string) error {
	return b.store.Delete(ctx, b.prefix+key)
}

// limited returns the part of r to read. Its reader fails if r ends early.
func limited(r io.Reader, opts PutOptions) io.Reader {
	if opts.Size > 0 {
		return &counted{r, opts.Size}
	}
	return r
}

type counted struct {
	r    io.Reader
	left int64
}

func (c *counted) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.left)])
	if c.left -= int64(n); err == io.EOF && c.left > 0 {
		err = &sandbox.Error{Code: sandbox.CodeInvalid, Op: "blob.put", Message: "fewer bytes than announced"}
	}
	return n, err
}

func fail(code sandbox.Code, op, key, message string, cause error) error {
	return &sandbox.Error{Code: code, Op: op, Subject: key, Message: message, Cause: cause}
}
