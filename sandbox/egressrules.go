package sandbox

import "net/netip"

// EgressRules are the rules for a provider that enforces egress itself, without
// Atoll's gateway. Unless Open is set, a sandbox reaches only the targets.
type EgressRules struct {
	Open  bool // nothing is enforced; only set if a policy allows it
	Allow []EgressTarget
	// Requests are for the kind EgressFull. They apply before Allow, in order: the
	// first that matches a request decides.
	Requests []EgressRequest
}

// EgressRequest is a rule about requests to one host.
type EgressRequest struct {
	Rule   string // name of the profile rule it was made from
	Action Action
	Host   string // name, or "*.name" for every name below it
	// Path is a path, or all paths below one if it ends with "/*". Empty: all.
	Path      string
	Methods   []string // nil: all
	PerMinute int      // maximum number of requests per minute; zero: no maximum
	Filter    *Filter
}

// EgressTarget is a host name or a prefix of addresses that may be reached, on
// some ports.
type EgressTarget struct {
	Host   string       // name, or "*.name"; empty for addresses
	Prefix netip.Prefix // addresses; not valid for a name
	Ports  []PortRange  // nil: the provider does not check ports
}

// PortRange is a range of ports, both ends included.
type PortRange struct{ Low, High uint16 }
