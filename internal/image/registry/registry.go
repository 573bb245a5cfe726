// Package registry reads manifests and blobs from container registries.
//
// Authentication is go-containerregistry's. What is done here instead of there
// is what it does not do: it resumes blobs with HTTP ranges, gives up on a
// server that sends nothing, bounds every answer, and never speaks plain HTTP
// to another machine because its name looks local.
//
// Errors are *sandbox.Error. Their text holds no URL, because the ones that
// registries redirect to carry signatures.
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

// Options are optional but for Keychain.
type Options struct {
	Transport    http.RoundTripper // default as http.DefaultTransport
	Keychain     authn.Keychain
	PlainHTTP    []string      // "host:port" of registries that need no TLS
	StallTimeout time.Duration // a request that moves no byte for so long fails; default 30s
	RetryDelay   time.Duration // before the first retry, then doubled; default 200ms
	// Permit, if set, is asked for every address before it is dialled, for a
	// caller who must not learn what this machine can reach: whatever fails on
	// the way to a registry has one error text then.
	Permit func(netip.Addr) bool
}

// Client reads one repository. Its methods may be called concurrently.
type Client struct {
	repo  name.Repository
	opts  Options
	guard *guard
	http  *http.Client
}

// maxSmall bounds answers that are not blobs: tokens, errors and manifests.
const maxSmall = 16 << 20

// attempts is how often in a row a request may fail without any progress.
const attempts = 5

// New finds the registry and authenticates, if it asks for it.
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

// manifestTypes are what is asked for, in the order of preference.
var manifestTypes = []string{
	string(types.OCIManifestSchema1), string(types.DockerManifestSchema2),
	string(types.OCIImageIndex), string(types.DockerManifestList),
}

// Manifest reads the manifest or index that a tag or digest names, of at most
// limit bytes, and its media type. It is not verified.
func (c *Client) Manifest(ctx context.Context, ref string, limit int64) (data []byte, mediaType string, err error) {
	return c.small(ctx, "manifests", ref, limit)
}

// Bytes reads a small blob of at most limit bytes. It is not verified.
func (c *Client) Bytes(ctx context.Context, digest string, limit int64) ([]byte, error) {
	data, _, err := c.small(ctx, "blobs", digest, limit)
	return data, err
}

// small reads what fits into memory.
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
	// Digests are of the bytes as they are stored: no compression on the way.
	req.Header.Set("Accept-Encoding", "identity")
	return c.http.Do(req)
}

// retry calls f until it succeeds, fails for good, or has failed too often.
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

// pause waits before the retry after the nth failure in a row.
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
