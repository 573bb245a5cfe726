package sandbox

// UpstreamProxy is a SOCKS5 proxy through which the gateway opens the allowed
// connections of a sandbox. If the proxy cannot be reached, connections fail.
// The proxy is not visible in the sandbox.
type UpstreamProxy struct {
	// Address is HOST:PORT. The host must be public, or allowed by the operator
	// of the machine, as for every other connection of a sandbox.
	Address  string `json:"address" doc:"HOST:PORT of a SOCKS5 proxy"`
	Username string `json:"username,omitempty" maxLength:"255"`
	// Password is write-only. It is stored as Sealed.
	Password string `json:"password,omitempty" maxLength:"255" doc:"write-only: it is stored encrypted"`
	// Sealed is the encrypted password. Only the daemon that encrypted it can
	// decrypt it, and only for the same tenant, address, user name and TLS
	// settings.
	Sealed []byte `json:"sealed,omitempty" doc:"the password, encrypted by the daemon"`
	// TLS, if set, makes the connection to the proxy use TLS. The certificate of
	// the proxy is always checked.
	TLS *ProxyTLS `json:"tls,omitempty"`
}

// ProxyTLS says how the certificate of a proxy is checked.
type ProxyTLS struct {
	ServerName string `json:"serverName,omitempty" maxLength:"253" doc:"name in the certificate; the host of the address if left out"`
	// CA are PEM certificates that replace the machine's trusted roots.
	CA string `json:"ca,omitempty" maxLength:"8192" doc:"PEM certificates, trusted in place of the machine's"`
}

// Steered reports whether the profile sets name servers or a proxy.
func (p Profile) Steered() bool { return len(p.DNSServers) > 0 || p.Proxy != nil }
