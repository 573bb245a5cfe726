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

// outward sends requests only to addresses that are permitted, which is decided
// when they are dialled: names that lead elsewhere, redirects and the servers
// that hand out tokens are no way around it. Where the operator has a proxy for
// a request, names are the proxy's to look up and to refuse.
type outward struct {
	direct  *http.Transport
	proxied http.RoundTripper
	permit  func(netip.Addr) bool
}

// errRefused says that an address is not permitted.
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
		// A connection is for one pull.
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
