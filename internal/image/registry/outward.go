package registry

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"
)

// outward sends requests only to permitted addresses. Addresses are checked
// when they are dialled, so neither names with private addresses nor redirects
// nor token servers can bypass the check. If a request goes through the
// operator's proxy, the proxy looks up and filters names.
type outward struct {
	direct  *http.Transport
	proxied http.RoundTripper
	permit  func(netip.Addr) bool
}

// errRefused means that an address is not permitted.
var errRefused = errors.New("the address is not permitted")

func newOutward(proxied http.RoundTripper, permit func(netip.Addr) bool) *outward {
	dialer := &net.Dialer{Timeout: 30 * time.Second, ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		if to, err := netip.ParseAddrPort(address); err != nil || !permit(to.Addr()) {
			return errRefused
		}
		return nil
	}}
	t := &http.Transport{
		ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second, ExpectContinueTimeout: time.Second, DialContext: dialer.DialContext,
		// A connection is only used for one pull.
		MaxIdleConnsPerHost: 4, IdleConnTimeout: 5 * time.Second,
	}
	if base, ok := proxied.(*http.Transport); ok && base.TLSClientConfig != nil {
		t.TLSClientConfig = base.TLSClientConfig.Clone()
	}
	return &outward{direct: t, proxied: proxied, permit: permit}
}

func (o *outward) RoundTrip(req *http.Request) (*http.Response, error) {
	base, ok := o.proxied.(*http.Transport)
	if !ok || base.Proxy == nil {
		return o.direct.RoundTrip(req)
	}
	if proxy, err := base.Proxy(req); err != nil || proxy == nil {
		return o.direct.RoundTrip(req)
	}
	host := req.URL.Hostname()
	if a, err := netip.ParseAddr(host); inward(host) || err == nil && !o.permit(a) {
		return nil, errRefused
	}
	return o.proxied.RoundTrip(req)
}
