package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"

	"golang.org/x/net/proxy"

	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

// errProxied means that a profile's DNS servers or proxy cannot be used on this
// machine.
var errProxied = errors.New("this machine connects through a proxy, so a profile cannot set DNS servers or a proxy")

var errProxyTLS = errors.New("the proxy does not speak TLS, or its certificate is not accepted")

// dial connects to a host, through the DNS servers and proxy of the sandbox's
// profile if it sets them.
func (att *attachment) dial(ctx context.Context, h policy.Host, port uint16, check func(netip.Addr) error) (net.Conn, netip.Addr, error) {
	d := att.outgoing.Load().dialer
	if r := att.policy.Load(); r.Steered() && h.Name != sandbox.MachineHost {
		if d.proxy != nil {
			return nil, netip.Addr{}, errProxied
		}
		var err error
		if d, err = d.steered(r); err != nil {
			return nil, netip.Addr{}, err
		}
	}
	return d.dial(ctx, h, port, check)
}

// steered returns a dialer that uses the DNS servers and the proxy of a
// profile. Their addresses must be allowed.
func (d *dialer) steered(r *activePolicy) (*dialer, error) {
	u := r.Upstream()
	own := &dialer{settings: d.settings, direct: d.direct, resolver: d.resolver}
	if u.Proxy != nil {
		own.tunnel = (&tunnel{d, r, u.Proxy}).connect
	}
	if len(u.Servers) == 0 {
		return own, nil
	}
	own.settings.Hosts, own.settings.Nameservers = nil, nil
	var refused error
	for _, s := range u.Servers {
		if no := r.MayAsk(policy.Flow{Addr: s.Addr(), Port: s.Port()}); !no.Allow {
			refused = refusal{no}
			continue
		}
		own.settings.Nameservers = append(own.settings.Nameservers, s.String())
	}
	if len(own.settings.Nameservers) == 0 {
		return nil, refused
	}
	own.resolver = &net.Resolver{PreferGo: true, Dial: own.dialNameserver}
	return own, nil
}

// tunnel connects through the proxy of a profile.
type tunnel struct {
	direct *dialer
	ruling *activePolicy
	proxy  *policy.Proxy
}

// connect connects to an address through the proxy. It passes the address and
// not the name, because the address was checked.
func (t *tunnel) connect(ctx context.Context, to string) (net.Conn, error) {
	conn, _, err := t.direct.dial(ctx, t.proxy.Host, t.proxy.Port, func(a netip.Addr) error {
		f := policy.Flow{Name: t.proxy.Host.Name, Addr: a, Port: t.proxy.Port}
		if d := t.ruling.MayAsk(f); !d.Allow {
			return refusal{d}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out, err := t.handshake(ctx, conn, to)
	if err != nil {
		conn.Close()
	}
	return out, err
}

func (t *tunnel) handshake(ctx context.Context, conn net.Conn, to string) (net.Conn, error) {
	if t.proxy.TLS {
		secure := tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.proxy.ServerName, RootCAs: t.roots()})
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, errProxyTLS
		}
		conn = secure
	}
	var auth *proxy.Auth
	if t.proxy.Username != "" {
		auth = &proxy.Auth{User: t.proxy.Username, Password: string(t.ruling.proxyPassword.Reveal())}
	}
	s, err := proxy.SOCKS5("tcp", "proxy", auth, connected{conn})
	if err != nil {
		return nil, err
	}
	return s.(proxy.ContextDialer).DialContext(ctx, "tcp", to)
}

// roots returns the roots for the proxy's certificate; nil: the machine's.
func (t *tunnel) roots() *x509.CertPool {
	if t.proxy.CA == "" {
		return nil
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(t.proxy.CA)) // if the pool stays empty, no certificate is accepted
	return pool
}

// connected is a dialer that returns an open connection.
type connected struct{ net.Conn }

// Dial implements proxy.Dialer.
func (c connected) Dial(string, string) (net.Conn, error) { return c.Conn, nil }

// DialContext implements proxy.ContextDialer.
func (c connected) DialContext(context.Context, string, string) (net.Conn, error) { return c.Conn, nil }
