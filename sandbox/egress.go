package sandbox

import (
	"net/netip"
	"slices"
)

// EgressKind is the finest kind of egress rule that a provider can enforce. The
// list is append-only.
type EgressKind string

// The kinds. Each can do more than the one before.
const (
	EgressNone     EgressKind = "none"      // nothing is enforced
	EgressSwitch   EgressKind = "switch"    // all or nothing
	EgressCIDR     EgressKind = "cidr"      // addresses
	EgressCIDRPort EgressKind = "cidr_port" // addresses and ports
	EgressHost     EgressKind = "host"      // host names and addresses
	EgressHostPort EgressKind = "host_port" // host names, addresses and ports
	EgressFull     EgressKind = "full"      // HTTP requests: EgressRules.Requests
)

// Rank orders the kinds: a kind of a higher rank enforces more. It is negative
// for an unknown kind.
func (k EgressKind) Rank() int {
	return slices.Index([]EgressKind{EgressNone, EgressSwitch, EgressCIDR, EgressCIDRPort, EgressHost, EgressHostPort, EgressFull}, k)
}

// EgressAbility says which parts of a profile a provider enforces itself. The
// zero value enforces nothing.
type EgressAbility struct {
	Kind EgressKind
	// NamePorts are the ports on which a provider of the kind EgressHost allows
	// connections to an allowed name. Nil: all.
	NamePorts []uint16
	// NamesOnly says that rules can have host names but no addresses.
	NamesOnly bool
	// Filters are the filters that a provider of the kind EgressFull supports.
	Filters []FilterType
	// Wildcards says that "*.example.com" matches every name below example.com, but
	// not example.com itself.
	Wildcards bool
	// MaxTargets is the maximum number of targets. Zero: no maximum.
	MaxTargets int
	// GatewaySetting is the setting with which the provider uses Atoll's gateway for
	// what it cannot enforce, for messages. Empty: there is none.
	GatewaySetting string
}

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
