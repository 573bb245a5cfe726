package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/net/proxy"

	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	dialTimeout   = 15 * time.Second
	addressPeriod = 5 * time.Second // for one of several addresses
	maxAddresses  = 8
)

// errNoAddress means that a name has no address that may be dialled.
var errNoAddress = errors.New("the name has no address")

// dialer opens outgoing connections for all sandboxes.
type dialer struct {
	settings messages.Settings
	resolver *net.Resolver
	direct   net.Dialer
	proxy    *url.URL
	next     atomic.Uint32
	// tunnel, if set, replaces direct.
	tunnel func(ctx context.Context, to string) (net.Conn, error)
}

func newDialer(s messages.Settings) (*dialer, error) {
	d := &dialer{settings: s, direct: net.Dialer{KeepAlive: 60 * time.Second}}
	d.resolver = &net.Resolver{PreferGo: true, Dial: d.dialNameserver}
	if s.Proxy == "" {
		return d, nil
	}
	u, err := url.Parse(s.Proxy)
	if err != nil || u.Host == "" {
		return nil, errors.New("the proxy is not a URL") // do not quote the error, which may contain a password
	}
	switch u.Scheme {
	case "http", "socks5":
	default:
		return nil, errors.New("the proxy is neither http:// nor socks5://")
	}
	d.proxy = u
	return d, nil
}

// dialNameserver connects to the configured name servers in turn. This process
// cannot read /etc/resolv.conf.
func (d *dialer) dialNameserver(ctx context.Context, network, _ string) (net.Conn, error) {
	if len(d.settings.Nameservers) == 0 {
		return nil, errors.New("no name server is configured")
	}
	n := d.next.Add(1)
	return d.direct.DialContext(ctx, network, d.settings.Nameservers[int(n)%len(d.settings.Nameservers)])
}

// addresses returns the current addresses of a host.
func (d *dialer) addresses(ctx context.Context, h policy.Host) ([]netip.Addr, error) {
	if h.Name == "" {
		return []netip.Addr{h.Addr}, nil
	}
	if h.Name == sandbox.MachineHost {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, nil
	}
	if known := d.settings.Hosts[h.Name]; len(known) > 0 {
		return known, nil
	}
	found, err := d.resolver.LookupNetIP(ctx, "ip", h.Name+".")
	if err != nil {
		return nil, err
	}
	for i := range found {
		found[i] = found[i].Unmap()
	}
	if len(found) > maxAddresses {
		found = found[:maxAddresses]
	}
	return found, nil
}

// dial connects to a host. Every address is checked and then dialled directly,
// so that a changed DNS answer cannot bypass the check. With a proxy, the proxy
// looks up names.
func (d *dialer) dial(ctx context.Context, h policy.Host, port uint16, check func(netip.Addr) error) (net.Conn, netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if d.proxy != nil && h.Name != sandbox.MachineHost {
		return d.dialProxy(ctx, h, port, check)
	}
	addrs, err := d.addresses(ctx, h)
	if err != nil {
		return nil, netip.Addr{}, err
	}
	err = errNoAddress
	var last netip.Addr
	for _, a := range addrs {
		last = a
		if refused := check(a); refused != nil {
			err = refused
			continue
		}
		one, cancel := context.WithTimeout(ctx, d.patience(len(addrs)))
		conn, derr := d.connect(one, netip.AddrPortFrom(a, port).String())
		cancel()
		if derr == nil {
			return conn, a, nil
		}
		err = derr
	}
	return nil, last, err
}

func (d *dialer) connect(ctx context.Context, to string) (net.Conn, error) {
	if d.tunnel != nil {
		return d.tunnel(ctx, to)
	}
	return d.direct.DialContext(ctx, "tcp", to)
}

func (d *dialer) patience(addresses int) time.Duration {
	if addresses > 1 {
		return addressPeriod
	}
	return dialTimeout
}

// dialProxy connects through the operator's proxy. Addresses are checked as
// without a proxy; the proxy looks up names and decides about them.
func (d *dialer) dialProxy(ctx context.Context, h policy.Host, port uint16, check func(netip.Addr) error) (net.Conn, netip.Addr, error) {
	if h.Name == "" {
		if err := check(h.Addr); err != nil {
			return nil, h.Addr, err
		}
	}
	target := net.JoinHostPort(h.String(), strconv.Itoa(int(port)))
	if d.proxy.Scheme == "socks5" {
		var auth *proxy.Auth
		if u := d.proxy.User; u != nil {
			password, _ := u.Password()
			auth = &proxy.Auth{User: u.Username(), Password: password}
		}
		s, err := proxy.SOCKS5("tcp", d.proxy.Host, auth, &d.direct)
		if err != nil {
			return nil, netip.Addr{}, err
		}
		conn, err := s.(proxy.ContextDialer).DialContext(ctx, "tcp", target)
		return conn, h.Addr, err
	}
	conn, err := d.connectHTTP(ctx, target)
	return conn, h.Addr, err
}

// connectHTTP opens a tunnel through an HTTP proxy.
func (d *dialer) connectHTTP(ctx context.Context, target string) (net.Conn, error) {
	conn, err := d.direct.DialContext(ctx, "tcp", d.proxy.Host)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: target}, Host: target, Header: http.Header{}}
	if u := d.proxy.User; u != nil {
		password, _ := u.Password()
		req.SetBasicAuth(u.Username(), password)
		req.Header["Proxy-Authorization"] = req.Header["Authorization"]
		delete(req.Header, "Authorization")
	}
	if err := req.Write(conn); err != nil {
		conn.Close()
		return nil, err
	}
	head, err := readHead(conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	if !head.ok {
		conn.Close()
		return nil, fmt.Errorf("the proxy answered %d", head.status)
	}
	return conn, nil
}

// answerHead is the status line of a response.
type answerHead struct {
	status int
	ok     bool
}

// readHead reads the head of a response byte by byte, because the bytes after
// it belong to the tunnel.
func readHead(conn net.Conn) (answerHead, error) {
	const most = 16 << 10
	var head []byte
	one := make([]byte, 1)
	for len(head) < most {
		if _, err := conn.Read(one); err != nil {
			return answerHead{}, err
		}
		head = append(head, one[0])
		if n := len(head); n >= 4 && string(head[n-4:]) == "\r\n\r\n" {
			major, minor, status := 0, 0, 0
			if _, err := fmt.Sscanf(string(head), "HTTP/%d.%d %d", &major, &minor, &status); err != nil {
				return answerHead{}, errors.New("the proxy does not speak HTTP")
			}
			return answerHead{status, status >= 200 && status < 300}, nil
		}
	}
	return answerHead{}, errors.New("the proxy's answer is too long")
}
