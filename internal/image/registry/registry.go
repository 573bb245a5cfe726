// Package registry reads manifests and blobs from container registries.
//
// Authentication is done by go-containerregistry. This package adds what that
// library lacks: it resumes blobs with HTTP ranges, gives up on stalled
// servers, limits the size of responses, and never uses plain HTTP to another
// machine because its name looks local.
//
// Errors are *sandbox.Error. Their text contains no URLs, because redirect URLs
// contain signatures.
package registry

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/atoll-run/atoll/sandbox"
)

// Options of New. All except Keychain are optional.
type Options struct {
	Transport    http.RoundTripper // default: like http.DefaultTransport
	Keychain     authn.Keychain
	PlainHTTP    []string      // "host:port" of registries without TLS
	StallTimeout time.Duration // a request fails if it transfers nothing for this long; default 30s
	RetryDelay   time.Duration // before the first retry, then doubled; default 200ms
	// Permit, if set, is called for every address before it is dialled. It is for
	// callers who must not learn what this machine can reach: all connection
	// failures then have the same error text.
	Permit func(netip.Addr) bool
}

// Client reads from one repository. It is safe for concurrent use.
type Client struct {
	repo  name.Repository
	opts  Options
	guard *guard
	http  *http.Client
}

// maxSmall is the maximum size, in bytes, of responses other than blobs:
// tokens, errors and manifests.
const maxSmall = 16 << 20

// attempts is the maximum number of consecutive failures without progress.
const attempts = 5

// New connects to the registry and authenticates, if required.
func New(ctx context.Context, repo name.Repository, opts Options) (*Client, error) {
	if opts.StallTimeout <= 0 {
		opts.StallTimeout = 30 * time.Second
	}
	if opts.RetryDelay <= 0 {
		opts.RetryDelay = 200 * time.Millisecond
	}
	if opts.Transport == nil {
		opts.Transport = http.DefaultTransport
	}
	if opts.Permit != nil {
		opts.Transport = newOutward(opts.Transport, opts.Permit)
	}
	if slices.Contains(opts.PlainHTTP, repo.RegistryStr()) {
		insecure, err := name.NewRepository(repo.Name(), name.Insecure)
		if err != nil {
			return nil, err
		}
		repo = insecure
	}
	c := &Client{repo: repo, opts: opts, guard: newGuard(repo.RegistryStr(), opts)}
	auth, err := authn.Resolve(ctx, opts.Keychain, repo)
	if err != nil {
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "image.pull", Subject: repo.Name(), Cause: err,
			Message: "the credentials for " + repo.RegistryStr() + " could not be read",
			Hint:    "check Docker's config.json and the credential helper that it names",
		}
	}
	err = c.retry(ctx, func() error {
		tr, err := transport.NewWithContext(ctx, repo.Registry, auth, c.guard, []string{repo.Scope(transport.PullScope)})
		if err == nil {
			c.http = &http.Client{Transport: tr}
		}
		return err
	})
	if err != nil {
		return nil, c.failure("", err)
	}
	return c, nil
}

// manifestTypes are the accepted media types, in order of preference.
var manifestTypes = []string{
	string(types.OCIManifestSchema1), string(types.DockerManifestSchema2),
	string(types.OCIImageIndex), string(types.DockerManifestList),
}

// Manifest returns the manifest or index for a tag or digest, of at most limit
// bytes, and its media type. It does not verify the digest.
func (c *Client) Manifest(ctx context.Context, ref string, limit int64) (data []byte, mediaType string, err error) {
	return c.small(ctx, "manifests", ref, limit)
}

// Bytes returns a small blob of at most limit bytes. It does not verify the
// digest.
func (c *Client) Bytes(ctx context.Context, digest string, limit int64) ([]byte, error) {
	data, _, err := c.small(ctx, "blobs", digest, limit)
	return data, err
}

// small returns a response that fits into memory.
func (c *Client) small(ctx context.Context, kind, ref string, limit int64) (data []byte, mediaType string, err error) {
	err = c.retry(ctx, func() error {
		resp, err := c.get(ctx, kind, ref, http.Header{"Accept": {strings.Join(manifestTypes, ", ")}})
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if err := transport.CheckError(resp, http.StatusOK); err != nil {
			return err
		}
		data, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
		mediaType, _, _ = strings.Cut(resp.Header.Get("Content-Type"), ";")
		return err
	})
	if err != nil {
		return nil, "", c.failure(ref, err)
	}
	if int64(len(data)) > limit {
		return nil, "", &sandbox.Error{
			Code: sandbox.CodeExhausted, Op: "image.pull", Subject: c.repo.Name(),
			Message: fmt.Sprintf("a manifest or config of more than %d bytes", limit),
		}
	}
	return data, mediaType, nil
}

// get sends one request. The caller closes the body.
func (c *Client) get(ctx context.Context, kind, ref string, header http.Header) (*http.Response, error) {
	u := fmt.Sprintf("%s://%s/v2/%s/%s/%s", c.repo.Scheme(), c.repo.RegistryStr(), c.repo.RepositoryStr(), kind, ref)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, err
	}
	req.Header = header
	// Digests are those of the stored bytes, so disable compression.
	req.Header.Set("Accept-Encoding", "identity")
	return c.http.Do(req)
}

// retry calls f until it succeeds, fails permanently, or has failed too often.
func (c *Client) retry(ctx context.Context, f func() error) error {
	for n := 1; ; n++ {
		err := f()
		if err == nil || n == attempts || !temporary(err) {
			return err
		}
		if err := c.pause(ctx, n); err != nil {
			return err
		}
	}
}

// pause waits before the retry after n consecutive failures.
func (c *Client) pause(ctx context.Context, n int) error {
	t := time.NewTimer(min(c.opts.RetryDelay<<(n-1), 10*time.Second))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
