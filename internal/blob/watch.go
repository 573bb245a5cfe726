package blob

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

// watchful is the transport for an S3 service, which is not trusted. The client
// library reads any response that is not an object into memory, and requests
// any number of list pages; watchful limits both.
type watchful struct{ inner http.RoundTripper }

const (
	// maxPage limits a list page in bytes: a thousand names of 1024 bytes, each of
	// which may be escaped.
	maxPage  = 16 << 20
	maxNames = 10_000 // ten times the usual number
	// maxIdle is how many consecutive pages may contain no name.
	maxIdle = 3
)

var (
	errNoProgress = errors.New("the list of the S3 service makes no progress")
	errNoList     = errors.New("the response of the S3 service is not a list")
)

type listingKey struct{}

// listing is a list being read.
type listing struct {
	stop context.CancelCauseFunc
	idle atomic.Int32 // number of pages since the last name
}

// failure classifies an error of a list, which may have been stopped by
// watchful.
func (l *listing) failure(ctx context.Context, prefix string, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errNoProgress) || errors.Is(cause, errNoList) {
		err = cause
	}
	return s3Error("blob.list", prefix, err)
}

// RoundTrip implements http.RoundTripper.
func (w watchful) RoundTrip(r *http.Request) (*http.Response, error) {
	l, _ := r.Context().Value(listingKey{}).(*listing)
	if l != nil && l.idle.Add(1) > maxIdle {
		l.stop(errNoProgress)
	}
	resp, err := w.inner.RoundTrip(r)
	if err != nil || l == nil || resp.StatusCode != http.StatusOK || !r.URL.Query().Has("list-type") {
		return resp, err
	}
	// Decoding a page takes many times its size.
	page, err := io.ReadAll(io.LimitReader(resp.Body, maxPage))
	if err == nil && (!bytes.Contains(page, []byte("<ListBucketResult")) || bytes.Count(page, []byte("<Contents")) > maxNames) {
		page = nil
		l.stop(errNoList)
	}
	resp.Body = &bounded{io.MultiReader(bytes.NewReader(page), failing{err}), resp.Body}
	return resp, nil
}

// failing is a body that fails with an error, or is empty if the error is nil.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) {
	if f.err == nil {
		return 0, io.EOF
	}
	return 0, f.err
}
