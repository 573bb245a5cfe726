package operator

// DefaultE2BDomain is the domain under which a loopback address serves the API of
// E2B. Systems that resolve names below localhost need no DNS for it.
const DefaultE2BDomain = "atoll.localhost"

// E2BSettings say where and how a daemon serves the API of E2B.
type E2BSettings struct {
	// Listen is a TCP address, HOST:PORT. One that is not a loopback address needs a
	// domain, or a daemon with a certificate.
	Listen string `json:"listen" maxLength:"255"`
	// Domain is the domain of sandboxes, which are reached as PORT-ID.DOMAIN.
	// Empty: only URLs are served. Nil: DefaultE2BDomain on a loopback address.
	Domain *string `json:"domain,omitempty" maxLength:"253"`
	// Internet lets sandboxes reach all hosts that their clients do not deny, as
	// E2B does.
	Internet bool `json:"internet,omitempty"`
}

// E2BPlace is where a daemon serves the API of E2B.
type E2BPlace struct {
	Address string `json:"address"`          // HOST:PORT
	Domain  string `json:"domain,omitempty"` // without the port; empty if there is none
}
