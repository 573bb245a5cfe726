package sandbox

import (
	"net/netip"
	"slices"
)

// EgressKind is what a provider looks at when it decides what may leave a
// sandbox. The list is append-only.
type EgressKind string

// The kinds, each of which can do more than the one before.
const (
	EgressNone     EgressKind = "none"      // at nothing: everything leaves
	EgressSwitch   EgressKind = "switch"    // all or nothing
	EgressCIDR     EgressKind = "cidr"      // at addresses
	EgressCIDRPort EgressKind = "cidr_port" // at addresses and ports
	EgressHost     EgressKind = "host"      // at names and addresses
	EgressHostPort EgressKind = "host_port" // at names, addresses and ports
	EgressFull     EgressKind = "full"      // at requests: EgressRules.Requests
)

// Rank orders the kinds: one of a higher rank enforces more. It is negative for
// a kind that is not known.
func (k EgressKind) Rank() int {
	return slices.Index([]EgressKind{EgressNone, EgressSwitch, EgressCIDR, EgressCIDRPort, EgressHost, EgressHostPort, EgressFull}, k)
}

// EgressAbility says what of a profile a provider enforces by itself. The zero
// value enforces nothing.
type EgressAbility struct {
	Kind EgressKind
	// NamePorts are the ports on which EgressHost lets an allowed name through.
	// Nil: all.
	NamePorts []uint16
	// NamesOnly says that it knows no addresses.
	NamesOnly bool
	// Filters are those of EgressFull.
	Filters []FilterType
	// Wildcards says that "*.example.com" means every name below and not the
	// name itself.
	Wildcards bool
	// MaxTargets is how many targets it takes. Zero: any number.
	MaxTargets int
}

// EgressRules are what a provider that is no gateway has to enforce: nothing
// but the targets leaves, unless Open is set.
type EgressRules struct {
	Open  bool // nothing is enforced; only where a policy says that this may be
	Allow []EgressTarget
	// Requests come first, in order, for EgressFull: the first that matches a
	// request decides about it.
	Requests []EgressRequest
}

// EgressRequest is a rule about requests to one host.
type EgressRequest struct {
	Rule   string // what it came from is called
	Action Action
	Host   string // name, or "*.name" for every name below it
	// Path is one path, or, with "/*" at its end, everything below one. Empty:
	// all.
	Path      string
	Methods   []string // nil: all
	PerMinute int      // how many of them pass; zero: any number
	Filter    *Filter
}

// EgressTarget is what may be reached: a name or addresses, on some ports.
type EgressTarget struct {
	Host   string       // name, or "*.name"; empty for addresses
	Prefix netip.Prefix // addresses; not valid for a name
	Ports  []PortRange  // nil: those that the provider has no say about
}

// PortRange is a range of ports, both ends included.
type PortRange struct{ Low, High uint16 }
