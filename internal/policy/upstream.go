package policy

import (
	"encoding/pem"
	"net/netip"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/bounds"
)

// dnsPort is the default port of a name server.
const dnsPort = 53

// Upstream contains a profile's settings for outgoing connections.
type Upstream struct {
	Servers []netip.AddrPort // resolve names; none: the machine's
	Proxy   *Proxy           // nil: none
}

func (u *Upstream) steered() bool { return len(u.Servers) > 0 || u.Proxy != nil }

// Proxy is a SOCKS5 proxy. Its password is not in it.
type Proxy struct {
	Host       Host
	Port       uint16
	Username   string
	TLS        bool
	ServerName string
	CA         string // certificates in PEM; empty: the machine's
}

// Upstream returns how the world is reached.
func (p *Policy) Upstream() Upstream { return p.upstream }

// Steered reports whether the profile says how the world is reached.
func (p *Policy) Steered() bool { return p.upstream.steered() }

// MayAsk decides whether the gateway itself may connect to a name server or a
// proxy of the profile. To name one there is to allow it; the operator of the
// machine and the limits may still refuse.
func (p *Policy) MayAsk(f Flow) Decision {
	f.Addr = f.Addr.Unmap()
	if d, ok := p.reachable(f); !ok {
		return d
	}
	return p.under(Decision{Allow: true, Reason: ByRule}, func(c *Policy) Decision { return c.connect(f) })
}

func compileUpstream(profile *sandbox.Profile) (u Upstream, err error) {
	if len(profile.DNSServers) > bounds.MaxDNSServers {
		return u, invalid("dnsServers", "%d servers, at most %d", len(profile.DNSServers), bounds.MaxDNSServers)
	}
	for _, text := range profile.DNSServers {
		server, err := netip.ParseAddrPort(text)
		if err != nil {
			var a netip.Addr
			a, err = netip.ParseAddr(text)
			server = netip.AddrPortFrom(a, dnsPort)
		}
		if err != nil || server.Addr().Zone() != "" || server.Port() == 0 {
			return u, invalid("dnsServers", "%q is not an address, nor one with a port", clip(text))
		}
		u.Servers = append(u.Servers, netip.AddrPortFrom(server.Addr().Unmap(), server.Port()))
	}
	if profile.Proxy != nil {
		u.Proxy, err = compileProxy(profile.Proxy)
	}
	return u, err
}

func compileProxy(p *sandbox.UpstreamProxy) (*Proxy, error) {
	host, port, err := SplitHostPort(p.Address)
	switch {
	case err != nil || port == 0:
		return nil, invalid("proxy.address", "%q is not HOST:PORT", clip(p.Address))
	case len(p.Username) > bounds.MaxProxyCredential || len(p.Password) > bounds.MaxProxyCredential:
		return nil, invalid("proxy", "the user name or the password is longer than %d bytes", bounds.MaxProxyCredential)
	case p.Username == "" && (p.Password != "" || len(p.Sealed) > 0):
		return nil, invalid("proxy.password", "needs a user name")
	}
	out := &Proxy{Host: host, Port: port, Username: p.Username}
	if p.TLS == nil {
		return out, nil
	}
	out.TLS, out.ServerName = true, host.String()
	if p.TLS.ServerName != "" {
		named, err := ParseHost(p.TLS.ServerName)
		if err != nil {
			return nil, invalid("proxy.tls.serverName", "%q is not a host name", clip(p.TLS.ServerName))
		}
		out.ServerName = named.String()
	}
	if out.CA = p.TLS.CA; out.CA != "" {
		if block, _ := pem.Decode([]byte(p.TLS.CA)); block == nil || block.Type != "CERTIFICATE" || len(p.TLS.CA) > bounds.MaxProxyCA {
			return nil, invalid("proxy.tls.ca", "is not a PEM certificate of at most %d bytes", bounds.MaxProxyCA)
		}
	}
	return out, nil
}
