package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/atoll-run/atoll/sandbox"
)

// maxAttempts limits the requests for one blob, even if each makes progress.
const maxAttempts = 100

// errRestart means that the partial blob cannot be continued.
var errRestart = errors.New("the blob must be read from its beginning")

// Blob downloads a blob to f and verifies its digest and size. The existing
// content of f is used as the beginning, so that interrupted downloads are
// resumed. progress is called with the number of bytes in f. After an error f
// keeps its content for a later attempt, unless it is wrong.
func (c *Client) Blob(ctx context.Context, digest string, size int64, f *os.File, progress func(done int64)) error {
	d := &download{c: c, digest: digest, size: size, f: f, progress: progress}
	if err := d.begin(); err != nil {
		return err
	}
	ctx = context.WithValue(ctx, isBlob{}, true)
	failures, restarts := 0, 0
	for n := 0; ; n++ {
		before := d.have
		err := d.step(ctx)
		if err == nil {
			return nil
		}
		if errors.Is(err, errRestart) {
			if restarts++; restarts > 2 {
				return d.mismatch()
			}
			if err := d.reset(); err != nil {
				return err
			}
			continue
		}
		if failures++; d.have > before {
			failures = 1
		}
		if failures >= attempts || n >= maxAttempts || !temporary(err) {
			return c.failure(digest, err)
		}
		if err := c.pause(ctx, failures); err != nil {
			return err
		}
	}
}

// download is a blob being downloaded.
type download struct {
	c        *Client
	digest   string
	size     int64
	f        *os.File
	progress func(int64)
	sum      hash.Hash
	have     int64 // bytes in f, and in sum
}

// begin hashes the existing content.
func (d *download) begin() error {
	if _, err := d.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	d.sum = sha256.New()
	have, err := io.Copy(d.sum, io.LimitReader(d.f, d.size+1))
	if err != nil {
		return err
	}
	if d.have = have; have > d.size {
		return d.reset()
	}
	return nil
}

// reset removes the existing content.
func (d *download) reset() error {
	d.have = 0
	d.sum.Reset()
	if err := d.f.Truncate(0); err != nil {
		return err
	}
	_, err := d.f.Seek(0, io.SeekStart)
	return err
}

// step makes one request for the missing part, and verifies the result.
func (d *download) step(ctx context.Context) error {
	if d.have < d.size {
		if err := d.fetch(ctx); err != nil {
			return err
		}
	}
	if d.digest != "sha256:"+hex.EncodeToString(d.sum.Sum(nil)) {
		return errRestart
	}
	return nil
}

// fetch downloads the missing part.
func (d *download) fetch(ctx context.Context) error {
	header := http.Header{}
	if d.have > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", d.have, d.size-1))
	}
	resp, err := d.c.get(ctx, "blobs", d.digest, header)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusPartialContent && strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", d.have)):
	case resp.StatusCode == http.StatusPartialContent, resp.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return errRestart
	default:
		if err := transport.CheckError(resp, http.StatusOK); err != nil {
			return err
		}
		if d.have > 0 { // the server does not support ranges
			if err := d.reset(); err != nil {
				return err
			}
		}
	}
	if _, err := io.Copy(d, io.LimitReader(resp.Body, d.size-d.have+1)); err != nil {
		return err
	}
	if d.have < d.size {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// Write writes bytes of the blob. More bytes than its size are an error.
func (d *download) Write(p []byte) (int, error) {
	if d.have+int64(len(p)) > d.size {
		return 0, errRestart
	}
	n, err := d.f.Write(p)
	d.sum.Write(p[:n])
	d.have += int64(n)
	d.progress(d.have)
	return n, err
}

// mismatch returns the error for wrong content, and discards it.
func (d *download) mismatch() error {
	if err := d.reset(); err != nil {
		return err
	}
	return &sandbox.Error{
		Code: sandbox.CodeInvalid, Op: "image.pull", Subject: d.c.repo.Name(),
		Message: "the registry serves content that does not match the digest " + d.digest,
	}
}
