package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// guard is the innermost round tripper: every request for a registry passes it,
// including redirects and token requests.
type guard struct {
	inner    http.RoundTripper
	registry string // "host" or "host:port"
	plain    []string
	stall    time.Duration
	refused  atomic.Bool // a plain HTTP request was refused
}

func newGuard(registry string, opts Options) *guard {
	return &guard{inner: opts.Transport, registry: registry, plain: opts.PlainHTTP, stall: opts.StallTimeout}
}

var (
	errStalled   = errors.New("the server sent nothing for too long")
	errPlainHTTP = errors.New("plain HTTP to another machine is refused")
	errInward    = errors.New("the registry leads to an address of a private network")
	errTooLarge  = errors.New("the answer is too large")
)

// isBlob marks the context of requests whose responses may be large.
type isBlob struct{}

// RoundTrip checks and sends the request, and watches the response.
func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := g.check(req); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	timer := time.AfterFunc(g.stall, func() { cancel(errStalled) })
	resp, err := g.inner.RoundTrip(req.WithContext(ctx))
	if err != nil {
		timer.Stop()
		if errors.Is(context.Cause(ctx), errStalled) {
			err = errStalled
		}
		cancel(nil)
		return nil, err
	}
	left := int64(maxSmall)
	if blob, _ := req.Context().Value(isBlob{}).(bool); blob && resp.StatusCode < 300 {
		left = -1
	}
	resp.Body = &watched{ReadCloser: resp.Body, ctx: ctx, cancel: cancel, timer: timer, stall: g.stall, left: left}
	return resp, nil
}

// check refuses requests to other networks: a registry on the internet could
// make this machine send requests to its private networks.
func (g *guard) check(req *http.Request) error {
	host := req.URL.Hostname()
	own := hostOnly(g.registry)
	if inward(host) && !inward(own) {
		return errInward
	}
	switch req.URL.Scheme {
	case "https":
		return nil
	case "http":
		if loopback(host) && loopback(own) || slices.Contains(g.plain, req.URL.Host) {
			return nil
		}
		g.refused.Store(true)
		return errPlainHTTP
	}
	return fmt.Errorf("requests by %q are refused", req.URL.Scheme)
}

func hostOnly(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return hostport
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// inward reports whether a host is an address literal of this machine or of a
// private network, such as that of a cloud metadata service. Names that resolve
// to such addresses cannot be distinguished from a company's own registry.
func inward(host string) bool {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return host == "localhost"
	}
	ip = ip.Unmap()
	return ip.IsLoopback() || ip.IsPrivate() || ip.IsLinkLocalUnicast() || ip.IsUnspecified() || ip.IsMulticast()
}

// watched is a body with a timeout for stalls.
type watched struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	stall  time.Duration
	left   int64 // negative: no limit
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if n > 0 {
		w.timer.Reset(w.stall)
		if w.left >= 0 {
			if w.left -= int64(n); w.left < 0 {
				return 0, errTooLarge
			}
		}
	}
	if err != nil && !errors.Is(err, io.EOF) && errors.Is(context.Cause(w.ctx), errStalled) {
		err = errStalled
	}
	return n, err
}

func (w *watched) Close() error {
	w.timer.Stop()
	err := w.ReadCloser.Close()
	w.cancel(nil)
	return err
}
