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

// maxAttempts bounds the requests for one blob, however much each moves.
const maxAttempts = 100

// errRestart says that what is there of a blob is no use.
var errRestart = errors.New("the blob must be read from its beginning")

// Blob reads the blob of that digest and size into f and verifies it. The
// content of f is taken as the beginning of the blob, so an interrupted
// transfer is resumed. Progress is called with the bytes that f holds. After an
// error f holds what was read, to go on with later, unless that was wrong.
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

// download is a blob on its way.
type download struct {
	c        *Client
	digest   string
	size     int64
	f        *os.File
	progress func(int64)
	sum      hash.Hash
	have     int64 // bytes in f, and in sum
}

// begin hashes what is there.
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

// reset forgets what is there.
func (d *download) reset() error {
	d.have = 0
	d.sum.Reset()
	if err := d.f.Truncate(0); err != nil {
		return err
	}
	_, err := d.f.Seek(0, io.SeekStart)
	return err
}

// step makes one request for what is missing, and verifies the whole.
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

// fetch reads what is missing.
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
		if d.have > 0 { // the server does not know ranges
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

// Write takes bytes of the blob. More than its size cannot be right.
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

// mismatch is the error for a registry that serves something else. Nothing of
// it is kept.
func (d *download) mismatch() error {
	if err := d.reset(); err != nil {
		return err
	}
	return &sandbox.Error{
		Code: sandbox.CodeInvalid, Op: "image.pull", Subject: d.c.repo.Name(),
		Message: "the registry serves content that does not match the digest " + d.digest,
	}
}
