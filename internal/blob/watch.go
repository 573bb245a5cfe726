package blob

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

// watchful is the transport of an S3 service that need not be what it says: the
// client library reads what is no blob into memory, and asks for one page of a
// list after the other.
type watchful struct{ inner http.RoundTripper }

const (
	// maxPage bounds a page of a list, in bytes: a thousand names of 1024 bytes,
	// each of which may be written as an entity.
	maxPage  = 16 << 20
	maxNames = 10_000 // ten times what services send
	// maxIdle is how many pages in a row may add no name.
	maxIdle = 3
)

var (
	errNoProgress = errors.New("the list of the S3 service does not get on")
	errNoList     = errors.New("the S3 service answers with something that is no list")
)

type listingKey struct{}

// listing is one list that is being read.
type listing struct {
	stop context.CancelCauseFunc
	idle atomic.Int32 // pages since the last name
}

// failure classifies an error of a list that may have been stopped.
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
	// What it takes to decode a page is many times its size.
	page, err := io.ReadAll(io.LimitReader(resp.Body, maxPage))
	if err == nil && (!bytes.Contains(page, []byte("<ListBucketResult")) || bytes.Count(page, []byte("<Contents")) > maxNames) {
		page = nil
		l.stop(errNoList)
	}
	resp.Body = &bounded{io.MultiReader(bytes.NewReader(page), failing{err}), resp.Body}
	return resp, nil
}

// failing ends with an error, or, if it is nil, at once.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) {
	if f.err == nil {
		return 0, io.EOF
	}
	return 0, f.err
}
