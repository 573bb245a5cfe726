package sandbox

// Bounds of how a profile has the world reached.
const (
	MaxDNSServers      = 10
	MaxProxyCredential = 255 // bytes, as in RFC 1929
	MaxProxyCA         = 8192
)

// UpstreamProxy is a SOCKS5 proxy through which the gateway makes the
// connections of a sandbox, after it has decided about them. If the proxy cannot
// be reached, there are no connections. Code in the sandbox sees nothing of it.
type UpstreamProxy struct {
	// Address is HOST:PORT. The host must be public, or allowed by the operator
	// of the machine, as for every other connection of a sandbox.
	Address  string `json:"address" doc:"HOST:PORT of a SOCKS5 proxy"`
	Username string `json:"username,omitempty" maxLength:"255"`
	// Password is only taken. It is stored as Sealed.
	Password string `json:"password,omitempty" maxLength:"255" doc:"write-only: it is stored sealed"`
	// Sealed is the password as it is stored. Only the daemon that sealed it can
	// open it, for the same tenant, address, user name and TLS settings.
	Sealed []byte `json:"sealed,omitempty" doc:"the password, sealed by the daemon"`
	// TLS, if set, is spoken with the proxy, whose certificate is always checked.
	TLS *ProxyTLS `json:"tls,omitempty"`
}

// ProxyTLS says how the certificate of a proxy is checked.
type ProxyTLS struct {
	ServerName string `json:"serverName,omitempty" maxLength:"253" doc:"name in the certificate; the host of the address if left out"`
	// CA replaces what the machine trusts: certificates in PEM.
	CA string `json:"ca,omitempty" maxLength:"8192" doc:"PEM certificates, trusted in place of the machine's"`
}

// Steered reports whether the profile says by which name servers or through
// which proxy the world is reached.
func (p Profile) Steered() bool { return len(p.DNSServers) > 0 || p.Proxy != nil }
